"""Calls in a thread of their own, so that the main thread hears Ctrl-C and the clock meanwhile.

Python hears Ctrl-C between two of its own instructions only, not inside a kernel. A call that is
given up ends where it next asks whether it is: kernels that take seconds are called piece by piece.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from optsched._internal.loading import stopwatch
from optsched._internal.progress import still_at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    F = TypeVar("F", bound="Callable[..., Any]")

T = TypeVar("T")

_here = threading.local()  # in a thread of ours: its call

_LONG = 10_000  # requests from which a kernel may take a second
_LOOK_EVERY = 0.2  # seconds between two signs of life in a notebook


class Token(threading.Event):
    """A token that is set as soon as another one is."""

    def __init__(self, other: threading.Event | None = None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether this one or the other is set."""
        return super().is_set() or (self._other is not None and self._other.is_set())


class Budget(NamedTuple):
    """How far a search goes: so much work, to an instant, or until a token is set; who hears of it.

    Work is in token-steps, and an instant one of `stopwatch`.
    """

    work: float = math.inf
    deadline: float = math.inf
    stop: threading.Event | None = None
    report: Callable[[float], None] | None = None

    @property
    def over(self) -> bool:
        """Whether time is up or the token is set."""
        return stopwatch() >= self.deadline or (self.stop is not None and self.stop.is_set())

    def tell(self, value: float) -> None:
        """Report the best value so far."""
        if self.report is not None:
            self.report(value)


UNLIMITED = Budget()


class _GivenUpError(BaseException):
    """Nobody waits for the result any more."""


class Aside(Generic[T]):
    """A call that goes on in a thread of its own."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._done, self._given_up = threading.Event(), threading.Event()
        call = (function, arguments)
        name = f"optsched {getattr(function, '__name__', '')}"
        threading.Thread(target=self._run, args=call, name=name, daemon=True).start()

    def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        _here.given_up = self._given_up
        try:
            self._found.append(function(*arguments))
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        finally:
            self._done.set()

    def give_up(self) -> None:
        """Let the call end where it next asks for a piece of its work."""
        self._given_up.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the call; return whether it has come."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """Wait for the result, or raise what the call has raised."""
        try:
            while not self.wait(_LOOK_EVERY):
                still_at_work()
        except BaseException:
            self.give_up()
            raise
        if self._error is not None:
            raise self._error
        return self._found[0]


def pieces(count: int, most: int) -> Iterator[slice]:
    """Split work into pieces of so much at most, until the call is given up that it is part of."""
    given_up: threading.Event | None = getattr(_here, "given_up", None)
    for begin in range(0, count, most):
        if given_up is not None and given_up.is_set():
            raise _GivenUpError
        yield slice(begin, begin + most)


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
