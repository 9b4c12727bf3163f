"""LinearModel: the one array language that every model becomes and every solver reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from optsched.errors import ModelError as ModelError
from optsched.models.linear.arrays import Breach as Breach
from optsched.models.linear.arrays import LinearArrays, Sense, breaches
from optsched.models.linear.families import Family as Family
from optsched.models.linear.families import Rows as Rows
from optsched.models.linear.families import Variables as Variables
from optsched.models.linear.families import member_positions, spread
from optsched.models.linear.families import whole_numbers as whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray


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
    >>> from optsched.models.linear.model import Family, LinearModel, Rows, Variables
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
    >>> model.fix(model.columns_of("take", item=1), 0).col_upper
    array([1., 0., 1.])
    >>> native = model.to_pyomo()
    >>> print(native.objective.expr)
    5.0*take[0] + 4.0*take[1] + 3.0*take[2]
    """

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
        parts = [_join_blocks(group, families) for group in rows]
        names = [group.family for group in rows]
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
        return self.offset + float(self.cost @ self._checked(point))

    def violations(self, point: npt.ArrayLike, tolerance: float = 1e-6) -> list[Breach]:
        """List everything that makes a point infeasible, columns before rows.

        The tolerance on bounds is relative to their size where that is above 1, that on whole
        numbers is absolute.
        """
        values = self._checked(point)
        whole = np.rint(values)
        found = breaches(values, self.col_lower, self.col_upper, tolerance, self.column_name)
        for column in np.flatnonzero(self.integer & (np.abs(values - whole) > tolerance)).tolist():
            name = self.column_name(column)
            found.append(Breach(name, float(values[column]), float(whole[column]), "whole"))
        sums: Any = self.matrix @ values
        return found + breaches(sums, self.row_lower, self.row_upper, tolerance, self.row_name)

    def with_rows(
        self,
        name: Family | str,
        coefficients: Any,
        lower: npt.ArrayLike = -np.inf,
        upper: npt.ArrayLike = np.inf,
    ) -> LinearModel:
        """Add rows.

        Parameters
        ----------
        name
            Their name, or a `Family` that says what tells them apart.
        coefficients
            Dense or sparse, shape (rows, n); or by family of columns, as in `Rows`.
        lower, upper
            Bounds; numbers hold for every row.
        """
        family, block = _named_rows(name, coefficients, self.variables)
        return dataclasses.replace(
            self,
            matrix=_stack([self.matrix, block], len(self.cost)),
            row_lower=np.concatenate([self.row_lower, spread([lower], [family])]),
            row_upper=np.concatenate([self.row_upper, spread([upper], [family])]),
            rows=(*self.rows, family),
        )

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

    def to_pyomo(self) -> Any:
        """Return the model as a Pyomo model with the same names."""
        from optsched.models.linear.pyomo import to_pyomo

        return to_pyomo(self)

    def same_as(self, other: LinearModel) -> bool:
        """Return whether two models agree but for the order of columns and rows and index names."""
        return (self.sense, self.offset) == (other.sense, other.offset) and all(
            map(np.array_equal, self._by_name(), other._by_name())
        )


def _join_blocks(group: Rows, families: tuple[Family, ...]) -> sparse.csr_array[np.float64]:
    """Put the blocks of one family of rows side by side."""
    known = [family.name for family in families]
    if unknown := [name for name in group.blocks if name not in known]:
        raise ModelError(
            f"rows {group.family!r}: there are no variables {unknown[0]!r}, only {', '.join(known)}"
        )
    shape = (len(group.family), sum(map(len, families)))
    joined, begin = sparse.csr_array(shape), 0
    for family in families:
        if (block := group.blocks.get(family.name)) is not None:
            part, expected = _as_block(group.family.name, block), (shape[0], len(family))
            if part.shape != expected:
                raise ModelError(
                    f"rows {group.family!r}: the block of {family.name} has shape {part.shape}, "
                    f"but should have {expected}"
                )
            part = sparse.csr_array((part.data, part.indices + begin, part.indptr), shape=shape)
            joined = joined + part if joined.nnz else part
        begin += len(family)
    return joined


def _as_block(name: str, coefficients: Any) -> sparse.csr_array[np.float64]:
    """Return coefficients, dense or sparse, as a matrix; one row may be written as a list."""
    try:
        rows: Any = coefficients if sparse.issparse(coefficients) else np.atleast_2d(coefficients)
        return sparse.csr_array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ModelError(
            f"rows {name!r}: the coefficients are no table of numbers with one row per row and "
            "one column per column of the model"
        ) from None


def _named_rows(
    name: Family | str, coefficients: Any, variables: tuple[Family, ...]
) -> tuple[Family, sparse.csr_array[np.float64]]:
    """Return a family of rows and its coefficients, given as a matrix or by family of columns."""
    if not isinstance(name, Family | str):
        raise ModelError(f"rows are called {name!r}, but need a name or a Family")
    label = name if isinstance(name, str) else name.name
    by_family = isinstance(coefficients, Mapping)
    blocks = coefficients.values() if by_family else [coefficients]
    parts = [_as_block(label, block) for block in blocks]
    count = parts[0].shape[0] if parts else 0
    if isinstance(name, str):
        name = Family.of(label) if count == 1 else Family.of(label, row=range(count))
    if by_family:
        return name, _join_blocks(Rows(name, coefficients), variables)
    expected = (len(name), sum(map(len, variables)))
    if parts[0].shape != expected:
        raise ModelError(
            f"rows {name!r}: the matrix has shape {parts[0].shape}, but there are "
            f"{expected[0]} rows and {expected[1]} columns"
        )
    return name, parts[0]


def _stack(parts: Sequence[Any], width: int) -> sparse.csr_array[np.float64]:
    """Put blocks of rows on top of each other; without any there are no rows."""
    if not parts:
        return sparse.csr_array((0, width))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))
