"""Measured batches: what was in them, and the seconds that they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import ClockError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from optsched._internal.arrays import FloatArray


def measured_batches(
    batches: str | Path | pd.DataFrame, counts: tuple[str, ...], least: int
) -> tuple[FloatArray, FloatArray]:
    """Return the counts and the seconds of measured batches."""
    import pandas as pd

    where = "the table"
    if not isinstance(batches, pd.DataFrame):
        where = str(batches)
        try:
            batches = pd.read_csv(batches)
        except (OSError, ValueError) as error:
            raise ClockError(f"cannot read batches from {where}: {error}") from None
    columns = (*counts, "seconds")
    for column in columns:
        if column not in batches:
            raise ClockError(
                f"{where} has no column {column}; a row per batch needs {', '.join(columns)}"
            )
        numbers = pd.to_numeric(batches[column], errors="coerce").to_numpy(dtype=np.float64)
        wrong = ~(np.isfinite(numbers) & (numbers >= 0) & ((numbers > 0) | (column != "seconds")))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ClockError(
                f"{where}, batch {row}: {column} is {batches[column].iloc[row]}, but must be a "
                f"number {'above' if column == 'seconds' else 'from'} 0"
            )
    if len(batches) < least:
        raise ClockError(
            f"{where} has {len(batches)} batches, but a fit needs {least}; measure more, or leave "
            "hinges out"
        )
    rows = batches[list(columns)].to_numpy(dtype=np.float64)
    return rows[:, :-1], rows[:, -1]
