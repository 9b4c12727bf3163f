"""What plans a window: each returns its starts, and whether the time cut it short."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from optsched._internal.aside import Budget, stopwatch
from optsched.bounds.lagrangian import averaged_starts
from optsched.errors import PolicyError, SolverError, shown
from optsched.models.hindsight import LatencyRelaxation
from optsched.models.program import Stopped
from optsched.policies import BASIC
from optsched.problem.schedule import Schedule
from optsched.rolling.window import Window, prices_of_rest
from optsched.search.annealing import search_window
from optsched.search.beam import Background, Beam, slices
from optsched.solvers import Options, solve_linear
from optsched.solvers.selection import BatchMethod, select_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.linear import LinearModel
    from optsched.policies.base import BatchPolicy

    Plan = tuple[IntArray, bool]


# Of the beam: the share of the memory its prices are for, starts for each slice, and its width.
_SHARE, _STARTS, _WIDTH = 0.93, 0.5, 10
_COMPLETE = (Stopped.OPTIMAL, Stopped.WITHIN_TOLERANCE)  # whatever prices add up to in doubles
_BUSY = 0.1  # of the time is work enough for: the rest is for whatever else the machine does
_ITERATIONS = 15  # steps of the subgradient method that a budget of some milliseconds allows


def by_hindsight(window: Window) -> Plan:
    """Plan by the hindsight program, searched or by a solver."""
    if window.method != "auto":
        return by_program(window)
    return search_window(
        window.prompts,
        window.outputs,
        window.memory,
        window.usage(),
        window.price_sums,
        window.order,
        window.hint,
        work=window.work if math.isinf(window.seconds) else _BUSY * window.seconds,
        deadline=stopwatch() + window.seconds,
        seed=window.seed,
    )


def by_beam(window: Window) -> Plan:
    """Plan by a narrow beam at the prices of the window and of all behind it."""
    deadline = stopwatch() + window.seconds
    plans = [window.place(window.order), window.place(window.order, prefix=False)]
    best = min(plans, key=window.cost)
    if len(window) < 2 or (not best.any() and not window.prices.any()):
        return best, False  # nothing to exchange, or all start now and waiting saves nothing
    if window.load.max(initial=0) > window.memory:
        return best, True  # forecasts were too short: until a preemption a beam has no room
    share = max(int(_SHARE * window.memory), int(window.instance.peaks.max()))
    own = prices_of_rest(window.instance.areas, window.running.area, share)
    prices = np.zeros(max(len(own), len(window.prices)))
    prices[: len(own)] += own
    prices[: len(window.prices)] += window.prices
    load = np.zeros(len(window.load) + 1, dtype=np.int32)
    load[1:] = window.load
    beam = Beam(
        window.instance,
        np.ones(len(window)),
        prices,
        np.ones(len(window), dtype=bool),
        Background(best, load),
        slices(best, _STARTS),
        _WIDTH,
    )
    found, _ = beam.follow(Budget(deadline=deadline), math.inf)
    if found is None:
        return best, True
    return min((best, found), key=window.cost), False


def by_program(window: Window) -> Plan:
    """Plan by the hindsight program, by a solver: within its horizon no plan is better."""
    began = stopwatch()
    found, _ = by_hindsight(replace(window, method="auto", seconds=window.seconds / 10))
    if not found.any() and not window.prices.any():
        return found, False  # all start now, and waiting saves nothing
    program = window.program(int((found + window.outputs).max() + window.outputs.max()))
    start = program.write_point(Schedule(program.instance, found))
    values, cut = _solved(window, program.to_linear(), began, start)
    return program.read(values).starts, cut


def _solved(
    window: Window, model: LinearModel, began: float, start: FloatArray | None = None
) -> tuple[FloatArray, bool]:
    """Solve a model in what is left of the time of a window, and say whether that was short."""
    solver = "highs" if window.method == "auto" else window.method
    left = max(window.seconds - (stopwatch() - began), 1e-3)
    solution = solve_linear(model, solver, Options(left, seed=window.seed), start=start)
    if solution.status is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.values is None:
        raise SolverError(f"{solution.solver} found no plan for a window in time")
    return solution.values, solution.status not in _COMPLETE


def by_relaxation(window: Window) -> Plan:
    """Plan in the order of Sorted-LP: expected starts of the relaxation."""
    if window.method == "auto":
        expected = averaged_starts(window.instance, _ITERATIONS)
        return window.place(np.argsort(expected, kind="stable")), False
    began, relaxation = stopwatch(), window.program(kind=LatencyRelaxation)
    values, cut = _solved(window, relaxation.to_linear(), began)
    expected = cast("FloatArray", relaxation.read(values))
    return window.place(np.argsort(expected, kind="stable")), cut


def by_batches(window: Window) -> Plan:
    """Plan in the order of batches of least F until all are in one."""
    began, cut = stopwatch(), False
    batches: list[IntArray] = []
    if window.method == "auto":  # by local swap
        policy: BatchPolicy = BASIC["sorted-f"]  # type: ignore[assignment]
        selector = policy.batches(window.instance)
        selector.release(np.arange(len(window)))
        while sum(map(len, batches)) < len(window):
            batches.append(selector.next_batch())
    else:
        waiting = np.arange(len(window))
        while len(waiting):
            left = max(window.seconds - (stopwatch() - began), 1e-3)
            method = cast("BatchMethod", window.method)
            batch = select_batch(window.instance.take(waiting), method, time_limit=left)
            batches.append(waiting[batch.requests])
            waiting, cut = np.delete(waiting, batch.requests), cut or batch.factor != 1
    return window.place(np.concatenate(batches)), cut


PLANS: dict[str, Callable[[Window], Plan]] = {
    "beam": by_beam,
    "hindsight": by_hindsight,
    "hindsight-exact": by_program,
    "relax-lp": by_relaxation,
    "batch": by_batches,
}


def planner_of(model: str | Callable[[Window], object]) -> Callable[[Window], Plan]:
    """Return what plans a window: one of `PLANS`, or a function of one's own."""
    if isinstance(model, str):
        return PLANS[model]

    def plan(window: Window) -> Plan:
        made = model(window)
        starts = np.asarray(getattr(made, "starts", made))
        if starts.shape != (len(window),) or starts.dtype.kind not in "iu":
            wish = f"a Schedule, or a whole start for each of the {len(window)} requests"
            raise PolicyError(f"the plan is {shown(made)}, but must be {wish}")
        return starts, False

    return plan
