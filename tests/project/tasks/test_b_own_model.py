"""Task B, as a stranger: own rows, columns and objective, on both solvers, and what contradicts."""

import numpy as np
import pytest

import optsched
from optsched import HindsightProgram, Instance, SolveParams, run, solve
from optsched.errors import InfeasibleError, ModelError, SolverError
from optsched.models import Family

CALLS = Instance(
    prompts=[6, 2, 1, 1, 3, 2],
    outputs=[3, 4, 2, 5, 2, 3],
    memory=14,
    arrivals=[0, 0, 0, 1, 2, 2],
    labels=["acme/1", "acme/2", "bolt/1", "bolt/2", "bolt/3", "acme/3"],
)


def both(model):
    """Return the optimum, on which HiGHS and CP-SAT have to agree."""
    found = [solve(model, method=method).require(optimal=True) for method in ("highs", "cp-sat")]
    assert found[0].objective == found[1].objective
    return found[1]


@pytest.fixture
def program():
    return HindsightProgram(CALLS, horizon=20, aggregate=False)


def test_a_price_on_the_worst_request_of_each_tenant(program):
    """Total latency plus ten times the longest latency of each tenant: columns, rows, objective."""
    model = program.to_linear()
    request, step = model.variables[0].keys.T
    latency = step + CALLS.outputs[request] - CALLS.arrivals[request]
    tenant = np.array([label.startswith("bolt") for label in CALLS.labels], dtype=int)
    by_request = latency * (request == np.arange(len(CALLS))[:, None])
    priced = model.with_columns("worst", cost=[10, 10], upper=20, integer=True).with_rows(
        Family.of("reach", request=range(len(CALLS))),
        {"start": by_request, "worst": -np.eye(2)[tenant]},
        upper=0,
    )
    found = both(priced)
    schedule = program.read(found.values)
    worst = [int(schedule.latencies[tenant == each].max()) for each in (0, 1)]
    assert found.objective == schedule.total_latency + 10 * sum(worst)
    assert found.values[-2:].tolist() == worst
    plain = both(model)
    assert schedule.total_latency >= plain.objective

    # An objective of one's own: only the peaks, then the least total among those.
    peaks = both(priced.with_objective(np.r_[np.zeros(len(model.cost)), 1, 1]))
    assert peaks.objective <= sum(worst)

    # The start has a value for each own column as well.
    area = run(CALLS, "area").schedule
    point = program.write_point(area)
    tops = [area.latencies[tenant == each].max() for each in (0, 1)]
    started = solve(priced, params=SolveParams(start=np.append(point, tops)))
    assert started.objective == found.objective
    for start in (area, point):
        with pytest.raises(SolverError, match=r"must be a number for each of .*; write_point of a"):
            solve(priced, params=SolveParams(start=start))


def test_rules_that_contradict_each_other_are_named_and_can_be_mended(program):
    model = program.to_linear()
    request, step = model.variables[0].keys.T
    after = step * (request == 0) - step * (request == 3)
    ruled = model.with_rows("after", after, lower=CALLS.outputs[3])
    ruled = ruled.with_rows("urgent", step * (request == 0), upper=4)
    found = solve(ruled, method="cp-sat")
    with pytest.raises(ModelError, match="no answer was found"):
        program.read(found.values)
    with pytest.raises(InfeasibleError, match=r"optsched\.explain_infeasibility names rows"):
        found.require()
    conflict = optsched.explain_infeasibility(ruled)
    assert conflict.irreducible
    assert conflict.rows == ("urgent", "after")
    assert str(conflict).startswith("rows urgent and after cannot both hold")

    # A schedule from before the rules is no start; the error names the rule, its advice works.
    relaxed = model.with_rows("after", after, lower=CALLS.outputs[3])
    point = program.write_point(run(CALLS, "fcfs").schedule)
    with pytest.raises(SolverError, match=r"infeasible: after is .*or solve without a start"):
        solve(relaxed, params=SolveParams(start=point))
    schedule = program.read(both(relaxed).values)
    assert schedule.starts[0] >= schedule.completions[3]
    assert schedule.check() == []
