"""Graphs of running sets: kernels of `states`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray

    Int32Array = npt.NDArray[np.int32]

#: More than every path costs, in units of a graph.
FAR = 2**30
#: In place of a request, where none is to be tracked.
NONE = -1
_PER_SET = 6  # blocks and children for which there is room, per set


class States(NamedTuple):
    """States with as many requests to start, numbered so that later ones have smaller numbers.

    Those in which nothing could start are passed over.
    """

    later: Int32Array  # the next state in which nothing has started, -1 if none
    pause: Int32Array  # steps until then
    begin: Int32Array  # of the starts of each state, and their number
    request: Int32Array  # what is started
    target: Int32Array  # where that leads, among states with one request fewer to start
    delay: Int32Array  # steps until then

    @classmethod
    def empty(cls, states: int, starts: int) -> States:
        """Reserve memory, which is taken when it is written."""
        sizes = states, states, states + 1, starts, starts, starts
        return cls(*(np.empty(size, dtype=np.int32) for size in sizes))

    def cut(self, starts: int) -> States:
        """Give back what was reserved beyond so many starts."""
        return States(*self[:3], *(array[:starts].copy() for array in self[3:]))


class Sets(NamedTuple):
    """A trie of running sets: requests with the steps that each has left."""

    parent: Int32Array  # the set without its last request
    last: npt.NDArray[Any]  # int16: the last request, -1 of the empty set
    left: Int32Array  # steps left of it
    rows: Int32Array  # first entry in `blocks`; there is one for each request after the last
    blocks: Int32Array  # first entry in `children`, -1 if there is none with this request
    children: Int32Array  # by steps left of the request; -1 if it does not fit

    @classmethod
    def empty(cls, most: int) -> Sets:
        """Reserve memory, which is taken when it is written."""
        sizes = most, most, most, _PER_SET * most, _PER_SET * most
        parent, *others = (np.empty(size, dtype=np.int32) for size in sizes)
        return cls(parent, np.empty(most, dtype=np.int16), *others)


@compiled
def enumerate_sets(outputs: IntArray, peaks: IntArray, limit: int, sets: Sets) -> int:
    """List the sets that fit to their ends in lexicographic order; return -1 if they are many."""
    parent, last, left, rows, blocks, children = sets
    count, longest = len(outputs), 0
    for output in outputs:
        longest = max(longest, output)
    # Of the requests chosen so far, by their number and by steps ahead:
    held = np.zeros((count + 1, longest + 1), dtype=np.int64)
    worst = np.zeros(
        (count + 1, longest + 1), dtype=np.int64
    )  # tokens + step of a completion before
    ending = np.zeros(longest + 1, dtype=np.int64)
    node = np.zeros(count + 1, dtype=np.int64)
    request = np.zeros(count + 1, dtype=np.int64)  # to be added next
    steps = np.zeros(count + 1, dtype=np.int64)  # left of it when it was added before
    parent[0], last[0], left[0], rows[0] = 0, -1, 0, 0
    request[0] = count - 1
    for index in range(count):
        blocks[index] = -1
    total, rows_used, used = 1, count, 0
    depth = 0
    while depth >= 0:
        here, chosen = node[depth], request[depth]
        if chosen <= last[here]:
            ending[left[here]] -= 1
            depth -= 1
            continue
        # It needs room at its completion, and at those of others before it.
        output, peak = outputs[chosen], peaks[chosen]
        step = max(steps[depth], peak + held[depth, 1] - limit) + 1
        while step <= output and (
            held[depth, step] + peak > limit or worst[depth, step] + peak - step > limit
        ):
            step += 1
        if step > output:
            request[depth] -= 1
            steps[depth] = 0
            continue
        steps[depth] = step
        place = rows[here] + chosen - last[here] - 1
        following = count - 1 - chosen
        full = used + output > len(children) or rows_used + following > len(blocks)
        if full or total == len(parent):
            return -1
        if blocks[place] < 0:
            blocks[place] = used
            for index in range(used, used + output):
                children[index] = -1
            used += output
        children[blocks[place] + step - 1] = total
        parent[total], last[total], left[total], rows[total] = here, chosen, step, rows_used
        for index in range(rows_used, rows_used + following):
            blocks[index] = -1
        rows_used += following
        depth += 1
        node[depth], request[depth], steps[depth] = total, count - 1, 0
        ending[step] += 1
        total += 1
        most = 0
        for ahead in range(1, longest + 1 if following else 0):
            tokens = held[depth - 1, ahead] + (peak - step + ahead if ahead <= step else 0)
            held[depth, ahead], worst[depth, ahead] = tokens, most
            if ending[ahead]:
                most = max(most, tokens + ahead)
    return total


@compiled
def _child(sets: Sets, number: int, request: int, left: int) -> int:
    block = sets.blocks[sets.rows[number] + request - sets.last[number] - 1]
    return -1 if block < 0 else sets.children[block + left - 1]


@compiled
def link_sets(outputs: IntArray, sets: Sets, states: States) -> int:
    """Find what follows on each set; return the number of starts, -1 if there is no room."""
    later, _, begin, request, target, _ = states
    fresh = np.empty(len(later), dtype=np.int32)  # the last request that starts just now
    later[0], fresh[0], begin[0] = 0, -1, 0
    starts = 0
    for number in range(len(later)):
        if starts + len(outputs) > len(request):
            return -1
        last = sets.last[number]
        if number > 0:
            parent, left = sets.parent[number], sets.left[number]
            after = later[parent]
            later[number] = after if left == 1 else _child(sets, after, last, left - 1)
            fresh[number] = last if left == outputs[last] else fresh[parent]
            # What starts at the same step does so in order.
            if fresh[number] != last:
                for start in range(begin[parent], begin[parent + 1]):
                    if request[start] < last:
                        found = _child(sets, target[start], last, left)
                        if found >= 0:
                            request[starts], target[starts] = request[start], found
                            starts += 1
        for other in range(last + 1, len(outputs)):
            found = _child(sets, number, other, outputs[other])
            if found >= 0:
                request[starts], target[starts] = other, found
                starts += 1
        begin[number + 1] = starts
    later[0] = -1
    return starts


@compiled
def pass_over(states: States, fewer: States) -> None:
    """Leave out states in which nothing can start."""
    later, _, begin, request, target, _ = states
    new_later, new_pause, new_begin, new_request, new_target, new_delay = fewer
    number = np.empty(len(later), dtype=np.int32)  # of the first state from here on that stays
    steps = np.empty(len(later), dtype=np.int32)  # until then
    stay = 0
    for state in range(len(later)):
        if begin[state + 1] > begin[state]:
            number[state], steps[state] = stay, 0
            after = later[state]
            new_later[stay] = number[after] if after >= 0 else -1
            new_pause[stay] = steps[after] + 1 if after >= 0 else 0
            new_begin[stay] = begin[state]
            stay += 1
        else:
            after = later[state]
            number[state], steps[state] = number[after], steps[after] + 1
    new_begin[stay] = begin[len(later)]
    for start in range(len(request)):
        new_request[start] = request[start]
        new_target[start], new_delay[start] = number[target[start]], steps[target[start]]


@compiled
def cost_to_go(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    below: Int32Array,
    costs: Int32Array,
) -> None:
    """Find the least cost from each state to the end; a step costs `wait`, less a unit below."""
    later, pause, begin, request, target, delay = states
    for state in range(len(later)):
        best = costs[later[state]] + wait * pause[state] if later[state] >= 0 else FAR
        for start in range(begin[state], begin[state + 1]):
            cost = below[target[start]] + (wait - unit) * delay[start]
            best = min(best, cost - multipliers[request[start]])
        costs[state] = min(best, FAR)


@compiled
def follow(
    states: States,
    multipliers: Int32Array,
    wait: int,
    below: Int32Array,
    costs: Int32Array,
    state: int,
) -> tuple[int, int]:
    """Return the steps that pass on a cheapest path until a start, and its number."""
    later, pause, begin, request, target, delay = states
    steps = 0
    while True:
        for start in range(begin[state], begin[state + 1]):
            cost = below[target[start]] + wait * delay[start] - multipliers[request[start]]
            if cost == costs[state]:
                return steps, start
        steps += pause[state]
        state = later[state]


@compiled
def cost_to_come(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    to_go: Int32Array,
    slack: int,
    tracked: int,
    costs: Int32Array,
    below: Int32Array,
) -> None:
    """Find the least cost from the root to the states here, and by a start below."""
    # Columns: before and after the start of the tracked request. Hopeless states become FAR.
    later, pause, begin, request, target, delay = states
    for state in range(len(later) - 1, -1, -1):
        for started in range(2):
            cost = costs[state, started]
            if cost + to_go[state] > slack:
                costs[state, started] = FAR
                continue
            after = later[state]
            if after >= 0:
                costs[after, started] = min(costs[after, started], cost + wait * pause[state])
            for start in range(begin[state], begin[state + 1]):
                if request[start] != tracked or started == 0:
                    then = 1 if request[start] == tracked else started
                    least = cost - multipliers[request[start]] + (wait - unit) * delay[start]
                    below[target[start], then] = min(below[target[start], then], least)


@compiled
def restricted(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    to_go: tuple[Int32Array, Int32Array],
    slack: int,
    tracked: int,
    places: IntArray,
    costs: Int32Array,
    index: tuple[Int32Array, Int32Array],
    fewer: States,
) -> int:
    """Write down the states and starts that are left, by their new numbers; count the starts."""
    later, pause, begin, request, target, delay = states
    new_later, new_pause, new_begin, new_request, new_target, new_delay = fewer
    go_here, go_below = to_go
    here, below = index
    starts = 0
    for number in range(len(places)):
        state, started, cost = places[number] // 2, places[number] % 2, costs[number]
        after = later[state]
        hopeful = after >= 0 and cost + wait * pause[state] + go_here[after] <= slack
        new_later[number] = here[after, started] if hopeful else -1
        new_pause[number] = pause[state]
        new_begin[number] = starts
        for start in range(begin[state], begin[state + 1]):
            if request[start] != tracked or started == 0:
                then = 1 if request[start] == tracked else started
                found = below[target[start], then]
                least = cost - multipliers[request[start]] + (wait - unit) * delay[start]
                if found >= 0 and least + go_below[target[start]] <= slack:
                    new_request[starts], new_target[starts] = request[start], found
                    new_delay[starts] = delay[start]
                    starts += 1
    new_begin[len(places)] = starts
    return starts
