"""Kernels of delays: the schedule of changed releases, decoded only where it differs."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.search.shared_kernels import (
    add_usage,
    earliest_fit,
    first_from,
    occupy_before,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.shared_kernels import RandomState, Requests, Usage

_NEVER = 1 << 60
# Work of a trial beyond its token-steps, and of each request from its first change on.
_TRIAL_WORK, _REQUEST_WORK = 500.0, 2.0


class Releases(NamedTuple):
    """Releases, the schedule that serving by rank makes of them, and the best one met."""

    rank: IntArray  # of each request, 0 the most urgent
    by_rank: IntArray  # the requests by rank
    releases: IntArray
    by_release: IntArray
    starts: IntArray
    order: IntArray  # the requests by start
    heads: IntArray  # step before which a request is not the most urgent one that waits
    usage: Usage  # zeros, up to a step that no schedule reaches
    best: IntArray
    best_releases: IntArray
    costs: FloatArray  # weighted starts, of the schedule and of the best


class _Trial(NamedTuple):
    """What changed releases lead to, where that differs from the known schedule."""

    admitted: IntArray  # requests in the order of their starts
    fresh: IntArray  # their starts
    tried: IntArray  # when each request was first the most urgent one, -1 if never
    not_before: IntArray
    sides: IntArray  # 1 or -1 where only one of the schedules has started a request


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
    requests: Requests, state: Releases, trial: _Trial, begin: int, settled: int, first: int
) -> tuple[int, int, float]:
    """Admit from step `begin` on, before which nothing differs from the known starts."""
    prompts, outputs, starts = requests.prompts, requests.outputs, state.starts
    rank, by_rank, order, usage = state.rank, state.by_rank, state.order, state.usage
    releases, by_release = state.releases, state.by_release
    admitted, fresh, tried, not_before, sides = trial
    memory = requests.memory
    count = len(order)
    end, spent = occupy_before(
        prompts, outputs, order, starts, usage, first, begin, outputs.max(), 0.0
    )
    waiting = [rank[0]]  # no comprehension (`_internal.compiled`)
    waiting.clear()
    for place in range(first, count):
        request = order[place]
        tried[request], not_before[request], sides[request] = -1, 0, 0
        if releases[request] <= begin:
            waiting.append(rank[request])
    heapq.heapify(waiting)
    released = first_from(releases, by_release, begin + 1)
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
            clock = releases[by_release[released]]  # a more urgent one may come
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
    return number, met, spent + _TRIAL_WORK + _REQUEST_WORK * (count - first)


@compiled
def _draw_release(
    arrival: int, cheapest: int, start: int, longest: int, random: RandomState
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
    requests: Requests,
    state: Releases,
    cheapest: IntArray,
    regrets: FloatArray,
    horizon: int,
    random: RandomState,
    trials: int,
    temperature: float,
) -> float:
    """Change single releases, and accept by Metropolis; return the work."""
    arrivals, weights = requests.arrivals, requests.weights
    releases, by_release = state.releases, state.by_release
    starts, order, heads, costs = state.starts, state.order, state.heads, state.costs
    count, longest = len(starts), int(requests.outputs.max())
    admitted, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    tried, not_before = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    trial = _Trial(admitted, fresh, tried, not_before, np.empty(count, dtype=np.int64))
    work = 0.0
    for _ in range(trials):
        one = int(np.searchsorted(regrets, uniform(random) * regrets[-1], side="right"))
        arrival, old = arrivals[one], releases[one]
        new = _draw_release(arrival, cheapest[one], starts[one], longest, random)
        new = min(max(new, arrival), horizon)
        if old <= new <= heads[one]:  # it waits for others until then anyway
            work += _TRIAL_WORK
            continue
        begin = new if new < old else heads[one]
        first = first_from(starts, order, begin)
        _release(releases, by_release, one, new)
        number, met, spent = _decode(requests, state, trial, begin, max(old, new), first)
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
            state.best[:] = starts
            state.best_releases[:] = releases
    return work
