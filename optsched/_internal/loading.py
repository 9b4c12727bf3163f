"""The time that kernels take to be compiled or loaded, charged to no run, and a word about it."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPILING = "compiling kernels, once on this machine"
_EVERY = 5.0  # seconds between two lines


class _Loading:
    """What is being loaded in this process, and who is told how many kernels are left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads, self.since, self.spent = 0, 0.0, 0.0
        self.told = -_EVERY
        self.show: Callable[[int], None] = self.print

    def print(self, left: int) -> None:
        """Say on standard error how many are left, now and then; notebooks show it too."""
        if time.monotonic() - self.told >= _EVERY:
            first = self.told < 0
            self.told = time.monotonic()
            what = f"{COMPILING}; left in this part: {left}" if first else f"kernels left: {left}"
            print(f"optsched: {what}", file=sys.stderr, flush=True)


_loading = _Loading()


def stopwatch() -> float:
    """Return seconds for measuring: it stands still while kernels are compiled or loaded."""
    with _loading.lock:
        now = _loading.since if _loading.threads else time.perf_counter()
        return now - _loading.spent


@contextmanager
def loading() -> Iterator[None]:
    """Stop the clock."""
    with _loading.lock:
        if not _loading.threads:
            _loading.since = time.perf_counter()
        _loading.threads += 1
    try:
        yield
    finally:
        with _loading.lock:
            _loading.threads -= 1
            if not _loading.threads:
                _loading.spent += time.perf_counter() - _loading.since


def tell(left: int) -> None:
    """Tell how many kernels are left to be compiled."""
    _loading.show(left)


@contextmanager
def shown_by(show: Callable[[int], None]) -> Iterator[None]:
    """Tell another one how many kernels are left."""
    before, _loading.show = _loading.show, show
    try:
        yield
    finally:
        _loading.show = before
