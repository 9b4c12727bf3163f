r"""Kernels of balance methods: requests are replaced, exchanged and moved while that gains.

The cost of a size :math:`s` in a slot is convex and piecewise linear,
:math:`G \sum_h \max(0, a_g s - c_h) - (H + 1) \, a_g s` with :math:`c_h` the load that fits below
the heaviest other worker: the best request is next to its minimum, which bisection finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, allocating_inside, compiled_inside
from optsched._internal.small_kernels import ascending, largest, repeated, total

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, IntArray


#: A memory limit that is none.
UNLIMITED = 2**40

#: In place of a row, a worker or a request where there is none.
NONE = -1


class Step(NamedTuple):
    """The workers with free slots, rows f = 0, ..., F - 1, at steps h = 0, ..., H."""

    cluster: int  # G
    worker: IntArray  # (F,)
    weight: IntArray  # (F,), slowness
    limit: IntArray  # (F,), weighted load that memory allows
    load: IntArray  # (F, H + 1), weighted, with everything admitted
    floor: IntArray  # (H + 1,), largest load of the full workers
    top: IntArray  # (3, H + 1), largest loads, descending
    rows: IntArray  # (3, H + 1), rows they belong to
    growth: IntArray  # (H + 1,), what a request weighs beyond its size; 0 if counts are fixed


@allocating_inside
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
    rows = 0
    for slots in free:
        rows += slots > 0
    worker, weight = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    limit, floor = np.empty(rows, dtype=np.int64), repeated(0, steps)
    load = np.empty((rows, steps), dtype=np.int64)
    added = repeated(0, steps) if filled else growth
    row = 0
    for g in range(len(free)):
        if free[g]:
            count = free[g] if filled else 0
            worker[row], weight[row], limit[row] = g, slowness[g], slowness[g] * memory[g]
            for h in range(steps):
                load[row, h] = slowness[g] * (alive[g, h] + count * growth[h])
            row += 1
        else:
            for h in range(steps):
                floor[h] = max(floor[h], slowness[g] * alive[g, h])
    step = Step(
        len(free),
        worker,
        weight,
        limit,
        load,
        floor,
        np.empty((3, steps), dtype=np.int64),
        np.empty((3, steps), dtype=np.int64),
        added,
    )
    _rank_all(step)
    return step


@compiled_inside
def _rank_all(step: Step) -> None:
    for h in range(len(step.floor)):
        _rank(step, h)


@compiled_inside
def _rank(step: Step, h: int) -> None:
    """Find the three largest loads of a step again."""
    top, rows = step.top, step.rows
    top[0, h], rows[0, h] = step.floor[h], NONE
    top[1, h] = top[2, h] = 0
    rows[1, h] = rows[2, h] = NONE
    for row in range(len(step.load)):
        if step.load[row, h] > top[2, h]:
            _insert(top, rows, h, row, step.load[row, h])


@compiled_inside
def _insert(top: IntArray, rows: IntArray, h: int, row: int, load: int) -> None:
    """Put a load that exceeds the third largest in its place."""
    place = 2
    while place > 0 and top[place - 1, h] < load:
        top[place, h] = top[place - 1, h]
        rows[place, h] = rows[place - 1, h]
        place -= 1
    top[place, h], rows[place, h] = load, row


@compiled_inside
def add_requests(step: Step, row: int, tokens: int, count: int) -> None:
    """Add requests of so many tokens to a worker, or take them away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, step.weight[row] * (tokens + count * step.growth[h]))


@compiled_inside
def change_load(step: Step, row: int, h: int, change: int) -> None:
    """Change a worker's load at one step, and keep the ranks."""
    top, rows = step.top, step.rows
    step.load[row, h] += change
    load = step.load[row, h]
    if row == rows[0, h] or row == rows[1, h] or row == rows[2, h]:
        if load < top[2, h]:
            _rank(step, h)
            return
        place = 0
        while rows[place, h] != row:
            place += 1
        for below in range(place, 2):
            top[below, h], rows[below, h] = top[below + 1, h], rows[below + 1, h]
        top[2, h] = -1
        _insert(top, rows, h, row, load)
    elif load > top[2, h]:
        _insert(top, rows, h, row, load)


