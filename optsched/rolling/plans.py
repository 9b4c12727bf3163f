"""What plans a window: each takes a `Window` and gives starts, and may fail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import SolverError
from optsched.instance import Instance
from optsched.policies import BASIC
from optsched.schedule import Schedule
from optsched.solution import Stopped
from optsched.solvers.backends.base import Options
from optsched.solvers.backends.driver import solve_linear
from optsched.solvers.search.window import search_window
from optsched.solvers.selection.expected_starts import averaged_starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.policies.base import BatchPolicy
    from optsched.rolling.window import Window

    Plan = tuple[IntArray, bool]

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


def by_program(window: Window) -> Plan:
    """Plan by the hindsight program, solved by HiGHS: within its horizon no plan is better."""
    began = time.perf_counter()
    found, _ = by_search(replace(window, seconds=window.seconds / 10))
    if not found.any() and not window.prices.any():
        return found, False  # all start now, and waiting saves nothing
    program = window.program(int((found + window.outputs).max() + window.outputs.max()))
    left = window.seconds - (time.perf_counter() - began)
    solution = solve_linear(
        program.to_linear(),
        options=Options(max(left, 1e-3), seed=window.seed),
        start=program.write_point(Schedule(program.instance, found)),
    )
    if solution.status is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.values is None:
        raise SolverError("HiGHS found no plan for a window in time")
    return program.read(solution.values).starts, not solution.proven_optimal


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
    "hindsight": by_search,
    "hindsight-exact": by_program,
    "relax-lp": by_relaxation,
    "batch": by_batches,
}
