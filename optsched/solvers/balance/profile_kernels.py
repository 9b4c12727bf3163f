"""Greedy assignment and local search where every waiting request has a profile of its own.

The general case of `swap_kernels`: a slot's cost is no longer convex in anything,
so that every request that waits is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.balance.load_kernels import (
    NONE,
    Step,
    change_load,
    largest_without,
    open_step,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray


@compiled
def assign_profiles(
    alive: IntArray,
    free: IntArray,
    tokens: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    memory: IntArray,
    rounds: int,
) -> IntArray:
    """Admit exactly min(waiting, free slots) requests, or as many as are found room in memory."""
    chosen = np.full(len(tokens), NONE)
    if free.sum() == 0 or len(tokens) == 0:
        return chosen
    nothing = np.zeros(alive.shape[1], dtype=np.int64)
    step = open_step(alive, free, nothing, slowness, memory, False)
    room = free[step.worker]
    _fill(step, tokens, bonus, room, chosen)
    for _ in range(rounds):
        better = False
        for request in range(len(tokens)):
            if chosen[request] != NONE:
                better |= _improve(step, tokens, bonus, room, chosen, request)
        if not better:
            break
    for request in range(len(tokens)):
        if chosen[request] != NONE:
            chosen[request] = step.worker[chosen[request]]
    return chosen


@compiled
def _fill(step: Step, tokens: IntArray, bonus: IntArray, room: IntArray, chosen: IntArray) -> None:
    """Let the worker with most headroom per slot take what costs it least, as long as it can."""
    closed = np.zeros(len(room), dtype=np.bool_)
    for _ in range(min(len(tokens), room.sum())):
        while True:
            row, headroom = NONE, 0
            for candidate in range(len(room)):
                if room[candidate] and not closed[candidate]:
                    share = (step.top[0] - step.load[candidate]).sum() // room[candidate]
                    if row == NONE or share > headroom:
                        row, headroom = candidate, share
            if row == NONE:
                return
            best, least = NONE, 0
            for request in range(len(tokens)):
                if chosen[request] == NONE:
                    fits, cost = _cost(step, tokens, row, request, NONE, NONE, NONE)
                    cost -= bonus[request]
                    if fits and (best == NONE or cost < least):
                        best, least = request, cost
            if best != NONE:
                break
            closed[row] = True
        chosen[best] = row
        room[row] -= 1
        _shift(step, tokens, row, best, 1)


@compiled
def _cost(
    step: Step, tokens: IntArray, row: int, comes: int, goes: int, other: int, there: int
) -> tuple[bool, int]:
    """Cost a change: on a row one request comes and one goes; on another the latter may come."""
    cost, fits = 0, True
    for h in range(step.load.shape[1]):
        load = step.load[row, h]
        before = load
        if comes != NONE:
            load += step.weight[row] * tokens[comes, h]
        if goes != NONE:
            load -= step.weight[row] * tokens[goes, h]
        fits &= load <= step.limit[row]
        largest = max(load, largest_without(step, row, row if other == NONE else other, h))
        cost -= load - before
        if other != NONE:
            load = step.load[other, h] + step.weight[other] * tokens[goes, h]
            if there != NONE:
                load -= step.weight[other] * tokens[there, h]
            fits &= load <= step.limit[other]
            largest = max(largest, load)
            cost -= load - step.load[other, h]
        cost += step.cluster * (largest - step.top[0, h])
    return fits, cost


@compiled
def _improve(
    step: Step,
    tokens: IntArray,
    bonus: IntArray,
    room: IntArray,
    chosen: IntArray,
    request: int,
) -> bool:
    """Replace, exchange or move one request in the way that saves most, if any does."""
    row = chosen[request]
    best, least, target = NONE, 0, NONE
    for other in range(len(tokens)):
        if chosen[other] == row:
            continue
        if chosen[other] == NONE:
            fits, cost = _cost(step, tokens, row, other, request, NONE, NONE)
            cost += bonus[request] - bonus[other]
        else:
            fits, cost = _cost(step, tokens, row, other, request, chosen[other], other)
        if fits and cost < least:
            best, least, target = other, cost, chosen[other]
    for other_row in range(len(room)):
        if room[other_row] and other_row != row:
            fits, cost = _cost(step, tokens, row, NONE, request, other_row, NONE)
            if fits and cost < least:
                best, least, target = NONE, cost, other_row
    if least == 0:
        return False
    _shift(step, tokens, row, request, -1)
    chosen[request] = target
    if target != NONE:
        _shift(step, tokens, target, request, 1)
    if best == NONE:
        room[row] += 1
        room[target] -= 1
    else:
        if target != NONE:
            _shift(step, tokens, target, best, -1)
        _shift(step, tokens, row, best, 1)
        chosen[best] = row
    return True


@compiled
def _shift(step: Step, tokens: IntArray, row: int, request: int, sign: int) -> None:
    """Put a request on a row, or take it away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, sign * step.weight[row] * tokens[request, h])
