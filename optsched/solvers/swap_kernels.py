r"""Kernels of the step program: greedy assignment and local search over whole windows.

A worker that is full cannot be changed: all full workers together are one floor per step. On the
others a request of size :math:`s` weighs the same at every step but for its growth, so that the
cost of a size in a slot is convex and piecewise linear,

.. math:: G \sum_h \max(0, a_g s - c_h) - (H + 1) \, a_g s

with :math:`c_h` the load that fits below the heaviest other worker at step :math:`k + h`. The best
request for a slot is therefore one of the two free ones next to the minimum of that function, found
by bisection among the sizes in ascending order. The three largest loads of every step are kept, so
that the largest without any two workers is known at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._compiled import compiled

if TYPE_CHECKING:
    from optsched.instance import BoolArray, IntArray

#: A memory limit that is none.
UNLIMITED = 2**40

_NOBODY = -1


class Step(NamedTuple):
    """The workers with free slots, rows f = 0, ..., F - 1, at steps h = 0, ..., H."""

    cluster: int  # G
    worker: IntArray  # (F,)
    weight: IntArray  # (F,), slowness
    limit: IntArray  # (F,), weighted load that memory allows
    load: IntArray  # (F, H + 1), weighted, with everything admitted
    floor: IntArray  # (H + 1,), largest load of the full workers
    top: IntArray  # (3, H + 1), largest loads, descending
    who: IntArray  # (3, H + 1), rows they belong to
    growth: IntArray  # (H + 1,), what a request weighs beyond its size; 0 if counts are fixed


class _Pool(NamedTuple):
    """The waiting requests by ascending size, and which request is in which slot."""

    order: IntArray  # (R,), places in the arrays of the caller
    size: IntArray  # (R,)
    bonus: IntArray  # (R,)
    taken: BoolArray  # (R,)
    row: IntArray  # (U,), row of each admitted request
    place: IntArray  # (U,), its place in `size`


@compiled
def assign_by_swap(
    alive: IntArray,
    free: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    rounds: int,
) -> IntArray:
    """Admit exactly min(waiting, free slots) requests: greedy, then local search.

    Parameters
    ----------
    alive
        Tokens at step k + h of the requests already on worker g that are still alive then, shape
        (G, H + 1).
    free
        Free slots, shape (G,).
    sizes
        Tokens of the waiting requests, the oldest first, shape (R,).
    growth
        Tokens that a request admitted now has gained by k + h, shape (H + 1,).
    slowness
        Weights of loads, shape (G,); 1 for equal workers.
    bonus
        What admission of a request is worth in the objective, shape (R,).
    rounds
        Sweeps of the local search at most; it ends by itself at a local optimum.

    Returns
    -------
    IntArray
        Worker of each request, -1 for those that stay waiting, shape (R,).
    """
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
    return assign(alive, free, sizes, growth, slowness, bonus, memory, 0)


@compiled
def assign(
    alive: IntArray,
    free: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    memory: IntArray,
    rounds: int,
) -> IntArray:
    """Assign as `assign_by_swap` does, where workers hold at most so many tokens, shape (G,).

    Where memory is short, fewer than min(waiting, free slots) requests may be admitted.
    """
    chosen = np.full(len(sizes), _NOBODY)
    slots = free.sum()
    if slots == 0 or len(sizes) == 0:
        return chosen
    unlimited = memory.min() >= UNLIMITED
    filled = slots <= len(sizes) and unlimited
    step = open_step(alive, free, growth, slowness, memory, filled)
    order = ascending(sizes)
    admitted = min(slots, len(sizes))
    pool = _Pool(
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
        _fill(step, pool, room, valued)
    else:
        admitted = _spread(step, pool, room, admitted)
    _search(step, pool, room, admitted, rounds, valued)
    for slot in range(admitted):
        chosen[order[pool.place[slot]]] = step.worker[pool.row[slot]]
    return chosen


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
def open_step(
    alive: IntArray,
    free: IntArray,
    growth: IntArray,
    slowness: IntArray,
    memory: IntArray,
    filled: bool,
) -> Step:
    """Set up the rows; where every slot is filled, growth is part of their loads."""
    steps = alive.shape[1]
    worker = np.flatnonzero(free)
    load = np.empty((len(worker), steps), dtype=np.int64)
    floor = np.zeros(steps, dtype=np.int64)
    row = 0
    for g in range(len(free)):
        weight = slowness[g]
        if free[g]:
            count = free[g] if filled else 0
            for h in range(steps):
                load[row, h] = weight * (alive[g, h] + count * growth[h])
            row += 1
        else:
            for h in range(steps):
                floor[h] = max(floor[h], weight * alive[g, h])
    step = Step(
        len(free),
        worker,
        slowness[worker],
        slowness[worker] * memory[worker],
        load,
        floor,
        np.empty((3, steps), dtype=np.int64),
        np.empty((3, steps), dtype=np.int64),
        np.zeros(steps, dtype=np.int64) if filled else growth,
    )
    for h in range(steps):
        _rank(step, h)
    return step


@compiled
def _rank(step: Step, h: int) -> None:
    """Find the three largest loads of a step anew."""
    top, who = step.top, step.who
    top[0, h], who[0, h] = step.floor[h], _NOBODY
    top[1, h] = top[2, h] = 0
    who[1, h] = who[2, h] = _NOBODY
    for row in range(len(step.load)):
        if step.load[row, h] > top[2, h]:
            _insert(top, who, h, row, step.load[row, h])


@compiled
def _insert(top: IntArray, who: IntArray, h: int, row: int, load: int) -> None:
    """Put a load that exceeds the third largest in its place."""
    place = 2
    while place > 0 and top[place - 1, h] < load:
        top[place, h] = top[place - 1, h]
        who[place, h] = who[place - 1, h]
        place -= 1
    top[place, h], who[place, h] = load, row


@compiled
def _add(step: Step, row: int, tokens: int, count: int) -> None:
    """Add requests of so many tokens to a worker, or take them away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, step.weight[row] * (tokens + count * step.growth[h]))


