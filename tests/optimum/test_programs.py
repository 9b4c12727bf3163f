"""Programs that start well: within a schedule, or from what policies do; none ends unanswered."""

import dataclasses

import numpy as np
import pytest
from brute_force import held_by_running, schedules
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from literal import usage_at
from strategies import instances

import optsched
from optsched import HindsightProgram, Instance, Schedule, SolveParams, Workers, bound, run, solve
from optsched._internal import arrays
from optsched.errors import ModelError, PolicyError, SolverError
from optsched.models import (
    BalanceProgram,
    BalanceState,
    BatchSelection,
    EventProgram,
    LatencyRelaxation,
    Running,
)
from optsched.models.hindsight import SCHEDULE_OBJECTIVES
from optsched.optimum.plan import first_of


@given(instances(max_requests=4, max_memory=8, max_arrival=3, max_output=3), st.booleans())
@examples(60)
def test_within_a_run_the_optimum_is_that_of_all_schedules_of_its_steps(instance, aggregate):
    served = run(instance, "fcfs")
    program = HindsightProgram(instance, aggregate=aggregate).within(served)
    assert (program.horizon, program.start) == (served.makespan, served.schedule)
    best = min(sum(starts) for starts in schedules(instance, program.horizon)) + int(
        (instance.outputs - instance.arrivals).sum()
    )
    for method in ("auto", "cp-sat"):
        found = solve(program, method=method)
        assert found.objective == best <= served.total_latency
        within = "" if program.horizon_is_safe else f" within horizon {program.horizon}"
        assert found.status == f"optimal{within}"


def test_within_keeps_what_the_program_asks_and_refuses_what_is_not_its_schedule():
    instance = Instance([2, 2], [2, 2], memory=5)
    schedule = run(instance, "area").schedule
    program = HindsightProgram(instance, objective="makespan", aggregate=False).within(schedule)
    assert (program.objective, program.aggregate) == ("makespan", False)
    assert solve(program).answer.makespan == schedule.makespan == program.horizon
    with pytest.raises(ModelError, match="the schedule is 'area', but must be a Schedule, or what"):
        program.within("area")
    other = run(instance.replace(memory=6), "area")
    with pytest.raises(ModelError, match="make the program of its instance and workers"):
        program.within(other)
    assert HindsightProgram(other.instance).within(other).start == other.schedule
    joint = solve(instance, workers=2)
    placed = HindsightProgram(instance, workers=2).within(joint)
    assert solve(placed).objective == joint.objective
    guessed = run(instance, "a-min", intervals="common:1,2")
    assert solve(HindsightProgram(instance).within(guessed)).objective <= guessed.total_latency
    with pytest.raises(PolicyError, match="has no schedule of start steps"):
        HindsightProgram(instance).within(run(instance, "area", clock="unit"))
    full = Schedule(instance, [0, 0])
    with pytest.raises(SolverError, match=r"the start is infeasible: memory\[1\] is 6, but"):
        solve(HindsightProgram(instance).within(full))


@st.composite
def worlds(draw):
    """Draw a program of any world: running requests, deadlines, prices, or several workers."""
    instance = draw(instances(max_requests=4, max_memory=9, max_arrival=3, max_output=3))
    now = draw(st.integers(0, 2))
    ends = np.maximum(instance.arrivals, now) + instance.outputs
    slack = draw(st.lists(st.integers(0, 6), min_size=len(ends), max_size=len(ends)))
    instance = instance.replace(deadlines=draw(st.sampled_from([None, ends + slack])))
    world = {
        "now": now,
        "objective": draw(
            st.sampled_from(SCHEDULE_OBJECTIVES[: 3 + (instance.deadlines is not None)])
        ),
        "horizon": draw(st.sampled_from([None, int(ends.max()) + 3])),
    }
    if world["objective"] != "late-requests" and draw(st.booleans()):
        world |= {"lateness": draw(st.sampled_from(["per-step", "per-request"])), "penalty": 2.0}
    if draw(st.booleans()):
        world["memory_prices"] = draw(st.lists(st.sampled_from([0.0, 0.5]), max_size=6))
    if draw(st.booleans()):
        world["workers"] = Workers([instance.memory, instance.memory + 1])
    else:
        running = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=2))
        held = [held_by_running(step, running) for step in range(1, 5)]
        assume(max(held) <= instance.memory)
        world["running"] = Running([h for h, _ in running], [r for _, r in running])
    return HindsightProgram(instance, **world)


