"""Routing by least imbalance over a window (BF-IO), step by step; compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.simulate.cluster.rules import keep_to_memory, open_space, waiting_sizes
from optsched.simulate.cluster.state import NONE, admit, advance, reveal, seen_loads
from optsched.solvers.balance.greedy_kernels import UNLIMITED, largest
from optsched.solvers.balance.swap_kernels import assign

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.simulate.cluster.state import Columns, Settings, State

GAINED = 7.5  # fitted, as `window_scale` of `BalanceRouting` is


@compiled
def run_balanced(
    state: State,
    believed: IntArray | None,
    settings: Settings,
    columns: Columns,
    revealing: bool,
) -> int:
    """Run so many steps, or until all requests are done; return the number of steps that ran."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            # As many admissions as there is room for. One kernel down to `assign`: machine code is
            # optimised again for every call in between.
            lookahead = window_now(state, settings)
            loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
            sizes, slots = waiting_sizes(state), open_space(state, settings).slots
            if settings.instant:
                add_queues(state, loads, growth)
            bonus = np.empty(len(sizes), dtype=np.int64)
            bonus[:] = 0
            if not settings.patient:
                add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
            memory, slowness = np.empty(len(slots), dtype=np.int64), state.slowness
            memory[:] = UNLIMITED
            chosen = assign(loads, slots, sizes, growth, slowness, bonus, memory, settings.rounds)
            if settings.limited:
                keep_to_memory(state, settings, chosen)
            admit(state, believed, settings, chosen)
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


@compiled
def add_queues(state: State, loads: IntArray, growth: IntArray) -> None:
    """Add what waits in the queues of workers to their loads."""
    for place in range(len(loads)):
        worker = state.workers[place]
        for ahead in range(len(growth)):
            loads[place, ahead] += worker.queue_tokens + worker.queue_length * growth[ahead]


@compiled
def window_now(state: State, settings: Settings) -> int:
    """Return the number of steps to look ahead now."""
    now = state.now[0]
    if settings.adaptive == 0.0:
        return settings.lookahead
    if now.done == 0:
        return 0
    slots = 0
    for worker in state.workers:
        slots += worker.slots
    between = now.made / now.done * len(state.workers) / slots
    gained = now.done_gains / max(1, now.done_sizes)
    wanted = settings.adaptive * (1 + GAINED * gained) * between
    return int(max(0.0, min(float(settings.lookahead), wanted + 0.5)))


@compiled
def add_bonus(state: State, sizes: IntArray, cost: int, bonus: IntArray) -> None:
    """Say what admission of each waiting request is worth beyond balance, by its wait."""
    most = float(cost * largest(sizes))
    for position in range(len(sizes)):
        request = state.requests[state.waiting[position]]
        if request.patience > 0:
            share = (state.now[0].step - request.revealed) / request.patience
            bonus[position] = np.int64(most * share * share)
