"""A stranger's task: policies on a clock of one's own, a function or a weighted sum."""

import numpy as np
import pytest

import optsched
from optsched import DecisionPolicy
from optsched.clock import LinearClock
from optsched.policies import Decision


def my_accelerator(batch):
    """Take 20 ms, and more beyond 256 tokens of work."""
    work = batch.prefill_tokens + batch.decode_requests
    return 0.02 + 2e-4 * max(work - 256, 0) + 1e-7 * batch.resident_tokens


SLOWEST = LinearClock("a part of it", constant=0.02, resident_tokens=1e-7)


def shortest(state):
    return Decision.most_urgent(state, state.forecast.upper - state.made)


@pytest.fixture(scope="module")
def instance():
    """Draw requests that come in seconds."""
    return optsched.family("exponential", n=60, seed=3, load=1.1).replace(seconds_per_step=0.02)


@pytest.mark.parametrize("preemption", ["restarted", "recomputed", "resumed"])
def test_every_batch_lasts_what_my_clock_says(instance, preemption):
    policy = DecisionPolicy("shortest", "", shortest, preemption=preemption)
    found = optsched.run(instance, policy, clock=my_accelerator)
    assert found.check() == []
    assert found.unfinished == 0
    batches = found.batches()
    lasts = [
        0.02 + 2e-4 * max(p + d - 256, 0) + 1e-7 * r
        for p, d, r in zip(
            batches.prefill_tokens, batches.decode_requests, batches.resident_tokens, strict=True
        )
    ]
    assert np.allclose(batches.end - batches.begin, lasts)
    assert found.preemptions == found.to_pandas()["preemptions"].sum()


def test_a_clock_never_above_mine_proves_a_gap(instance):
    policy = DecisionPolicy("shortest", "", shortest, preemption="resumed", resume_cost=0.2)
    proven = optsched.bound(instance, clock=SLOWEST)
    compared = optsched.compare(instance, [policy, "area"], clock=my_accelerator, bound=proven)
    for run in compared:
        assert 0 < compared.gap(run) < 1
        assert run.total_latency >= proven.value
    assert compared["shortest"].facts.preemption == "resumed"


def test_a_cost_in_seconds_is_one_in_tokens_of_prefill(instance):
    """Moving a token back takes 5 us where prefilling one takes 50."""
    clock = LinearClock("mine", constant=0.01, prefill_tokens=5e-5)
    policy = DecisionPolicy("shortest", "", shortest, preemption="resumed", resume_cost=5e-6 / 5e-5)
    found = optsched.run(instance, policy, clock=clock)
    prefill = found.batches()["prefill_tokens"].sum()
    moved = prefill - instance.prompts.sum()
    assert found.preempted_tokens * 0.1 <= moved <= found.preempted_tokens * 0.1 + found.preemptions
    assert found.preemptions > 0
