"""The event form: its conditions hold for a schedule exactly if the schedule is feasible."""

import numpy as np
import pytest
from brute_force import cost, held_by_running, schedules
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from literal import usage_at
from strategies import instances

from optsched import Instance, Schedule
from optsched.errors import ModelError
from optsched.models import EventProgram, Running
from optsched.models.hindsight import SCHEDULE_OBJECTIVES


@st.composite
def tiny(draw):
    instance = draw(instances(max_requests=4, max_memory=8, max_arrival=3, max_output=3))
    if draw(st.booleans()):
        instance = instance.take(np.sort(np.arange(len(instance)) % 2))
    count = len(instance)
    weights = draw(st.lists(st.sampled_from([1.0, 3.0]), min_size=count, max_size=count))
    return instance.replace(weights=draw(st.sampled_from([None, weights])))


def any_starts(instance):
    return st.tuples(*(st.integers(arrival, arrival + 8) for arrival in instance.arrivals.tolist()))


def in_order(starts, program):
    return all((np.diff(np.asarray(starts)[group]) >= 0).all() for group in program.equals)


def held_at_completions(instance, starts):
    """Left-hand sides of (2), by two loops."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    ends = [start + output for start, output in zip(starts, outputs, strict=True)]
    return [
        sum(prompts[j] + end - starts[j] for j in range(len(starts)) if starts[j] < end <= ends[j])
        for end in ends
    ]


@given(tiny(), st.data())
@examples(200)
def test_memory_at_completions_decides_feasibility(instance, data):
    starts = data.draw(any_starts(instance))
    fits = max(held_at_completions(instance, starts)) <= instance.memory
    assert fits == (not Schedule(instance, starts).check())


@given(tiny(), st.sampled_from(SCHEDULE_OBJECTIVES[:3]))
@examples(100)
def test_an_optimal_schedule_is_within_the_bounds_and_in_order(instance, objective):
    program = EventProgram(instance, objective)
    horizon = int((program.latest + instance.outputs).max()) + (len(instance) < 4)
    best, kept = np.inf, np.inf
    for starts in schedules(instance, horizon):
        value = cost(starts, instance, objective)
        best = min(best, value)
        within = (np.array(starts) <= program.latest).all()
        if within and in_order(starts, program):
            kept = min(kept, value)
    assert kept == best


@pytest.mark.few
@given(
    tiny(),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=3),
    st.data(),
)
@examples(200)
def test_memory_at_completions_decides_beside_running_requests(instance, now, running, data):
    """Completions of the running requests count, too."""
    held, left = [h for h, _ in running], [r for _, r in running]
    assume(max(held_by_running(u, running) for u in range(1, 5)) <= instance.memory)
    program = EventProgram(instance, now=now, running=Running(held, left))
    starts = data.draw(any_starts(instance))
    later = np.maximum(starts, now)
    joined = program.running.join(instance, now)
    ends = held_at_completions(joined, [now] * len(running) + later.tolist())
    fits = max(ends) <= instance.memory
    assert fits == (not program.violations(Schedule(instance, later)))
    horizon = int((later + instance.outputs).max()) + 4
    literal = all(
        usage_at(step, later, instance.prompts, instance.outputs)
        + held_by_running(step - now, running)
        <= instance.memory
        for step in range(now + 1, horizon)
    )
    assert fits == literal
    assert (program.latest >= program.earliest).all()
    if (np.array(starts) < program.earliest).any():
        kinds = {violation.kind for violation in program.violations(Schedule(instance, starts))}
        assert "arrival" in kinds


@given(tiny(), st.sampled_from(SCHEDULE_OBJECTIVES[:3]), st.data())
def test_objective_is_weights_and_offset(instance, objective, data):
    program = EventProgram(instance, objective)
    starts = data.draw(any_starts(instance))
    schedule = program.read(starts)
    assert program.cost(schedule) == pytest.approx(cost(starts, instance, objective))
    if objective != "makespan":
        assert program.weights @ schedule.completions + program.offset == pytest.approx(
            program.cost(schedule)
        )
    point = program.write_point(schedule)
    assert program.cost(program.read(point)) == pytest.approx(program.cost(schedule))
    assert len(program.read(point).check()) == 0 or schedule.check()
    assert in_order(point, program)


def test_equals_agree_in_everything_that_counts():
    instance = Instance(
        [1] * 5, [2] * 5, memory=9, arrivals=[0, 0, 0, 0, 1], weights=[1, 1, 2, 1, 1]
    )
    assert [group.tolist() for group in EventProgram(instance).equals] == [[0, 1, 2, 3]]
    weighted = EventProgram(instance, "weighted-latency")
    assert [group.tolist() for group in weighted.equals] == [[0, 1, 3]]
    due = instance.replace(deadlines=[4, 4, 5, 5, 9])
    assert [group.tolist() for group in EventProgram(due).equals] == [[0, 1], [2, 3]]


def test_deadlines_cap_the_latest_start_and_other_bounds_may_be_given():
    instance = Instance([3, 3], [2, 2], memory=6, deadlines=[2, 9])
    assert EventProgram(instance).latest.tolist() == [0, 2]
    assert EventProgram(instance, latest=[5, 7]).latest.tolist() == [0, 7]
    assert repr(EventProgram(instance)) == "<EventProgram of 'instance': total-latency>"


TWO = Instance([1, 1], [2, 3], memory=9, labels=["a", "b"], arrivals=[0, 4])
REFUSED = [
    (lambda: EventProgram(TWO, "tardiness"), "unknown objective 'tardiness': known"),
    (lambda: EventProgram(TWO, now=-1), "now is -1, but must be a whole number of at least 0"),
    (
        lambda: EventProgram(TWO, now=2, running=Running([5, 3], [2, 1])),
        "the running requests alone hold 10 tokens at step 3, but the memory holds 9",
    ),
    (
        lambda: EventProgram(TWO.replace(deadlines=[4, 9]), now=3),
        "request a cannot start before step 3, but would have to start by step 2; check its dead",
    ),
    (lambda: EventProgram(TWO, latest=[3]), "latest has 1 entries for 2 requests"),
    (
        lambda: EventProgram(TWO.replace(deadlines=[9, 6])),
        "request b arrives at step 4, but would have to start by step 3; check its deadline",
    ),
    (
        lambda: EventProgram(TWO).write_point(Schedule(TWO.replace(memory=8), [0, 4])),
        "the schedule belongs to another instance",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(make, message):
    with pytest.raises(ModelError, match=message):
        make()
