"""Linear models by families of variables and rows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import scipy

from optsched._internal.arrays import read_only as read_only
from optsched._internal.numbers import exact_dot, in_units
from optsched._internal.views import Shown
from optsched.errors import ModelError as ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.in_pyomo import Native

    Table = Any  # numbers, dense or sparse, which have no type in common
    Blocks = Mapping[str, Table]


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
    blocks: Blocks  # by variable family, each of shape (rows, columns of that family)
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


def as_point(values: object, columns: int) -> FloatArray:
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
    matrix: scipy.sparse.csr_array[np.float64]
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
                values: BoolArray | FloatArray = np.asarray(getattr(self, field), dtype=kind)
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

    def _numbers(
        self, columns: IntArray | slice = slice(None), rows: IntArray | slice = slice(None)
    ) -> list[Table]:
        """Return all arrays, with columns and rows in some order."""
        table: Table = self.matrix
        matrix = canonical(table[rows][:, columns])
        return [
            *(getattr(self, field)[columns] for field in _OF_COLUMNS),
            *(getattr(self, field)[rows] for field in _OF_ROWS),
            *(matrix.data, matrix.indices, matrix.indptr),
        ]

    def _by_name(self) -> list[Table]:
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


def canonical(matrix: Any) -> scipy.sparse.csr_array[np.float64]:
    """Sort, merge and thin out the entries; the input stays as it is."""
    result = scipy.sparse.csr_array(matrix, dtype=np.float64)
    if not result.has_canonical_format or not result.data.all():
        result = result.copy()
        result.sum_duplicates()
        result.eliminate_zeros()
    index = np.int32 if max(result.nnz, *result.shape) < 2**31 else np.int64
    return scipy.sparse.csr_array(
        (
            read_only(result.data),
            read_only(result.indices.astype(index, copy=False)),
            read_only(result.indptr.astype(index, copy=False)),
        ),
        shape=result.shape,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_ROUNDING = 1e-9  # of a sum, relative to its terms; more than what it may be off


@dataclass(frozen=True, eq=False, repr=False)
class LinearModel(LinearArrays):
    r"""A linear program, mixed-integer where marked, as frozen arrays with named families.

    .. math::

        \min / \max \; c^\top x + c_0 \quad \text{s.t.} \quad
        \underline b \le A x \le \overline b, \quad \underline x \le x \le \overline x, \quad
        x_j \in \mathbb Z \text{ where marked.}

    The family ``start`` indexed by request and step holds the columns ``start[0,0]``,
    ``start[0,1]``, ..., and families follow each other. A `ModelError` names the row or column,
    family or index where data or arguments are wrong.

    Parameters
    ----------
    cost
        Objective coefficients :math:`c`, shape (n,).
    matrix
        Coefficients :math:`A`, shape (m, n), brought into canonical form without stored zeros.
    row_lower, row_upper
        Bounds of the rows, shape (m,), infinite where a row has none.
    col_lower, col_upper
        Bounds of the columns, shape (n,), infinite where a column has none.
    integer
        Which columns take whole values only, shape (n,).
    offset
        Constant :math:`c_0` of the objective.
    sense
        "min" or "max".
    variables, rows
        Families of columns and rows, in the order of the arrays.
    name
        Name of the model in tables and files.

    Raises
    ------
    ModelError
        If shapes disagree, a number is missing, a cost or coefficient is infinite, or a lower bound
        lies above an upper one.

    Examples
    --------
    >>> import numpy as np
    >>> from optsched.models.linear import Family, LinearModel, Rows, Variables
    >>> take = Variables(Family.of("take", item=[0, 1, 2]), [5, 4, 3], upper=1, integer=True)
    >>> weight = Rows(Family.of("weight"), {"take": np.array([[4, 3, 2]])}, upper=5)
    >>> model = LinearModel.build("knapsack", [take], [weight], sense="max")
    >>> print(model.with_rows("one", [1, 1, 1], upper=1))
    knapsack: max over 3 columns (3 integer), 2 rows, 6 nonzeros
      column  take[item]        3  integer, 0..1
      row     weight            1  3 nonzeros
      row     one               1  3 nonzeros
    >>> model.objective([1, 1, 0]), [str(breach) for breach in model.violations([1, 1, 0])]
    (9.0, ['weight is 7, but must be at most 5'])
    >>> native = model.with_columns("fee", {"weight": -1}, cost=-2, upper=3).to_pyomo()
    >>> print(native.objective.expr)
    5.0*take[0] + 4.0*take[1] + 3.0*take[2] - 2.0*fee
    """

    # The `HindsightProgram` whose model it is, but for rows that were added; `replace` forgets it,
    # as all may change.
    program: object = dataclasses.field(default=None, init=False)

    @classmethod
    def build(
        cls,
        name: str,
        variables: Sequence[Variables],
        rows: Sequence[Rows],
        *,
        sense: Sense = "min",
        offset: float = 0.0,
    ) -> LinearModel:
        """Make a model from families of columns, and of rows with one block per variable family."""
        families = tuple(group.family for group in variables)
        names = [group.family for group in rows]
        parts = [_assemble(group.family, "row", group.blocks, families) for group in rows]
        return cls(
            cost=spread([group.cost for group in variables], families),
            matrix=_stack(parts, sum(map(len, families))),
            row_lower=spread([group.lower for group in rows], names),
            row_upper=spread([group.upper for group in rows], names),
            col_lower=spread([group.lower for group in variables], families),
            col_upper=spread([group.upper for group in variables], families),
            integer=spread([group.integer for group in variables], families).astype(np.bool_),
            offset=offset,
            sense=sense,
            variables=families,
            rows=tuple(names),
            name=name,
        )

    def __repr__(self) -> str:
        row_count, column_count = self.matrix.shape
        return (
            f"<LinearModel {self.name!r}: {row_count:,} rows, {column_count:,} columns, "
            f"{self.matrix.nnz:,} nonzeros>"
        )

    def columns_of(self, family: str, **indices: int) -> IntArray:
        """Find the columns of a family, or those of them with given indices, ascending."""
        return member_positions(self.variables, family, indices)

    def rows_of(self, family: str, **indices: int) -> IntArray:
        """Find the rows of a family as `columns_of` finds columns."""
        return member_positions(self.rows, family, indices)

    def objective(self, point: npt.ArrayLike) -> float:
        """Evaluate the objective at a point of shape (n,)."""
        return float(self.exact_objective(point))

    def exact_objective(self, point: npt.ArrayLike) -> Fraction:
        """Evaluate the objective without rounding."""
        values = self._checked(point)
        there = np.flatnonzero(values)
        return Fraction(self.offset) + exact_dot(self.cost[there], values[there])

    @property
    def unit(self) -> Fraction | None:
        """What the objective is a whole multiple of; None where columns that cost are not whole."""
        costly = self.cost != 0
        if not self.integer[costly].all():
            return None
        return in_units(np.append(np.unique(self.cost[costly]), self.offset))[0]

    @property
    def excluded(self) -> BoolArray:
        """Which columns have to be below 1, by one row each, where none can be negative."""
        matrix, found = self.matrix, np.zeros(len(self.cost), dtype=bool)
        row = np.repeat(np.arange(len(self.row_lower)), np.diff(matrix.indptr))
        for sign, limit in ((1, self.row_upper), (-1, -self.row_lower)):
            data = sign * matrix.data
            least = np.minimum(data * self.col_upper[matrix.indices], 0)
            size = 1 + np.bincount(row, np.abs(least), len(limit))
            spare = limit - np.bincount(row, least, len(limit)) + _ROUNDING * size
            found[matrix.indices[data > spare[row]]] = True
        return found

    @cached_property
    def _fractional(self) -> BoolArray:
        """Which rows may have values that are no whole numbers, shape (m,)."""
        free = (self.matrix.data % 1 != 0) | ~self.integer[self.matrix.indices]
        row = np.repeat(np.arange(len(self.row_lower)), np.diff(self.matrix.indptr))
        return np.bincount(row[free], minlength=len(self.row_lower)) > 0

    def holds(self, point: npt.ArrayLike) -> bool:
        """Return whether a point, feasible up to a tolerance, keeps all rows without rounding."""
        values, matrix = self._checked(point), self.matrix
        sums: Table = matrix @ values
        spare = np.minimum(sums - self.row_lower, self.row_upper - sums)
        size: Table = abs(matrix) @ np.abs(values) + 1
        for row in np.flatnonzero(self._fractional & (spare <= _ROUNDING * size)).tolist():
            part = slice(matrix.indptr[row], matrix.indptr[row + 1])
            exact = exact_dot(matrix.data[part], values[matrix.indices[part]])
            if not self.row_lower[row].item() <= exact <= self.row_upper[row].item():
                return False
        return bool(((self.col_lower <= values) & (values <= self.col_upper)).all())

    def violations(self, point: npt.ArrayLike, tolerance: float = 1e-6) -> list[Breach]:
        """List everything that makes a point infeasible, columns before rows.

        The tolerance on bounds is relative to their size where that is above 1, but forgives no
        unit of what is whole; that on whole numbers is absolute.
        """
        values = self._checked(point)
        whole = np.rint(values)
        found = breaches(values, self.col_lower, self.col_upper, tolerance, self.column_name)
        for column in np.flatnonzero(self.integer & (np.abs(values - whole) > tolerance)).tolist():
            name = self.column_name(column)
            found.append(Breach(name, float(values[column]), float(whole[column]), "whole"))
        sums: Table = self.matrix @ values
        most = np.where(self._fractional, np.inf, 0.5)
        limits = self.row_lower, self.row_upper
        return found + breaches(sums, *limits, tolerance, self.row_name, most)

    def with_rows(
        self,
        name: Family | str,
        coefficients: Table | Blocks,
        lower: npt.ArrayLike = -np.inf,
        upper: npt.ArrayLike = np.inf,
    ) -> LinearModel:
        """Add rows.

        Parameters
        ----------
        name
            Their name, or a `Family` that says what tells them apart.
        coefficients
            Dense or sparse, shape (rows, n); or by family of columns, as in `Rows`. A number stands
            in every place of its block.
        lower, upper
            Bounds; numbers hold for every row.
        """
        family = _named(name, "row", coefficients)
        block = _assemble(family, "row", coefficients, self.variables)
        longer = dataclasses.replace(
            self,
            matrix=_stack([self.matrix, block], len(self.cost)),
            row_lower=np.concatenate([self.row_lower, spread([lower], [family])]),
            row_upper=np.concatenate([self.row_upper, spread([upper], [family])]),
            rows=(*self.rows, family),
        )
        return of_program(longer, self.program)

    def with_columns(
        self,
        name: Family | str,
        coefficients: Table | Blocks = 0.0,
        cost: npt.ArrayLike = 0.0,
        lower: npt.ArrayLike = 0.0,
        upper: npt.ArrayLike = np.inf,
        integer: npt.ArrayLike = False,
    ) -> LinearModel:
        """Add columns after those that are there.

        Parameters
        ----------
        name
            Their name, or a `Family` that says what tells them apart.
        coefficients
            In the rows that are there, shape (m, columns); or by family of rows. Own rows that come
            later name the family of the columns.
        cost, lower, upper, integer
            As of the model; one value holds for every column.
        """
        numbers = (cost, lower, upper, integer)
        family = _named(name, "column", coefficients, numbers)
        block = _assemble(family, "column", coefficients, self.rows)
        longer: dict[str, Table] = {
            field: np.concatenate([getattr(self, field), spread([number], [family])])
            for field, number in zip(_OF_COLUMNS, numbers, strict=True)
        }
        matrix = scipy.sparse.hstack([self.matrix, block], format="csr")
        variables = (*self.variables, family)
        return dataclasses.replace(self, matrix=matrix, variables=variables, **longer)

    def with_objective(
        self, cost: npt.ArrayLike, offset: float = 0.0, sense: Sense | None = None
    ) -> LinearModel:
        """Replace the objective; a number as cost holds for every column, None keeps the sense."""
        costs = np.broadcast_to(np.asarray(cost, dtype=np.float64), self.cost.shape)
        return dataclasses.replace(self, cost=costs, offset=offset, sense=sense or self.sense)

    def fix(self, columns: npt.ArrayLike, values: npt.ArrayLike) -> LinearModel:
        """Fix columns at values, or all at one value, regardless of their bounds."""
        lower, upper = self.col_lower.copy(), self.col_upper.copy()
        positions = np.asarray(columns, dtype=np.int64)
        lower[positions] = upper[positions] = values
        return dataclasses.replace(self, col_lower=lower, col_upper=upper)

    def relax(self) -> LinearModel:
        """Let every column take fractional values."""
        return dataclasses.replace(self, integer=np.zeros_like(self.integer))

    def to_pyomo(self) -> Native:
        """Return the model as a Pyomo model with the same names."""
        from optsched.models.in_pyomo import to_pyomo

        return to_pyomo(self)

    def same_as(self, other: LinearModel) -> bool:
        """Return whether two models agree but for the order of columns and rows and index names."""
        return (self.sense, self.offset) == (other.sense, other.offset) and all(
            map(np.array_equal, self._by_name(), other._by_name())
        )


def of_program(model: LinearModel, program: object) -> LinearModel:
    """Note whose model it is, so that `solve` can look at the requests without added rows."""
    object.__setattr__(model, "program", program)
    return model


def _tables(what: str, coefficients: Table | Blocks) -> Blocks:
    """Return coefficients as arrays, dense or sparse, by family; without families under ""."""
    blocks = coefficients if isinstance(coefficients, Mapping) else {"": coefficients}
    try:
        return {
            name: block if scipy.sparse.issparse(block) else np.asarray(block, dtype=np.float64)
            for name, block in blocks.items()
        }
    except (TypeError, ValueError):
        raise ModelError(
            f"{what}: the coefficients are no table of numbers with one row per row and one "
            "column per column of the model"
        ) from None


def _named(
    name: Family | str,
    word: str,
    coefficients: Table | Blocks,
    numbers: Sequence[npt.ArrayLike] = (),
) -> Family:
    """Return a family of rows or columns; one that has only a name is as large as it must be."""
    if isinstance(name, Family):
        return name
    if not isinstance(name, str):
        raise ModelError(f"{word}s are called {name!r}, but need a name or a Family")
    tables = _tables(f"{word}s {name!r}", coefficients).values()
    shapes = [each.shape[::-1] if word == "column" else each.shape for each in tables]
    count = max([1, *map(np.size, numbers), *(shape[0] for shape in shapes if len(shape) == 2)])
    return Family.of(name) if count == 1 else Family.of(name, **{word: range(count)})


def _assemble(
    family: Family, word: str, coefficients: Table | Blocks, others: tuple[Family, ...]
) -> scipy.sparse.csr_array[np.float64]:
    """Put the blocks of rows, one for each family of columns, together; or those of columns."""
    what, count, of_rows = f"{word}s {family!r}", len(family), word == "row"

    def fit(block: str, table: Any, length: int) -> scipy.sparse.csr_array[np.float64]:
        shape = (count, length) if of_rows else (length, count)
        if table.ndim == 0:  # a number fills the block, a list is its one row or column
            table = np.broadcast_to(table, shape) if table else scipy.sparse.csr_array(shape)
        elif table.ndim == 1:
            table = table.reshape((-1, 1) if shape[1] == 1 else (1, -1))
        if table.shape != shape:
            by_family = ""
            if block == "matrix" and len(others) > 1:
                names = ", ".join(f'"{other.name}": ...' for other in others)
                by_family = f", or be given by family: {{{names}}}, those without entries left out"
            raise ModelError(
                f"{what}: the {block} has shape {table.shape}, but should have {shape}{by_family}"
            )
        return scipy.sparse.csr_array(table, dtype=np.float64)

    tables = _tables(what, coefficients)
    if "" in tables:
        return fit("matrix", tables[""], sum(map(len, others)))
    known = [other.name for other in others]
    if unknown := [name for name in tables if name not in known]:
        kind = "variables" if of_rows else "rows"
        raise ModelError(f"{what}: there are no {kind} {unknown[0]!r}, only {', '.join(known)}")
    nothing = np.zeros(())
    blocks = [
        fit(f"block of {other.name}", tables.get(other.name, nothing), len(other))
        for other in others
    ]
    if len(blocks) == 1:  # large ones need not be copied
        return blocks[0]
    if not blocks:
        return scipy.sparse.csr_array((count, 0) if of_rows else (0, count))
    return scipy.sparse.csr_array(
        scipy.sparse.hstack(blocks) if of_rows else scipy.sparse.vstack(blocks)
    )


def _stack(parts: Sequence[Table], width: int) -> scipy.sparse.csr_array[np.float64]:
    """Put blocks of rows on top of each other; without any there are no rows."""
    if not parts:
        return scipy.sparse.csr_array((0, width))
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
