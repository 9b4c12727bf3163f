"""vLLM in every world against its literal twin, and what that has found."""

from dataclasses import replace

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import DYADIC, NAMES
from twins import compare, twin_of

from optsched import Instance, family, run
from optsched.policies import get_policy
from optsched.problem.workers import Router


@given(st.integers(0, 2**63))
@examples(100)
def test_vllm_equals_its_literal_twin_in_every_world(seed):
    compare(seed, [name for name in NAMES if name.startswith("vllm")])


def test_vllm_in_the_order_of_arrival_is_vllm():
    rng = np.random.default_rng(1)
    preemptions = 0
    for _ in range(20):
        outputs, prompts = rng.integers(1, 20, 9), rng.integers(1, 8, 9)
        arrivals = np.cumsum(rng.integers(1, 5, 9))
        memory = int((outputs + prompts).max()) + 6
        instance = Instance(prompts, outputs, memory, arrivals, seconds_per_step=0.5)
        small = replace(get_policy("vllm"), block_size=1)
        plain = run(instance, small, clock=DYADIC)
        ordered = run(instance, small.parsed("fcfs"), clock=DYADIC)
        assert ordered.statistics.tolist() == plain.statistics.tolist()
        assert ordered.completions.tolist() == plain.completions.tolist()
        preemptions += plain.preemptions
    assert preemptions > 20


def test_engines_of_unequal_memory_plan_with_their_own():
    """As common bounds of outputs are cut to the memory, a plan admits less on the larger one."""
    arrivals = [2, 5, 7, 7, 9]
    instance = Instance([7, 1, 4, 5, 2], [11, 10, 6, 11, 11], 22, arrivals, seconds_per_step=0.5)
    policy = replace(get_policy("vllm:work+plan"), block_size=1, enable_prefix_caching=False)
    for memories in ([22, 28], [28, 22, 5]):
        options = {"clock": DYADIC, "workers": memories, "intervals": "common:1,30"}
        fewest_waiting = Router("mine", "", {"waiting": 4, "running": 1})
        for router in ("jsq", fewest_waiting, "least-work"):
            found = run(instance, policy, router=router, **options)
            assert twin_of(instance, policy, router=router, **options).differs(found) == ""


@pytest.mark.parametrize(
    ("seed", "load", "workers", "policy"),
    [(962810843, 2.5, 7, "vllm:area"), (744778558, 4.0, 9, "vllm")],
)
def test_a_token_in_flight_of_a_preempted_request_counts_as_made(seed, load, workers, policy):
    instance = family("binomial", n=19, seed=seed, load=load).replace(seconds_per_step=0.1)
    how = {"clock": "affine:0.2,0.001", "workers": workers, "router": "least-work"}
    policy = replace(get_policy(policy), enable_prefix_caching=False)
    routed = run(instance, policy, **how)
    assert twin_of(instance, policy, **how).placement == routed.placement.tolist()