@compiled_inside
def largest_without(step: Step, row: int, other: int, h: int) -> int:
    """Return the largest load of a step among all workers but two."""
    for place in range(2):
        if step.rows[place, h] != row and step.rows[place, h] != other:
            return int(step.top[place, h])
    return int(step.top[2, h])


@compiled_inside
def fits(step: Step, row: int, tokens: int, count: int) -> bool:
    """Tell whether memory allows the load that a worker would have."""
    for h in range(step.load.shape[1]):
        added = step.weight[row] * (tokens + count * step.growth[h])
        if step.load[row, h] + added > step.limit[row]:
            return False
    return True


class Pool(NamedTuple):
    """The waiting requests by ascending size, and which request is in which slot."""

    order: IntArray  # (R,), places in the arrays of the caller
    size: IntArray  # (R,)
    bonus: IntArray  # (R,)
    taken: BoolArray  # (R,)
    row: IntArray  # (U,), row of each admitted request
    place: IntArray  # (U,), its place in `size`


@compiled_inside
def cost_in_slot(cluster: int, spare: IntArray, load: int) -> int:
    """Cost a load on a worker, where so much fits below the heaviest other one."""
    excess = 0
    for h in range(len(spare)):
        excess += max(0, load - spare[h])
    return cluster * excess - len(spare) * load


@compiled_inside
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


@compiled_inside
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


@compiled_inside
def fill(
    step: Step, pool: Pool, room: IntArray, valued: bool, held: IntArray, spare: IntArray
) -> None:
    """Fill every slot: the worker with most headroom per slot takes what costs it least."""
    rows, steps = step.load.shape
    for row in range(rows):
        held[row] = total(step.load[row])
    for slot in range(len(pool.row)):
        peak = total(step.top[0])
        row, headroom = NONE, 0
        for candidate in range(rows):
            if room[candidate]:
                share = (peak - held[candidate]) // room[candidate]
                if row == NONE or share > headroom:
                    row, headroom = candidate, share
        for h in range(steps):
            heaviest = largest_without(step, row, row, h)
            spare[h] = (heaviest - step.load[row, h]) // room[row]
        place, _ = best_waiting(pool, spare, step.weight[row], UNLIMITED, step.cluster, valued)
        _put(step, pool, room, slot, row, place)
        held[row] += steps * step.weight[row] * pool.size[place]


@compiled_inside
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
                lighter = cost == least and step.load[candidate, 0] < step.load[row, 0]
                if row == NONE or cost < least or lighter:
                    row, least = candidate, cost
        if row == NONE:
            _undo(step, pool, room, slot)
            return _pack(step, pool, room, count)
        _put(step, pool, room, slot, row, place)
    return count


@compiled_inside
def _pack(step: Step, pool: Pool, room: IntArray, count: int) -> int:
    """Place as many of the smallest requests as find room, each where most memory is left."""
    for slot in range(count):
        row, most = NONE, 0
        for candidate in range(len(room)):
            if room[candidate] and fits(step, candidate, pool.size[slot], 1):
                left = step.limit[candidate] - largest(step.load[candidate])
                left //= step.weight[candidate]
                if row == NONE or left > most:
                    row, most = candidate, left
        if row == NONE:
            return slot
        _put(step, pool, room, slot, row, slot)
    return count


@compiled_inside
def _put(step: Step, pool: Pool, room: IntArray, slot: int, row: int, place: int) -> None:
    pool.taken[place] = True
    pool.row[slot], pool.place[slot] = row, place
    room[row] -= 1
    add_requests(step, row, pool.size[place], 1)


