"""Kernels of the search: annealing on orders, and moves on starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled, compiled_apart
from optsched._internal.small_kernels import copy
from optsched.solvers.search.annealing import (
    MAX_TAKEN,
    MOVE_WORK,
    REACH,
    add_usage,
    draw,
    earliest_fit,
    first_from,
    occupy_before,
    put_back,
    resort,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.annealing import Leg, RandomState, Requests, Usage

_REACH_LARGE = 8  # positions among the large requests within which those lie that are moved
_BEFORE = 40  # positions before a large request among which it finds some to push away
_SMALL = 24  # small requests that make room for large ones, less one


class Orders(NamedTuple):
    """An order, what it decodes to, and the best schedule met."""

    order: IntArray
    starts: IntArray
    best: IntArray
    usage: Usage  # zeros, up to a step that no schedule reaches
    costs: FloatArray  # of the order, negative before it is decoded, and of the best schedule


class Moves(NamedTuple):
    """A schedule, and the best one met."""

    starts: IntArray
    order: IntArray  # the requests by start
    position: IntArray  # of each request in the order
    large: IntArray  # large requests by start
    place: IntArray  # of each request among the large ones, or -1
    usage: Usage  # what all hold
    best: IntArray
    costs: FloatArray  # of both


@compiled
def anneal_orders(
    requests: Requests, state: Orders, backfill: bool, random: RandomState, leg: Leg
) -> float:
    """Anneal on orders until the work of a leg is done; return the work."""
    prompts, outputs, arrivals, weights, memory = requests
    order, starts, best, usage, costs = state
    count = len(order)
    longest = 0
    trial, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for rank in range(count):
        trial[rank], fresh[rank] = order[rank], starts[rank]
        if not backfill:
            longest = max(longest, outputs[rank])
    offline = arrivals[count - 1] == 0
    # Sums over all ranks from one on, of weights and of weighted starts.
    heavy, behind = np.empty(count + 1, dtype=np.float64), np.empty(count + 1, dtype=np.float64)
    heavy[count] = behind[count] = 0.0
    _sum_suffixes(weights, order, starts, heavy, behind)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        first, last = 0, count
        if costs[0] >= 0:
            first, last = _change(trial, random)
            if first == last:
                spent += 1.0
                continue
        # Decode from the first change on. By the prefix rule starts ascend, and only those still
        # running matter from before it.
        clock = lowest = starts[order[first - 1]] if first > 0 and not backfill else 0
        end, spent = occupy_before(
            prompts, outputs, order, starts, usage, first, clock, longest, spent
        )
        budget = math.inf
        if costs[0] >= 0:
            budget = costs[0] - temperature * math.log(1.0 - uniform(random))
        total = behind[0] - behind[first]
        rest = heavy[first]
        old_end, run_end, run_old_end, shift = end, end, end, 0
        met = count  # rank from which the old schedule, shifted, is met again
        for rank in range(first, count):
            request = trial[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            begin = arrivals[request] if backfill else max(clock, arrivals[request])
            start = earliest_fit(usage, memory, prompt, output, begin, len(usage) - 2 - output)
            add_usage(usage, prompt, output, start, 1)
            fresh[request] = start
            total += weight * start
            rest -= weight
            spent += 0.6 * (output + start - begin) + 0.5 * output + 6.0
            if not backfill:
                clock = start
                if rank > last:
                    now = start - starts[request]
                    if now != shift or rank == last + 1:
                        shift, run_end, run_old_end = now, end, old_end
                    same = start >= run_end and start - shift >= run_old_end
                    if same and (offline or shift == 0):
                        met = rank + 1
                        end = max(end, start + output)
                        break
                old_end = max(old_end, starts[order[rank]] + outputs[order[rank]])
            end = max(end, start + output)
            if total + rest * clock > budget:
                total = math.inf
                break
        usage[lowest : end + 1] = 0
        spent += MOVE_WORK
        if met < count:
            total += behind[met] + shift * heavy[met]
        if total > budget:
            if last < count:
                copy(order, trial, first, last + 1)
            continue
        copy(trial, order, first, min(last + 1, count))  # at first all, where last is count
        for rank in range(first, met):
            starts[order[rank]] = fresh[order[rank]]
        for rank in range(met, count):
            starts[order[rank]] += shift
        _sum_suffixes(weights, order, starts, heavy, behind)
        costs[0] = total
        if total < costs[1]:
            costs[1] = total
            copy(starts, best, 0, len(starts))
    return spent


@compiled
def _change(order: IntArray, random: RandomState) -> tuple[int, int]:
    """Exchange two requests or move one; return the first and the last rank changed."""
    count = len(order)
    one = int(uniform(random) * count)
    if uniform(random) < 0.5:
        reach = 1 + count // 8
        other = one + int(uniform(random) * (2 * reach + 1)) - reach
        other = min(max(other, 0), count - 1)
    else:
        other = int(uniform(random) * count)
    if one == other:
        return one, other
    moved = order[one]
    if uniform(random) < 0.5:
        order[one], order[other] = order[other], moved
    elif one < other:
        for rank in range(one, other):
            order[rank] = order[rank + 1]
        order[other] = moved
    else:
        for rank in range(one, other, -1):
            order[rank] = order[rank - 1]
        order[other] = moved
    return min(one, other), max(one, other)


@compiled
def _sum_suffixes(
    weights: FloatArray, order: IntArray, starts: IntArray, heavy: FloatArray, behind: FloatArray
) -> None:
    for rank in range(len(order) - 1, -1, -1):
        request = order[rank]
        heavy[rank] = heavy[rank + 1] + weights[request]
        behind[rank] = behind[rank + 1] + weights[request] * starts[request]


@compiled
def _take(
    order: IntArray,
    starts: IntArray,
    arrivals: IntArray,
    delay: int,
    taken: IntArray,
    begin: IntArray,
    random: RandomState,
) -> int:
    """Choose requests that start near each other, and from when each may; return their number."""
    centre = int(uniform(random) * len(order))
    low, high = max(0, centre - REACH), min(len(order) - 1, centre + REACH)
    number = draw(order, low, high, 1 + int(uniform(random) * MAX_TAKEN), taken, random)
    earliest = starts[taken[0]]
    for rank in range(1, number):
        earliest = min(earliest, starts[taken[rank]])
    for rank in range(number):
        begin[rank] = max(earliest, arrivals[taken[rank]])
        if delay and uniform(random) < 0.5:
            begin[rank] += int(uniform(random) * (delay + 1))
    return number


@compiled_apart
def _take_large(
    large: IntArray,
    starts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    span: int,
    taken: IntArray,
    begin: IntArray,
    random: RandomState,
) -> tuple[int, int]:
    """Choose large requests, and from when each may start; return their number and the least."""
    centre = int(uniform(random) * len(large))
    if uniform(random) < 0.6:
        low, high = max(0, centre - _REACH_LARGE), min(len(large) - 1, centre + _REACH_LARGE)
        number = draw(large, low, high, 1 + int(uniform(random) * (MAX_TAKEN - 1)), taken, random)
        earliest = starts[taken[0]]
        for rank in range(1, number):
            earliest = min(earliest, starts[taken[rank]])
        if uniform(random) < 0.3:
            earliest = max(0, earliest - int(uniform(random) * span))
    else:
        # One that waits comes earlier, and pushes away some that run then.
        request = large[centre]
        earliest = starts[request]
        earliest -= int(uniform(random) ** 2 * (earliest - arrivals[request]))
        taken[0], number = request, 1
        wanted = 1 + int(uniform(random) * 4)
        for _ in range(2 * MAX_TAKEN):
            other = large[max(0, centre - 1 - int(uniform(random) * _BEFORE))]
            runs = starts[other] < earliest + outputs[request]
            runs = runs and starts[other] + outputs[other] > earliest
            for rank in range(number):
                runs = runs and taken[rank] != other
            if runs and number < wanted:
                taken[number] = other
                number += 1
    for rank in range(number):
        begin[rank] = max(earliest, arrivals[taken[rank]])
        if uniform(random) < 0.2:
            begin[rank] += int(uniform(random) ** 2 * span)
    return number, earliest


@compiled_apart
def _take_small(
    order: IntArray,
    place: IntArray,
    starts: IntArray,
    arrivals: IntArray,
    earliest: int,
    taken: IntArray,
    begin: IntArray,
    number: int,
    random: RandomState,
) -> int:
    """Add small requests in the way of the large ones taken; return the number of all."""
    low = first_from(starts, order, earliest)
    small = 0
    first = uniform(random) < 0.5  # the small ones are put back before the large ones
    for at in range(low, min(len(order), low + int(uniform(random) * _SMALL))):
        request = order[at]
        if place[request] < 0:
            taken[number + small] = request
            begin[number + small] = max(earliest, arrivals[request])
            small += 1
    count = number + small
    if first and small:
        requests, steps = taken[:count].copy(), begin[:count].copy()
        for rank in range(count):
            taken[(rank + small) % count] = requests[rank]
            begin[(rank + small) % count] = steps[rank]
    return count


@compiled
def move_starts(
    requests: Requests, state: Moves, share: float, delay: int, random: RandomState, leg: Leg
) -> float:
    """Take requests out and put them back until the work of a leg is done; return the work."""
    prompts, outputs, arrivals, weights, memory = requests
    starts, order, position, large, place, usage, best, costs = state
    count = MAX_TAKEN + _SMALL
    taken, begin = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    old, new = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    span = 0
    for at in range(len(large)):
        span += outputs[large[at]]
    if len(large):
        span = int(span / len(large))
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        if share > 0 and uniform(random) < share:
            number, earliest = _take_large(
                large, starts, outputs, arrivals, span, taken, begin, random
            )
            if uniform(random) >= 0.5:
                number = _take_small(
                    order, place, starts, arrivals, earliest, taken, begin, number, random
                )
        else:
            number = _take(order, starts, arrivals, delay, taken, begin, random)
        # Put them back in this order; `rest` is the least the others can add.
        before, rest = 0.0, 0.0
        for rank in range(number):
            request = taken[rank]
            old[rank] = starts[request]
            before += weights[request] * old[rank]
            rest += weights[request] * begin[rank]
            add_usage(usage, prompts[request], outputs[request], old[rank], -1)
            spent += outputs[request]
        budget = before - temperature * math.log(1.0 - uniform(random))
        after = 0.0
        placed = ZERO
        for rank in range(number):
            request = taken[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            rest -= weight * begin[rank]
            latest = min(int((budget - after - rest) / weight), len(usage) - 2 - output)
            start = earliest_fit(usage, memory, prompt, output, begin[rank], latest)
            spent += output
            if start < 0:
                break
            new[rank] = start
            after += weight * start
            add_usage(usage, prompt, output, start, 1)
            placed += 1
        spent += MOVE_WORK
        if placed < number or after > budget:
            put_back(usage, prompts, outputs, taken, new, placed, old, number)
            continue
        if after > before and at_best:
            copy(starts, best, 0, len(starts))
            at_best = False
        costs[0] += after - before
        for rank in range(number):
            request = taken[rank]
            starts[request] = new[rank]
            resort(order, position, starts, request)
            if place[request] >= 0:
                resort(large, place, starts, request)
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            at_best = True
    if at_best:
        copy(starts, best, 0, len(starts))
    return spent
