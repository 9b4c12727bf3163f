"""Better prices: bounds that hold, are no worse, and are certified; with weights and arrivals."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from scipy.optimize import linprog
from strategies import instances

from optsched import Schedule, bound, family, run, verify
from optsched._internal.aside import UNLIMITED, Budget
from optsched.bounds.ascent import PolyakAscent, improve_prices
from optsched.bounds.lagrangian import held_by


@pytest.mark.few
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


@pytest.mark.slow
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


class Tent(PolyakAscent):
    """The least of some linear functions of prices."""

    def __init__(self, slopes, heights, ahead):
        self.slopes, self.heights = np.array(slopes, float), np.array(heights, float)
        self._begin([np.zeros(self.slopes.shape[1])])
        self._aim(ahead)

    def _evaluate(self, prices):
        values = self.slopes @ prices + self.heights
        least = int(values.argmin())
        return float(values[least]), self.slopes[least]


@pytest.mark.slow
def test_the_maximum_of_concave_functions_is_approached_and_never_exceeded():
    shares = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        slopes = np.vstack([rng.integers(-9, 10, (30, 6)), -np.ones(6)])
        heights = rng.integers(0, 50, 31)
        lines = np.hstack([-slopes, np.ones((31, 1))])
        most = -linprog([0] * 6 + [-1], lines, heights, bounds=[(0, None)] * 6 + [(None, None)]).fun
        tent = Tent(slopes, heights, 50.0)
        first = tent.best
        tent.climb(3000, UNLIMITED)
        assert first <= tent.best <= most + 1e-9
        if most > first + 1e-9:
            shares.append((tent.best - first) / (most - first))
    assert len(shares) > 40
    assert np.mean(shares) > 0.95


def test_slopes_that_cancel_out_do_not_end_an_ascent():
    # Nine tenths of the first slope, and the second one, add up to nothing.
    tent = Tent([[10], [-9]], [0, 19], 200.0)
    tent.climb(2000, UNLIMITED)
    assert tent.best == pytest.approx(10, rel=1e-3)
