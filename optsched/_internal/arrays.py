"""Arrays of numbers about requests: their types, their limits, and how input becomes one."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from optsched.errors import InstanceError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Records = np.recarray[Any, Any]
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_TOKENS = 10**9  # memory-time areas of single requests stay within 64-bit integers
MAX_STEP = 10**12
MAX_SUM = 2**62  # with room for what is added to a sum


def checked_memory(memory: Any) -> int:
    """Turn a memory size into an integer, refusing what cannot be one."""
    try:
        value = int(memory)
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or value != memory or not 1 <= value <= MAX_TOKENS:
        raise InstanceError(
            f"memory is {memory!r}, but must be a whole number of tokens from 1 to {MAX_TOKENS}"
        )
    return value


def as_integers(name: str, values: Any) -> IntArray:
    """Turn numbers into a frozen 64-bit array, refusing whatever is not a whole number."""
    try:
        array = np.asarray(values)
    except ValueError:  # some of them are lists
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise InstanceError(f"{name} must be a list of numbers, one per request", column=name)
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and (array <= MAX_SUM).all()):
        return frozen(array.astype(np.int64))
    floats = as_floats(name, values)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(floats) & (floats == np.floor(floats)) & (np.abs(floats) < 2**53)
    if not whole.all():
        index = int(np.argmin(whole))
        raise InstanceError(
            f"request {index}: {name} is {floats[index]:g}, but must be a whole number",
            column=name,
            request=index,
            value=float(floats[index]),
        )
    return frozen(floats.astype(np.int64))


def as_floats(name: str, values: Any) -> FloatArray:
    """Turn numbers into a 64-bit array, refusing what is no number."""
    if np.asarray(values).dtype.kind == "b":
        raise InstanceError(f"{name} holds true and false, but must hold numbers", column=name)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InstanceError(f"{name} holds a value that is not a number", column=name) from None


def frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Copy an array, read-only."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def prefix_sums(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Return the sums of the first 0, 1, 2, ... values along the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def ranks_in(order: IntArray) -> IntArray:
    """Return the place of each request in an order of all."""
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks


def records(count: int, fields: tuple[str, ...], **values: npt.ArrayLike) -> Records:
    """Make records of whole numbers, zero where no values are passed."""
    made = np.zeros(count, np.dtype([(name, np.int64) for name in fields])).view(np.recarray)
    for name, column in values.items():
        made[name] = column
    return made
