"""A stranger's task: four published policies over five seeds, with intervals and proven gaps."""

import statistics

import numpy as np
import pytest

import optsched
from optsched import DecisionPolicy
from optsched.policies import Decision

SEEDS = range(5)
STUDENT = 2.776  # 97.5 % of the t distribution with four degrees of freedom


def shortest_remaining(state):
    return Decision.most_urgent(state, state.forecast.upper - state.made)


def least_attained(state):
    return Decision.most_urgent(state, state.made)


def limited(state):
    left = (state.forecast.upper - state.made).astype(float)
    left[state.running[state.tokens >= 0.8 * state.forecast.upper[state.running]]] = -np.inf
    return Decision.most_urgent(state, left)


def feedback(state):
    joined = np.ceil(np.log2(np.maximum((1 + state.forecast.prompts / 64) / 4, 1)))
    level = joined + np.floor(np.log2(1 + state.made / (4 * 2**joined)))
    level[state.waiting[state.waited > 400]] = 0
    return Decision.most_urgent(state, level)


def first_come(state):
    return Decision.most_urgent(state, np.arange(len(state.forecast)))


def interval(values):
    middle = statistics.mean(values)
    half = STUDENT * statistics.stdev(values) / len(values) ** 0.5
    return middle - half, middle + half


@pytest.fixture(scope="module")
def means():
    """The mean latency of each policy on each seed, every run checked and held to its bound."""
    found = {}
    for seed in SEEDS:
        instance = optsched.family("exponential", n=80, seed=seed, load=1.2)
        policies = [
            DecisionPolicy(each.__name__, "", each, preemption="resumed")
            for each in (shortest_remaining, least_attained, limited, feedback, first_come)
        ]
        compared = optsched.compare(instance, policies, intervals="relative:0.3")
        for run in compared:
            assert run.check() == []
            assert run.total_latency >= compared.covering(run)[0].value
            assert 0 <= compared.gap(run) < 1
            found.setdefault(run.policy, []).append(run.mean_latency)
    return found


def test_what_knows_about_lengths_is_better_and_the_interval_says_so(means):
    for name in ("shortest_remaining", "limited"):
        pairs = zip(means["first_come"], means[name], strict=True)
        low, _ = interval([one - other for one, other in pairs])
        assert low > 0, name


def test_limits_on_preemption_save_preemptions():
    instance = optsched.family("exponential", n=80, seed=0, load=1.2)
    free, kept = (
        optsched.run(instance, DecisionPolicy("mine", "", each, preemption="recomputed"))
        for each in (shortest_remaining, limited)
    )
    assert kept.preemptions <= free.preemptions
    assert free.metrics()["preempted_tokens"] == free.preempted_tokens > 0
