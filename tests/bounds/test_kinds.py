"""The sweep over kinds gives what the search for each request gives, and what the verifier does."""

from __future__ import annotations

import numpy as np
import pytest

from optsched import bound, family, verify
from optsched.bounds import lagrangian
from optsched.bounds.lagrangian import cheapest_starts, kinds_of


@pytest.mark.parametrize("seed", range(4))
def test_costs_equal_those_of_the_search(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    instance = family("equal-prompts", n=5000, seed=seed, load=rng.uniform(0.5, 2), prompt=seed)
    prices = rng.integers(0, 50, int(instance.arrivals[-1]) + rng.integers(-200, 200))
    weights = np.full(5000, 1000)
    guesses = instance.arrivals
    assert kinds_of(instance, len(prices)) is not None
    starts, costs = cheapest_starts(instance, prices, weights, guesses)
    monkeypatch.setattr(lagrangian, "kinds_of", lambda *_: None)
    _, searched = cheapest_starts(instance, prices, weights, guesses)
    assert np.array_equal(costs, searched)
    assert np.all(starts >= instance.arrivals)
    before = np.concatenate([[0], np.cumsum(prices)])
    for request in rng.integers(0, 5000, 50):
        start, output = int(starts[request]), int(instance.outputs[request])
        held = seed + 1 + np.arange(output)
        paid = np.diff(before)[start : start + output]
        latency = start + output - int(instance.arrivals[request])
        assert costs[request] == 1000 * latency + int(held[: len(paid)] @ paid)


def test_many_kinds_are_searched_for():
    instance = family("chat-and-summaries", n=5000, seed=1, load=1)
    assert kinds_of(instance, 20_000) is None


def test_the_verifier_finds_the_same_bound():
    instance = family("equal-prompts", n=5000, seed=1, load=1.2)
    certificate = bound(instance, "lagrangian").certificate
    assert kinds_of(instance, len(certificate.prices)) is not None
    assert verify(certificate, instance) == certificate.value
