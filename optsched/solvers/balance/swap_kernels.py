"""Kernels of the step program: greedy assignment and local search over whole windows.

The search replaces the request of a slot by one that waits, exchanges those of two slots, and moves
requests to other free slots, as long as that lowers the objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import MINUS_ONE, ONE, ZERO, compiled, compiled_apart
from optsched.solvers.balance.greedy_kernels import (
    NO,
    NONE,
    UNLIMITED,
    Pool,
    Step,
    add_requests,
    ascending,
    best_waiting,
    change_load,
    cost_in_slot,
    fill,
    fits,
    largest,
    largest_without,
    open_step,
    spread,
    total,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray


@compiled_apart
def assign(
    alive: IntArray,
    free: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    memory: IntArray,
    rounds: int | np.int64,
) -> IntArray:
    """Admit min(waiting, free slots), or as many as find room: greedy, then so many rounds."""
    chosen = np.empty(len(sizes), dtype=np.int64)
    chosen[:] = NONE
    slots = total(free)
    if slots == 0 or len(sizes) == 0:
        return chosen
    unlimited = True
    for worker in range(len(memory)):
        unlimited = unlimited and memory[worker] >= UNLIMITED
    filled = slots <= len(sizes) and unlimited
    step = open_step(alive, free, growth, slowness, memory, filled)
    order = ascending(sizes)
    admitted = min(slots, len(sizes))
    sorted_sizes, sorted_bonus = np.empty((2, len(sizes)), dtype=np.int64)
    taken = np.empty(len(sizes), dtype=np.bool_)
    for place in range(len(sizes)):
        sorted_sizes[place], sorted_bonus[place] = sizes[order[place]], bonus[order[place]]
        taken[place] = False
    pool = Pool(
        order,
        sorted_sizes,
        sorted_bonus,
        taken,
        np.empty(admitted, dtype=np.int64),
        np.empty(admitted, dtype=np.int64),
    )
    room = np.empty(len(step.worker), dtype=np.int64)
    for row in range(len(room)):
        room[row] = free[step.worker[row]]
    valued = largest(bonus) > 0
    if filled:
        fill(step, pool, room, valued)
    else:
        admitted = spread(step, pool, room, admitted)
    _search(step, pool, room, admitted, rounds, valued)
    for slot in range(admitted):
        chosen[order[pool.place[slot]]] = step.worker[pool.row[slot]]
    return chosen


@compiled_apart
def _search(
    step: Step, pool: Pool, room: IntArray, count: int, rounds: int | np.int64, valued: bool
) -> None:
    """Improve an assignment until no replacement, exchange or move does, or rounds are over."""
    waiting = len(pool.size) > count
    spare = np.empty(step.load.shape[1], dtype=np.int64)
    for _ in range(rounds):
        better = False
        if waiting:
            for slot in range(count):
                better |= _replace(step, pool, slot, spare, valued)
        if better:
            continue  # what is quick comes first
        for slot in range(count):
            better |= _exchange(step, pool, slot, count, spare, waiting)
        if total(room) > 0:
            for slot in range(count):
                better |= _move(step, pool, room, slot)
        if not better:
            return


@compiled_apart
def _replace(step: Step, pool: Pool, slot: int, spare: IntArray, valued: bool) -> bool:
    """Assign a slot to the best waiting request, if that is better."""
    row, place = pool.row[slot], pool.place[slot]
    weight, size = step.weight[row], pool.size[place]
    most = 0
    for h in range(len(spare)):
        without = step.load[row, h] - weight * size
        most = max(most, without)
        spare[h] = largest_without(step, row, row, h) - without
    now = cost_in_slot(step.cluster, spare, weight * size) - pool.bonus[place]
    found, cost = best_waiting(pool, spare, weight, step.limit[row] - most, step.cluster, valued)
    if found == NONE or cost >= now:
        return False
    pool.taken[place], pool.taken[found] = False, True
    pool.place[slot] = found
    add_requests(step, row, pool.size[found] - size, ZERO)
    return True


@compiled_apart
def _exchange(
    step: Step, pool: Pool, slot: int, count: int, spare: IntArray, waiting: bool
) -> bool:
    """Move another slot's request here, and this one's or the best waiting one there."""
    steps = len(spare)
    row, place = pool.row[slot], pool.place[slot]
    weight, size = step.weight[row], pool.size[place]
    peak = 0
    own = np.empty(steps, dtype=np.int64)
    for h in range(steps):
        peak += step.top[0, h]
        own[h] = largest_without(step, row, row, h) - step.load[row, h] + weight * size
    alone = cost_in_slot(step.cluster, own, weight * size)
    best, partner, successor = 0, NONE, NONE
    for other in range(count):
        other_row, other_place = pool.row[other], pool.place[other]
        other_weight, other_size = step.weight[other_row], pool.size[other_place]
        change = weight * (other_size - size)
        if other_row == row or change == 0:
            continue
        if cost_in_slot(step.cluster, own, weight * other_size) >= alone:
            continue  # it would have to be better where it goes
        base, most, held = 0, 0, 0
        for h in range(steps):
            load = step.load[row, h] + change
            without = step.load[other_row, h] - other_weight * other_size
            heaviest = max(load, largest_without(step, row, other_row, h))
            spare[h] = heaviest - without
            base += heaviest
            held = max(held, load)
            most = max(most, without)
        if held > step.limit[row]:
            continue
        room = step.limit[other_row] - most
        now = step.cluster * (peak - base) + steps * (change - other_weight * other_size)
        found, cost = place, cost_in_slot(step.cluster, spare, other_weight * size)
        if other_weight * size > room:
            found = NONE
        if waiting:
            next_found, next_cost = best_waiting(pool, spare, other_weight, room, step.cluster, NO)
            if next_found != NONE:
                next_cost += pool.bonus[place] - pool.bonus[next_found]
                if found == NONE or next_cost < cost:
                    found, cost = next_found, next_cost
        if found != NONE and cost - now < best:
            best, partner, successor = cost - now, other, found
    if partner == NONE:
        return False
    other_row, other_place = pool.row[partner], pool.place[partner]
    pool.place[slot], pool.place[partner] = other_place, successor
    pool.taken[place] = False
    pool.taken[successor] = True
    add_requests(step, row, pool.size[other_place] - size, ZERO)
    add_requests(step, other_row, pool.size[successor] - pool.size[other_place], ZERO)
    return True


@compiled_apart
def _move(step: Step, pool: Pool, room: IntArray, slot: int) -> bool:
    """Move a request to the free slot where it costs least, if that is better."""
    row, place = pool.row[slot], pool.place[slot]
    size = pool.size[place]
    best, target = 0, NONE
    for other in range(len(room)):
        if other == row or room[other] == 0 or not fits(step, other, size, ONE):
            continue
        cost = 0
        for h in range(step.load.shape[1]):
            tokens = size + step.growth[h]
            lighter = step.load[row, h] - step.weight[row] * tokens
            heavier = step.load[other, h] + step.weight[other] * tokens
            heaviest = max(largest_without(step, row, other, h), max(lighter, heavier))
            cost += step.cluster * (heaviest - step.top[0, h])
            cost += (step.weight[row] - step.weight[other]) * tokens
        if cost < best:
            best, target = cost, other
    if target == NONE:
        return False
    room[row] += 1
    room[target] -= 1
    add_requests(step, row, -size, MINUS_ONE)
    add_requests(step, target, size, ONE)
    pool.row[slot] = target
    return True


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
    if total(free) == 0 or len(tokens) == 0:
        return chosen
    nothing = np.zeros(alive.shape[1], dtype=np.int64)
    step = open_step(alive, free, nothing, slowness, memory, False)
    room = free[step.worker]
    _fill_by_profile(step, tokens, bonus, room, chosen)
    for _ in range(rounds):
        better = False
        for request in range(len(tokens)):
            if chosen[request] != NONE:
                better |= _improve_profile(step, tokens, bonus, room, chosen, request)
        if not better:
            break
    for request in range(len(tokens)):
        if chosen[request] != NONE:
            chosen[request] = step.worker[chosen[request]]
    return chosen


@compiled
def _fill_by_profile(
    step: Step, tokens: IntArray, bonus: IntArray, room: IntArray, chosen: IntArray
) -> None:
    """Let the worker with most headroom per slot take what costs it least, as long as it can."""
    closed = np.zeros(len(room), dtype=np.bool_)
    for _ in range(min(len(tokens), total(room))):
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
                    fits, cost = _cost_of_profile(step, tokens, row, request, NONE, NONE, NONE)
                    cost -= bonus[request]
                    if fits and (best == NONE or cost < least):
                        best, least = request, cost
            if best != NONE:
                break
            closed[row] = True
        chosen[best] = row
        room[row] -= 1
        _shift_profile(step, tokens, row, best, 1)


@compiled
def _cost_of_profile(
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
def _improve_profile(
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
            fits, cost = _cost_of_profile(step, tokens, row, other, request, NONE, NONE)
            cost += bonus[request] - bonus[other]
        else:
            fits, cost = _cost_of_profile(step, tokens, row, other, request, chosen[other], other)
        if fits and cost < least:
            best, least, target = other, cost, chosen[other]
    for other_row in range(len(room)):
        if room[other_row] and other_row != row:
            fits, cost = _cost_of_profile(step, tokens, row, NONE, request, other_row, NONE)
            if fits and cost < least:
                best, least, target = NONE, cost, other_row
    if least == 0:
        return False
    _shift_profile(step, tokens, row, request, -1)
    chosen[request] = target
    if target != NONE:
        _shift_profile(step, tokens, target, request, 1)
    if best == NONE:
        room[row] += 1
        room[target] -= 1
    else:
        if target != NONE:
            _shift_profile(step, tokens, target, best, -1)
        _shift_profile(step, tokens, row, best, 1)
        chosen[best] = row
    return True


@compiled
def _shift_profile(step: Step, tokens: IntArray, row: int, request: int, sign: int) -> None:
    """Put a request on a row, or take it away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, sign * step.weight[row] * tokens[request, h])
