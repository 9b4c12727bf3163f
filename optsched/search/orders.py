"""Annealing on orders that are decoded to schedules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ONE, ZERO, compiled
from optsched._internal.small_kernels import copy
from optsched.search.annealing import (
    MOVE_WORK,
    STEP_WORK,
    add_usage,
    earliest_fit,
    occupy_before,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.search.annealing import Leg, RandomState, Requests, Usage

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
        first, last = ZERO, count
        if costs[0] >= 0:
            first, last = _change(trial, random)
            if first == last:
                spent += 1.0
                continue
        # Decode from the first change on. By the prefix rule starts ascend, and only those still
        # running matter from before it.
        clock = lowest = starts[order[first - 1]] if first > 0 and not backfill else ZERO
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
            add_usage(usage, prompt, output, start, ONE)
            fresh[request] = start
            total += weight * start
            rest -= weight
            spent += STEP_WORK * (1.1 * output + 0.6 * (start - begin)) + 6.0
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
