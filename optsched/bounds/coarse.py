"""Prices of memory for large requests on a coarse grid of time, which prove nothing themselves.

With cells of :math:`g` steps, memory in units of :math:`g` tokens and a price for each cell, a
request of :math:`s` prompt and :math:`o` output tokens is one of :math:`s / g` and :math:`o / g`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched.bounds.ascent import improve_prices, round_work
from optsched.bounds.bound import bound
from optsched.bounds.lagrangian import certify
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    import threading

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.bounds.lagrangian import Objective

#: Cells in the mean output of large requests.
CELLS = 25
_WORK = 0.4  # a round's share of the work that it is on single steps, where ranges are longer


def coarse_prices(
    schedule: Schedule,
    objective: Objective,
    large: BoolArray,
    memory: float,
    *,
    rounds: int,
    cells: int = CELLS,
    begin: FloatArray | None = None,
    deadline: float = math.inf,
    stop: threading.Event | None = None,
) -> tuple[FloatArray, int, float]:
    """Return prices at which large requests share the memory, the steps of a cell, and the work."""
    instance = schedule.instance
    prompts, outputs = instance.prompts[large], instance.outputs[large]
    cell = max(1, int(outputs.mean() / cells))
    steps = np.maximum(1, np.rint(outputs / cell)).astype(np.int64)
    tokens = np.rint(prompts / cell).astype(np.int64)
    areas = float((tokens * steps + steps * (steps + 1) // 2).sum()) * cell
    span = int(schedule.starts.max() - instance.arrivals[0]) + 1
    left = memory - instance.areas[~large].sum() / span
    # Rounding changes how much memory-time they take; memory changes as much.
    share = areas / instance.areas[large].sum()
    weights = None if instance.weights is None else instance.weights[large]
    coarse = Instance(
        tokens,
        steps,
        max(int(left * share), int((tokens + steps).max())),
        instance.arrivals[large] // cell,
        weights,
    )
    begun = Schedule(coarse, np.maximum(schedule.starts[large] // cell, coarse.arrivals))
    first = bound(coarse, "lagrangian", objective).prices
    assert first is not None
    if begin is not None:
        means = begin[: len(begin) // cell * cell].reshape(-1, cell).mean(axis=1) * cell
        first = certify(coarse, means, begun.starts, objective)
    work = rounds * round_work(begun, first)
    found = improve_prices(begun, first, work=work, deadline=deadline, stop=stop).prices
    assert found is not None
    prices = np.repeat(np.array(found.prices) / found.denominator / cell, cell)
    return prices, cell, _WORK * work


def smoothed(prices: FloatArray, span: int) -> FloatArray:
    """Return the mean of the prices at so many steps around each, where there are that many."""
    before = span // 2
    sums = np.concatenate([[0.0], np.cumsum(prices)])
    steps = np.arange(len(prices))
    low, high = np.maximum(steps - before, 0), np.minimum(steps + before + 1, len(prices))
    means: FloatArray = (sums[high] - sums[low]) / (high - low)
    return means
