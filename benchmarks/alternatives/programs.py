"""OPT-IP (Sorted-F Eq. 4-7) as one would write it in Pyomo, linopy, scipy and CP-SAT.

Each `solve_by_...` gives the total latency and whether the solver calls it optimal. All get the
horizon as a gift: `safe_horizon`, which is shorter than the sum of all outputs. One thread each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from optsched import Instance, LinearModel


def pyomo_by_rules(instance: Instance, horizon: int) -> Any:
    """Write Eq. 4-7 as rules."""
    import pyomo.environ as pyo

    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    requests = range(len(instance))
    m = pyo.ConcreteModel()
    m.pairs = pyo.Set(
        initialize=[(i, k) for i in requests for k in range(horizon - outputs[i] + 1)]
    )
    m.start = pyo.Var(m.pairs, domain=pyo.Binary)
    m.objective = pyo.Objective(expr=sum((k + outputs[i]) * m.start[i, k] for i, k in m.pairs))

    @m.Constraint(requests)
    def once(m: Any, i: int) -> Any:
        return sum(m.start[i, k] for k in range(horizon - outputs[i] + 1)) == 1

    @m.Constraint(range(1, horizon + 1))
    def memory(m: Any, t: int) -> Any:
        held = (
            (prompts[i] + t - k) * m.start[i, k]
            for i in requests
            for k in range(max(0, t - outputs[i]), min(t - 1, horizon - outputs[i]) + 1)
        )
        return sum(held) <= instance.memory

    return m


def solve_by_pyomo(instance: Instance, horizon: int, limit: float) -> tuple[float, bool]:
    """Pyomo rules and HiGHS."""
    from pyomo.contrib.appsi.base import TerminationCondition
    from pyomo.contrib.appsi.solvers import Highs

    solver = Highs()
    solver.config.time_limit = limit
    solver.config.load_solution = False
    solver.highs_options = {"threads": 1, "mip_rel_gap": 0.0}
    found = solver.solve(pyomo_by_rules(instance, horizon))
    best = found.best_feasible_objective
    optimal = found.termination_condition is TerminationCondition.optimal
    return np.inf if best is None else best, optimal


def linopy_by_arrays(instance: Instance, horizon: int) -> Any:
    """Write Eq. 4-7 with labelled arrays, request by step."""
    import linopy
    import xarray as xr

    prompts = xr.DataArray(instance.prompts, dims="request")
    outputs = xr.DataArray(instance.outputs, dims="request")
    begin = xr.DataArray(np.arange(horizon), dims="begin")
    step = xr.DataArray(np.arange(1, horizon + 1), dims="step")
    m = linopy.Model()
    start = m.add_variables(
        lower=0,
        upper=(begin + outputs <= horizon).transpose("request", "begin").astype(int),
        coords=[np.arange(len(instance)), np.arange(horizon)],
        dims=["request", "begin"],
        integer=True,
        name="start",
    )
    m.add_constraints(start.sum("begin") == 1, name="once")
    age = step - begin
    held = xr.where((age >= 1) & (age <= outputs), prompts + age, 0)
    m.add_constraints((held * start).sum(["request", "begin"]) <= instance.memory, name="memory")
    m.add_objective(((begin + outputs) * start).sum())
    return m


def solve_by_linopy(instance: Instance, horizon: int, limit: float) -> tuple[float, bool]:
    """linopy, which hands its arrays to HiGHS."""
    m = linopy_by_arrays(instance, horizon)
    m.solve(
        "highs",
        io_api="direct",
        time_limit=limit,
        threads=1,
        mip_rel_gap=0.0,
        log_to_console=False,
        output_flag=False,
        progress=False,
    )
    best = m.objective.value
    return np.inf if best is None else float(best), m.termination_condition == "optimal"


def solve_by_scipy(instance: Instance, horizon: int, limit: float) -> tuple[float, bool]:
    """Triplets in loops, and `scipy.optimize.milp`, which is HiGHS."""
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    rows, columns, values, cost = [], [], [], []
    for i, output in enumerate(outputs):
        for k in range(horizon - output + 1):
            column = len(cost)
            cost.append(k + output)
            rows.append(i)
            columns.append(column)
            values.append(1)
            for age in range(1, output + 1):
                rows.append(len(outputs) + k + age - 1)
                columns.append(column)
                values.append(prompts[i] + age)
    shape = (len(outputs) + horizon, len(cost))
    matrix = sparse.csr_array((values, (rows, columns)), shape=shape)
    once = np.ones(len(outputs))
    found = milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            matrix,
            np.concatenate([once, np.full(horizon, -np.inf)]),
            np.concatenate([once, np.full(horizon, instance.memory)]),
        ),
        options={"time_limit": limit, "mip_rel_gap": 0.0},
    )
    return np.inf if found.fun is None else float(found.fun), found.status == 0


def solve_by_cumulative(instance: Instance, horizon: int, limit: float) -> tuple[float, bool]:
    """CP-SAT: a request is one interval of one step per token, in one cumulative constraint."""
    from ortools.sat.python import cp_model

    m = cp_model.CpModel()
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    starts = [m.new_int_var(0, horizon - output, "") for output in outputs]
    steps = [
        m.new_fixed_size_interval_var(start + age, 1, "")
        for start, output in zip(starts, outputs, strict=True)
        for age in range(1, output + 1)
    ]
    held = [
        prompt + age
        for prompt, output in zip(prompts, outputs, strict=True)
        for age in range(1, output + 1)
    ]
    m.add_cumulative(steps, held, instance.memory)
    m.minimize(sum(starts) + sum(outputs))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 1
    status = solver.solve(m)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return np.inf, False
    return solver.objective_value, status == cp_model.OPTIMAL


SOLVERS = {
    "Pyomo rules + HiGHS": solve_by_pyomo,
    "linopy + HiGHS": solve_by_linopy,
    "scipy.optimize.milp": solve_by_scipy,
    "CP-SAT, cumulative": solve_by_cumulative,
}


def linopy_from_rows(model: LinearModel) -> Any:
    """Hand arrays that are there already to linopy, whose terms are dense by row."""
    import linopy
    import xarray as xr

    matrix = model.matrix
    m = linopy.Model()
    x = m.add_variables(coords=[np.arange(len(model.cost))], dims=["column"], binary=True)
    width = int(np.diff(matrix.indptr).max())
    terms = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    coefficients = np.full((matrix.shape[0], width), np.nan)
    columns = np.full((matrix.shape[0], width), -1)
    coefficients[row, terms], columns[row, terms] = matrix.data, matrix.indices
    data = xr.Dataset(
        {"coeffs": (("row", "_term"), coefficients), "vars": (("row", "_term"), columns)},
        coords={"row": np.arange(matrix.shape[0])},
    )
    signs = np.where(model.row_lower == model.row_upper, "=", "<=")
    limits = (xr.DataArray(values, dims="row") for values in (signs, model.row_upper))
    m.add_constraints(linopy.LinearExpression(data, m), *limits)
    m.add_objective((x * xr.DataArray(model.cost, dims="column")).sum())
    return m


def cpsat_by_expressions(model: LinearModel) -> Any:
    """Hand arrays to CP-SAT row by row."""
    from ortools.sat.python import cp_model

    native = cp_model.CpModel()
    x = [native.new_bool_var("") for _ in model.cost]
    matrix = model.matrix
    coefficients, indices = matrix.data.astype(int).tolist(), matrix.indices.tolist()
    for row, (begin, end) in enumerate(zip(matrix.indptr, matrix.indptr[1:], strict=False)):
        columns = [x[at] for at in indices[begin:end]]
        total = cp_model.LinearExpr.weighted_sum(columns, coefficients[begin:end])
        native.add(total <= int(model.row_upper[row]))
        if np.isfinite(model.row_lower[row]):
            native.add(total >= int(model.row_lower[row]))
    native.minimize(cp_model.LinearExpr.weighted_sum(x, model.cost.astype(int).tolist()))
    return native
