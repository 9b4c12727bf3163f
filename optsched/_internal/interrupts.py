"""Kernels that Ctrl-C ends at once: Python hears it only between calls of machine code."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound="Callable[..., Any]")

_LONG = 10_000  # requests from which a call may take a second


def interruptible(kernel: F, requests: int) -> F:
    """Return a kernel as Ctrl-C can end it, where there are many requests.

    It runs in a thread, and is abandoned there: it ends by itself or with the process. The compiler
    must not be abandoned, so the kernel is compiled before.
    """
    if requests < _LONG or threading.current_thread() is not threading.main_thread():
        return kernel
    dispatcher: Any = kernel

    def call(*arguments: Any) -> Any:
        dispatcher.compile(tuple(map(dispatcher.typeof_pyval, arguments)))
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(kernel(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return answer.result()

    return call  # type: ignore[return-value]
