"""Routers on serving engines: paused and resumed, an engine does what it does at a stretch."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from installed import SERVING

from optsched import Instance, RunSettings, run
from optsched.clock import LinearClock
from optsched.policies import EnginePolicy
from optsched.problem.routing import Load
from optsched.problem.work import arrival_times
from optsched.problem.workers import ROUTERS, Workers
from optsched.simulate.runners import runner_of
from optsched.simulate.settings import Task

CLOCK = LinearClock("dyadic", 0.5, 0.125, 0.25, 0.0625, 0.03125, 0.015625)
SMALL = {"max_num_seqs": 3, "max_num_batched_tokens": 8}
ENGINES = [
    EnginePolicy("mixed", "", "mixed", **SMALL),
    EnginePolicy("prefill", "", "prefill-first", **SMALL),
    EnginePolicy("chunked", "", "chunked", **SMALL),
]
if SERVING:
    from optsched.policies import VllmPolicy

    ENGINES += [
        VllmPolicy("vllm", "", block_size=4, async_scheduling=False, **SMALL),
        VllmPolicy("vllm-async", "", block_size=4, **SMALL),
        VllmPolicy("vllm-area", "", block_size=4, **SMALL).parsed("area"),
        VllmPolicy("vllm-plan", "", block_size=4, **SMALL).with_options("plan"),
    ]
LOOKING = sorted(name for name, router in ROUTERS.items() if router.looks)


@st.composite
def traces(draw):
    """Draw requests with prompts on engines with little memory, so that some are preempted."""
    count = draw(st.integers(1, 12))
    prompts = draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 10), min_size=count, max_size=count))
    arrivals = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    return Instance(prompts, outputs, 24, arrivals, seconds_per_step=0.75)


@pytest.mark.no_cover
@examples(200)
@given(traces(), st.sampled_from(ENGINES), st.integers(1, 3))
def test_an_engine_that_is_paused_does_what_it_does_at_a_stretch(instance, policy, count):
    task = Task(instance, policy, RunSettings(clock=CLOCK))
    rng = np.random.default_rng(len(instance))
    placement = rng.integers(0, count, len(instance))
    every = np.arange(count)
    with runner_of(policy).paused(task, Workers([24] * count)) as engines:
        for request, time in enumerate(arrival_times(instance, CLOCK).tolist()):
            engines.look(time, every)
            engines.place(int(placement[request]), request, time)
        last = Load(*engines.look(1e9, every).T)
        runs = engines.finish(placement)
    for worker in range(count):
        own = np.flatnonzero(placement == worker)
        if len(own):
            alone = run(instance.take(own), policy, clock=CLOCK)
            assert np.array_equal(runs[worker].log.spans, alone.log.spans)
            assert np.array_equal(runs[worker].last_batch, alone.last_batch)
    assert last.made.sum() == instance.outputs.sum()
    assert not any(np.any(each) for each in last._replace(made=0))  # all is done in the end


@examples(100)
@given(traces(), st.sampled_from(ENGINES), st.sampled_from(LOOKING))
def test_each_engine_does_what_it_does_alone(instance, policy, router):
    routed = run(instance, policy, workers=2, router=router, clock=CLOCK)
    for worker in range(2):
        own = routed.requests_on(worker)
        if len(own):
            alone = run(instance.take(own), policy, clock=CLOCK)
            assert np.array_equal(routed.on(worker).log.spans, alone.log.spans)
            assert np.array_equal(routed.on(worker).last_batch, alone.last_batch)
    assert not routed.unfinished


@examples(100)
@given(traces(), st.sampled_from(ENGINES[:4]), st.sampled_from([0.0, 1.0, 2.5, 6.25]))
def test_loads_are_those_of_the_batches_until_then(instance, policy, time):
    """What is on one engine, recounted from the run of what has arrived before."""
    arrivals = arrival_times(instance, CLOCK)
    task = Task(instance, policy, RunSettings(clock=CLOCK))
    before = np.flatnonzero(arrivals < time)
    with runner_of(policy).paused(task, Workers([24])) as engines:
        for request in before.tolist():
            engines.place(0, request, arrivals[request])
        load = Load(*engines.look(time, np.array([0]))[0])
    if not len(before):
        assert not any(load)
        return
    alone = run(instance.take(before), policy, clock=CLOCK)
    spans = np.append(alone.log.spans, [[np.inf, np.inf]], axis=0)
    open_yet = spans[alone.last_batch, 1] > time
    assert load.waiting + load.running == open_yet.sum()
    formed = int((alone.log.spans[:, 0] < time).sum())
    amid = formed > 0 and alone.log.spans[formed - 1, 1] > time
    if formed and amid and policy.name == "mixed":
        assert load.held == alone.log.usage[formed - 1]
    least = instance.outputs[before][open_yet].sum()
    assert load.work <= instance.areas[before][open_yet].sum()
    assert (load.work > 0) <= bool(least)
