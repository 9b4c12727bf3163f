"""Schedules at an even pace: feasible, and better than waves where outputs are alike."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import schedules
from effort import examples
from hypothesis import given
from strategies import instances

from optsched import Instance, family, run
from optsched.search.delays import start_evenly


@given(instances(max_requests=8, max_memory=30, max_arrival=20))
@examples(100)
def test_even_paces_are_feasible(instance):
    assert start_evenly(instance).check() == []


@given(instances(max_requests=3, max_memory=12, max_arrival=4, max_output=4))
@examples(30)
def test_no_pace_beats_every_schedule(instance):
    found = start_evenly(instance)
    costs = [
        sum(starts) + int((instance.outputs - instance.arrivals).sum())
        for starts in schedules(instance, found.makespan)
    ]
    assert found.total_latency >= min(costs)


def test_one_start_per_step_where_a_greedy_policy_pulses():
    # Memory 45 holds 1 + 2 + ... + 9: one start per step for ever, or five at once every 9 steps.
    instance = Instance([0] * 900, [9] * 900, memory=45)
    even = start_evenly(instance)
    assert even.makespan <= 900 / 0.95 + 9  # the pace is a share of the memory
    assert run(instance, "mc-sf").makespan == 900 / 5 * 9
    assert np.all(np.diff(np.sort(even.starts)) <= 2)


@pytest.mark.parametrize("load", [1.2, 2.0])
def test_even_paces_save_a_tenth_of_an_overload(load):
    instance = family("equal-prompts", n=20_000, seed=1, load=load)
    assert start_evenly(instance).total_latency < 0.9 * run(instance, "mc-sf").total_latency
