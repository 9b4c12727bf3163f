"""Sorted-F Section EC.4.2: whether Relax-LP prefers short outputs, on fine and coarse grids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from optsched.papers.claims import estimate, readings, shape
from optsched.papers.target import BAND, Computations, Outcome, Study, bars
from optsched.solvers.selection.expected_starts import expected_starts
from optsched.workloads import family

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.instance import Instance

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


def short_first(instance: Instance, starts: FloatArray) -> float:
    """Return in which share of pairs the shorter output starts first, though it takes more.

    Pairs are those whose shorter output takes more memory-time, because of its prompt; otherwise
    either preference has the same order.
    """
    outputs, areas = instance.outputs, instance.areas
    shorter = outputs[:, None] < outputs
    one, other = np.nonzero(shorter & (areas[:, None] > areas))
    return float((starts[one] < starts[other]).mean())


def _preference(distribution: str, step: int, seed: int) -> float:
    instance = family(distribution, seed=seed)
    starts = expected_starts(instance) if step == 1 else coarse_starts(instance, step)
    return short_first(instance, starts)


def _section_ec_4_2(study: Study) -> Outcome:
    grids, seeds = study.choose(GRIDS[:1] + GRIDS[2:], GRIDS), study.seeds(2, 10)
    cells = {
        (name, step): {"distribution": name, "step": step}
        for name in DISTRIBUTIONS
        for step in grids
    }
    rows, claims = [], []
    for (name, step), found in study.by_seed(_preference, cells, seeds).items():
        share = estimate(found)
        grid = "every step" if step == 1 else f"every {step} steps"
        # "Consistently": in more than half of the pairs in which it makes a difference.
        claim = shape(f"{name}, starts at {grid}: shorter output first", share, at_least=0.5)
        claims += readings(f"{name}: shorter output first", [claim])
        rows.append([name, grid, *share])
    table = pd.DataFrame(rows, columns=["distribution", "starts", "share", "low", "high"])
    return Outcome(table, claims, {"memory": 100, "seeds": seeds, "steps between starts": grids})


_LOOK: dict[str, Any] = {
    "x": "distribution",
    "y": "share",
    "by": "starts",
    "ylabel": "pairs with the shorter output first\nthough it takes more memory-time",
}

TARGETS: Computations = {"sorted-f-section-ec-4-2": (_section_ec_4_2, bars(**_LOOK, **BAND))}
