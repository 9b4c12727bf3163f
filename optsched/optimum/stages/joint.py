"""Stages for several workers: lists, prices of pools, releases that wait, moves between workers."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.aside import Token
from optsched._internal.numbers import proven
from optsched.errors import OptschedError
from optsched.instance import Instance
from optsched.optimum.stages.improve import raise_prices
from optsched.optimum.stages.joint_exact import (
    choose_parts,
    has_few_parts,
    price_sizes,
    solve_joint_program,
)
from optsched.optimum.stages.plan import Stage
from optsched.solvers.bounds.bound import Bound, bound, find_bound, round_down
from optsched.solvers.bounds.joint import JointBound, joint_bound, price_pools
from optsched.solvers.bounds.lagrangian import PricedStarts, weights_of
from optsched.solvers.search.annealing import WORK_PER_SECOND
from optsched.solvers.search.joint_list import list_jointly
from optsched.solvers.search.search import search
from optsched.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import FloatArray
    from optsched.optimum.joint import JointState

_MANY = 20_000  # requests from which on prices take longer than lists
_LENGTH = 128  # of the window
_LISTS = ((0.0, 1.4), (0.25, 1.6), (0.0, 2.0), (0.5, 1.4))  # powers of the output, and ratios
_SHARES, _RATIOS = (
    (0.25, 0.5, 0.75, 1.0),
    (1.4, 2.0, 3.0, 5.0),
)  # of the wait for the cheapest start
_BEFORE_EXACT = 0.05  # share of the time for a first search where an exact stage follows


@cache
def _tiny() -> Instance:
    return Instance([4] * 4, [1, 1, 6, 6], memory=10, arrivals=[0, 1, 1, 2])


def load_lists(state: JointState) -> None:
    """Load what the first stage calls."""
    _load_lists(state.objective)


@cache
def _load_lists(objective: str) -> None:
    instance = _tiny()
    bound(instance, objective="makespan" if objective == "makespan" else "total-latency")
    list_jointly(instance, Workers([10, 10]), instance.areas, 1.4, 4)


@cache
def _load_search(_: str) -> None:
    instance = _tiny()
    start = list_jointly(instance, Workers([10, 10]), instance.areas, 1.4, 4)
    search(start, np.ones(4), work=1e3)


@cache
def _load_releases(_: str) -> None:
    certificate = bound(_tiny(), "lagrangian").certificate
    assert certificate is not None
    assert len(PricedStarts(_tiny(), certificate).cheapest)


def run_lists(state: JointState) -> None:
    """Find a first interval."""
    pool, many = state.instance, len(state.instance) >= _MANY
    state.raise_bound(find_bound(pool, "closed-form" if many else "auto", state.objective))
    for key, ratio in _keys(state):
        if not state.closed and (state.best is None or state.left > 0):
            found = list_jointly(state.requests, state.workers, key, ratio, _LENGTH)
            state.offer_joint(found)
    first = state.bound
    if many and state.left > 0 and not state.finished:
        first = find_bound(pool, "auto", state.objective)
        state.raise_bound(first)
    if isinstance(first, Bound):
        state.prices = first.certificate
    if state.objective == "makespan" and state.nested:
        state.raise_bound(joint_bound(state.requests, state.workers, "auto", state.objective))
    cost = f"{state.cost:,.10g}" if state.best is not None else "none"
    state.note(f"lists: {cost}; bound {proven(state.lowest, digits=10)} ({state.bound.method})")


def _keys(state: JointState) -> Iterator[tuple[FloatArray, float]]:
    """Return orders and ratios of the window."""
    instance = state.requests
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


def raise_pool_prices(state: JointState) -> None:
    """Raise the bound by better prices of the pool, and of the workers that few requests need."""
    raise_prices(state)
    if not state.nested or state.prices is None or state.finished or state.left <= 0:
        return
    before, seconds = state.lowest, state.share(state.tuning.prices_arrivals)
    found = price_pools(
        state.requests,
        state.workers,
        state.prices,
        cost=state.cost,
        work=seconds * WORK_PER_SECOND,
        stop=state.ended,
    )
    value = round_down(found.value)
    state.raise_bound(JointBound(value, "nested", state.elapsed, found, state.workers))
    gained = state.lowest - before
    state.note(f"pools: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def wait_for_cheap_starts(state: JointState) -> None:
    """Let requests wait where arrivals make that pay: shares of the way to the cheapest start."""
    instance = state.requests
    if state.prices is None or state.best is None or not instance.arrivals.any():
        return
    if state.left <= 0 or state.finished:
        return
    state.load(_load_releases, "releases")
    before, began = state.cost, state.elapsed
    priced = PricedStarts(state.instance, state.prices, state.best.starts)
    wait = priced.cheapest - instance.arrivals
    key = instance.areas / state.weights
    for share in _SHARES:
        releases = instance.arrivals + (share * wait).astype(np.int64)
        for ratio in _RATIOS:
            if state.finished or state.elapsed - began > 0.3 * state.time_limit:
                break
            found = list_jointly(instance, state.workers, key, ratio, _LENGTH, releases)
            state.offer_joint(found)
    state.note(f"releases: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def search_moves(state: JointState, seed: int, share: float = 1.0) -> None:
    """Move requests in time and between workers, for a share of the time left."""
    if state.finished or state.joint is None or state.objective == "makespan":
        return
    state.load(_load_search, "search")
    seconds = state.searching if share == 1 else state.share(share)
    if seconds <= 0:
        return
    before, stop = state.cost, Token(state.ended)

    def improved(cost: float) -> None:
        state.report("search", min(cost, before), state.lowest)
        if cost <= state.lowest:
            stop.set()

    try:
        found = search(
            state.joint,
            weights_of(state.instance, state.objective),
            work=seconds * WORK_PER_SECOND,
            seed=seed,
            threads=state.params.threads,
            deadline=state.began + state.time_limit,
            on_progress=improved,
            stop=stop,
        )
    except OptschedError as error:
        state.status = "too long to be searched"
        state.note(f"search: left out, {error}")
        return
    state.offer_joint(found.schedule)
    if found.interrupted:
        state.interrupt()
    state.status = "time limit" if state.left <= 0 else "search ended"
    state.note(f"search: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def _latency(state: JointState) -> bool:
    return state.objective != "makespan" and state.method in ("auto", "search", "exact")


def _few(state: JointState) -> bool:
    return state.method != "search" and len(state.instance) <= state.tuning.exact


STAGES: tuple[Stage[JointState], ...] = (
    Stage(lambda _: True, run_lists),
    Stage(_latency, raise_pool_prices),
    Stage(_latency, wait_for_cheap_starts),
    Stage(
        lambda state: _latency(state) and _few(state),
        lambda state: search_moves(state, state.params.seed, _BEFORE_EXACT),
    ),
    Stage(
        lambda state: (
            _few(state)
            and state.objective == "total-latency"
            and state.workers.equal
            and state.method in ("auto", "exact")
        ),
        price_sizes,
    ),
    Stage(lambda state: _few(state) and has_few_parts(state), choose_parts),
    Stage(
        lambda state: _few(state) or state.method in ("highs", "cp-sat"),
        solve_joint_program,
    ),
    Stage(
        lambda state: _latency(state) and state.method != "exact",
        lambda state: search_moves(state, state.params.seed + 1),
    ),
)
