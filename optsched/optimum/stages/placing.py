"""Stages for several workers: lists, prices of pools, releases that wait, moves between workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.exact import round_down
from optsched._internal.numbers import proven
from optsched.bounds.lagrangian import PricedStarts
from optsched.bounds.one_worker import Bound
from optsched.bounds.pools import Pools, price_pools
from optsched.optimum.stages.improve import raise_prices
from optsched.search.annealing import WORK_PER_SECOND
from optsched.search.worker_lists import list_on_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import FloatArray
    from optsched.optimum.state import State
    from optsched.problem.schedule import Schedule

_LENGTH = 128  # of the window
_LISTS = ((0.0, 1.4), (0.25, 1.6), (0.0, 2.0), (0.5, 1.4))  # powers of the output, and ratios
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of the wait for the cheapest start
_RATIOS = (1.4, 2.0, 3.0, 5.0)  # of the window


def list_placed(state: State) -> Iterator[Schedule]:
    """Start requests in some orders, each on the worker where it leaves the least room."""
    for key, ratio in _keys(state):
        if not state.closed and (state.best is None or state.left > 0):
            yield list_on_workers(state.instance, state.workers, key, ratio, _LENGTH)


def _nested(state: State) -> bool:
    """Whether some requests may run on some workers only."""
    return len(Pools.of(state.instance, state.workers).members) > 1


def _keys(state: State) -> Iterator[tuple[FloatArray, float]]:
    """Return orders and ratios of the window."""
    instance = state.instance
    if (due := instance.deadlines) is not None:
        yield due.astype(np.float64), math.inf
        yield (due - instance.outputs).astype(np.float64), math.inf
    areas, outputs = instance.areas.astype(np.float64), instance.outputs.astype(np.float64)
    if state.objective == "makespan":
        for key in (-areas, -outputs, -instance.peaks.astype(np.float64)):
            yield key, 0.0
        return
    for power, ratio in _LISTS:
        yield areas * outputs**power / state.weights, ratio


def raise_pool_prices(state: State) -> None:
    """Raise the bound by better prices of the pool, and of the workers that few requests need."""
    raise_prices(state)
    if not _nested(state) or state.prices is None or state.finished or state.left <= 0:
        return
    before, seconds = state.lowest, state.share(state.tuning.prices_arrivals)
    found = price_pools(
        state.instance,
        state.workers,
        state.prices,
        cost=state.cost,
        work=seconds * WORK_PER_SECOND,
        stop=state.ended,
    )
    value = round_down(found.value)
    state.raise_bound(Bound(value, "nested", state.elapsed, found, workers=state.workers))
    gained = state.lowest - before
    state.note(f"pools: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def wait_for_cheap_starts(state: State) -> None:
    """Let requests wait where arrivals make that pay: shares of the way to the cheapest start."""
    instance = state.instance
    if state.prices is None or state.best is None or not instance.arrivals.any():
        return
    if state.left <= 0 or state.finished:
        return
    before, began = state.cost, state.elapsed
    priced = PricedStarts(state.pool, state.prices, state.best.starts)
    wait = priced.cheapest - instance.arrivals
    key = instance.areas / state.weights
    for share in _SHARES:
        releases = instance.arrivals + (share * wait).astype(np.int64)
        for ratio in _RATIOS:
            if state.finished or state.elapsed - began > 0.3 * state.time_limit:
                break
            found = list_on_workers(instance, state.workers, key, ratio, _LENGTH, releases)
            state.offer(found)
    state.note(f"releases: {state.cost:,.10g}, gained {before - state.cost:,.10g}")