@compiled_inside
def _undo(step: Step, pool: Pool, room: IntArray, count: int) -> None:
    """Take back what is in the first slots."""
    for slot in range(count):
        row, place = pool.row[slot], pool.place[slot]
        pool.taken[place] = False
        room[row] += 1
        add_requests(step, row, -pool.size[place], -1)


@allocating_inside
def assign_inside(
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
    chosen = repeated(NONE, len(sizes))
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
    sorted_sizes = np.empty(len(sizes), dtype=np.int64)
    sorted_bonus = np.empty(len(sizes), dtype=np.int64)
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
    valued, steps = largest(bonus) > 0, len(step.floor)
    own, spare = np.empty(steps, dtype=np.int64), np.empty(steps, dtype=np.int64)
    if filled:
        fill(step, pool, room, valued, np.empty(len(room), dtype=np.int64), spare)
    else:
        admitted = spread(step, pool, room, admitted)
    _search(step, pool, room, admitted, rounds, valued, own, spare)
    for slot in range(admitted):
        chosen[order[pool.place[slot]]] = step.worker[pool.row[slot]]
    return chosen


assign = allocating(assign_inside)


@compiled_inside
def _search(
    step: Step,
    pool: Pool,
    room: IntArray,
    count: int,
    rounds: int | np.int64,
    valued: bool,
    own: IntArray,
    spare: IntArray,
) -> None:
    """Improve an assignment until no replacement, exchange or move does, or rounds are over."""
    waiting = len(pool.size) > count
    for _ in range(rounds):
        better = False
        if waiting:
            for slot in range(count):
                better |= _replace(step, pool, slot, spare, valued)
        if better:
            continue  # what is quick comes first
        for slot in range(count):
            better |= _exchange(step, pool, slot, count, own, spare, waiting)
        if total(room) > 0:
            for slot in range(count):
                better |= _move(step, pool, room, slot)
        if not better:
            return


@compiled_inside
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


@compiled_inside
def _exchange(
    step: Step, pool: Pool, slot: int, count: int, own: IntArray, spare: IntArray, waiting: bool
) -> bool:
    """Move another slot's request here, and this one's or the best waiting one there."""
    steps = len(spare)
    row, place = pool.row[slot], pool.place[slot]
    weight, size = step.weight[row], pool.size[place]
    peak = 0
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
            next_found, next_cost = best_waiting(
                pool, spare, other_weight, room, step.cluster, False
            )
            if next_found != NONE:
                next_cost += pool.bonus[place] - pool.bonus[next_found]
                if found == NONE or next_cost < cost:
                    found, cost = next_found, next_cost
        if found != NONE and cost - now < best:
            best, partner, successor = cost - now, other, found
    if partner != NONE:
        _give_and_take(step, pool, slot, partner, successor)
    return partner != NONE


@compiled_inside
def _give_and_take(step: Step, pool: Pool, slot: int, partner: int, successor: int) -> None:
    """Put the request of another slot into this one, and its successor into the other."""
    place, other_place = pool.place[slot], pool.place[partner]
    pool.place[slot], pool.place[partner] = other_place, successor
    pool.taken[place] = False
    pool.taken[successor] = True
    taken, given = pool.size[other_place], pool.size[successor]
    add_requests(step, pool.row[slot], taken - pool.size[place], 0)
    add_requests(step, pool.row[partner], given - taken, 0)


@compiled_inside
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
            heaviest = max(largest_without(step, row, other, h), max(lighter, heavier))
            cost += step.cluster * (heaviest - step.top[0, h])
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


@allocating
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


@allocating_inside
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


@compiled_inside
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


@compiled_inside
def _improve_profile(
    step: Step, tokens: IntArray, bonus: IntArray, room: IntArray, chosen: IntArray, request: int
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


@compiled_inside
def _shift_profile(step: Step, tokens: IntArray, row: int, request: int, sign: int) -> None:
    """Put a request on a row, or take it away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, sign * step.weight[row] * tokens[request, h])
