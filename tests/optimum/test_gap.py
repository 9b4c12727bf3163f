"""The gap is the sum of its parts, exactly."""

from fractions import Fraction

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

import optsched
from optsched import Instance, OptschedError, Workers, bound, explain_gap, family, run, verify
from optsched.bounds.lagrangian import PricedStarts
from optsched.report import plot_gap
from optsched.report.style import gap_curves
from optsched.search.delays import list_on_workers


@given(instances(max_requests=8, max_arrival=20))
@examples(200)
def test_regrets_and_waste_sum_to_the_gap_in_exact_integers(instance):
    certificate = bound(instance, "lagrangian").certificate
    schedule = run(instance, "fcfs").schedule
    priced = PricedStarts(instance, certificate)
    regrets = priced.regrets(np.arange(len(instance)), schedule.starts)
    profile = schedule.memory_profile().tolist()
    held = [profile[t] if t < len(profile) else 0 for t in range(1, len(priced.prices) + 1)]
    waste = [int(p) * (instance.memory - m) for p, m in zip(priced.prices, held, strict=True)]
    assert min([*regrets.tolist(), *waste]) >= 0
    gap = Fraction(sum(regrets.tolist()) + sum(waste), certificate.denominator)
    assert gap == schedule.total_latency - verify(certificate, instance)
    explained = explain_gap(schedule, certificate)
    parts = explained.order_regret + explained.wasted_memory
    assert parts == pytest.approx(explained.gap) == pytest.approx(float(gap))
    _, waste_curve, regret_curve = gap_curves(explained, 50)
    assert waste_curve[-1] + regret_curve[-1] == pytest.approx(explained.gap, abs=1e-9)


@pytest.mark.few
@given(instances(max_requests=8, max_arrival=20), st.integers(1, 3))
@examples(200)
def test_idle_memory_has_kinds_that_sum_to_the_waste(instance, workers):
    schedule = list_on_workers(
        instance, Workers([instance.memory] * workers), instance.areas.astype(float), 1.4, 8
    )
    pool = instance.replace(memory=workers * instance.memory)
    prices = bound(pool, "lagrangian").certificate
    found = bound(instance, "sawtooth", workers=workers).certificate
    free = growth(schedule, prices)
    for certificate in (prices, found):
        explained = explain_gap(schedule, certificate)
        parts = [explained.order_regret, *explained.idle.values()]
        assert min(*parts, *explained.regrets, *explained.waste) >= -1e-6
        assert sum(parts) == pytest.approx(explained.gap)
        assert explained.gap == pytest.approx(schedule.total_latency - float(certificate.value))
        assert explained.idle["growth"] <= free + 1e-6
    explained = explain_gap(schedule, prices)
    assert explained.idle["growth"] == pytest.approx(free)
    assert explained.idle["irregular"] == 0


def growth(schedule, certificate):
    """The worth of what running requests will hold at the next completion, and do not yet."""
    total = Fraction(0)
    for step, price in enumerate(certificate.prices, 1):
        for worker in range(len(schedule.workers)):
            on = schedule.requests_on(worker)
            ends = schedule.completions[on]
            running = int(((schedule.starts[on] < step) & (ends >= step)).sum())
            if running:
                total += price * running * int(ends[ends >= step].min() - step)
    return float(total / certificate.denominator)


def test_the_request_to_blame_is_named():
    instance = family("chat-and-summaries", n=300, seed=1)
    certificate = bound(instance, "lagrangian").certificate
    explained = explain_gap(run(instance, "fcfs").schedule, certificate)
    frame = explained.to_pandas()
    assert frame["regret"].is_monotonic_decreasing
    assert frame["share"].sum() + explained.wasted_memory / explained.gap == pytest.approx(1)
    assert f"the start of request {frame.index[0]} (prompt" in str(explained)
    ax = plot_gap(explained)
    assert ax.get_ylim()[1] >= explained.gap


def test_no_gap_is_said():
    instance = Instance([5, 5], [3, 4], memory=30)
    explained = explain_gap(
        run(instance, "area").schedule, bound(instance, "lagrangian").certificate
    )
    assert str(explained) == "area has no gap: it is optimal"
    assert explained.to_pandas()["share"].tolist() == [0, 0]


def test_what_does_not_belong_together_is_refused():
    instance = Instance([4, 4], [2, 2], memory=9, weights=[1, 2])
    certificate = bound(instance, "lagrangian").certificate
    with pytest.raises(OptschedError, match="belongs to another instance"):
        explain_gap(run(instance.replace(memory=10), "fcfs").schedule, certificate)
    with pytest.raises(OptschedError, match="the schedule is infeasible: steps 1"):
        explain_gap(optsched.Schedule(instance, [0, 0]), certificate)


def test_gap_of_weighted_latency_is_taken_apart_as_well():
    instance = Instance([4, 4, 3], [2, 2, 5], memory=9, weights=[1, 2, 0.5])
    certificate = bound(instance, "lagrangian", "weighted-latency").certificate
    schedule = run(instance, "fcfs").schedule
    explained = explain_gap(schedule, certificate)
    assert explained.gap == pytest.approx(schedule.weighted_latency - float(certificate.value))
    assert explained.order_regret + explained.wasted_memory == pytest.approx(explained.gap)
