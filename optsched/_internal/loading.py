"""The time that kernels take to be compiled or loaded, charged to no run, and a word about it."""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPILING = "compiling kernels, which takes a while once on this machine"


class _Loading:
    """What is being loaded in this process, and who is told of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth, self.since, self.spent = 0, 0.0, 0.0
        self.collects = self.told = False
        self.show: Callable[[], None] = self.print

    def print(self) -> None:
        """Say once on standard error why it takes long; notebooks show it too."""
        if not self.told:
            print(f"optsched: {COMPILING}", file=sys.stderr, flush=True)
        self.told = True


_loading = _Loading()


def stopwatch() -> float:
    """Return seconds for measuring: it stands still while kernels are compiled or loaded."""
    with _loading.lock:
        now = _loading.since if _loading.depth else time.perf_counter()
        return now - _loading.spent


def begin() -> None:
    """Stop the clock, and the search for garbage, a seventh of the time among what numba makes."""
    with _loading.lock:
        if not _loading.depth:
            _loading.since, _loading.collects = time.perf_counter(), gc.isenabled()
            gc.disable()
        _loading.depth += 1


def end() -> None:
    """Let the clock go on where no other thread and no outer kernel holds it."""
    with _loading.lock:
        _loading.depth -= 1
        if not _loading.depth:
            _loading.spent += time.perf_counter() - _loading.since
            if _loading.collects:
                gc.enable()


def tell() -> None:
    """Tell that a kernel is compiled."""
    _loading.show()


@contextmanager
def shown_by(show: Callable[[], None]) -> Iterator[None]:
    """Tell another one that kernels are compiled."""
    before, _loading.show = _loading.show, show
    try:
        yield
    finally:
        _loading.show = before
