"""Orders that wait where a prefill would hold up others: equal to a decision step by step."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import DecisionPolicy, Instance, family, run
from optsched.clock import LinearClock
from optsched.errors import PolicyError
from optsched.policies import get_policy

CLOCK = LinearClock("c", 1.0, 0.5, 0.25, 0.125, 0.0625, 0.0)


def literal(instance, order, gamma):
    """Ask the next request before every batch, in the words of the rule."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    turn = np.argsort(get_policy(order).order(instance, CLOCK)).tolist()

    def decide(state):
        left = {
            int(i): outputs[i] - int(made)
            for i, made in zip(state.running, state.tokens, strict=True)
        }
        held = {
            int(i): prompts[i] + int(made)
            for i, made in zip(state.running, state.tokens, strict=True)
        }
        taken = []
        for i in sorted(state.waiting.tolist(), key=lambda i: turn[i]):
            prefill = CLOCK.prefill_tokens * prompts[i] + CLOCK.squared_prompts * prompts[i] ** 2
            if any(
                sum(rest <= batches for rest in left.values()) * prefill
                > gamma * batches * CLOCK.constant
                for batches in left.values()
            ):
                break
            rest, now = left | {i: outputs[i]}, held | {i: prompts[i]}
            if any(
                sum(now[j] + ahead for j in rest if rest[j] >= ahead) > instance.memory
                for ahead in rest.values()
            ):
                break
            left, held = rest, now
            taken.append(i)
        return taken

    return DecisionPolicy("literal", "in the words of the rule", decide)


@given(
    instance=instances(max_requests=8, max_memory=30, max_arrival=20, max_output=12),
    order=st.sampled_from(["work", "area", "fcfs", "mc-sf"]),
    gamma=st.sampled_from([0.5, 2, 16]),
)
@examples(200)
def test_a_run_equals_decisions_before_every_batch(instance, order, gamma):
    instance = instance.replace(seconds_per_step=1.0)
    fast = run(instance, f"{order}+delay:{gamma:g}", clock=CLOCK)
    slow = run(instance, literal(instance, order, gamma), clock=CLOCK)
    assert fast.first_batch.tolist() == slow.first_batch.tolist()
    assert fast.log.contents.tolist() == slow.log.contents.tolist()
    assert fast.check() == []


def test_without_haste_it_is_the_prefix_rule():
    instance = family("chat", n=80, seed=1, memory=1_500, rate=5, seconds_per_step=0.01)
    patient = run(instance, "work+delay:1e9", clock=CLOCK)
    assert patient.latencies.tolist() == run(instance, "work", clock=CLOCK).latencies.tolist()


def test_prompts_gather_while_short_outputs_end():
    rng = np.random.default_rng(2)
    outputs = rng.integers(5, 16, 300)
    arrivals = np.sort(rng.uniform(0, 190, 300)).round(2)
    instance = Instance(
        rng.integers(500, 3_000, 300), outputs, 60_000, (arrivals * 100).astype(int),
        seconds_per_step=0.01,
    )  # fmt: skip
    clock = LinearClock("slow prefill", 0.03, 3e-4, 0.0, 0.0, 0.0, 0.0)
    plain, waits = (run(instance, name, clock=clock) for name in ("work", "work+delay"))
    assert waits.mean_latency < 0.9 * plain.mean_latency


def test_until_leaves_the_rest_unfinished():
    instance = family("chat", n=60, seed=1, memory=1_500, rate=5, seconds_per_step=0.01)
    whole = run(instance, "area+delay", clock=CLOCK)
    part = run(instance, "area+delay", clock=CLOCK, until=whole.makespan / 2)
    batches = len(part.log.spans)
    assert 0 < part.unfinished < 60
    assert part.log.spans.tolist() == whole.log.spans[:batches].tolist()


@pytest.mark.parametrize("rule", ["delay:x", "delay:0", "delay:nan", "delay:-1"])
def test_odd_numbers_are_refused(rule):
    with pytest.raises(PolicyError, match="should read delay:GAMMA"):
        get_policy(f"work+{rule}")


def test_what_it_cannot_be_used_with_is_said():
    instance = Instance([1], [2], 9)
    for workers in ({}, {"workers": 2, "router": "jsq"}):
        with pytest.raises(PolicyError, match="takes a clock"):
            run(instance, "area+delay", **workers)
    with pytest.raises(PolicyError, match="is a function"):
        run(instance, "area+delay", clock=lambda batch: 1.0)
    with pytest.raises(PolicyError, match="on a clock the rule"):
        run(instance, "sorted-f+delay", clock=CLOCK)