@pytest.mark.few
@given(worlds())
@examples(100)
def test_what_policies_do_is_feasible_in_every_world(program):
    model, found = program.to_linear(), first_of(program)
    if found is None:  # their schedules miss a deadline or the horizon
        soft = program.lateness != "forbidden" or program.objective == "late-requests"
        hard = program.instance.deadlines is not None and not soft
        assert hard or program.horizon < program._safe_horizon  # noqa: SLF001
        return
    assert model.violations(program.write_point(found)) == []
    cut = solve(program, time_limit=1e-3)
    assert cut.objective <= program.cost(found) + 1e-9
    assert model.violations(program.write_point(cut.answer)) == []
    # What is proven for a program that is too large: no schedule of its requests costs less.
    best = solve(program).require(optimal=True)
    if program.objective != "late-requests":
        proven = bound(program.instance, "auto", program.objective, workers=program.workers)
        assert proven.value <= best.objective + 1e-9
    events = EventProgram(
        program.instance.replace(deadlines=None),
        now=program.now,
        running=program.running,
        workers=program.workers,
    )
    assert events.violations(solve(events, time_limit=1e-3).answer) == []


def test_beside_running_requests_no_step_is_overfull():
    instance = Instance([3, 3, 1], [2, 3, 4], memory=9, arrivals=[0, 1, 5])
    running = Running(tokens=[4, 1], remaining=[2, 3])
    found = first_of(HindsightProgram(instance, now=2, running=running))
    assert (found.starts >= [2, 2, 5]).all()
    lengths = instance.prompts.tolist(), instance.outputs.tolist()
    for step in range(3, found.makespan + 1):
        held = usage_at(step, found.starts.tolist(), *lengths)
        assert held + held_by_running(step - 2, [(4, 2), (1, 3)]) <= 9


def test_a_program_too_large_for_memory_has_the_answer_of_a_policy_and_a_bound(monkeypatch):
    instance = Instance([3] * 40, [5] * 40, memory=20)
    program = HindsightProgram(instance)
    monkeypatch.setattr(arrays, "_SMALL", 0)
    monkeypatch.setattr(arrays, "available_memory", lambda: 10_000)
    found = solve(program)
    assert found.status == "too large to be solved exactly"
    assert "there is room for" in found.raw_status
    assert found.answer.check() == []
    assert found.bound <= found.objective == found.answer.total_latency
    assert not found.proven_optimal
    with pytest.raises(ModelError, match="there is room for"):
        solve(program, method="highs")


def test_the_start_is_the_callers_where_there_is_one(monkeypatch):
    instance = Instance([1, 1], [1, 1], memory=9)
    late = Schedule(instance, [3, 4])
    program = dataclasses.replace(HindsightProgram(instance, horizon=6), start=late)
    seen = []
    params = SolveParams(on_progress=lambda each: seen.append(each.objective))
    assert solve(program, params=params).objective == 2
    other = SolveParams(start=Schedule(instance, [9, 9]))
    with pytest.raises(ModelError, match="starts at step 9, but the program lets it start"):
        solve(program, params=other)
    for kind in (HindsightProgram, LatencyRelaxation):
        assert solve(kind(instance, horizon=6)).objective == 2


NOTHING = [
    HindsightProgram(Instance([1], [1], memory=2)),
    LatencyRelaxation(Instance([1], [1], memory=2)),
    BatchSelection([1], [1], memory=2, size=1),
    BalanceProgram(BalanceState([[0]], [1], [3])),
]


@pytest.mark.parametrize("program", NOTHING, ids=lambda each: type(each).__name__)
def test_reading_no_answer_says_so(program):
    for values, message in (
        (None, "no point to read, because no answer was found"),
        (
            optsched.Solution("infeasible", "HiGHS", 0.1),
            "no point to read, because no answer was found",
        ),
        ([], r"the point has shape \(0,\), but the program has"),
    ):
        with pytest.raises(ModelError, match=message):
            program.read(values)
