"""Thresholds of WAIT: integer program, least fixed point and brute force."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from effort import share

from optsched import InfeasibleError, RequestTypes, solve
from optsched.clock import LinearClock, affine
from optsched.errors import InstanceError, ModelError
from optsched.models import WaitThresholds, equilibrium
from optsched.models.program import Stopped

LOW_DEMAND = RequestTypes([10, 10], [10, 20], [1000, 1000])
CLOCK = "affine:0.0085,2.7e-7"


def random_types(rng, most=6, load=None):
    count = rng.integers(1, most + 1)
    types = RequestTypes(
        rng.integers(0, 60, count),
        rng.integers(1, 60, count),
        np.round(rng.exponential(5, count) + 0.01, 3),
        bool(rng.integers(2)),
    )
    clock = affine(0.01, 1e-5)
    load = rng.uniform(0.05, 0.97) if load is None else load
    return types.scaled(load / equilibrium(types, clock).load), clock


def literal_memory(types, thresholds):
    """M(n), stage by stage."""
    return sum(
        count * (prompt + stage)
        for prompt, output, count in zip(types.prompts, types.outputs, thresholds, strict=True)
        for stage in range(types.first_stage, output + 1)
    )


def literal_time(types, clock, thresholds):
    """d0 + d1 M(n) in exact numbers."""
    d0, d1 = Fraction(repr(clock.constant)), Fraction(repr(clock.held_tokens))
    return d0 + d1 * int(literal_memory(types, thresholds))


def keeps_up(types, clock, thresholds, slack=0):
    """(9), literally."""
    return all(
        literal_time(types, clock, thresholds) + slack <= count / Fraction(repr(rate))
        for count, rate in zip(thresholds, types.rates.tolist(), strict=True)
    )


@pytest.mark.few
def test_the_integer_program_is_the_least_fixed_point_on_random_types():
    rng = np.random.default_rng(0)
    for _ in range(share(500)):
        types, clock = random_types(rng)
        program = WaitThresholds(types, clock)
        fixed = program.least_fixed_point()
        model = program.to_linear()
        solution = solve(program)
        assert solution.proven_optimal
        assert np.array_equal(solution.answer, fixed)
        plan = program.plan(fixed)
        assert plan.memory == round(solution.objective) == literal_memory(types, fixed)
        assert math.isclose(plan.iteration_time, literal_time(types, clock, fixed))
        assert not model.violations(program.write_point(fixed))


def test_least_fixed_point_is_the_least_of_all_in_every_coordinate():
    rng = np.random.default_rng(1)
    for _ in range(60):
        types, clock = random_types(rng, most=3, load=rng.uniform(0.05, 0.7))
        slack = float(rng.choice([0.0, 0.002]))
        types = types.scaled(20 / types.rates.sum())  # a few requests per batch
        if equilibrium(types, clock).load > 0.7:
            continue
        fixed = WaitThresholds(types, clock, minimum_slack=slack).least_fixed_point()
        box = itertools.product(range(1, int(fixed.max()) + 2), repeat=len(types))
        exact = Fraction(repr(slack))
        good = np.array([n for n in box if keeps_up(types, clock, n, exact)])
        assert good.min(axis=0).tolist() == fixed.tolist()
        assert fixed.tolist() in good.tolist()


def test_low_demand_setting():
    plan = WaitThresholds(LOW_DEMAND, CLOCK).plan([11, 11])
    assert plan.memory == 6435
    assert WaitThresholds(LOW_DEMAND, CLOCK).least_fixed_point().tolist() == [11, 11]
    profiled = WaitThresholds(LOW_DEMAND, "affine:0.00851366,2.71606e-7")
    assert profiled.least_fixed_point().tolist() == [11, 11]
    assert WaitThresholds(LOW_DEMAND, "affine:0.0085,1e-6").least_fixed_point().tolist() == [21, 21]


def test_equality_in_9_counts_as_the_decimals_that_were_written():
    """A request holds 10 and then 11 tokens: T(n) = 0.08 + 0.21 n, and T(2) = 2 / 4."""
    types = RequestTypes([10], [1], [4], names=["only"])
    clock = affine(0.08, 0.01)
    program = WaitThresholds(types, clock)
    assert program.least_fixed_point().tolist() == [2]
    assert program.plan([2]).slacks.tolist() == [0]
    strict = WaitThresholds(types, clock, minimum_slack=1e-9)
    assert strict.least_fixed_point().tolist() == [3]
    with pytest.raises(InfeasibleError, match=r"break \(9\) for type only: 2 of it arrive in 0.5"):
        strict.plan([2])


@pytest.mark.slow
def test_the_largest_slack_is_found_by_bisection_too():
    rng = np.random.default_rng(2)
    for _ in range(30):
        types, clock = random_types(rng, most=4)
        free = WaitThresholds(types, clock)
        limit = int(free.plan(free.least_fixed_point()).memory * rng.uniform(1, 3))
        limit = max(limit, int((types.prompts + types.outputs).max()))
        program = WaitThresholds(types, clock, memory=limit, objective="slack")
        model = program.to_linear()
        solution = solve(program)
        assert solution.bound - solution.objective <= 2e-6 * max(1, solution.objective)
        plan = program.plan(solution.answer)
        assert math.isclose(plan.slacks.min(), solution.objective, rel_tol=1e-5, abs_tol=1e-6)
        assert not model.violations(program.write_point(plan.thresholds))
        low, high = 0.0, 2 * float(plan.slacks.min()) + 1
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            least = WaitThresholds(types, clock, minimum_slack=middle).least_fixed_point()
            low, high = (middle, high) if literal_memory(types, least) <= limit else (low, middle)
        assert math.isclose(plan.slacks.min(), low, rel_tol=1e-5, abs_tol=1e-6)


def test_infeasible_sets_are_infeasible_for_the_solver_and_named():
    rng = np.random.default_rng(3)
    for _ in range(40):
        types, clock = random_types(rng, most=4)
        free = WaitThresholds(types, clock)
        plan = free.plan(free.least_fixed_point())
        for limits in ({"memory": plan.memory - 1}, {"batch_limit": plan.batch_size - 1}):
            if limits.get("memory", 10**6) < (types.prompts + types.outputs).max():
                continue
            if limits.get("batch_limit", 1) < 1:
                continue
            program = WaitThresholds(types, clock, **limits)
            assert solve(program).status is Stopped.INFEASIBLE
            share = plan.memories if "memory" in limits else types.stages * plan.thresholds
            name = types.names[int(np.argmax(share))]
            with pytest.raises(InfeasibleError, match=f"type {name} needs most"):
                program.least_fixed_point()


def test_any_weighted_sum_is_a_clock():
    clock = LinearClock("tenths", constant=0.5, decode_requests=0.1)
    program = WaitThresholds(RequestTypes([5], [4], [1]), clock)  # T(n) = 0.5 + 0.4 n <= n
    assert program.least_fixed_point().tolist() == [1]
    busier = WaitThresholds(RequestTypes([5], [4], [2]), clock)  # 0.5 + 0.4 n <= n / 2
    assert busier.least_fixed_point().tolist() == [5]


def test_pyomo_speaks_of_thresholds_and_time():
    m = WaitThresholds(LOW_DEMAND, CLOCK, memory=9000, objective="slack").to_pyomo()
    assert str(m.memory.expr) == "165.0*threshold[0] + 420.0*threshold[1]  <=  9000.0"
    assert str(m.objective.expr) == "slack"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"types": LOW_DEMAND.scaled(8)}, InfeasibleError, "the load is 1.264, 0.264 above 1"),
        ({"memory": 29}, InstanceError, "memory is 29, but one request of type 2 needs 30 tokens"),
        ({"memory": 1.5}, ModelError, "memory is 1.5, but must be a whole number"),
        ({"batch_limit": 0}, ModelError, "the batch limit is 0, but must be at least 1"),
        ({"minimum_slack": -1}, ModelError, "the slack is -1 s, but must be a number of at least"),
    ],
)
def test_bad_programs_are_refused_in_one_sentence(changes, error, message):
    with pytest.raises(error, match=message):
        WaitThresholds(**({"types": LOW_DEMAND, "clock": CLOCK} | changes))


def test_bad_thresholds_are_refused_in_one_sentence():
    program = WaitThresholds(LOW_DEMAND, CLOCK, memory=6500)
    with pytest.raises(InfeasibleError, match=r"break \(9\) for type 1: 10 of it arrive in 0.01 s"):
        program.plan([10, 11])
    with pytest.raises(InfeasibleError, match="need 6,855 tokens, but the memory is 6,500; type 2"):
        program.plan([11, 12])
    with pytest.raises(InfeasibleError, match="need 363 requests per batch, but the batch limit"):
        WaitThresholds(LOW_DEMAND, CLOCK, batch_limit=352).plan([12, 11])
    with pytest.raises(ModelError, match=r"thresholds are \[11\], but must be 2 numbers"):
        program.plan([11])
    with pytest.raises(ModelError, match=r"threshold\[1\] is 0.5"):
        program.read([1, 0.5])
    with pytest.raises(ModelError, match="unknown objective 'speed': known: memory, slack"):
        WaitThresholds(LOW_DEMAND, CLOCK, objective="speed")
    with pytest.raises(ModelError, match="the slack grows without end"):
        WaitThresholds(LOW_DEMAND, CLOCK, objective="slack").to_linear()
