"""Engines that share experts wait for each other in every batch: beside a literal simulation."""

import dataclasses

import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from vllm_runs import policy_of

from optsched import Instance, OptschedError, bound, capacity, run
from optsched.clock import BatchContent, LinearClock
from optsched.policies import get_policy
from optsched.workloads import Measured
from optsched_serving.calibration import check_clock

OWN = LinearClock("own", constant=0.25, prefill_tokens=0.125, resident_tokens=0.0625)
PART = LinearClock("experts", constant=0.5, decode_requests=0.5, ramps=((4, 0.25),))
CLOCK = OWN.with_shared(PART)


def served_literally(instance, placement, count, settings):
    """Return when requests were served, and how many steps the ranks took."""
    requests = [
        literal_vllm.Request(at, int(prompt), int(output), float(arrival))
        for at, (prompt, output, arrival) in enumerate(
            zip(instance.prompts, instance.outputs, instance.arrivals, strict=True)
        )
    ]
    ranks = [literal_vllm.Scheduler(settings) for _ in range(count)]
    formed, coming = [[] for _ in ranks], list(requests)
    depth, now, steps, done = 1 + settings.async_scheduling, 0.0, 0, {}
    while len(done) < len(requests):
        while coming and coming[0].arrival <= now:
            request = coming.pop(0)
            ranks[placement[request.index]].add(request)
        for rank, batches in zip(ranks, formed, strict=True):
            while len(batches) < depth and (rank.running or rank.waiting):
                batch = rank.schedule()
                if batch.parts:
                    batches.append(batch)
                elif batches or not batch.row[-1]:
                    break
        contents = [literal_vllm.content_of(each[0]) for each in formed if each]
        if not contents:
            now = coming[0].arrival
            continue
        alone = max(CLOCK(each) - PART(each) for each in contents)
        now += alone + PART(BatchContent(*np.sum(contents, axis=0)))
        steps += 1
        for rank, batches in zip(ranks, formed, strict=True):
            if batches:
                rank.update(batches.pop(0), steps)
        done |= {each.index: now for each in requests if each.last == steps}
    return [done[at] for at in range(len(requests))]


@examples(150)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 30)),
        min_size=1,
        max_size=9,
    ),
    st.integers(6, 9),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["round-robin", "vllm-dp", "least-tokens"]),
)
def test_ranks_form_the_batches_of_the_literal_schedulers(rows, blocks, count, later, router):
    prompts, outputs, arrivals = np.array(sorted(rows, key=lambda row: row[2])).T
    instance = Instance(prompts, outputs, 4 * blocks, arrivals=arrivals, seconds_per_step=1.0)
    case = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8}
    case |= {"num_gpu_blocks": blocks + 1, "async_scheduling": later, "policy": "fcfs"}
    found = run(instance, policy_of(case), workers=count, router=router, clock=CLOCK)
    expected = served_literally(instance, found.placement, count, literal_vllm.Settings(**case))
    assert found.completions == pytest.approx(expected, rel=1e-12)
    assert not found.check()


def alike(seed):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, 9, 60))
    lengths = rng.integers(1, 20, (2, 60))
    return Instance(*lengths, 400, arrivals=arrivals, seconds_per_step=1.0)


def test_a_log_of_ranks_is_checked_as_they_ran_and_not_as_others_do():
    instance, policy = alike(1), get_policy("vllm")
    times = run(instance, policy, workers=2, router="vllm-dp", clock=CLOCK).times
    measured = Measured(np.zeros(60), times.ttft, times.latency)
    check = check_clock(CLOCK, instance, measured, policy, workers=2)
    assert (check.verdict, check.error()) == ("holds", 0)
    apart = dataclasses.replace(CLOCK, shared=None)
    assert check_clock(apart, instance, measured, policy, workers=2).verdict == "off"


def test_a_rank_alone_is_an_engine():
    instance = alike(2)
    apart = dataclasses.replace(CLOCK, shared=None)
    for policy in ("vllm", "work", "mixed", "sarathi", "area"):
        times = [run(instance, policy, clock=clock).times for clock in (CLOCK, apart)]
        assert times[0].latency.tolist() == times[1].latency.tolist()
    assert bound(instance, clock=CLOCK).value == bound(instance, clock=apart).value


def test_who_does_not_wait_for_others_is_refused():
    instance, two = alike(3), {"workers": 2, "router": "round-robin"}
    with pytest.raises(OptschedError, match="on clock own workers share experts and wait for each"):
        run(instance, "area", clock=CLOCK, **two)
    for clocks in ([CLOCK, OWN], [OWN, CLOCK]):
        with pytest.raises(OptschedError, match="have one clock; pass that alone"):
            run(instance, "vllm", clock=clocks, **two)
    with pytest.raises(OptschedError, match="clock own is for one number of engines"):
        capacity(instance, "latency:mean<=90s", clock=CLOCK)
