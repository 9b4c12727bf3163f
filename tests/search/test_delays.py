"""Delays of large requests: feasible, never worse than `area`, and worth it at real scale."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import PriorityPolicy, bound, family, run
from optsched._internal.aside import Budget
from optsched.bounds.lagrangian import PricedStarts
from optsched.search.delays import Anneal, delay_large, serve


@pytest.mark.few
@given(instances(max_requests=8, max_memory=30, max_arrival=20), st.integers(0, 9), st.data())
@examples(60)
def test_delays_are_feasible_and_never_worse_than_area(instance, seed, data):
    weight = st.sampled_from([0.5, 1, 3])
    weights = np.array([data.draw(weight) for _ in range(len(instance))])
    instance = instance.replace(weights=weights)
    certificate = bound(instance, "lagrangian", "weighted-latency").certificate
    found = delay_large(instance, weights, certificate, Budget(work=1e6), seed=seed)
    assert found.check() == []
    area = run(instance, PriorityPolicy("by area", "", lambda i: i.areas / weights)).schedule
    assert found.weighted_latency <= area.weighted_latency
    again = delay_large(instance, weights, certificate, Budget(work=1e6), seed=seed)
    assert np.array_equal(again.starts, found.starts)


def test_giants_that_wait_save_a_tenth_at_real_scale():
    instance = family("chat-and-summaries", n=2000, seed=0, load=1.1)
    certificate = bound(instance, "lagrangian").certificate
    found = delay_large(instance, np.ones(2000), certificate, Budget(work=1e7))
    assert found.total_latency < 0.9 * run(instance, "area").total_latency
    stopped = delay_large(instance, np.ones(2000), certificate, Budget(work=1e12, deadline=0.0))
    assert stopped.check() == []


def _anneal(instance, rank):
    certificate = bound(instance, "lagrangian").certificate
    priced = PricedStarts(instance, certificate)
    starts = serve(instance, rank, instance.arrivals)
    weights = np.ones(len(instance))
    return Anneal(instance, weights, priced, rank, instance.arrivals, starts)


@given(instances(max_requests=12, max_memory=20, max_arrival=40), st.randoms(), st.integers(0, 9))
@examples(80)
def test_releases_decoded_in_part_are_as_decoded_in_whole(instance, random, seed):
    rank = list(range(len(instance)))
    random.shuffle(rank)
    rank = np.array(rank)
    anneal = _anneal(instance, rank)
    for turn in range(4):  # fifty trials each
        anneal.follow(Budget(work=1.0), seed + turn)
        assert np.array_equal(anneal.starts, serve(instance, rank, anneal.releases))
        assert np.array_equal(anneal.best, serve(instance, rank, anneal.best_releases))
        assert anneal.cost == anneal.best.sum()


def test_partial_decoding_at_real_scale():
    instance = family("chat-and-summaries", n=500, seed=2, load=1.1)
    rank = np.argsort(np.argsort(instance.areas, kind="stable"))
    anneal = _anneal(instance, rank)
    began = anneal.cost
    for turn in range(10):
        anneal.follow(Budget(work=2e6), turn)
        assert np.array_equal(anneal.starts, serve(instance, rank, anneal.releases))
        assert np.array_equal(anneal.best, serve(instance, rank, anneal.best_releases))
    assert anneal.cost == anneal.best.sum() < began
