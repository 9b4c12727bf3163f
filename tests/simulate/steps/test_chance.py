"""Admission by what is likely to fit: equal to a literal simulator, feasible, and better."""

from dataclasses import replace

import numpy as np
import pytest
from effort import examples, share
from hypothesis import assume, given
from hypothesis import strategies as st
from literal_attempts import TieError, attempts_of
from literal_chance import ChanceRun
from strategies import drawn_instance, instances, predicted

from optsched import Beliefs, Instance, family, forecast, run
from optsched.clock import UNIT
from optsched.errors import PolicyError
from optsched.policies import get_policy

MAKERS = ["exact", "common:1,12", "classes:3", "relative:0.6"]


@pytest.mark.few
@given(
    instance=predicted(instances(max_requests=8, max_memory=30, max_arrival=20, max_output=12)),
    intervals=st.sampled_from([*MAKERS, "column", "column"]),
    seed=st.integers(0, 2**63 - 1),
    z=st.sampled_from([0, 0.5, 2]),
    passed=st.integers(0, 3),
    weights=st.lists(st.integers(1, 9), min_size=24, max_size=24),
    prior=st.sampled_from([0, 2]),
    cut=st.integers(0, 6),
)
@examples(400)
def test_a_run_equals_the_literal_simulator(
    instance, intervals, seed, z, passed, weights, prior, cut
):
    known = forecast(instance, intervals)
    longest = max(int(known.lower.max()), int(known.upper.max()) - cut)
    table = np.resize(weights, (2, max(longest, 12)))[:, :longest]
    groups = np.arange(len(instance)) % 2
    beliefs = Beliefs(table, groups, prior)
    execution = run(
        instance, f"area-chance:{z},{passed}", intervals=intervals, beliefs=beliefs, seed=seed
    )
    bounds = known.lower.tolist(), known.upper.tolist()
    table = beliefs.chances.tolist()
    literal = ChanceRun(instance, *bounds, table, groups.tolist(), prior, z, passed, seed)
    try:
        expected = literal.run()
    except TieError:
        assume(False)
    assert attempts_of(execution) == sorted(expected.attempts)
    assert execution.check() == []
    assert execution.schedule.check() == []


@pytest.mark.no_cover  # the test above reaches every line that runs here
@pytest.mark.parametrize("policy", ["area-chance", "work-chance"])
def test_every_run_is_feasible_and_repeats_itself(policy):
    rng = np.random.default_rng(5)
    for number in range(share(300)):
        instance = drawn_instance(rng)
        low, wide = rng.integers(1, 60, len(instance)), rng.integers(0, 9, len(instance))
        instance = instance.replace(output_lower=low, output_upper=low + wide)
        intervals = [*MAKERS, "column"][number % 5].replace("12", "30")
        execution = run(instance, policy, intervals=intervals, seed=3)
        assert execution.check() == [], instance.to_json()
        again = run(instance, policy, intervals=intervals, seed=3)
        assert attempts_of(again) == attempts_of(execution)


# Up to eight steps ahead each one is looked at.
@given(instances(max_requests=9, max_memory=30, max_arrival=20, max_output=8))
@examples(100)
def test_with_exact_intervals_nothing_is_preempted_and_the_order_is_that_of_area(instance):
    execution = run(instance, "area-chance:0.5,0", intervals="exact")
    assert execution.preemptions == 0
    same = run(instance, "area").schedule
    if len(set(instance.areas.tolist())) == len(instance):  # ties are random
        assert execution.schedule.starts.tolist() == same.starts.tolist()


def test_in_steps_work_is_memory_time():
    instance = family("chat", n=60, seed=1, memory=2_000)
    runs = [
        run(instance, name, intervals="classes:100", clock=UNIT)
        for name in ("area-chance:1", "work-chance:1")
    ]
    assert runs[0].first_batch.tolist() == runs[1].first_batch.tolist()


def test_what_is_believed_is_learned_from_what_completes():
    # Prompts give the outputs away, which nothing but completions can teach.
    rng = np.random.default_rng(3)
    long = rng.random(400) < 0.3
    prompts = np.where(long, 20, 10)
    arrivals = np.sort(rng.integers(0, 2_000, 400))
    instance = Instance(prompts, np.where(long, 60, 5), 300, arrivals)
    told = Beliefs([[1.0 * (k in (4, 59)) for k in range(60)]], np.zeros(400))
    learned = run(instance, "area-chance", intervals="common:1,60").total_latency
    blind = run(instance, "area-chance", intervals="common:1,60", beliefs=told).total_latency
    known = run(instance, "area").total_latency
    assert known <= learned < 0.97 * blind


def test_what_prompts_say_of_outputs_is_learned_from_a_history():
    # Short prompts have long outputs, which no interval says.
    rng = np.random.default_rng(4)

    def drawn(count):
        long = rng.random(count) < 0.4
        return np.where(long, 10, 40), np.where(long, 100, 5)

    past = Instance(*drawn(300), 1_000)
    instance = Instance(*drawn(300), 1_000, np.sort(rng.integers(0, 700, 300)))
    plain = run(instance, "area-posterior", intervals="common:1,200").total_latency
    ours = run(instance, "area-chance", intervals="common:1,200", beliefs=past).total_latency
    assert run(instance, "area").total_latency <= ours < 0.9 * plain


@pytest.mark.parametrize("parameters", ["x", "nan", "-1", "inf", "1,x", "1,-1", ""])
def test_odd_parameters_are_refused_in_one_sentence(parameters):
    with pytest.raises(PolicyError, match="should read area-chance:Z"):
        get_policy(f"area-chance:{parameters}")


@pytest.mark.parametrize("option", ["deviations", "passed"])
@pytest.mark.parametrize("value", [np.nan, -1, np.inf])
def test_odd_numbers_are_refused_in_one_sentence(option, value):
    with pytest.raises(PolicyError, match=f"{option} is {value}, but must be a (whole )?number"):
        replace(get_policy("area-chance"), **{option: value})


def test_beliefs_without_intervals_are_refused():
    instance = Instance([1, 1], [2, 3], 9)
    with pytest.raises(PolicyError, match="pass intervals too"):
        run(instance, "area", beliefs=instance)


def test_work_needs_a_clock_that_is_a_sum():
    with pytest.raises(PolicyError, match="work-chance' needs a clock"):
        run(Instance([1], [2], 9), "work-chance", clock=lambda batch: 1.0, intervals="exact")
