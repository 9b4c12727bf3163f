"""A stranger's task: a predictor that is wrong now and then, and beliefs of one's own."""

import numpy as np

import optsched
from optsched import Beliefs, DecisionPolicy, Instance
from optsched.policies import Decision, DynamicPolicy


def predicted():
    """Draw requests whose intervals miss about a fifth of the outputs."""
    rng = np.random.default_rng(7)
    outputs = rng.geometric(0.05, 60).clip(1, 100)
    guess = np.maximum(1, outputs * np.exp(rng.normal(scale=0.5, size=60))).astype(int)
    return Instance(
        rng.integers(1, 40, 60),
        outputs,
        memory=300,
        arrivals=np.sort(rng.integers(0, 200, 60)),
        output_lower=np.maximum(1, guess // 2),
        output_upper=np.maximum(guess * 3 // 2, 1),
    )


def expected_remaining(state):
    mean = state.forecast.beliefs.mean()
    return Decision.most_urgent(state, np.maximum(mean - state.made, 0))


def least_attained(state):
    return Decision.most_urgent(state, state.made)


def test_intervals_that_miss_are_run_and_said_so():
    instance = predicted()
    policy = DynamicPolicy("shortest", "", lambda state: state.lower[state.waiting])
    for preemption in ("none", "recomputed", "resumed"):
        mine = DynamicPolicy("shortest", "", policy.key, preemption=preemption)
        found = optsched.run(instance, mine, intervals="column")
        assert found.check() == []
        assert found.unfinished == 0
        assert 0.5 < found.metrics()["coverage"] < 1
        assert "covering" in str(found)
        least = optsched.bound(instance, "closed-form").value
        assert found.total_latency >= least


def test_beliefs_of_ones_own_guide_what_is_preempted():
    instance = predicted()
    guess = instance.output_upper / 1.5
    beliefs = Beliefs.around(guess, 0.5, 299)
    policy = DecisionPolicy("expected", "", expected_remaining, preemption="recomputed")
    known = {"intervals": "common:1,299", "beliefs": beliefs}
    found = optsched.run(instance, policy, **known)
    least = DecisionPolicy("least", "", least_attained, preemption="resumed")
    blind = optsched.run(instance, least, intervals="common:1,299")
    assert found.check() == blind.check() == []
    assert found.total_latency < blind.total_latency
    likely = optsched.run(instance, "area-chance", **known)
    compared = optsched.compare(instance, [policy, "area-chance"], **known)
    assert compared["expected"].total_latency == found.total_latency
    assert compared["area-chance"].total_latency == likely.total_latency
    assert compared.gap("expected") > 0
