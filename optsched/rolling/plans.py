"""What plans a window: each takes a `Window` and gives starts, and may fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.loading import stopwatch
from optsched.bounds.expected_starts import averaged_starts
from optsched.errors import SolverError
from optsched.models.solution import Stopped
from optsched.policies import BASIC
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.rolling.window import prices_of_rest
from optsched.search.beam import Background, Beam, Watch, slices
from optsched.search.window import search_window
from optsched.solvers.backends.base import Options
from optsched.solvers.backends.driver import solve_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.policies.base import BatchPolicy
    from optsched.rolling.window import Window

    Plan = tuple[IntArray, bool]

# Of the beam: the share of the memory its prices are for, starts for each slice, and its width.
_SHARE, _STARTS, _WIDTH = 0.93, 0.5, 10
_COMPLETE = (Stopped.OPTIMAL, Stopped.WITHIN_TOLERANCE)  # whatever prices add up to in doubles
_ITERATIONS = 15  # steps of the subgradient method that a budget of some milliseconds allows


def by_search(window: Window) -> Plan:
    """Plan by the hindsight program, searched."""
    return search_window(
        window.prompts,
        window.outputs,
        window.memory,
        window.usage(),
        window.price_sums,
        window.order,
        window.hint,
        seconds=window.seconds,
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
    instance = Instance(window.prompts, window.outputs, window.memory)
    share = max(int(_SHARE * window.memory), int(instance.peaks.max()))
    own = prices_of_rest(instance.areas, window.running.area, share)
    prices = np.zeros(max(len(own), len(window.prices)))
    prices[: len(own)] += own
    prices[: len(window.prices)] += window.prices
    load = np.zeros(len(window.load) + 1, dtype=np.int32)
    load[1:] = window.load
    beam = Beam(
        instance,
        np.ones(len(window)),
        prices,
        np.ones(len(window), dtype=bool),
        Background(best, load),
        slices(best, _STARTS),
        _WIDTH,
    )
    found, _ = beam.follow(Watch(deadline), math.inf)
    if found is None:
        return best, True
    return min((best, found), key=window.cost), False


def by_program(window: Window) -> Plan:
    """Plan by the hindsight program, solved by HiGHS: within its horizon no plan is better."""
    began = stopwatch()
    found, _ = by_search(replace(window, seconds=window.seconds / 10))
    if not found.any() and not window.prices.any():
        return found, False  # all start now, and waiting saves nothing
    program = window.program(int((found + window.outputs).max() + window.outputs.max()))
    left = window.seconds - (stopwatch() - began)
    solution = solve_linear(
        program.to_linear(),
        options=Options(max(left, 1e-3), seed=window.seed),
        start=program.write_point(Schedule(program.instance, found)),
    )
    if solution.status is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.values is None:
        raise SolverError("HiGHS found no plan for a window in time")
    return program.read(solution.values).starts, solution.status not in _COMPLETE


def by_relaxation(window: Window) -> Plan:
    """Plan in the order of Sorted-LP: expected starts of the relaxation, by its Lagrangian."""
    instance = Instance(window.prompts, window.outputs, window.memory)
    expected = averaged_starts(instance, _ITERATIONS)
    return window.place(np.argsort(expected, kind="stable")), False


def by_batches(window: Window) -> Plan:
    """Plan in the order of batches of least F, chosen by local swap until all are in one."""
    instance = Instance(window.prompts, window.outputs, window.memory)
    policy: BatchPolicy = BASIC["sorted-f"]  # type: ignore[assignment]
    selector = policy.batches(instance)
    selector.release(np.arange(len(window)))
    batches: list[IntArray] = []
    while sum(map(len, batches)) < len(window):
        batches.append(selector.next_batch())
    return window.place(np.concatenate(batches)), False


PLANS: dict[str, Callable[[Window], Plan]] = {
    "beam": by_beam,
    "hindsight": by_search,
    "hindsight-exact": by_program,
    "relax-lp": by_relaxation,
    "batch": by_batches,
}
