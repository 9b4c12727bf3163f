"""Search for the starts of a window of waiting requests, beside those that run.

It minimises the sum of the starts and of the memory that they take at given prices, by moves on the
best of three plans: the fallback's order by the prefix rule, the same order with every gap filled,
and the order of the last plan. Work is counted as in `search`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.loading import stopwatch
from optsched._internal.start_prices import price_of_start
from optsched.search.annealing import (
    WORK_PER_SECOND,
    Cooling,
    Requests,
    add_usage,
    earliest_fit,
    new_random,
)
from optsched.search.moves import Moves, Places, move_starts

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched._internal.start_prices import PriceSums
    from optsched.search.annealing import Usage

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
    deadline = stopwatch() + seconds
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
    none = np.zeros(len(prompts), dtype=np.int64)
    requests = Requests(prompts, outputs, none, np.ones(len(prompts)), memory)
    places = Places(np.array([memory]), none, np.ones((1, 1), dtype=np.bool_))
    state = Moves.of(best, none, usage, 1, least)
    random, longest = new_random(seed), int(outputs.max())
    cooling = Cooling(float(outputs.mean()), _HOT, _COLD)
    work = _SHARE * seconds * WORK_PER_SECOND / _CHUNKS
    for chunk in range(_CHUNKS):
        if stopwatch() >= deadline:
            return state.best, True
        leg = cooling.leg(work, chunk / _CHUNKS, (chunk + 1) / _CHUNKS)
        move_starts(requests, places, prices, state, 0.0, longest, random, leg)
    return state.best, False


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
def admit_now(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    order: IntArray,
    ratio: float,
    length: int,
) -> IntArray:
    """Start requests at step 0 by the window rule (`optsched.admission`); return which, in order.

    The usage reaches beyond the longest output, and those that start are added to it.
    """
    started = np.empty(len(order), dtype=np.int64)
    count = passed = 0
    most = 0.0
    for request in order:
        prompt, output = prompts[request], outputs[request]
        area = prompt * output + output * (output + 1) // 2
        if passed == 0:
            most = ratio * area
        step = 1
        while area <= most and step <= output and usage[step] + prompt + step <= memory:
            step += 1
        if step > output:
            add_usage(usage, prompt, output, 0, 1)
            started[count] = request
            count += 1
            continue
        passed += 1
        if passed == length:
            break
    return started[:count].copy()


@compiled
def add_all(
    prompts: IntArray, outputs: IntArray, usage: Usage, starts: IntArray, sign: int
) -> None:
    """Add the memory of all to the usage, or with the sign -1 remove it."""
    for request in range(len(starts)):
        add_usage(usage, prompts[request], outputs[request], starts[request], sign)
