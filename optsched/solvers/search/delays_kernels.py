"""Kernels of delays: the schedule of changed releases, decoded only where it differs."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.search.shared_kernels import add_usage, earliest_fit, uniform

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.shared_kernels import RandomState, Usage

_NEVER = 1 << 60
_TRIAL, _REQUEST = 500.0, 2.0  # work of a trial beyond its token-steps, and of a later request


@compiled
def _first_from(values: IntArray, order: IntArray, step: int) -> int:
    """Find the first place in an order by value whose value is at least so large."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if values[order[middle]] < step:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _release(releases: IntArray, by_release: IntArray, request: int, release: int) -> None:
    """Change the release of a request, and its place in the order by release."""
    place = 0
    while by_release[place] != request:
        place += 1
    releases[request] = release
    while place > 0 and releases[by_release[place - 1]] > release:
        by_release[place] = by_release[place - 1]
        place -= 1
    while place < len(by_release) - 1 and releases[by_release[place + 1]] < release:
        by_release[place] = by_release[place + 1]
        place += 1
    by_release[place] = request


@compiled
def _decode(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    rank: IntArray,
    by_rank: IntArray,
    releases: IntArray,
    by_release: IntArray,
    begin: int,
    settled: int,
    first: int,
    order: IntArray,
    starts: IntArray,
    usage: Usage,
    admitted: IntArray,
    fresh: IntArray,
    tried: IntArray,
    not_before: IntArray,
    sides: IntArray,
) -> tuple[int, int, float]:
    """Admit from step `begin` on, before which nothing differs from the known starts.

    Ends when the known schedule is met again: at a step from `settled` on, when the same requests
    have started, and those still running at the same steps. Gives how many were admitted (which
    ones is in `admitted`, their starts in `fresh`), the step at which the known schedule is met,
    and the work. `tried` holds when each was first the most urgent one, -1 if never.
    """
    count = len(order)
    longest = outputs.max()
    spent, end = 0.0, begin
    for place in range(first - 1, -1, -1):
        request = order[place]
        start = starts[request]
        if start + longest <= begin:
            break
        over = start + outputs[request]
        held = prompts[request] - start
        for step in range(begin + 1, over + 1):
            usage[step] += held + step
        spent += max(over - begin, 0)
        end = max(end, over)
    waiting = [rank[0] for _ in range(0)]
    for place in range(first, count):
        request = order[place]
        tried[request], not_before[request], sides[request] = -1, 0, 0
        if releases[request] <= begin:
            waiting.append(rank[request])
    heapq.heapify(waiting)
    released = _first_from(releases, by_release, begin + 1)
    clock = last = begin
    # `differ` requests have started by `last` in one of the two schedules only.
    differ, until, known = 0, settled, first
    number, met = 0, _NEVER
    for _ in range(first, count):
        if not waiting:
            clock = max(clock, releases[by_release[released]])
        while True:
            while released < count and releases[by_release[released]] <= clock:
                heapq.heappush(waiting, rank[by_release[released]])
                released += 1
            request = by_rank[waiting[0]]
            prompt, output = prompts[request], outputs[request]
            if tried[request] < 0:
                tried[request] = clock
            latest = len(usage) - 1 - output
            begun = max(clock, not_before[request])
            start = earliest_fit(usage, memory, prompt, output, begun, latest)
            not_before[request] = start
            if released == count or start < releases[by_release[released]]:
                break
            clock = releases[by_release[released]]  # somebody more urgent may come
        if start > last:
            while known < count and starts[order[known]] < start:
                other = order[known]
                sides[other] -= 1
                differ += 1 if sides[other] else -1
                known += 1
            if differ == 0 and until <= start:
                met = start
                break
            last = start
        heapq.heappop(waiting)
        add_usage(usage, prompt, output, start, 1)
        spent += 2 * output
        end = max(end, start + output)
        admitted[number], fresh[number] = request, start
        number += 1
        sides[request] += 1
        differ += 1 if sides[request] else -1
        if start != starts[request]:
            until = max(until, max(start, starts[request]) + output)
        clock = start
    usage[begin : end + 1] = 0
    return number, met, spent + _TRIAL + _REQUEST * (count - first)


@compiled
def _draw_release(
    request: int,
    arrival: int,
    cheapest: int,
    start: int,
    longest: int,
    random: RandomState,
) -> int:
    """Draw a release: the cheapest start, the arrival, something between, or near the start."""
    kind, share = uniform(random), uniform(random)
    if kind < 0.3:
        return cheapest
    if kind < 0.4:
        return arrival
    if kind < 0.7:
        return arrival + int(share * 1.3 * max(cheapest - arrival, 1))
    normal = math.sqrt(-2 * math.log(1.0 - share)) * math.cos(2 * math.pi * uniform(random))
    return start + int(normal * longest * 10.0 ** (-2.5 * uniform(random)))


@compiled
def anneal_releases(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: FloatArray,
    memory: int,
    rank: IntArray,
    by_rank: IntArray,
    cheapest: IntArray,
    regrets: FloatArray,
    horizon: int,
    releases: IntArray,
    by_release: IntArray,
    order: IntArray,
    starts: IntArray,
    heads: IntArray,
    usage: Usage,
    best: IntArray,
    best_releases: IntArray,
    costs: FloatArray,
    random: RandomState,
    trials: int,
    temperature: float,
) -> float:
    """Change single releases, and accept by Metropolis; give the work.

    `regrets` are sums that say which requests are chosen, `heads` steps before which a request was
    not the most urgent one that waits, `usage` zeros, `costs` of the current and the best starts.
    """
    count, longest = len(order), int(outputs.max())
    admitted, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    tried, not_before = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    sides = np.empty(count, dtype=np.int64)
    work = 0.0
    for _ in range(trials):
        one = int(np.searchsorted(regrets, uniform(random) * regrets[-1], side="right"))
        arrival, old = arrivals[one], releases[one]
        new = _draw_release(one, arrival, cheapest[one], starts[one], longest, random)
        new = min(max(new, arrival), horizon)
        if old <= new <= heads[one]:  # it waits for others until then anyway
            work += _TRIAL
            continue
        begin = new if new < old else heads[one]
        first = _first_from(starts, order, begin)
        _release(releases, by_release, one, new)
        number, met, spent = _decode(
            prompts,
            outputs,
            memory,
            rank,
            by_rank,
            releases,
            by_release,
            begin,
            max(old, new),
            first,
            order,
            starts,
            usage,
            admitted,
            fresh,
            tried,
            not_before,
            sides,
        )
        work += spent
        change = 0.0
        for place in range(number):
            request = admitted[place]
            change += weights[request] * (fresh[place] - starts[request])
        if change > -temperature * math.log(1.0 - uniform(random)):
            _release(releases, by_release, one, old)
            continue
        for place in range(first, count):
            request = order[place]
            if heads[request] >= begin:
                heads[request] = tried[request] if tried[request] >= 0 else max(heads[request], met)
        for place in range(number):
            starts[admitted[place]] = fresh[place]
            order[first + place] = admitted[place]
        costs[0] += change
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            best[:] = starts
            best_releases[:] = releases
    return work
