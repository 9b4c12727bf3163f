"""Random instances: small ones for property-based tests, and larger ones."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from installed import with_serving

from optsched import Beliefs, Instance, Workers
from optsched.clock import UNIT, FunctionClock, LinearClock, get_clock
from optsched.policies import POLICIES, get_policy
from optsched.problem.workers import ROUTERS

DYADIC = LinearClock("dyadic", 0.5, 0.125, 0.25, 0.0625, 0.03125, 0.015625)
CLOCKS = (
    None,  # steps
    UNIT,
    DYADIC,
    get_clock("llama-2-70b-2xa100"),
    FunctionClock(lambda batch: 0.5 + 0.0625 * max(batch.held_tokens, 20)),
)
#: Policies whose every batch is a program, which takes longer.
SOLVED = ["sorted-f-mip", "sorted-f-mip-profile", "sorted-lp", "lp-swap"]
BY_DEADLINE = {"edf", "least-slack", "tardiness"}
#: All others by name, with rules and parameters.
NAMES = sorted(
    {*POLICIES, "area+window", "fcfs+skip", "area+backfill", "mc-sf+window:1.2,3"}
    | {"sorted-f+skip", "sorted-f+backfill", "work:weighted", "alpha-greedy:0.1"}
    | {"area-chance:0,0", "area-chance:2,3"}
    | {"alpha-beta-clearing:0.1,0.5", "wait:4=2,30=1", "nested-wait:2=2,30=1"}
    | {*with_serving("vllm+plan", "vllm:fcfs", "vllm:area", "vllm:mc-sf+plan", "vllm:mc-sf-total")}
    | {*with_serving("vllm:work+plan", "vllm:edf", "vllm:least-slack")} - {*SOLVED, "rolling"}
)


@st.composite
def instances(draw, max_requests=6, max_memory=20, max_arrival=8, max_output=8):
    """Draw an instance, offline or with arrivals, prompts of zero included."""
    memory = draw(st.integers(1, max_memory))
    count = draw(st.integers(1, max_requests))
    outputs = draw(
        st.lists(st.integers(1, min(memory, max_output)), min_size=count, max_size=count)
    )
    prompts = [draw(st.integers(0, memory - output)) for output in outputs]
    last = draw(st.sampled_from([0, max_arrival]))
    arrivals = sorted(draw(st.lists(st.integers(0, last), min_size=count, max_size=count)))
    return Instance(prompts, outputs, memory, arrivals)


@st.composite
def predicted(draw, given):
    """Draw an instance with intervals that cover the outputs, miss them, or are one number."""
    instance = draw(given)
    count = len(instance)
    low = draw(st.lists(st.integers(1, 15), min_size=count, max_size=count))
    widths = draw(st.lists(st.sampled_from([0, 0, 1, 3, 20]), min_size=count, max_size=count))
    high = [lower + width for lower, width in zip(low, widths, strict=True)]
    return instance.replace(output_lower=low, output_upper=high)


def drawn_instance(rng):
    """Draw up to 39 requests, offline or with arrivals."""
    count, memory = int(rng.integers(1, 40)), int(rng.integers(5, 120))
    outputs = rng.integers(1, min(memory, 30) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    arrivals = np.sort(rng.integers(0, 100, count)) * int(rng.integers(0, 2))
    return Instance(prompts, outputs, memory, arrivals)


def tiny_instance(rng, arrivals, most=4):
    """Draw a few requests that compete for memory, at times equal ones."""
    count, memory = int(rng.integers(2, most + 1)), int(rng.integers(4, 13))
    outputs = rng.integers(1, min(6, memory) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    if rng.random() < 0.2:
        twin = rng.integers(0, 2, count)
        prompts, outputs = prompts[twin], outputs[twin]
    steps = np.sort(rng.integers(0, 9, count)) * int(arrivals)
    return Instance(prompts, outputs, memory, steps)


def tiny_joint(rng, most=4):
    """Draw a few requests with weights, and workers of unequal memory or with eligibility."""
    instance = tiny_instance(rng, rng.random() < 0.6, most)
    if rng.random() < 0.3:
        instance = instance.replace(weights=rng.integers(1, 4, len(instance)))
    largest = int(instance.peaks.max())
    count = int(rng.integers(1, 4))
    memories = rng.integers(2, instance.memory + 1, count)
    memories[int(rng.integers(count))] = instance.memory
    if rng.random() < 0.4:
        memories[:] = max(largest, int(memories.min()))
    eligible = None
    if rng.random() < 0.3:
        eligible = rng.random((len(instance), count)) < 0.7
        eligible[:, int(np.argmax(memories))] = True
    return instance, Workers(memories.tolist(), eligible)


def drawn_run(rng, names):
    """Draw an instance, a policy, and options of `run` that make a world; memory is often short."""
    policy = get_policy(str(rng.choice(names)))
    count, memory = int(rng.integers(1, 10)), int(rng.integers(6, 40))
    outputs = rng.integers(1, min(memory - 1, 12) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    ticks, ranks = (
        np.cumsum(rng.integers(0, rng.choice([1, 3, 12]), count)),
        rng.integers(0, 3, count),
    )
    if policy.needs.kind in ("vllm", "engine"):
        prompts = np.minimum(np.maximum(prompts, 1), memory - outputs)
        policy = replace(policy, **_limits(rng, policy.needs.kind))
        if policy.needs.kind == "vllm":  # whose twin here has no cache
            policy = replace(policy, enable_prefix_caching=False)
    instance = Instance(
        prompts, outputs, memory, ticks, weights=1 + ranks, priorities=ranks, seconds_per_step=0.5
    )
    instance = with_deadlines(instance, policy)
    options = {"seed": int(rng.integers(0, 99))}
    if clock := CLOCKS[int(rng.integers(len(CLOCKS)))]:
        options["clock"] = clock
        if rng.random() < 0.2:
            options["until"] = float(rng.uniform(0, 30))
    if policy.needs.knows == "intervals" or policy.foresees != "nothing":
        makers = ["exact", "common:1,40", "classes:3", "relative:0.6"]
        options["intervals"] = str(rng.choice(makers))
    if rng.random() < 0.5:
        fewer = int(rng.integers(memory // 2 + 1, memory + 1))
        options["workers"] = [memory, fewer, memory][: int(rng.integers(1, 4))]
        options["router"] = str(rng.choice(sorted(ROUTERS)))
    elif policy.foresees == "beliefs" and rng.random() < 0.7:
        prior = 0.0 if policy.needs.kind == "vllm" else float(rng.choice([0, 2]))
        chances, rows = rng.integers(1, 9, (2, 40)), np.arange(count) % 2
        options["beliefs"] = Beliefs(chances, rows, prior)
    return instance, policy, options


def with_deadlines(instance, policy):
    """Return requests that are due, in no order of size or arrival, if a policy asks for that."""
    order = getattr(policy, "order", None)
    if {policy.name.partition("+")[0], getattr(order, "name", None)}.isdisjoint(BY_DEADLINE):
        return instance
    spread = 1 + 7 * np.arange(len(instance)) % 5 * instance.prompts % 11
    return instance.replace(deadlines=instance.arrivals + instance.outputs + spread)


def drawn_policy(name, rng):
    """Return a policy; an engine has small limits that are drawn."""
    policy = get_policy(name)
    kind = policy.needs.kind
    return replace(policy, **_limits(rng, kind)) if kind in ("vllm", "engine") else policy


def _limits(rng, kind):
    """Draw options of an engine."""
    limits = {
        "max_num_seqs": int(rng.integers(1, 9)),
        "block_size": int(rng.choice([1, 1, 2])),
        "max_num_batched_tokens": int(rng.integers(9, 30)),
        "watermark": float(rng.choice([0, 0, 0.3])),
    }
    if kind == "vllm":
        limits["async_scheduling"] = bool(rng.integers(2))
        limits["scheduling_policy"] = str(rng.choice(["fcfs", "priority"]))
        limits["enable_prefix_caching"] = bool(rng.integers(2))
    return limits
