"""Kernels of the search: annealing on orders, and moves on starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.instance import FloatArray, IntArray

    Usage = npt.NDArray[np.int32]
    RandomState = npt.NDArray[np.uint64]

_MOST = 6  # requests taken out at once
_REACH = 15  # positions by start within which they lie
_MOVE_COST = 150.0  # work of a move beyond its token-steps


@compiled
def _uniform(random: RandomState) -> float:
    """Draw from [0, 1) by xorshift64*: a state of its own makes runs repeatable."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled
def _add(usage: Usage, prompt: int, output: int, start: int, sign: int) -> None:
    held = prompt - start
    for step in range(start + 1, start + output + 1):
        usage[step] += sign * (held + step)


@compiled
def _earliest(usage: Usage, memory: int, prompt: int, output: int, start: int, latest: int) -> int:
    """Find the first feasible start from `start` to `latest`, or -1 (see simulate.unit)."""
    shift = prompt - memory
    seen = start
    while start <= latest:
        jump = start
        for step in range(max(seen, start) + 1, start + output + 1):
            jump = max(jump, min(usage[step] + shift + step, step))
        if jump == start:
            return start
        seen = start + output
        start = jump
    return -1


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
            one = int(_uniform(random) * count)
            if _uniform(random) < 0.5:
                reach = 1 + count // 8
                other = one + int(_uniform(random) * (2 * reach + 1)) - reach
                other = min(max(other, 0), count - 1)
            else:
                other = int(_uniform(random) * count)
            if one == other:
                spent += 1.0
                continue
            first, last = min(one, other), max(one, other)
            moved = trial[one]
            if _uniform(random) < 0.5:
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
            budget = costs[0] - temperature * math.log(1.0 - _uniform(random))
        lowest = clock
        total = behind[0] - behind[first]
        rest = heavy[first]
        old_end, run_end, run_old_end, shift = end, end, end, 0
        met = count  # rank from which the old schedule, shifted, is met again
        for rank in range(first, count):
            request = trial[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            begin = arrivals[request] if backfill else max(clock, arrivals[request])
            start = _earliest(usage, memory, prompt, output, begin, len(usage) - 2 - output)
            _add(usage, prompt, output, start, 1)
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
def move_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: FloatArray,
    memory: int,
    starts: IntArray,
    order: IntArray,
    position: IntArray,
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

    `order` and `position` are the requests by start and their ranks, `usage` what all hold.
    """
    count = len(order)
    taken = np.empty(_MOST, dtype=np.int64)
    old = np.empty(_MOST, dtype=np.int64)
    new = np.empty(_MOST, dtype=np.int64)
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        centre = int(_uniform(random) * count)
        low, high = max(0, centre - _REACH), min(count - 1, centre + _REACH)
        wanted = min(1 + int(_uniform(random) * _MOST), high - low + 1)
        number = 0
        while number < wanted:
            request = order[low + int(_uniform(random) * (high - low + 1))]
            fresh = True
            for rank in range(number):
                fresh = fresh and taken[rank] != request
            if fresh:
                taken[number] = request
                number += 1
        before = 0.0
        earliest = starts[taken[0]]
        for rank in range(number):
            request = taken[rank]
            old[rank] = starts[request]
            earliest = min(earliest, old[rank])
            before += weights[request] * old[rank]
            _add(usage, prompts[request], outputs[request], old[rank], -1)
            spent += outputs[request]
        # Drawn in random order already. Put them back; `rest` is the least the others can add.
        rest = 0.0
        for rank in range(number):
            rest += weights[taken[rank]] * max(earliest, arrivals[taken[rank]])
        budget = before - temperature * math.log(1.0 - _uniform(random))
        after = 0.0
        placed = 0
        for rank in range(number):
            request = taken[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            begin = max(earliest, arrivals[request])
            rest -= weight * begin
            if delay and _uniform(random) < 0.5:
                begin += int(_uniform(random) * (delay + 1))
            latest = min(int((budget - after - rest) / weight), len(usage) - 2 - output)
            start = _earliest(usage, memory, prompt, output, begin, latest)
            spent += output
            if start < 0:
                break
            new[rank] = start
            after += weight * start
            _add(usage, prompt, output, start, 1)
            placed += 1
        spent += _MOVE_COST
        if placed < number or after > budget:
            for rank in range(placed):
                request = taken[rank]
                _add(usage, prompts[request], outputs[request], new[rank], -1)
            for rank in range(number):
                request = taken[rank]
                _add(usage, prompts[request], outputs[request], old[rank], 1)
            continue
        if after > before and at_best:
            best[:] = starts
            at_best = False
        costs[0] += after - before
        for rank in range(number):
            request = taken[rank]
            starts[request] = new[rank]
            place = position[request]
            while place > 0 and starts[order[place - 1]] > new[rank]:
                order[place] = order[place - 1]
                position[order[place]] = place
                place -= 1
            while place < count - 1 and starts[order[place + 1]] < new[rank]:
                order[place] = order[place + 1]
                position[order[place]] = place
                place += 1
            order[place] = request
            position[request] = place
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            at_best = True
    if at_best:
        best[:] = starts
    return spent
