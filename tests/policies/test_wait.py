"""WAIT and Nested WAIT: what they decide, and what it does to memory and backlog."""

import numpy as np
import pytest
from effort import share
from installed import with_serving

from optsched import Instance, RequestTypes, get_clock, run
from optsched.errors import ClockError, PolicyError
from optsched.models import NestedWaitThresholds, WaitThresholds, equilibrium
from optsched.policies import get_policy, split_names
from optsched.policies.wait import WAITING, NestedWaitPolicy, WaitPolicy
from optsched.simulate.seconds.batches import EngineRequests
from optsched.simulate.seconds.serving import serve_waiting

CLOCK = get_clock("affine:0.0085,2.7e-7")
TYPES = RequestTypes([10] * 4, [20, 40, 80, 160], [200, 100, 60, 40], prefill_makes_token=True)


def poisson(types, count, seed, memory=10**6):
    """Requests of these types, and their times of arrival."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(types), count, p=types.rates / types.rates.sum())
    times = np.cumsum(rng.exponential(1 / types.rates.sum(), count))
    return Instance(types.prompts[kinds], types.outputs[kinds], memory), kinds, times


def serve(instance, queues, times, clock=CLOCK):
    requests = EngineRequests(instance.prompts, times, instance.outputs, instance.memory)
    return serve_waiting(requests, clock, queues)


def test_nested_memory_stays_within_its_bound():
    program = NestedWaitThresholds(TYPES, CLOCK)
    best = program.best_margin(delta=0.01, iterations=2000)
    policy = NestedWaitPolicy(
        borders=tuple(program.borders.tolist()), thresholds=tuple(best.thresholds.tolist())
    )
    peaks = []
    for seed in range(share(100)):
        instance, _, times = poisson(TYPES, 3000, seed)
        served, log = serve(instance, policy.queues(instance, CLOCK, times), times)
        assert len(log.usage) <= 2000
        assert not served.preempted.any()
        # After the last arrival all are flushed, whatever the thresholds.
        peaks.append(log.usage[log.spans[:, 0] < times[-1]].max())
    assert max(peaks) <= best.memory_bound
    assert max(peaks) > 0.7 * best.memory


def test_wait_never_holds_more_than_a_full_batch():
    program = WaitThresholds(TYPES, CLOCK, minimum_slack=0.001)
    plan = program.plan(program.least_fixed_point())
    for seed in range(10):
        instance, kinds, times = poisson(TYPES, 3000, seed)
        policy = WaitPolicy(
            classes=4,
            thresholds=tuple(plan.thresholds.tolist()),
            borders=tuple(TYPES.outputs.tolist()),
        )
        queues = policy.queues(instance, CLOCK, times)
        assert np.array_equal(queues.entrance, kinds)
        served, log = serve(instance, queues, times)
        assert log.usage.max() <= plan.memory
        lasts = np.diff(log.spans, axis=1)[:, 0]
        assert lasts.max() <= plan.iteration_time * (1 + 1e-9)
        assert (served.last >= 0).all()


def test_thresholds_of_a_trace_keep_up_with_its_classes():
    instance, _, times = poisson(TYPES, 4000, 1)
    queues = WaitPolicy(classes=4).queues(instance, CLOCK, times)
    rate = (len(times) - 1) / (times[-1] - times[0])
    types = RequestTypes.from_instance(instance, 4, rate=rate)
    expected = WaitThresholds(types, CLOCK).least_fixed_point()
    assert queues.thresholds.tolist() == [expected.tolist()]
    assert (np.bincount(queues.entrance) == 1000).all()
    for segment in range(4):
        members = instance.outputs[queues.entrance == segment]
        assert members.max() == queues.length[segment]


def test_windows_follow_the_rate():
    """Twice as many arrive in the second half: about twice the thresholds."""
    instance, _, times = poisson(TYPES, 6000, 2)
    times = np.where(np.arange(6000) < 2000, 2 * times, times + times[2000])
    half = (times[-1] - times[0]) * 6000 / 5999 / 2
    for policy in (WaitPolicy(classes=2, window=half), NestedWaitPolicy(window=half)):
        queues = policy.queues(instance, CLOCK, times)
        assert len(queues.changes) == len(queues.thresholds) == 2
        assert queues.changes[0] == 0
        low, high = queues.thresholds[:, 0]
        assert 1.5 * low < high
    assert len(WaitPolicy(window=1e9).queues(instance, CLOCK, times).changes) == 1


def test_an_overload_gives_thresholds_for_what_can_be_kept_up_with():
    busy = TYPES.scaled(3 / equilibrium(TYPES, CLOCK).load)
    instance, _, times = poisson(busy, 3000, 3, memory=10**7)
    for policy in WAITING:
        queues = policy.queues(instance, CLOCK, times)
        assert queues.thresholds.min() >= 1
        assert queues.thresholds.max() > 1
        served, _ = serve(instance, queues, times)
        assert (served.last >= 0).all()


def test_small_memories_leave_thresholds_of_one_and_fewer_classes():
    instance, _, times = poisson(TYPES, 500, 4, memory=2000)
    queues = WaitPolicy().queues(instance, CLOCK, times)
    assert queues.thresholds.tolist() == [[1]]
    instance, _, times = poisson(TYPES, 500, 4, memory=12_000)
    classes = len(WaitPolicy().queues(instance, CLOCK, times).length)
    assert 1 < classes < 8
    for policy in WAITING:
        served, log = serve(instance, policy.queues(instance, CLOCK, times), times)
        assert (served.last >= 0).all()
        assert log.usage.max() <= 12_000


def test_nested_wait_does_not_look_at_outputs_one_by_one():
    instance, _, times = poisson(TYPES, 500, 5)
    queues = NestedWaitPolicy().queues(instance, CLOCK, times)
    assert not queues.entrance.any()
    assert queues.before.tolist() == list(range(-1, len(queues.length) - 1))
    assert queues.length.sum() == instance.outputs.max()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WaitPolicy(classes=0), "policy 'wait': classes is 0, but must be at least 1"),
        (lambda: WaitPolicy(window=0), "window is 0, but must be above 0"),
        (lambda: WaitPolicy(classes=2, thresholds=(1, 0)), r"thresholds are \[1, 0\], but each"),
        (lambda: WaitPolicy(thresholds=(1, 2)), "2 thresholds for 8 classes; pass one per class"),
        (lambda: WaitPolicy(classes=2, borders=(1, 2)), "give borders and thresholds together"),
        (
            lambda: WaitPolicy(classes=2, borders=(5, 5), thresholds=(1, 1)),
            r"the borders \[5, 5\] must be at least 1 and ascend",
        ),
        (lambda: NestedWaitPolicy(segments=-1), "segments is -1, but must be at least 1"),
        (lambda: NestedWaitPolicy(thresholds=(1,)), "give borders and thresholds together"),
        (
            lambda: NestedWaitPolicy(borders=(5, 4), thresholds=(1, 1)),
            r"the borders \[5, 4\] must be at least 1 and ascend",
        ),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_what_cannot_be_decided_is_refused_in_one_sentence():
    instance, _, times = poisson(TYPES, 50, 6)
    with pytest.raises(PolicyError, match="policy 'wait' needs rates, but all requests arrive at"):
        WaitPolicy().queues(instance, CLOCK, np.zeros(50))
    short = NestedWaitPolicy(borders=(20, 40), thresholds=(2, 1))
    with pytest.raises(PolicyError, match="an output has 160 tokens, but the last border is 40"):
        short.queues(instance, CLOCK, times)
    with pytest.raises(ClockError, match="the fluid model needs a clock that is a weighted sum"):
        WaitPolicy().queues(instance, get_clock(lambda _: 1.0), times)


def test_both_run_by_name_on_a_clock_and_only_there():
    rng = np.random.default_rng(7)
    instance, _, _ = poisson(TYPES, 200, 7, memory=60_000)
    instance = instance.replace(arrivals=np.sort(rng.integers(0, 2000, 200)), seconds_per_step=0.01)
    for name in ("wait", "nested-wait"):
        result = run(instance, name, clock=CLOCK)
        assert (result.unfinished, result.check()) == (0, [])
        with pytest.raises(PolicyError, match=f"'{name}' forms batches that take time; pass a cl"):
            run(instance, name)


def test_thresholds_of_ones_own_by_name():
    instance, _, times = poisson(TYPES, 120, 5)
    by_name = get_policy("wait:20=15,40=14,160=9")
    own = WaitPolicy(classes=3, thresholds=(15, 14, 9), borders=(20, 40, 160))
    for one, other in zip(
        by_name.queues(instance, CLOCK, times), own.queues(instance, CLOCK, times), strict=True
    ):
        assert one.tolist() == other.tolist()
    nested = get_policy("nested-wait:20=15,160=8")
    assert (nested.borders, nested.thresholds) == ((20, 160), (15, 8))
    engines = with_serving("vllm:area,load+plan", "vllm:area,0.5")
    names = ["wait:20=1,160=2", *engines, "fcfs"]
    assert split_names(",".join(names)) == split_names(" , ".join(names)) == names
    assert [get_policy(name).name for name in names] == names
    for name in ("wait:", "wait:15,14", "nested-wait:20=x"):
        with pytest.raises(PolicyError, match=r"should read (nested-)?wait:OUTPUT=THRESHOLD"):
            get_policy(name)
    with pytest.raises(PolicyError, match=r"borders \[40, 20\] must be at least 1 and ascend"):
        get_policy("wait:40=1,20=1")
