"""Windows that slide over a schedule, each planned anew.

It minimises the sum of the starts and of the memory that they take at given prices, by moves on the
best of three plans: the fallback's order by the prefix rule, the same order with every gap filled,
and the order of the last plan. Work is counted as in `search`.

Inside a window memory is limited and free, behind it memory has prices. So a plan for a window is
judged as a node of `beam` is: by the latencies of what starts, the price of what it still holds
behind the window, and the least cost there of everything that waits. What it starts in the first
quarter is fixed, and the next window begins with the rest of it. Several plans are kept, each is
annealed several times, and little: the choice between plans gains more than longer annealing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import price_of_start
from optsched.search.annealing import (
    MAX_STEPS,
    MOVE_WORK,
    STEP_WORK,
    WORK_PER_SECOND,
    Cooling,
    Leg,
    Moves,
    SearchRequests,
    SearchWorkers,
    add_usage,
    earliest_fit,
    move_starts,
    new_random,
    temperature_after,
    uniform,
)
from optsched.search.beam_kernels import cost_from, least_from, tabulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.small_kernels import PriceSums
    from optsched.problem.schedule import Schedule
    from optsched.search.annealing import RandomState, Usage
    from optsched.search.beam_kernels import Large


_SHARE = 0.1  # of the time is work enough for: the rest is for whatever else the machine does
_CHUNKS = 20  # looks at the clock
_WINDOW_HOT, _WINDOW_COLD = 0.15, 0.01  # temperatures, in mean outputs


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
    requests = SearchRequests(
        prompts, outputs, none, np.ones(len(prompts)), memory, none + MAX_STEPS
    )
    places = SearchWorkers(np.array([memory]), none, np.ones((1, 1), dtype=np.bool_))
    state = Moves.of(best, none, usage, 1, least)
    random, longest = new_random(seed), int(outputs.max())
    cooling = Cooling(float(outputs.mean()), _WINDOW_HOT, _WINDOW_COLD)
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


PARTS = 4  # of a window, the first of which is fixed
_SPAN = 2.3  # mean outputs of large requests in a window
_CELLS = 50_000_000  # parts of windows times large requests at most
_EACH = 3  # annealings of each plan
_MOVES = 8  # in an annealing for each request that gains by a start in the window
_TAKEN = 8  # requests taken out at once at most
_WAITING = 0.5  # of those drawn that wait, the share that is taken
_IN_ORDER = 0.25  # of the moves, those that put the largest requests back first
_TOGETHER, _LATER = 0.7, 0.1  # of requests put back, those not before the others, and those delayed
# In mean outputs: how near requests start that are taken together, and the longest delay.
_NEAR, _DELAY = 1.0, 0.25
_HOT, _COLD = 0.2, 0.02  # temperatures in mean outputs


class Plans(NamedTuple):
    """Plans for the same window, one in each row."""

    usage: Usage  # tokens held at each step from the begin of the window on
    starts: IntArray  # of each large request, -1 while it waits
    fixed: FloatArray  # weighted latencies of what started before the window
    values: FloatArray  # what all requests cost that have arrived by the end of the window

    @classmethod
    def empty(cls, number: int, reach: int, count: int) -> Plans:
        """Make room for some plans."""
        usage = np.zeros((number, reach), dtype=np.int32)
        return cls(usage, np.full((number, count), -1), np.zeros(number), np.zeros(number))


def parts_of_windows(start: Schedule, large: BoolArray) -> IntArray:
    """Return where the parts of windows begin that slide over a schedule."""
    last = int(start.starts[large].max())
    mean = float(start.instance.outputs[large].mean())
    least = last * int(large.sum()) // _CELLS
    step = max(1, round(_SPAN * mean / PARTS), least)
    return np.arange(0, last + 2 * step, step)


def slide(
    large: Large, width: int, seed: int, over: Callable[[], bool], most: float
) -> tuple[IntArray | None, float]:
    """Return the starts of large requests, if there was time, and the work."""
    count, outputs = len(large.prompts), large.outputs
    large = large._replace(later=np.empty((len(large.begins), count), dtype=np.float32))
    step = int(large.begins[1])
    reach, scale = PARTS * step + int(outputs.max()) + 1, float(outputs.mean())
    kept, made = Plans.empty(width, reach, count), Plans.empty(width * _EACH, reach, count)
    background = np.append(large.background, np.zeros(reach, dtype=np.int32))
    kept.usage[0] = background[:reach]
    best = large.weights * (np.maximum(large.begins[-1], large.arrivals) + outputs - large.arrivals)
    tabulate(large, np.arange(count), 0, best)
    number, row, work, random = 1, 0, float(large.later.size), new_random(seed)
    while not ((kept.starts[0] >= 0) & (kept.starts[0] < row * step)).all():
        if over() or work >= most:
            return None, work
        begin = row * step
        arrived = int(np.searchsorted(large.arrivals, begin + PARTS * step))
        work += plan_window(large, kept, made, number, row, arrived, scale, random)
        # Equal plans have equal values.
        chosen = np.unique(made.values[: number * _EACH], return_index=True)[1][:width]
        number, row = len(chosen), row + 1
        kept.starts[:number], kept.fixed[:number] = made.starts[chosen], made.fixed[chosen]
        kept.usage[:number, :-step] = made.usage[chosen, step:]
        tail = background[begin + reach :][:step]
        kept.usage[:number, -step:] = 0
        kept.usage[:number, reach - step :][:, : len(tail)] = tail
    return kept.starts[0], work


@compiled_inside
def _anneal(
    large: Large,
    usage: Usage,
    starts: IntArray,
    begin: int,
    end: int,
    chosen: IntArray,
    later: FloatArray,
    least: FloatArray,
    scale: float,
    leg: Leg,
    random: RandomState,
) -> tuple[float, float]:
    """Move what starts in a window or waits; return what that adds to the cost, and the work."""
    # `later` is what a request costs that waits, and `least` what it costs as soon as possible.
    prompts, outputs, arrivals, weights = (
        large.prompts,
        large.outputs,
        large.arrivals,
        large.weights,
    )
    memory, count = large.memory, len(chosen)
    taken = np.empty(_TAKEN, dtype=np.int64)  # places in `chosen`
    old, new = np.empty(_TAKEN, dtype=np.int64), np.empty(_TAKEN, dtype=np.int64)
    added = spent = 0.0
    for move in range(int(leg.work)):
        temperature = temperature_after(leg, move)
        # Choose one, and others that start near it or wait.
        taken[0], number = int(uniform(random) * count), 1
        near = starts[chosen[taken[0]]]
        if near < 0:
            near = starts[chosen[int(uniform(random) * count)]]
        wanted = 1 + int(uniform(random) * _TAKEN)
        for _ in range(4 * wanted):
            place = int(uniform(random) * count)
            start = starts[chosen[place]]
            if start < 0:
                suits = uniform(random) < _WAITING
            else:
                suits = near < 0 or abs(start - near) <= _NEAR * scale
            for rank in range(number):
                suits = suits and taken[rank] != place
            if suits and number < wanted:
                taken[number] = place
                number += 1
        for rank in range(number - 1, 0, -1):
            swap = int(uniform(random) * (rank + 1))
            taken[rank], taken[swap] = taken[swap], taken[rank]
        if uniform(random) < _IN_ORDER:
            for rank in range(1, number):
                place, at = taken[rank], rank
                peak = prompts[chosen[place]] + outputs[chosen[place]]
                while at and prompts[chosen[taken[at - 1]]] + outputs[chosen[taken[at - 1]]] < peak:
                    taken[at] = taken[at - 1]
                    at -= 1
                taken[at] = place
        # Take them out.
        before = rest = 0.0
        first = end
        for rank in range(number):
            place = taken[rank]
            request = chosen[place]
            start = old[rank] = starts[request]
            rest += least[place]
            if start < 0:
                before += later[place]
                continue
            before += cost_from(large, request, start, end)
            add_usage(usage, prompts[request], outputs[request], start - begin, -1)
            first = min(first, start)
            spent += STEP_WORK * outputs[request]
        if first == end:
            first = begin + int(uniform(random) * (end - begin))
        # Put back those that gain by it; `rest` is the least that the others add.
        budget = before - temperature * math.log(1.0 - uniform(random))
        after = 0.0
        placed = 0
        while placed < number and after + rest <= budget:
            place = taken[placed]
            request = chosen[place]
            output = outputs[request]
            rest -= least[place]
            start = max(arrivals[request], begin)
            if uniform(random) < _TOGETHER:
                start = max(start, first)
            if uniform(random) < _LATER:
                start += int(uniform(random) * (_DELAY * scale + 1))
            most = min(later[place], budget - after - rest)
            last = min(end - 1, arrivals[request] - output + int(most / weights[request]))
            spent += STEP_WORK * output
            cost, new[placed] = later[place], -1
            if start <= last:
                at = earliest_fit(
                    usage, memory, prompts[request], output, start - begin, last - begin
                )
                if at >= 0:
                    spent += STEP_WORK * (begin + at - start)
                    cost = min(cost, cost_from(large, request, begin + at, end))
                    if cost < later[place]:
                        new[placed] = begin + at
                        add_usage(usage, prompts[request], output, at, 1)
            after += cost
            placed += 1
        spent += MOVE_WORK
        if after + rest <= budget:
            added += after - before
            for rank in range(number):
                starts[chosen[taken[rank]]] = new[rank]
            continue
        for rank in range(placed):
            request = chosen[taken[rank]]
            if new[rank] >= 0:
                add_usage(usage, prompts[request], outputs[request], new[rank] - begin, -1)
        for rank in range(number):
            request = chosen[taken[rank]]
            if old[rank] >= 0:
                add_usage(usage, prompts[request], outputs[request], old[rank] - begin, 1)
    return added, spent


@compiled_inside
def _prepare(
    large: Large,
    usage: Usage,
    starts: IntArray,
    row: int,
    arrived: int,
    chosen: IntArray,
    later: FloatArray,
    least: FloatArray,
) -> tuple[int, float]:
    """List requests that gain by a start in the window, start those that fit; return the cost."""
    prompts, outputs, arrivals = large.prompts, large.outputs, large.arrivals
    step = large.begins[1]
    begin, end = row * step, (row + PARTS) * step
    count, value = 0, 0.0
    gains = np.empty(arrived)
    for request in range(arrived):
        start, output = starts[request], outputs[request]
        if start >= 0 and start < begin:
            if start + output > end:
                latency = large.weights[request] * (start + output - arrivals[request])
                value += cost_from(large, request, start, end) - latency
            continue
        waits = least_from(large, request, row + PARTS, 0)
        soonest = cost_from(large, request, max(arrivals[request], begin), end)
        if soonest >= waits:
            value += waits
            if start >= 0:
                add_usage(usage, prompts[request], output, start - begin, -1)
                starts[request] = -1
            continue
        # In the order of what memory-time gains.
        gain = (waits - soonest) / (output * (prompts[request] + 0.5 * output))
        at = count
        while at > 0 and gains[at - 1] < gain:
            gains[at], chosen[at] = gains[at - 1], chosen[at - 1]
            later[at], least[at] = later[at - 1], least[at - 1]
            at -= 1
        gains[at], chosen[at], later[at], least[at] = gain, request, waits, soonest
        count += 1
    for place in range(count):
        request = chosen[place]
        if starts[request] < 0:
            prompt, output = prompts[request], outputs[request]
            first = max(arrivals[request] - begin, 0)
            at = earliest_fit(usage, large.memory, prompt, output, first, end - 1 - begin)
            if at >= 0 and cost_from(large, request, begin + at, end) < later[place]:
                add_usage(usage, prompt, output, at, 1)
                starts[request] = begin + at
        if starts[request] < 0:
            value += later[place]
        else:
            value += cost_from(large, request, starts[request], end)
    return count, value


@compiled
def plan_window(
    large: Large,
    kept: Plans,
    made: Plans,
    number: int,
    row: int,
    arrived: int,
    scale: float,
    random: RandomState,
) -> float:
    """Make plans for the window from each of those for the one before; return the work."""
    step = large.begins[1]
    begin, end = row * step, (row + PARTS) * step
    chosen = np.empty(arrived, dtype=np.int64)
    later, least = np.empty(arrived), np.empty(arrived)
    spent = 0.0
    for plan in range(number):
        usage, starts = kept.usage[plan], kept.starts[plan]
        count, value = _prepare(large, usage, starts, row, arrived, chosen, later, least)
        listed, waits, soonest = chosen[:count], later[:count], least[:count]
        for child in range(plan * _EACH, (plan + 1) * _EACH):
            own, ours = made.usage[child], made.starts[child]
            for at in range(len(usage)):
                own[at] = usage[at]
            for request in range(len(starts)):
                ours[request] = starts[request]
            leg = Leg(_MOVES * count, _HOT * scale, _COLD * scale)
            added, work = _anneal(
                large, own, ours, begin, end, listed, waits, soonest, scale, leg, random
            )
            spent += work + STEP_WORK * len(usage) + 2 * arrived
            fixed = kept.fixed[plan]
            made.values[child] = fixed + value + added
            for request in range(arrived):
                if begin <= ours[request] < begin + step:
                    fixed += large.weights[request] * (
                        ours[request] + large.outputs[request] - large.arrivals[request]
                    )
            made.fixed[child] = fixed
    return spent
