"""Points: what is wrong with the values of columns, and rounding them to whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from optsched.errors import ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.linear.arrays import LinearArrays
    from optsched.models.linear.families import Family


class Breach(NamedTuple):
    """A row or column whose value at some point is not allowed.

    Attributes
    ----------
    name
        The row or column.
    activity
        Its value.
    bound
        The bound it breaks; the nearest whole number where only that is wrong.
    kind
        What it ought to be: "at least" or "at most" the bound, or "whole".
    """

    name: str
    activity: float
    bound: float
    kind: Literal["at least", "at most", "whole"]

    def __str__(self) -> str:
        wish = "a whole number" if self.kind == "whole" else f"{self.kind} {self.bound:.12g}"
        return f"{self.name} is {self.activity:.12g}, but must be {wish}"


def checked_point(model: LinearArrays, point: npt.ArrayLike) -> FloatArray:
    """Turn values into an array, refusing a point that has not one for each column."""
    values = np.asarray(point, dtype=np.float64)
    if values.shape != model.cost.shape:
        raise ModelError(
            f"{model.name}: the point has shape {values.shape}, but there are "
            f"{len(model.cost)} columns"
        )
    if np.isnan(values).any():
        name = model.column_name(int(np.argmax(np.isnan(values))))
        raise ModelError(f"column {name}: the point has no value for it (NaN)")
    return values


def violations(model: LinearArrays, point: npt.ArrayLike, tolerance: float) -> list[Breach]:
    """List everything that makes a point infeasible (`LinearModel.violations`)."""
    values = checked_point(model, point)
    found = _breaches(values, model.col_lower, model.col_upper, tolerance, model.column_name)
    whole = np.rint(values)
    for column in np.flatnonzero(model.integer & (np.abs(values - whole) > tolerance)).tolist():
        name = model.column_name(column)
        found.append(Breach(name, float(values[column]), float(whole[column]), "whole"))
    activities: Any = model.matrix @ values
    return found + _breaches(
        activities, model.row_lower, model.row_upper, tolerance, model.row_name
    )


def _breaches(
    values: FloatArray, lower: FloatArray, upper: FloatArray, tolerance: float, name: Any
) -> list[Breach]:
    """List the values that lie outside their bounds by more than the tolerance."""
    found = []
    slack_lower = tolerance * np.maximum(1, np.abs(np.where(np.isfinite(lower), lower, 0)))
    slack_upper = tolerance * np.maximum(1, np.abs(np.where(np.isfinite(upper), upper, 0)))
    below, above = values < lower - slack_lower, values > upper + slack_upper
    for at in np.flatnonzero(below | above).tolist():
        bound = float(lower[at] if below[at] else upper[at])
        kind: Literal["at least", "at most"] = "at least" if below[at] else "at most"
        found.append(Breach(name(at), float(values[at]), bound, kind))
    return found


def whole_numbers(values: npt.ArrayLike, family: Family, tolerance: float = 1e-5) -> IntArray:
    """Round the values of a family of columns to whole numbers."""
    point = np.asarray(values, dtype=np.float64)
    if point.shape != (len(family),):
        raise ModelError(f"{family!r} has {len(family)} columns, but the point has {point.shape}")
    nearby = np.rint(point)
    off = ~(np.abs(point - nearby) <= tolerance)  # true for NaN
    if off.any():
        column = int(np.argmax(off))
        raise ModelError(
            f"the point is fractional: {family.label(column)} is {point[column]:g}; an answer can "
            "be read from whole numbers only"
        )
    return nearby.astype(np.int64)
