"""Compilation of kernels to machine code, kept on disk between runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[..., Any]")


def compiled(function: F) -> F:
    """Compile a kernel with numba; the machine code is cached beside the source file."""
    kernel = numba.njit(cache=True, nogil=True)(function)
    if stamps := _imported(function):
        # numba looks at the file of the kernel alone, but machine code holds what it calls too.
        source = Path(function.__code__.co_filename).read_bytes()
        digest = hashlib.sha256(source + b"".join(stamps)).digest()
        kernel._cache._cache_file._source_stamp = digest  # noqa: SLF001
    return cast("F", kernel)


def _imported(function: Callable[..., Any]) -> list[bytes]:
    """Give a stamp of each kernel, and of each number beside them, that a module has imported."""
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
        if isinstance(value, (int, float))
    ]
    return stamps + numbers


def _stamp(kernel: Any) -> bytes:
    return repr(kernel._cache._cache_file._source_stamp).encode()  # noqa: SLF001
