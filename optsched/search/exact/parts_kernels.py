"""Kernels of the search over parts: bounds of all subsets, and the best order of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

_EXHAUSTED = -1  # work that is left where a search was given up


class Few(NamedTuple):
    """Few requests by ascending memory-time, and one worker."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    areas: IntArray
    twin: IntArray  # the last request before that agrees in everything, or -1
    memory: int


@compiled
def bound_parts(few: Few, lower: IntArray) -> None:
    """Bound the sum of starts of every subset from below, given bounds that may be zero."""
    # Of k requests that have completed the memory-time had room, and the k shortest outputs are
    # over; and a request costs at least its arrival on top of what the others cost without it.
    outputs, arrivals, areas = few.outputs, few.arrivals, few.areas
    count, memory = len(outputs), few.memory
    ascending = np.empty(count, dtype=np.int64)
    for part in range(1, len(lower)):
        best, size, longest = lower[part], 0, 0
        for request in range(count):
            if part >> request & 1:
                output = outputs[request]
                longest += output
                place = size
                while place > 0 and ascending[place - 1] > output:
                    ascending[place] = ascending[place - 1]
                    place -= 1
                ascending[place] = output
                size += 1
        total, held, size = 0, 0, 0
        for request in range(count):
            if part >> request & 1:
                held += areas[request]
                total += max(-(-held // memory), ascending[size])
                size += 1
                best = max(best, lower[part ^ (1 << request)] + arrivals[request])
        lower[part] = max(best, total - longest)


@compiled
def _fits(usage: IntArray, clock: int, prompt: int, output: int, memory: int) -> bool:
    """Tell whether a request can start at the clock."""
    for token in range(1, output + 1):  # noqa: SIM110
        if usage[clock + token] + prompt + token > memory:
            return False
    return True


@compiled
def _next_clock(
    few: Few,
    members: IntArray,
    starts: IntArray,
    due: IntArray,
    usage: IntArray,
    clock: int,
    full: int,
    last: int,
) -> tuple[int, int]:
    """Return the next step at which a request can start, and the last step of full memory."""
    # -1 where there is none up to the last one, or where a request has run that could have started
    # a step earlier, memory not having been full since.
    prompts, outputs, arrivals, memory = few.prompts, few.outputs, few.arrivals, few.memory
    while clock < last:
        clock += 1
        if usage[clock] == memory:
            full = clock
        for index in range(len(members)):
            request = members[index]
            if starts[request] >= 0 and due[request] == clock and full <= starts[request]:
                return -1, full
        for index in range(len(members)):
            request = members[index]
            if starts[request] < 0 and arrivals[request] <= clock:
                prompt, output = prompts[request], outputs[request]
                if _fits(usage, clock, prompt, output, memory):
                    return clock, full
    return -1, full


@compiled
def _least_rest(
    few: Few, members: IntArray, starts: IntArray, usage: IntArray, clock: int, alone: int
) -> int:
    """Bound the sum of starts of what waits from below; `alone` is such a bound from step 0."""
    early, total, longest, count = 0, 0, 0, 0
    room, needed, step, together = 0, 0, clock, True
    for index in range(len(members)):
        request = members[index]
        if starts[request] < 0:
            count += 1
            early += max(clock, few.arrivals[request])
            together = together and few.arrivals[request] == 0
            needed += few.areas[request]
            longest += few.outputs[request]
            while room < needed:
                step += 1
                room += few.memory - (usage[step] if step < len(usage) else 0)
            total += step
    if together:  # all is as from step 0 on
        alone += count * clock
    return max(max(alone, early), total - longest)


@compiled
def order_part(
    few: Few, part: int, lower: IntArray, least: int, best: IntArray, work: int
) -> tuple[int, int]:
    """Find the least sum of starts of a subset below `least`, and the starts; return it."""
    # `least` comes back where there is none. Beside it stands the work left, negative if the search
    # was given up. Requests start in the order of time, all that fit or fewer at each step; a node
    # is dropped if its bound is no better than the best, or if one of its requests could have
    # started a step earlier with all else as it is (see `few`).
    prompts, outputs, arrivals, memory = few.prompts, few.outputs, few.arrivals, few.memory
    starts, due = np.empty(len(prompts), dtype=np.int64), np.empty(len(prompts), dtype=np.int64)
    members = np.empty(len(prompts), dtype=np.int64)
    waiting, last, longest, clock = 0, 0, 0, 2**62
    for request in range(len(prompts)):
        starts[request], due[request] = -1, 0
        if part >> request & 1:
            members[waiting] = request
            waiting += 1
            last += outputs[request]
            longest = max(longest, outputs[request])
            clock = min(clock, arrivals[request])
    members = members[:waiting]
    size = waiting
    reach = last
    for index in range(size):
        last = max(last, arrivals[members[index]] + reach)
    usage = np.empty(last + longest + 2, dtype=np.int64)
    for step in range(len(usage)):
        usage[step] = 0
    # Search in depth. A node starts a request, or moves the clock on (-1); it knows who may be
    # next, and before.
    moved = np.empty((4, last + size + 2), dtype=np.int64)
    depth, cost, full, left = 0, 0, -1, part
    moved[0, 0], moved[1, 0] = -2, 0
    while depth >= 0:
        index = moved[1, depth]
        moved[1, depth] = index + 1
        # Start one more request at the clock.
        if index < size:
            request = members[index]
            prompt, output, twin = prompts[request], outputs[request], few.twin[request]
            if starts[request] >= 0 or arrivals[request] > clock:
                continue
            if twin >= 0 and left >> twin & 1:
                continue
            work -= output
            if not _fits(usage, clock, prompt, output, memory):
                continue
            early = arrivals[request] < clock and usage[clock] + prompt < memory
            if early and output == 1:
                continue
            if waiting == 1:
                if cost + clock < least:
                    least = cost + clock
                    for other in range(size):
                        best[members[other]] = starts[members[other]]
                    best[request] = clock
                moved[1, depth] = size + 1  # no later start is better
                continue
            for token in range(1, output + 1):
                usage[clock + token] += prompt + token
            starts[request], due[request] = clock, clock + output - 1 if early else 0
            cost += clock
            left ^= 1 << request
            waiting -= 1
            depth += 1
            moved[0, depth], moved[1, depth] = request, index + 1
        # Move the clock on.
        elif index == size:
            if cost + waiting * (clock + 1) >= least:
                continue
            then, filled = _next_clock(few, members, starts, due, usage, clock, full, last)
            work -= 10 * (max(then, clock) - clock) + 10
            if work < 0:
                return least, _EXHAUSTED
            if then < 0:
                continue
            rest = _least_rest(few, members, starts, usage, then, lower[left])
            work -= 10 * size
            if cost + rest < least:
                depth += 1
                moved[0, depth], moved[1, depth] = -1, 0
                moved[2, depth], moved[3, depth] = clock, full
                clock, full = then, filled
        # Go back to the node before.
        else:
            request = moved[0, depth]
            if request == -1:
                clock, full = moved[2, depth], moved[3, depth]
            elif request >= 0:
                for token in range(1, outputs[request] + 1):
                    usage[starts[request] + token] -= prompts[request] + token
                cost -= starts[request]
                starts[request] = -1
                left ^= 1 << request
                waiting += 1
            depth -= 1
    return least, max(work, 0)
