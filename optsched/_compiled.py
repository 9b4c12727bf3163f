"""Compilation of kernels to machine code, kept on disk between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[..., Any]")


def compiled(function: F) -> F:
    """Compile a kernel with numba; the machine code is cached beside the source file."""
    return cast("F", numba.njit(cache=True, nogil=True)(function))