@compiled
def change_load(step: Step, row: int, h: int, change: int) -> None:
    """Change a worker's load at one step, and keep the ranks."""
    top, who = step.top, step.who
    step.load[row, h] += change
    load = step.load[row, h]
    if row == who[0, h] or row == who[1, h] or row == who[2, h]:
        if load < top[2, h]:
            _rank(step, h)
            return
        place = 0
        while who[place, h] != row:
            place += 1
        for below in range(place, 2):
            top[below, h], who[below, h] = top[below + 1, h], who[below + 1, h]
        top[2, h] = -1
        _insert(top, who, h, row, load)
    elif load > top[2, h]:
        _insert(top, who, h, row, load)


@compiled
def largest_without(step: Step, row: int, other: int, h: int) -> int:
    """Give the largest load of a step among all workers but two."""
    for place in range(2):
        if step.who[place, h] != row and step.who[place, h] != other:
            return int(step.top[place, h])
    return int(step.top[2, h])


@compiled
def _cost(cluster: int, spare: IntArray, load: int) -> int:
    """Cost a load on a worker, where so much fits below the heaviest other one."""
    excess = 0
    for h in range(len(spare)):
        excess += max(0, load - spare[h])
    return cluster * excess - len(spare) * load


@compiled
def _turning(pool: _Pool, spare: IntArray, weight: int, room: int, cluster: int) -> int:
    """Find the first place whose size is beyond the minimum of `_cost`, or beyond the room."""
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
def _best(
    pool: _Pool, spare: IntArray, weight: int, room: int, cluster: int, valued: bool
) -> tuple[int, int]:
    """Find the request that waits and costs least in a slot, and its cost; -1 if none fits."""
    best, least = _NOBODY, 0
    if valued:  # a bonus may make up for any size
        for place in range(len(pool.size)):
            load = weight * pool.size[place]
            if load > room:
                break
            if not pool.taken[place]:
                cost = _cost(cluster, spare, load) - pool.bonus[place]
                if best == _NOBODY or cost < least:
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
        best, least = below, _cost(cluster, spare, weight * pool.size[below])
    if above < len(pool.size) and weight * pool.size[above] <= room:
        cost = _cost(cluster, spare, weight * pool.size[above])
        if best == _NOBODY or cost < least:
            best, least = above, cost
    return best, least


