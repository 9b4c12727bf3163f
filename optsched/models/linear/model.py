"""Linear models by families of variables and rows."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from optsched._internal.numbers import exact_dot, in_units
from optsched._internal.room import require_nonzeros
from optsched.errors import ModelError as ModelError
from optsched.models.linear.arrays import (
    Breach,
    Family,
    LinearArrays,
    Rows,
    Sense,
    Variables,
    breaches,
    member_positions,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray


def to_pyomo(model: LinearArrays) -> Any:
    """Write a linear model as a Pyomo model: a family becomes an indexed component."""
    import pyomo.environ as pyo

    require_nonzeros(model.matrix.nnz, "in a model of Pyomo", ModelError)
    result = pyo.ConcreteModel(name=model.name)
    collecting = gc.isenabled()
    gc.disable()
    try:
        columns = _add_variables(result, model)
        _add_rows(result, model, columns)
        sense = pyo.minimize if model.sense == "min" else pyo.maximize
        used = np.flatnonzero(model.cost)
        expression = _linear(model.cost[used], columns[used], model.offset)
        result.objective = pyo.Objective(expr=expression, sense=sense)
    finally:
        if collecting:
            gc.enable()
    return result


def _indices(family: Family) -> list[Any]:
    """Return the keys as Pyomo wants them: numbers for one index, tuples for more."""
    if len(family.index_names) == 1:
        return list(family.keys[:, 0].tolist())
    return [tuple(key) for key in family.keys.tolist()]


def _add_variables(result: Any, model: LinearArrays) -> Any:
    """Add the columns; give all of them in one array of objects."""
    import pyomo.environ as pyo

    data: list[Any] = []
    lower, upper = _or_none(model.col_lower), _or_none(model.col_upper)
    for family in model.variables:
        part = slice(len(data), len(data) + len(family))
        bounds = list(zip(lower[part], upper[part], strict=True))
        domains = [
            pyo.Reals if not integer else pyo.Binary if pair == (0, 1) else pyo.Integers
            for integer, pair in zip(model.integer[part].tolist(), bounds, strict=True)
        ]
        if not family.index_names:
            component = pyo.Var(domain=domains[0], bounds=bounds[0])
        else:
            keys = _indices(family)
            component = pyo.Var(
                keys, domain=_by_key(keys, domains), bounds=_by_key(keys, bounds), dense=True
            )
        setattr(result, family.name, component)
        data.extend(component.values())
    columns = np.empty(len(data), dtype=object)
    columns[:] = data
    return columns


def _add_rows(result: Any, model: LinearArrays, columns: Any) -> None:
    """Add the rows."""
    import pyomo.environ as pyo

    matrix = model.matrix
    variables = columns[matrix.indices]
    lower, upper = _or_none(model.row_lower), _or_none(model.row_upper)
    begin = 0
    for family in model.rows:
        bodies: list[Any] = []
        for row in range(begin, begin := begin + len(family)):
            part = slice(matrix.indptr[row], matrix.indptr[row + 1])
            body = _linear(matrix.data[part], variables[part])
            if lower[row] is None and upper[row] is None:
                bodies.append(pyo.Constraint.Feasible)
                continue
            equal = lower[row] == upper[row] and part.start < part.stop
            bodies.append(body == lower[row] if equal else (lower[row], body, upper[row]))
        if family.index_names:
            keys = _indices(family)
            component = pyo.Constraint(keys, rule=dict(zip(keys, bodies, strict=True)))
        else:
            component = pyo.Constraint(expr=bodies[0])
        setattr(result, family.name, component)


def _linear(coefficients: Any, variables: Any, constant: float = 0.0) -> Any:
    from pyomo.core.expr import LinearExpression

    return LinearExpression(
        constant=constant, linear_coefs=coefficients.tolist(), linear_vars=variables.tolist()
    )


def _or_none(bounds: FloatArray) -> list[float | None]:
    """Return bounds as Pyomo wants them."""
    return [value if abs(value) < np.inf else None for value in bounds.tolist()]


def _by_key(keys: list[Any], values: list[Any]) -> Any:
    """Return one value where all are equal, else a dictionary."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return dict(zip(keys, values, strict=True))


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
    >>> print(model.with_columns("fee", {"weight": -1}, cost=-2, upper=3).to_pyomo().objective.expr)
    5.0*take[0] + 4.0*take[1] + 3.0*take[2] - 2.0*fee
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

    @cached_property
    def _fractional(self) -> BoolArray:
        """Which rows may have values that are no whole numbers, shape (m,)."""
        free = (self.matrix.data % 1 != 0) | ~self.integer[self.matrix.indices]
        row = np.repeat(np.arange(len(self.row_lower)), np.diff(self.matrix.indptr))
        return np.bincount(row[free], minlength=len(self.row_lower)) > 0

    def holds(self, point: npt.ArrayLike) -> bool:
        """Return whether a point, feasible up to a tolerance, keeps all rows without rounding."""
        values, matrix = self._checked(point), self.matrix
        sums: Any = matrix @ values
        spare = np.minimum(sums - self.row_lower, self.row_upper - sums)
        size: Any = abs(matrix) @ np.abs(values) + 1
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
        sums: Any = self.matrix @ values
        most = np.where(self._fractional, np.inf, 0.5)
        limits = self.row_lower, self.row_upper
        return found + breaches(sums, *limits, tolerance, self.row_name, most)

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
            Dense or sparse, shape (rows, n); or by family of columns, as in `Rows`. A number stands
            in every place of its block.
        lower, upper
            Bounds; numbers hold for every row.
        """
        family = _named(name, "row", coefficients)
        block = _assemble(family, "row", coefficients, self.variables)
        return dataclasses.replace(
            self,
            matrix=_stack([self.matrix, block], len(self.cost)),
            row_lower=np.concatenate([self.row_lower, spread([lower], [family])]),
            row_upper=np.concatenate([self.row_upper, spread([upper], [family])]),
            rows=(*self.rows, family),
        )

    def with_columns(
        self,
        name: Family | str,
        coefficients: Any = 0.0,
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
        longer: dict[str, Any] = {
            field: np.concatenate([getattr(self, field), spread([number], [family])])
            for field, number in zip(
                ("cost", "col_lower", "col_upper", "integer"), numbers, strict=True
            )
        }
        matrix = sparse.hstack([self.matrix, block], format="csr")
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

    def to_pyomo(self) -> Any:
        """Return the model as a Pyomo model with the same names."""
        return to_pyomo(self)

    def same_as(self, other: LinearModel) -> bool:
        """Return whether two models agree but for the order of columns and rows and index names."""
        return (self.sense, self.offset) == (other.sense, other.offset) and all(
            map(np.array_equal, self._by_name(), other._by_name())
        )


def _tables(what: str, coefficients: Any) -> dict[str, Any]:
    """Return coefficients as arrays, dense or sparse, by family; without families under ""."""
    blocks = coefficients if isinstance(coefficients, Mapping) else {"": coefficients}
    try:
        return {
            name: block if sparse.issparse(block) else np.asarray(block, dtype=np.float64)
            for name, block in blocks.items()
        }
    except (TypeError, ValueError):
        raise ModelError(
            f"{what}: the coefficients are no table of numbers with one row per row and one "
            "column per column of the model"
        ) from None


def _named(
    name: Family | str, word: str, coefficients: Any, numbers: Sequence[npt.ArrayLike] = ()
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
    family: Family, word: str, coefficients: Any, others: tuple[Family, ...]
) -> sparse.csr_array[np.float64]:
    """Put the blocks of rows, one for each family of columns, together; or those of columns."""
    what, count, of_rows = f"{word}s {family!r}", len(family), word == "row"

    def fit(block: str, table: Any, length: int) -> sparse.csr_array[np.float64]:
        shape = (count, length) if of_rows else (length, count)
        if table.ndim == 0:  # a number fills the block, a list is its one row or column
            table = np.broadcast_to(table, shape) if table else sparse.csr_array(shape)
        elif table.ndim == 1:
            table = table.reshape((-1, 1) if shape[1] == 1 else (1, -1))
        if table.shape != shape:
            raise ModelError(
                f"{what}: the {block} has shape {table.shape}, but should have {shape}"
            )
        return sparse.csr_array(table, dtype=np.float64)

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
        return sparse.csr_array((count, 0) if of_rows else (0, count))
    return sparse.csr_array(sparse.hstack(blocks) if of_rows else sparse.vstack(blocks))


def _stack(parts: Sequence[Any], width: int) -> sparse.csr_array[np.float64]:
    """Put blocks of rows on top of each other; without any there are no rows."""
    if not parts:
        return sparse.csr_array((0, width))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))
