"""Tiny models: our exact search, dynamic programs and fixed points against trying everything."""

import random
from fractions import Fraction

import literal_balance
import numpy as np
from priced_instances import loose_certificate, one_by_one

from campaign import enumeration
from campaign.case import one_of, within
from optsched import Instance, RequestTypes, SolveParams, run, solve
from optsched.bounds.configurations import configuration_bound
from optsched.clock import affine
from optsched.models import BalanceProgram, BatchSelection, WaitThresholds, equilibrium
from optsched.models.hindsight import schedule_cost
from optsched.policies import BASIC
from optsched.search.exact.search import ALL, solve_exact

TITLE = "tiny models"
SECONDS = 120


def case(seed, folder):
    """Draw one model of one kind."""
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


def _exact_searches(rng, outcome):
    """Branch and bound finds the least total latency; no policy and no bound is on its far side.

    It does so from any schedule and certificate on, with any of its rules.
    """
    instance = draw(rng)
    wanted = enumeration.optima(instance)
    shown = instance.to_json()
    made = configuration_bound(instance, phases=2, iterations=16)
    least = wanted["total-latency"]
    outcome.check(made.value <= least, "bound", made.value, least, shown)
    anyhow = {
        "upper": one_by_one(instance, rng),
        "certificate": loose_certificate(instance, rng),
        "rules": int(rng.integers(ALL + 1)),
    }
    for how in ({"certificate": made.certificate}, anyhow):
        found = solve_exact(instance, **how)
        good = found.proven_optimal and found.lower == found.schedule.total_latency == least
        outcome.check(good and not found.schedule.check(), "exact", found, least, shown, how)
    for policy in rng.choice(list(BASIC), 3, replace=False):
        schedule = run(instance, str(policy)).schedule
        for objective, value in wanted.items():
            cost = schedule_cost(schedule, objective)
            good = cost >= value - 1e-6 and not schedule.check()
            outcome.check(good, policy, objective, cost, value, shown)


def _batches(rng, outcome):
    """The dynamic programs of batch selection, and the searches, which are no better."""
    count, memory = int(rng.integers(1, 11)), int(rng.integers(3, 40))
    outputs = rng.integers(1, min(12, memory), count)
    prompts = rng.integers(0, memory - outputs + 1)
    peak = BatchSelection(prompts, outputs, memory, "peak")
    shown = (prompts.tolist(), outputs.tolist(), memory)
    sums = enumeration.least_sums(prompts, outputs, memory, False)
    wanted = min(Fraction(int(total), size**2) for size, total in enumerate(sums) if total > 0)
    found = solve(peak, method="dp").answer
    outcome.check(found.ratio == wanted and peak.fits(found.requests), "dp", found, wanted, *shown)
    scaled = solve(peak, method="scaled-dp", params=SolveParams(epsilon=0.3)).answer
    good = wanted <= scaled.ratio <= Fraction(scaled.factor) * wanted
    outcome.check(good and peak.fits(scaled.requests), "scaled", scaled, wanted, *shown)
    for method in ("swap", "quantile"):
        batch = solve(peak, method=method).answer
        good = wanted <= batch.ratio and peak.fits(batch.requests)
        outcome.check(good, method, batch, wanted, *shown)


def _fixed_points(rng, outcome):
    """Of all thresholds up to the least fixed point, that one alone keeps up."""
    count, clock = int(rng.integers(1, 4)), affine(0.01, 1e-5)
    lengths = rng.integers(0, 60, count), rng.integers(1, 30, count)
    makes_token = bool(rng.integers(2))
    types = RequestTypes(*lengths, rng.exponential(5, count) + 0.5, makes_token)
    share = float(rng.uniform(0.05, 0.7)) / equilibrium(types, clock).load
    rates = np.maximum(1, np.round(1000 * types.rates * min(share, 60 / types.rates.sum())))
    types = RequestTypes(*lengths, rates / 1000, makes_token)
    if not equilibrium(types, clock).stable:
        return
    fixed = WaitThresholds(types, clock).least_fixed_point()
    if np.prod(fixed.astype(float)) > 1e6:
        return
    stages = [range(types.first_stage, output + 1) for output in lengths[1].tolist()]
    held = [
        sum(prompt + stage for stage in each)
        for prompt, each in zip(lengths[0].tolist(), stages, strict=True)
    ]
    kept = enumeration.keep_up(np.array(held), rates.astype(np.int64), np.array(fixed), 1000)
    outcome.check(tuple(map(int, kept)) == (1, 1), kept, fixed, types)


def _balance_steps(rng, outcome):
    """The searches for one step of BF-IO, and their bounds."""
    state = literal_balance.draw_state(
        rng, profiles=bool(rng.integers(2)), memory=bool(rng.integers(2))
    )
    program = BalanceProgram(state)
    least = enumeration.imbalance(state, program.admissions)
    for method in ("swap", "greedy"):
        found = solve(program, method=method)
        if found.answer is None:
            good = state.memory is not None and (least is None or found.bound <= least)
            outcome.check(good and not found.proven_optimal, method, found, least, state)
            continue
        worker = found.answer.worker
        good = least is not None and found.bound <= least <= found.objective
        good = good and found.objective == literal_balance.imbalance(state, worker)
        good = good and literal_balance.allowed(state, worker, program.admissions)
        good = good and (not found.proven_optimal or found.objective == least)
        outcome.check(good, method, found, least, state)


def _plain_steps(rng, outcome):
    """Steps without lookahead, which are proven."""
    workers, count = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    while (workers + 1) ** count > 50_000:
        count -= 1
    alive, free = rng.integers(0, 60, (workers, 1)), rng.integers(0, 3, workers)
    program = BalanceProgram(literal_balance.BalanceState(alive, free, rng.integers(0, 40, count)))
    found = solve(program)
    least = enumeration.imbalance(program.state, program.admissions)
    good = found.proven_optimal and found.bound == least == found.objective
    good = good and found.objective == literal_balance.imbalance(program.state, found.answer.worker)
    outcome.check(good, found, least, alive.tolist(), free, program.state.waiting)


#: How many of a hundred models are of each kind.
KINDS = {_exact_searches: 35, _batches: 30, _fixed_points: 10, _balance_steps: 10, _plain_steps: 15}
