"""Arrays of numbers about requests: their types, their limits, and how input becomes one."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from optsched._internal.arguments import LARGEST, as_count, as_number
from optsched._internal.arguments import MAX_TOKENS as MAX_TOKENS
from optsched.errors import InstanceError, shown

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Records = np.recarray[Any, Any]
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_STEP = 10**12
_LONGEST_STEP = 10**9
MAX_WEIGHT = 1e100  # of a request, a penalty or a price, so that costs are finite
MAX_SUM = 2**62  # with room for what is added to a sum


def checked_memory(memory: Any) -> int:
    """Turn a memory size into an integer, refusing what cannot be one."""
    return as_count("memory", memory, of=" of tokens")


def checked_step(seconds: Any) -> float:
    """Turn the length of a step into a float, refusing what cannot be one."""
    wish = f"positive, and at most {_LONGEST_STEP:,} seconds"
    return as_number("seconds_per_step", seconds, lambda each: 0 < each <= _LONGEST_STEP, wish)


def as_integers(name: str, values: Any) -> IntArray:
    """Turn numbers into a frozen 64-bit array, refusing anything but whole numbers."""
    array = _listed(name, values)
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
    """Turn numbers into a 64-bit array, refusing anything but numbers."""
    array = _listed(name, values)
    if array.dtype.kind == "b":
        raise InstanceError(f"{name} holds true and false, but must hold numbers", column=name)
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    floats = np.empty(len(array))
    first = "arrivals" if name == "deadlines" else name
    for index, value in enumerate(np.asarray(values, dtype=object)):
        if array.dtype.kind in "mM" or isinstance(value, date | timedelta):
            since = name if array.dtype.kind == "m" else f"({name} - {first}.min())"
            raise InstanceError(
                f"{name} holds dates or durations, but must hold numbers; steps of 50 ms are "
                f"np.ceil({since} / np.timedelta64(50, 'ms')), with seconds_per_step=0.05",
                column=name,
            )
        real = isinstance(value, Real | Decimal)
        if not real or abs(value) > LARGEST:
            said = f"{name} is {shown(value)}, but must be a number"
            raise InstanceError(
                f"request {index}: {said}", column=name, request=index, value=value, reason=said
            )
        floats[index] = float(value)
    return floats


def _listed(name: str, values: Any) -> npt.NDArray[Any]:
    """Return values as an array of one dimension."""
    try:
        array = np.asarray(values)
    except ValueError:  # some of them are lists
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise InstanceError(f"{name} must be a list of numbers, one per request", column=name)
    return array


def frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Copy an array, read-only."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def read_only(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Return a read-only view: kernels are compiled once more for arrays that can be written."""
    view = array.view()
    view.flags.writeable = False
    return view


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
