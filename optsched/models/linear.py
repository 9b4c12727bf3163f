r"""LinearModel: the one array language that every model lowers to and every solver reads.

.. math::

    \min / \max \; c^\top x + c_0 \quad \text{s.t.} \quad
    \underline b \le A x \le \overline b, \quad \underline x \le x \le \overline x, \quad
    x_j \in \mathbb Z \text{ where marked.}

Columns and rows come in named families, laid out one after another: the family ``start`` indexed by
request and step holds the columns ``start[0,0]``, ``start[0,1]``, ... Names are made when somebody
asks for them.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy import sparse

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from optsched.instance import BoolArray, FloatArray, IntArray

Sense = Literal["min", "max"]

_FAMILY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBER_NAME = re.compile(r"(?P<family>[A-Za-z_]\w*)(?:[\[(](?P<keys>-?\d+(?:,-?\d+)*)[\])])?")


class ModelError(OptschedError):
    """A model, or a point of one, is not valid."""


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """Columns or rows of one kind, told apart by integer indices.

    Parameters
    ----------
    name
        Letters, digits and underscores.
    index_names
        What the indices count; empty for a single column or row.
    keys
        The indices of each member, shape (count, len(index_names)).

    Raises
    ------
    ModelError
        If the name could not stand in a file or the keys have another shape.

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
        keys = np.asarray(self.keys, dtype=np.int64)
        if keys.ndim != 2 or keys.shape[1] != len(self.index_names):
            raise ModelError(
                f"family {self.name}: the keys have shape {keys.shape}, but there are "
                f"{len(self.index_names)} index names; give one column per index"
            )
        object.__setattr__(self, "index_names", tuple(self.index_names))
        object.__setattr__(self, "keys", _read_only(keys))

    @classmethod
    def of(cls, name: str, **indices: npt.ArrayLike) -> Family:
        """Make a family from one array per index; without any, a family of one.

        Parameters
        ----------
        name
            Letters, digits and underscores.
        **indices
            The values of each index, by its name, of one length.

        Returns
        -------
        Family
            The family.

        Examples
        --------
        >>> Family.of("makespan").names()
        ['makespan']
        """
        columns = [np.asarray(values, dtype=np.int64) for values in indices.values()]
        keys = np.stack(columns, axis=1) if columns else np.empty((1, 0), dtype=np.int64)
        return cls(name, tuple(indices), keys)

    @classmethod
    def parse(cls, names: Sequence[str]) -> tuple[Family, ...]:
        """Find the families in a list of member names, as read back from a file.

        Parameters
        ----------
        names
            Names such as ``start[3,17]`` or ``start(3,17)``; any other name is refused.

        Returns
        -------
        tuple of Family
            Runs of members of one name; the indices are called i, j, k, ...

        Raises
        ------
        ModelError
            If a name is no family name followed by whole numbers.

        Examples
        --------
        >>> Family.parse(["start[0,0]", "start[0,1]", "makespan"])
        (start[i,j], makespan)
        """
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
        """Give the number of members."""
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
        """Give the names of all members.

        Parameters
        ----------
        brackets
            What to put around the indices; LP files know only "()".

        Returns
        -------
        list of str
            One name per member.
        """
        if not self.index_names:
            return [self.name] * len(self)
        indices = ",".join(["%d"] * len(self.index_names))
        pattern = f"{self.name}{brackets[0]}{indices}{brackets[1]}"
        return [pattern % tuple(key) for key in self.keys.tolist()]

    def label(self, position: int) -> str:
        """Give the name of one member."""
        return dataclasses.replace(self, keys=self.keys[position : position + 1]).names()[0]

    def positions(self, **indices: int) -> IntArray:
        """Find the members with given values of some indices.

        Parameters
        ----------
        **indices
            Values by index name; none finds all members.

        Returns
        -------
        IntArray
            Positions within the family.

        Raises
        ------
        ModelError
            If there is no such index.

        Examples
        --------
        >>> Family.of("start", request=[0, 0, 1], step=[0, 1, 0]).positions(step=0)
        array([0, 2])
        """
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
    """A family of columns for `LinearModel.build`; numbers hold for every member.

    Parameters
    ----------
    family
        Their names.
    cost
        Objective coefficients.
    lower, upper
        Bounds.
    integer
        Whether they take whole values only.
    """

    family: Family
    cost: npt.ArrayLike = 0.0
    lower: npt.ArrayLike = 0.0
    upper: npt.ArrayLike = np.inf
    integer: npt.ArrayLike = False


