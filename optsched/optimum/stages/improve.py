"""Stages that improve the interval: better schedules, better prices, sizes that run together."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.aside import Token
from optsched._internal.numbers import proven
from optsched.bounds.ascent import improve_prices
from optsched.bounds.bound import CELLS, coarse_prices, smoothed
from optsched.bounds.configurations import ConfigurationBound, configuration_bound
from optsched.bounds.lagrangian import certify
from optsched.bounds.makespan import makespan_by_sizes
from optsched.bounds.sawtooth import improve_charges, sawtooth_bound, work_of_point
from optsched.certificates.prices import SawtoothCertificate
from optsched.errors import OptschedError
from optsched.search.annealing import WORK_PER_SECOND
from optsched.search.beam import start_by_beam
from optsched.search.delays import delay_large
from optsched.search.search import search

if TYPE_CHECKING:
    from optsched.optimum.state import Effort, SolveState
    from optsched.problem.schedule import Schedule

# Shares of the time left.
PRICES_OFFLINE, PRICES_ARRIVALS = 0.05, 0.15
CHARGES, CHARGES_BEAM = 0.05, 0.6  # at first and again at the end; there a beam leaves much time
DELAYS, DELAYS_FEW = 0.4, 0.2
BEFORE_BEAM, AFTER_BEAM = 0.05, 0.15  # of stages that a beam makes up for, and of a search from it
FEW = 400  # requests that are better searched than delayed
_BEAM = 2.2  # where runs are faster than work is counted
PRICED = 1000  # requests up to which prices are improved offline
LARGE_GAP = 0.04  # above which large requests do not pack, and the bound is too low
SIZES = 0.5  # of the time left, for the configuration bound
SIZES_MAKESPAN, SIZES_MOST = 0.3, 100  # and for sizes that bound the makespan, of so many seconds
SLOW = 0.85  # of the time left, when a beam ends on a slow machine
_CLIMB = 5  # rounds below which an ascent gains nothing
_LARGE = 0.7  # quantile of memory-time from which requests are priced on coarse grids
_GRIDS = ((CELLS, 300), (4 * CELLS, 200))  # cells in an output, and rounds


def delay_requests(state: SolveState) -> None:
    """Let large requests wait where arrivals make that pay."""
    if state.prices is None or not state.instance.arrivals.any():
        return
    if state.left <= 0 or state.finished:
        return
    few = len(state.instance) <= FEW
    share = DELAYS_FEW if few else DELAYS
    before, seconds = state.cost, state.share(BEFORE_BEAM if state.beamed else share)
    found = delay_large(
        state.instance,
        state.weights,
        state.prices,
        budget=state.budget(
            seconds * WORK_PER_SECOND,
            state.until(1.5 * seconds),
            lambda _: state.report("delays", state.cost, state.lowest),
        ),
        seed=state.params.seed,
    )
    state.offer(found)
    state.note(f"delays: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def start_large(state: SolveState, seed: int) -> None:
    """Start large requests anew where memory is worth it, and let a search move all."""
    if state.finished or state.prices is None or state.best is None:
        return
    threads, before, seconds = state.params.threads, state.cost, state.share(SLOW)
    found = start_by_beam(
        state.best,
        state.prices,
        budget=state.budget(
            threads * _BEAM * seconds * WORK_PER_SECOND,
            state.until(seconds),
            lambda cost: state.report("beam", min(cost, state.cost), state.lowest),
        ),
        seed=seed,
        threads=threads,
    )
    state.offer(found)
    state.note(f"beam: {state.cost:,.10g}, gained {before - state.cost:,.10g}")
    search_schedules(state, seed, AFTER_BEAM, start=found)


def search_schedules(
    state: SolveState,
    seed: int,
    share: float = 1.0,
    threads: int | None = None,
    work: float = math.inf,
    start: Schedule | None = None,
) -> None:
    """Improve the best schedule, or another, for a share of the time left and no more work."""
    if state.finished or state.best is None:
        return
    seconds = state.searching if share == 1 else state.share(share)
    if seconds <= 0:
        return
    before, began = state.cost, state.elapsed
    stop = Token(state.ended)

    def improved(cost: float) -> None:
        state.report("search", min(cost, before), state.lowest)
        if cost <= state.lowest:
            stop.set()

    try:
        found = search(
            start or state.best,
            state.weights,
            state.budget(
                min(work, seconds * WORK_PER_SECOND), state.began + state.time_limit, improved
            )._replace(stop=stop),
            seed=seed,
            threads=state.params.threads if threads is None else threads,
            latest=state.due,
        )
    except OptschedError as error:
        state.status = "too long to be searched"
        state.note(f"search: left out, {error}")
        return
    state.offer(found.schedule)
    better = [(at, cost) for at, cost in found.history[1:] if cost < before]
    state.history += [(began + at, cost, state.lowest) for at, cost in better]
    if found.interrupted:
        state.interrupt()
    state.status = "time limit" if state.left <= 0 else "search ended"
    state.note(f"search: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def raise_prices(state: SolveState, work: float | None = None) -> None:
    """Raise the bound by better prices: with arrivals it pays, offline a little."""
    if state.prices is None or state.best is None or state.left <= 0 or state.finished:
        return
    before, arrivals = state.lowest, bool(state.instance.arrivals.any())
    if not arrivals and len(state.instance) > PRICED:
        return  # the relaxation's prices are as good (docs/research.md)
    seconds = state.share(PRICES_ARRIVALS if arrivals else PRICES_OFFLINE)
    end = state.until(1.5 * seconds)
    if arrivals and state.beamed:
        work = _price_coarsely(state, seconds * WORK_PER_SECOND, end)
    found = improve_prices(
        state.best.pooled(),
        state.prices,
        state.budget(
            seconds * WORK_PER_SECOND if work is None else work,
            end,
            lambda value: state.report("prices", state.cost, max(value, state.lowest)),
        ),
    )
    state.prices = found.prices
    state.raise_bound(found)
    if found.interrupted:
        state.interrupt()
    gained = state.lowest - before
    state.note(f"prices: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def charge_for_growth(state: SolveState) -> None:
    """Raise the bound by the memory that requests keep free to grow."""
    prices = state.prices
    if prices is None or state.left <= 0 or state.finished:
        return
    before, work = state.lowest, state.share(CHARGES) * WORK_PER_SECOND
    if work < work_of_point(state.pool, prices):
        return
    state.raise_bound(sawtooth_bound(state.instance, prices, state.workers, work, state.ended))
    gained = state.lowest - before
    state.note(f"sawtooth: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def raise_charges(state: SolveState) -> None:
    """Raise the bound by better prices and charges together, before the last search."""
    certificate, prices = state.bound.certificate, state.prices
    if not isinstance(certificate, SawtoothCertificate) or state.best is None or prices is None:
        return
    share = CHARGES_BEAM if state.beamed else CHARGES
    ahead = _BEAM * share * state.searching * WORK_PER_SECOND
    if state.finished or ahead < _CLIMB * work_of_point(state.pool, prices):
        return
    before, seconds = state.lowest, state.share(share)
    found = improve_charges(
        state.best,
        certificate,
        state.budget(_BEAM * seconds * WORK_PER_SECOND, state.until(seconds)),
    )
    state.raise_bound(found)
    if found.interrupted:
        state.interrupt()
    gained = state.lowest - before
    state.note(f"charges: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def _price_coarsely(state: SolveState, work: float, deadline: float) -> float:
    """Find prices on coarse grids from which to begin; return the work that is left."""
    assert state.best is not None
    assert state.prices is not None
    instance, best = state.pool, state.best.pooled()
    large = instance.areas >= np.quantile(instance.areas, _LARGE)
    found = None
    for cells, rounds in _GRIDS:
        found, cell, spent = coarse_prices(
            best,
            state.objective,
            large,
            instance.memory,
            rounds=rounds,
            cells=cells,
            begin=found,
            budget=state.budget(math.inf, deadline),
        )
        if cell == 1:
            break
        found = smoothed(found, cell)
        coarse = certify(instance, found, best.starts, state.objective)
        state.prices = max(state.prices, coarse, key=lambda certificate: certificate.value)
        work -= spent
        if work <= 0 or state.ended.is_set():
            break
    return max(work, 0.0)


def large_requests(state: SolveState) -> bool:
    """Return whether the gap suggests that large requests leave memory empty."""
    if state.objective != "total-latency" or state.best is None:
        return False
    priced = state.lowest if state.prices is None else float(state.prices.value)
    return (state.cost - priced) / state.cost >= LARGE_GAP


def price_configurations(state: SolveState, seed: int, effort: Effort | None = None) -> None:
    """Raise the bound where large requests leave memory empty that nothing could use."""
    if state.left <= 0 or state.finished:
        return
    beside = state.params.threads > 1 and effort is None
    before, stop = state.lowest, Token(state.ended)
    try:
        found = _beside_a_search(state, seed, stop) if beside else _price(state, stop, effort)
    except OptschedError as error:
        state.note(f"configurations: left out, {error}")
        return
    state.sizes = found.certificate
    state.raise_bound(found)
    if found.interrupted and not state.proven:
        state.interrupt()
    gained = state.lowest - before
    state.note(f"configurations: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def size_requests(state: SolveState) -> None:
    """Raise the bound on the makespan by sizes of what runs together."""
    if state.left <= 0 or state.finished:
        return
    before, end = state.lowest, state.elapsed + min(state.left, SIZES_MOST) * SIZES_MAKESPAN
    try:
        found = makespan_by_sizes(
            state.instance,
            lambda: state.ended.is_set() or state.elapsed >= end,
            state.cost - 1,
        )
    except OptschedError as error:
        state.note(f"sizes: left out, {error}")
        return
    state.raise_bound(found)
    gained = state.lowest - before
    state.note(f"sizes: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def _beside_a_search(state: SolveState, seed: int, stop: Token) -> ConfigurationBound:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_price, state, stop, None)
        try:
            search_schedules(state, seed, SIZES, state.params.threads - 1)
            if state.finished:
                stop.set()
            return future.result()
        finally:
            stop.set()


def _price(state: SolveState, stop: Token, effort: Effort | None) -> ConfigurationBound:
    def watch(_: float, value: float) -> None:
        state.report("configurations", state.cost, max(value, state.lowest))

    work: dict[str, Any] = (
        {} if effort is None else {"phases": effort.phases, "iterations": effort.iterations}
    )
    return configuration_bound(
        state.instance,
        time_limit=SIZES * state.left,
        start=state.prices,
        on_progress=watch,
        stop=stop,
        **work,
    )
