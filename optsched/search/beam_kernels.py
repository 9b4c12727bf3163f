"""Kernels of the beam."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import pop_by_key, price_of_start, sink_by_key
from optsched.search.annealing import STEP_WORK, add_usage, earliest_fit

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.search.annealing import Usage

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


@compiled
def add_chosen(
    prompts: IntArray, outputs: IntArray, starts: IntArray, chosen: BoolArray, usage: Usage
) -> None:
    """Add the memory of some requests to the usage."""
    for request in range(len(chosen)):
        if chosen[request]:
            add_usage(usage, prompts[request], outputs[request], starts[request], 1)


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


@compiled_inside
def _expand(
    large: Large,
    active: Active,
    number: int,
    row: int,
    base: int,
    parent: int,
    usage: Usage,
    started: Flags,
    earliest: Usage,
    cost: float,
    key: np.uint64,
    children: Children,
    born: int,
) -> tuple[int, float]:
    """Add the children of a node, depth first; return the number of all, and the work."""
    # Usage is that from the step `base` on, and so are the starts that are tried.
    # A node holds what its parent does and more, so that a request which has not fitted before some
    # step is not looked at again before it.
    prompts, outputs, arrivals = large.prompts, large.outputs, large.arrivals
    memory = large.memory
    begin, end = begin_of(large.begins, row), begin_of(large.begins, row + 1)
    latest, rows = end - 1 - base, len(large.later) - 1
    spent = _NODE_WORK + number
    value = cost
    candidates = np.empty(_CANDIDATES, dtype=np.int64)
    found = 0
    for place in range(number):
        request = active.requests[place]
        if started[request]:
            continue
        value += least_from(large, request, row + 1, row // rows)
        if found == _CANDIDATES or active.gains[place] <= 0 or earliest[request] >= end:
            continue
        output = outputs[request]
        first = max(begin, max(arrivals[request], earliest[request])) - base
        spent += _LOOK_WORK + STEP_WORK * output
        start = earliest_fit(usage, memory, prompts[request], output, first, latest)
        earliest[request] = base + (start if start >= 0 else -1 - start)
        if start >= 0:
            candidates[found] = request
            found += 1
    limit = born + CHILDREN
    _emit(children, born, parent, 0, value, cost, key)
    born += 1
    chosen = np.empty(MAX_STARTS + 1, dtype=np.int64)  # place among the candidates
    taken, starts = np.empty(MAX_STARTS, dtype=np.int64), np.empty(MAX_STARTS, dtype=np.int64)
    values, costs = np.empty(MAX_STARTS + 1), np.empty(MAX_STARTS + 1)
    values[0], costs[0], chosen[0] = value, cost, -1
    depth = 0
    while depth >= 0:
        chosen[depth] += 1
        if chosen[depth] >= found or depth == MAX_STARTS or born == limit:
            depth -= 1
            if depth >= 0:
                request = taken[depth]
                key ^= large.keys[request]
                add_usage(usage, prompts[request], outputs[request], starts[depth], -1)
            continue
        request = candidates[chosen[depth]]
        clock = starts[depth - 1] if depth else begin - base
        again = False
        for other in range(depth):
            again = again or taken[other] == request
        if again:
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
        _emit(children, born, parent, depth, values[depth], costs[depth], key)
        for other in range(depth):
            children.requests[born, other] = taken[other]
            children.starts[born, other] = base + starts[other]
        born += 1
    return born, spent


@compiled_inside
def _emit(
    children: Children,
    child: int,
    parent: int,
    count: int,
    value: float,
    cost: float,
    key: np.uint64,
) -> None:
    children.parents[child], children.counts[child] = parent, count
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
    _copy(nodes.usage[1 - side, parent, first:kept], usage[first:])
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
def _copy(source: Usage, target: Usage) -> None:
    """Copy one row to the front of another, or of itself, from the left."""
    for place in range(len(source)):
        target[place] = source[place]


@compiled
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
    prices, background = large.total, large.background
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
                _copy(usage[begin - counts[BASE] :], usage)
            counts[BASE] = begin
        base = counts[BASE]
        _join(large, active, counts, row)
        born = 0
        for node in range(counts[NODES]):
            usage = nodes.usage[side, node]
            cost = nodes.costs[side, node]
            # What is held in this slice is no longer ahead; the background is no decision.
            for step in range(begin + 1, min(end, len(prices) - 1) + 1):
                held = usage[step - base]
                if step < len(background):
                    held -= background[step]
                cost -= (prices[step] - prices[step - 1]) * held
            born, work_of_node = _expand(
                large,
                active,
                counts[ACTIVE],
                row,
                base,
                node,
                usage,
                nodes.started[side, node],
                nodes.earliest[side, node],
                cost,
                nodes.hashes[side, node],
                children,
                born,
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
