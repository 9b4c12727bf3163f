"""Every policy in every world against its literal twin, and what that has found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twins import Routed, Twin, twin_of

from optsched import Beliefs, Instance, run
from optsched.clock import UNIT, FunctionClock, LinearClock, get_clock
from optsched.errors import OptschedError
from optsched.policies import POLICIES, get_policy
from optsched.routers import ROUTERS

DYADIC = LinearClock("dyadic", 0.5, 0.125, 0.25, 0.0625, 0.03125, 0.015625)
CLOCKS = {
    "steps": None,
    "unit": UNIT,
    "dyadic": DYADIC,
    "profiled": get_clock("llama-2-70b-2xa100"),
    "function": FunctionClock(lambda batch: 0.5 + 0.0625 * max(batch.held_tokens, 20)),
}
#: Policies whose every batch is a program, which takes longer.
SOLVED = {"sorted-f-mip", "sorted-f-mip-profile", "sorted-lp", "lp-swap"}
NAMES = sorted(
    {*POLICIES, "area+window", "fcfs+skip", "area+backfill", "mc-sf+window:1.2,3"}
    | {"sorted-f+skip", "sorted-f+backfill", "work:weighted", "alpha-greedy:0.1"}
    | {"area+delay:2", "work+delay:0.5", "area-chance:0,0", "area-chance:2,3"}
    | {"alpha-beta-clearing:0.1,0.5", "wait:4=2,30=1", "nested-wait:2=2,30=1", "vllm+plan"}
    | {"vllm:fcfs", "vllm:area", "vllm:mc-sf+plan", "vllm:mc-sf-total", "vllm:work+plan"}
    - (SOLVED | {"rolling"})
)


@st.composite
def drawn_runs(draw, names):
    """Draw an instance, a policy with its options, and a world; memory is short now and then."""
    policy = get_policy(draw(st.sampled_from(names)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, memory = int(rng.integers(1, 10)), int(rng.integers(6, 40))
    outputs = rng.integers(1, min(memory - 1, 12) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    options = {"seed": int(rng.integers(0, 99))}
    if policy.needs.kind in ("vllm", "engine"):
        prompts = np.minimum(np.maximum(prompts, 1), memory - outputs)
        limits = {"max_num_seqs": int(rng.integers(1, 9)), "block_size": int(rng.choice([1, 1, 2]))}
        limits |= {"max_num_batched_tokens": int(rng.integers(9, 30))}
        limits |= {"watermark": float(rng.choice([0, 0, 0.3]))}
        if policy.needs.kind == "vllm":
            limits |= {"async_scheduling": bool(rng.integers(2))}
            limits |= {"scheduling_policy": str(rng.choice(["fcfs", "priority"]))}
        memory = memory + int(rng.integers(2))
        policy = replace(policy, **limits)
    ticks = np.cumsum(rng.integers(0, int(rng.choice([1, 3, 12])), count))
    ranks = rng.integers(0, 3, count)
    instance = Instance(
        prompts, outputs, memory, ticks, weights=1 + ranks, priorities=ranks, seconds_per_step=0.5
    )
    if clock := CLOCKS[draw(st.sampled_from(sorted(CLOCKS)))]:
        options["clock"] = clock
        if rng.random() < 0.2:
            options["until"] = float(rng.uniform(0, 30))
    if policy.needs.knows == "intervals" or policy.foresees != "nothing":
        options["intervals"] = draw(
            st.sampled_from(["exact", "common:1,40", "classes:3", "relative:0.6"])
        )
    if draw(st.booleans()):
        fewer = int(rng.integers(memory // 2 + 1, memory + 1))
        options["workers"] = [memory, fewer, memory][: int(rng.integers(1, 4))]
        options["router"] = draw(st.sampled_from(sorted(ROUTERS)))
    elif policy.foresees == "beliefs" and rng.random() < 0.7:
        prior = 0.0 if policy.needs.kind == "vllm" else float(rng.choice([0, 2]))
        chances, rows = rng.integers(1, 9, (2, 40)), np.arange(count) % 2
        options["beliefs"] = Beliefs(chances, rows, prior)
    return instance, policy, options


def compare(case):
    """Run both; a case that is refused says nothing."""
    instance, policy, options = case
    try:
        found = run(instance, policy, **options)
    except OptschedError as error:
        assert "instance as a whole" not in str(error) or policy.name == "a-random"
        assume(False)
    twin = twin_of(instance, policy, **options)
    assume(twin is not None)
    assert twin.differs(found) == ""


@given(drawn_runs(NAMES))
@settings(max_examples=150)
def test_every_policy_equals_its_literal_twin_in_every_world(case):
    compare(case)


@given(drawn_runs([name for name in NAMES if name.startswith("vllm")]))
@settings(max_examples=100)
def test_vllm_equals_its_literal_twin_in_every_world(case):
    compare(case)


@given(drawn_runs(sorted(SOLVED)))
@settings(max_examples=8)
def test_policies_with_a_solver_equal_their_literal_twins_in_every_world(case):
    compare(case)


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
    policy = replace(get_policy("vllm:work+plan"), block_size=1)
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
