"""Rows in conflict against enumeration: none can be spared, and they are named."""

import itertools

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from tiny_models import knapsack, models

from optsched import HindsightProgram, Instance, Solution, explain_infeasibility, family, solve
from optsched.errors import InfeasibleError, SolverError
from optsched.models import Family, RowConflict
from optsched.models.program import Stopped
from optsched.optimum import programs as conflicts


def some_point(model, rows):
    """Try all whole points, with some of the rows only."""
    ranges = zip(model.col_lower.astype(int), model.col_upper.astype(int), strict=True)
    points = np.array(list(itertools.product(*(range(low, high + 1) for low, high in ranges))))
    sums = points @ model.matrix.toarray()[rows].T
    return ((sums >= model.row_lower[rows]) & (sums <= model.row_upper[rows])).all(axis=1).any()


@given(models())
@examples(75)
def test_a_conflict_is_one_and_no_row_of_it_can_be_spared(model):
    found = explain_infeasibility(model)
    names = model.row_names()
    assert (found is None) == some_point(model, list(range(len(names))))
    if found is None:
        return
    rows = [names.index(row) for row in found.rows]
    assert found.irreducible
    assert not some_point(model, rows)
    for row in rows:
        assert some_point(model, [other for other in rows if other != row])


def crowded():
    """Four calls, of which no two may overlap, and the last must not wait."""
    calls = Instance([1] * 4, [2] * 4, memory=12)
    program = HindsightProgram(calls, horizon=9, aggregate=False)
    model = program.to_linear()
    request, step = model.variables[0].keys.T
    steps = np.arange(1, program.horizon + 1)
    running = (step < steps[:, None]) & (steps[:, None] <= step + 2)
    model = model.with_rows(Family.of("alone", step=steps), running, upper=1)
    return model.with_rows("soon", step * (request == 3), upper=0)


def test_own_rows_are_named_with_the_rows_that_they_contradict():
    model = crowded()
    assert explain_infeasibility(model) is None
    request, step = model.variables[0].keys.T
    both = model.with_rows("too_soon", step * (request == 2), upper=1)
    solution = solve(both, method="cp-sat")
    assert solution.status is Stopped.INFEASIBLE
    with pytest.raises(InfeasibleError, match="explain_infeasibility names rows in conflict"):
        solution.require()
    found = explain_infeasibility(both)
    assert isinstance(found, RowConflict)
    assert found.irreducible
    assert set(found.rows) >= {"soon", "too_soon"}
    assert str(found).startswith("rows too_soon, soon")
    others = [row for row in found.rows if row not in ("soon", "too_soon")]
    assert {row.partition("[")[0] for row in others} == {"alone", "once"}


def test_continuous_columns_are_for_highs_and_bounds_alone_may_conflict():
    model = knapsack().relax().with_rows("many", [1, 1, 1], lower=2.5)
    found = explain_infeasibility(model)
    assert (found.rows, found.solver.split()[0]) == (("many", "weight"), "HiGHS")
    nowhere = knapsack().with_columns("x", lower=0.2, upper=0.8, integer=True)
    assert str(explain_infeasibility(nowhere)).startswith("no point lies within the bounds")


def test_programs_are_explained_by_their_rows():
    program = HindsightProgram(Instance([2, 2], [2, 2], memory=4), horizon=3)
    assert str(explain_infeasibility(program)).startswith("rows once[0] and memory[2]")


@pytest.mark.slow
def test_a_budget_that_no_fraction_keeps_to_is_told_at_once():
    """It took CP-SAT longer than there was, and a quarter of the time was all that was used."""
    model = HindsightProgram(family("uniform", n=8, seed=1)).to_linear()
    found = explain_infeasibility(model.with_rows("budget", model.cost, upper=200))
    assert found.rows[0] == "budget"
    assert "HiGHS" in found.solver


def test_what_is_not_decided_in_time_is_said(monkeypatch):
    seen = []

    def solve_some(model, solver, options):
        seen.append(options.time_limit)
        status = Stopped.INFEASIBLE if len(seen) == 1 else Stopped.TIME_LIMIT
        return Solution(status, solver, 0.1)

    monkeypatch.setattr(conflicts, "solve_linear", solve_some)
    found = explain_infeasibility(crowded(), time_limit=8)
    assert not found.irreducible
    assert "more cannot all hold; a part of them may conflict already" in str(found)
    assert max(seen) <= 2
    with pytest.raises(SolverError, match="whether a point satisfies all rows is not decided"):
        explain_infeasibility(crowded())
