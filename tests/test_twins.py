"""Every policy in every world against its literal twin, and what that has found."""

from dataclasses import replace

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import DYADIC, NAMES, SOLVED
from twins import Routed, Twin, compare, twin_of

from optsched import Instance, run
from optsched.clock import LinearClock
from optsched.policies import POLICIES, get_policy


@pytest.mark.few
@given(st.integers(0, 2**63))
@examples(100)
def test_every_policy_equals_its_literal_twin_in_every_world(seed):
    compare(seed, NAMES)


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
    instance = instance.replace(deadlines=[9, 5, 7, 12])
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


def test_requests_that_ask_for_the_same_work_are_equal():
    """Rounding had told them apart, where the seed is to decide."""
    columns = [2, 3, 1, 4, 2, 0, 1, 2], [6, 1, 5, 3, 1, 4, 4, 4]
    requests = Instance(*columns, 8, [2, 2, 2, 2, 4, 4, 6, 7], seconds_per_step=0.5)
    policy, options = get_policy("work-posterior"), {"seed": 4, "clock": DYADIC}
    options["intervals"] = "exact"
    found = run(requests, policy, **options)
    assert twin_of(requests, policy, **options).differs(found) == ""
