"""What arrays must be to make a linear model: lengths, names, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.errors import ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.models.linear.arrays import LinearArrays
    from optsched.models.linear.families import Family


def check_length(model: LinearArrays, field: str, values: npt.NDArray[Any], length: int) -> None:
    """Reject an array that has not one entry per row or column."""
    if values.shape != (length,):
        row_count, column_count = model.matrix.shape
        raise ModelError(
            f"{model.name}: {field} has shape {values.shape}, but the matrix "
            f"({row_count} x {column_count}) asks for ({length},)"
        )


def check_families(
    model: LinearArrays, families: tuple[Family, ...], word: str, length: int
) -> None:
    """Reject families that name more or fewer rows or columns than there are, or name two alike."""
    named = sum(map(len, families))
    if named != length:
        raise ModelError(f"{model.name}: the families name {named} {word}s, but it has {length}")
    names = [family.name for family in families]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ModelError(f"{model.name}: two families of {word}s are called {repeated[0]!r}")


def check_numbers(model: LinearArrays) -> None:
    """Reject what is missing or infinite, and bounds between which there is no number."""
    if model.sense not in ("min", "max"):
        raise ModelError(f"{model.name}: sense is {model.sense!r}, but must be 'min' or 'max'")
    if not np.isfinite(model.offset):
        raise ModelError(f"{model.name}: the offset is {model.offset}, but must be finite")
    if not np.isfinite(model.cost).all():
        column = int(np.argmin(np.isfinite(model.cost)))
        raise ModelError(
            f"column {model.column_name(column)}: the cost is {model.cost[column]}, "
            "but must be finite"
        )
    if not np.isfinite(model.matrix.data).all():
        place = int(np.argmin(np.isfinite(model.matrix.data)))
        row = int(np.searchsorted(model.matrix.indptr, place, side="right")) - 1
        name = model.column_name(int(model.matrix.indices[place]))
        raise ModelError(
            f"row {model.row_name(row)}: the coefficient of {name} is "
            f"{model.matrix.data[place]}, but must be finite"
        )
    for word, name_of, lower, upper in (
        ("column", model.column_name, model.col_lower, model.col_upper),
        ("row", model.row_name, model.row_lower, model.row_upper),
    ):
        good = (lower <= upper) & (lower < np.inf) & (upper > -np.inf)  # false for NaN
        if not good.all():
            at = int(np.argmin(good))
            raise ModelError(
                f"{word} {name_of(at)}: no number lies between its lower bound {lower[at]:g} "
                f"and its upper bound {upper[at]:g}"
            )
