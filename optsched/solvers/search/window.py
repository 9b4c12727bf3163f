r"""Search for the starts of a window of waiting requests, beside those that run.

It minimises the sum of the starts and of the memory that they take at given prices, from the best
of three plans: the fallback's order by the prefix rule, the same order with every gap filled, and
the order of the last plan. Then a few requests at a time are taken out and put back, as in
`optsched.solvers.search.search`, which may let requests wait although they would fit.

Work is counted in token-steps touched, so that the plan depends on the seed alone, unless the time
is up before.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import copy
from optsched._internal.start_prices import price_of_start
from optsched.solvers.search.annealing import (
    MAX_TAKEN,
    MOVE_WORK,
    REACH,
    WORK_PER_SECOND,
    Cooling,
    add_usage,
    draw,
    earliest_fit,
    new_random,
    put_back,
    resort,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.start_prices import PriceSums
    from optsched.solvers.search.annealing import Leg, RandomState, Usage

_SHARE = 0.1  # of the time is work enough for: the rest is for whatever else the machine does
_CHUNKS = 20  # looks at the clock
_HOT, _COLD = 0.15, 0.01  # temperatures, in mean outputs


def search_window(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    prices: PriceSums,
    order: IntArray,
    hint: IntArray,
    *,
    seconds: float,
    seed: int = 0,
) -> tuple[IntArray, bool]:
    """Find starts of small cost, and whether the time was up before the work was done."""
    deadline = time.perf_counter() + seconds
    last = np.lexsort((np.argsort(order), hint))
    plans = [(order, True), (order, False)] + [(last, False)] * bool((hint >= 0).any())
    best, least = np.zeros(0, dtype=np.int64), np.inf
    for ordered, prefix in plans:
        starts = np.zeros(len(prompts), dtype=np.int64)
        place_in_order(prompts, outputs, memory, usage, ordered, prefix, starts)
        add_all(prompts, outputs, usage, starts, -1)
        cost = priced_cost(prompts, outputs, prices, starts)
        if cost < least:
            best, least = starts, cost
    if len(prompts) < 2 or least == 0:  # nothing to exchange, or all start now for nothing
        return best, False
    add_all(prompts, outputs, usage, best, 1)
    ranked = np.argsort(best, kind="stable")
    window = PricedStarts(
        prompts,
        outputs,
        memory,
        prices,
        starts=best.copy(),
        order=ranked,
        position=ranks_in(ranked),
        usage=usage,
        best=best,
        costs=np.array([least, least]),
    )
    random, longest = new_random(seed), int(outputs.max())
    cooling = Cooling(float(outputs.mean()), _HOT, _COLD)
    work = _SHARE * seconds * WORK_PER_SECOND / _CHUNKS
    for chunk in range(_CHUNKS):
        if time.perf_counter() >= deadline:
            return best, True
        leg = cooling.leg(work, chunk / _CHUNKS, (chunk + 1) / _CHUNKS)
        move_priced_starts(window, longest, random, leg)
    return best, False


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
    total, moment = prices
    cost = 0.0
    for request in range(len(starts)):
        start = starts[request]
        cost += start + price_of_start(prompts[request], outputs[request], start, total, moment)
    return cost


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
    prompts, outputs, memory = window.prompts, window.outputs, window.memory
    total, moment = window.prices
    starts, order, position = window.starts, window.order, window.position
    usage, best, costs = window.usage, window.best, window.costs
    count = len(starts)
    taken = np.empty(MAX_TAKEN, dtype=np.int64)
    old, new = np.empty(MAX_TAKEN, dtype=np.int64), np.empty(MAX_TAKEN, dtype=np.int64)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        centre = int(uniform(random) * count)
        low, high = max(0, centre - REACH), min(count - 1, centre + REACH)
        number = draw(order, low, high, 1 + int(uniform(random) * MAX_TAKEN), taken, random)
        before = 0.0
        earliest = starts[taken[0]]
        for rank in range(number):
            request = taken[rank]
            prompt, output = prompts[request], outputs[request]
            old[rank] = starts[request]
            earliest = min(earliest, old[rank])
            before += old[rank] + price_of_start(prompt, output, old[rank], total, moment)
            add_usage(usage, prompt, output, old[rank], -1)
            spent += output
        budget = before - temperature * math.log(1.0 - uniform(random))
        after = 0.0
        placed = ZERO
        for rank in range(number):
            request = taken[rank]
            prompt, output = prompts[request], outputs[request]
            begin = earliest
            if delay and uniform(random) < 0.5:
                begin += int(uniform(random) * (delay + 1))
            # Prices are not negative: those not put back yet add at least the earliest start each.
            rest = float((number - rank - 1) * earliest)
            latest = min(int(budget - after - rest), len(usage) - 2 - output)
            start = earliest_fit(usage, memory, prompt, output, begin, latest)
            spent += output
            if start < 0:
                break
            new[rank] = start
            after += start + price_of_start(prompt, output, start, total, moment)
            add_usage(usage, prompt, output, start, 1)
            placed += 1
        spent += MOVE_WORK
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
            copy(starts, best, 0, len(starts))
