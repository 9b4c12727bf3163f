"""Kernels of the beam, and windows that slide over a schedule, each planned anew.

A plan for a window is judged as a node of `beam` is. What it starts in the first quarter is fixed,
and the next window begins with the rest of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import copy, pop_by_key, price_of_start, sink_by_key
from optsched.search.annealing import (
    MOVE_WORK,
    STEP_WORK,
    Leg,
    add_usage,
    earliest_fit,
    is_new,
    new_random,
    shuffle,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.problem.schedule import Schedule
    from optsched.search.annealing import RandomState, Usage

    Hashes = npt.NDArray[np.uint64]
    Singles = npt.NDArray[np.float32]
    Flags = npt.NDArray[np.uint8]

# Places in `counts`: active requests, those not yet active, the slice, the nodes, the length of the
# log, whether the cheapest node has started everything, the step from which on the buffers hold
# usage, and the steps of it that a node knows.
ACTIVE, WAITING, SLICE, NODES, LOGGED, DONE, BASE, REACH = range(8)

_LOOKS = 8  # steps of a slice at which starts are priced at most
_FINE = 64  # and of an output


class Large(NamedTuple):
    """Large requests by arrival, what holds memory beside them, and prices of memory."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    weights: FloatArray
    memory: int
    background: Usage  # tokens held at each step by all that is not large
    total: FloatArray  # sums of prices, and of step times price
    moment: FloatArray
    later: Singles  # least cost of a start from each slice of a chunk on, shape (slices + 1, n)
    begins: IntArray  # of the slices, and the end of the last; later ones are as long as that
    keys: Hashes  # a random number for each request


@compiled_inside
def begin_of(begins: IntArray, row: int) -> int:
    """Return the step at which a slice begins."""
    last = len(begins) - 1
    if row <= last:
        return int(begins[row])
    return int(begins[last] + (row - last) * (begins[last] - begins[last - 1]))


@compiled_inside
def cost_from(large: Large, request: int, start: int, paid: int) -> float:
    """Return the weighted latency, and the price of what is held after step `paid`."""
    output, total, moment = large.outputs[request], large.total, large.moment
    latency = large.weights[request] * (start + output - large.arrivals[request])
    last = len(total) - 1
    end, begin = min(start + output, last), min(max(start, paid), last)
    if end <= begin:
        return float(latency)
    held = (large.prompts[request] - start) * (total[end] - total[begin])
    return float(latency + held + moment[end] - moment[begin])


