"""The program of Fluid Section 2.4: most throughput under limits, against grids and a recursion."""

import itertools

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from optsched import RequestTypes, solve
from optsched.errors import ModelError
from optsched.models import ThroughputProgram, equilibrium
from optsched.optimum.throughput import best_throughput

LOW_DEMAND = RequestTypes([10, 10], [10, 20], [1000, 1000])
CLOCK = "affine:0.0085,2.7e-7"


def keeps(types, constant, slope, iteration, rates, limits):
    """Whether rates keep the limits, stage by stage."""
    held = late = 0.0
    for prompt, output, rate in zip(types.prompts, types.outputs, rates, strict=True):
        per_stage = rate * iteration
        held += sum(per_stage * (prompt + stage) for stage in range(output + 1))
        late += rate * iteration * (output + 1.5)
    return (
        constant + slope * held <= iteration * (1 + 1e-9)
        and held <= limits.get("memory", np.inf) * (1 + 1e-9)
        and late <= limits.get("latency_s", np.inf) * sum(rates) * (1 + 1e-9)
        and 1.5 * iteration <= limits.get("ttft_s", np.inf) * (1 + 1e-9)
    )


@pytest.mark.few
@examples(15)
@given(st.integers(0, 10**6))
def test_no_point_of_a_grid_is_better_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    types = RequestTypes(rng.integers(1, 30, 2), rng.integers(1, 30, 2), rng.uniform(1, 60, 2))
    constant, slope = 0.01, float(10 ** rng.uniform(-6, -4))
    clock = f"affine:{constant},{slope:.9f}"
    slope = float(f"{slope:.9f}")
    most = int((types.prompts + types.outputs).max())
    limits = {
        "memory": int(rng.integers(most, 40 * most)),
        "latency_s": float(rng.uniform(1.1, 9)) * constant * float(types.outputs.min() + 1.5),
        "ttft_s": float(rng.uniform(0.02, 0.1)),
    }
    plan = best_throughput(types, clock, **limits)
    assert plan.gap <= 1e-4
    assert keeps(types, constant, slope, plan.iteration_s, plan.rates, limits)
    assert (plan.rates <= types.rates * (1 + 1e-9)).all()
    best = 0.0
    for iteration in np.geomspace(constant, 0.1, 25):
        for shares in itertools.product(np.linspace(0, 1, 9), repeat=2):
            rates = types.rates * shares
            if keeps(types, constant, slope, iteration, rates, limits):
                best = max(best, float(types.stages @ rates))
    assert best <= plan.bound * (1 + 1e-9)
    assert plan.throughput == pytest.approx(plan.bound, rel=2e-4)


def test_without_limits_it_is_the_equilibrium_proposition_2():
    """No policy has more throughput than (8); the fluid reaches it at the equilibrium."""
    plan, balance = best_throughput(LOW_DEMAND, CLOCK), equilibrium(LOW_DEMAND, CLOCK)
    assert plan.throughput == pytest.approx(balance.throughput, rel=1e-4)
    assert plan.iteration_s == pytest.approx(balance.iteration_time, rel=1e-4)
    assert plan.memory == pytest.approx(balance.memory, rel=1e-3)
    assert balance.throughput <= plan.bound
    for limits in ({"memory": 3000}, {"latency_s": 0.15}, {"ttft_s": 0.014}):
        less = best_throughput(LOW_DEMAND, CLOCK, **limits)
        assert less.bound < plan.throughput


def test_a_fluid_of_the_admitted_rates_settles_within_the_limits():
    plan = best_throughput(LOW_DEMAND.scaled(5), CLOCK, memory=20_000, latency_s=0.2)
    admitted = LOW_DEMAND.with_rates(np.maximum(plan.rates, 1e-9))
    settled = equilibrium(admitted, CLOCK)
    assert settled.iteration_time <= plan.iteration_s * (1 + 1e-6)
    assert settled.memory <= 20_000 * (1 + 1e-6)
    waits = settled.iteration_time * (admitted.stages + 0.5)
    assert waits @ plan.rates / plan.rates.sum() <= 0.2 * (1 + 1e-6)


@examples(25)
@given(st.floats(0.009, 0.02), st.floats(1.0, 1.5), st.floats(0, 1))
def test_the_relaxation_of_an_interval_is_above_every_time_in_it(low, factor, place):
    limits = {"memory": 9_000, "latency_s": 0.18}
    high = low * factor
    inside = low + place * (high - low)
    types = LOW_DEMAND.scaled(4)
    relaxed = ThroughputProgram(types, CLOCK, low, **limits, longest_s=high)
    exact = ThroughputProgram(types, CLOCK, inside, **limits)
    assert solve(relaxed).objective >= solve(exact).objective * (1 - 1e-7)
    rates = solve(exact).answer
    assert exact.read(exact.write_point(rates)) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttft_s": 0.01}, "an iteration takes 0.0085 s at least, and the limits leave 0.00666667"),
        ({"latency_s": -1.0}, "latency_s is -1.0, but must be a positive number of seconds"),
        ({"gap": 1.0}, "gap is 1.0, but must be a share between 0 and 1"),
    ],
)
def test_impossible_limits_are_named(options, message):
    with pytest.raises(ModelError, match=message):
        best_throughput(LOW_DEMAND, CLOCK, **options)


def test_an_overload_needs_a_limit():
    with pytest.raises(ModelError, match="throughput grows with the iteration time without end"):
        best_throughput(LOW_DEMAND.scaled(10), CLOCK)
