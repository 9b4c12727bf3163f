"""Kernels of the search: annealing on orders, and moves on starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.search.shared_kernels import (
    add_usage,
    draw,
    earliest_fit,
    put_back,
    resort,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.shared_kernels import RandomState, Usage

_MOST = 6  # requests taken out at once
_REACH = 15  # positions by start within which they lie
_MOVE_COST = 150.0  # work of a move beyond its token-steps
_REACH_LARGE = 8  # positions among the large requests within which those lie that are moved
_BEFORE = 40  # positions before a large request among which it finds some to push away
_SMALL = 24  # small requests that make room for large ones, less one


@compiled
def anneal_orders(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: FloatArray,
    memory: int,
    backfill: bool,
    order: IntArray,
    starts: IntArray,
    best: IntArray,
    usage: Usage,
    costs: FloatArray,
    random: RandomState,
    work: float,
    hot: float,
    cold: float,
) -> float:
    """Anneal on orders until so much work is done; give the work.

    `costs` holds the cost of the current order, negative before it is decoded, and of the best.
    """
    count = len(order)
    longest = outputs.max()
    offline = arrivals.max() == 0
    trial = order.copy()
    fresh = starts.copy()
    # Sums over all ranks from one on, of weights and of weighted starts.
    heavy, behind = np.zeros(count + 1), np.zeros(count + 1)
    _sum_suffixes(weights, order, starts, heavy, behind)
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        first, last = 0, count
        if costs[0] >= 0:
            one = int(uniform(random) * count)
            if uniform(random) < 0.5:
                reach = 1 + count // 8
                other = one + int(uniform(random) * (2 * reach + 1)) - reach
                other = min(max(other, 0), count - 1)
            else:
                other = int(uniform(random) * count)
            if one == other:
                spent += 1.0
                continue
            first, last = min(one, other), max(one, other)
            moved = trial[one]
            if uniform(random) < 0.5:
                trial[one], trial[other] = trial[other], moved
            elif one < other:
                trial[one:other] = trial[one + 1 : other + 1].copy()
                trial[other] = moved
            else:
                trial[other + 1 : one + 1] = trial[other:one].copy()
                trial[other] = moved
        # Decode from the first change on. By the prefix rule starts ascend, and only those still
        # running matter from before it.
        clock = starts[order[first - 1]] if first > 0 and not backfill else 0
        end = clock
        for rank in range(first - 1, -1, -1):
            request = order[rank]
            start = starts[request]
            if not backfill and start + longest <= clock:
                break
            over = start + outputs[request]
            if over > clock:
                held = prompts[request] - start
                begin = max(clock, start)
                for step in range(begin + 1, over + 1):
                    usage[step] += held + step
                spent += over - begin
                end = max(end, over)
        budget = math.inf
        if costs[0] >= 0:
            budget = costs[0] - temperature * math.log(1.0 - uniform(random))
        lowest = clock
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
                    if (
                        start >= run_end
                        and start - shift >= run_old_end
                        and (offline or shift == 0)
                    ):
                        met = rank + 1
                        end = max(end, start + output)
                        break
                old_end = max(old_end, starts[order[rank]] + outputs[order[rank]])
            end = max(end, start + output)
            if total + rest * clock > budget:
                total = math.inf
                break
        usage[lowest : end + 1] = 0
        spent += _MOVE_COST
        if met < count:
            total += behind[met] + shift * heavy[met]
        if total > budget:
            if last < count:
                trial[first : last + 1] = order[first : last + 1]
            continue
        order[first : last + 1] = trial[first : last + 1]
        for rank in range(first, met):
            starts[order[rank]] = fresh[order[rank]]
        for rank in range(met, count):
            starts[order[rank]] += shift
        _sum_suffixes(weights, order, starts, heavy, behind)
        costs[0] = total
        if total < costs[1]:
            costs[1] = total
            best[:] = starts
    return spent


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
    """Choose requests that start near each other, and from when each may; give their number."""
    centre = int(uniform(random) * len(order))
    low, high = max(0, centre - _REACH), min(len(order) - 1, centre + _REACH)
    number = draw(order, low, high, 1 + int(uniform(random) * _MOST), taken, random)
    earliest = starts[taken[:number]].min()
    for rank in range(number):
        begin[rank] = max(earliest, arrivals[taken[rank]])
        if delay and uniform(random) < 0.5:
            begin[rank] += int(uniform(random) * (delay + 1))
    return number


@compiled
def _take_large(
    large: IntArray,
    place: IntArray,
    order: IntArray,
    starts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    span: int,
    taken: IntArray,
    begin: IntArray,
    random: RandomState,
) -> int:
    """Choose large requests, and small ones in their way; give the number of all."""
    centre = int(uniform(random) * len(large))
    if uniform(random) < 0.6:
        low, high = max(0, centre - _REACH_LARGE), min(len(large) - 1, centre + _REACH_LARGE)
        number = draw(large, low, high, 1 + int(uniform(random) * (_MOST - 1)), taken, random)
        earliest = starts[taken[:number]].min()
        if uniform(random) < 0.3:
            earliest = max(0, earliest - int(uniform(random) * span))
    else:
        # One that waits comes earlier, and pushes away some that run then.
        request = large[centre]
        earliest = starts[request]
        earliest -= int(uniform(random) ** 2 * (earliest - arrivals[request]))
        taken[0], number = request, 1
        wanted = 1 + int(uniform(random) * 4)
        for _ in range(2 * _MOST):
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
    if uniform(random) < 0.5:
        return number
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if starts[order[middle]] < earliest:
            low = middle + 1
        else:
            high = middle
    small = 0
    first = uniform(random) < 0.5  # the small ones are put back before the large ones
    for at in range(low, min(len(order), low + int(uniform(random) * _SMALL))):
        request = order[at]
        if place[request] < 0:
            taken[number + small] = request
            begin[number + small] = max(earliest, arrivals[request])
            small += 1
    if first and small:
        taken[: number + small] = np.roll(taken[: number + small], small)
        begin[: number + small] = np.roll(begin[: number + small], small)
    return number + small


@compiled
def move_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: FloatArray,
    memory: int,
    starts: IntArray,
    order: IntArray,
    position: IntArray,
    large: IntArray,
    place: IntArray,
    share: float,
    usage: Usage,
    best: IntArray,
    costs: FloatArray,
    random: RandomState,
    work: float,
    hot: float,
    cold: float,
    delay: int,
) -> float:
    """Take requests out and put them back until so much work is done; give the work.

    `order` and `position` are the requests by start and their ranks, `large` and `place` the
    same of the large ones (-1 for others), which a share of the moves is about; `usage` is what all
    hold.
    """
    most = _MOST + _SMALL
    taken = np.empty(most, dtype=np.int64)
    begin = np.empty(most, dtype=np.int64)
    old = np.empty(most, dtype=np.int64)
    new = np.empty(most, dtype=np.int64)
    span = int(outputs[large].mean()) if len(large) else 0
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        if share > 0 and uniform(random) < share:
            number = _take_large(
                large, place, order, starts, outputs, arrivals, span, taken, begin, random
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
        placed = 0
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
        spent += _MOVE_COST
        if placed < number or after > budget:
            put_back(usage, prompts, outputs, taken, new, placed, old, number)
            continue
        if after > before and at_best:
            best[:] = starts
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
        best[:] = starts
    return spent