@compiled
def tabulate(large: Large, requests: IntArray, chunk: int, best: FloatArray) -> None:
    """Tabulate the least costs of starts of some requests from each slice of a chunk on."""
    # `best` holds those from the end of the chunk on, and afterwards those from its begin on.
    prompts, outputs, arrivals, weights, _, _, total, moment, later, begins, _ = large
    rows = len(later) - 1
    first = chunk * rows
    for request in requests:
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight, least = weights[request], best[request]
        later[rows, request] = least
        for row in range(min(first + rows, len(begins) - 1) - 1, first - 1, -1):
            begin, end = begins[row], begins[row + 1]
            if end > arrival:
                stride = max(1, max((end - begin) // _LOOKS, output // _FINE))
                for step in range(begin, end, stride):
                    start = max(step, arrival)
                    cost = weight * (start + output - arrival)
                    cost += price_of_start(prompt, output, start, total, moment)
                    least = min(least, cost)
            later[row - first, request] = least
        best[request] = least


@compiled_inside
def least_from(large: Large, request: int, row: int, chunk: int) -> float:
    """Return the least cost of a start from a slice of a chunk on, or from its end."""
    if row < len(large.begins) - 1:
        return float(large.later[row - chunk * (len(large.later) - 1), request])
    begin = max(begin_of(large.begins, row), large.arrivals[request])
    return float(
        large.weights[request] * (begin + large.outputs[request] - large.arrivals[request])
    )


@compiled_inside
def gain_of(large: Large, request: int, start: int, row: int, end: int) -> float:
    """Return what a start in a slice gains on the cheapest one after it."""
    later = least_from(large, request, row + 1, row // (len(large.later) - 1))
    return later - cost_from(large, request, start, end)


MAX_STARTS = 6  # in a slice
CHILDREN = 60  # of a node
_CANDIDATES = 8
# Work of a look at a request, of a child and of a node, beyond the steps that they touch.
_LOOK_WORK, _CHILD_WORK, _NODE_WORK = 10.0, 50.0, 200.0


class Nodes(NamedTuple):
    """The nodes of a beam: one side holds those of a slice, the other those of the next."""

    usage: Usage  # tokens held, from some step on, shape (2, width, steps)
    started: Flags  # shape (2, width, n)
    earliest: Usage  # step before which a request is known not to fit, shape (2, width, n)
    costs: FloatArray  # latencies of what has started, and prices of what it will hold yet
    values: FloatArray  # costs, and the least costs of all others that are active
    hashes: Hashes  # of the sets started
    tails: IntArray  # last start of each in the log


class Children(NamedTuple):
    """Sets of starts that a slice may add to its nodes."""

    values: FloatArray
    costs: FloatArray
    hashes: Hashes
    parents: IntArray
    counts: IntArray
    requests: IntArray  # shape (children, MAX_STARTS)
    starts: IntArray
    heap: IntArray


class Log(NamedTuple):
    """All starts that were kept, each with the one before it in its node."""

    requests: IntArray
    starts: IntArray
    before: IntArray


class Active(NamedTuple):
    """Requests that some node may start: in the order of what that would gain."""

    requests: IntArray
    gains: FloatArray  # of a start at the begin of the slice
    waiting: IntArray  # those of which no node has thought yet, by arrival


@compiled_inside
def _join(large: Large, active: Active, counts: IntArray, row: int) -> None:
    """Let requests become active once a start may gain; order all by what it would gain."""
    requests, gains, waiting = active
    begin, end = begin_of(large.begins, row), begin_of(large.begins, row + 1)
    fresh = counts[ACTIVE]
    left = 0
    for place in range(counts[WAITING]):
        request = waiting[place]
        joins = False
        if large.arrivals[request] < end:
            start = max(begin, large.arrivals[request])
            gain = gain_of(large, request, start, row, end)
            joins = gain > 0 or row + 1 >= len(large.begins)
        if joins:
            requests[fresh] = request
            fresh += 1
        else:
            waiting[left] = request
            left += 1
    counts[ACTIVE], counts[WAITING] = fresh, left
    # From one slice to the next the order changes little, so this is quick.
    for place in range(fresh):
        request = requests[place]
        start = max(begin, large.arrivals[request])
        gain = gain_of(large, request, start, row, end)
        at = place
        while at > 0 and gains[at - 1] < gain:
            gains[at], requests[at] = gains[at - 1], requests[at - 1]
            at -= 1
        gains[at], requests[at] = gain, request


@compiled_inside
def _settle(active: Active, counts: IntArray, started: Flags, nodes: int) -> None:
    """Drop requests that all nodes have started."""
    requests, gains, _ = active
    kept = 0
    for place in range(counts[ACTIVE]):
        request = requests[place]
        everywhere = True
        for node in range(nodes):
            if not started[node, request]:
                everywhere = False
                break
        if not everywhere:
            requests[kept], gains[kept] = request, gains[place]
            kept += 1
    counts[ACTIVE] = kept


@allocating_inside
def _candidates(
    large: Large, active: Active, nodes: Nodes, counts: IntArray, side: int, node: int, value: float
) -> tuple[IntArray, float, float]:
    """Return requests that gain by a start in a node, its value, and the work."""
    # A node holds what its parent does and more, so that a request which has not fitted before some
    # step is not looked at again before it.
    usage, started = nodes.usage[side, node], nodes.started[side, node]
    prompts, outputs, arrivals = large.prompts, large.outputs, large.arrivals
    earliest, row, base = nodes.earliest[side, node], counts[SLICE], counts[BASE]
    begin, end = begin_of(large.begins, row), begin_of(large.begins, row + 1)
    rows, spent, found = len(large.later) - 1, _NODE_WORK + counts[ACTIVE], 0
    candidates = np.empty(_CANDIDATES, dtype=np.int64)
    for place in range(counts[ACTIVE]):
        request = active.requests[place]
        if started[request]:
            continue
        value += least_from(large, request, row + 1, row // rows)
        if found == _CANDIDATES or active.gains[place] <= 0 or earliest[request] >= end:
            continue
        output = outputs[request]
        first = max(begin, max(arrivals[request], earliest[request])) - base
        spent += _LOOK_WORK + STEP_WORK * output
        start = earliest_fit(usage, large.memory, prompts[request], output, first, end - 1 - base)
        earliest[request] = base + (start if start >= 0 else -1 - start)
        if start >= 0:
            candidates[found] = request
            found += 1
    return candidates[:found], value, spent


@allocating_inside
def _expand(
    large: Large,
    active: Active,
    nodes: Nodes,
    children: Children,
    counts: IntArray,
    side: int,
    parent: int,
    cost: float,
    born: int,
) -> tuple[int, float]:
    """Add the children of a node, depth first, counted from `base`; return how many, and work."""
    prompts, outputs, arrivals = large.prompts, large.outputs, large.arrivals
    memory, usage, key = large.memory, nodes.usage[side, parent], nodes.hashes[side, parent]
    row, base = counts[SLICE], counts[BASE]
    begin, end = begin_of(large.begins, row), begin_of(large.begins, row + 1)
    latest, rows = end - 1 - base, len(large.later) - 1
    candidates, value, spent = _candidates(large, active, nodes, counts, side, parent, cost)
    limit = born + CHILDREN
    chosen = np.empty(MAX_STARTS + 1, dtype=np.int64)  # place among the candidates
    taken, starts = np.empty((2, MAX_STARTS), dtype=np.int64)
    _emit(children, born, parent, taken[:0], starts, base, value, cost, key)
    born += 1
    values, costs = np.empty(MAX_STARTS + 1), np.empty(MAX_STARTS + 1)
    values[0], costs[0], chosen[0] = value, cost, -1
    depth = 0
    while depth >= 0:
        chosen[depth] += 1
        if chosen[depth] >= len(candidates) or depth == MAX_STARTS or born == limit:
            depth -= 1
            if depth >= 0:
                request = taken[depth]
                key ^= large.keys[request]
                add_usage(usage, prompts[request], outputs[request], starts[depth], -1)
            continue
        request = candidates[chosen[depth]]
        clock = starts[depth - 1] if depth else begin - base
        if not is_new(taken, depth, request):
            continue
        output = outputs[request]
        first = max(clock, arrivals[request] - base)
        start = earliest_fit(usage, memory, prompts[request], output, first, latest)
        spent += _LOOK_WORK + STEP_WORK * output
        # Of those that start together, one order is enough.
        if start < 0 or (depth and start == clock and chosen[depth] < chosen[depth - 1]):
            continue
        added = cost_from(large, request, base + start, end)
        gain = least_from(large, request, row + 1, row // rows) - added
        if gain <= 0:
            continue
        add_usage(usage, prompts[request], output, start, 1)
        spent += _CHILD_WORK + STEP_WORK * output
        key ^= large.keys[request]
        taken[depth], starts[depth] = request, start
        values[depth + 1], costs[depth + 1] = values[depth] - gain, costs[depth] + added
        depth += 1
        chosen[depth] = -1
        value, cost = values[depth], costs[depth]
        _emit(children, born, parent, taken[:depth], starts, base, value, cost, key)
        born += 1
    return born, spent


@compiled_inside
def _emit(
    children: Children,
    child: int,
    parent: int,
    taken: IntArray,
    starts: IntArray,
    base: int,
    value: float,
    cost: float,
    key: np.uint64,
) -> None:
    children.parents[child], children.counts[child] = parent, len(taken)
    for place in range(len(taken)):
        children.requests[child, place] = taken[place]
        children.starts[child, place] = base + starts[place]
    children.values[child], children.costs[child] = value, cost
    children.hashes[child] = key


@compiled_inside
def _select(children: Children, born: int, width: int, kept: IntArray) -> int:
    """Keep the cheapest children, one for each set started; return their number."""
    heap, values, hashes = children.heap, children.values, children.hashes
    for child in range(born):
        heap[child] = child
    for place in range(born // 2 - 1, -1, -1):
        sink_by_key(heap, born, place, values, values)
    number, size = 0, born
    while size > 0 and number < width:
        child = heap[0]
        size = pop_by_key(heap, size, values, values)
        fresh = True
        for other in range(number):
            if hashes[kept[other]] == hashes[child]:
                fresh = False
                break
        if fresh:
            kept[number] = child
            number += 1
    return number


@compiled_inside
def _descend(
    large: Large,
    active: Active,
    nodes: Nodes,
    children: Children,
    child: int,
    side: int,
    node: int,
    row: int,
    counts: IntArray,
    log: Log,
) -> None:
    """Make a child a node of the next slice."""
    # Both sides hold a step at the same place, so that what is ahead is copied as it is.
    parent, base, reach = children.parents[child], counts[BASE], counts[REACH]
    before, begin = begin_of(large.begins, row), begin_of(large.begins, row + 1)
    first, kept, last = begin - base, before + reach - base, begin + reach - base
    usage, background = nodes.usage[side, node], large.background
    copy(nodes.usage[1 - side, parent], usage, first, kept)
    for step in range(kept, last):
        usage[step] = background[base + step] if base + step < len(background) else 0
    started, ahead = nodes.started[side, node], nodes.started[1 - side, parent]
    earliest, known = nodes.earliest[side, node], nodes.earliest[1 - side, parent]
    requests = active.requests
    for place in range(counts[ACTIVE]):
        request = requests[place]
        started[request], earliest[request] = ahead[request], known[request]
    tail, logged = nodes.tails[1 - side, parent], counts[LOGGED]
    for place in range(children.counts[child]):
        request, start = children.requests[child, place], children.starts[child, place]
        prompt, output = large.prompts[request], large.outputs[request]
        add_usage(usage, prompt, output, start - base, 1)
        started[request] = 1
        log.requests[logged], log.starts[logged], log.before[logged] = request, start, tail
        tail = logged
        logged += 1
    counts[LOGGED] = logged
    nodes.costs[side, node], nodes.tails[side, node] = children.costs[child], tail
    nodes.values[side, node] = children.values[child]
    nodes.hashes[side, node] = children.hashes[child]


@compiled_inside
def _ahead(large: Large, usage: Usage, cost: float, base: int, begin: int, end: int) -> float:
    """Return the cost of a node without the price of what is held in a slice."""
    prices, background = large.total, large.background
    for step in range(begin + 1, min(end, len(prices) - 1) + 1):
        held = usage[step - base]
        if step < len(background):  # which is no decision
            held -= background[step]
        cost -= (prices[step] - prices[step - 1]) * held
    return cost


@allocating
def sweep(
    large: Large,
    nodes: Nodes,
    children: Children,
    active: Active,
    log: Log,
    counts: IntArray,
    width: int,
    until: int,
    work: float,
) -> float:
    """Go through slices until one, until the work is done, the log is full or all has started."""
    kept = np.empty(width, dtype=np.int64)
    spent = 0.0
    while spent < work and counts[SLICE] < until and not counts[DONE]:
        if counts[LOGGED] + width * MAX_STARTS > len(log.starts):
            break
        row = counts[SLICE]
        side = row % 2
        begin, end = begin_of(large.begins, row), begin_of(large.begins, row + 1)
        if end + counts[REACH] - counts[BASE] > nodes.usage.shape[2]:
            for node in range(counts[NODES]):
                usage = nodes.usage[side, node]
                copy(usage[begin - counts[BASE] :], usage, 0, len(usage) - begin + counts[BASE])
            counts[BASE] = begin
        base = counts[BASE]
        _join(large, active, counts, row)
        born = 0
        for node in range(counts[NODES]):
            usage = nodes.usage[side, node]
            cost = _ahead(large, usage, nodes.costs[side, node], base, begin, end)
            born, work_of_node = _expand(
                large, active, nodes, children, counts, side, node, cost, born
            )
            spent += work_of_node
        number = _select(children, born, width, kept)
        for node in range(number):
            _descend(large, active, nodes, children, kept[node], 1 - side, node, row, counts, log)
        spent += STEP_WORK * number * (counts[REACH] + len(large.prompts))
        counts[SLICE], counts[NODES] = row + 1, number
        _settle(active, counts, nodes.started[1 - side], number)
        done = counts[WAITING] == 0
        for place in range(counts[ACTIVE]):
            done = done and nodes.started[1 - side, 0, active.requests[place]] == 1
        counts[DONE] = 1 if done else 0
    return spent


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
def _choose(
    prompts: IntArray,
    outputs: IntArray,
    starts: IntArray,
    chosen: IntArray,
    scale: float,
    taken: IntArray,
    random: RandomState,
) -> int:
    """Take one, and others that start near it or wait, by their places; return how many."""
    count = len(chosen)
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
        if suits and number < wanted and is_new(taken, number, place):
            taken[number] = place
            number += 1
    shuffle(taken, number, random)
    if uniform(random) < _IN_ORDER:
        for rank in range(1, number):
            place, at = taken[rank], rank
            peak = prompts[chosen[place]] + outputs[chosen[place]]
            while at and prompts[chosen[taken[at - 1]]] + outputs[chosen[taken[at - 1]]] < peak:
                taken[at] = taken[at - 1]
                at -= 1
            taken[at] = place
    return number


@compiled_inside
def _add_all(
    prompts: IntArray,
    outputs: IntArray,
    usage: Usage,
    begin: int,
    chosen: IntArray,
    taken: IntArray,
    starts: IntArray,
    number: int,
    sign: int,
) -> None:
    """Add the memory of the first requests taken that start, or with the sign -1 remove it."""
    for rank in range(number):
        request = chosen[taken[rank]]
        if starts[rank] >= 0:
            add_usage(usage, prompts[request], outputs[request], starts[rank] - begin, sign)


@allocating_inside
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
    prompts, outputs = large.prompts, large.outputs
    arrivals, weights, memory = large.arrivals, large.weights, large.memory
    taken = np.empty(_TAKEN, dtype=np.int64)  # places in `chosen`
    old, new = np.empty(_TAKEN, dtype=np.int64), np.empty(_TAKEN, dtype=np.int64)
    added = spent = 0.0
    for move in range(int(leg.work)):
        temperature = temperature_after(leg, move)
        number = _choose(prompts, outputs, starts, chosen, scale, taken, random)
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
        after, placed = 0.0, 0
        while placed < number and after + rest <= budget:
            place = taken[placed]
            request = chosen[place]
            prompt, output = prompts[request], outputs[request]
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
                at = earliest_fit(usage, memory, prompt, output, start - begin, last - begin)
                if at >= 0:
                    spent += STEP_WORK * (begin + at - start)
                    cost = min(cost, cost_from(large, request, begin + at, end))
                    if cost < later[place]:
                        new[placed] = begin + at
                        add_usage(usage, prompt, output, at, 1)
            after += cost
            placed += 1
        spent += MOVE_WORK
        if after + rest <= budget:
            added += after - before
            for rank in range(number):
                starts[chosen[taken[rank]]] = new[rank]
            continue
        _add_all(prompts, outputs, usage, begin, chosen, taken, new, placed, -1)
        _add_all(prompts, outputs, usage, begin, chosen, taken, old, number, 1)
    return added, spent


@allocating_inside
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


@allocating
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
            copy(usage, own, 0, len(usage))
            copy(starts, ours, 0, len(starts))
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