@dataclass(frozen=True, eq=False)
class Rows:
    """A family of rows for `LinearModel.build`; numbers hold for every member.

    Parameters
    ----------
    family
        Their names.
    blocks
        Coefficients by name of a variable family, each of shape (rows, columns of that family).
        Families that are left out have none.
    lower, upper
        Bounds.
    """

    family: Family
    blocks: Mapping[str, Any]
    lower: npt.ArrayLike = -np.inf
    upper: npt.ArrayLike = np.inf


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


@dataclass(frozen=True, eq=False, repr=False)
class LinearModel:
    r"""A linear program, mixed-integer where marked, as frozen arrays with named families.

    Parameters
    ----------
    cost
        Objective coefficients :math:`c`, shape (n,).
    matrix
        Coefficients :math:`A`, shape (m, n), brought into canonical form without stored zeros.
    row_lower, row_upper
        Bounds of the rows, shape (m,), infinite where there is none.
    col_lower, col_upper
        Bounds of the columns, shape (n,), infinite where there is none.
    integer
        Which columns take whole values only, shape (n,).
    offset
        Constant :math:`c_0` of the objective.
    sense
        "min" or "max".
    variables, rows
        Families of columns and rows, in the order of the arrays.
    name
        What to call the model in tables and files.

    Raises
    ------
    ModelError
        If shapes disagree, a number is missing, a cost or coefficient is infinite, or a lower bound
        lies above an upper one; it names the row or column.

    Examples
    --------
    >>> import numpy as np
    >>> from optsched.models.linear import Family, LinearModel, Rows, Variables
    >>> take = Variables(Family.of("take", item=[0, 1, 2]), [5, 4, 3], upper=1, integer=True)
    >>> weight = Rows(Family.of("weight"), {"take": np.array([[4, 3, 2]])}, upper=5)
    >>> model = LinearModel.build("knapsack", [take], [weight], sense="max")
    >>> print(model)
    knapsack: max over 3 columns (3 integer), 1 row, 3 nonzeros
      column  take[item]        3  integer, 0..1
      row     weight            1  3 nonzeros
    >>> model.objective([1, 1, 0]), [str(breach) for breach in model.violations([1, 1, 0])]
    (9.0, ['weight is 7, but must be at most 5'])
    """

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
        matrix = _canonical(self.matrix)
        object.__setattr__(self, "matrix", matrix)
        row_count, column_count = matrix.shape
        object.__setattr__(self, "offset", float(self.offset))
        for field, length, kind in (
            ("cost", column_count, np.float64),
            ("col_lower", column_count, np.float64),
            ("col_upper", column_count, np.float64),
            ("integer", column_count, np.bool_),
            ("row_lower", row_count, np.float64),
            ("row_upper", row_count, np.float64),
        ):
            values = np.asarray(getattr(self, field), dtype=kind)
            if values.shape != (length,):
                raise ModelError(
                    f"{self.name}: {field} has shape {values.shape}, but the matrix "
                    f"({row_count} x {column_count}) asks for ({length},)"
                )
            object.__setattr__(self, field, _read_only(values))
        for field, word, length in (
            ("variables", "column", column_count),
            ("rows", "row", row_count),
        ):
            families = tuple(getattr(self, field))
            if not families and length:
                families = (Family.of(word, index=range(length)),)
            self._check_families(families, word, length)
            object.__setattr__(self, field, families)
        self._check_numbers()

    def _check_families(self, families: tuple[Family, ...], word: str, length: int) -> None:
        named = sum(map(len, families))
        if named != length:
            raise ModelError(f"{self.name}: the families name {named} {word}s, but it has {length}")
        names = [family.name for family in families]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ModelError(f"{self.name}: two families of {word}s are called {repeated[0]!r}")

    def _check_numbers(self) -> None:
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
        if not np.isfinite(self.matrix.data).all():
            place = int(np.argmin(np.isfinite(self.matrix.data)))
            row = int(np.searchsorted(self.matrix.indptr, place, side="right")) - 1
            name = self.column_name(int(self.matrix.indices[place]))
            raise ModelError(
                f"row {self.row_name(row)}: the coefficient of {name} is "
                f"{self.matrix.data[place]}, but must be finite"
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
        """Put a model together from families of columns and of rows.

        Parameters
        ----------
        name
            What to call it.
        variables
            The columns, family by family.
        rows
            The rows, family by family, with one block of coefficients per variable family.
        sense
            "min" or "max".
        offset
            Constant of the objective.

        Returns
        -------
        LinearModel
            The model.

        Raises
        ------
        ModelError
            If a block names no variable family or has another shape than its families.
        """
        families = tuple(group.family for group in variables)
        parts = [_join_blocks(group, families) for group in rows]
        return cls(
            cost=_spread([group.cost for group in variables], families),
            matrix=_stack(parts, sum(map(len, families))),
            row_lower=_spread([group.lower for group in rows], [group.family for group in rows]),
            row_upper=_spread([group.upper for group in rows], [group.family for group in rows]),
            col_lower=_spread([group.lower for group in variables], families),
            col_upper=_spread([group.upper for group in variables], families),
            integer=_spread([group.integer for group in variables], families).astype(np.bool_),
            offset=offset,
            sense=sense,
            variables=families,
            rows=tuple(group.family for group in rows),
            name=name,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearModel):
            return NotImplemented
        return (
            (self.name, self.sense, self.offset) == (other.name, other.sense, other.offset)
            and self.variables == other.variables
            and self.rows == other.rows
            and all(
                np.array_equal(mine, theirs)
                for mine, theirs in zip(self._arrays(), other._arrays(), strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, too large to hash

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        bounds = (self.col_lower, self.col_upper, self.row_lower, self.row_upper)
        matrix = self.matrix
        return (self.cost, self.integer, *bounds, matrix.data, matrix.indices, matrix.indptr)

    def __repr__(self) -> str:
        row_count, column_count = self.matrix.shape
        return f"<LinearModel {self.name!r}: {row_count} rows, {column_count} columns>"

    def __str__(self) -> str:
        row_count, column_count = self.matrix.shape
        lines = [
            f"{self.name}: {self.sense} over {_count(column_count, 'column')} "
            f"({int(self.integer.sum()):,} integer), {_count(row_count, 'row')}, "
            f"{_count(self.matrix.nnz, 'nonzero')}"
        ]
        begin = 0
        for family in self.variables:
            part = slice(begin, begin := begin + len(family))
            kind = {0: "continuous", len(family): "integer"}.get(
                int(self.integer[part].sum()), "mixed"
            )
            low, high = self.col_lower[part], self.col_upper[part]
            bounds = f", {low.min():g}..{high.max():g}" if len(family) else ""
            lines.append(f"  column  {family!r:<20}{len(family):>8,}  {kind}{bounds}")
        begin = 0
        for family in self.rows:
            nonzeros = self.matrix.indptr[begin + len(family)] - self.matrix.indptr[begin]
            begin += len(family)
            lines.append(
                f"  row     {family!r:<20}{len(family):>8,}  {_count(int(nonzeros), 'nonzero')}"
            )
        return "\n".join(lines)

    def column_name(self, column: int) -> str:
        """Give the name of one column, such as ``start[3,17]``."""
        return _member_name(self.variables, column)

    def row_name(self, row: int) -> str:
        """Give the name of one row, such as ``memory[17]``."""
        return _member_name(self.rows, row)

    def column_names(self, brackets: str = "[]") -> list[str]:
        """Give the names of all columns; LP files need the brackets "()"."""
        return [name for family in self.variables for name in family.names(brackets)]

    def row_names(self, brackets: str = "[]") -> list[str]:
        """Give the names of all rows; LP files need the brackets "()"."""
        return [name for family in self.rows for name in family.names(brackets)]

    def columns_of(self, family: str, **indices: int) -> IntArray:
        """Find the columns of a family, or those of them with given indices.

        Parameters
        ----------
        family
            Name of the family.
        **indices
            Values by index name.

        Returns
        -------
        IntArray
            Positions of the columns, ascending.

        Raises
        ------
        ModelError
            If there is no such family or index.

        Examples
        --------
        >>> start = Variables(Family.of("start", request=[0, 0, 1], step=[0, 1, 0]))
        >>> LinearModel.build("tiny", [start], []).columns_of("start", request=0)
        array([0, 1])
        """
        return _positions(self.variables, family, indices)

    def rows_of(self, family: str, **indices: int) -> IntArray:
        """Find the rows of a family, or those of them with given indices.

        Parameters
        ----------
        family
            Name of the family.
        **indices
            Values by index name.

        Returns
        -------
        IntArray
            Positions of the rows, ascending.

        Raises
        ------
        ModelError
            If there is no such family or index.
        """
        return _positions(self.rows, family, indices)

    def objective(self, point: npt.ArrayLike) -> float:
        """Evaluate the objective at a point of shape (n,)."""
        return self.offset + float(self.cost @ self._point(point))

    def violations(self, point: npt.ArrayLike, tolerance: float = 1e-6) -> list[Breach]:
        """List everything that makes a point infeasible.

        Parameters
        ----------
        point
            One value per column, shape (n,).
        tolerance
            What is forgiven: for bounds relative to their size where that is above 1, and
            absolute for whole numbers.

        Returns
        -------
        list of Breach
            Empty exactly if the point is feasible; columns first, then rows.

        Raises
        ------
        ModelError
            If the point has another shape or a value is missing.
        """
        values = self._point(point)
        found = _breaches(values, self.col_lower, self.col_upper, tolerance, self.column_name)
        whole = np.rint(values)
        for column in np.flatnonzero(self.integer & (np.abs(values - whole) > tolerance)).tolist():
            name = self.column_name(column)
            found.append(Breach(name, float(values[column]), float(whole[column]), "whole"))
        activities: Any = self.matrix @ values
        return found + _breaches(
            activities, self.row_lower, self.row_upper, tolerance, self.row_name
        )

    def _point(self, point: npt.ArrayLike) -> FloatArray:
        values = np.asarray(point, dtype=np.float64)
        if values.shape != self.cost.shape:
            raise ModelError(
                f"{self.name}: the point has shape {values.shape}, but there are "
                f"{len(self.cost)} columns"
            )
        if np.isnan(values).any():
            name = self.column_name(int(np.argmax(np.isnan(values))))
            raise ModelError(f"column {name}: the point has no value for it (NaN)")
        return values

    def with_rows(
        self,
        family: Family,
        matrix: Any,
        lower: npt.ArrayLike = -np.inf,
        upper: npt.ArrayLike = np.inf,
    ) -> LinearModel:
        """Add a family of rows.

        Parameters
        ----------
        family
            Their names.
        matrix
            Coefficients, dense or sparse, shape (rows, n).
        lower, upper
            Bounds; numbers hold for every row.

        Returns
        -------
        LinearModel
            The larger model.

        Raises
        ------
        ModelError
            If the matrix has another shape or there are rows of that name already.

        Examples
        --------
        >>> take = Variables(Family.of("take", item=[0, 1]), cost=[2, 1], upper=1, integer=True)
        >>> model = LinearModel.build("any", [take], [], sense="max")
        >>> print(model.with_rows(Family.of("one"), [[1, 1]], upper=1))
        any: max over 2 columns (2 integer), 1 row, 2 nonzeros
          column  take[item]        2  integer, 0..1
          row     one               1  2 nonzeros
        """
        rows: Any = matrix if sparse.issparse(matrix) else np.atleast_2d(matrix)
        block = sparse.csr_array(rows, dtype=np.float64)
        if block.shape != (len(family), len(self.cost)):
            raise ModelError(
                f"rows {family!r}: the matrix has shape {block.shape}, but there are "
                f"{len(family)} rows and {len(self.cost)} columns"
            )
        return dataclasses.replace(
            self,
            matrix=_stack([self.matrix, block], len(self.cost)),
            row_lower=np.concatenate([self.row_lower, _spread([lower], [family])]),
            row_upper=np.concatenate([self.row_upper, _spread([upper], [family])]),
            rows=(*self.rows, family),
        )

    def with_objective(
        self, cost: npt.ArrayLike, offset: float = 0.0, sense: Sense | None = None
    ) -> LinearModel:
        """Replace the objective.

        Parameters
        ----------
        cost
            New coefficients, shape (n,); a number holds for every column.
        offset
            New constant.
        sense
            "min" or "max"; None keeps it.

        Returns
        -------
        LinearModel
            The same feasible points under another objective.
        """
        costs = np.broadcast_to(np.asarray(cost, dtype=np.float64), self.cost.shape)
        return dataclasses.replace(self, cost=costs, offset=offset, sense=sense or self.sense)

    def fix(self, columns: npt.ArrayLike, values: npt.ArrayLike) -> LinearModel:
        """Fix columns at values, whatever their bounds were.

        Parameters
        ----------
        columns
            Positions of the columns (`columns_of`).
        values
            One value each; a number holds for all of them.

        Returns
        -------
        LinearModel
            The same model with those bounds closed.

        Examples
        --------
        >>> take = Variables(Family.of("take", item=[0, 1]), upper=1, integer=True)
        >>> model = LinearModel.build("any", [take], [])
        >>> model.fix(model.columns_of("take", item=1), 0).col_upper
        array([1., 0.])
        """
        lower, upper = self.col_lower.copy(), self.col_upper.copy()
        positions = np.asarray(columns, dtype=np.int64)
        lower[positions] = upper[positions] = values
        return dataclasses.replace(self, col_lower=lower, col_upper=upper)

    def relax(self) -> LinearModel:
        """Let every column take fractional values."""
        return dataclasses.replace(self, integer=np.zeros_like(self.integer))

    def to_pyomo(self) -> Any:
        """Write the model as a Pyomo model with the same names.

        Returns
        -------
        pyomo.environ.ConcreteModel
            With one indexed component per family, and `objective`.

        Examples
        --------
        >>> take = Variables(Family.of("take", item=[0, 1]), cost=[2, 1], upper=1, integer=True)
        >>> m = LinearModel.build("any", [take], [], sense="max").to_pyomo()
        >>> print(m.objective.expr)
        2.0*take[0] + take[1]
        """
        from optsched.models.pyomo_model import to_pyomo

        return to_pyomo(self)

    def same_as(self, other: LinearModel) -> bool:
        """Tell whether two models agree but for the order of columns and rows and index names.

        Parameters
        ----------
        other
            For instance the model read back from a file.

        Returns
        -------
        bool
            Whether equally named columns and rows carry equal numbers.

        Examples
        --------
        >>> one = Variables(Family.of("x", item=[0, 1]), cost=[1, 2])
        >>> two = Variables(Family.of("x", other=[1, 0]), cost=[2, 1])
        >>> LinearModel.build("a", [one], []).same_as(LinearModel.build("b", [two], []))
        True
        """
        if self.matrix.shape != other.matrix.shape:
            return False
        if (self.sense, self.offset) != (other.sense, other.offset):
            return False
        columns, other_columns = np.array(self.column_names()), np.array(other.column_names())
        rows, other_rows = np.array(self.row_names()), np.array(other.row_names())
        mine, theirs = np.argsort(columns), np.argsort(other_columns)
        my_rows, their_rows = np.argsort(rows), np.argsort(other_rows)
        difference: Any = self.matrix[my_rows][:, mine] != other.matrix[their_rows][:, theirs]
        return (
            np.array_equal(columns[mine], other_columns[theirs])
            and np.array_equal(rows[my_rows], other_rows[their_rows])
            and all(
                np.array_equal(getattr(self, field)[mine], getattr(other, field)[theirs])
                for field in ("cost", "col_lower", "col_upper", "integer")
            )
            and all(
                np.array_equal(getattr(self, field)[my_rows], getattr(other, field)[their_rows])
                for field in ("row_lower", "row_upper")
            )
            and difference.nnz == 0
        )


def whole_numbers(values: npt.ArrayLike, family: Family, tolerance: float = 1e-5) -> IntArray:
    """Round the values of a family of columns to whole numbers.

    Parameters
    ----------
    values
        One value per member.
    family
        The columns.
    tolerance
        How far a value may lie from a whole number.

    Returns
    -------
    IntArray
        The whole numbers.

    Raises
    ------
    ModelError
        If there is another number of values, or one is missing or fractional.

    Examples
    --------
    >>> whole_numbers([1.0000001, 0], Family.of("take", item=[4, 5]))
    array([1, 0])
    """
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


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _canonical(matrix: Any) -> sparse.csr_array[np.float64]:
    """Sort, merge and thin out the entries; the input stays as it is."""
    result = sparse.csr_array(matrix, dtype=np.float64)
    if not result.has_canonical_format or not result.data.all():
        result = result.copy()
        result.sum_duplicates()
        result.eliminate_zeros()
    index = np.int32 if max(result.nnz, *result.shape) < 2**31 else np.int64
    return sparse.csr_array(
        (
            _read_only(result.data),
            _read_only(result.indices.astype(index, copy=False)),
            _read_only(result.indptr.astype(index, copy=False)),
        ),
        shape=result.shape,
    )


def _spread(values: Sequence[npt.ArrayLike], families: Sequence[Family]) -> FloatArray:
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


def _join_blocks(group: Rows, families: tuple[Family, ...]) -> sparse.csr_array[np.float64]:
    """Put the blocks of one family of rows side by side."""
    known = [family.name for family in families]
    begins = dict(zip(known, np.cumsum([0, *map(len, families)]).tolist(), strict=False))
    width = sum(map(len, families))
    joined = sparse.csr_array((len(group.family), width))
    for name, block in group.blocks.items():
        if name not in begins:
            raise ModelError(
                f"rows {group.family!r}: there are no variables {name!r}, only {', '.join(known)}"
            )
        part = sparse.csr_array(block, dtype=np.float64)
        expected = (len(group.family), len(families[known.index(name)]))
        if part.shape != expected:
            raise ModelError(
                f"rows {group.family!r}: the block of {name} has shape {part.shape}, "
                f"but should have {expected}"
            )
        indices = part.indices + begins[name]
        shifted = sparse.csr_array(
            (part.data, indices, part.indptr), shape=(len(group.family), width)
        )
        joined = shifted if joined.nnz == 0 else joined + shifted
    return joined


def _stack(parts: Sequence[Any], width: int) -> sparse.csr_array[np.float64]:
    if not parts:
        return sparse.csr_array((0, width))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def _member_name(families: tuple[Family, ...], position: int) -> str:
    for family in families:
        if position < len(family):
            return family.label(position)
        position -= len(family)
    raise IndexError(position)


def _positions(families: tuple[Family, ...], name: str, indices: dict[str, int]) -> IntArray:
    begin = 0
    for family in families:
        if family.name == name:
            return begin + family.positions(**indices)
        begin += len(family)
    known = ", ".join(family.name for family in families)
    raise ModelError(f"there is no family {name!r}; known: {known}")


def _breaches(
    values: FloatArray, lower: FloatArray, upper: FloatArray, tolerance: float, name: Any
) -> list[Breach]:
    found = []
    slack_lower = tolerance * np.maximum(1, np.abs(np.where(np.isfinite(lower), lower, 0)))
    slack_upper = tolerance * np.maximum(1, np.abs(np.where(np.isfinite(upper), upper, 0)))
    below, above = values < lower - slack_lower, values > upper + slack_upper
    for at in np.flatnonzero(below | above).tolist():
        bound = float(lower[at] if below[at] else upper[at])
        kind: Literal["at least", "at most"] = "at least" if below[at] else "at most"
        found.append(Breach(name(at), float(values[at]), bound, kind))
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
