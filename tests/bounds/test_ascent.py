"""Better prices: bounds that hold, are no worse, and are certified; with weights and arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from strategies import instances

from optsched import Schedule, bound, family, run, verify
from optsched._internal.aside import Budget
from optsched.bounds.ascent import improve_prices
from optsched.bounds.lagrangian import held_by


@given(instances(max_requests=4, max_memory=12, max_arrival=5, max_output=4), st.data())
@examples(150)
def test_better_prices_prove_no_less_and_never_more_than_the_optimum(instance, data):
    weight = st.sampled_from([0.25, 1, 2, 3])
    instance = instance.replace(weights=[data.draw(weight) for _ in range(len(instance))])
    schedule = run(instance, data.draw(st.sampled_from(["fcfs", "area"]))).schedule
    for objective in ("total-latency", "weighted-latency"):
        first = bound(instance, "lagrangian", objective)
        found = improve_prices(schedule, first.certificate, Budget(work=1e6))
        assert found.value >= first.value
        assert verify(found.certificate, instance) == found.certificate.value >= found.value
        cost = schedule.weighted_latency if "weighted" in objective else optimum(instance)
        assert found.value <= cost


@given(instances(), st.integers(1, 60))
def test_tokens_held_are_those_of_the_schedule(instance, horizon):
    schedule = run(instance, "area").schedule
    profile = np.zeros(horizon, dtype=np.int64)
    known = schedule.memory_profile()[1 : horizon + 1]
    profile[: len(known)] = known
    held = held_by(instance.prompts, instance.outputs, schedule.starts, horizon)
    assert held.tolist() == profile.tolist()


@pytest.mark.parametrize("name", ["chat-and-summaries", "exponential"])
def test_with_arrivals_better_prices_gain_percents(name):
    instance = family(name, n=200, seed=1, load=1.1)
    schedule = run(instance, "area").schedule
    first = bound(instance, "lagrangian")
    once = improve_prices(schedule, first.certificate, Budget(work=2e8))
    assert once.value > 1.03 * first.value
    assert once.value <= schedule.total_latency
    assert (
        improve_prices(schedule, first.certificate, Budget(work=2e8)).certificate
        == once.certificate
    )


def test_an_interrupt_keeps_the_best_so_far():
    instance = family("exponential", n=100, seed=1, load=1.1)
    first = bound(instance, "lagrangian")

    def interrupt(value):
        raise KeyboardInterrupt

    found = improve_prices(
        run(instance, "area").schedule, first.certificate, Budget(report=interrupt)
    )
    assert found.interrupted
    assert found.value >= first.value
    late = improve_prices(run(instance, "area").schedule, first.certificate, Budget(deadline=0.0))
    assert late.value >= first.value


def test_no_ascent_is_needed_where_nothing_competes():
    instance = family("exponential", n=3, seed=1, memory=1000)
    schedule = Schedule(instance, instance.arrivals)
    found = improve_prices(schedule, bound(instance, "lagrangian").certificate)
    assert found.value == schedule.total_latency
