"""Kernels of the search on a window: placing in order, and moves of starts at priced memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from optsched._internal.compiled import compiled
from optsched._internal.start_prices import price_of_start
from optsched.solvers.search.shared_kernels import (
    MAX_TAKEN,
    MOVE_WORK,
    REACH,
    add_usage,
    draw,
    earliest_fit,
    put_back,
    resort,
    room_for,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.start_prices import PriceSums
    from optsched.solvers.search.shared_kernels import Leg, RandomState, Taken, Usage

_ROUNDING = 1e-9  # sums of prices are no whole numbers


class PricedStarts(NamedTuple):
    """The starts of a window at priced memory, and the best ones met."""

    prompts: IntArray
    outputs: IntArray
    memory: int
    prices: PriceSums
    starts: IntArray
    order: IntArray  # the requests by start
    position: IntArray  # of each request in the order
    usage: Usage  # what all hold, those that run already included
    best: IntArray
    costs: FloatArray  # of both


@compiled
def priced_cost(prompts: IntArray, outputs: IntArray, prices: PriceSums, starts: IntArray) -> float:
    """Return the sum of all starts and of what their memory costs."""
    total = 0.0
    for request in range(len(starts)):
        start = starts[request]
        total += start + price_of_start(prompts[request], outputs[request], start, prices)
    return total


@compiled
def place_in_order(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    order: IntArray,
    prefix: bool,
    starts: IntArray,
) -> None:
    """Start each at its first feasible step, by the prefix rule none before the one before it."""
    clock = 0
    for request in order:
        output = outputs[request]
        latest = len(usage) - 2 - output
        start = earliest_fit(usage, memory, prompts[request], output, clock, latest)
        add_usage(usage, prompts[request], output, start, 1)
        starts[request] = start
        if prefix:
            clock = start


@compiled
def start_now(
    prompts: IntArray, outputs: IntArray, memory: int, usage: Usage, order: IntArray
) -> int:
    """Start requests at step 0 in order while they fit; return how many did."""
    count = 0
    for request in order:
        prompt, output = prompts[request], outputs[request]
        for step in range(1, min(output, len(usage) - 1) + 1):
            if usage[step] + prompt + step > memory:
                return count
        add_usage(usage, prompt, min(output, len(usage) - 1), 0, 1)
        count += 1
    return count


@compiled
def add_all(
    prompts: IntArray, outputs: IntArray, usage: Usage, starts: IntArray, sign: int
) -> None:
    """Add the memory of all to the usage, or with the sign -1 remove it."""
    for request in range(len(starts)):
        add_usage(usage, prompts[request], outputs[request], starts[request], sign)


@compiled
def move_priced_starts(window: PricedStarts, delay: int, random: RandomState, leg: Leg) -> None:
    """Take requests out and put them back, as `search_kernels.move_starts`, at priced memory."""
    starts, costs, usage = window.starts, window.costs, window.usage
    count = len(starts)
    taken = room_for(MAX_TAKEN)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        centre = int(uniform(random) * count)
        low, high = max(0, centre - REACH), min(count - 1, centre + REACH)
        wanted = 1 + int(uniform(random) * MAX_TAKEN)
        number = draw(window.order, low, high, wanted, taken.requests, random)
        before, work = _take_out(window, taken, number)
        spent += work + MOVE_WORK
        budget = before - temperature * math.log(1.0 - uniform(random))
        placed, after, work = _put_in(window, taken, number, budget, delay, random)
        spent += work
        if placed < number or after > budget:
            put_back(usage, window.prompts, window.outputs, taken, placed, number)
            continue
        costs[0] += after - before
        for rank in range(number):
            request = taken.requests[rank]
            starts[request] = taken.new[rank]
            resort(window.order, window.position, starts, request)
        if costs[0] < costs[1] - _ROUNDING * costs[1]:
            costs[1] = costs[0]
            window.best[:] = starts


@compiled
def _take_out(window: PricedStarts, taken: Taken, number: int) -> tuple[float, int]:
    """Remove what is taken; return its cost and the work."""
    before, work = 0.0, 0
    for rank in range(number):
        request = taken.requests[rank]
        prompt, output = window.prompts[request], window.outputs[request]
        start = window.starts[request]
        taken.old[rank] = start
        before += start + price_of_start(prompt, output, start, window.prices)
        add_usage(window.usage, prompt, output, start, -1)
        work += output
    return before, work


@compiled
def _put_in(
    window: PricedStarts,
    taken: Taken,
    number: int,
    budget: float,
    delay: int,
    random: RandomState,
) -> tuple[int, float, int]:
    """Start what is taken, one by one, while the budget allows; return number, cost and work."""
    usage = window.usage
    earliest = taken.old[:number].min()
    after, work = 0.0, 0
    for rank in range(number):
        request = taken.requests[rank]
        prompt, output = window.prompts[request], window.outputs[request]
        begin = earliest
        if delay and uniform(random) < 0.5:
            begin += int(uniform(random) * (delay + 1))
        # Prices are not negative: those not put back yet add at least the earliest start each.
        rest = float((number - rank - 1) * earliest)
        latest = min(int(budget - after - rest), len(usage) - 2 - output)
        start = earliest_fit(usage, window.memory, prompt, output, begin, latest)
        work += output
        if start < 0:
            return rank, after, work
        taken.new[rank] = start
        after += start + price_of_start(prompt, output, start, window.prices)
        add_usage(usage, prompt, output, start, 1)
    return number, after, work
