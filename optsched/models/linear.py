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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse

from optsched.errors import ModelError as ModelError
from optsched.models.blocks import Rows as Rows
from optsched.models.blocks import Variables as Variables
from optsched.models.blocks import canonical, join_blocks, spread, stack
from optsched.models.families import Family as Family
from optsched.models.families import member_name, member_positions, read_only
from optsched.models.points import Breach as Breach
from optsched.models.points import breaches
from optsched.models.points import whole_numbers as whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched.instance import BoolArray, FloatArray, IntArray

Sense = Literal["min", "max"]


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
        matrix = canonical(self.matrix)
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
            object.__setattr__(self, field, read_only(values))
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
        parts = [join_blocks(group, families) for group in rows]
        return cls(
            cost=spread([group.cost for group in variables], families),
            matrix=stack(parts, sum(map(len, families))),
            row_lower=spread([group.lower for group in rows], [group.family for group in rows]),
            row_upper=spread([group.upper for group in rows], [group.family for group in rows]),
            col_lower=spread([group.lower for group in variables], families),
            col_upper=spread([group.upper for group in variables], families),
            integer=spread([group.integer for group in variables], families).astype(np.bool_),
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
        return member_name(self.variables, column)

    def row_name(self, row: int) -> str:
        """Give the name of one row, such as ``memory[17]``."""
        return member_name(self.rows, row)

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
        return member_positions(self.variables, family, indices)

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
        return member_positions(self.rows, family, indices)

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
        found = breaches(values, self.col_lower, self.col_upper, tolerance, self.column_name)
        whole = np.rint(values)
        for column in np.flatnonzero(self.integer & (np.abs(values - whole) > tolerance)).tolist():
            name = self.column_name(column)
            found.append(Breach(name, float(values[column]), float(whole[column]), "whole"))
        activities: Any = self.matrix @ values
        return found + breaches(
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
            matrix=stack([self.matrix, block], len(self.cost)),
            row_lower=np.concatenate([self.row_lower, spread([lower], [family])]),
            row_upper=np.concatenate([self.row_upper, spread([upper], [family])]),
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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
