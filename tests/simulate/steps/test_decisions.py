"""A user's policy: equal to a literal simulator, kept within memory, knows nothing it may not."""

import gc

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from literal_attempts import decided_run
from strategies import instances
from tabled import tabled

from optsched import DecisionPolicy, Forecast, Instance, forecast, run
from optsched.errors import PolicyError


def fill(state):
    """Start by arrival those that find room at the next step."""
    taken = np.cumsum(state.forecast.prompts[state.waiting] + 1)
    return state.waiting[taken <= state.free]


FILL = DecisionPolicy("fill", "first come, first served, as long as there is room", fill)


@given(instances(max_requests=8, max_memory=30, max_arrival=30, max_output=12))
@examples(300)
def test_a_decision_policy_equals_the_literal_simulator(instance):
    def literal_fill(worker):
        room = worker.memory - worker.held_next()
        for i in sorted(worker.waiting):
            room -= worker.prompts[i] + 1
            if room >= 0:
                yield i

    execution = run(instance, FILL)
    literal = decided_run(instance, lambda worker: list(literal_fill(worker)))
    attempts = zip(execution.requests, execution.starts, execution.tokens, strict=True)
    assert sorted(attempts) == sorted(literal)
    assert execution.check() == []


@pytest.mark.slow
def test_whatever_is_chosen_the_memory_holds():
    rng = np.random.default_rng(9)
    everybody = DecisionPolicy("all", "", lambda state: state.waiting)
    for _ in range(200):
        outputs = rng.integers(1, 12, 15)
        instance = Instance(rng.integers(0, 20, 15), outputs, 31, np.sort(rng.integers(0, 40, 15)))
        execution = run(instance, everybody, intervals="common:1,20")
        assert execution.check() == []
        assert execution.schedule.check() == []


def test_shortest_first_by_decisions_is_mc_sf_where_one_runs_at_a_time():
    def shortest(state):
        order = np.argsort(state.forecast.lower[state.waiting], kind="stable")
        return [] if len(state.running) else state.waiting[order][:1]

    instance = Instance([5, 5, 5], [3, 1, 2], memory=8)
    policy = DecisionPolicy("shortest", "", shortest)
    assert (
        run(instance, policy).schedule.starts.tolist()
        == run(instance, "mc-sf").schedule.starts.tolist()
    )


@tabled()
def test_a_bad_choice_is_named(choice, message):
    instance = Instance([1] * 3, [3] * 3, 20, [0, 0, 5], labels=["first", "second", "late"])
    policy = DecisionPolicy("mine", "", lambda state: choice)
    with pytest.raises(PolicyError, match=f"policy 'mine' {message}"):
        run(instance, policy)


def test_starting_one_that_runs_or_is_complete_is_named():
    instance = Instance([1, 1], [3, 1], 20)
    again = DecisionPolicy("mine", "", lambda state: [0])
    with pytest.raises(PolicyError, match="starts request 0 at step 1, which already runs"):
        run(instance, again)
    twice = DecisionPolicy("mine", "", lambda state: [[1], [1]][state.clock])
    with pytest.raises(PolicyError, match="starts request 1 at step 1, which is complete"):
        run(instance, twice)


def test_a_policy_that_forgets_to_return_is_told_what():
    with pytest.raises(PolicyError, match="returns None, but must return a list of requests"):
        run(Instance([1], [1], 5), DecisionPolicy("mine", "", lambda state: None))


def test_a_policy_that_never_starts_anybody_is_given_up():
    execution = run(Instance([1], [1], 5), DecisionPolicy("lazy", "", lambda state: []))
    assert execution.stall.idle_steps == 10_000
    assert not execution.all_complete


def reachable(*roots):
    """Everything that can be reached from objects through references, but modules and types."""
    found, stack = {}, list(roots)
    while stack:
        thing = stack.pop()
        if id(thing) in found or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        found[id(thing)] = thing
        if isinstance(thing, dict) and "__builtins__" in thing:
            continue  # the globals of a function lead to all of Python
        stack.extend(gc.get_referents(thing))
        if isinstance(thing, np.ndarray) and thing.base is not None:
            stack.append(thing.base)
    return list(found.values())


def test_nothing_that_a_policy_sees_leads_to_the_true_outputs():
    """Attributes, containers, references of the garbage collector and bases of arrays."""
    outputs = np.array([17, 23, 5, 31, 11, 29])
    instance = Instance([4] * 6, outputs, 36, weights=[1, 2, 3, 4, 5, 6.0], labels="abcdef")
    seen = []

    def spy(state):
        for thing in reachable(state):
            assert not isinstance(thing, Instance)
            if isinstance(thing, np.ndarray):
                assert not thing.flags.writeable
                assert thing.base is None
                assert not np.array_equal(thing, outputs)
                for other in (instance.prompts, instance.outputs, instance.arrivals):
                    assert not np.shares_memory(thing, other)
            if isinstance(thing, list | tuple | dict | set):
                values = list(thing.values()) if isinstance(thing, dict) else list(thing)
                assert sorted(map(str, values)) != sorted(map(str, outputs.tolist()))
        # As long as nothing is complete, bounds are all there is.
        if len(state.waiting) + len(state.running) == 6:
            made = np.zeros(6, dtype=int)
            made[state.running] = state.tokens
            seen.append(state.clock)
            assert (state.lower <= np.maximum(made, state.clock + 1)).all()
        for name in ("outputs", "instance", "_instance", "__dict__"):
            assert not hasattr(state, name)
        with pytest.raises(ValueError, match="read-only"):
            state.lower[0] = 3
        return fill(state)

    run(instance, DecisionPolicy("spy", "", spy), intervals="common:1,50")
    assert len(seen) > 3
    known = forecast(instance, "common:1,50")
    for thing in reachable(known):
        assert not isinstance(thing, Instance)
        assert not (isinstance(thing, np.ndarray) and np.array_equal(thing, outputs))
    assert isinstance(known, Forecast)
    assert known.lower.base is None
