"""The sweep over kinds gives what the search for each request gives, and what the verifier does."""

import numpy as np
import pytest

from optsched import Instance, bound, family, verify
from optsched.bounds import lagrangian
from optsched.bounds.lagrangian import cheapest_starts, kinds_of
from optsched.problem.costs import StartCosts


@pytest.mark.parametrize("seed", range(4))
def test_costs_equal_those_of_the_search(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    instance = family("equal-prompts", n=5000, seed=seed, load=rng.uniform(0.5, 2), prompt=seed)
    prices = rng.integers(0, 50, int(instance.arrivals[-1]) + rng.integers(-200, 200))
    weights = np.full(5000, 1000)
    guesses = instance.arrivals
    assert kinds_of(instance, len(prices)) is not None
    starts, costs = cheapest_starts(instance, prices, StartCosts.plain(weights), guesses)
    monkeypatch.setattr(lagrangian, "kinds_of", lambda *_: None)
    _, searched = cheapest_starts(instance, prices, StartCosts.plain(weights), guesses)
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


@pytest.mark.slow
def test_the_verifier_finds_the_same_bound():
    instance = family("equal-prompts", n=5000, seed=1, load=1.2)
    certificate = bound(instance, "lagrangian").certificate
    assert kinds_of(instance, len(certificate.prices)) is not None
    assert verify(certificate, instance) == certificate.value


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["any", "falling", "convex", "rounded"])
def test_the_cheapest_starts_are_those_of_a_look_at_every_step(shape):
    """The guess comes before all others, and the first step before later ones."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        count, steps = 30, int(rng.choice([1, 90, 1500, 9000]))
        prices = rng.integers(0, 1000, steps)
        if shape == "falling":
            prices = np.sort(prices)[::-1]
        elif shape != "any":
            convex = (np.linspace(1, 0, steps) ** 2 * rng.choice([5, 300, 40_000])).astype(np.int64)
            prices = convex + (shape == "rounded") * rng.integers(0, 2, steps)
        prompts, outputs = rng.integers(0, 300, count), rng.integers(1, 200, count)
        arrivals = np.sort(rng.integers(0, rng.choice([1, steps + 50]), count))
        instance = Instance(prompts, outputs, 500, arrivals)
        guesses, weight = rng.integers(0, steps + 10, count), int(rng.choice([0, 1, 900, 10**6]))
        starts, costs = cheapest_starts(
            instance, prices, StartCosts.plain(np.full(count, weight)), guesses
        )
        ahead = np.concatenate([prices, np.zeros(200, dtype=np.int64)])
        for request, arrival in enumerate(arrivals.tolist()):
            prompt, output, end = int(prompts[request]), int(outputs[request]), max(steps, arrival)
            guess = min(max(int(guesses[request]), arrival), end)
            held = prompt + 1 + np.arange(output)
            paid = np.convolve(ahead, held[::-1], "full")[output - 1 :]  # for starts from 0 on
            cost = weight * (np.arange(end + 1) + output - arrival)
            cost[:steps] += paid[:steps]
            cost[:arrival] = np.iinfo(np.int64).max
            order = [end, guess, *range(arrival, end)]
            assert (starts[request], costs[request]) == min(
                ((at, cost[at]) for at in order), key=lambda pair: pair[1]
            )
