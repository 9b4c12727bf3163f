"""Schedules in batches: their times are those of a literal clock, and of the runs they are from."""

import literal_clocked
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from installed import ENGINE
from strategies import DYADIC, drawn_instance, instances

from optsched import Instance, Schedule, get_clock, run
from optsched.clock import LinearClock
from optsched.errors import ScheduleError
from optsched.experiments.records import in_batches, latency_on

HINGED = LinearClock(
    *("hinged", 0.5, 0.125, 0.25, 0.0625),
    mixed_tokens=0.125,
    hinges=((3, 0.5), (5, 0.25)),
    ramps=((4, 0.25),),
)


def literal_latency(plan, instance, clock):
    """Form the batches that the starts say, one after the other."""
    arrivals = instance.arrivals * (instance.seconds_per_step or 1.0)
    requests = literal_clocked.requests_of(instance.prompts, instance.outputs, arrivals)
    for each in requests:
        each.to_prefill = each.prompt
    formed = 0

    def decide(now, _):
        nonlocal formed
        while True:
            inside = [r for r in requests if plan.starts[r.index] <= formed and r.last is None]
            if inside:
                break
            formed += 1  # a batch without requests is none
        if any(r.arrival > now for r in inside):
            return {}
        formed += 1
        return {r.index: r.to_prefill for r in inside}

    literal_clocked.run(requests, clock, decide)
    return sum(r.last - r.arrival for r in requests)


@examples(200)
@given(instances(), st.data(), st.sampled_from([DYADIC, HINGED]))
def test_starts_in_batches_cost_what_a_literal_clock_says(instance, data, clock):
    instance = instance.replace(seconds_per_step=0.75)
    steps = st.lists(st.integers(0, 9), min_size=len(instance), max_size=len(instance))
    plan = Schedule(instance.replace(arrivals=None), data.draw(steps))
    assert latency_on(clock, plan, instance) == literal_latency(plan, instance, clock)


@pytest.mark.parametrize("policy", ["work", "area+window", "mc-sf+skip", "fcfs"])
def test_a_run_in_batches_costs_what_the_run_costs(policy):
    rng = np.random.default_rng(7)
    clock = get_clock("llama-2-70b-2xa100")
    for _ in range(5):
        instance = drawn_instance(rng).replace(seconds_per_step=0.01)
        made = run(instance, policy, clock=clock)
        plan = in_batches(made)
        cost = latency_on(clock, plan, instance)
        assert not plan.check()
        assert cost == pytest.approx(made.total_latency, rel=1e-12)


def test_a_run_on_several_workers_keeps_its_placement():
    instance = Instance([5, 9, 2, 7, 4], [3, 1, 6, 2, 2], 20, [0, 0, 3, 3, 8], seconds_per_step=1.0)
    made = run(instance, "area", clock=DYADIC, workers=2, router="round-robin")
    plan = in_batches(made)
    assert plan.placement.tolist() == made.placement.tolist() == [0, 1, 0, 1, 0]
    assert latency_on(DYADIC, plan, instance) == pytest.approx(made.total_latency)


def test_a_run_that_starts_cannot_describe_is_refused():
    crowded = Instance([30] * 6, [100] * 6, memory=400)
    made = run(crowded, ENGINE, clock="llama-2-7b-a100")
    assert made.preemptions
    said = f"the run of {ENGINE} leaves requests unfinished, stops"
    with pytest.raises(ScheduleError, match=said):
        in_batches(made)
