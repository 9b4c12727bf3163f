r"""The step program without lookahead, solved exactly with a certificate.

Say no worker is to hold more than :math:`z`. Worker :math:`g` then has room for
:math:`t_g = z - L_g` tokens, and the imbalance :math:`G z - \sum_g L_g` is least where the requests
admitted fill as much of that room as possible.

**One free slot.** A worker with one free slot takes one request of at most :math:`t_g`. The
requests that fit are nested, so that letting the slots in ascending order of :math:`t_g` each take
the largest request left that fits gives the largest sum (a greedy on a transversal matroid).

**Several free slots.** A worker with two or three takes the best pair or triple that fits, found
exactly; one with more is assumed to be filled to the brim. Where all of them are served before
any other and from the same pool, the sum can only become larger.

Together that bounds what can be admitted below :math:`z`, and the imbalance from below. It changes
only where :math:`z` passes a size, and the scan over :math:`z` ends where even workers filled to
the brim would be no better than the best assignment seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.balance.swap_kernels import assign_by_swap

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, IntArray

_SCANS = 1_024
_NEVER = 2**62
_NONE = -1


class _Fill(NamedTuple):
    """What a scan over levels looks at, and what it writes to."""

    held: IntArray  # (G,), tokens of each worker
    free: IntArray  # (G,), its slots
    sizes: IntArray  # (R,), ascending
    largest: IntArray  # (R + 1,), sums of the 0, 1, 2, ... largest sizes
    slots: IntArray  # (U, 3)
    alone: BoolArray  # (G,), whether the worker is filled by a best set
    taken: BoolArray  # (R,)
    trial: IntArray  # (R,), the worker of each request


@compiled
def assign_by_deficit(alive: IntArray, free: IntArray, sizes: IntArray) -> IntArray:
    """Assign as `search_deficit` does."""
    return search_deficit(alive, free, sizes)[0]


@compiled
def search_deficit(alive: IntArray, free: IntArray, sizes: IntArray) -> tuple[IntArray, int, int]:
    """Return the worker of each request (-1: it waits), the imbalance, and a bound on any."""
    workers = len(free)
    loads = alive.reshape((workers, -1))[:, :1].copy()
    none = np.zeros(1, dtype=np.int64)
    nothing = np.zeros(len(sizes), dtype=np.int64)
    chosen = assign_by_swap(
        loads, free, sizes, none, np.ones(workers, dtype=np.int64), nothing, np.int64(100)
    )
    held = loads[:, 0].copy()
    value = _imbalance(held, sizes, chosen)
    slots = free.sum()
    if slots == 0 or len(sizes) == 0:
        return chosen, value, value
    if slots > len(sizes):
        level = _water_level(held, free, sizes)
        return chosen, value, min(value, workers * level - held.sum() - sizes.sum())
    return _scan(held, free, sizes, chosen, value)


@compiled
def _loads(held: IntArray, sizes: IntArray, chosen: IntArray) -> IntArray:
    """Return what workers hold with the requests that are assigned to them."""
    loads = held.copy()
    for request in range(len(sizes)):
        if chosen[request] != _NONE:
            loads[chosen[request]] += sizes[request]
    return loads


@compiled
def _imbalance(held: IntArray, sizes: IntArray, chosen: IntArray) -> int:
    loads = _loads(held, sizes, chosen)
    return len(loads) * int(loads.max()) - int(loads.sum())


@compiled
def _water_level(held: IntArray, free: IntArray, sizes: IntArray) -> int:
    """Return a load that some worker reaches if all requests are admitted."""
    total, largest = sizes.sum(), sizes.max()
    level = held.max()
    open_loads = np.sort(held[free > 0])
    level = max(level, open_loads[0] + largest)
    below = 0
    for count in range(1, len(open_loads) + 1):
        below += open_loads[count - 1]
        share = -(-(total + below) // count)
        if count == len(open_loads) or share <= open_loads[count]:
            return int(max(level, share))
    return int(level)


@compiled
def _scan(
    held: IntArray, free: IntArray, sizes: IntArray, chosen: IntArray, value: int
) -> tuple[IntArray, int, int]:
    """Scan the level upward until nothing better is possible beyond it."""
    workers, total, count = len(held), held.sum(), free.sum()
    order = np.argsort(sizes, kind="mergesort")
    ascending = sizes[order]
    smallest, largest = _sums(ascending), _sums(ascending[::-1])
    open_workers = np.flatnonzero(free)
    alone = np.empty(workers, dtype=np.bool_)
    taken = np.zeros(len(sizes), dtype=np.bool_)
    trial = np.empty(len(sizes), dtype=np.int64)
    fill = _Fill(held, free, ascending, largest, _slots(free, smallest), alone, taken, trial)
    level = held.max()
    for worker in open_workers:
        level = max(level, held[worker] + smallest[free[worker]])
    bound = value
    for _ in range(_SCANS):
        brim = len(open_workers) * level - held[open_workers].sum()
        rest = workers * level - total - min(brim, largest[count])
        if rest >= bound:
            return chosen, value, bound
        alone[:] = False
        admitted, rise = _serve(fill, level)
        step = rise
        if admitted >= 0 and workers * level - total - admitted < bound:
            if _loads(held, ascending, trial).max() <= level:
                chosen, value = _better(fill, order, chosen, value)
                bound = min(bound, value)
            else:
                most = _tighten(fill, level, min(level + rise - 1, level + largest[count]))
                if workers * level - total - most < bound and rise > 1:
                    most = _tighten(fill, level, level)
                    step = 1
                if workers * level - total - most < value:
                    for singles_first in (True, False):
                        if _place(fill, level, singles_first):
                            chosen, value = _better(fill, order, chosen, value)
                bound = min(bound, value, workers * level - total - most)
        level += step
    return chosen, value, min(bound, rest)


@compiled
def _sums(sizes: IntArray) -> IntArray:
    """Sum the first 0, 1, 2, ... sizes."""
    sums = np.zeros(len(sizes) + 1, dtype=np.int64)
    sums[1:] = np.cumsum(sizes)
    return sums


@compiled
def _slots(free: IntArray, smallest: IntArray) -> IntArray:
    """List the free slots: worker, rank k there, and what lower ranks hold at least."""
    slots = np.empty((free.sum(), 3), dtype=np.int64)
    slot = 0
    for worker in range(len(free)):
        for rank in range(1, free[worker] + 1):
            slots[slot, 0], slots[slot, 1] = worker, rank
            slots[slot, 2] = smallest[free[worker] - rank]
            slot += 1
    return slots


@compiled
def _better(fill: _Fill, order: IntArray, chosen: IntArray, value: int) -> tuple[IntArray, int]:
    """Keep the trial if it is better than the assignment chosen so far."""
    reached = _imbalance(fill.held, fill.sizes, fill.trial)
    if reached < value:
        value = reached
        chosen[order] = fill.trial
    return chosen, value


@compiled
def _largest_left(sizes: IntArray, taken: BoolArray, room: int) -> int:
    """Return the place of the largest request left that fits, or -1."""
    place = np.searchsorted(sizes, room, side="right") - 1
    while place >= 0 and taken[place]:
        place -= 1
    return int(place)


@compiled
def _serve(fill: _Fill, level: int) -> tuple[int, int]:
    """Let slots, tightest first, take the largest left; return the sum or -1, and the rise."""
    held, sizes, slots = fill.held, fill.sizes, fill.slots
    alone, taken, trial = fill.alone, fill.taken, fill.trial
    taken[:] = False
    trial[:] = _NONE
    threshold = np.empty(len(slots), dtype=np.int64)
    rise = _NEVER
    for slot in range(len(slots)):
        room = level - held[slots[slot, 0]] - slots[slot, 2]
        threshold[slot] = room // slots[slot, 1]
        place = np.searchsorted(sizes, threshold[slot], side="right")
        if place < len(sizes):
            rise = min(rise, sizes[place] * slots[slot, 1] - room)
    admitted = 0
    for slot in np.argsort(threshold):
        if alone[slots[slot, 0]]:
            continue
        place = _largest_left(sizes, taken, threshold[slot])
        if place < 0:
            return -1, rise
        taken[place] = True
        trial[place] = slots[slot, 0]
        admitted += sizes[place]
    return admitted, rise


@compiled
def _tighten(fill: _Fill, level: int, end: int) -> int:
    """Bound what can be admitted, with best sets for workers that slots would overfill."""
    held, alone = fill.held, fill.alone
    alone[:] = False
    apart = 0
    least = _NEVER
    while True:
        admitted, _ = _serve(fill, level)
        if admitted < 0:
            return least
        least = min(least, admitted + apart)
        loads = _loads(held, fill.sizes, fill.trial)
        worst, excess = _NONE, 0
        for worker in range(len(held)):
            if not alone[worker] and loads[worker] - end > excess:
                worst, excess = worker, loads[worker] - end
        if worst == _NONE:
            return least
        alone[worst] = True
        apart += _most(fill.sizes, fill.free[worst], end - held[worst], fill.largest)


@compiled
def _place(fill: _Fill, level: int, singles_first: bool) -> bool:
    """Assign below the level: single slots by size, the others by best sets; False if it fails."""
    held, free, taken = fill.held, fill.free, fill.taken
    by_room = np.argsort(-held, kind="mergesort")
    several = by_room[free[by_room] > 1]
    taken[:] = False
    fill.trial[:] = _NONE
    if not singles_first and not _serve_several(fill, level, several):
        return False
    for worker in by_room[free[by_room] == 1]:
        place = _largest_left(fill.sizes, taken, level - held[worker])
        if place < 0:
            return False
        taken[place] = True
        fill.trial[place] = worker
    return not singles_first or _serve_several(fill, level, several)


@compiled
def _serve_several(fill: _Fill, level: int, several: IntArray) -> bool:
    """Let workers with several slots, tightest first, take their best sets of what is left."""
    sizes, taken, trial = fill.sizes, fill.taken, fill.trial
    found = np.empty(3, dtype=np.int64)
    for worker in several:
        count, room = fill.free[worker], level - fill.held[worker]
        while count > 3:  # all but three slots take their share
            place = _largest_left(sizes, taken, room // count)
            if place < 0:
                return False
            taken[place] = True
            trial[place] = worker
            room -= sizes[place]
            count -= 1
        if _best_set(sizes, taken, count, room, found) < 0:
            return False
        for member in found[:count]:
            taken[member] = True
            trial[member] = worker
    return True


@compiled
def _most(sizes: IntArray, count: int, room: int, largest: IntArray) -> int:
    """Bound what so many requests hold within the room."""
    if room >= largest[count] or count > 3:
        return int(min(room, largest[count]))
    found = np.empty(3, dtype=np.int64)
    return max(0, _best_set(sizes, np.zeros(len(sizes), dtype=np.bool_), count, room, found))


@compiled
def _best_set(sizes: IntArray, taken: BoolArray, count: int, room: int, found: IntArray) -> int:
    """Find the largest sum within the room of two or three requests left; -1 if there are none."""
    best = -1
    for first in range(len(sizes) if count == 3 else 1):
        left, begin = room, 0
        if count == 3:
            if taken[first]:
                continue
            left, begin = room - sizes[first], first + 1
        low, high = begin, len(sizes) - 1
        while low < high:
            if taken[low]:
                low += 1
            elif taken[high] or sizes[low] + sizes[high] > left:
                high -= 1
            else:
                held = int(room - left + sizes[low] + sizes[high])
                if held > best:
                    best = held
                    found[0], found[1], found[2] = low, high, first
                    if best == room:
                        return held
                low += 1
    return best
