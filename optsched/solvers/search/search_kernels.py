"""Kernels of the search: annealing on orders, and moves on starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.solvers.search.shared_kernels import (
    MAX_TAKEN,
    MOVE_WORK,
    REACH,
    add_usage,
    draw,
    earliest_fit,
    first_from,
    put_back,
    resort,
    room_for,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.shared_kernels import Leg, RandomState, Requests, Taken, Usage

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


class _Window(NamedTuple):
    """Where a changed order differs, and what is known where its decoding begins."""

    first: int  # ranks that differ, the last one included
    last: int
    clock: int
    end: int  # last step in use
    total: float  # weighted starts before the window
    rest: float  # weights from the window on
    spent: float


@compiled
def anneal_orders(
    requests: Requests, state: Orders, backfill: bool, random: RandomState, leg: Leg
) -> float:
    """Anneal on orders until the work of a leg is done; return the work."""
    weights, order, starts, costs = requests.weights, state.order, state.starts, state.costs
    count = len(order)
    longest = 0 if backfill else requests.outputs.max()
    trial = order.copy()
    fresh = starts.copy()
    # Sums over all ranks from one on, of weights and of weighted starts.
    heavy, behind = np.zeros(count + 1), np.zeros(count + 1)
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
        clock = starts[order[first - 1]] if first > 0 and not backfill else 0
        end, spent = _occupy_before(requests, state, first, clock, longest, spent)
        budget = math.inf
        if costs[0] >= 0:
            budget = costs[0] - temperature * math.log(1.0 - uniform(random))
        window = _Window(first, last, clock, end, behind[0] - behind[first], heavy[first], spent)
        total, met, shift, end, spent = _decode(
            requests, state, trial, fresh, window, budget, backfill
        )
        state.usage[clock : end + 1] = 0
        spent += MOVE_WORK
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
            state.best[:] = starts
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
        order[one:other] = order[one + 1 : other + 1].copy()
        order[other] = moved
    else:
        order[other + 1 : one + 1] = order[other:one].copy()
        order[other] = moved
    return min(one, other), max(one, other)


@compiled
def _occupy_before(
    requests: Requests, state: Orders, first: int, clock: int, longest: int, spent: float
) -> tuple[int, float]:
    """Add what earlier requests hold after the clock; return the last step in use, and the work.

    `longest` is the largest output if starts ascend with the order, else 0.
    """
    end = clock
    for rank in range(first - 1, -1, -1):
        request = state.order[rank]
        start = state.starts[request]
        if longest and start + longest <= clock:
            break
        over = start + requests.outputs[request]
        if over > clock:
            held = requests.prompts[request] - start
            begin = max(clock, start)
            for step in range(begin + 1, over + 1):
                state.usage[step] += held + step
            spent += over - begin
            end = max(end, over)
    return end, spent


@compiled
def _decode(
    requests: Requests,
    state: Orders,
    trial: IntArray,
    fresh: IntArray,
    window: _Window,
    budget: float,
    backfill: bool,
) -> tuple[float, int, int, int, float]:
    """Decode a changed order until the old schedule is met again or costs too much.

    Returns the cost before that, the rank from which the old schedule is met, by how much later,
    the last step in use, and the work.
    """
    outputs, order, starts, usage = requests.outputs, state.order, state.starts, state.usage
    offline = requests.arrivals[-1] == 0
    clock, end, total, rest, spent = (
        window.clock,
        window.end,
        window.total,
        window.rest,
        window.spent,
    )
    old_end, run_end, run_old_end, shift = end, end, end, 0
    for rank in range(window.first, len(trial)):
        request = trial[rank]
        prompt, output = requests.prompts[request], outputs[request]
        weight, arrival = requests.weights[request], requests.arrivals[request]
        begin = arrival if backfill else max(clock, arrival)
        latest = len(usage) - 2 - output
        start = earliest_fit(usage, requests.memory, prompt, output, begin, latest)
        add_usage(usage, prompt, output, start, 1)
        fresh[request] = start
        total += weight * start
        rest -= weight
        spent += 0.6 * (output + start - begin) + 0.5 * output + 6.0
        if not backfill:
            clock = start
            if rank > window.last:
                now = start - starts[request]
                if now != shift or rank == window.last + 1:
                    shift, run_end, run_old_end = now, end, old_end
                met = start >= run_end and start - shift >= run_old_end
                if met and (offline or shift == 0):
                    return total, rank + 1, shift, max(end, start + output), spent
            old_end = max(old_end, starts[order[rank]] + outputs[order[rank]])
        end = max(end, start + output)
        if total + rest * clock > budget:
            return math.inf, len(trial), shift, end, spent
    return total, len(trial), shift, end, spent


@compiled
def _sum_suffixes(
    weights: FloatArray, order: IntArray, starts: IntArray, heavy: FloatArray, behind: FloatArray
) -> None:
    for rank in range(len(order) - 1, -1, -1):
        request = order[rank]
        heavy[rank] = heavy[rank + 1] + weights[request]
        behind[rank] = behind[rank + 1] + weights[request] * starts[request]


@compiled
def _take(requests: Requests, state: Moves, delay: int, taken: Taken, random: RandomState) -> int:
    """Choose requests that start near each other, and from when each may; return their number."""
    order, starts = state.order, state.starts
    centre = int(uniform(random) * len(order))
    low, high = max(0, centre - REACH), min(len(order) - 1, centre + REACH)
    wanted = 1 + int(uniform(random) * MAX_TAKEN)
    number = draw(order, low, high, wanted, taken.requests, random)
    earliest = starts[taken.requests[:number]].min()
    for rank in range(number):
        taken.begin[rank] = max(earliest, requests.arrivals[taken.requests[rank]])
        if delay and uniform(random) < 0.5:
            taken.begin[rank] += int(uniform(random) * (delay + 1))
    return number


@compiled
def _take_large(
    requests: Requests, state: Moves, span: int, taken: Taken, random: RandomState
) -> int:
    """Choose large requests, and small ones in their way; return the number of all."""
    arrivals, starts, large = requests.arrivals, state.starts, state.large
    centre = int(uniform(random) * len(large))
    if uniform(random) < 0.6:
        low, high = max(0, centre - _REACH_LARGE), min(len(large) - 1, centre + _REACH_LARGE)
        wanted = 1 + int(uniform(random) * (MAX_TAKEN - 1))
        number = draw(large, low, high, wanted, taken.requests, random)
        earliest = starts[taken.requests[:number]].min()
        if uniform(random) < 0.3:
            earliest = max(0, earliest - int(uniform(random) * span))
    else:
        # One that waits comes earlier, and pushes away some that run then.
        request = large[centre]
        earliest = starts[request]
        earliest -= int(uniform(random) ** 2 * (earliest - arrivals[request]))
        number = _take_running(requests, state, centre, earliest, taken.requests, random)
    for rank in range(number):
        taken.begin[rank] = max(earliest, arrivals[taken.requests[rank]])
        if uniform(random) < 0.2:
            taken.begin[rank] += int(uniform(random) ** 2 * span)
    if uniform(random) < 0.5:
        return number
    small = _take_small(requests, state, earliest, taken, number, random)
    return number + small


@compiled
def _take_running(
    requests: Requests,
    state: Moves,
    centre: int,
    earliest: int,
    taken: IntArray,
    random: RandomState,
) -> int:
    """Choose a large request and others before it that run where it would; return the number."""
    outputs, starts, large = requests.outputs, state.starts, state.large
    request = large[centre]
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
    return number


@compiled
def _take_small(
    requests: Requests, state: Moves, earliest: int, taken: Taken, number: int, random: RandomState
) -> int:
    """Add small requests that start from a step on to those taken; return how many."""
    order = state.order
    low = first_from(state.starts, order, earliest)
    small = 0
    first = uniform(random) < 0.5  # the small ones are put back before the large ones
    for at in range(low, min(len(order), low + int(uniform(random) * _SMALL))):
        request = order[at]
        if state.place[request] < 0:
            taken.requests[number + small] = request
            taken.begin[number + small] = max(earliest, requests.arrivals[request])
            small += 1
    if first and small:
        both = number + small
        taken.requests[:both] = np.roll(taken.requests[:both], small)
        taken.begin[:both] = np.roll(taken.begin[:both], small)
    return small


@compiled
def move_starts(
    requests: Requests, state: Moves, share: float, delay: int, random: RandomState, leg: Leg
) -> float:
    """Take requests out and put them back until the work of a leg is done; return the work.

    A share of the moves is about the large requests.
    """
    starts, costs = state.starts, state.costs
    taken = room_for(MAX_TAKEN + _SMALL)
    span = int(requests.outputs[state.large].mean()) if len(state.large) else 0
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        if share > 0 and uniform(random) < share:
            number = _take_large(requests, state, span, taken, random)
        else:
            number = _take(requests, state, delay, taken, random)
        before, rest, work = _take_out(requests, state, taken, number)
        spent += work + MOVE_WORK
        budget = before - temperature * math.log(1.0 - uniform(random))
        placed, after, work = _put_in(requests, state.usage, taken, number, budget, rest)
        spent += work
        if placed < number or after > budget:
            put_back(state.usage, requests.prompts, requests.outputs, taken, placed, number)
            continue
        if after > before and at_best:
            state.best[:] = starts
            at_best = False
        costs[0] += after - before
        for rank in range(number):
            request = taken.requests[rank]
            starts[request] = taken.new[rank]
            resort(state.order, state.position, starts, request)
            if state.place[request] >= 0:
                resort(state.large, state.place, starts, request)
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            at_best = True
    if at_best:
        state.best[:] = starts
    return spent


@compiled
def _take_out(
    requests: Requests, state: Moves, taken: Taken, number: int
) -> tuple[float, float, int]:
    """Remove what is taken; return its cost, the least that it can cost again, and the work."""
    before, rest, work = 0.0, 0.0, 0
    for rank in range(number):
        request = taken.requests[rank]
        output, start = requests.outputs[request], state.starts[request]
        taken.old[rank] = start
        before += requests.weights[request] * start
        rest += requests.weights[request] * taken.begin[rank]
        add_usage(state.usage, requests.prompts[request], output, start, -1)
        work += output
    return before, rest, work


@compiled
def _put_in(
    requests: Requests, usage: Usage, taken: Taken, number: int, budget: float, rest: float
) -> tuple[int, float, int]:
    """Start what is taken, one by one, while the budget allows; return number, cost and work."""
    after, work = 0.0, 0
    for rank in range(number):
        request = taken.requests[rank]
        prompt, output = requests.prompts[request], requests.outputs[request]
        weight = requests.weights[request]
        rest -= weight * taken.begin[rank]
        latest = min(int((budget - after - rest) / weight), len(usage) - 2 - output)
        start = earliest_fit(usage, requests.memory, prompt, output, taken.begin[rank], latest)
        work += output
        if start < 0:
            return rank, after, work
        taken.new[rank] = start
        after += weight * start
        add_usage(usage, prompt, output, start, 1)
    return number, after, work
