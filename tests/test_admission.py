"""Compiled admission against the literal simulator, and the papers' worked examples."""

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal import SortedF, by_key, optimum, simulate
from strategies import instances

from optsched import Instance, Schedule, bound, run
from optsched.admission import admit_by_priority
from optsched.policies import BASIC


def literal_walk(name, instance):
    """Return the walk of a policy by its definition."""
    if name == "sorted-f":
        return SortedF(instance)
    s, o = instance.prompts.tolist(), instance.outputs.tolist()
    keys = {
        "fcfs": instance.arrivals.tolist(),
        "mc-sf": o,
        "mc-sf-total": [a + b for a, b in zip(s, o, strict=True)],
        "area": [sum(a + u for u in range(1, b + 1)) for a, b in zip(s, o, strict=True)],
    }
    return by_key(keys[name])


@pytest.mark.few
@pytest.mark.parametrize("name", sorted(set(BASIC) - {"area+window"}))
@given(instance=instances(max_requests=9, max_memory=30, max_arrival=20, max_output=12))
@examples(400)
def test_every_policy_equals_the_literal_simulator(name, instance):
    schedule = run(instance, name).schedule
    assert schedule.starts.tolist() == simulate(instance, literal_walk(name, instance))
    assert schedule.check() == []


@given(instances(max_requests=9, max_arrival=40), st.randoms(use_true_random=False))
def test_any_priority_equals_the_literal_simulator(instance, random):
    priority = list(range(len(instance)))
    random.shuffle(priority)
    rank = np.argsort(priority).tolist()
    starts = admit_by_priority(instance, np.array(priority))
    assert starts.tolist() == simulate(instance, by_key(rank))


@pytest.mark.few
def test_bound_optimum_and_policies_are_ordered_on_random_instances():
    rng = np.random.default_rng(7)
    for _ in range(share(2000)):
        memory = int(rng.integers(4, 14))
        count = int(rng.integers(2, 5))
        outputs = rng.integers(1, min(memory, 5) + 1, count)
        prompts = rng.integers(0, memory - outputs + 1)
        arrivals = np.sort(rng.integers(0, 5, count)) * int(rng.integers(0, 2))
        instance = Instance(prompts, outputs, memory, arrivals)
        best = optimum(instance)
        proven = max(bound(instance, method).value for method in ("closed-form", "lagrangian"))
        assert proven <= best, instance.to_json()
        for name in BASIC:
            schedule = run(instance, name).schedule
            assert schedule.check() == [], instance.to_json()
            assert schedule.total_latency >= best, instance.to_json()


def test_sorted_f_example_1():
    instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    assert run(instance, "mc-sf").total_latency == 64
    assert run(instance, "sorted-f").total_latency == 45
    assert optimum(instance.take([0, 1, 2])) == run(instance.take([0, 1, 2]), "area").total_latency


def test_robust_example_3_2():
    """Five requests with s = 1, o = 1 and M = 10: 5 with known outputs.

    Planning for outputs of 4 starts two at a time, which costs 9.
    """
    instance = Instance([1] * 5, [1] * 5, memory=10)
    assert run(instance, "mc-sf").total_latency == 5
    cautious = Schedule(instance, [0, 0, 1, 1, 2])
    assert (cautious.total_latency, cautious.check()) == (9, [])


def test_robust_example_8_2():
    """M = 7, s = 1, o = (1, 2, 3, 4): the third of the printed schedules is optimal."""
    instance = Instance([1] * 4, [1, 2, 3, 4], memory=7)
    totals = []
    for starts in ([0, 2, 0, 3], [1, 1, 0, 3], [0, 0, 0, 2]):
        schedule = Schedule(instance, starts)
        assert schedule.check() == []
        totals.append(schedule.total_latency)
    assert totals == [15, 15, 12]
    assert run(instance, "mc-sf").schedule.starts.tolist() == [0, 0, 0, 2]
    assert optimum(instance) == 12


def test_mc_sf_is_not_optimal_for_equal_prompts_on_finite_integers():
    """Against Jaillet Theorem 4.2: 22 against 21 (docs/errata.md says where the theorem holds)."""
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=13)
    assert run(instance, "mc-sf").total_latency == 22
    assert optimum(instance) == 21
    best = Schedule(instance, [0, 1, 0, 6])
    assert (best.total_latency, best.check()) == (21, [])


def test_window_of_usage_slides_over_long_runs():
    rng = np.random.default_rng(1)
    outputs = rng.integers(1, 40, 3000)
    instance = Instance(
        rng.integers(0, 50, 3000), outputs, 100, np.sort(rng.integers(0, 9000, 3000))
    )
    for name in BASIC:
        assert run(instance, name).schedule.check() == []


def test_far_apart_arrivals_cost_no_memory():
    instance = Instance([1, 1, 1], [2, 2, 2], 3, arrivals=[0, 10**11, 10**12])
    for name in BASIC:
        assert run(instance, name).schedule.starts.tolist() == [0, 10**11, 10**12]
