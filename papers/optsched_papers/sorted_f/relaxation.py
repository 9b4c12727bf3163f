"""Sorted-F Sections 6 and EC.4.2: how far Relax-LP is from OPT-IP, and what it prefers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from optsched.bounds.lagrangian import expected_starts
from optsched.models.hindsight import LatencyRelaxation
from optsched.problem.instance import Instance
from optsched.solvers.backends.driver import solve_linear
from optsched.workloads import family
from optsched_papers.claims import beside, estimate, readings, shape
from optsched_papers.sorted_f.proof import KINDS, draw, shares
from optsched_papers.sorted_f.transformed import optimum
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

DISTRIBUTIONS = ("uniform", "normal", "binomial", "exponential", "mixed")
GRIDS = (1, 10, 25)  # steps between starts; 1 is Relax-LP itself


def coarse_starts(instance: Instance, step: int) -> FloatArray:
    """Solve Relax-LP with starts at multiples of some steps, in which a request holds its most."""
    from scipy.optimize import linprog

    prompts, outputs, memory = instance.prompts, instance.outputs, instance.memory
    lasts = -(-outputs // step)
    held = [
        prompt + np.minimum(output, step * np.arange(1, last + 1))
        for prompt, output, last in zip(prompts, outputs, lasts, strict=True)
    ]
    # As for `expected_starts`: twice what the memory-time takes, and the longest request.
    work = sum(int(each.sum()) for each in held) / memory
    horizon = 2 * int(np.ceil(work)) + int(lasts.max())
    starts = [np.arange(horizon - last + 1) for last in lasts]
    owner = np.repeat(np.arange(len(instance)), [len(each) for each in starts])
    cost, columns = np.concatenate(starts), np.arange(len(owner))
    rows, places, values = [], [], []
    for request, each in enumerate(held):
        own = columns[owner == request]
        for later, tokens in enumerate(each.tolist()):
            rows.append(cost[own] + later)
            places.append(own)
            values.append(np.full(len(own), tokens))
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(places)))
    program: dict[str, Any] = {
        "A_ub": sparse.csr_array(entries, shape=(horizon, len(owner))),
        "b_ub": np.full(horizon, memory),
        "A_eq": sparse.csr_array((np.ones(len(owner)), (owner, columns))),
        "b_eq": np.ones(len(instance)),
    }
    found = linprog(cost, **program)
    return np.asarray(np.bincount(owner, weights=cost * found.x), dtype=np.float64)


def short_first(instance: Instance, starts: FloatArray, least: float = 0) -> float:
    """Return the share of pairs whose shorter output starts first, of those that can tell."""
    # In the others the shorter output takes no more than this many times the memory-time: from 1
    # on, what remains are pairs in which its prompt is substantial.
    outputs, areas = instance.outputs, instance.areas
    shorter = outputs[:, None] < outputs
    one, other = np.nonzero(shorter & (areas[:, None] > least * areas))
    return float((starts[one] < starts[other]).mean())


def _preference(distribution: str, step: int, seed: int) -> list[float]:
    instance = family(distribution, seed=seed)
    starts = expected_starts(instance) if step == 1 else coarse_starts(instance, step)
    return [short_first(instance, starts), short_first(instance, starts, least=1)]


def _section_ec_4_2(study: Study) -> Outcome:
    grids, seeds = study.choose(GRIDS[:1] + GRIDS[2:], GRIDS), study.seeds(2, 10)
    cells = {
        (name, step): {"distribution": name, "step": step}
        for name in DISTRIBUTIONS
        for step in grids
    }
    rows, claims = [], []
    for (name, step), found in study.by_seed(_preference, cells, seeds).items():
        grid = "every step" if step == 1 else f"every {step} steps"
        # "Consistently", and "even when their input sizes are substantial": in more than half of
        # the pairs, and of those whose shorter output takes more memory-time.
        for place, which in enumerate(("", ", though it takes more memory-time")):
            share = estimate([each[place] for each in found])
            claim = shape(
                f"{name}, starts at {grid}: shorter output first{which}", share, at_least=0.5
            )
            claims += readings(f"{name}: shorter output first{which}", claim)
        rows.append([name, grid, *share])
    table = pd.DataFrame(rows, columns=["distribution", "starts", "share", "low", "high"])
    return Outcome(table, claims, {"memory": 100, "seeds": seeds, "steps between starts": grids})


# Section 6: Relax-LP as a bound, and how far it is

_ROUNDING = 1e-7  # of a solver's objective, as a share
_FEW = 12  # requests of a draw of the five distributions


def relax_lp(instance: Instance, horizon: int) -> tuple[float, bool]:
    """Solve Relax-LP; return its value, and whether the point found has fractional starts."""
    program = LatencyRelaxation(instance, horizon=horizon)
    found = solve_linear(program.to_linear())
    if found.objective is None or found.values is None or (found.gap or 0) > _ROUNDING:
        raise AssertionError
    return found.objective, bool(np.abs(found.values - np.rint(found.values)).max() > 1e-6)


def gaps(kind: str, lists: int, seed: int) -> list[dict[str, float]]:
    """Divide the optimum of lists that are drawn by Relax-LP."""
    rng = np.random.default_rng([seed, 4])
    drawn = [draw(kind, rng) for _ in range(lists)]
    # An optimum runs something at every step, so that it has completed by then.
    values = [relax_lp(each, int(each.outputs.sum()))[0] for each in drawn]
    totals = [optimum(each).total_latency for each in drawn]
    return [{"ratio": total / value} for total, value in zip(totals, values, strict=True)]


def halves(requests: int, memory: int = 1000) -> dict[str, float]:
    """Divide the optimum by Relax-LP where no two requests, of one token each, fit together."""
    instance = Instance([memory // 2] * requests, [1] * requests, memory)
    least = requests * (requests + 1) // 2
    return {"of_family": least / relax_lp(instance, requests)[0]}


def fractional(distribution: str, seed: int) -> bool:
    """Whether Relax-LP yields fractional starts on a draw of some requests."""
    instance = family(distribution, n=_FEW, seed=seed)
    return relax_lp(instance, int(instance.outputs.sum()))[1]


def _relax_lp(study: Study) -> Outcome:
    lists = study.choose(15, 150)
    drawn = study.table(gaps, grid(kind=KINDS, lists=[lists], seed=[study.seed]))
    sizes = study.choose([2, 8, 32], [2, 4, 8, 16, 32, 64, 128])
    table = study.table(halves, grid(requests=sizes))
    seeds = study.seeds(1, 5)
    split = study.map(fractional, grid(distribution=DISTRIBUTIONS, seed=seeds))
    what = "OPT-IP over Relax-LP"
    claims = [
        shape(f"{what}: least of {len(drawn)} lists", drawn.ratio.min(), at_least=1 - _ROUNDING),
        # "Typically": in more than half of the draws.
        shape("draws with fractional starts (share)", float(np.mean(split)), at_least=0.5),
    ]
    claims += beside(
        (
            shape(f"{what}, {kind}: largest", rows.ratio.max(), at_least=1 - _ROUNDING)
            for kind, rows in drawn.groupby("kind", sort=False)
        ),
        shape(f"{what}, no two fit together: largest", table.of_family.max(), at_most=2),
    )
    rows = table.rename(columns={"requests": "size"}).assign(family="no two fit together")
    settings = {"lists": lists, "requests per draw": _FEW, "seeds": seeds}
    return Outcome(pd.concat([shares(drawn), rows], ignore_index=True), claims, settings)
