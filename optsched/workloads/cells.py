"""Whole columns of text cells turned into numbers, with the cells that are none picked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """A kind of cell: how a pyarrow array of them is read, and what to call one."""

    read: Callable[[Any], Values]  # raises ValueError if any cell is not of the kind
    name: str  # with its article
    filler: object  # stands in for a cell that cannot be read


def _numbers(cells: Any) -> FloatArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_binary(cells.type):
        cells = pc.utf8_trim_whitespace(cells.cast(pa.string())).cast(pa.float64())
    values: FloatArray = cells.to_numpy(zero_copy_only=False)
    if cells.null_count or not np.isfinite(values).all():
        raise ValueError("missing or infinite")
    return values


def _whole_numbers(cells: Any) -> IntArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_binary(cells.type):
        text = cells.cast(pa.string())
        # Decimal digits only: the cast by itself would also take hexadecimal.
        if pc.all(pc.ascii_is_decimal(text)).as_py():
            digits: IntArray = text.cast(pa.int64()).to_numpy()
            return digits
    values = _numbers(cells)
    if (values != np.floor(values)).any() or (np.abs(values) >= 2**53).any():
        raise ValueError("fractional or too large")
    return values.astype(np.int64)


def _stamps(cells: Any) -> IntArray:
    import pyarrow as pa

    text = cells.cast(pa.string())
    try:
        stamps = text.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:
        stamps = text.cast(pa.timestamp("ns", "UTC"))
    nanoseconds: IntArray = stamps.cast(pa.int64()).to_numpy()
    return nanoseconds


def _texts(cells: Any) -> npt.NDArray[np.object_]:
    import pyarrow as pa

    _single_lines(cells)
    texts: npt.NDArray[np.object_] = cells.cast(pa.string()).to_numpy(zero_copy_only=False)
    return texts


def _single_lines(cells: Any) -> Values:
    import pyarrow.compute as pc

    # A quote without its partner swallows the lines up to the next one.
    if pc.any(pc.match_substring(cells, "\n")).as_py():
        raise ValueError("line break")
    return np.zeros(len(cells), dtype=np.int8)


WHOLE = Kind(_whole_numbers, "a whole number", 0)
NUMBER = Kind(_numbers, "a finite number", 0.0)
#: Nanoseconds since 1970, of a date and time with or without an offset from UTC.
STAMP = Kind(_stamps, "a date and time such as 2023-11-16 18:15:46.68", 0)
TEXT = Kind(_texts, "UTF-8 text on one line", "")
#: What an instance does not need, checked only for rows swallowed by a quote.
IGNORED = Kind(_single_lines, "text on one line", 0)


def read_cells(cells: Any, kind: Kind) -> tuple[Values, BoolArray]:
    """Read a column."""
    try:
        return kind.read(cells), np.zeros(len(cells), dtype=bool)
    except ValueError:
        if len(cells) == 1:
            return np.array([kind.filler]), np.array([True])
    # Halving finds the few bad cells of a long column without a look at every cell.
    middle = len(cells) // 2
    halves = [read_cells(half, kind) for half in (cells[:middle], cells[middle:])]
    values, unreadable = zip(*halves, strict=True)
    return np.concatenate(values), np.concatenate(unreadable)
