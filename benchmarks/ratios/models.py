"""Making the hindsight program, and handing it over, against Pyomo, linopy and expressions."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
from alternatives.programs import cpsat_by_expressions, linopy_from_rows, pyomo_by_rules
from timing import Row, measure

from optsched import HindsightProgram, Instance
from optsched.solvers import from_pyomo
from optsched.solvers.backends import cpsat, highs

if TYPE_CHECKING:
    from collections.abc import Iterator

HORIZON = 309


def rows(quick: bool) -> Iterator[Row]:
    """A program in which no two requests share columns."""
    rng = np.random.default_rng(0)
    count, repeats = (10, 1) if quick else (100, 3)
    prompts, outputs = rng.integers(1, 200, count), rng.integers(1, 28, count)
    instance = Instance(prompts, outputs, 2_000)

    def to_linear():
        return HindsightProgram(instance, horizon=HORIZON, aggregate=False).to_linear()

    ours, model = measure(to_linear, repeats)
    size = f"{model.matrix.nnz:,} nonzeros"
    task = "make OPT-IP"

    theirs, native = measure(lambda: pyomo_by_rules(instance, HORIZON), 1, warm_up=quick)
    other = from_pyomo(native)
    assert np.array_equal(other.cost, model.cost)
    assert (other.matrix != model.matrix).nnz == 0
    yield Row(task, size, "Pyomo rules", ours, theirs, "same arrays")
    del native

    if importlib.util.find_spec("linopy"):
        theirs, native = measure(lambda: linopy_from_rows(model), 1)
        assert abs(native.matrices.A - model.matrix).max() == 0
        yield Row(task, size, "linopy, given the arrays", ours, theirs, "same arrays")
        del native

    ours, _ = measure(lambda: highs.new(model), repeats)
    theirs, native = measure(model.to_pyomo, 1)
    theirs, _ = measure(lambda: from_pyomo(native), 1)
    yield Row("arrays to HiGHS", size, "Pyomo model to arrays", ours, theirs, "same arrays")
    del native

    ours, native = measure(lambda: cpsat.new(model), repeats)
    theirs, other = measure(lambda: cpsat_by_expressions(model), 1)
    assert sum(len(row.linear.coeffs) for row in other.proto.constraints) >= model.matrix.nnz
    assert len(native.proto.variables) == len(other.proto.variables)
    yield Row("arrays to CP-SAT", size, "expressions", ours, theirs, "same variables")
