"""Compilation of kernels by numba, kept on disk between runs.

Machine code holds what a kernel calls too, but numba looks at the file of the kernel alone. So it
is kept in a folder named after the sources of all kernels.

Arrays come out of a named tuple once, before the loops of a kernel: inside them every access counts
references, which took up to twice the time. And a kernel with such arrays has no comprehension:
where numba inlines one, it drops writes to them that it holds to be unused. A kernel is compiled
once more for each other type: a read-only array, another layout, a number written out.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numba.extending
from numba.core import event

from optsched._internal import aside

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_KEPT = 10  # folders, of the sources that were used last
_FREE = 100_000_000  # bytes that a disk must have left; what all kernels take is a fifth

#: What files say that have kernels, their types, or numbers that they take from elsewhere.
_WORDS = (b"compiled", b"NamedTuple", b"kernel")

_placing = threading.Lock()


def compiled(function: F) -> F:
    """Compile a kernel with numba; outside of this package, it may call those of its file only."""
    folder = _folder()
    with _placing:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, folder
        try:
            return cast("F", numba.njit(nogil=True, cache=folder is not None)(function))
        finally:
            numba.config.CACHE_DIR = before


def compiled_inside(function: F) -> F:
    """Compile what only kernels call, as part of them; called from Python, it runs uncompiled."""
    return cast("F", numba.extending.register_jitable(nogil=True)(function))


@functools.cache
def _folder() -> str | None:
    """Return the folder of machine code of these sources, or None where it cannot be kept."""
    stamp = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = path.read_bytes()
        if any(word in source for word in _WORDS):
            stamp.update(source)
    try:
        caches = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
        root = Path(caches or Path.home() / ".cache") / "optsched"
        folder = root / stamp.hexdigest()[:16]
        if not folder.exists():
            folder.mkdir(parents=True)
            for old in sorted(root.iterdir(), key=os.path.getmtime)[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        os.utime(folder)  # it was used
        tempfile.TemporaryFile(dir=folder).close()
        for file in folder.glob("*/*.nb?"):
            if not file.read_bytes().endswith(pickle.STOP):  # cut off where a machine stopped
                file.unlink()
        return str(folder) if shutil.disk_usage(folder).free > _FREE else None
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None


class _Compiling(event.Listener):  # type: ignore[misc]
    """While numba compiles or loads a kernel the clock stops, and Ctrl-C and other writers wait."""

    # LLVM's objects, half made, end the process; and two processes that compile one kernel for
    # different types could give their files one name.

    def __init__(self) -> None:
        self._depth = 0  # of the main thread, which alone hears Ctrl-C
        self._heard: list[int] = []
        self._before: Any = None
        self._here = threading.local()

    def on_start(self, event: Any) -> None:
        """Stop the clock, hold Ctrl-C back, and say that it takes long."""
        if event.kind == "numba:compile":
            if event.data["dispatcher"].__module__.startswith("optsched"):  # not a user's own
                aside.tell()
            return
        if threading.current_thread() is threading.main_thread():
            if not self._depth and callable(before := signal.getsignal(signal.SIGINT)):
                # It raises where Ctrl-C came just before; then nothing is held back.
                signal.signal(signal.SIGINT, lambda number, _: self._heard.append(number))
                self._before = before
            self._depth += 1
        aside.begin()

    def on_end(self, event: Any) -> None:
        """Take turns from the end of a compilation, when it is written, until numba has done so."""
        if event.kind == "numba:compile":
            with contextlib.suppress(OSError):
                self._here.turn = os.open(f"{_folder()}/turn", os.O_CREAT | os.O_WRONLY)
                fcntl.flock(self._here.turn, fcntl.LOCK_EX)
            return
        if turn := self._here.__dict__.pop("turn", None):
            fcntl.flock(turn, fcntl.LOCK_UN)  # which a process forked meanwhile would keep
            os.close(turn)
        aside.end()
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if not self._depth and self._before:
                signal.signal(signal.SIGINT, self._before)
                self._before = None
                if self._heard:
                    self._heard.clear()
                    signal.raise_signal(signal.SIGINT)


_compiling = _Compiling()
event.register("numba:compile", _compiling)
event.register("numba:compiler_lock", _compiling)
