"""Compilation of kernels to machine code, kept on disk between runs.

Where nothing can be kept - folders that are read-only, a full disk - every process compiles again.

Arrays come out of a named tuple once, before the loops of a kernel: inside them every access counts
references, which took up to twice the time. And a kernel with such arrays has no comprehension:
where numba inlines one, it drops writes to them that it holds to be unused.

Compilation takes a tenth of a second per kernel and more, and `benchmarks/cold.py --kernels` says
where it goes. Costly is what brings in much of numba (a slice assigned from a slice or an array,
`max`, `sort`, `heapq`, `concatenate`; see `small_kernels`), a kernel that is called with two types
(an array that is read-only here and not there, or a Python number), and a chain of kernels, each of
which is optimised again with all that it calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[..., Any]")

#: Numbers for kernels to hand on: numba compiles the callee once more for a Python number.
ZERO, ONE, MINUS_ONE = (cast("int", np.int64(value)) for value in (0, 1, -1))


def compiled(function: F) -> F:
    """Compile a kernel with numba; the machine code is cached beside the source file."""
    kernel = numba.njit(nogil=True)(function)
    kernel.compile = _uninterrupted(kernel.compile)
    # numba raises RuntimeError where there is no folder that it may write to.
    with contextlib.suppress(RuntimeError):
        kernel._cache = _Cache(function)  # noqa: SLF001
    return cast("F", kernel)


def _uninterrupted(compilation: Callable[..., Any]) -> Callable[..., Any]:
    """Let Ctrl-C wait until a kernel is compiled: LLVM's objects, half made, end the process."""

    def waiting(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return compilation(*arguments)
        came: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        try:
            return compilation(*arguments)
        finally:
            signal.signal(signal.SIGINT, before)
            if came:
                signal.raise_signal(signal.SIGINT)

    return waiting


class _Cache(FunctionCache):  # type: ignore[misc]
    """Machine code of a kernel on disk; a disk that is full or damaged only costs time."""

    _cache_file: Any

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._cache_file._source_stamp  # noqa: SLF001
        if stamps := _imported(function):
            # numba looks at the file of the kernel alone, but machine code holds what it calls too.
            source = Path(function.__code__.co_filename).read_bytes()
            stamp = hashlib.sha256(source + b"".join(stamps)).digest()
        self._cache_file = _CacheFile(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if that can be done."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


#: What reading raises where a file is damaged, or names types that have moved since it was written.
_UNREADABLE = (EOFError, pickle.UnpicklingError, ImportError, AttributeError)


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one kernel, named after what is in them."""

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code."""
        base = self._index_name.removesuffix(".nbi")
        known = self._load_index()
        if not known:  # what is there is of an older source
            for old in Path(self._cache_path).glob(f"{base}.*.nbc"):
                old.unlink(missing_ok=True)
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()[:16]
        name = f"{base}.{digest}.nbc"
        self._save_data(name, data)
        self._save_index(known | {key: name})

    def load(self, key: Any) -> Any:
        """Return what was stored, or None if nothing can be read."""
        with contextlib.suppress(OSError, *_UNREADABLE):
            return super().load(key)
        return None

    def _load_index(self) -> dict[Any, str]:
        try:
            known: dict[Any, str] = super()._load_index()
        except _UNREADABLE:
            return {}
        return known


def _imported(function: Callable[..., Any]) -> list[bytes]:
    """Return a stamp of each kernel, and of each number beside them, that a module has imported."""
    names = function.__globals__
    kernels = {
        name: value
        for name, value in names.items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ != function.__module__
    }
    if not kernels:
        return []
    stamps = [
        f"{name} {value.py_func.__name__}".encode() + _stamp(value)
        for name, value in sorted(kernels.items())
    ]
    numbers = [
        f"{name} {value!r}".encode()
        for name, value in sorted(names.items())
        if isinstance(value, (int, float, np.integer))
    ]
    return stamps + numbers


def _stamp(kernel: Any) -> bytes:
    if not isinstance(kernel._cache, _Cache):  # noqa: SLF001
        raise RuntimeError("machine code that holds uncached machine code cannot be cached")
    return repr(kernel._cache._cache_file._source_stamp).encode()  # noqa: SLF001
