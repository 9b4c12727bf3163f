"""Five hundred random instances: every solver finds what trying all schedules finds.

HiGHS, CP-SAT on rows and CP-SAT on events must give that number, no bound may be above it and no
policy below. The brute force takes nothing from the package but the fields of the instance.
"""

from fractions import Fraction

import numpy as np
import pytest
from brute_force import OBJECTIVES, optima
from effort import share

from optsched import HindsightProgram, Instance, bound, run, solve, verify
from optsched.bounds.lagrangian import certify
from optsched.models import EventProgram, LatencyRelaxation, safe_horizon
from optsched.models.hindsight import schedule_cost
from optsched.policies import BASIC

BATCHES, EACH = 10, share(50)


def draw(seed):
    """Draw an instance: offline or with arrivals, with equal or unequal prompts or requests."""
    rng = np.random.default_rng(seed)
    count, memory = int(rng.integers(2, 6)), int(rng.integers(4, 13))
    outputs = rng.integers(1, min(4, memory), count)
    prompts = rng.integers(0, memory - outputs + 1)
    kind = seed % 3
    if kind == 1:  # equal prompts, as Jaillet has them
        prompts[:] = min(rng.integers(0, 5), memory - outputs.max())
    if kind == 2:  # equal requests
        twin = rng.integers(0, 2, count)
        prompts, outputs = prompts[twin], outputs[twin]
    last = 0 if seed % 2 else 4
    return Instance(
        prompts,
        outputs,
        memory,
        arrivals=np.sort(rng.integers(0, last + 1, count)),
        weights=rng.choice([0.5, 1, 2, 3.25], count),
        name=f"seed {seed}",
    )


def answers(instance, objective):
    """Solve in four ways; give name, claimed optimum and schedule of each."""
    program = HindsightProgram(instance, objective=objective)
    for solver in ("highs", "cp-sat"):
        solution = solve(program, method=solver).require(optimal=True)
        yield solver, solution, solution.answer
    events = EventProgram(instance, objective)
    solution = solve(events).require(optimal=True)
    yield "cp-sat events", solution, solution.answer


def bounds(instance, objective, least):
    """Return all lower bounds there are, by name; certified ones are compared exactly."""
    # The longest output more than is safe: else starts beyond the horizon may escape the prices.
    horizon = safe_horizon(instance) + int(instance.outputs.max())
    relaxation = LatencyRelaxation(instance, horizon, objective)
    relaxed = solve(relaxation)
    assert relaxed.gap < 1e-8
    yield "relaxation", relaxed.bound
    yield "without prices", bound(instance, objective=objective).value
    if objective == "total-latency":
        yield "closed form", bound(instance, "closed-form").value
    if objective != "makespan":
        prices = relaxation.prices(relaxed.duals)
        certificate = certify(instance, prices, instance.arrivals, objective)
        assert verify(certificate, instance) == certificate.value
        assert certificate.value <= Fraction(least)
        assert certificate.value == pytest.approx(relaxed.objective, abs=1e-6)  # nothing is lost
        yield "certified prices", float(certificate.value)


@pytest.mark.slow
@pytest.mark.no_cover  # other tests reach every line that runs here
@pytest.mark.parametrize("batch", range(BATCHES))
def test_solvers_agree_with_brute_force_and_bounds_stay_below(batch):
    for seed in range(batch * EACH, (batch + 1) * EACH):
        instance = draw(seed)
        least = optima(instance)
        for objective in OBJECTIVES:
            where = (seed, objective)
            for solver, solution, schedule in answers(instance, objective):
                assert solution.objective == pytest.approx(least[objective]), (*where, solver)
                assert float(schedule_cost(schedule, objective)) == solution.objective, (
                    *where,
                    solver,
                )
                assert not schedule.check(), (*where, solver)
            for name, value in bounds(instance, objective, least[objective]):
                assert value <= least[objective] + 1e-6, (*where, name)
            for policy in BASIC:
                cost = schedule_cost(run(instance, policy).schedule, objective)
                assert cost >= least[objective] - 1e-6, (*where, policy)


def test_prices_prove_the_relaxation_where_its_safe_horizon_is_too_short_for_them():
    """Within the safe horizon of 6 HiGHS gave prices that prove 0: all start at step 6 for free."""
    instance = Instance([8, 8, 8], [2, 2, 2], memory=10)
    assert dict(bounds(instance, "total-latency", 12))["certified prices"] > 11.999
