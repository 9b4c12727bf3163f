"""What a policy of one's own is told is what it reads, or what its author says."""

import numpy as np
import pytest

from optsched import DecisionPolicy, compare, family, run
from optsched.policies import Decision, DynamicPolicy

INSTANCE = family("exponential", n=30, seed=1)


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
