"""What a policy of one's own is told is what it reads, or what its author says."""

import numpy as np
import pytest

from optsched import DecisionPolicy, PriorityPolicy, compare, family, run
from optsched.policies import Decision, DynamicPolicy, get_policy

INSTANCE = family("exponential", n=30, seed=1)
TIMED = family("mixed", n=20, memory=20_000, rate=4, seed=3, seconds_per_step=1e-6)


def shortest_prompt(state):
    order = state.waiting[np.argsort(state.forecast.prompts[state.waiting], kind="stable")]
    return order[np.cumsum(state.forecast.prompts[order] + 1) <= state.free]


def least_attained(state):
    return Decision.most_urgent(state, state.made)


def shortest(state):
    return Decision.most_urgent(state, state.forecast.upper - state.made)


def at_least(state):
    return Decision.most_urgent(state, state.lower)


@pytest.mark.parametrize(
    ("decide", "exact", "bounded"),
    [
        (shortest_prompt, "nothing", "nothing"),
        (least_attained, "nothing", "nothing"),
        (shortest, "outputs", "forecast"),
        (at_least, "outputs", "forecast"),
    ],
)
def test_a_decision_is_told_what_it_reads(decide, exact, bounded):
    policy = DecisionPolicy(decide.__name__, "", decide, preemption="restarted")
    assert run(INSTANCE, policy).knows == exact
    assert run(INSTANCE, policy, intervals="common:1,100").knows == bounded
    assert run(INSTANCE, policy, clock="llama-2-7b-a100").knows == exact
    assert run(INSTANCE, policy, workers=2, router="round-robin").knows == exact
    assert run(INSTANCE, policy, workers=2, router="least-work").knows in ("outputs", exact)
    comparison = compare(INSTANCE, [policy, "area"])
    able = comparison.best_deployable
    assert (able.policy if able else None) == (policy.name if exact == "nothing" else None)


def test_a_plan_of_memory_reads_the_outputs_for_a_key_that_does_not():
    policy = DynamicPolicy("waited", "", lambda state: -state.waited)
    assert run(INSTANCE, policy).knows == "outputs"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (lambda instance: instance.prompts, "nothing"),
        (lambda instance: -instance.arrivals, "nothing"),
        (lambda instance: instance.outputs, "outputs"),
        (lambda instance: instance.peaks, "outputs"),
        (lambda instance: instance.areas / instance.prompts, "outputs"),
        (lambda instance: np.array(instance.columns()["outputs"]), "outputs"),
        (lambda instance: instance.replace(name="x").outputs, "outputs"),
        (lambda instance: instance.take(range(len(instance))).outputs, "outputs"),
    ],
)
def test_an_order_in_an_engine_is_told_what_its_key_reads(key, told):
    from dataclasses import replace

    order = PriorityPolicy("mine", "", key)
    engine = replace(get_policy("vllm"), order=order)
    assert run(TIMED, engine, clock="llama-3.1-8b-rtx4090").knows == told
    for word in ("nothing", "outputs"):  # as its author says
        said = replace(engine, order=replace(order, reads=word))
        assert said.knows(TIMED) == word
