"""Regret of tiny instances: its interval holds the true regret, by trying every schedule."""

import numpy as np
from brute_force_clocked import drawn, least_latency

from campaign.case import HangError, Outcome, within
from campaign.enumeration import optima
from campaign.models import draw
from optsched.errors import InstanceError
from optsched.experiments.cells import Places, Store
from optsched.experiments.regret import _enclosed
from optsched.experiments.regret_cells import RegretSource, RegretTask
from optsched.policies import get_policies
from optsched.problem.work import arrival_times

TITLE = "regrets"
SECONDS = 120
SEARCH = 10  # seconds after which the search through all sequences of batches is given up
POLICIES = ("fcfs", "mc-sf", "mc-sf-total", "area", "sorted-f", "area+window", "fcfs+skip")
TIMED = ("fcfs", "mc-sf", "area+window", "work")
EXACT = 1e-9


class Few(RegretSource):
    """A source of which a horizon may bring hardly any request."""

    def check(self, rate, horizon):
        """Refuse nothing."""


def case(seed, folder):
    """Enclose the regret of some policies over a few seeds, in steps or on a clock."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    try:
        with within(SECONDS):
            _case(rng, rng.random() < 0.3, outcome)
    except Exception as error:
        outcome.check(False, f"{type(error).__name__}: {error}; seed", seed)
    return outcome


def _case(rng, timed, outcome):
    trace, clock = drawn(rng, most=2) if timed else (draw(rng), None)
    source = Few("tiny", trace=trace, clock=clock)
    names = TIMED if timed else POLICIES
    policies = get_policies([str(name) for name in rng.choice(names, 2, replace=False)])
    time_limit = 0.0 if timed else float(rng.choice([0, 5]))
    load, horizon = float(rng.choice([0.5, 1, 3])), int(rng.integers(2, 7))
    rate = source.rate(load)
    tasks, instances = {}, {}
    for seed in range(int(rng.integers(1, 4))):
        try:
            instance = source.draw(rate, horizon, seed)
        except InstanceError:
            continue  # no request came
        if len(instance) <= (2 if timed else 5):
            instances[seed] = instance
            task = RegretTask(source, tuple(policies), load, rate, horizon, seed, time_limit)
            tasks[str(seed)] = task
    if not tasks:
        return
    found = _enclosed(tasks, None, Store(), Places(1), None)
    try:
        least = {seed: _least(instance, clock) for seed, instance in instances.items()}
    except HangError:
        outcome.note("searches given up")
        return
    _hold_against_the_truth(found, least, outcome)


def _least(instance, clock):
    """Return the least total latency that there is."""
    if clock is None:
        return float(optima(instance)["total-latency"])
    with within(SEARCH):
        return least_latency(instance, clock, arrival_times(instance, clock).tolist())


def _hold_against_the_truth(found, least, outcome):
    for policy in found.policies:
        true = []
        for cell in found.cells:
            outcome.inputs += 1
            outcome.note("regret known" if cell.best == cell.bound else "regret enclosed")
            latency, optimum = cell.latencies[policy], least[cell.seed]
            low, high = cell.regret(policy)
            shown = (policy, low, high, latency, optimum, cell)
            regret = (latency - optimum) / cell.requests
            true.append(regret)
            outcome.check(-EXACT <= low <= regret + EXACT, "regret below", regret, *shown)
            outcome.check(regret <= high + EXACT, "regret above", regret, *shown)
            below, above = cell.ratio(policy)
            outcome.check(below <= latency / optimum + EXACT, "ratio below", *shown)
            outcome.check(latency / optimum <= above + EXACT, "ratio above", *shown)
        cell = found.cells[0]
        band, mean = found.band(policy, cell.load, cell.horizon), float(np.mean(true))
        good = band.floor <= band.low <= mean + EXACT and mean <= band.high + EXACT
        outcome.check(good and not band.high > band.ceiling, "band", mean, band)
