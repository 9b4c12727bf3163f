"""Kernels of the search on a window: placing in order, and moves of starts at priced memory."""

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
_ROUNDING = 1e-9  # sums of prices are no whole numbers


@compiled
def price_of(prompt: int, output: int, start: int, first: FloatArray, second: FloatArray) -> float:
    """Give what the memory of a request costs; steps beyond the last priced one are free."""
    last = len(first) - 1
    if start >= last:
        return 0.0
    end = min(start + output, last)
    paid: float = (prompt - start) * (first[end] - first[start]) + second[end] - second[start]
    return paid


@compiled
def priced_cost(
    prompts: IntArray, outputs: IntArray, first: FloatArray, second: FloatArray, starts: IntArray
) -> float:
    """Add up all starts and what their memory costs."""
    total = 0.0
    for request in range(len(starts)):
        start = starts[request]
        total += start + price_of(prompts[request], outputs[request], start, first, second)
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
    """Start requests at step 0 in order while they fit; give how many did."""
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
    """Take the memory of all, or with the sign -1 give it back."""
    for request in range(len(starts)):
        add_usage(usage, prompts[request], outputs[request], starts[request], sign)


@compiled
def move_priced_starts(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    first: FloatArray,
    second: FloatArray,
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

    As `search_kernels.move_starts`, at priced memory and beside whoever runs: `usage` is what all
    hold, `costs` the cost of `starts` and of `best`.
    """
    count = len(starts)
    taken = np.empty(_MOST, dtype=np.int64)
    old = np.empty(_MOST, dtype=np.int64)
    new = np.empty(_MOST, dtype=np.int64)
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        centre = int(uniform(random) * count)
        low, high = max(0, centre - _REACH), min(count - 1, centre + _REACH)
        number = draw(order, low, high, 1 + int(uniform(random) * _MOST), taken, random)
        before = 0.0
        soonest = starts[taken[0]]
        for rank in range(number):
            request = taken[rank]
            prompt, output = prompts[request], outputs[request]
            old[rank] = starts[request]
            soonest = min(soonest, old[rank])
            before += old[rank] + price_of(prompt, output, old[rank], first, second)
            add_usage(usage, prompt, output, old[rank], -1)
            spent += output
        budget = before - temperature * math.log(1.0 - uniform(random))
        after = 0.0
        placed = 0
        for rank in range(number):
            request = taken[rank]
            prompt, output = prompts[request], outputs[request]
            begin = soonest
            if delay and uniform(random) < 0.5:
                begin += int(uniform(random) * (delay + 1))
            # Prices are not negative: those not put back yet add at least the soonest start each.
            rest = float((number - rank - 1) * soonest)
            latest = min(int(budget - after - rest), len(usage) - 2 - output)
            start = earliest_fit(usage, memory, prompt, output, begin, latest)
            spent += output
            if start < 0:
                break
            new[rank] = start
            after += start + price_of(prompt, output, start, first, second)
            add_usage(usage, prompt, output, start, 1)
            placed += 1
        spent += _MOVE_COST
        if placed < number or after > budget:
            put_back(usage, prompts, outputs, taken, new, placed, old, number)
            continue
        costs[0] += after - before
        for rank in range(number):
            request = taken[rank]
            starts[request] = new[rank]
            resort(order, position, starts, request)
        if costs[0] < costs[1] - _ROUNDING * costs[1]:
            costs[1] = costs[0]
            best[:] = starts
    return spent
