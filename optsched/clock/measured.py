"""Measured batches: what was in them, and the seconds that they took."""

from __future__ import annotations

import csv
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched.errors import ClockError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from optsched._internal.arrays import FloatArray


def measured_batches(
    batches: str | Path | pd.DataFrame, counts: tuple[str, ...], least: int
) -> tuple[FloatArray, FloatArray]:
    """Return the counts and the seconds of measured batches."""
    where, table = "the table", cast("Mapping[str, Sequence[Any]]", batches)
    if isinstance(batches, (str, PathLike)):
        where, table = str(batches), _table(Path(batches))
    names, columns = (*counts, "seconds"), []
    for name in names:
        if name not in table:
            raise ClockError(
                f"{where} has no column {name}; a row per batch needs {', '.join(names)}"
            )
        cells = list(table[name])
        numbers = np.array([_number(cell) for cell in cells], dtype=np.float64)
        wrong = ~(np.isfinite(numbers) & (numbers >= 0) & ((numbers > 0) | (name != "seconds")))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ClockError(
                f"{where}, batch {row}: {name} is {cells[row]}, but must be a number "
                f"{'above' if name == 'seconds' else 'from'} 0"
            )
        columns.append(numbers)
    if len(columns[0]) < least:
        raise ClockError(
            f"{where} has {len(columns[0])} batches, but a fit needs {least}; measure more, or "
            "leave hinges out"
        )
    return np.column_stack(columns[:-1]), columns[-1]


def _table(path: Path) -> Mapping[str, Sequence[Any]]:
    """Read the columns of a CSV file as text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            cells = list(rows)
    except (OSError, ValueError, csv.Error) as error:
        raise ClockError(f"cannot read batches from {path}: {error}") from None
    return {name: [row[name] for row in cells] for name in rows.fieldnames or ()}


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")
