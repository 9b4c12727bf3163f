"""How a layer of nodes grows: kernels of the exact search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.small_kernels import copy
from optsched.solvers.exact.rules import ACTIVE, JUMPS, PENDING, TAIL, active, pending, tail

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.solvers.exact.kernels import Search


class Layer(NamedTuple):
    """Nodes, each with a clock: no request starts before it any more."""

    starts: npt.NDArray[Any]  # int32 (nodes, slots); -1 where a slot has not started
    profile: npt.NDArray[Any]  # int16 or int32 (nodes, longest output): tokens held after the clock
    clock: IntArray
    key: IntArray  # sum of the marks of the slots started
    cost: IntArray  # sum of the starts
    fixed: IntArray  # regret and waste so far
    bound: IntArray  # below the cost of all schedules of the node, minus the certificate's bound

    @classmethod
    def empty(cls, nodes: int, slots: int, longest: int, limit: int) -> Layer:
        """Reserve memory."""
        return cls(
            np.empty((nodes, slots), dtype=np.int32),
            np.empty((nodes, longest), dtype=np.int16 if limit < 2**15 else np.int32),
            *(np.empty(nodes, dtype=np.int64) for _ in range(5)),
        )

    @property
    def node_bytes(self) -> int:
        """Memory that one node takes."""
        return sum(array.itemsize * array[0].size for array in self)

    def take(self, index: IntArray) -> Layer:
        """Copy some of the nodes."""
        return Layer._make(array[index] for array in self)


@compiled
def at(table: IntArray, slot: int, start: int, unit: int) -> int:
    """Look up the cost of a start; beyond the table nothing is paid, and each step costs a unit."""
    last = table.shape[1] - 1
    cost: int = table[slot, min(start, last)] + unit * max(0, start - last)
    return cost


@compiled
def _decode(
    starts: npt.NDArray[Any],
    slots: IntArray,
    steps: IntArray,
    sizes: IntArray,
    clock: int,
    held: IntArray,
    paid: IntArray,
) -> None:
    """Find what is held around the clock, at the first third of `held`, and paid after it."""
    longest = len(held) // 3
    for index in range(len(held)):
        held[index] = 0
        paid[index] = 0
    for slot in range(len(starts)):
        start, prompt = starts[slot], slots[slot, 0]
        end = start + slots[slot, 1]
        if start < 0 or end <= clock - longest:
            continue
        # Loops over slices from 0 on are done several steps at a time.
        begin = max(start, clock - longest) + 1
        window = held[longest + begin - clock : longest + end + 1 - clock]
        for index in range(len(window)):
            window[index] += prompt + begin - start + index
        token = slots[slot, 3] - start
        for step in range(clock, min(end, len(steps))):
            paid[longest + 1 + step - clock] += steps[step, 1] * sizes[steps[step, 2], token + step]


@compiled
def _hold(held: IntArray, paid: IntArray, charges: IntArray, prompt: int, sign: int) -> None:
    """Start a request, or take it out; `held` and `paid` begin with the next step."""
    for index in range(len(charges)):
        held[index] += sign * (prompt + 1 + index)
        paid[index] += sign * charges[index]


@compiled
def _fits(ahead: IntArray, prompt: int, output: int, limit: int) -> bool:
    """Tell whether a request can start beside what is held from the next step on."""
    for token in range(output):  # noqa: SIM110
        if ahead[token] + prompt + token >= limit:
            return False
    return True


@compiled
def _one_fits(
    starts: npt.NDArray[Any], slots: IntArray, ahead: IntArray, clock: int, limit: int
) -> bool:
    """Tell whether a waiting request can start at the clock."""
    for slot in range(len(starts)):
        waits = starts[slot] < 0 and slots[slot, 2] <= clock
        if waits and _fits(ahead, slots[slot, 0], slots[slot, 1], limit):
            return True
    return False


@compiled
def _waste_ahead(
    steps: IntArray,
    room: IntArray,
    depth: IntArray,
    held: IntArray,
    paid: IntArray,
    limit: int,
    room_left: int,
) -> int:
    """Return waste that is certain from the first of some steps on, or more than `room_left`."""
    waste = 0
    for step in range(min(len(depth) - 1, len(steps))):
        young = room[steps[step, 2], depth[step], limit - held[step]]
        gap = steps[step, 0] - paid[step] - steps[step, 1] * young
        if gap > 0:
            waste += gap
            if waste > room_left:
                break
    return waste


@compiled
def _settle(
    starts: npt.NDArray[Any],
    slots: IntArray,
    steps: IntArray,
    held: IntArray,
    paid: IntArray,
    limit: int,
    clock: int,
    fixed: int,
    allowed: int,
    full: int,
    rules: int,
) -> tuple[int, int]:
    """Move the clock on until a request can start; return it, -1 if hopeless, and what is fixed.

    Nothing more starts at the old clock. What is fixed may become `allowed` at most; `full` is the
    last step before at which memory was full.
    """
    longest = len(held) // 3
    end = clock
    for slot in range(len(starts)):
        if starts[slot] >= 0:
            end = max(end, starts[slot] + slots[slot, 1])
    step = clock
    while True:
        step += 1
        place = longest + step - clock
        if step <= len(steps):
            fixed += steps[step - 1, 0] - paid[place]
        if fixed > allowed:
            return -1, fixed
        if held[place] == limit:
            full = step
        if rules & ACTIVE and active(starts, slots, held, place, step, limit):
            return -1, fixed
        if rules & TAIL and tail(starts, slots, step, limit):
            return -1, fixed
        if rules & PENDING and pending(starts, slots, held, place, step, limit, full):
            return -1, fixed
        if not rules & JUMPS or _one_fits(starts, slots, held[place + 1 :], step, limit):
            return step, fixed
        if step >= end:
            break
    # Nothing runs, and everything waits for an arrival.
    arrival = -1
    for slot in range(len(starts)):
        if starts[slot] < 0 and (arrival < 0 or slots[slot, 2] < arrival):
            arrival = slots[slot, 2]
    for index in range(step, min(arrival, len(steps))):
        fixed += steps[index, 0]
    return arrival, fixed


@compiled
def _keep(
    layer: Layer,
    place: int,
    starts: npt.NDArray[Any],
    held: IntArray,
    at: int,
    numbers: tuple[int, int, int, int, int],
) -> None:
    """Write a node down."""
    copy(starts, layer.starts[place], 0, len(starts))
    profile, ahead = layer.profile[place], held[at + 1 :]
    for step in range(len(profile)):
        profile[step] = ahead[step]
    layer.clock[place], layer.key[place], layer.cost[place] = numbers[0], numbers[1], numbers[2]
    layer.fixed[place], layer.bound[place] = numbers[3], numbers[4]


@compiled
def grow(
    search: Search,
    layer: Layer,
    begin: int,
    end: int,
    slack: int,
    best_cost: int,
    best_starts: IntArray,
    after: Layer,
    rules: int,
) -> tuple[int, int, int, int]:
    """Write down the children of nodes of one clock until there is no room left.

    Return the first node that is not expanded, the number of children, the least bound of a child
    that was lost because those of a single node were too many, and the best cost.
    """
    slots, first_slot, marks = search.slots, search.begin, search.marks
    limit, longest, kinds = search.limit, len(search.depth) - 1, len(search.begin) - 1
    steps, room, depth = search.steps, search.room, search.depth[1:]
    waits = len(slots) + 1
    starts = np.empty(len(slots), dtype=np.int64)
    held = np.zeros(3 * longest + 2, dtype=np.int64)
    paid = np.zeros(3 * longest + 2, dtype=np.int64)
    following = np.zeros(kinds, dtype=np.int64)
    startable = np.zeros(kinds, dtype=np.int64)
    pointer = np.zeros(waits, dtype=np.int64)  # by the number of requests started: next kind
    fixed = np.zeros(waits, dtype=np.int64)
    now = np.zeros(waits, dtype=np.int64)  # least regret of the rest, if they may start now
    later = np.zeros(waits, dtype=np.int64)  # ... from the next step on
    clock = layer.clock[begin]
    ahead, due = held[longest + 1 :], paid[longest + 1 :]
    regrets = np.empty((3, len(slots)), dtype=np.int64)
    charges = np.zeros((len(slots), longest), dtype=np.int64)  # of a start at the clock
    for slot in range(len(slots)):
        regrets[0, slot] = at(search.regret, slot, clock, search.unit)
        regrets[1, slot] = at(search.least, slot, clock, search.unit)
        regrets[2, slot] = at(search.least, slot, clock + 1, search.unit)
        for token in range(min(slots[slot, 1], len(steps) - clock)):
            size = search.sizes[steps[clock + token, 2], slots[slot, 3] + token]
            charges[slot, token] = steps[clock + token, 1] * size
    lost = np.iinfo(np.int64).max
    filled = 0
    for node in range(begin, end):
        saved = filled
        key, cost = layer.key[node], layer.cost[node]
        copy(layer.starts[node], starts, 0, len(starts))
        _decode(starts, slots, steps, search.sizes, clock, held, paid)
        full = clock
        while full > clock - longest and held[longest + full - clock] != limit:
            full -= 1
        waiting = able = 0
        fixed[0], now[0], later[0], pointer[0] = layer.fixed[node], 0, 0, 0
        for kind in range(kinds):
            following[kind] = first_slot[kind + 1]
            for slot in range(first_slot[kind + 1] - 1, first_slot[kind] - 1, -1):
                if starts[slot] < 0:
                    following[kind] = slot
                    waiting += 1
                    now[0] += regrets[1, slot]
                    later[0] += regrets[2, slot]
            slot = following[kind]
            there = slot < first_slot[kind + 1] and slots[slot, 2] <= clock
            if there and _fits(ahead, slots[slot, 0], slots[slot, 1], limit):
                startable[able] = kind
                able += 1
        level = 0
        fresh = True
        while level >= 0:
            if fresh and waiting == 0:
                if cost < best_cost:
                    best_cost = cost
                    copy(starts, best_starts, 0, len(starts))
            elif fresh:
                settled, spent = _settle(
                    starts,
                    slots,
                    steps,
                    held,
                    paid,
                    limit,
                    clock,
                    fixed[level],
                    slack - later[level],
                    full,
                    rules,
                )
                if settled >= 0:
                    value = spent + later[level]
                    if settled > clock + 1:
                        value = spent
                        for slot in range(len(slots)):
                            if starts[slot] < 0:
                                value += at(search.least, slot, settled, search.unit)
                    place = longest + min(settled - clock, longest + 1)
                    if settled < len(steps):
                        value += _waste_ahead(
                            steps[settled:],
                            room,
                            depth,
                            held[place + 1 :],
                            paid[place + 1 :],
                            limit,
                            slack - value,
                        )
                    if value <= slack:
                        if filled == len(after.key):
                            if saved > 0:
                                return node, saved, lost, best_cost
                            lost = min(lost, value)
                        else:
                            numbers = (settled, key, cost, spent, value)
                            _keep(after, filled, starts, held, place, numbers)
                            filled += 1
            fresh = False
            if pointer[level] == able:
                level -= 1
                if level >= 0:
                    kind = startable[pointer[level]]
                    following[kind] -= 1
                    slot = following[kind]
                    _hold(ahead, due, charges[slot, : slots[slot, 1]], slots[slot, 0], -1)
                    starts[slot] = -1
                    key -= marks[slot]
                    cost -= clock
                    waiting += 1
                    pointer[level] += 1
                continue
            kind = startable[pointer[level]]
            slot = following[kind]
            fits = slot < first_slot[kind + 1] and slots[slot, 2] <= clock
            if fits:
                fixed[level + 1] = fixed[level] + regrets[0, slot]
                now[level + 1] = now[level] - regrets[1, slot]
                fits = fixed[level + 1] + now[level + 1] <= slack and _fits(
                    ahead, slots[slot, 0], slots[slot, 1], limit
                )
            if not fits:
                pointer[level] += 1
                continue
            later[level + 1] = later[level] - regrets[2, slot]
            _hold(ahead, due, charges[slot, : slots[slot, 1]], slots[slot, 0], 1)
            starts[slot] = clock
            following[kind] += 1
            key += marks[slot]
            cost += clock
            waiting -= 1
            pointer[level + 1] = pointer[level]
            level += 1
            fresh = True
    return end, filled, lost, best_cost
