"""Time of making a hindsight program of 1.65 million nonzeros, by every path, in one run.

    python benchmarks/lowering.py [scale]

Ratios are to lowering. A scale of 0.1 keeps a tenth of the requests.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched import HindsightProgram, Instance, LinearModel

if TYPE_CHECKING:
    from collections.abc import Callable

HORIZON = 309


def seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """Give the shortest of several runs, each from a clean heap."""
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def make_program(scale: float) -> HindsightProgram:
    """Make a program in which no two requests share columns."""
    rng = np.random.default_rng(0)
    count = max(2, round(400 * scale))
    prompts, outputs = rng.integers(1, 200, count), rng.integers(1, 28, count)
    return HindsightProgram(Instance(prompts, outputs, 2_000), horizon=HORIZON, aggregate=False)


def pyomo_by_rules(program: HindsightProgram) -> Any:
    """Write Eq. 4-7 as most people would."""
    import pyomo.environ as pyo

    instance, horizon = program.instance, program.horizon
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


def linopy_arrays(model: LinearModel) -> Any:
    """Hand the arrays to linopy, whose terms are dense by row."""
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


def main(scale: float = 1.0) -> None:
    program = make_program(scale)
    model = program.lower()
    rows, columns = model.matrix.shape
    print(f"{rows:,} rows x {columns:,} columns, {model.matrix.nnz:,} nonzeros\n")
    paths: dict[str, Callable[[], Any]] = {
        "HindsightProgram.lower": lambda: make_program(scale).lower(),
        "names of all columns": model.column_names,
        "to_pyomo, from arrays": model.to_pyomo,
        "Pyomo by rules": partial(pyomo_by_rules, program),
    }
    if importlib.util.find_spec("linopy"):
        paths["linopy, from arrays"] = partial(linopy_arrays, model)
    least = 0.0
    print(f"{'path':<28}{'seconds':>9}{'ratio':>9}")
    for path, call in paths.items():
        taken = seconds(call)
        least = least or taken
        print(f"{path:<28}{taken:>9.3f}{taken / least:>9.1f}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
