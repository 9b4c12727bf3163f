"""Programs with rows, deadlines or a horizon: the instance is solved without them first."""

import dataclasses

import numpy as np
import pytest
from brute_force import cost, optimum, schedules
from effort import share

from optsched import HindsightProgram, Instance, SolveParams, family, run, solve
from optsched.errors import ModelError
from optsched.models import Family
from optsched.models.hindsight import SCHEDULE_OBJECTIVES


def draw(seed):
    """Return a program, its model with up to two rows more, and what they ask of starts."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    outputs, prompts = rng.integers(1, 4, count), rng.integers(0, 5, count)
    arrivals = np.sort(rng.integers(0, 1 + int(rng.choice([0, 3])), count))
    memory = int((prompts + outputs).max() + rng.integers(0, 6))
    weights = rng.integers(1, 5, count) if rng.random() < 0.3 else None
    instance = Instance(prompts, outputs, memory, arrivals, weights=weights)
    asked = {"objective": SCHEDULE_OBJECTIVES[seed % 4]}
    if seed % 4 == 3 or rng.random() < 0.3:
        instance = instance.replace(deadlines=arrivals + outputs + rng.integers(0, 5, count))
        if seed % 4 != 3 and rng.random() < 0.5:
            asked |= {"lateness": str(rng.choice(["per-step", "per-request"])), "penalty": 2.0}
    end = int((arrivals + outputs).max() + rng.integers(0, 5))
    several = {"workers": 2} if rng.random() < 0.3 else {}
    program = HindsightProgram(instance, end, **asked, **several, aggregate=bool(seed % 2))
    return rng, program, asked


def with_rules(rng, program):
    """Add rows, and return functions that say of starts whether they keep each."""
    model, instance, rules = program.to_linear(), program.instance, []
    keys = model.variables[0].keys
    request, step = keys[:, 0], keys[:, -1]
    for number in range(int(rng.integers(0, 3))):
        kind, most = rng.integers(3), int(rng.integers(-2, 5))
        if kind == 0:  # no request waits longer
            row = (step > instance.arrivals[request] + most).astype(float)
            model = model.with_rows(f"own{number}", {"start": row}, upper=0)
            rules.append(lambda starts, most=most: (starts - instance.arrivals <= most).all())
        elif kind == 1:  # the sum of all starts lies between two numbers
            least = float(rng.choice([-np.inf, most]))
            model = model.with_rows(f"own{number}", {"start": step}, least, most + 4)
            rules.append(lambda starts, a=least, b=most + 4: a <= starts.sum() <= b)
        else:  # at step 2 at most so many run
            runs = (step < 2) & (step + instance.outputs[request] >= 2)
            model = model.with_rows(f"own{number}", {"start": runs}, upper=most)
            rules.append(
                lambda starts, most=most: (
                    ((starts < 2) & (starts + instance.outputs >= 2)).sum() <= most
                )
            )
    return model, rules


@pytest.mark.few
def test_what_is_proven_with_rows_deadlines_and_horizons_is_the_optimum_of_all_schedules():
    answered = by_us = 0
    for seed in range(share(200)):
        try:
            rng, program, asked = draw(seed)
        except ModelError:  # a request cannot complete in time
            continue
        model, rules = with_rules(rng, program)
        found, best = solve(model, time_limit=60), optimum(model)
        if len(program.workers) == 1:
            due = None if program.soft else program.instance.deadlines
            kept = (
                cost(starts, program.instance, **asked)
                for starts in schedules(program.instance, program.horizon, deadlines=due)
                if all(rule(np.array(starts)) for rule in rules)
            )
            assert best == pytest.approx(min(kept, default=None)), seed
        if best is None:
            assert (found.status, found.objective) == ("infeasible", None), seed
            continue
        assert found.status == "optimal", seed
        assert found.objective == found.bound == pytest.approx(best), seed
        assert model.violations(found.values) == [], seed
        answered, by_us = answered + 1, by_us + found.solver.startswith("optsched")
        cut = solve(model, time_limit=1e-3)  # whatever is known by then
        assert cut.objective is None or cut.objective >= found.objective, seed
        assert cut.bound is None or cut.bound <= found.objective, seed
    assert by_us > 0
    assert answered > by_us or share(200) < 20


@pytest.mark.slow
def test_a_row_that_does_not_bind_takes_nothing_from_the_proof():
    instance = family("uniform", n=20, seed=4)  # which HiGHS alone does not prove in minutes
    program = HindsightProgram(instance).within(run(instance, "area"))
    model = program.to_linear()
    step = model.variables[0].keys[:, 1]
    calm = model.with_rows(Family.of("calm"), step.astype(float), upper=step.max() * len(instance))
    plain = solve(instance).require(optimal=True)
    for problem in (calm, program):
        found = solve(problem).require(optimal=True)
        assert found.objective == plain.objective
        assert found.solver.startswith("optsched")
    # Nor does a start that keeps it, or a gap that is enough.
    area = program.write_point(run(instance, "area").schedule)
    near = solve(calm, params=SolveParams(start=area, gap_limit=0.5))
    assert near.status == "gap limit"
    assert 0 < near.gap <= 0.5


@pytest.mark.slow
def test_a_wait_that_rows_limit_is_kept_by_what_is_searched():
    instance = family("uniform", n=30, seed=6, load=1.1)
    program = HindsightProgram(instance).within(run(instance, "area"))
    model = program.to_linear()
    request, step = model.variables[0].keys.T
    waits = step - instance.arrivals[request]
    longest = int(run(instance, "fcfs").latencies.max() - instance.outputs.min())
    fair = model.with_rows(Family.of("fair"), (waits > longest).astype(float), upper=0)
    found = solve(fair, time_limit=10)
    assert program.read(found.values).total_latency == found.objective
    assert fair.violations(found.values) == []
    assert found.bound <= found.objective


def test_rows_are_not_left_out_of_models_that_may_be_of_another_problem():
    instance = Instance([3, 3, 1], [2, 3, 4], memory=9)
    model = HindsightProgram(instance, horizon=12).to_linear().with_rows("own", 1, upper=3)
    assert model.program is not None
    changed = (
        model.with_objective(-model.cost),
        model.with_columns("fee", {"memory": -1}, upper=9),
        model.relax(),
        model.fix([0], 1),
        dataclasses.replace(model, row_upper=model.row_upper * 2),
    )
    for each in changed:
        assert each.program is None
        assert each.with_rows("more", 1, upper=9).program is None
        assert solve(each).objective == pytest.approx(optimum(each))
