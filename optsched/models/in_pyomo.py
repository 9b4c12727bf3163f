"""Linear models as models of Pyomo: a family becomes an indexed component."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import FloatArray, require_nonzeros
from optsched.errors import ModelError

if TYPE_CHECKING:
    Native = Any  # of a solver without types, or a model, whose file imports this one


def to_pyomo(model: Native) -> Native:
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


def _indices(family: Native) -> list[Native]:
    """Return the keys as Pyomo wants them: numbers for one index, tuples for more."""
    if len(family.index_names) == 1:
        return list(family.keys[:, 0].tolist())
    return [tuple(key) for key in family.keys.tolist()]


def _add_variables(result: Native, model: Native) -> Native:
    """Add the columns; give all of them in one array of objects."""
    import pyomo.environ as pyo

    data: list[Native] = []
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


def _add_rows(result: Native, model: Native, columns: Native) -> None:
    import pyomo.environ as pyo

    matrix = model.matrix
    variables = columns[matrix.indices]
    lower, upper = _or_none(model.row_lower), _or_none(model.row_upper)
    begin = 0
    for family in model.rows:
        bodies: list[Native] = []
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


def _linear(coefficients: Native, variables: Native, constant: float = 0.0) -> Native:
    from pyomo.core.expr import LinearExpression

    return LinearExpression(
        constant=constant, linear_coefs=coefficients.tolist(), linear_vars=variables.tolist()
    )


def _or_none(bounds: FloatArray) -> list[float | None]:
    """Return bounds as Pyomo wants them."""
    return [value if abs(value) < np.inf else None for value in bounds.tolist()]


def _by_key(keys: list[Native], values: list[Native]) -> Native:
    """Return one value where all are equal, else a dictionary."""
    if values and values.count(values[0]) == len(values):
        return values[0]
    return dict(zip(keys, values, strict=True))
