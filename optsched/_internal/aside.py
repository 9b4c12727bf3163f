"""Calls in a thread of their own, so that the main thread hears Ctrl-C and the clock meanwhile.

Python hears Ctrl-C between two of its own instructions only, not inside a kernel. A call that is
given up goes on by itself, unheard, until it returns to Python or the program ends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound="Callable[..., Any]")

T = TypeVar("T")

_LONG = 10_000  # requests from which a kernel may take a second


class Aside(Generic[T]):
    """A call that goes on in a thread of its own."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        call = (function, arguments)
        name = f"optsched {getattr(function, '__name__', '')}"
        threading.Thread(target=self._run, args=call, name=name, daemon=True).start()

    def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        try:
            self._found.append(function(*arguments))
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        finally:
            self._done.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the call; return whether it has come."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """Wait for the result, or raise what the call has raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found[0]


def interruptible(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that is long in kernels, so that Ctrl-C is heard at once."""
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)  # the main thread hears it
    return Aside(function, *arguments).result()


def interruptible_kernel(kernel: F, requests: int) -> F:
    """Return a kernel as Ctrl-C can end it, where there are many requests."""
    if requests < _LONG:
        return kernel
    dispatcher: Any = kernel

    def call(*arguments: Any) -> Any:
        # The compiler must not be given up, so the kernel is compiled before.
        dispatcher.compile(tuple(map(dispatcher.typeof_pyval, arguments)))
        return interruptible(kernel, *arguments)

    return call  # type: ignore[return-value]
