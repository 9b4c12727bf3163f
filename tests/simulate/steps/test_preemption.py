"""Runs under prediction intervals: equal to a literal simulator, feasible, deterministic."""

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal_attempts import attempts_of, planned_run, random_rank
from strategies import drawn_instance, instances, predicted

from optsched import Instance, forecast, run
from optsched.policies import IntervalPolicy, PriorityPolicy
from optsched.policies.robust import ROBUST
from optsched.simulate.steps.decisions import random_rank as compiled_rank

POLICIES = [policy for policy in ROBUST if isinstance(policy, IntervalPolicy)]
MAKERS = ["exact", "common:1,40", "classes:3", "relative:0.6"]


@pytest.mark.few
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(
    instance=predicted(instances(max_requests=9, max_memory=30, max_arrival=20, max_output=12)),
    intervals=st.sampled_from([*MAKERS, "column", "column", "column"]),
    seed=st.integers(0, 2**63 - 1),
)
@examples(400)
def test_every_policy_equals_the_literal_simulator(policy, instance, intervals, seed):
    execution = run(instance, policy, intervals=intervals, seed=seed)
    known = forecast(instance, intervals)
    policy = policy.for_forecast(known)
    literal = planned_run(
        instance,
        policy.first_plan(known).tolist(),
        known.upper.tolist(),
        policy.order,
        policy.outlived,
        policy.preempt,
        int(policy.slack * instance.memory),
        seed,
    )
    assert attempts_of(execution) == sorted(literal.attempts)
    assert execution.check() == []
    assert execution.schedule.check() == []


@pytest.mark.few
@pytest.mark.no_cover  # the tests above reach every line that runs here
def test_every_policy_is_feasible_on_random_instances_and_repeats_itself():
    rng = np.random.default_rng(5)
    for number in range(share(1000)):
        instance = drawn_instance(rng)
        low, wide = rng.integers(1, 60, len(instance)), rng.integers(0, 9, len(instance))
        instance = instance.replace(output_lower=low, output_upper=low + wide)
        intervals = [*MAKERS, "column"][int(rng.integers(len(MAKERS) + 1))]
        for policy in POLICIES:
            execution = run(instance, policy, intervals=intervals, seed=3)
            assert execution.check() == [], instance.to_json()
            assert execution.peak_memory == execution.memory_profile().max() <= instance.memory
            if number % 5 == 0:
                again = run(instance, policy, intervals=intervals, seed=3)
                assert attempts_of(again) == attempts_of(execution)


@given(instances(max_requests=9, max_memory=30, max_arrival=20, max_output=12))
@examples(100)
def test_with_exact_intervals_nothing_is_preempted(instance):
    for policy in POLICIES:
        assert run(instance, policy, intervals="exact").preemptions == 0


@pytest.mark.slow
def test_with_exact_intervals_all_shortest_first_policies_are_one():
    rng = np.random.default_rng(2)
    for _ in range(100):
        outputs = rng.permutation(np.arange(1, 21))
        instance = Instance(rng.integers(0, 30, 20), outputs, 60, np.sort(rng.integers(0, 99, 20)))
        expected = run(instance, "mc-sf").schedule.starts.tolist()
        for name in ("h-sf", "a-max", "a-min", "a-min-overcommit", "a-l"):
            assert run(instance, name, intervals="exact").schedule.starts.tolist() == expected, name


def test_a_random_is_any_order_planned_with_the_outputs():
    instance = Instance([1] * 30, list(range(1, 31)), 60)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(30)
        expected = run(
            instance, PriorityPolicy("shuffled", "", lambda _, order=order: order)
        ).schedule
        assert (
            run(instance, "a-random", seed=seed).schedule.starts.tolist()
            == expected.starts.tolist()
        )
    skipping = run(instance, "a-random", intervals="common:1,40", rule="skip", seed=1)
    assert skipping.schedule.policy == "a-random+skip"


def test_a_max_never_preempts_and_needs_no_seed_but_for_ties():
    rng = np.random.default_rng(4)
    for _ in range(200):
        instance = Instance(rng.integers(0, 9, 30), rng.integers(1, 20, 30), 40)
        assert run(instance, "a-max", intervals="common:1,60").preemptions == 0


def test_ties_depend_on_the_seed_alone():
    instance = Instance([1] * 30, list(range(1, 31)), 60)
    first = [run(instance, "a-min", intervals="common:1,40", seed=s) for s in range(5)]
    assert len({execution.total_latency for execution in first}) > 1


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_ranks_equal_their_definition(seed, request, attempt, role):
    assert compiled_rank(seed, request, attempt, int(role)) == random_rank(
        seed, request, attempt, int(role)
    )


def test_a_seed_is_not_the_one_before_shifted_by_a_request():
    ranks = [[compiled_rank(s, r, 0, 0) for r in range(50)] for s in range(50)]
    assert len({rank for each in ranks for rank in each}) == 2500


def test_ranks_are_uniform():
    ranks = np.array([[compiled_rank(s, r, 0, 0) for r in range(50)] for s in range(400)])
    first = np.bincount(ranks.argmin(axis=1), minlength=50)
    assert ((first - 8) ** 2 / 8).sum() < 90  # chi-square with 49 degrees of freedom


def test_far_apart_arrivals_cost_no_time():
    instance = Instance([1, 1, 1], [2, 2, 2], 3, arrivals=[0, 10**11, 10**12])
    for policy in POLICIES:
        execution = run(instance, policy, intervals="common:1,2")
        late = (
            1 if policy.outlived in ("restarts", "doubles") else 0
        )  # after the one token of the lower bound
        assert execution.schedule.starts.tolist() == [late, 10**11 + late, 10**12 + late]


def test_a_restart_keeps_what_was_learned():
    """Three requests without prompts, M = 10, outputs 10, 10 and 2, by hand.

    Step 2: the short one is done. Step 5: the other two fill the memory; one, B, loses 5 tokens and
    starts again at once, planned with 5. Step 7: 8 + 3 tokens are too much; A, planned with 1, is
    cancelled with 7 and starts again, planned with 7. Step 11: B, planned with 5, loses 6.
    """
    instance = Instance([0, 0, 0], [10, 10, 2], 10)
    evicted = run(instance, "a-min", intervals="common:1,10").to_pandas().query("not completed")
    assert evicted[["start", "tokens"]].values.tolist()[:3] == [[0, 5], [0, 7], [5, 6]]
    assert evicted["request"].tolist()[1] != evicted["request"].tolist()[0]
    guarded = IntervalPolicy("guarded", "preempts the fewest tokens", preempt="tokens")
    kept = run(instance, guarded, intervals="common:1,10")
    assert (
        kept.schedule.completions.max()
        < run(instance, "a-min", intervals="common:1,10").schedule.completions.max()
    )
    assert 0 in kept.starts[kept.completed & (kept.tokens == 10)]
