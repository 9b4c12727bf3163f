r"""Kernels that fill the free slots of one step with waiting requests, one after the other.

But for its growth, which is no other than that of the rest, a request of size :math:`s` weighs the
same at every step. So the cost of a size in a slot is convex and piecewise linear,

.. math:: G \sum_h \max(0, a_g s - c_h) - (H + 1) \, a_g s

with :math:`c_h` the load that fits below the heaviest other worker at step :math:`k + h`. The best
request for a slot is therefore one of the two free ones next to the minimum of that function, found
by bisection among the sizes in ascending order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.balance.load_kernels import (
    NONE,
    UNLIMITED,
    Step,
    add_requests,
    fits,
    largest_without,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, IntArray


class Pool(NamedTuple):
    """The waiting requests by ascending size, and which request is in which slot."""

    order: IntArray  # (R,), places in the arrays of the caller
    size: IntArray  # (R,)
    bonus: IntArray  # (R,)
    taken: BoolArray  # (R,)
    row: IntArray  # (U,), row of each admitted request
    place: IntArray  # (U,), its place in `size`


@compiled
def ascending(sizes: IntArray) -> IntArray:
    """Sort places by size, equal sizes in their order: by bytes, as comparisons take longer."""
    count = len(sizes)
    order, sorted_so_far = np.arange(count), np.empty(count, dtype=np.int64)
    begins = np.empty(257, dtype=np.int64)
    largest, shift = sizes.max(), 0
    while largest >> shift > 0:
        begins[:] = 0
        for size in sizes:
            begins[((size >> shift) & 255) + 1] += 1
        for byte in range(256):
            begins[byte + 1] += begins[byte]
        for place in order:
            byte = (sizes[place] >> shift) & 255
            sorted_so_far[begins[byte]] = place
            begins[byte] += 1
        order, sorted_so_far = sorted_so_far, order
        shift += 8
    return order


@compiled
def cost_in_slot(cluster: int, spare: IntArray, load: int) -> int:
    """Cost a load on a worker, where so much fits below the heaviest other one."""
    excess = 0
    for h in range(len(spare)):
        excess += max(0, load - spare[h])
    return cluster * excess - len(spare) * load


@compiled
def _turning(pool: Pool, spare: IntArray, weight: int, room: int, cluster: int) -> int:
    """Find the first place whose size is beyond the minimum of the cost, or beyond the room."""
    low, high = 0, len(pool.size)
    while low < high:
        middle = (low + high) // 2
        load = weight * pool.size[middle]
        exceeded = 0
        for h in range(len(spare)):
            exceeded += spare[h] < load
        if load > room or cluster * exceeded > len(spare):
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def best_waiting(
    pool: Pool, spare: IntArray, weight: int, room: int, cluster: int, valued: bool
) -> tuple[int, int]:
    """Find the request that waits and costs least in a slot, and its cost; -1 if none fits."""
    best, least = NONE, 0
    if valued:  # a bonus may make up for any size
        for place in range(len(pool.size)):
            load = weight * pool.size[place]
            if load > room:
                break
            if not pool.taken[place]:
                cost = cost_in_slot(cluster, spare, load) - pool.bonus[place]
                if best == NONE or cost < least:
                    best, least = place, cost
        return best, least
    above = _turning(pool, spare, weight, room, cluster)
    below = above - 1
    while below >= 0 and pool.taken[below]:
        below -= 1
    while above < len(pool.size) and pool.taken[above]:
        above += 1
    if below >= 0:
        # Of equal sizes the oldest.
        while below > 0 and pool.size[below - 1] == pool.size[below] and not pool.taken[below - 1]:
            below -= 1
        best, least = below, cost_in_slot(cluster, spare, weight * pool.size[below])
    if above < len(pool.size) and weight * pool.size[above] <= room:
        cost = cost_in_slot(cluster, spare, weight * pool.size[above])
        if best == NONE or cost < least:
            best, least = above, cost
    return best, least


@compiled
def fill(step: Step, pool: Pool, room: IntArray, valued: bool) -> None:
    """Fill every slot: the worker with most headroom per slot takes what costs it least."""
    rows, steps = step.load.shape
    spare = np.empty(steps, dtype=np.int64)
    held = step.load.sum(axis=1)
    for slot in range(len(pool.row)):
        peak = step.top[0].sum()
        row, headroom = NONE, 0
        for candidate in range(rows):
            if room[candidate]:
                share = (peak - held[candidate]) // room[candidate]
                if row == NONE or share > headroom:
                    row, headroom = candidate, share
        for h in range(steps):
            largest = largest_without(step, row, row, h)
            spare[h] = (largest - step.load[row, h]) // room[row]
        place, _ = best_waiting(pool, spare, step.weight[row], UNLIMITED, step.cluster, valued)
        _put(step, pool, room, slot, row, place)
        held[row] += steps * step.weight[row] * pool.size[place]


@compiled
def spread(step: Step, pool: Pool, room: IntArray, count: int) -> int:
    """Place the smallest requests, the largest of them first, where they cost least."""
    rows, steps = step.load.shape
    for slot in range(count):
        place = count - 1 - slot
        row, least = NONE, 0
        for candidate in range(rows):
            if room[candidate] and fits(step, candidate, pool.size[place], 1):
                cost = 0
                weight = step.weight[candidate]
                for h in range(steps):
                    added = weight * (pool.size[place] + step.growth[h])
                    excess = step.load[candidate, h] + added - step.top[0, h]
                    cost += step.cluster * max(0, excess) - added
                # Of equals the lightest, so that what comes later finds room.
                if row == NONE or (cost, step.load[candidate, 0]) < (least, step.load[row, 0]):
                    row, least = candidate, cost
        if row == NONE:
            _undo(step, pool, room, slot)
            return _pack(step, pool, room, count)
        _put(step, pool, room, slot, row, place)
    return count


@compiled
def _pack(step: Step, pool: Pool, room: IntArray, count: int) -> int:
    """Place as many of the smallest requests as find room, each where most memory is left."""
    for slot in range(count):
        row, most = NONE, 0
        for candidate in range(len(room)):
            if room[candidate] and fits(step, candidate, pool.size[slot], 1):
                left = (step.limit[candidate] - step.load[candidate].max()) // step.weight[
                    candidate
                ]
                if row == NONE or left > most:
                    row, most = candidate, left
        if row == NONE:
            return slot
        _put(step, pool, room, slot, row, slot)
    return count


@compiled
def _put(step: Step, pool: Pool, room: IntArray, slot: int, row: int, place: int) -> None:
    pool.taken[place] = True
    pool.row[slot], pool.place[slot] = row, place
    room[row] -= 1
    add_requests(step, row, pool.size[place], 1)


@compiled
def _undo(step: Step, pool: Pool, room: IntArray, count: int) -> None:
    """Take back what is in the first slots."""
    for slot in range(count):
        row, place = pool.row[slot], pool.place[slot]
        pool.taken[place] = False
        room[row] += 1
        add_requests(step, row, -pool.size[place], -1)
