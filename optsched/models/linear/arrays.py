"""The arrays of a linear model: what they must be, and what rows and columns are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from optsched._internal.views import Shown
from optsched.errors import ModelError
from optsched.models.linear.families import Family, member_name, read_only

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray

Sense = Literal["min", "max"]
_OF_COLUMNS = ("cost", "col_lower", "col_upper", "integer")
_OF_ROWS = ("row_lower", "row_upper")


class Breach(NamedTuple):
    """A row or column whose value at some point is not allowed."""

    name: str
    activity: float  # its value
    bound: float  # the nearest whole number where only that is wrong
    kind: Literal["at least", "at most", "whole"]  # what it ought to be

    def __str__(self) -> str:
        wish = "a whole number" if self.kind == "whole" else f"{self.kind} {self.bound:.12g}"
        return f"{self.name} is {self.activity:.12g}, but must be {wish}"


@dataclass(frozen=True, eq=False, repr=False)
class LinearArrays(Shown):
    """The data of a `LinearModel`, checked, with the names of its columns and rows."""

    cost: FloatArray
    matrix: sparse.csr_array[np.float64]
    row_lower: FloatArray
    row_upper: FloatArray
    col_lower: FloatArray
    col_upper: FloatArray
    integer: BoolArray
    offset: float = 0.0
    sense: Sense = "min"
    variables: tuple[Family, ...] = ()
    rows: tuple[Family, ...] = ()
    name: str = "model"

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", canonical(self.matrix))
        object.__setattr__(self, "offset", float(self.offset))
        row_count, column_count = self.matrix.shape
        for fields, length in ((_OF_COLUMNS, column_count), (_OF_ROWS, row_count)):
            for field in fields:
                kind = np.bool_ if field == "integer" else np.float64
                values: npt.NDArray[Any] = np.asarray(getattr(self, field), dtype=kind)
                if values.shape != (length,):
                    raise ModelError(
                        f"{self.name}: {field} has shape {values.shape}, but the matrix "
                        f"({row_count} x {column_count}) asks for ({length},)"
                    )
                object.__setattr__(self, field, read_only(values))
        for field, word, length in (
            ("variables", "column", column_count),
            ("rows", "row", row_count),
        ):
            families = tuple(getattr(self, field))
            if not families and length:
                families = (Family.of(word, index=range(length)),)
            object.__setattr__(self, field, families)
            if (named := sum(map(len, families))) != length:
                raise ModelError(
                    f"{self.name}: the families name {named} {word}s, but it has {length}"
                )
            names = [family.name for family in families]
            if repeated := [name for name in names if names.count(name) > 1]:
                raise ModelError(f"{self.name}: two families of {word}s are called {repeated[0]!r}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Reject what is missing or infinite, and bounds between which there is no number."""
        if self.sense not in ("min", "max"):
            raise ModelError(f"{self.name}: sense is {self.sense!r}, but must be 'min' or 'max'")
        if not np.isfinite(self.offset):
            raise ModelError(f"{self.name}: the offset is {self.offset}, but must be finite")
        if not np.isfinite(self.cost).all():
            column = int(np.argmin(np.isfinite(self.cost)))
            raise ModelError(
                f"column {self.column_name(column)}: the cost is {self.cost[column]}, "
                "but must be finite"
            )
        matrix = self.matrix
        if not np.isfinite(matrix.data).all():
            place = int(np.argmin(np.isfinite(matrix.data)))
            row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1
            name = self.column_name(int(matrix.indices[place]))
            raise ModelError(
                f"row {self.row_name(row)}: the coefficient of {name} is {matrix.data[place]}, "
                "but must be finite"
            )
        for word, name_of, lower, upper in (
            ("column", self.column_name, self.col_lower, self.col_upper),
            ("row", self.row_name, self.row_lower, self.row_upper),
        ):
            good = (lower <= upper) & (lower < np.inf) & (upper > -np.inf)  # false for NaN
            if not good.all():
                at = int(np.argmin(good))
                raise ModelError(
                    f"{word} {name_of(at)}: no number lies between its lower bound {lower[at]:g} "
                    f"and its upper bound {upper[at]:g}"
                )

    def column_name(self, column: int) -> str:
        """Return the name of one column, such as ``start[3,17]``."""
        return member_name(self.variables, column)

    def row_name(self, row: int) -> str:
        """Return the name of one row, such as ``memory[17]``."""
        return member_name(self.rows, row)

    def column_names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all columns; LP files need the brackets "()"."""
        return [name for family in self.variables for name in family.names(brackets)]

    def row_names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all rows; LP files need the brackets "()"."""
        return [name for family in self.rows for name in family.names(brackets)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearArrays):
            return NotImplemented
        return (
            (self.name, self.sense, self.offset) == (other.name, other.sense, other.offset)
            and (self.variables, self.rows) == (other.variables, other.rows)
            and all(map(np.array_equal, self._numbers(), other._numbers()))
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, too large to hash

    def _numbers(self, columns: Any = slice(None), rows: Any = slice(None)) -> list[Any]:
        """Return all arrays, with columns and rows in some order."""
        matrix = canonical(self.matrix[rows][:, columns])
        return [
            *(getattr(self, field)[columns] for field in _OF_COLUMNS),
            *(getattr(self, field)[rows] for field in _OF_ROWS),
            *(matrix.data, matrix.indices, matrix.indptr),
        ]

    def _by_name(self) -> list[Any]:
        """Return names and arrays in the order of the names of columns and rows."""
        columns, rows = np.array(self.column_names()), np.array(self.row_names())
        by_column, by_row = np.argsort(columns), np.argsort(rows)
        return [columns[by_column], rows[by_row], *self._numbers(by_column, by_row)]

    def __str__(self) -> str:
        row_count, column_count = self.matrix.shape
        lines = [
            f"{self.name}: {self.sense} over {_count(column_count, 'column')} "
            f"({int(self.integer.sum()):,} integer), {_count(row_count, 'row')}, "
            f"{_count(self.matrix.nnz, 'nonzero')}"
        ]
        end = 0
        for family in self.variables:
            part = slice(end, end := end + len(family))
            integers = int(self.integer[part].sum())
            kind = {0: "continuous", len(family): "integer"}.get(integers, "mixed")
            low, high = self.col_lower[part], self.col_upper[part]
            bounds = f", {low.min():g}..{high.max():g}" if len(family) else ""
            lines.append(f"  column  {family!r:<20} {len(family):>7,}  {kind}{bounds}")
        end = 0
        for family in self.rows:
            begin, end = end, end + len(family)
            nonzeros = _count(int(self.matrix.indptr[end] - self.matrix.indptr[begin]), "nonzero")
            lines.append(f"  row     {family!r:<20} {len(family):>7,}  {nonzeros}")
        return "\n".join(lines)

    def _checked(self, point: npt.ArrayLike) -> FloatArray:
        """Turn values into an array, refusing a point that has not one for each column."""
        values = np.asarray(point, dtype=np.float64)
        if values.shape != self.cost.shape:
            raise ModelError(
                f"{self.name}: the point has shape {values.shape}, but there are "
                f"{len(self.cost)} columns"
            )
        if np.isnan(values).any():
            name = self.column_name(int(np.argmax(np.isnan(values))))
            raise ModelError(f"column {name}: the point has no value for it (NaN)")
        if np.isinf(values).any():
            at = int(np.argmax(np.isinf(values)))
            name = self.column_name(at)
            raise ModelError(f"column {name}: the point is {values[at]} there, but must be finite")
        return values


def breaches(
    values: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    tolerance: float,
    name: Callable[[int], str],
    most: FloatArray | float = np.inf,
) -> list[Breach]:
    """List the values that lie outside their bounds by more than the tolerance, or the most."""
    found = []
    slack_lower, slack_upper = (
        np.minimum(tolerance * np.maximum(1, np.abs(np.where(np.isfinite(ends), ends, 0))), most)
        for ends in (lower, upper)
    )
    below, above = values < lower - slack_lower, values > upper + slack_upper
    for at in np.flatnonzero(below | above).tolist():
        bound = float(lower[at] if below[at] else upper[at])
        kind: Literal["at least", "at most"] = "at least" if below[at] else "at most"
        found.append(Breach(name(at), float(values[at]), bound, kind))
    return found


def canonical(matrix: Any) -> sparse.csr_array[np.float64]:
    """Sort, merge and thin out the entries; the input stays as it is."""
    result = sparse.csr_array(matrix, dtype=np.float64)
    if not result.has_canonical_format or not result.data.all():
        result = result.copy()
        result.sum_duplicates()
        result.eliminate_zeros()
    index = np.int32 if max(result.nnz, *result.shape) < 2**31 else np.int64
    return sparse.csr_array(
        (
            read_only(result.data),
            read_only(result.indices.astype(index, copy=False)),
            read_only(result.indptr.astype(index, copy=False)),
        ),
        shape=result.shape,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
