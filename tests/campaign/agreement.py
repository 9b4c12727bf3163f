"""Random models on which HiGHS, CP-SAT and our own must find what trying everything finds."""

import random
from dataclasses import replace
from fractions import Fraction

import brute_force
import exact_costs
import literal_balance
import numpy as np

import optsched
from campaign import enumeration
from campaign.case import one_of, within
from campaign.models import draw
from optsched import (
    InfeasibleError,
    LinearModel,
    OptschedError,
    RequestTypes,
    SolveParams,
    models,
    solve,
    verify,
)
from optsched.clock import affine
from optsched.models import EventProgram, Family, Rows, Variables, WaitThresholds, equilibrium
from optsched.models.hindsight import schedule_cost
from optsched.models.program import Stopped

TITLE = "agreement of solvers"
BOTH = "solved by HiGHS and by CP-SAT"
SECONDS = 120


def case(seed, folder):
    """Draw one model of one kind; most are of the kinds that take milliseconds."""
    rng = np.random.default_rng(seed)
    return one_of(KINDS, random.Random(seed), within(SECONDS), rng)


def _schedules(rng, outcome):
    """HiGHS, CP-SAT on rows, CP-SAT on events, and for the latency our branch and bound."""
    instance = draw(rng)
    least = enumeration.optima(instance)
    objective = brute_force.OBJECTIVES[int(rng.integers(3))]
    wanted, shown = least[objective], (instance.to_json(), objective)
    program = optsched.HindsightProgram(instance, objective=objective)
    for solver in ("highs", "cp-sat"):
        solution = solve(program, method=solver)
        schedule = solution.answer
        good = solution.proven_optimal and abs(solution.objective - wanted) < 1e-6
        outcome.check(good, solver, solution, wanted, *shown)
        cost = schedule_cost(schedule, objective)
        outcome.check(abs(cost - wanted) < 1e-6 and not schedule.check(), solver, cost, *shown)
    outcome.note(BOTH)
    events = EventProgram(instance, objective)
    solution = solve(events)
    cost = schedule_cost(solution.answer, objective)
    good = solution.proven_optimal and abs(cost - wanted) < 1e-6
    outcome.check(good, "events", cost, wanted, *shown)


def _deadlines(rng, outcome):
    """Deadlines, forbidden to miss or at a price, on every way that there is."""
    instance = draw(rng, most=4, last=2)
    slack = rng.integers(0, 8, len(instance))
    instance = instance.replace(deadlines=instance.arrivals + instance.outputs + slack)
    lateness = ("forbidden", "per-step", "per-request")[int(rng.integers(3))]
    penalty = 0.0 if lateness == "forbidden" else float(rng.choice([1, 2.5, 10]))
    objective = ("total-latency", "weighted-latency", "late-requests")[int(rng.integers(3))]
    if objective == "late-requests":
        lateness, penalty = "forbidden", 0.0
    wanted = enumeration.with_deadlines(instance, objective, lateness, penalty)
    params = SolveParams(lateness=lateness, penalty=penalty)
    for method in ("highs", "cp-sat", "auto", "search"):
        shown = (method, lateness, penalty, objective, instance.to_json())
        limit = None if method == "search" else 60
        how = replace(params, work=0.01) if method == "search" else params
        try:
            found = solve(
                instance, time_limit=limit, objective=objective, method=method, params=how
            )
        except InfeasibleError:
            outcome.check(wanted is None, "called infeasible:", wanted, *shown)
            continue
        except OptschedError as error:  # a search has found none, and proves nothing
            searched = "no schedule was found" in str(error) and method == "search"
            outcome.check(searched, "failed:", error, *shown)
            continue
        outcome.check(wanted is not None, "there is no schedule, but", found, *shown)
        if wanted is not None:
            question = exact_costs.Question(instance, objective, lateness, penalty)
            cost = question.cost(found.schedule.starts.tolist())
            proven = found.proven_optimal or method == "search"
            good = cost is not None and proven and (abs(cost - wanted) < 1e-6 or cost > wanted)
            good = good and (method == "search" or abs(cost - wanted) < 1e-6)
            for proof in (found.certificate, found.price_certificate):
                good = good and (proof is None or verify(proof, instance) <= wanted + 1e-9)
            good = good and found.bound <= wanted + 1e-6 and abs(found.objective - cost) < 1e-6
            outcome.check(good, cost, found.bound, wanted, *shown)
    outcome.note(BOTH)


def _batches(rng, outcome):
    """Batch selection by a program for each size, and every batch there is."""
    instance = draw(rng, most=7)
    fit = ("peak", "profile")[int(rng.integers(2))]
    selection = models.BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
    arrays = np.array(selection.prompts), np.array(selection.outputs), selection.memory
    sums = enumeration.least_sums(*arrays, fit == "profile")
    wanted = min(Fraction(int(total), size**2) for size, total in enumerate(sums) if total > 0)
    for solver in ("highs", "cp-sat"):
        found = solve(selection, method=solver)
        batch = found.answer.requests
        good = found.proven_optimal and selection.ratio(batch) == wanted and selection.fits(batch)
        outcome.check(good, solver, fit, batch, wanted, instance.to_json())
    outcome.note(BOTH)


