"""Families of variables and rows, and a model as arrays."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from optsched._internal.arrays import read_only as read_only
from optsched._internal.extensions import Shown
from optsched.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray


_FAMILY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBER_NAME = re.compile(r"(?P<family>[A-Za-z_]\w*)(?:[\[(](?P<keys>-?\d+(?:,-?\d+)*)[\])])?")


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """Columns or rows of one kind, identified by integer indices.

    Parameters
    ----------
    name
        Letters, digits and underscores.
    index_names
        What the indices count; empty for a single column or row.
    keys
        The indices of each member, shape (count, len(index_names)).

    Examples
    --------
    >>> start = Family.of("start", request=[0, 0, 1], step=[0, 1, 0])
    >>> start
    start[request,step]
    >>> len(start), start.label(1), start.names("()")
    (3, 'start[0,1]', ['start(0,0)', 'start(0,1)', 'start(1,0)'])
    """

    name: str
    index_names: tuple[str, ...]
    keys: IntArray

    def __post_init__(self) -> None:
        if not _FAMILY_NAME.fullmatch(self.name):
            raise ModelError(
                f"a family is called {self.name!r}, but only letters, digits and underscores "
                "survive in every file format"
            )
        keys = np.asarray(self.keys)
        if keys.dtype.kind != "i" and (np.abs(keys.astype(np.float64)) >= 2**63).any():
            raise ModelError(f"family {self.name}: an index is beyond 64-bit integers")
        keys = keys.astype(np.int64)
        if keys.ndim != 2 or keys.shape[1] != len(self.index_names):
            raise ModelError(
                f"family {self.name}: the keys have shape {keys.shape}, but there are "
                f"{len(self.index_names)} index names; pass one column per index"
            )
        object.__setattr__(self, "index_names", tuple(self.index_names))
        object.__setattr__(self, "keys", read_only(keys))

    @classmethod
    def of(cls, name: str, **indices: npt.ArrayLike) -> Family:
        """Make a family from one array per index; without any, a family of one."""
        columns = [np.asarray(values, dtype=np.int64) for values in indices.values()]
        keys = np.stack(columns, axis=1) if columns else np.empty((1, 0), dtype=np.int64)
        return cls(name, tuple(indices), keys)

    @classmethod
    def parse(cls, names: Sequence[str]) -> tuple[Family, ...]:
        """Find the families in a list of member names, as read back from a file."""
        runs: list[tuple[str, list[tuple[int, ...]]]] = []
        for name in names:
            match = _MEMBER_NAME.fullmatch(name)
            if match is None:
                raise ModelError(f"{name!r} is not a name such as 'start[3,17]'")
            key = tuple(map(int, match["keys"].split(","))) if match["keys"] else ()
            same = runs and runs[-1][0] == match["family"] and len(runs[-1][1][0]) == len(key)
            if not same:
                runs.append((match["family"], []))
            runs[-1][1].append(key)
        return tuple(
            cls(family, tuple("ijklmn"[: len(keys[0])]), np.array(keys).reshape(len(keys), -1))
            for family, keys in runs
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Family):
            return NotImplemented
        return (
            self.name == other.name
            and self.index_names == other.index_names
            and np.array_equal(self.keys, other.keys)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.index_names, len(self)))

    def __repr__(self) -> str:
        return self.name + (f"[{','.join(self.index_names)}]" if self.index_names else "")

    def names(self, brackets: str = "[]") -> list[str]:
        """Return the names of all members."""
        if not self.index_names:
            return [self.name] * len(self)
        indices = ",".join(["%d"] * len(self.index_names))
        pattern = f"{self.name}{brackets[0]}{indices}{brackets[1]}"
        return [pattern % tuple(key) for key in self.keys.tolist()]

    def label(self, position: int) -> str:
        """Return the name of one member."""
        return dataclasses.replace(self, keys=self.keys[position : position + 1]).names()[0]

    def positions(self, **indices: int) -> IntArray:
        """Find the members with given values of some indices."""
        if unknown := sorted(set(indices) - set(self.index_names)):
            raise ModelError(f"{self!r} has no index {unknown[0]!r}")
        wanted = [indices.get(name) for name in self.index_names]
        found = np.ones(len(self), dtype=bool)
        for axis, value in enumerate(wanted):
            if value is not None:
                found &= self.keys[:, axis] == value
        return np.flatnonzero(found)


@dataclass(frozen=True, eq=False)
class Variables:
    """A family of columns for `LinearModel.build`; numbers hold for every member."""

    family: Family
    cost: npt.ArrayLike = 0.0
    lower: npt.ArrayLike = 0.0
    upper: npt.ArrayLike = np.inf
    integer: npt.ArrayLike = False  # whether they take whole values only


@dataclass(frozen=True, eq=False)
class Rows:
    """A family of rows for `LinearModel.build`; numbers hold for every member."""

    family: Family
    blocks: Mapping[str, Any]  # by variable family, each of shape (rows, columns of that family)
    lower: npt.ArrayLike = -np.inf
    upper: npt.ArrayLike = np.inf


def member_name(families: tuple[Family, ...], position: int) -> str:
    """Name the member at a position of families laid out one after another."""
    for family in families:
        if position < len(family):
            return family.label(position)
        position -= len(family)
    raise IndexError(position)


def member_positions(families: tuple[Family, ...], name: str, indices: dict[str, int]) -> IntArray:
    """Find members among families laid out one after another (`Family.positions`)."""
    begin = 0
    for family in families:
        if family.name == name:
            return begin + family.positions(**indices)
        begin += len(family)
    known = ", ".join(family.name for family in families)
    raise ModelError(f"there is no family {name!r}; known: {known}")


def spread(values: Sequence[npt.ArrayLike], families: Sequence[Family]) -> FloatArray:
    """Lay numbers per family out over its members."""
    parts = []
    for value, family in zip(values, families, strict=True):
        numbers = np.asarray(value, dtype=np.float64)
        if numbers.shape not in ((), (len(family),)):
            raise ModelError(
                f"family {family!r}: {numbers.size} numbers of shape {numbers.shape} were given "
                f"for its {len(family)} members"
            )
        parts.append(np.broadcast_to(numbers, (len(family),)))
    return np.concatenate(parts) if parts else np.zeros(0)


def as_point(values: Any, columns: int) -> FloatArray:
    """Return the values of a program's columns, of a solution, too; others come after them."""
    values = getattr(values, "values", values)
    if values is None:
        raise ModelError(
            "there is no point to read, because no answer was found; the status and raw_status of "
            "the solution say why"
        )
    point = np.asarray(values, dtype=np.float64)
    if point.ndim != 1 or len(point) < columns:
        raise ModelError(
            f"the point has shape {point.shape}, but the program has {columns} columns"
        )
    return point[:columns]


def whole_numbers(values: npt.ArrayLike, family: Family, tolerance: float = 1e-5) -> IntArray:
    """Round the values of a family of columns to whole numbers."""
    point = as_point(values, len(family))
    nearby = np.rint(point)
    off = ~(np.abs(point - nearby) <= tolerance)  # true for NaN
    if off.any():
        column = int(np.argmax(off))
        raise ModelError(
            f"the point is fractional: {family.label(column)} is {point[column]:g}; an answer can "
            "be read from whole numbers only"
        )
    return nearby.astype(np.int64)


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
