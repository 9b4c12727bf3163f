"""Schedule: metrics and the checker against step-by-step definitions."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal import usage_at
from strategies import instances

from optsched import Instance, Schedule, compare
from optsched.errors import OptschedError, ScheduleError


@st.composite
def schedules(draw):
    """Draw any schedule, mostly infeasible ones."""
    instance = draw(instances())
    starts = draw(st.lists(st.integers(0, 15), min_size=len(instance), max_size=len(instance)))
    if draw(st.booleans()):
        due = [draw(st.integers(1, 20)) for _ in starts]
        instance = instance.replace(deadlines=due)
    return Schedule(instance, starts)


def usage(schedule):
    """Tokens held at each step from 0 to the makespan, by definition."""
    lists = (
        schedule.starts.tolist(),
        schedule.instance.prompts.tolist(),
        schedule.instance.outputs.tolist(),
    )
    return [usage_at(step, *lists) for step in range(schedule.makespan + 1)]


@given(schedules())
def test_profile_and_metrics_follow_the_definitions(schedule):
    instance, profile = schedule.instance, usage(schedule)
    assert schedule.memory_profile().tolist() == profile
    assert schedule.peak_memory == max(profile)
    assert schedule.utilisation == pytest.approx(
        sum(profile) / (instance.memory * schedule.makespan)
    )
    completions = [s + o for s, o in zip(schedule.starts, instance.outputs, strict=True)]
    assert schedule.makespan == max(completions)
    assert schedule.total_latency == sum(completions) - sum(instance.arrivals)
    assert schedule.mean_latency * len(instance) == pytest.approx(schedule.total_latency)
    assert schedule.weighted_latency == schedule.total_latency
    metrics = schedule.metrics()
    assert metrics["total_latency"] == schedule.total_latency
    assert metrics["p50_latency"] == np.median(schedule.latencies)
    assert metrics["mean_ttft"] == pytest.approx(
        schedule.mean_latency - instance.outputs.mean() + 1
    )


@given(schedules())
def test_check_lists_exactly_what_is_wrong(schedule):
    instance, found = schedule.instance, schedule.check()
    starts = schedule.starts.tolist()
    early = [i for i, start in enumerate(starts) if start < instance.arrivals[i]]
    assert [v.request for v in found if v.kind == "arrival"] == early
    late = []
    if instance.deadlines is not None:
        late = np.flatnonzero(schedule.completions > instance.deadlines).tolist()
    assert [v.request for v in found if v.kind == "deadline"] == late
    profile = usage(schedule)
    overfull = [step for step, tokens in enumerate(profile) if tokens > instance.memory]
    memory = [v for v in found if v.kind == "memory"]
    listed = [step for v in memory for step in range(v.step, v.last_step + 1)]
    assert listed == overfull
    for violation in memory:
        assert violation.usage == profile[violation.step]
        assert violation.limit == instance.memory
        assert violation.step == 0 or profile[violation.step - 1] <= instance.memory
        active = [
            i
            for i, start in enumerate(starts)
            if start < violation.step <= start + instance.outputs[i]
        ]
        assert violation.request in active
        assert starts[violation.request] == max(starts[i] for i in active)


@given(schedules())
def test_round_trip(schedule):
    assert Schedule.from_json(schedule.to_json(), schedule.instance) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_weights_count_in_weighted_latency():
    instance = Instance([1, 1], [1, 2], 9, weights=[2, 0.5])
    assert Schedule(instance, [0, 3]).weighted_latency == 2 * 1 + 0.5 * 5


def test_missed_deadlines_are_counted_and_do_not_stop_a_comparison():
    instance = Instance([4, 4], [2, 2], 9, deadlines=[2, 3], weights=[1, 2])
    comparison = compare(instance, ["fcfs"])
    metrics = comparison.best.metrics()
    assert (metrics["missed_deadlines"], metrics["weighted_latency"]) == (1, 2 + 2 * 4)


def test_print_says_whether_it_is_feasible():
    instance = Instance([1, 1], [2, 2], memory=3)
    assert "feasible" in str(Schedule(instance, [0, 2], policy="by hand")).splitlines()[0]
    assert "infeasible, 1 violations" in str(Schedule(instance, [0, 0]))


def test_far_apart_starts_need_no_dense_array():
    schedule = Schedule(Instance([1, 1], [2, 2], memory=5), [0, 10**11])
    assert (schedule.check(), schedule.peak_memory) == ([], 3)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0], "the schedule has 1 starts for 2 requests"),
        ([0, 0.5], "request 1: starts is 0.5, but must be a whole number"),
        ([0, None], "starts"),
        ([0, 2**63 - 1], "request 1 starts at step 9223372036854775807, but with 2 requests"),
        ([-(2**63), 0], "request 0 starts at step -9223372036854775808, but with 2 requests"),
        ([2**62, 2**62], "request 0 starts at step"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), r"request 1: starts is 1\.84467e\+19"),
    ],
    ids=range(7),
)
def test_bad_starts_are_refused(starts, message):
    """A start at 2**63 - 1 gave a feasible schedule whose total latency was below the optimum."""
    with pytest.raises(ScheduleError, match=message):
        Schedule(Instance([1, 1], [1, 1], 4), starts)


def test_negative_start_is_a_violation_but_has_no_profile():
    schedule = Schedule(Instance([1], [2], memory=5), [-1])
    assert schedule.check()[0].kind == "arrival"
    with pytest.raises(ScheduleError, match="starts at step -1, before time zero"):
        schedule.memory_profile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{]", "not valid JSON"),
        ("{}", "holds no JSON object with the key 'starts'"),
        ('{"starts": [0, []]}', "starts must be a list of numbers"),
    ],
)
def test_bad_json_is_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule.from_json(text, Instance([1], [1], 4))


def test_a_binary_file_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ScheduleError, match=r"binary\.json is not valid JSON"):
        Schedule.from_json(path, Instance([1], [1], 4))


@pytest.mark.parametrize(
    "content",
    [
        {"starts": [0, "x"]},
        {"starts": [0]},
        {"starts": None},
        {"starts": [0, 0], "placement": [0, 7], "workers": [9, 9]},
        {"starts": [0, 0], "placement": "x", "workers": 5},
        {"starts": [0, 0], "placement": [0, 0], "workers": ["a"]},
        {"starts": [0, 0], "placement": [0, 0], "workers": [9], "eligible": [1]},
        {"x": 1},
    ],
)
def test_what_is_wrong_in_a_file_names_the_file(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(OptschedError, match=rf"^{path}") as caught:
        Schedule.from_json(path, Instance([1, 1], [1, 1], 9))
    assert str(caught.value).count(str(path)) == 1
    with pytest.raises(ScheduleError, match=r"there is no .*nosuch\.json; check its name"):
        Schedule.from_json(tmp_path / "nosuch.json", Instance([1], [1], 9))
