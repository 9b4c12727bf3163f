"""Time of handing a hindsight program of 1.65 million nonzeros to a solver, in one run.

    python benchmarks/handover.py [scale]

Ratios are to HiGHS' own arrays. A scale of 0.1 keeps a tenth of the requests.
"""

from __future__ import annotations

import gc
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched import HindsightProgram, Instance, LinearModel, from_pyomo, read_model, write_model
from optsched.solvers import cpsat, highs

if TYPE_CHECKING:
    from collections.abc import Callable


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


def make_model(scale: float) -> LinearModel:
    """Lower a program in which no two requests share columns."""
    rng = np.random.default_rng(0)
    count = max(2, round(400 * scale))
    prompts, outputs = rng.integers(1, 200, count), rng.integers(1, 28, count)
    instance = Instance(prompts, outputs, 2_000)
    return HindsightProgram(instance, horizon=309, aggregate=False).lower()


def cpsat_by_expressions(model: LinearModel) -> Any:
    """Hand over as most people would."""
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


def main(scale: float = 1.0) -> None:
    model = make_model(scale)
    rows, columns = model.matrix.shape
    print(f"{rows:,} rows x {columns:,} columns, {model.matrix.nnz:,} nonzeros\n")
    highs.new(make_model(0.01))
    cpsat.new(make_model(0.01))  # imports
    native = model.to_pyomo()
    assert from_pyomo(native).same_as(model)
    with tempfile.TemporaryDirectory() as folder:
        mps, lp = Path(folder, "model.mps"), Path(folder, "model.lp")
        paths: dict[str, Callable[[], Any]] = {
            "HiGHS, passModel": lambda: highs.new(model),
            "CP-SAT, protocol buffer": lambda: cpsat.new(model),
            "CP-SAT, expressions": lambda: cpsat_by_expressions(model),
            "child process, pickle": lambda: pickle.loads(pickle.dumps(model, protocol=5)),
            "Pyomo to arrays": lambda: from_pyomo(native),
            "write .mps": lambda: write_model(model, mps),
            "read .mps": lambda: read_model(mps),
            "write .lp": lambda: write_model(model, lp),
            "read .lp": lambda: read_model(lp),
        }
        least = 0.0
        print(f"{'path':<28}{'seconds':>9}{'ratio':>9}")
        for path, call in paths.items():
            taken = seconds(call)
            least = least or taken
            print(f"{path:<28}{taken:>9.3f}{taken / least:>9.1f}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
