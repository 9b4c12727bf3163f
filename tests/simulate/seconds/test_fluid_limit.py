"""Simulated workers against the fluid model: equilibrium, and thresholds in heavy traffic."""

import numpy as np
import pytest

from optsched.clock import affine
from optsched.models.fluid.equilibrium import equilibrium
from optsched.policies.wait import TypeQueues
from optsched.problem.request_types import RequestTypes
from optsched.simulate.seconds.batches import EngineRequests, admit_on_clock
from optsched.simulate.seconds.serving import serve_waiting


def poisson(rates, seconds, rng):
    """Times and types of the arrivals of independent Poisson processes."""
    counts = rng.poisson(np.asarray(rates) * seconds)
    kinds = np.repeat(np.arange(len(counts)), counts)
    times = rng.random(len(kinds)) * seconds
    order = np.argsort(times)
    return times[order], kinds[order]


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.9])
@pytest.mark.parametrize(
    "lengths", [[(10, 20, 1)], [(20, 20, 3), (200, 8, 2), (60, 60, 1)]], ids=["one", "three"]
)
def test_the_equilibrium_is_what_a_simulation_settles_at(load, lengths):
    prompts, outputs, shares = np.array(lengths).T
    types = RequestTypes(prompts, outputs, 3000 * shares / shares.sum(), True)
    per_token = load / float((types.rates * types.held_tokens).sum())
    clock = affine(0.001, per_token)
    assert equilibrium(types, clock).load == pytest.approx(load)
    seconds, warm_up = 120.0, 40.0
    times, kinds = poisson(types.rates, seconds, np.random.default_rng(7))
    # Near load 1 the rates that came differ enough from those drawn from to move the equilibrium.
    came = np.bincount(kinds[times >= warm_up], minlength=len(types)) / (seconds - warm_up)
    expected = equilibrium(types.with_rates(came), clock)
    order = np.arange(len(times))
    requests = EngineRequests(prompts[kinds], times, outputs[kinds], 10**9)
    starts, log = admit_on_clock(requests, order, clock)
    begin, end = log.spans.T
    settled = (begin >= warm_up) & (end <= seconds)
    lasting = (end - begin)[settled]
    assert lasting.mean() == pytest.approx(expected.iteration_time, rel=0.01)
    assert log.usage[settled].mean() == pytest.approx(expected.memory, rel=0.01)
    tokens = log.contents[settled, 1].sum() + (
        np.isin(starts, np.flatnonzero(settled)).sum()
    )  # decodes, and the first tokens that prefills make
    assert tokens / lasting.sum() == pytest.approx(expected.output_throughput, rel=0.01)


def backlogs(seconds, constant, seeds):
    """Unfinished requests of one type when arrivals end: threshold 11, a batch of 1,815 tokens."""
    found = []
    for seed in seeds:
        times, _ = poisson([1000.0], seconds, np.random.default_rng(seed))
        ones = np.ones(len(times), dtype=np.int64)
        served, _ = serve_waiting(
            EngineRequests(9 * ones, times, 11 * ones, 10**6),
            affine(constant, 2.7e-7),
            TypeQueues(
                entrance=0 * ones,
                before=np.array([-1]),
                length=np.array([11]),
                changes=np.zeros(1),
                thresholds=np.array([[11]]),
            ),
            until=seconds,
        )
        found.append(int((served.last < 0).sum()))
    return np.mean(found)


def test_strict_thresholds_keep_the_backlog_and_equality_lets_it_grow():
    """Theorem 1: constant in time where batches are shorter than 11 arrivals, else as its root."""
    batch = 11 / 1000
    tight = batch - 2.7e-7 * 1815  # with this constant a full batch lasts as long as 11 arrivals
    strict = [backlogs(seconds, 0.9 * tight, range(12)) for seconds in (5, 80)]
    assert strict[1] == pytest.approx(strict[0], rel=0.1)
    equal = [backlogs(seconds, tight, range(12)) for seconds in (5, 80)]
    in_batches = 11 * 11
    exponent = np.log((equal[1] - in_batches) / (equal[0] - in_batches)) / np.log(16)
    assert 0.3 < exponent < 0.7