@compiled
def _fill(step: Step, pool: _Pool, room: IntArray, valued: bool) -> None:
    """Fill every slot: the worker with most headroom per slot takes what costs it least."""
    rows, steps = step.load.shape
    spare = np.empty(steps, dtype=np.int64)
    held = step.load.sum(axis=1)
    for slot in range(len(pool.row)):
        peak = step.top[0].sum()
        row, headroom = _NOBODY, 0
        for candidate in range(rows):
            if room[candidate]:
                share = (peak - held[candidate]) // room[candidate]
                if row == _NOBODY or share > headroom:
                    row, headroom = candidate, share
        for h in range(steps):
            largest = largest_without(step, row, row, h)
            spare[h] = (largest - step.load[row, h]) // room[row]
        place, _ = _best(pool, spare, step.weight[row], UNLIMITED, step.cluster, valued)
        pool.taken[place] = True
        pool.row[slot], pool.place[slot] = row, place
        room[row] -= 1
        _add(step, row, pool.size[place], 1)
        held[row] += steps * step.weight[row] * pool.size[place]


@compiled
def _spread(step: Step, pool: _Pool, room: IntArray, count: int) -> int:
    """Place the smallest requests, the largest of them first, where they cost least.

    If not all find room in memory, as many as do are placed in ascending order where most is left.
    """
    rows, steps = step.load.shape
    for slot in range(count):
        place = count - 1 - slot
        row, least = _NOBODY, 0
        for candidate in range(rows):
            if room[candidate] and _fits(step, candidate, pool.size[place], 1):
                cost = 0
                weight = step.weight[candidate]
                for h in range(steps):
                    added = weight * (pool.size[place] + step.growth[h])
                    excess = step.load[candidate, h] + added - step.top[0, h]
                    cost += step.cluster * max(0, excess) - added
                # Of equals the lightest, so that what comes later finds room.
                if row == _NOBODY or (cost, step.load[candidate, 0]) < (least, step.load[row, 0]):
                    row, least = candidate, cost
        if row == _NOBODY:
            _undo(step, pool, room, slot)
            return _pack(step, pool, room, count)
        _put(step, pool, room, slot, row, place)
    return count


@compiled
def _pack(step: Step, pool: _Pool, room: IntArray, count: int) -> int:
    """Place as many of the smallest requests as find room, each where most memory is left."""
    for slot in range(count):
        row, most = _NOBODY, 0
        for candidate in range(len(room)):
            if room[candidate] and _fits(step, candidate, pool.size[slot], 1):
                left = (step.limit[candidate] - step.load[candidate].max()) // step.weight[
                    candidate
                ]
                if row == _NOBODY or left > most:
                    row, most = candidate, left
        if row == _NOBODY:
            return slot
        _put(step, pool, room, slot, row, slot)
    return count


@compiled
def _put(step: Step, pool: _Pool, room: IntArray, slot: int, row: int, place: int) -> None:
    pool.taken[place] = True
    pool.row[slot], pool.place[slot] = row, place
    room[row] -= 1
    _add(step, row, pool.size[place], 1)


@compiled
def _undo(step: Step, pool: _Pool, room: IntArray, count: int) -> None:
    """Take back what is in the first slots."""
    for slot in range(count):
        row, place = pool.row[slot], pool.place[slot]
        pool.taken[place] = False
        room[row] += 1
        _add(step, row, -pool.size[place], -1)


