"""Jaillet, versions 4 and 5: MC-SF beside the optimum in hindsight on synthetic requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optsched.optimum.solving import solve
from optsched.optimum.state import SolveParams
from optsched.problem.instance import Instance
from optsched.simulate import run
from optsched_papers.claims import TOLERANCES, Claim, beside, estimate, shape
from optsched_papers.target import Outcome, Study

AT_ONCE, _POISSON = "all at once", "Poisson arrivals"
_LEAST, _MOST, _PROVEN = "over our best schedule", "over our bound", "over the optimum, {} requests"
_PROVEN_IN = 120.0  # seconds, far more than eight requests take


class _Printed(NamedTuple):
    """Latency of MC-SF over the optimum in 200 trials."""

    mean: float
    worst: float
    optimal: float | None  # share of the trials


PRINTED = {AT_ONCE: _Printed(1.005, 1.074, 114 / 200), _POISSON: _Printed(1.047, 1.227, None)}


def draw_requests(arrivals: str, seed: int, requests: int | None = None) -> Instance:
    """Draw requests as the paper does; of those that come at once perhaps fewer."""
    rng = np.random.default_rng(seed)
    memory, count = (int(each) for each in rng.integers([30, 40], [51, 61]))
    times = np.zeros(requests or count, dtype=np.int64)
    if arrivals == _POISSON:  # `count` is the number of steps in which requests come
        times = np.repeat(np.arange(count), rng.poisson(rng.uniform(0.5, 1.5), count))
    prompts = rng.integers(1, 6, len(times))
    outputs = rng.integers(1, memory - prompts + 1)
    return Instance(prompts, outputs, memory, times)


def _interval(arrivals: str, seed: int, work: float) -> dict[str, float]:
    """Return the least and the most that MC-SF may cost over the optimum."""
    instance = draw_requests(arrivals, seed)
    served = run(instance, "mc-sf").total_latency
    found = solve(instance, method="search", params=SolveParams(work=work))
    return {_LEAST: served / min(found.objective, served), _MOST: served / found.bound}


def _proven(seed: int, requests: int) -> float:
    """Return what MC-SF costs over the optimum of a few requests."""
    instance = draw_requests(AT_ONCE, seed, requests)
    found = solve(instance, time_limit=_PROVEN_IN)
    if not found.proven_optimal:
        raise AssertionError(f"{instance!r} was not solved to optimality")
    return run(instance, "mc-sf").total_latency / found.objective


def _synthetic(study: Study) -> Outcome:
    seeds, few = study.seeds(3, 60), study.choose(6, 8)
    work = study.choose(0.02, 0.1)
    cells = {each: {"arrivals": each, "work": work} for each in PRINTED}
    ratios = {
        (arrivals, end): [trial[end] for trial in trials]
        for arrivals, trials in study.by_seed(_interval, cells, seeds).items()
        for end in (_LEAST, _MOST)
    }
    solved = _PROVEN.format(few)
    ratios[AT_ONCE, solved] = study.map(
        _proven, [{"seed": seed, "requests": few} for seed in study.seeds(3, 20)]
    )
    settings = {"trials": len(seeds), "solved to optimality": len(ratios[AT_ONCE, solved])}
    return Outcome(_distributions(ratios), _claims(ratios, solved), settings | {"work": work})


def _claims(ratios: dict[tuple[str, str], list[float]], solved: str) -> list[Claim]:
    """Claim that what is printed lies between the ends of ours, up to the tolerance of ratios."""
    claims, slack = [], TOLERANCES["ratio"]
    for arrivals, printed in PRINTED.items():
        least, most = ratios[arrivals, _LEAST], ratios[arrivals, _MOST]
        mean: dict[str, Any] = {"paper": printed.mean}
        worst: dict[str, Any] = {"paper": printed.worst, "at_most": (1 + slack) * printed.worst}
        below, above = (1 + slack) * printed.mean, (1 - slack) * printed.mean
        claims += [
            shape(f"{arrivals}: mean {_LEAST}", estimate(least), at_most=below, **mean),
            shape(f"{arrivals}: mean {_MOST}", estimate(most), at_least=above, **mean),
            shape(f"{arrivals}: worst {_LEAST}", max(least), **worst),
        ]
        if printed.optimal is not None:
            label = f"{arrivals}: share in which no schedule better than MC-SF was found"
            share = float(np.mean([ratio == 1 for ratio in least]))
            claims.append(shape(label, share, at_least=printed.optimal, paper=printed.optimal))
    mean = {"paper": PRINTED[AT_ONCE].mean, "at_most": (1 + slack) * PRINTED[AT_ONCE].mean}
    ours = shape(f"{AT_ONCE}: mean {solved}", estimate(ratios[AT_ONCE, solved]), **mean)
    return [*claims, *beside(ours)]


def _distributions(ratios: dict[tuple[str, str], list[float]]) -> pd.DataFrame:
    """Return the share of trials up to each ratio, and what is printed as a box."""
    rows = [
        (arrivals, kind, ratio, (place + 1) / len(values))
        for (arrivals, kind), values in ratios.items()
        for place, ratio in enumerate(sorted(values))
    ]
    for arrivals, printed in PRINTED.items():
        corners = ((printed.mean, 0), (printed.mean, 1), (printed.worst, 1), (printed.worst, 0))
        rows += [(arrivals, "printed mean to worst", at, share) for at, share in corners]
    return pd.DataFrame(rows, columns=["arrivals", "kind", "ratio", "share"])
