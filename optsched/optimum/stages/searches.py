"""Stages that look for better schedules."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from optsched.errors import OptschedError
from optsched.solvers.search.annealing import WORK_PER_SECOND
from optsched.solvers.search.delays import delay_large
from optsched.solvers.search.search import search

if TYPE_CHECKING:
    from optsched.optimum.state import State


def delay_requests(state: State) -> None:
    """Let large requests wait where arrivals make that pay."""
    if state.prices is None or not state.instance.arrivals.any():
        return
    if state.left <= 0 or state.finished:
        return
    tuning = state.tuning
    few = len(state.instance) <= tuning.few
    before, seconds = state.cost, state.share(tuning.delays_few if few else tuning.delays)
    found = delay_large(
        state.instance,
        state.weights,
        state.prices,
        work=seconds * WORK_PER_SECOND,
        seed=state.params.seed,
        deadline=state.until(1.5 * seconds),
        on_progress=lambda _: state.report("delays", state.cost, state.lowest),
        stop=state.stop,
    )
    state.offer(found)
    state.note(f"delays: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def search_schedules(
    state: State,
    seed: int,
    share: float = 1.0,
    threads: int | None = None,
    work: float = math.inf,
) -> None:
    """Improve the best schedule, for a share of the time that is left and no more work."""
    if state.finished or state.best is None:
        return
    seconds = state.left if share == 1 else state.share(share)
    if seconds <= 0:
        return
    before, began = state.cost, state.elapsed
    stop = threading.Event()

    def improved(cost: float) -> None:
        state.report("search", cost, state.lowest)
        if cost <= state.lowest or state.stop.is_set():
            stop.set()

    try:
        found = search(
            state.best,
            state.weights,
            work=min(work, seconds * WORK_PER_SECOND),
            seed=seed,
            threads=state.params.threads if threads is None else threads,
            deadline=state.began + state.time_limit,
            on_progress=improved,
            stop=stop,
        )
    except OptschedError as error:
        state.status = "too long to be searched"
        state.note(f"search: left out, {error}")
        return
    state.offer(found.schedule)
    state.history += [(began + at, cost, state.lowest) for at, cost in found.history[1:]]
    if found.interrupted:
        state.stop.set()
    state.status = "time limit" if state.left <= 0 else "search ended"
    state.note(f"search: {state.cost:,.10g}, gained {before - state.cost:,.10g}")