@compiled
def _fits(step: Step, row: int, tokens: int, count: int) -> bool:
    """Tell whether memory allows the load that a worker would have."""
    for h in range(step.load.shape[1]):
        added = step.weight[row] * (tokens + count * step.growth[h])
        if step.load[row, h] + added > step.limit[row]:
            return False
    return True


@compiled
def _search(step: Step, pool: _Pool, room: IntArray, count: int, rounds: int, valued: bool) -> None:
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
def _replace(step: Step, pool: _Pool, slot: int, spare: IntArray, valued: bool) -> bool:
    """Give a slot to the best request that waits, if that is better."""
    row, place = pool.row[slot], pool.place[slot]
    weight, size = step.weight[row], pool.size[place]
    most = 0
    for h in range(len(spare)):
        without = step.load[row, h] - weight * size
        most = max(most, without)
        spare[h] = largest_without(step, row, row, h) - without
    now = _cost(step.cluster, spare, weight * size) - pool.bonus[place]
    found, cost = _best(pool, spare, weight, step.limit[row] - most, step.cluster, valued)
    if found == _NOBODY or cost >= now:
        return False
    pool.taken[place], pool.taken[found] = False, True
    pool.place[slot] = found
    _add(step, row, pool.size[found] - size, 0)
    return True


@compiled
def _exchange(
    step: Step, pool: _Pool, slot: int, count: int, spare: IntArray, waiting: bool
) -> bool:
    """Give a slot another slot's request, and that one its own or the best that waits."""
    steps = len(spare)
    row, place = pool.row[slot], pool.place[slot]
    weight, size = step.weight[row], pool.size[place]
    peak = 0
    own = np.empty(steps, dtype=np.int64)
    for h in range(steps):
        peak += step.top[0, h]
        own[h] = largest_without(step, row, row, h) - step.load[row, h] + weight * size
    alone = _cost(step.cluster, own, weight * size)
    best, partner, successor = 0, _NOBODY, _NOBODY
    for other in range(count):
        other_row, other_place = pool.row[other], pool.place[other]
        other_weight, other_size = step.weight[other_row], pool.size[other_place]
        change = weight * (other_size - size)
        if other_row == row or change == 0:
            continue
        if _cost(step.cluster, own, weight * other_size) >= alone:
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
        found, cost = place, _cost(step.cluster, spare, other_weight * size)
        if other_weight * size > room:
            found = _NOBODY
        if waiting:
            next_found, next_cost = _best(pool, spare, other_weight, room, step.cluster, False)
            if next_found != _NOBODY:
                next_cost += pool.bonus[place] - pool.bonus[next_found]
                if found == _NOBODY or next_cost < cost:
                    found, cost = next_found, next_cost
        if found != _NOBODY and cost - now < best:
            best, partner, successor = cost - now, other, found
    if partner == _NOBODY:
        return False
    other_row, other_place = pool.row[partner], pool.place[partner]
    pool.place[slot], pool.place[partner] = other_place, successor
    pool.taken[place] = False
    pool.taken[successor] = True
    _add(step, row, pool.size[other_place] - size, 0)
    _add(step, other_row, pool.size[successor] - pool.size[other_place], 0)
    return True


@compiled
def _move(step: Step, pool: _Pool, room: IntArray, slot: int) -> bool:
    """Move a request to the free slot where it costs least, if that is better."""
    row, place = pool.row[slot], pool.place[slot]
    size = pool.size[place]
    best, target = 0, _NOBODY
    for other in range(len(room)):
        if other == row or room[other] == 0 or not _fits(step, other, size, 1):
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
    if target == _NOBODY:
        return False
    room[row] += 1
    room[target] -= 1
    _add(step, row, -size, -1)
    _add(step, target, size, 1)
    pool.row[slot] = target
    return True
