"""Workers and schedules of several: which input is refused, and what `check` finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import Instance, Schedule, Workers
from optsched.errors import InstanceError, ScheduleError
from optsched.problem.workers import as_workers
from tests.strategies import instances


@st.composite
def placed(draw):
    """Draw workers of unequal memory, and starts and placements that may be infeasible."""
    instance = draw(instances())
    largest = int(instance.peaks.max())
    more = st.lists(st.integers(1, 2 * largest), max_size=2)
    memories = draw(st.permutations([largest + draw(st.integers(0, 4)), *draw(more)]))
    count = len(instance)
    starts = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    places = st.integers(0, len(memories) - 1)
    placement = draw(st.lists(places, min_size=count, max_size=count))
    return Schedule(instance, starts, workers=memories, placement=placement)


def overfull_by_steps(joint):
    """Return the worker and step of every step at which more is held than fits."""
    found = set()
    for worker, memory in enumerate(joint.workers.memories):
        for step in range(1, joint.makespan + 1):
            held = 0
            for request in range(len(joint.starts)):
                start, output = joint.starts[request], joint.instance.outputs[request]
                if joint.placement[request] == worker and start < step <= start + output:
                    held += joint.instance.prompts[request] + step - start
            if held > memory:
                found.add((worker, step))
    return found


@given(placed())
def test_check_finds_every_overfull_step_and_early_start(joint):
    found = joint.check()
    full = set()
    for reason in found:
        if reason.kind == "memory":
            worker = int(joint.placement[reason.request])
            assert reason.limit == joint.workers.memories[worker]
            assert str(reason).startswith(f"worker {worker}, ") == (len(joint.workers) > 1)
            full |= {(worker, step) for step in range(reason.step, reason.last_step + 1)}
    assert full == overfull_by_steps(joint)
    early = {reason.request for reason in found if reason.kind == "arrival"}
    assert early == set(np.flatnonzero(joint.starts < joint.instance.arrivals).tolist())


@given(placed())
def test_a_schedule_of_several_workers_is_the_schedules_of_its_workers(joint):
    if joint.check():
        return
    assert not joint.pooled().check()
    busy = [worker for worker in range(len(joint.workers)) if len(joint.requests_on(worker))]
    own = [joint.on(worker) for worker in busy]
    assert not any(schedule.check() for schedule in own)
    assert sum(schedule.total_latency for schedule in own) == joint.total_latency
    assert max(schedule.makespan for schedule in own) == joint.makespan
    assert [schedule.instance.memory for schedule in own] == [
        joint.workers.memories[worker] for worker in busy
    ]


@given(placed())
def test_a_schedule_of_several_workers_survives_json(joint):
    assert Schedule.from_json(joint.to_json(), joint.instance) == joint


def test_eligibility_is_kept_and_checked():
    instance = Instance([1, 1], [2, 2], memory=9)
    workers = Workers([9, 9], eligible=[[True, False], [True, True]])
    joint = Schedule(instance, [0, 0], workers=workers, placement=[1, 1])
    (reason,) = joint.check()
    assert reason.kind == "placement"
    assert str(reason) == "request 0 runs on worker 1, where it is not eligible"
    assert Schedule.from_json(joint.to_json(), instance) == joint
    assert workers.classes.tolist() == [0, 1]
    assert not workers.equal
    assert workers != Workers([9, 9])


def test_workers_are_written_as_they_are_parsed():
    for text in ("16492x2,4096x8", "3", "5,3,5x2"):
        memory = 7 if text == "3" else None
        workers = Workers.parse(text, memory)
        again = Workers.parse(f"{workers},1")
        assert again.memories == (*workers.memories, 1)
    assert str(Workers([7, 7, 7])) == "7x3"


def test_workers_are_a_number_or_memories_or_workers():
    instance = Instance([1], [2], memory=9)
    same = [3, "9x3", [9, 9, 9], np.array([9, 9, 9]), Workers([9] * 3)]
    assert len({as_workers(workers, instance) for workers in same}) == 1
    assert as_workers("2", instance).memories == (9, 9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workers([]), "there are no workers"),
        (lambda: Workers.parse("0", 9), "workers is 0"),
        (lambda: Workers.parse("4"), "have no memory"),
        (lambda: Workers.parse("9x2", 9), "have memories already"),
        (lambda: Workers.parse("many", 9), "workers are 'many'"),
        (lambda: Workers.parse("9x99999999"), "at most 4,096"),
        (lambda: Workers([0]), "memory is 0"),
        (lambda: Workers([1, 2], [[True]]), "a column for each of the 2 workers"),
        (lambda: as_workers(0, Instance([1], [2], memory=9)), "workers is 0"),
        (lambda: as_workers([5, 8], Instance([6, 1], [3, 1], memory=9)), "more than fit on any"),
        (lambda: as_workers(Workers([9], [[True]] * 2), Instance([1], [1], 9)), "eligible has 2"),
        (
            lambda: as_workers(Workers([9, 2], [[False, True]]), Instance([3], [1], 9)),
            "any worker where it may run",
        ),
    ],
)
def test_bad_workers_are_refused_in_one_sentence(make, message):
    with pytest.raises(InstanceError, match=message):
        make()


def test_bad_placements_are_refused():
    instance = Instance([1, 1], [2, 2], memory=9)
    for starts, placement, message in (
        ([0], [0, 0], "1 starts for 2 requests"),
        ([0, 0], [0], "1 placements for 2 requests"),
        ([0, 0], [0, 2], "request 1 is placed on worker 2, but workers are numbered from 0 to 1"),
        ([0, 0], [0, 0.5], "placement is 0.5"),
    ):
        with pytest.raises(ScheduleError, match=message):
            Schedule(instance, starts, workers=2, placement=placement)
    for text, workers, message in (
        ('{"starts": [0, 0]}', 2, "the key 'placement'"),
        ('{"starts": [0, 0], "placement": [0, 0]}', None, "says nothing of workers"),
        ('{"starts": [0, 0], "placement": [0, 0], "workers": [9, 9]}', 3, "has 2 workers"),
    ):
        with pytest.raises(ScheduleError, match=message):
            Schedule.from_json(text, instance, workers)
    with pytest.raises(ScheduleError, match="pass the worker of each request, from 0 to 1"):
        Schedule(instance, [0, 0], workers=2)
    with pytest.raises(ScheduleError, match="worker 1 of 2 serves no request"):
        Schedule(instance, [0, 0], workers=2, placement=[0, 0]).on(1)


def test_plots_have_a_band_for_each_worker():
    instance = Instance([4] * 6, [3] * 6, memory=9)
    joint = Schedule(
        instance, [0, 3, 6, 0, 3, 6], "by hand", workers=[9, 7], placement=[0, 0, 0, 1, 1, 1]
    )
    ax = joint.plot()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0: 9", "1: 7"]
    tops = [path.get_extents().ymax for area in ax.collections[:2] for path in area.get_paths()]
    assert tops == pytest.approx([0.9 * 7 / 9, 1.9])
    drawn = joint.plot_placement().collections
    assert sum(len(lines.get_segments()) for lines in drawn) == 6
    assert "by hand: 6 requests on 2 workers, feasible" in joint._repr_html_()
