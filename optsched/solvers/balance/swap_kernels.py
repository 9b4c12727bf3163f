r"""Kernels of the step program: greedy assignment and local search over whole windows.

The search replaces the request of a slot by one that waits, exchanges those of two slots, and moves
requests to other free slots, as long as that lowers the objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.balance.greedy_kernels import (
    Pool,
    ascending,
    best_waiting,
    cost_in_slot,
    fill,
    spread,
)
from optsched.solvers.balance.load_kernels import (
    NONE,
    UNLIMITED,
    Step,
    add_requests,
    fits,
    largest_without,
    open_step,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray


@compiled
def assign_by_swap(
    alive: IntArray,
    free: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    rounds: int | np.int64,
) -> IntArray:
    """Admit exactly min(waiting, free slots) requests: greedy, then local search."""
    memory = np.full(len(free), UNLIMITED)
    return assign(alive, free, sizes, growth, slowness, bonus, memory, rounds)


@compiled
def assign_by_greedy(
    alive: IntArray,
    free: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
) -> IntArray:
    """Admit exactly min(waiting, free slots) requests, one at a time (`assign_by_swap`)."""
    memory = np.full(len(free), UNLIMITED)
    # For a literal 0 numba would compile all of the search once more.
    return assign(alive, free, sizes, growth, slowness, bonus, memory, np.int64(0))


@compiled
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
    """Assign as `assign_by_swap` does, where workers hold at most so many tokens, shape (G,)."""
    chosen = np.full(len(sizes), NONE)
    slots = free.sum()
    if slots == 0 or len(sizes) == 0:
        return chosen
    unlimited = memory.min() >= UNLIMITED
    filled = slots <= len(sizes) and unlimited
    step = open_step(alive, free, growth, slowness, memory, filled)
    order = ascending(sizes)
    admitted = min(slots, len(sizes))
    pool = Pool(
        order,
        sizes[order],
        bonus[order],
        np.zeros(len(sizes), dtype=np.bool_),
        np.empty(admitted, dtype=np.int64),
        np.empty(admitted, dtype=np.int64),
    )
    room = free[step.worker]
    valued = bonus.max() > 0
    if filled:
        fill(step, pool, room, valued)
    else:
        admitted = spread(step, pool, room, admitted)
    _search(step, pool, room, admitted, rounds, valued)
    for slot in range(admitted):
        chosen[order[pool.place[slot]]] = step.worker[pool.row[slot]]
    return chosen


@compiled
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
        if room.sum() > 0:
            for slot in range(count):
                better |= _move(step, pool, room, slot)
        if not better:
            return


@compiled
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
    add_requests(step, row, pool.size[found] - size, 0)
    return True


@compiled
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
            largest = max(load, largest_without(step, row, other_row, h))
            spare[h] = largest - without
            base += largest
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
            next_found, next_cost = best_waiting(
                pool, spare, other_weight, room, step.cluster, False
            )
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
    add_requests(step, row, pool.size[other_place] - size, 0)
    add_requests(step, other_row, pool.size[successor] - pool.size[other_place], 0)
    return True


@compiled
def _move(step: Step, pool: Pool, room: IntArray, slot: int) -> bool:
    """Move a request to the free slot where it costs least, if that is better."""
    row, place = pool.row[slot], pool.place[slot]
    size = pool.size[place]
    best, target = 0, NONE
    for other in range(len(room)):
        if other == row or room[other] == 0 or not fits(step, other, size, 1):
            continue
        cost = 0
        for h in range(step.load.shape[1]):
            tokens = size + step.growth[h]
            lighter = step.load[row, h] - step.weight[row] * tokens
            heavier = step.load[other, h] + step.weight[other] * tokens
            largest = max(largest_without(step, row, other, h), lighter, heavier)
            cost += step.cluster * (largest - step.top[0, h])
            cost += (step.weight[row] - step.weight[other]) * tokens
        if cost < best:
            best, target = cost, other
    if target == NONE:
        return False
    room[row] += 1
    room[target] -= 1
    add_requests(step, row, -size, -1)
    add_requests(step, target, size, 1)
    pool.row[slot] = target
    return True
