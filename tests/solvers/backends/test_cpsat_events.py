"""The event formulation against every schedule of tiny instances."""

from __future__ import annotations

import re

import brute_force
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Schedule, SolveParams, solve
from optsched.errors import SolverError
from optsched.models import EventProgram, HindsightProgram, ModelError, Running
from optsched.models.program import Stopped

OBJECTIVES = ["total-latency", "weighted-latency", "makespan"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@examples(60)
@given(
    instance=instances(max_requests=3, max_memory=9, max_arrival=3, max_output=3), data=st.data()
)
def test_it_finds_the_least_cost_of_all_schedules(objective, instance, data):
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=4, max_size=4))
    instance = instance.replace(weights=weights[: len(instance)])
    program = EventProgram(instance, objective)
    solution = solve(program).require(optimal=True)
    horizon = int(instance.arrivals.max() + instance.outputs.sum())  # no idling, one by one
    costs = (
        brute_force.cost(starts, instance, objective)
        for starts in brute_force.schedules(instance, horizon)
    )
    assert solution.objective == pytest.approx(min(costs))
    assert solution.answer.check() == []


@pytest.mark.few
@examples(40)
@given(instance=instances(max_requests=5, max_memory=12, max_arrival=4, max_output=5))
def test_it_agrees_with_the_time_indexed_program_on_all_solvers(instance):
    events = solve(EventProgram(instance)).require(optimal=True)
    model = HindsightProgram(instance).to_linear()
    for solver in ("highs", "cp-sat"):
        assert solve(model, method=solver).require(optimal=True).objective == events.objective


@examples(40)
@given(
    instance=instances(max_requests=4, max_memory=8, max_arrival=2, max_output=3), data=st.data()
)
def test_hard_deadlines(instance, data):
    slack = data.draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    deadlines = instance.arrivals + instance.outputs + slack[: len(instance)]
    instance = instance.replace(deadlines=deadlines)
    feasible = list(brute_force.schedules(instance, 9, deadlines=deadlines.tolist()))
    solution = solve(EventProgram(instance))
    assert (solution.status is Stopped.INFEASIBLE) is (not feasible)
    if feasible:
        least = min(brute_force.cost(starts, instance) for starts in feasible)
        assert solution.require(optimal=True).objective == least


@pytest.mark.parametrize("objective", OBJECTIVES)
@examples(60)
@given(
    instance=instances(max_requests=3, max_memory=10, max_arrival=3, max_output=3),
    now=st.integers(0, 3),
    running=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=3),
    data=st.data(),
)
def test_beside_running_requests_it_agrees_with_all_schedules(
    objective, instance, now, running, data
):
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=3, max_size=3))
    instance = instance.replace(weights=weights[: len(instance)])
    beside = {"now": now, "running": Running([h for h, _ in running], [r for _, r in running])}
    try:
        indexed = HindsightProgram(instance, objective=objective, **beside)
    except ModelError as error:
        with pytest.raises(ModelError, match=re.escape(str(error))):
            EventProgram(instance, objective, **beside)
        return
    program = EventProgram(instance, objective, **beside)
    solution = solve(program).require(optimal=True)
    costs = (
        brute_force.cost(starts, instance, objective)
        for starts in brute_force.schedules(instance, indexed.horizon, now=now, running=running)
    )
    assert solution.objective == pytest.approx(min(costs))
    assert program.violations(solution.answer) == []
    best = solve(indexed, method="highs").require(optimal=True)
    assert best.objective == pytest.approx(solution.objective)
    assert program.violations(best.answer) == []


def test_a_start_that_overfills_the_memory_beside_running_requests_is_refused():
    instance = Instance([4], [2], memory=9, labels=["a"])
    program = EventProgram(instance, now=1, running=Running([2], [3]))
    message = r"steps 3\.\.3: 10 tokens at the first of them where 9 fit"
    with pytest.raises(SolverError, match=message):
        solve(program, params=SolveParams(start=Schedule(program.instance, [1])))
    assert solve(
        program, params=SolveParams(start=Schedule(program.instance, [6]))
    ).values.tolist() == [4]
    with pytest.raises(SolverError, match="request a starts at step 0 but arrives at 1"):
        solve(program, params=SolveParams(start=Schedule(program.instance, [0])))


def test_jaillets_counterexample_for_equal_prompts():
    # MC-SF gives 22; the optimum is 21 with completions 1, 2, 6, 12.
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=13)
    assert solve(EventProgram(instance)).require(optimal=True).objective == 21


def test_a_start_beyond_the_latest_starts_is_kept_as_an_answer():
    program = EventProgram(Instance([63, 1, 1], [1, 2, 2], memory=64))
    far = [1000, 0, 0]
    solution = solve(
        program, time_limit=1e-9, params=SolveParams(start=Schedule(program.instance, far))
    )
    assert solution.has_answer
    assert solution.objective <= 1005
    assert solve(program, params=SolveParams(start=Schedule(program.instance, far))).objective == 7


def test_an_infeasible_start_is_refused():
    program = EventProgram(Instance([63, 1, 1], [1, 2, 2], memory=64))
    with pytest.raises(SolverError, match=r"the start is infeasible: steps 1\.\.1: 68 tokens"):
        solve(program, params=SolveParams(start=Schedule(program.instance, [0, 0, 0])))


def test_a_given_bound_is_proven_from_the_outset():
    program = EventProgram(Instance([63, 1, 1], [1, 2, 2], memory=64))
    assert solve(program, params=SolveParams(bound=6.5)).bound == 7
    # a false one leaves nothing, unless what policies do gives it away
    false = SolveParams(bound=8)
    assert solve(program, method="cp-sat", params=false).objective != 7
    assert "beyond the answer 7" in solve(program, params=false).raw_status


def test_equal_requests_share_their_schedules_with_unequal_ones():
    rng = np.random.default_rng(3)
    instance = Instance(np.repeat(rng.integers(1, 20, 3), 3), np.repeat([4, 7, 2], 3), memory=40)
    program = EventProgram(instance)
    solution = solve(program).require(optimal=True)
    for group in program.equals:
        assert (np.diff(solution.values[group]) >= 0).all()
    assert Schedule(instance, solution.values).check() == []


def test_weights_that_cp_sat_cannot_represent_are_refused():
    instance = Instance([1, 1], [2, 2], memory=3, weights=[1 / 3, 1e6])
    with pytest.raises(SolverError, match=r"the weights, up to 1e\+06, have too many digits"):
        solve(EventProgram(instance, "weighted-latency"))


def test_an_impossible_deadline_is_found_before_solving():
    with pytest.raises(ModelError, match="check its deadline"):
        EventProgram(Instance([1], [5], memory=9, deadlines=[3]))
