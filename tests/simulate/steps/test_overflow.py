"""Overflow policies: equal to a literal simulator, and a loop is reported exactly where one is."""

from fractions import Fraction

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal_attempts import attempts_of, threshold_run
from strategies import drawn_instance, instances
from tabled import tabled

from optsched import Instance, run
from optsched.errors import PolicyError
from optsched.policies.robust import CLEARING, GREEDY
from optsched.simulate.seconds.serving import share_of


def protected(alpha, memory):
    return memory - -(-memory * round(alpha * 100) // 100)


@pytest.mark.few
@given(
    instance=instances(max_requests=8, max_memory=30, max_arrival=30, max_output=12),
    alpha=st.sampled_from([0.01, 0.07, 0.1, 0.29, 0.3, 0.5]),
)
@examples(600)
def test_greedy_equals_the_literal_simulator_and_loops_where_a_state_returns(instance, alpha):
    execution = run(instance, GREEDY.with_parameters(alpha))
    threshold = protected(alpha, instance.memory)
    assert threshold == share_of(1 - Fraction(str(alpha)), instance.memory)
    literal, loop = threshold_run(instance, threshold, until=600, beyond_loops=True)
    assert execution.check() == []
    if execution.loop is None:
        assert loop is None
        assert attempts_of(execution) == sorted(literal.attempts)
        return
    assert loop is not None
    # The literal run goes on long after the proof: none of the requests in the loop completes.
    done = {i for i, _, tokens in literal.attempts if tokens == instance.outputs[i]}
    assert not done & set(execution.loop.requests)
    known = set(attempts_of(execution))
    assert known <= set(literal.attempts)
    assert (execution.loop.period, list(execution.loop.requests)) == loop[1:]
    # That the head of the queue never fits is clear at once, whatever arrives meanwhile.
    blocked = instance.prompts[loop[2][0]] + 1 > threshold
    assert execution.loop.step <= loop[0] if blocked else execution.loop.step == loop[0]


@pytest.mark.few
@given(
    instance=instances(max_requests=8, max_memory=30, max_arrival=30, max_output=12),
    alpha=st.sampled_from([0.1, 0.3]),
    beta=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 2**40),
)
@examples(400)
def test_clearing_equals_the_literal_simulator(instance, alpha, beta, seed):
    threshold = protected(alpha, instance.memory)
    policy = CLEARING.with_parameters(alpha, beta)
    if (instance.prompts + 1 > threshold).any():
        assert run(instance, policy, seed=seed).loop is not None
        return
    execution = run(instance, policy, seed=seed, patience=150)
    end = 10**9 if execution.stall is None else execution.stall.step
    literal, _ = threshold_run(instance, threshold, beta, seed, until=end)
    mine, expected = (
        sorted(attempt for attempt in attempts if attempt[1] + attempt[2] < end)
        for attempts in (attempts_of(execution), literal.attempts)
    )
    assert mine == expected
    assert execution.check() == []


@pytest.mark.few
@pytest.mark.no_cover  # the tests above reach every line that runs here
def test_every_overflow_policy_is_feasible_on_random_instances():
    rng = np.random.default_rng(6)
    loops = 0
    for _ in range(share(1000)):
        instance = drawn_instance(rng)
        for name in ("alpha-greedy", "alpha-greedy:0.05", "alpha-beta-clearing"):
            execution = run(instance, name, seed=3)
            assert execution.check() == [], instance.to_json()
            assert execution.peak_memory <= instance.memory
            assert attempts_of(execution) == attempts_of(run(instance, name, seed=3))
            loops += execution.loop is not None
    assert 0 < loops < 3 * share(1000)


def test_a_loop_by_hand():
    """Two requests of six tokens each: after five steps both hold 5 of 10 tokens."""
    execution = run(Instance([0, 0], [6, 6], 10), "alpha-greedy:0.2")
    assert (execution.loop.step, execution.loop.period, execution.loop.requests) == (0, 5, (0, 1))
    assert (execution.preemptions, execution.preempted_tokens) == (2, 10)
    assert execution.metrics()["total_latency"] is None
    with pytest.raises(PolicyError, match=r"completes 0 of 2 requests: its run repeats itself"):
        _ = execution.schedule


def test_a_loop_is_found_before_arrivals_that_are_far_away():
    instance = Instance([0, 0, 0], [6, 6, 1], 10, arrivals=[0, 0, 10**12])
    assert run(instance, "alpha-greedy:0.2").loop.requests == (0, 1)


def test_a_request_above_the_threshold_blocks_for_ever():
    execution = run(Instance([1, 9, 1], [2, 1, 1], 10, labels=["a", "b", "c"]), "alpha-greedy")
    assert (execution.loop.period, execution.loop.requests) == (1, (1,))
    assert execution.completed.sum() == 1


def test_clearing_that_hardly_clears_is_given_up_and_not_called_a_loop():
    instance = Instance([0, 0], [6, 6], 10)
    execution = run(instance, "alpha-beta-clearing:0.1,0.000001", patience=5000)
    assert execution.loop is None
    assert execution.stall.idle_steps > 5000
    with pytest.raises(PolicyError, match="was given up at step 5 after"):
        _ = execution.schedule


@tabled()
def test_bad_parameters_get_one_sentence(name, message):
    with pytest.raises(PolicyError, match=message):
        run(Instance([1], [1], 10), name)


def test_parameters_keep_what_is_not_given():
    assert CLEARING.with_parameters(beta=0.2).name == "alpha-beta-clearing:0.1,0.2"
    with pytest.raises(PolicyError, match="has no beta"):
        GREEDY.with_parameters(beta=0.2)