def _thresholds(rng, outcome):
    """Thresholds of WAIT by HiGHS, and the least fixed point."""
    count = int(rng.integers(1, 4))
    rates = np.round(rng.exponential(5, count) + 0.5, 3)
    types = RequestTypes(
        rng.integers(0, 60, count), rng.integers(1, 30, count), rates, bool(rng.integers(2))
    )
    clock = affine(0.01, 1e-5)
    types = types.scaled(float(rng.uniform(0.05, 0.7)) / equilibrium(types, clock).load)
    types = types.scaled(min(1.0, 60 / types.rates.sum()))
    program = WaitThresholds(types, clock)
    fixed = program.least_fixed_point()
    solution = solve(program)
    found = solution.answer
    good = solution.proven_optimal and np.array_equal(found, fixed)
    outcome.check(good, "highs", found, fixed, types)


def _balance_steps(rng, outcome):
    """The step program of BF-IO: HiGHS, CP-SAT, our search, and every assignment."""
    profiles, memory = bool(rng.integers(2)), bool(rng.integers(2))
    state = literal_balance.draw_state(rng, profiles=profiles, memory=memory)
    program = models.BalanceProgram(state)
    least = enumeration.imbalance(state, program.admissions)
    for method in ("auto", "highs", "cp-sat"):
        found = solve(program, method=method)
        if least is None or found.answer is None:
            good = least is None and found.status is Stopped.INFEASIBLE
        else:
            worker = found.answer.worker
            good = found.proven_optimal and found.bound == least == found.objective
            good = good and least == literal_balance.imbalance(state, worker)
            good = good and literal_balance.allowed(state, worker, program.admissions)
        outcome.check(good, method, found, least, state)
    outcome.note(BOTH)


def _linear_models(rng, outcome):
    """Any small integer program: HiGHS, CP-SAT, SciPy, and every point in its box."""
    columns, rows = int(rng.integers(1, 6)), int(rng.integers(0, 5))
    lower = rng.integers(-4, 5, columns).astype(float)
    upper = lower + rng.integers(0, 4, columns)
    matrix = rng.integers(-4, 5, (rows, columns)).astype(float)
    side, width = rng.integers(-6, 7, rows), rng.choice([0, 2, np.inf])
    cost = rng.integers(-4, 5, columns).astype(float)
    sense = ("min", "max")[int(rng.integers(2))]
    bounds = (side - width, side + 0.0) if rng.integers(2) else (side + 0.0, side + width)
    x = Variables(Family.of("x", item=range(columns)), cost, lower, upper, integer=True)
    group = Rows(Family.of("row", number=range(rows)), {"x": matrix}, *bounds)
    model = LinearModel.build("small", [x], [group], sense=sense)
    axes = [np.arange(a, b + 1) for a, b in zip(lower, upper, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, columns)
    sums = points @ matrix.T
    values = (points @ cost)[((sums >= bounds[0]) & (sums <= bounds[1])).all(axis=1)]
    wanted = None if not len(values) else values.min() if sense == "min" else values.max()
    for name in ("highs", "cp-sat", "scipy"):
        if name == "scipy":
            try:
                found = brute_force.optimum(model)
            except AssertionError:  # its HiGHS may end in an error, too
                continue
        else:
            solution = solve(model, method=name)
            if solution.status is Stopped.ERROR:
                outcome.note("solver reports an error of its own")
                _check_interval(solution, wanted, sense, outcome)
                continue
            found = solution.objective if solution.has_answer else None
            told = solution.proven_optimal or solution.status is Stopped.INFEASIBLE
            outcome.check(told, name, "no proof", solution)
            if solution.has_answer:
                broken = model.violations(solution.values)
                outcome.check(not broken, name, broken)
        same = found is wanted is None or (
            None not in (found, wanted) and abs(found - wanted) < 1e-6
        )
        outcome.check(same, name, found, wanted, lower, upper, matrix, bounds, cost, sense)
    outcome.note(BOTH)


def _check_interval(solution, wanted, sense, outcome):
    """Look at what is claimed without a proof: a possible answer, a bound that holds."""
    sign = 1 if sense == "min" else -1
    bound, found = solution.bound, solution.objective if solution.has_answer else None
    if wanted is not None and bound is not None:
        outcome.check(sign * bound <= sign * wanted + 1e-6, "bound", bound, wanted, solution)
    if found is not None:
        good = wanted is not None and sign * found >= sign * wanted - 1e-6
        outcome.check(good, "answer", found, wanted, solution)


#: How many of a hundred models are of each kind.
KINDS = {
    _linear_models: 38,
    _balance_steps: 20,
    _batches: 18,
    _thresholds: 4,
    _schedules: 12,
    _deadlines: 8,
}
