"""Off-Couple and Lemma 5.4 of Jaillet et al., beside brute force and literal usage of memory."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from brute_force import cost, schedules
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import usage_at
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick

from optsched import Instance, run
from optsched_papers.jaillet.coupling import _MORE, _OVER, _TWO, _figure_state, _least
from optsched_papers.jaillet.off_couple import NEVER, State, off_couple, optimal_schedules

mpl.use("Agg")


def instance_of(state):
    return Instance(
        [state.prompt] * len(state.outputs), state.outputs, state.memory, arrivals=state.arrivals
    )


@st.composite
def states(draw, most=4):
    """Return the states of Algorithm 2's run on a tiny instance, at any step."""
    count, prompt = draw(st.integers(1, most)), draw(st.integers(0, 3))
    outputs = tuple(draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)))
    gaps = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arrivals = tuple((np.cumsum(gaps) - gaps[0]).tolist())
    memory = prompt + max(outputs) + draw(st.integers(0, 6))
    begin = State(prompt, outputs, arrivals, memory, 0, (NEVER,) * count)
    now = draw(st.integers(0, max(begin.online)))
    starts = tuple(start if start < now else NEVER for start in begin.online)
    return State(prompt, outputs, arrivals, memory, now, starts)


@given(states())
@examples(60)
def test_algorithm_2_is_mc_sf(state):
    assert list(state.online) == run(instance_of(state), "mc-sf").schedule.starts.tolist()


@given(states(most=3))
@examples(40)
def test_optimal_schedules_are_all_of_brute_force(state):
    waiting = [i for i, start in enumerate(state.starts) if start == NEVER]
    if not waiting:
        return
    rest = instance_of(state).take(waiting)
    running = [
        (state.prompt + state.now - start, start + state.outputs[i] - state.now)
        for i, start in state.running(state.starts, state.now).items()
    ]
    horizon = max(state.online) + max(state.outputs)
    known = {}
    for starts in schedules(rest, horizon, now=state.now, running=running):
        known.setdefault(cost(starts, rest), set()).add(starts)
    found = {tuple(each[i] for i in waiting) for each in optimal_schedules(state)}
    assert found == known[min(known)]


def literal_couple(state, offline):
    """Algorithm 3 step by step; Off-Couple repeats the offline decisions once all have ended."""
    starts = [start if start < NEVER else None for start in state.starts]
    step, watched = state.now, None
    while step <= max(offline) + max(state.outputs):
        if watched is not None and all(offline[i] + state.outputs[i] <= step for i in watched):
            for i, start in enumerate(offline):
                if start == step and starts[i] is None:
                    starts[i] = step
        else:
            may = state.arrivals if watched is None else offline
            ready = [i for i, begin in enumerate(may) if begin <= step and starts[i] is None]
            for i in sorted(ready, key=lambda i: (state.outputs[i], i)):
                starts[i] = step
                if highest(state, starts) > state.memory:
                    starts[i] = None
                    break
            if watched is None:
                watched = [i for i, start in enumerate(starts) if start is not None]
        step += 1
    return starts


def highest(state, starts):
    last = max(start for start in starts if start is not None) + max(state.outputs)
    prompts = [state.prompt] * len(starts)
    return max(usage_at(step, starts, prompts, state.outputs) for step in range(last + 1))


@given(states(most=5))
@examples(60)
def test_off_couple_is_algorithm_3_step_by_step(state):
    for offline in optimal_schedules(state)[:5]:
        found, literal = off_couple(state, offline), literal_couple(state, offline)
        assert literal == [start if start < NEVER else None for start in found.starts]
        assert found.state.excess(found.starts) == highest(state, literal) - state.memory
        assert not found.missing or not found.same


def test_two_requests_refute_lemma_5_4():
    """P1 starts at once and P2, which comes a step later, does not fit beside it any more."""
    offline = optimal_schedules(_TWO)
    assert offline == [(1, 1)]
    assert min(cost(starts, instance_of(_TWO)) for starts in [(0, 4), (0, 5), (1, 1)]) == 7
    found = off_couple(_TWO, offline[0])
    assert (found.starts, found.until) == ((0, 4), 5)
    assert found.missing == {1}  # completed at 3, and at 6
    assert not found.same


def test_off_couple_exceeds_the_memory_once_it_repeats_the_optimum():
    for offline in optimal_schedules(_OVER):
        found = off_couple(_OVER, offline)
        assert highest(_OVER, found.starts) == 9 > _OVER.memory == 8


def test_off_couple_may_hold_more_than_the_optimum():
    """Algorithm 2 comes to this state by itself, and its optimum is the only one."""
    begin = State(_MORE.prompt, _MORE.outputs, _MORE.arrivals, _MORE.memory, 0, (NEVER,) * 6)
    assert [start if start < 3 else NEVER for start in begin.online] == list(_MORE.starts)
    (offline,) = optimal_schedules(_MORE)
    found = off_couple(_MORE, offline)
    prompts = [_MORE.prompt] * 6
    ours, theirs = (
        usage_at(found.until, starts, prompts, _MORE.outputs) for starts in (found.starts, offline)
    )
    assert ours - theirs >= found.more_held > 0


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("third", range(3, 12))
def test_when_it_is_best_to_wait_for_p4(own, third):
    """It costs a step for P1, P2 and P5 and the work of P4 for P3, and saves most of P3 for P4."""
    state = _figure_state(third + 1, third + 1, third, third + 1, bool(own), 1)
    extra = _least(state, 1)[0] - _least(state)[0]
    change = 3 + (1 + 1 + own) - (third + own - 1)
    assert extra == max(change, 0)


@pytest.mark.slow
def test_figure_4_waits_without_a_gain():
    found = quick("jaillet-fig-4")
    pyplot.close(drawn(found))
    assert found.verdict.label == "in shape"
    assert [claim.holds for claim in found.claims] == [True] * 4 + [False, True]
    assert found.claims[4].ours == 0


@pytest.mark.slow
def test_lemma_5_4_is_refuted_condition_by_condition():
    found = quick("jaillet-lemma-5-4")
    pyplot.close(drawn(found))
    assert found.verdict.label == "false as stated"
    labels = [claim.label for claim in found.claims]
    assert len(set(labels)) == len(labels)
    assert [claim.holds for claim in found.claims] == [False] * 7 + [True]
