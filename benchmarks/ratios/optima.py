"""The proven optimum in hindsight, against OPT-IP in Pyomo, linopy, scipy and CP-SAT.

`solve` also proves the horizon, which the alternatives get as a gift. One thread each.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from alternatives.programs import SOLVERS
from timing import Row, measure

from optsched import Instance, family, solve
from optsched.models.program import safe_horizon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 60.0  # seconds of wall time for each instance


def short(count: int, seed: int) -> Instance:
    """Requests of at most 10 output tokens: few steps, which suits time-indexed programs."""
    rng = np.random.default_rng(seed)
    return Instance(rng.integers(1, 21, count), rng.integers(1, 11, count), 50)


def rows(quick: bool) -> Iterator[Row]:
    """Several instances of each size, each solved once by each."""
    uniform = partial(family, "uniform")
    sets: list[tuple[str, Callable[..., Instance], int]]
    sets = [("short outputs", lambda n, seed: short(n, seed), n) for n in (8, 12, 16)]
    sets += [("uniform", lambda n, seed: uniform(n, seed=seed), n) for n in (6,)]
    if quick:
        sets = [("short outputs", lambda n, seed: short(n, seed), 6)]
    for name, make, count in sets:
        yield from one_set(name, [make(count, seed) for seed in range(1 if quick else 2)])


def one_set(name: str, instances: list[Instance]) -> Iterator[Row]:
    """All instances of a set; the time is that of all of them."""
    solve(instances[0])  # loads kernels, and starts the process that solvers are forked from
    ours, found = measure(
        lambda: [solve(instance, time_limit=4 * LIMIT) for instance in instances],
        1,
        warm_up=False,
    )
    for result in found:
        assert result.proven_optimal
    best = [result.schedule.total_latency for result in found]
    horizons = [safe_horizon(instance) for instance in instances]
    count, memory = len(instances), instances[0].memory
    size = f"{count} x n = {len(instances[0])}, M = {memory}, T ≤ {max(horizons)}"
    for alternative, solver in SOLVERS.items():
        if "linopy" in alternative and importlib.util.find_spec("linopy") is None:
            continue
        solver(short(2, 0), 50, LIMIT)
        theirs, answers = measure(
            lambda solver=solver: [
                solver(instance, horizon, LIMIT)
                for instance, horizon in zip(instances, horizons, strict=True)
            ],
            1,
            warm_up=False,
        )
        for value, (cost, optimal) in zip(best, answers, strict=True):
            assert cost > value - 1e-6, (alternative, cost, value)
            assert not optimal or abs(cost - value) < 1e-6, (alternative, cost, value)
        proven = sum(optimal for _, optimal in answers)
        yield Row(
            f"proven optimum, {name}",
            size,
            alternative,
            ours,
            theirs,
            "same optimum" if proven == len(best) else f"proves {proven} of {len(best)}",
            stopped=proven < len(best),
        )
