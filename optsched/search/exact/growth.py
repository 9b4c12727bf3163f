r"""Layers of an exact search: nodes, how they grow, and the rules that drop some.

Of nodes of one clock that have started the same requests, A dominates B if it costs no more and
holds no more at any step. **Rules** drop a node if in each of its completions some requests could
start earlier, all others where they are. An earlier start is strictly cheaper, so that no rule cuts
a node that leads to an optimum, and the rules combine with dominance.

Request j holds :math:`s_j + t - p_j` tokens at steps :math:`p_j + 1, \dots, c_j`, and mem(t) is
what all hold. A node with the clock k has decided all starts before k: steps up to k are final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, compiled_inside
from optsched._internal.small_kernels import copy
from optsched.bounds.configurations import Problem, largest_sets, start_costs
from optsched.errors import OptschedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.certificates.prices import ConfigurationCertificate
    from optsched.problem.instance import Instance

    Integers = npt.NDArray[np.integer]  # of 16, 32 or 64 bits

_EXACT = 2**61
_DEPTHS = 24  # grid on the numbers of steps since a start for which room is tabulated


class ExactProblem(NamedTuple):
    """An instance and a certificate, as the search needs them; all costs are integers."""

    limit: int
    unit: int  # what one step of latency costs
    begin: IntArray  # first slot of each kind, and the number of slots
    requests: IntArray  # of each slot
    slots: IntArray  # (slots, 4): prompt, output, arrival, where its tokens begin in `sizes`
    regret: IntArray  # (slots, starts): cost of a start beyond that of the cheapest
    least: IntArray  # (slots, starts): least regret from this start on
    steps: IntArray  # (T, 3): what could be paid at most, price, phase
    sizes: IntArray  # (phases, tokens of all kinds)
    room: IntArray  # (phases, depths, limit + 1): largest size of young requests in so many tokens
    depth: IntArray  # index of a number of steps into `room`
    marks: IntArray  # one random number for each slot
    total: int  # the bound of the certificate, in units

    @classmethod
    def of(cls, instance: Instance, certificate: ConfigurationCertificate) -> ExactProblem:
        """Tabulate regrets and room."""
        problem = Problem.of(instance)
        unit = certificate.price_denominator * certificate.size_denominator
        reach = len(certificate.prices) + int(instance.arrivals[-1]) + int(instance.outputs.sum())
        spent = sum(certificate.prices) * max(map(max, certificate.sizes), default=0)
        if (len(instance) + problem.width) * (unit * reach + spent) >= _EXACT:
            raise OptschedError("the numbers of the certificate are too large for 64-bit integers")
        prices = np.array(certificate.prices, dtype=np.int64)
        ends = np.array(certificate.ends, dtype=np.int64)
        shape = len(ends), len(problem.tokens)
        item_sizes = np.array(certificate.sizes, dtype=np.int64).reshape(shape)
        phase = np.searchsorted(ends, np.arange(1, len(prices) + 1))
        order = np.lexsort((instance.arrivals, instance.outputs, instance.prompts))
        rows = instance.prompts[order], instance.outputs[order], instance.arrivals[order]
        _, begin, kind_of = np.unique(
            np.column_stack(rows[:2]), axis=0, return_index=True, return_inverse=True
        )
        costs = start_costs(problem, prices, phase, item_sizes, unit)
        costs = costs[problem.group[order]]
        cheapest = costs.min(axis=1)
        regret = costs - cheapest[:, None]
        least = np.minimum.accumulate(regret[:, ::-1], axis=1)[:, ::-1].copy()
        capacities = largest_sets(problem, item_sizes, problem.copies(ends))
        # The tokens of a kind lie where those of its first group do.
        outputs = instance.outputs[order[begin]]
        heads = problem.first[problem.group[order[begin]]]
        place = np.concatenate(
            [problem.place[head : head + o] for head, o in zip(heads, outputs, strict=True)]
        )
        longest = int(outputs.max())
        grid = np.ceil(np.geomspace(1, longest, min(_DEPTHS, longest)))
        depths = np.unique(np.minimum(grid, longest).astype(np.int64))
        token = problem.token
        room = np.zeros((len(ends), len(depths), instance.memory + 1), dtype=np.int64)
        for index, steps in enumerate(depths.tolist()):
            young = problem.available(token, np.array([steps]))[0]
            for number, row in enumerate(item_sizes):
                room[number, index] = _room(problem, row, young)
        random = np.random.default_rng(0)
        return cls(
            limit=instance.memory,
            unit=unit,
            begin=np.append(begin, len(instance)),
            requests=order,
            slots=np.column_stack([*rows, (np.cumsum(outputs) - outputs)[kind_of.ravel()]]),
            regret=regret,
            least=least,
            steps=np.column_stack([prices * capacities[phase], prices, phase]),
            sizes=np.ascontiguousarray(item_sizes[:, place]),
            room=room,
            depth=np.searchsorted(depths, np.arange(longest + 1)),
            marks=random.integers(-(2**62), 2**62, len(instance)),
            total=int(cheapest.sum()) - int(prices @ capacities[phase]),
        )


@allocating
def _room(problem: Problem, sizes: IntArray, copies: IntArray) -> IntArray:
    """Return the largest total size of items that can run together, by the tokens they may hold."""
    limit, width = problem.limit, problem.width
    best = np.full((width + 1, limit + 1), -1)
    best[0, 0] = 0
    for item in range(len(sizes)):
        tokens, left = problem.tokens[item], problem.left[item]
        if sizes[item] > 0:
            for _ in range(copies[item]):
                for count in range(width - 1, -1, -1):
                    for held in range(limit - tokens - (count + 1) * left, -1, -1):
                        if best[count, held] >= 0:
                            value = best[count, held] + sizes[item]
                            if value > best[count + 1, held + tokens]:
                                best[count + 1, held + tokens] = value
    room = np.zeros(limit + 1, dtype=np.int64)
    for held in range(limit + 1):
        room[held] = max(best[:, held].max(), room[max(held - 1, 0)])
    return room


#: The rules, as bits.
ACTIVE, PENDING, JUMPS = 1, 2, 4


#: What is known of each step around a clock, as rows of an array: tokens held, what is paid by
#: what runs, completions, and the place of the last step up to this one with a completion.
HELD, PAID, ENDING, PEAK = 0, 1, 2, 3


@compiled_inside
def active(
    starts: Integers, slots: IntArray, profile: IntArray, at: int, clock: int, limit: int
) -> bool:
    """Tell whether a request could have completed by now; `at` is the place of the clock."""
    # Request j waits or runs beyond k. If it fits, without itself, in steps p' + 1 to k = p' + o_j
    # with a_j <= p', then all these are final, and later steps lose tokens only. Up to the next
    # completion of another one usage grows, so k and completions are all that has to be looked at.
    free = limit - profile[HELD, at]
    for slot in range(len(starts)):
        prompt, output, start = slots[slot, 0], slots[slot, 1], starts[slot]
        begin = clock - output
        more = prompt + output if start < 0 else start - begin  # tokens at k
        if more > free or more <= 0 or begin < slots[slot, 2]:
            continue
        first = at - output
        place = profile[PEAK, at - 1]
        while place > first:
            usage = profile[HELD, place] + prompt + place - first
            own = clock - at + place - start
            if start >= 0 and own > 0:
                usage -= prompt + own
            if usage > limit:
                break
            place = profile[PEAK, place - 1]
        if place <= first:
            return True
    return False


@compiled_inside
def pending(
    starts: Integers, slots: IntArray, held: IntArray, at: int, clock: int, limit: int, full: int
) -> bool:
    """Tell whether a running request could have started a step earlier, whatever is to come."""
    # Request j, with a_j < p_j and s_j + 1 tokens more in step p_j than are held, needs one token
    # more in each step of p_j + 1 to c_j - 1, so that an optimum has mem(t) = M at one of these.
    # Then another one completes at t, or mem(t + 1) > M. `full` is the last such step up to the
    # clock. One to come is a completion of a running request, where memory is full or something
    # that waits may still fill it, or of one that waits and can start, run and complete beside j.
    for slot in range(len(starts)):
        start, prompt = starts[slot], slots[slot, 0]
        end = start + slots[slot, 1]
        if start <= slots[slot, 2] or end <= clock + 1 or full > start:
            continue
        known = held[at + start - clock] + prompt + 1 <= limit
        if known and not _can_fill(starts, slots, held, at, clock, limit, slot):
            return True
    return False


@compiled_inside
def _can_fill(
    starts: Integers, slots: IntArray, held: IntArray, at: int, clock: int, limit: int, slot: int
) -> bool:
    """Tell whether memory can be full between the clock and the last step of a request."""
    least = limit
    for other in range(len(starts)):
        if starts[other] < 0:
            least = min(least, slots[other, 0])
    begin = starts[slot]
    end = begin + slots[slot, 1]
    for other in range(len(starts)):
        output = slots[other, 1]
        if starts[other] < 0:
            step = max(clock, slots[other, 2]) + output
            usage = slots[other, 0] + output + slots[slot, 0] + step - begin
            if step < end and usage <= limit:
                return True
        else:
            step = starts[other] + output
            if clock < step < end:
                free = limit - held[at + step - clock]
                if free == 0 or free > least:
                    return True
    return False


@allocating
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
def _covers(packed: Integers, index: int, end: int, profiles: Integers, node: int) -> bool:
    """Tell whether one profile is nowhere above the other."""
    for ahead in range(end):  # noqa: SIM110
        if packed[index, ahead] > profiles[node, ahead]:
            return False
    return True


@compiled_inside
def _same_set(starts: Integers, some: int, other: int) -> bool:
    for slot in range(starts.shape[1]):
        if (starts[some, slot] < 0) != (starts[other, slot] < 0):
            return False
    return True


class Layer(NamedTuple):
    """Nodes, each with a clock: no request starts before it any more."""

    starts: npt.NDArray[np.int32]  # (nodes, slots); -1 where a slot has not started
    profile: npt.NDArray[
        np.integer
    ]  # 16 or 32 bits (nodes, longest output): tokens held after the clock
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
    starts: Integers,
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
    starts: Integers,
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
    starts: Integers,
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


@allocating
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
