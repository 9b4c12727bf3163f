"""Every policy in every world against its literal twin, and what that has found."""

from dataclasses import replace

import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import DYADIC, NAMES, SOLVED, drawn_run
from twins import Routed, Twin, twin_of

from optsched import Instance, OptschedError, family, run
from optsched.clock import LinearClock
from optsched.policies import POLICIES, get_policy


def compare(seed, names):
    """Run both; a case that is refused says nothing."""
    instance, policy, options = drawn_run(np.random.default_rng(seed), names)
    refused = ""
    try:
        found = run(instance, policy, **options)
    except OptschedError as error:
        refused = str(error)
    # None but a-random goes by what is in the instance as a whole.
    assert "instance as a whole" not in refused or policy.name == "a-random"
    assume(not refused)
    twin = twin_of(instance, policy, **options)
    assume(twin is not None)
    assert twin.differs(found) == "", (instance.to_json(), policy, options)


@pytest.mark.few
@given(st.integers(0, 2**63))
@examples(100)
def test_every_policy_equals_its_literal_twin_in_every_world(seed):
    compare(seed, NAMES)


@given(st.integers(0, 2**63))
@examples(100)
def test_vllm_equals_its_literal_twin_in_every_world(seed):
    compare(seed, [name for name in NAMES if name.startswith("vllm")])


@pytest.mark.few
@given(st.integers(0, 2**63))
@examples(8)
def test_policies_with_a_solver_equal_their_literal_twins_in_every_world(seed):
    compare(seed, SOLVED)


#: Kinds of policies that have no run in steps, and policies without a twin.
TIMED = {"engine", "vllm", "wait"}


@pytest.mark.parametrize("world", ["steps", "clock", "workers"])
def test_every_policy_but_the_rolling_horizon_has_a_twin(world):
    instance = Instance([3, 2, 4, 1], [2, 3, 1, 5], 12, [0, 1, 1, 4], seconds_per_step=0.5)
    options = {"steps": {}, "clock": {"clock": DYADIC}, "workers": {"workers": 2}}[world]
    missing = set()
    for name, policy in POLICIES.items():
        kind = policy.needs.kind
        known = {"intervals": "common:1,5"} if policy.needs.knows == "intervals" else {}
        timed = {"clock": DYADIC} if kind in TIMED else {}
        named = f"{name}:9=1" if kind == "wait" else name  # one worker may have no rates
        if kind == "vllm":
            named = replace(policy, enable_prefix_caching=False)
        twin = twin_of(instance, named, **(known | timed | options))
        if twin is None:
            missing.add(name)
        else:
            assert isinstance(twin, Routed if world == "workers" else Twin)
    assert missing == {"rolling"}


def test_a_stopped_run_knows_no_first_token_that_was_lost_or_not_made():
    """Wait preempts the second request, and a-min has admitted it when the time is over."""
    clock = LinearClock("one", constant=1.0)
    lost = Instance([1, 1], [4, 4], 5)
    stopped = run(lost, "wait:4=1", clock=clock, until=3)
    assert (stopped.preempted.tolist(), stopped.first_batch.tolist()) == ([0, 1], [0, -1])
    late = Instance([1, 1], [2, 2], 8, [0, 1], seconds_per_step=1)
    stopped = run(late, "a-min", clock=clock, until=1, intervals="exact")
    assert stopped.first_batch.tolist() == [0, -1]


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
        for router in ("jsq", "vllm-dp", "least-work"):
            found = run(instance, policy, router=router, **options)
            assert twin_of(instance, policy, router=router, **options).differs(found) == ""


@pytest.mark.parametrize("policy", ["a-min", "mixed"])
def test_a_router_sees_requests_run_until_the_worker_preempts_them(policy):
    """At step 5 two requests fill the memory, and one of them is preempted as the third comes."""
    seen = []

    def router(state):
        seen.append((state.running.tolist(), state.held.tolist(), state.waiting.tolist()))
        return 0

    instance = Instance([0, 0, 1], [10, 10, 1], 10, [0, 0, 5])
    options = {"clock": "unit"} if policy == "mixed" else {"intervals": "common:1,10"}
    routed = run(instance, policy, workers=1, router=router, **options)
    assert routed.preemptions > 0
    assert seen[-1] == ([2], [10], [0])


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
