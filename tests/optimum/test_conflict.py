"""Conflicts against brute force: none of them can be spared, and what is called smallest is."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from brute_force import held_by_running
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from literal import usage_at
from strategies import instances

from optsched import Instance, Solution, explain_infeasibility, family
from optsched.errors import ModelError, SolverError
from optsched.models.program import Running, Stopped, Windows
from optsched.optimum import programs as conflicts
from optsched.optimum.programs import reduce


class Tight(NamedTuple):
    """An instance, a horizon, and the windows that both give."""

    instance: Instance
    horizon: int

    @property
    def earliest(self):
        return self.instance.arrivals

    @property
    def due(self):
        horizon = np.full(len(self.instance), self.horizon)
        due = self.instance.deadlines
        return horizon if due is None else np.minimum(due, horizon)

    @property
    def has_room(self):
        return (self.due - self.instance.outputs >= self.earliest).all()

    @property
    def ours(self):
        return Windows.beside(self.instance, self.horizon, 0)


def can_complete(windows, requests, steps=None):
    """Try all starts, with the memory limited at some steps or at all."""
    instance = windows.instance
    prompts = [int(instance.prompts[i]) for i in requests]
    outputs = [int(instance.outputs[i]) for i in requests]
    choices = [
        range(int(windows.earliest[i]), int(windows.due[i] - instance.outputs[i]) + 1)
        for i in requests
    ]
    if steps is None:
        steps = range(1, int(windows.due.max()) + 1)
    return any(
        all(usage_at(step, starts, prompts, outputs) <= instance.memory for step in steps)
        for starts in itertools.product(*choices)
    )


@st.composite
def tight(draw, max_requests=5):
    """Draw windows with little time to spare, so that about half of the instances conflict."""
    instance = draw(instances(max_requests, max_memory=12, max_arrival=3, max_output=4))
    count = len(instance)
    spare = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    deadlines = np.maximum(1, instance.arrivals + instance.outputs + spare)
    late = int((instance.arrivals + instance.outputs).max())
    return Tight(
        instance.replace(deadlines=draw(st.sampled_from([None, deadlines]))),
        late + draw(st.integers(-1, 3)) if late > 1 else late,
    )


@pytest.mark.few
@given(tight())
@examples(300)
def test_a_conflict_is_one_and_nothing_of_it_can_be_spared(windows):
    everyone = range(len(windows.instance))
    found = explain_infeasibility(windows.instance, windows.horizon)
    assert (found is None) == can_complete(windows, everyone)
    if found is None:
        return
    steps = [step for part in found.steps for step in part]
    assert not can_complete(windows, found.indices, steps)
    for request in found.indices:
        assert can_complete(windows, [i for i in found.indices if i != request])
    for step in steps:
        assert can_complete(windows, found.indices, [s for s in steps if s != step])
    assert found.irreducible
    assert found.tight
    assert found.smallest == (len(found.indices) <= 3)
    for size in range(1, len(found.indices) if found.smallest else 3):
        assert all(can_complete(windows, part) for part in itertools.combinations(everyone, size))


@given(tight())
@examples(200)
def test_pairs_that_clash_are_found_by_arithmetic(windows):
    assume(windows.has_room)
    pairs = itertools.combinations(range(len(windows.instance)), 2)
    clashing = [list(pair) for pair in pairs if not can_complete(windows, pair)]
    assert windows.ours.clashing_pair() == (clashing[0] if clashing else None)


@given(tight())
@examples(200)
def test_requests_that_overload_a_span_conflict(windows):
    assume(windows.has_room)
    overload = windows.ours.overload(np.arange(len(windows.instance)))
    if overload is not None:
        assert not can_complete(windows, overload)
        begin, end = windows.earliest[overload].min(), windows.due[overload].max()
        held = windows.instance.areas[overload].sum()
        assert held > windows.instance.memory * (end - begin)


@given(
    groups=st.lists(st.sets(st.integers(0, 8), min_size=1), min_size=1, max_size=4),
    cannot_tell=st.sets(st.integers(0, 8), max_size=2),
)
@examples(200)
def test_the_filter_on_any_family_of_conflicts(groups, cannot_tell):
    def feasible(members):
        return not any(group <= set(members) for group in groups)

    left, known = reduce(range(9), feasible)
    assert known
    assert not feasible(left)
    assert all(feasible([other for other in left if other != member]) for member in left)

    def unsure(members):
        return None if len(members) == 8 and not cannot_tell <= set(members) else feasible(members)

    left, known = reduce(range(9), unsure)
    assert not feasible(left)
    if known:
        assert all(feasible([other for other in left if other != member]) for member in left)


NAMES = {"labels": ["ann", "bob", "cyd"], "memory": 9}


@pytest.mark.parametrize(
    ("instance", "horizon", "sentence"),
    [
        (
            Instance([1, 1, 1], [1, 5, 1], arrivals=[0, 3, 3], deadlines=[9, 6, 9], **NAMES),
            None,
            "request bob cannot complete in time: it arrives at step 3 and makes 5 tokens, so it "
            "completes at step 8 at the earliest, but its deadline is step 6",
        ),
        (
            Instance([1, 1, 1], [1, 5, 1], arrivals=[0, 3, 3], **NAMES),
            7,
            "request bob cannot complete in time: it arrives at step 3 and makes 5 tokens, so it "
            "completes at step 8 at the earliest, but the horizon is step 7",
        ),
        (
            Instance([4, 1, 4], [2, 1, 2], deadlines=[3, 9, 3], **NAMES),
            None,
            "requests ann and cyd cannot both complete in time: whatever their starts, they hold "
            "more than the memory of 9 tokens at step 2; no smaller set of requests conflicts",
        ),
        (
            Instance([4, 4, 4], [1, 1, 1], **NAMES),
            1,
            "requests ann and bob cannot both complete in time: they hold 10 token-steps, all of "
            "them within step 1, where the memory of 9 tokens offers 9; no smaller set of "
            "requests conflicts",
        ),
        (
            Instance([2] * 4, [1] * 4, memory=9),
            1,
            "requests 0, 1, 2 and 3 cannot all complete in time: they hold 12 token-steps, all of "
            "them within step 1, where the memory of 9 tokens offers 9; without any one of them "
            "the others can",
        ),
    ],
)
def test_it_speaks_in_the_user_s_words(instance, horizon, sentence):
    assert str(explain_infeasibility(instance, horizon)) == sentence


def test_without_deadlines_and_horizon_nothing_conflicts():
    assert explain_infeasibility(Instance([1, 1], [2, 2], memory=3)) is None


def test_a_large_overload_is_told_at_once_and_called_what_it_is():
    instance = family("chat-and-summaries", n=2000, seed=1)
    found = explain_infeasibility(instance, horizon=15_000, time_limit=1)
    assert found.proof == "memory-time"
    assert not found.irreducible
    assert not found.smallest
    assert "more cannot all complete in time: they hold" in str(found)
    assert "a part of them may conflict already" in str(found)
    assert explain_infeasibility(instance, horizon=30_000, time_limit=1) is None


def test_what_cannot_be_decided_is_said():
    instance = family("uniform", n=150, seed=0)
    horizon = int(instance.areas.sum() / instance.memory) + 25
    with pytest.raises(SolverError, match=r"whether all requests can .* not decided after"):
        explain_infeasibility(instance, horizon, time_limit=0.1)


def test_ctrl_c_ends_the_search_with_what_is_known(monkeypatch):
    instance = Instance([3, 3, 3, 9], [3, 3, 3, 1], memory=12)
    interrupted = Solution(Stopped.INTERRUPTED, "solver", 0.1)
    monkeypatch.setattr(conflicts, "solve_events", lambda *_, **__: interrupted)
    with pytest.raises(SolverError, match="is not decided"):
        explain_infeasibility(instance, horizon=5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"horizon": 0}, ModelError, "horizon is 0, but must be a whole number of at least 1"),
        ({"horizon": 2.5}, ModelError, "horizon is 2.5, but must be a whole number of at least 1"),
        ({"time_limit": 0}, SolverError, "time_limit is 0, but must be a positive number"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(arguments, error, message):
    with pytest.raises(error, match=message):
        explain_infeasibility(Instance([1], [1], memory=2), **arguments)


def can_complete_beside(windows, requests, running, now, beside, steps=None):
    """Try all starts of some requests beside some of those that run."""
    instance = windows.instance
    part = [(int(instance.prompts[i]), int(instance.outputs[i])) for i in requests]
    choices = [
        range(max(now, int(windows.earliest[i])), int(windows.due[i] - instance.outputs[i]) + 1)
        for i in requests
    ]
    held = [pair for at, pair in enumerate(running) if at in beside]
    if steps is None:
        steps = range(now + 1, int(windows.due.max()) + 1)
    return any(
        all(
            usage_at(step, starts, [s for s, _ in part], [o for _, o in part])
            + held_by_running(step - now, held)
            <= instance.memory
            for step in steps
        )
        for starts in itertools.product(*choices)
    )


@given(
    tight(max_requests=4),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=3),
)
@examples(200)
def test_requests_that_run_already_are_named_where_they_are_needed(windows, now, running):
    instance, everyone = windows.instance, range(len(windows.instance))
    arguments = {
        "horizon": windows.horizon,
        "now": now,
        "running": Running([h for h, _ in running], [r for _, r in running]),
    }
    alone = [held_by_running(step, running) for step in range(1, 5)]
    if max(alone) > instance.memory:
        with pytest.raises(ModelError, match="the running requests alone hold"):
            explain_infeasibility(instance, **arguments)
        return

    def feasible(requests, beside, steps=None):
        return can_complete_beside(windows, requests, running, now, beside, steps)

    found = explain_infeasibility(instance, **arguments)
    assert (found is None) == feasible(everyone, range(len(running)))
    if found is None:
        return
    assert found.requests == tuple(instance.label(i) for i in found.indices)
    steps = [step for part in found.steps for step in part]
    assert not feasible(found.indices, found.running, steps)
    members = [(True, i) for i in found.indices] + [(False, i) for i in found.running]
    everything = [(True, i) for i in everyone] + [(False, i) for i in range(len(running))]
    assert found.irreducible
    assert found.smallest == (len(members) <= 3)
    for member in members:
        rest = [other for other in members if other != member]
        assert feasible([i for new, i in rest if new], [i for new, i in rest if not new])
    for size in range(1, len(members) if found.smallest else 3):
        for part in itertools.combinations(everything, size):
            chosen = [i for new, i in part if new]
            assert feasible(chosen, [i for new, i in part if not new])
    for step in steps:
        assert feasible(found.indices, found.running, [s for s in steps if s != step])
    assert ("beside running request" in str(found)) == bool(found.running)


def test_running_requests_are_never_late_themselves():
    """One goes on after the horizon, and after all deadlines."""
    instance = Instance([2], [2], 9, arrivals=[1], labels=["a"])
    running = Running([1], [7])
    assert explain_infeasibility(instance, horizon=5, now=2, running=running) is None
    found = explain_infeasibility(instance, horizon=5, now=4, running=running)
    assert str(found) == (
        "request a cannot complete in time: it cannot start before step 4 and makes 2 tokens, so "
        "it completes at step 6 at the earliest, but the horizon is step 5"
    )
    due = instance.replace(memory=10, deadlines=[9], prompts=[6])
    found = explain_infeasibility(due, now=3, running=running)
    assert (found.indices, found.running, found.proof) == ((0,), (0,), "pair")
    assert str(found) == (
        "request a cannot complete in time beside running request 0: whatever its start, they hold "
        "more than the memory of 10 tokens at one of the steps 5..6, 8; no smaller set of "
        "requests conflicts"
    )


def test_now_is_a_step():
    with pytest.raises(ModelError, match="now is -1, but must be a whole number of at least 0"):
        explain_infeasibility(Instance([1], [1], memory=2), horizon=3, now=-1)
