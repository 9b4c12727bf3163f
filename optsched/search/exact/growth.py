"""Exact search by growth.

Of nodes of one clock that have started the same requests, A dominates B if it costs no more and
holds no more at any step.

Step by step every partial schedule is kept that may become an optimum: which requests have
started, what they will hold, and the sum of their starts. One is dropped

- if its bound is no better than the best schedule: of the waiting requests, k complete only once
  the k smallest areas, and no request before its output, found room beside what runs;
- if another one has started the same requests, costs no more and holds no more at any step;
- if one of its requests could have started a step earlier, all else as it is. At a start
  :math:`k` after the arrival the first token had no room at step :math:`k`, or memory becomes
  full, to the last token, while the request runs.

The first two rules leave one optimum, and no optimum breaks the third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import copy
from optsched.errors import OptschedError
from optsched.problem.schedule import Schedule
from optsched.search.exact.rules import (
    ACTIVE,
    ENDING,
    HELD,
    JUMPS,
    PAID,
    PEAK,
    PENDING,
    active,
    pending,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.search.exact.rules import ExactProblem


@compiled
def undominated(layer: Layer, order: IntArray) -> npt.NDArray[np.bool_]:
    """Mark the nodes, ordered by key and cost, that no other of the same set dominates."""
    starts, profiles, keys, costs = layer.starts, layer.profile, layer.key, layer.cost
    count, longest = len(order), layer.profile.shape[1]
    keep = np.ones(count, dtype=np.bool_)
    # What is compared lies together: the nodes kept so far of the group at hand.
    nodes = np.empty(count, dtype=np.int64)
    ends = np.empty(count, dtype=np.int64)
    packed = np.empty((count, longest), dtype=profiles.dtype)
    kept = 0
    for place in range(count):
        node = order[place]
        if place == 0 or keys[node] != keys[order[place - 1]]:
            kept = 0
        end = longest
        while end > 0 and profiles[node, end - 1] == 0:
            end -= 1
        for index in range(kept):
            if (
                ends[index] <= end
                and costs[nodes[index]] <= costs[node]
                and _covers(packed, index, ends[index], profiles, node)
                and _same_set(starts, nodes[index], node)
            ):
                keep[place] = False
                break
        if keep[place]:
            nodes[kept], ends[kept] = node, end
            for ahead in range(longest):
                packed[kept, ahead] = profiles[node, ahead]
            kept += 1
    return keep


@compiled_inside
def _covers(
    packed: npt.NDArray[Any], index: int, end: int, profiles: npt.NDArray[Any], node: int
) -> bool:
    """Tell whether one profile is nowhere above the other."""
    for ahead in range(end):  # noqa: SIM110
        if packed[index, ahead] > profiles[node, ahead]:
            return False
    return True


@compiled_inside
def _same_set(starts: npt.NDArray[Any], some: int, other: int) -> bool:
    for slot in range(starts.shape[1]):
        if (starts[some, slot] < 0) != (starts[other, slot] < 0):
            return False
    return True


_MOST = 12  # requests whose sets are tabulated
_LEADERS = 4  # of each set of requests, with which the others are compared
_NEVER = np.iinfo(np.int64).max


class _Nodes(NamedTuple):
    """Partial schedules of one clock, one per row: all that starts before it is decided."""

    started: IntArray  # (nodes,): a set of requests, as bits
    cost: IntArray  # sum of the starts
    held: IntArray  # tokens at the clock
    due: IntArray  # step by which memory must have been full
    starts: IntArray  # (nodes, n)
    ahead: IntArray  # (nodes, longest output): tokens held at the steps after the clock

    def take(self, index: IntArray | BoolArray) -> _Nodes:
        return _Nodes._make(array[index] for array in self)

    def join(self, other: _Nodes) -> _Nodes:
        return _Nodes._make(map(np.concatenate, zip(self, other, strict=True)))


def solve_few(
    instance: Instance,
    upper: Schedule,
    work: float = np.inf,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """Return a schedule of least total latency, `upper` if none is better."""
    # None if there is more work than this, counted in steps ahead of partial schedules, or if
    # `stop` says so between two steps.
    if len(instance) > _MOST or instance.deadlines is not None:
        raise OptschedError(
            f"{instance.name} has {len(instance)} requests, or deadlines; at most {_MOST} without "
            "deadlines can be enumerated"
        )
    search = _Enumeration(instance, upper)
    while len(search.nodes.cost):
        work -= search.nodes.ahead.size
        if work < 0 or stop():
            return None
        search.start()
        search.complete()
        search.move_on()
        search.sift()
    return search.best


class _Enumeration:
    """The partial schedules at a clock, and the best schedule so far."""

    def __init__(self, instance: Instance, upper: Schedule) -> None:
        self.instance, self.best = instance, upper
        self.least = int(upper.starts.sum())
        count, longest = len(instance), int(instance.outputs.max())
        self.clock = int(instance.arrivals[0])
        none, starts, ahead = (np.zeros(shape, np.int64) for shape in (1, (1, count), (1, longest)))
        self.nodes = _Nodes(none, none, none, np.full(1, _NEVER), starts, ahead)
        # Of the requests that wait, by the set that has started: how many, areas, outputs.
        waits = ~np.arange(2**count)[:, None] >> np.arange(count) & 1
        self.waiting = waits.sum(axis=1)
        self.areas = np.cumsum(np.sort(waits * instance.areas, axis=1), axis=1)
        self.outputs = np.sort(waits * instance.outputs, axis=1)
        self.longest = self.outputs.sum(axis=1)

    def start(self) -> None:
        """Let every request start, or wait, wherever it can do either."""
        memory, clock = self.instance.memory, self.clock
        for request in range(len(self.instance)):
            prompt, output, arrival = (
                int(array[request])
                for array in (self.instance.prompts, self.instance.outputs, self.instance.arrivals)
            )
            if arrival > clock:
                break
            tokens = prompt + np.arange(1, output + 1)
            fits = (self.nodes.ahead[:, :output] + tokens <= memory).all(axis=1)
            fits &= self.nodes.started >> request & 1 == 0
            early = (arrival < clock) & (self.nodes.held + prompt < memory)
            if output == 1:
                fits &= ~early
            more = self.nodes.take(fits)
            due = np.where(early[fits], clock + output - 1, _NEVER)
            more.starts[:, request] = clock
            more.ahead[:, :output] += tokens
            self.nodes = self.nodes.join(
                more._replace(
                    started=more.started | 1 << request,
                    cost=more.cost + clock,
                    due=np.minimum(more.due, due),
                )
            )

    def complete(self) -> None:
        """Take out the nodes that have started all requests, and keep the best."""
        done = self.waiting[self.nodes.started] == 0
        if done.any():
            found = self.nodes.take(done)
            place = int(np.argmin(found.cost))
            if found.cost[place] < self.least:
                self.least = int(found.cost[place])
                self.best = Schedule(self.instance, found.starts[place], "exact")
            self.nodes = self.nodes.take(~done)

    def move_on(self) -> None:
        """Go to the next step."""
        self.clock += 1
        held, due = self.nodes.ahead[:, 0].copy(), self.nodes.due
        due[held == self.instance.memory] = _NEVER
        self.nodes.ahead[:, :-1] = self.nodes.ahead[:, 1:]
        self.nodes.ahead[:, -1] = 0
        self.nodes = self.nodes._replace(held=held).take(due > self.clock)

    def sift(self) -> None:
        """Drop what cannot become better than the best, or than another."""
        cheap = self.nodes.cost + self.waiting[self.nodes.started] * self.clock < self.least
        self.nodes = self.nodes.take(cheap)
        self.nodes = self.nodes.take(self._bounds() < self.least)
        nodes = self.nodes = self.nodes.take(np.lexsort((self.nodes.cost, self.nodes.started)))
        first = np.flatnonzero(np.diff(nodes.started, prepend=-1))
        leader = np.repeat(first, np.diff(first, append=len(nodes.cost)))
        rank = np.arange(len(nodes.cost)) - leader
        needless = np.zeros(len(nodes.cost), dtype=bool)
        for place in range(_LEADERS):
            index = np.flatnonzero((rank > place) & ~needless)
            less = nodes.ahead[leader[index] + place] <= nodes.ahead[index]
            needless[index] = less.all(axis=1)
        self.nodes = nodes.take(~needless)

    def _bounds(self) -> IntArray:
        """Return the least sum of starts that each node can lead to."""
        nodes, memory = self.nodes, self.instance.memory
        free = np.cumsum(memory - nodes.ahead, axis=1)
        longest = free.shape[1]
        steps = np.zeros(len(nodes.cost), dtype=np.int64)
        for place in range(len(self.instance)):
            area = self.areas[nodes.started, place]
            end = 1 + (free < area[:, None]).sum(axis=1)
            end += np.where(end > longest, -(-(area - free[:, -1]) // memory) - 1, 0)
            # Those that have started come first, as areas of zero.
            steps += np.where(area > 0, np.maximum(end, self.outputs[nodes.started, place]), 0)
        waiting = self.waiting[nodes.started] * self.clock - self.longest[nodes.started]
        bounds: IntArray = nodes.cost + waiting + steps
        return bounds


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


@compiled_inside
def at(table: IntArray, slot: int, start: int, unit: int) -> int:
    """Look up the cost of a start; beyond the table nothing is paid, and each step costs a unit."""
    last = table.shape[1] - 1
    cost: int = table[slot, min(start, last)] + unit * max(0, start - last)
    return cost


@compiled_inside
def _decode(
    starts: npt.NDArray[Any],
    slots: IntArray,
    steps: IntArray,
    sizes: IntArray,
    clock: int,
    profile: IntArray,
    ends: IntArray,
) -> int:
    """Find what is held around the clock and paid after it; list what runs, and count it."""
    # `ends` has the places in `profile` of completions after the clock.
    longest = profile.shape[1] // 3
    held, paid = profile[HELD], profile[PAID]
    for index in range(profile.shape[1]):
        held[index] = 0
        paid[index] = 0
        profile[ENDING, index] = 0
    running = 0
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
        profile[ENDING, longest + end - clock] += 1
        if end > clock:
            ends[running] = longest + end - clock
            running += 1
        token = slots[slot, 3] - start
        for step in range(clock, min(end, len(steps))):
            paid[longest + 1 + step - clock] += steps[step, 1] * sizes[steps[step, 2], token + step]
    profile[PEAK, 0] = 0
    for index in range(1, longest + 1):
        profile[PEAK, index] = index if profile[ENDING, index] else profile[PEAK, index - 1]
    return running


@compiled_inside
def _hold(
    profile: IntArray, charges: IntArray, slot: int, prompt: int, output: int, sign: int
) -> None:
    """Start a request at the clock, or take it out."""
    first = profile.shape[1] // 3 + 1
    held, paid, costs = profile[HELD, first:], profile[PAID, first:], charges[slot]
    for index in range(output):
        held[index] += sign * (prompt + 1 + index)
        paid[index] += sign * costs[index]
    profile[ENDING, first - 1 + output] += sign


@compiled_inside
def _fits(
    profile: IntArray, at: int, ends: IntArray, running: int, prompt: int, output: int, limit: int
) -> bool:
    """Tell whether a request can start beside what runs: it need only fit at completions."""
    last = at + output
    if profile[HELD, last] + prompt + output > limit:
        return False
    for index in range(running):
        end = ends[index]
        if at < end < last and profile[HELD, end] + prompt + end - at > limit:
            return False
    return True


@compiled_inside
def _wait(
    starts: npt.NDArray[Any],
    slots: IntArray,
    profile: IntArray,
    at: int,
    ends: IntArray,
    running: int,
    clock: int,
    limit: int,
) -> int:
    """Return how many steps pass at least until a waiting request can start; 0 if one can now."""
    # Beside a completion of what runs it has one token less for each step that it starts later.
    shortest: int = profile.shape[1] + clock
    for slot in range(len(starts)):
        if starts[slot] >= 0:
            continue
        prompt, output = slots[slot, 0], slots[slot, 1]
        wait = slots[slot, 2] - clock
        if wait <= 0:
            last = at + output
            wait = 1 if profile[HELD, last] + prompt + output > limit else 0
            for index in range(running):
                end = ends[index]
                if at < end < last:
                    wait = max(wait, min(profile[HELD, end] + prompt + end - at - limit, end - at))
            if wait == 0:
                return 0
        shortest = min(shortest, wait)
    return shortest


@compiled_inside
def _waste_ahead(
    steps: IntArray,
    room: IntArray,
    depth: IntArray,
    profile: IntArray,
    ahead: int,
    clock: int,
    limit: int,
    room_left: int,
) -> int:
    """Return waste that is certain so many steps after the clock, or more than `room_left`."""
    longest = profile.shape[1] // 3
    place, begin = longest + 1 + min(ahead, longest + 1), clock + ahead
    waste = 0
    for index in range(min(longest - 1, len(steps) - begin)):
        step = begin + index
        young = room[steps[step, 2], depth[index + 1], limit - profile[HELD, place + index]]
        gap = steps[step, 0] - profile[PAID, place + index] - steps[step, 1] * young
        if gap > 0:
            waste += gap
            if waste > room_left:
                break
    return waste


@compiled_inside
def _advance(
    starts: npt.NDArray[Any],
    slots: IntArray,
    steps: IntArray,
    profile: IntArray,
    ends: IntArray,
    running: int,
    limit: int,
    clock: int,
    fixed: int,
    allowed: int,
    full: int,
    rules: int,
) -> tuple[int, int]:
    """Move the clock until a request can start; return it, -1 if hopeless, and the fixed cost."""
    # Nothing more starts at the old clock. What is fixed may become `allowed` at most; `full` is
    # the last step before at which memory was full.
    longest = profile.shape[1] // 3
    last = longest
    for index in range(running):
        last = max(last, ends[index])
    step, place, wait = clock, longest, 0
    while True:
        step += 1
        place += 1
        if step <= len(steps):
            fixed += steps[step - 1, 0] - profile[PAID, place]
        if fixed > allowed:
            return -1, fixed
        profile[PEAK, place] = place if profile[ENDING, place] else profile[PEAK, place - 1]
        if profile[HELD, place] == limit:
            full = step
        wait -= 1
        if wait <= 0 and rules & JUMPS:
            wait = _wait(starts, slots, profile, place, ends, running, step, limit)
        reached = wait <= 0
        # Memory is least after completions: in between a look costs more than it saves.
        ended = profile[ENDING, place - 1] or place > last
        worth = reached or ended or step == clock + 1
        if rules & ACTIVE and worth and active(starts, slots, profile, place, step, limit):
            return -1, fixed
        if reached:
            if rules & PENDING and pending(starts, slots, profile[HELD], place, step, limit, full):
                return -1, fixed
            return step, fixed
        if place >= last:
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
def grow(
    search: ExactProblem,
    layer: Layer,
    begin: int,
    end: int,
    slack: int,
    best_cost: int,
    best_starts: IntArray,
    after: Layer,
    rules: int,
) -> tuple[int, int, int, int]:
    """Write down the children of nodes of one clock until there is no room left."""
    # Return the first node that is not expanded, the number of children, the least bound of a child
    # that was lost because those of a single node were too many, and the best cost.
    slots, first_slot, marks = search.slots, search.begin, search.marks
    limit, longest, kinds = search.limit, len(search.depth) - 1, len(search.begin) - 1
    steps, room, depth = search.steps, search.room, search.depth
    new_starts, profiles, clocks, keys, costs, fixeds, bounds = after
    waits = len(slots) + 1
    starts = np.empty(len(slots), dtype=np.int64)
    profile = np.zeros((4, 3 * longest + 2), dtype=np.int64)
    ends = np.zeros(waits, dtype=np.int64)
    following = np.zeros(kinds, dtype=np.int64)
    startable = np.zeros(kinds, dtype=np.int64)
    pointer = np.zeros(waits, dtype=np.int64)  # by the number of requests started: next kind
    fixed = np.zeros(waits, dtype=np.int64)
    now = np.zeros(waits, dtype=np.int64)  # least regret of the rest, if they may start now
    later = np.zeros(waits, dtype=np.int64)  # ... from the next step on
    # What starts at this clock cost, and what their memory pays, is the same for all nodes.
    clock = layer.clock[begin]
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
        # Read a node: what runs, and which kinds of requests may start now.
        saved = filled
        key, cost = layer.key[node], layer.cost[node]
        for slot in range(len(slots)):
            starts[slot] = layer.starts[node, slot]
        running = _decode(starts, slots, steps, search.sizes, clock, profile, ends)
        full = clock
        while full > clock - longest and profile[HELD, longest + full - clock] != limit:
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
            if there and _fits(
                profile, longest, ends, running, slots[slot, 0], slots[slot, 1], limit
            ):
                startable[able] = kind
                able += 1
        # Go in depth through the sets that may start at this clock.
        level = 0
        fresh = True
        while level >= 0:
            if fresh and waiting == 0:
                if cost < best_cost:
                    best_cost = cost
                    copy(starts, best_starts, 0, len(starts))
            elif fresh:
                # Most are hopeless before the clock moves on.
                value = fixed[level] + later[level]
                if clock < len(steps):
                    value += steps[clock, 0] - profile[PAID, longest + 1]
                if value <= slack:
                    value += _waste_ahead(
                        steps, room, depth, profile, 1, clock, limit, slack - value
                    )
                reached = spent = -1
                if value <= slack:
                    reached, spent = _advance(
                        starts,
                        slots,
                        steps,
                        profile,
                        ends,
                        running,
                        limit,
                        clock,
                        fixed[level],
                        slack - later[level],
                        full,
                        rules,
                    )
                if reached > clock + 1:
                    value = spent
                    for slot in range(len(slots)):
                        if starts[slot] < 0:
                            value += at(search.least, slot, reached, search.unit)
                    value += _waste_ahead(
                        steps, room, depth, profile, reached - clock, clock, limit, slack - value
                    )
                if reached > clock and value <= slack:
                    if filled < len(keys):
                        place = longest + 1 + min(reached - clock, longest + 1)
                        for slot in range(len(slots)):
                            new_starts[filled, slot] = starts[slot]
                        for index in range(longest):
                            profiles[filled, index] = profile[HELD, place + index]
                        clocks[filled], keys[filled], costs[filled] = reached, key, cost
                        fixeds[filled], bounds[filled] = spent, value
                        filled += 1
                    elif saved > 0:
                        return node, saved, lost, best_cost
                    else:
                        lost = min(lost, value)
            fresh = False
            # Nothing more may start: take the last request out again.
            if pointer[level] == able:
                level -= 1
                if level >= 0:
                    kind = startable[pointer[level]]
                    following[kind] -= 1
                    slot = following[kind]
                    _hold(profile, charges, slot, slots[slot, 0], slots[slot, 1], -1)
                    running -= 1
                    starts[slot] = -1
                    key -= marks[slot]
                    cost -= clock
                    waiting += 1
                    pointer[level] += 1
                continue
            # Start the next request of a kind, or go on to the next kind.
            kind = startable[pointer[level]]
            slot = following[kind]
            fits = slot < first_slot[kind + 1] and slots[slot, 2] <= clock
            if fits:
                fixed[level + 1] = fixed[level] + regrets[0, slot]
                now[level + 1] = now[level] - regrets[1, slot]
                fits = fixed[level + 1] + now[level + 1] <= slack and _fits(
                    profile, longest, ends, running, slots[slot, 0], slots[slot, 1], limit
                )
            if not fits:
                pointer[level] += 1
                continue
            later[level + 1] = later[level] - regrets[2, slot]
            _hold(profile, charges, slot, slots[slot, 0], slots[slot, 1], 1)
            ends[running] = longest + slots[slot, 1]
            running += 1
            starts[slot] = clock
            following[kind] += 1
            key += marks[slot]
            cost += clock
            waiting -= 1
            pointer[level + 1] = pointer[level]
            level += 1
            fresh = True
    return end, filled, lost, best_cost
