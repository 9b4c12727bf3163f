"""Random models on which every solver must find what trying everything finds."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import brute_force
import literal_balance
import numpy as np

from campaign.case import one_of, within
from optsched import (
    BalanceProgram,
    BatchSelection,
    EventProgram,
    HindsightProgram,
    InfeasibleError,
    Instance,
    LinearModel,
    RequestTypes,
    SolveParams,
    WaitThresholds,
    equilibrium,
    run,
    solve,
)
from optsched.clock import affine
from optsched.models import Family, Rows, Variables
from optsched.models.objectives import schedule_cost
from optsched.policies import BASIC
from optsched.solution import Stopped
from optsched.solvers.exact.search import solve_exact

TITLE = "agreement of solvers"
SECONDS = 120


def case(seed, folder):
    """Draw one model of one kind; most are of the kinds that take milliseconds."""
    rng = np.random.default_rng(seed)
    return one_of(KINDS, random.Random(seed), within(SECONDS), rng)


def draw(rng, most=5, last=4):
    """Draw an instance with weights, offline or with arrivals."""
    count, memory = int(rng.integers(2, most + 1)), int(rng.integers(3, 12))
    outputs = rng.integers(1, min(4, memory), count)
    prompts = rng.integers(0, memory - outputs + 1)
    if rng.random() < 0.3:  # equal requests
        twin = rng.integers(0, 2, count)
        prompts, outputs = prompts[twin], outputs[twin]
    arrivals = np.sort(rng.integers(0, last + 1, count)) * int(rng.integers(0, 2))
    weights = rng.choice([0.5, 1, 2, 3.25], count)
    return Instance(prompts, outputs, memory, arrivals=arrivals, weights=weights)


def _schedules(rng, outcome):
    """HiGHS, CP-SAT on rows, CP-SAT on events, and for the latency our branch and bound."""
    instance = draw(rng)
    least = brute_force.optima(instance)
    objective = brute_force.OBJECTIVES[int(rng.integers(3))]
    wanted, shown = least[objective], (instance.to_json(), objective)
    program = HindsightProgram(instance, objective=objective)
    for solver in ("highs", "cp-sat"):
        solution = solve(program, method=solver)
        schedule = solution.answer
        good = solution.proven_optimal and abs(solution.objective - wanted) < 1e-6
        outcome.check(good, solver, solution, wanted, *shown)
        cost = schedule_cost(schedule, objective)
        outcome.check(abs(cost - wanted) < 1e-6 and not schedule.check(), solver, cost, *shown)
    events = EventProgram(instance, objective)
    solution = solve(events)
    cost = schedule_cost(solution.answer, objective)
    good = solution.proven_optimal and abs(cost - wanted) < 1e-6
    outcome.check(good, "events", cost, wanted, *shown)
    if objective == "total-latency":
        found = solve_exact(instance)
        good = found.proven_optimal and found.lower == found.schedule.total_latency == wanted
        outcome.check(good and not found.schedule.check(), "exact", found, wanted, *shown)
    for policy in BASIC:
        schedule = run(instance, policy).schedule
        cost = schedule_cost(schedule, objective)
        good = cost >= wanted - 1e-6 and not schedule.check()
        outcome.check(good, policy, cost, wanted, *shown)


def _deadlines(rng, outcome):
    """Deadlines, forbidden to miss or at a price, on every way that there is."""
    instance = draw(rng, most=4, last=2)
    count = len(instance)
    slack = rng.integers(0, 8, count)
    instance = instance.replace(deadlines=instance.arrivals + instance.outputs + slack)
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    lateness = ("forbidden", "per-step", "per-request")[int(rng.integers(3))]
    penalty = 0.0 if lateness == "forbidden" else float(rng.choice([1, 2.5, 10]))
    objective = brute_force.OBJECTIVES[int(rng.integers(2))]
    limits = instance.deadlines.tolist() if lateness == "forbidden" else None
    costs = [
        brute_force.cost(starts, instance, objective, lateness, penalty)
        for starts in brute_force.schedules(instance, horizon, deadlines=limits)
    ]
    method = ("auto", "highs", "cp-sat")[int(rng.integers(3))]
    shown = (method, lateness, penalty, objective, instance.to_json())
    try:
        found = solve(
            instance,
            objective=objective,
            method=method,
            params=SolveParams(lateness=lateness, penalty=penalty),
        )
    except InfeasibleError:
        outcome.check(not costs, "called infeasible:", *shown)
        return
    outcome.check(bool(costs), "there is no schedule, but", found, *shown)
    if costs:
        wanted = min(costs)
        cost = brute_force.cost(found.schedule.starts, instance, objective, lateness, penalty)
        good = abs(cost - wanted) < 1e-6 and found.bound <= wanted + 1e-6
        outcome.check(good or not found.proven_optimal, cost, found.bound, wanted, *shown)
        outcome.check(found.bound <= wanted + 1e-6 <= cost + 2e-6, "interval", *shown)
        outcome.check(found.proven_optimal, "no proof:", found, *shown)


def _batches(rng, outcome):
    """Batch selection: dynamic program, integer program, and every batch there is."""
    instance = draw(rng, most=7)
    fit = ("peak", "profile")[int(rng.integers(2))]
    selection = BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
    wanted = min(brute_force.ratio(batch, selection) for batch in brute_force.batches(selection))
    for method in ("dp", "mip") if fit == "peak" else ("mip",):
        batch = solve(selection, method=method).answer
        good = batch.ratio == wanted and selection.fits(batch.requests)
        outcome.check(good, method, fit, batch, wanted, instance.to_json())
    peak = BatchSelection(instance.prompts, instance.outputs, instance.memory, "peak")
    scaled = solve(peak, method="scaled-dp", params=SolveParams(epsilon=0.3)).answer
    wanted = min(brute_force.ratio(batch, peak) for batch in brute_force.batches(peak))
    good = wanted <= scaled.ratio <= Fraction(scaled.factor) * wanted
    outcome.check(good and peak.fits(scaled.requests), "scaled", scaled, instance.to_json())


def _thresholds(rng, outcome):
    """Thresholds of WAIT: HiGHS, the least fixed point, and every smaller vector."""
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
    d0, d1 = Fraction("0.01"), Fraction("0.00001")
    if int(np.prod(fixed)) > 3000:
        return
    for counts in itertools.product(*(range(1, int(most) + 1) for most in fixed)):
        held = sum(
            number * (prompt + stage)
            for prompt, output, number in zip(types.prompts, types.outputs, counts, strict=True)
            for stage in range(types.first_stage, output + 1)
        )
        keeps_up = all(
            d0 + d1 * int(held) <= number / Fraction(repr(rate))
            for number, rate in zip(counts, types.rates.tolist(), strict=True)
        )
        outcome.check(keeps_up == (counts == tuple(fixed)), counts, fixed, types)


def _balance_steps(rng, outcome):
    """The step program of BF-IO: HiGHS, CP-SAT, our search, and every assignment."""
    profiles, memory = bool(rng.integers(2)), bool(rng.integers(2))
    state = literal_balance.draw_state(rng, profiles=profiles, memory=memory)
    methods = ["auto", "swap", "greedy", ("highs", "cp-sat")[int(rng.integers(2))]]
    for method in methods:
        found = solve(BalanceProgram(state), method=method)
        value, worker, admitted = found.objective, found.answer.worker, found.answer.admitted
        least = literal_balance.least_imbalance(state, admitted)
        good = found.bound <= least <= value
        good = good and value == literal_balance.imbalance(state, worker)
        good = good and literal_balance.allowed(state, worker, admitted)
        if method in ("auto", "highs", "cp-sat"):
            good = good and found.proven_optimal and value == least
        outcome.check(good and (not found.proven_optimal or value == least), method, state)


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
    _linear_models: 35,
    _balance_steps: 20,
    _batches: 17,
    _thresholds: 8,
    _schedules: 14,
    _deadlines: 6,
}
