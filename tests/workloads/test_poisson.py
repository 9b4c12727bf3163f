"""Requests of given types: counts, times, and stages that hold what the paper says."""

import numpy as np
import pytest

from optsched import RequestTypes, run
from optsched.errors import InstanceError
from optsched.problem.request_types import poisson_requests

PAPER = RequestTypes([10, 10], [10, 20], [1000, 3000])


def test_each_type_arrives_at_its_rate_all_along():
    requests = poisson_requests(PAPER, 50, memory=10**6, seed=1)
    longer = requests.outputs == 21
    for kind, rate in ((~longer, 1000), (longer, 3000)):
        halves = np.histogram(requests.arrivals[kind] * 1e-6, [0, 25, 50])[0]
        assert np.abs(halves / (25 * rate) - 1).max() < 4 / np.sqrt(25 * rate)
    assert requests.arrivals.max() < 50e6


def test_stages_are_those_of_the_types_either_way():
    """A request of type (10, 20) takes 21 batches of 10, 11, ..., 30 tokens in the paper."""
    for own, expected in ((False, range(10, 31)), (True, range(11, 31))):
        types = RequestTypes([10], [20], [0.1], prefill_makes_token=own)
        requests = poisson_requests(types, 10, memory=10**6, seed=0).take([0])
        result = run(requests, "fcfs", clock="affine:0.01,0.001")
        assert result.log.usage.tolist() == list(expected)
        assert result.log.usage.sum() == types.held_tokens[0]


def test_the_seed_decides():
    first, again, other = (poisson_requests(PAPER, 1, 10**6, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.arrivals, again.arrivals)
    assert not np.array_equal(first.arrivals[:100], other.arrivals[:100])


@pytest.mark.parametrize(
    ("types", "seconds", "message"),
    [
        (PAPER, 0, "seconds is 0, but must be a number above 0"),
        (PAPER.scaled(1e-9), 1, "no request arrives in 1 s"),
        (RequestTypes([0], [3], [9]), 1, "a type has no prompt tokens, so that its prefill"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(types, seconds, message):
    with pytest.raises(InstanceError, match=message):
        poisson_requests(types, seconds, memory=100)
