"""Delays of large requests: feasible, never worse than `area`, and worth it at real scale."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances

from optsched import bound, family, run
from optsched.policies import PriorityPolicy
from optsched.solvers.delays import delay_large


@given(instances(max_requests=8, max_memory=30, max_arrival=20), st.integers(0, 9), st.data())
@settings(max_examples=60)
def test_delays_are_feasible_and_never_worse_than_area(instance, seed, data):
    weight = st.sampled_from([0.5, 1, 3])
    weights = np.array([data.draw(weight) for _ in range(len(instance))])
    instance = instance.replace(weights=weights)
    certificate = bound(instance, "lagrangian", "weighted-latency").certificate
    found = delay_large(instance, weights, certificate, work=1e6, seed=seed)
    assert found.check() == []
    area = run(instance, PriorityPolicy("by area", "", lambda i: i.areas / weights))
    assert found.weighted_latency <= area.weighted_latency
    again = delay_large(instance, weights, certificate, work=1e6, seed=seed)
    assert np.array_equal(again.starts, found.starts)


def test_giants_that_wait_save_a_tenth_at_real_scale():
    instance = family("chat-and-summaries", n=2000, seed=0, load=1.1)
    certificate = bound(instance, "lagrangian").certificate
    found = delay_large(instance, np.ones(2000), certificate, work=1e7)
    assert found.total_latency < 0.9 * run(instance, "area").total_latency
    stopped = delay_large(
        instance, np.ones(2000), certificate, work=1e12, deadline=time.perf_counter()
    )
    assert stopped.check() == []
