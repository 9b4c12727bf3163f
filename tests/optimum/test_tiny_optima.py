"""Two thousand tiny instances: exact search, HiGHS and trying all schedules find one number.

No bound is above it, no certificate is trusted, and an interrupted run gives a valid interval.
"""

import dataclasses

import numpy as np
import pytest
from brute_force import optima
from effort import share

from optsched import HindsightProgram, Instance, SolveParams, bound, run, solve, verify
from optsched._internal.aside import Budget
from optsched.bounds.ascent import improve_prices
from optsched.bounds.configurations import configuration_bound
from optsched.search.exact.search import solve_exact

BATCHES, EACH = 10, share(200)


def draw(rng):
    """Draw two to four requests, offline or with arrivals."""
    count, memory = int(rng.integers(2, 5)), int(rng.integers(3, 11))
    outputs = rng.integers(1, min(4, memory), count)
    prompts = rng.integers(0, memory - outputs + 1)
    arrivals = np.sort(rng.integers(0, 4, count)) * int(rng.integers(0, 2))
    return Instance(prompts, outputs, memory, arrivals)


def raised(certificate, rng):
    """Raise one price at random; the claim stays."""
    prices = list(certificate.prices)
    if prices:
        prices[int(rng.integers(len(prices)))] += int(rng.integers(1, 2**20))
    return dataclasses.replace(certificate, prices=tuple(prices))


@pytest.mark.slow
@pytest.mark.no_cover  # other tests reach every line that runs here
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_agree_and_no_bound_is_above_the_optimum(batch):
    rng = np.random.default_rng(batch)
    late = 0
    for number in range(EACH):
        instance = draw(rng)
        late += bool(instance.arrivals.any())
        where = (batch, number)
        least = optima(instance)["total-latency"]
        program = HindsightProgram(instance)
        solution = solve(program, method="highs").require(optimal=True)
        assert solution.objective == least, where
        assert solution.answer.total_latency == least, where
        sizes = configuration_bound(instance, phases=2, iterations=24)
        found = solve_exact(instance, certificate=sizes.certificate)
        assert found.schedule.check() == [], where
        assert found.proven_optimal, where
        assert found.lower == found.schedule.total_latency == least, where
        assert bound(instance, "closed-form").value <= least, where
        prices = bound(instance, "lagrangian")
        better = improve_prices(
            run(instance, "area").schedule, prices.certificate, Budget(work=1e5)
        )
        for proven in (sizes, prices, better):
            assert proven.value <= proven.certificate.value <= least, where
            assert verify(proven.certificate, instance) == proven.certificate.value, where
            assert verify(raised(proven.certificate, rng), instance) <= least, where
    assert late >= EACH // 4


@pytest.mark.parametrize("threads", [1, 2])
def test_interrupted_at_any_moment_the_interval_holds(threads):
    rng = np.random.default_rng(threads)
    interrupted = 0
    for _ in range(share(40)):
        instance = draw(rng)
        least, moment = optima(instance)["total-latency"], int(rng.integers(8))
        calls = iter(range(moment))

        def stop(progress, calls=calls):
            if next(calls, None) is None:
                raise KeyboardInterrupt

        result = solve(
            instance, time_limit=5, params=SolveParams(threads=threads, on_progress=stop)
        )
        interrupted += result.status == "interrupted"
        assert result.schedule.check() == []
        assert result.bound <= least <= result.objective
    assert interrupted


@pytest.mark.slow
def test_hindsight_proves_the_optimum_of_tiny_instances_with_arrivals():
    rng = np.random.default_rng(99)
    solved = 0
    while solved < 30:
        instance = draw(rng)
        if not instance.arrivals.any():
            continue
        result = solve(instance, time_limit=30)
        assert result.proven_optimal
        assert result.objective == result.bound == optima(instance)["total-latency"]
        solved += 1
