"""Routing by least imbalance over a window (BF-IO), every step solved by a solver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.simulate.cluster.balance import add_bonus, add_queues, window_now
from optsched.simulate.cluster.rules import keep_to_memory, open_space, waiting_sizes
from optsched.simulate.cluster.state import NONE, admit, advance, reveal, seen_loads

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.cluster.routing import BalanceRouting
    from optsched.simulate.cluster.state import Columns, Settings, State


def run_solved(
    routing: BalanceRouting,
    state: State,
    believed: IntArray | None,
    settings: Settings,
    columns: Columns,
    revealing: bool,
) -> int:
    """Do what `balance.run_balanced` does, with answers of a solver in place of a search."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            chosen = _solve_step(routing, state, believed, settings)
            if settings.limited:
                keep_to_memory(state, settings, chosen)
            admit(state, believed, settings, chosen)
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


def _solve_step(
    routing: BalanceRouting, state: State, believed: IntArray | None, settings: Settings
) -> IntArray:
    """Choose a worker for each waiting request, or NONE."""
    lookahead = window_now(state, settings)
    loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
    sizes, slots = waiting_sizes(state), open_space(state, settings).slots
    if settings.instant:
        add_queues(state, loads, growth)
    bonus = np.zeros(len(sizes), dtype=np.int64)
    if not settings.patient:
        add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
    if not slots.any():
        return np.full(len(sizes), NONE)
    return solve_step(loads, slots, sizes, growth, state.slowness, bonus, routing)


def solve_step(
    loads: IntArray,
    slots: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    routing: BalanceRouting,
) -> IntArray:
    """Solve the program of one step; the solver has one thread, so that a run can be repeated."""
    from optsched.models.cluster.balance import BalanceProgram
    from optsched.models.cluster.balance_state import BalanceState
    from optsched.solvers.backends.base import Options
    from optsched.solvers.balance.balance import assign_balanced

    step = BalanceState(loads, slots, sizes, np.diff(growth), slowness, bonus=bonus)
    options = Options(time_limit=routing.time_limit, threads=1)
    found = assign_balanced(BalanceProgram(step), routing.method, options)
    if found.answer is None:
        raise PolicyError(
            f"{routing.method} found no assignment of {len(sizes)} requests: {found.status}"
        )
    return np.array(found.answer.worker)
