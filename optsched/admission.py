r"""Admission on one worker where every batch takes one step.

The admission rule (MC-SF, Sorted-F phase 2; problem conventions in docs/conventions.md): at each
step walk the waiting requests in the policy's order, admit while the memory holds at every future
completion, and stop at the first request that does not fit. The kernels jump to where something can
change: with usage :math:`m_t` by the requests admitted so far, a request with :math:`s` prompt and
:math:`o` output tokens, tried at :math:`k`, fits iff :math:`m_t + s + t - k \le M` for all
:math:`t \in (k, k + o]`, so that no start before :math:`\min(m_t + s + t - M, t)` is feasible. The
largest of these over the steps of the window is the next start to try.

**The window rule** passes over the most urgent waiting request that does not fit, the head: those
of the next in order whose memory-time is at most a ratio times that of the head, among the first so
many that wait, start if they fit. A request fits where its prompt is at most the least room
:math:`M - m_{k+u} - u` of its steps :math:`u \le o`, a minimum that serves all requests tried at a
step; one that does not fit at the tightest step cannot start before its own part there has shrunk
enough, nor, if not a token of it fits there, before the next completion after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import FloatArray, IntArray, Records, ranks_in, records, require_room
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import pop, push
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from optsched.problem.instance import Instance

#: How much more memory-time than the head others may ask for that pass it, and how many of those
#: that wait are looked at; benchmarks/research.md has the figures.
WINDOW_RATIO, WINDOW_LENGTH = 1.6, 128

#: Bytes of the state of a worker for each step that it looks ahead.
STEP_AHEAD = 64

#: A step that does not come.
NEVER = int(np.iinfo(np.int64).max)


def admit_by_priority(instance: Instance, priority: IntArray) -> IntArray:
    """Admit requests in a fixed order of priority among those that have arrived."""
    prompts, outputs, arrivals = instance.prompts, instance.outputs, instance.arrivals
    usage, window = empty_worker(int(outputs.max()))
    starts = np.zeros(len(instance), dtype=np.int64)
    if arrivals[-1] == arrivals[0]:
        first = int(arrivals[0])
        admit = interruptible_kernel(admit_in_order, len(instance))
        admit(prompts, outputs, instance.memory, priority, first, starts, usage, window)
    else:
        spent, scratch = np.empty(0), np.zeros((3, len(instance)), dtype=np.int64)
        given = prompts, outputs, arrivals, instance.memory, priority, spent, len(instance)
        arriving = interruptible_kernel(admit_arriving, len(instance))
        arriving(*given, starts, (usage, window), scratch)
    return starts


def require_steps(outputs: IntArray, workers: int = 1, each: int = STEP_AHEAD) -> None:
    """Refuse outputs of so many steps that what workers keep for each of them has no room."""
    advice = "take shorter outputs, or only their bound by the method closed-form"
    require_room(
        int(outputs.max()), each * workers, "steps of the longest output", advice, InstanceError
    )


def empty_worker(longest: int) -> tuple[IntArray, IntArray]:
    """Make the state of an empty worker: usage of a window of future steps, and where it lies."""
    return np.zeros(4 * longest + 64, dtype=np.int64), np.zeros(2, dtype=np.int64)


@compiled_inside
def earliest_start(
    usage: IntArray, window: IntArray, memory: int, prompt: int, output: int, clock: int
) -> int:
    """Find the first step from `clock` on at which a request can start."""
    base, end = window[0], window[1]
    seen = clock
    while True:
        stop, jump = min(clock + output, end), clock
        for index in range(stop - base, max(seen, clock) - base, -1):
            excess = usage[index] + prompt - memory
            if excess >= 0:  # not even before its first token: no step before matters
                jump = max(jump, index + base)
                break
            jump = max(jump, excess + index + base)
        if jump == clock:
            return clock
        seen = max(seen, stop)
        clock = jump


@compiled_inside
def slide(usage: IntArray, window: IntArray, now: int) -> None:
    """Let the window begin now: what was held before is past."""
    past = now - window[0]
    kept = 1
    while kept <= window[1] - now:
        usage[kept] = usage[past + kept]
        kept += 1
    for token in range(kept, len(usage)):
        usage[token] = 0
    window[0] = now


@compiled_inside
def occupy(usage: IntArray, window: IntArray, prompt: int, output: int, start: int) -> None:
    """Add a request to the usage; starts never decrease from one call to the next."""
    if start + output - window[0] >= len(usage):
        slide(usage, window, start)
    base = window[0]
    for token in range(1, output + 1):
        usage[start - base + token] += prompt + token
    if window[1] < start + output:
        window[1] = start + output


@compiled
def admit_in_order(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    order: IntArray,
    clock: int,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> int:
    """Admit requests in the given order from the step `clock` on; return the last start."""
    for place in range(len(order)):
        request = order[place]
        prompt, output = prompts[request], outputs[request]
        clock = earliest_start(usage, window, memory, prompt, output, clock)
        occupy(usage, window, prompt, output, clock)
        starts[request] = clock
    return clock


@compiled
def admit_arriving(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    priority: IntArray,
    spent: FloatArray,
    free: int,
    starts: IntArray,
    worker: tuple[IntArray, IntArray],
    scratch: IntArray,
) -> None:
    """Admit requests by ascending arrival on a worker that may hold something already.

    From the place `free` of their priority on they wait for a budget as well, which starts spend.
    `scratch` is three rows of zeros.
    """
    count, (usage, window) = len(priority), worker
    rank, waiting, size = scratch[0], scratch[1], 0
    not_before = scratch[2]  # proven by earlier tries: usage only grows while one waits
    for place in range(count):
        rank[priority[place]] = place
    released = 0
    clock = arrivals[0]
    paid = float(clock)  # when all starts so far are paid for
    for _ in range(count):
        if size == 0:
            clock = max(clock, arrivals[released])
        while True:
            while released < count and arrivals[released] <= clock:
                size = push(waiting, size, rank[released])
                released += 1
            request = priority[waiting[0]]
            earliest = max(clock, not_before[request])
            if waiting[0] >= free:
                earliest = max(earliest, int(paid))
            start = earliest_start(
                usage, window, memory, prompts[request], outputs[request], earliest
            )
            not_before[request] = start
            if released == count or start < arrivals[released]:
                break
            clock = arrivals[released]  # a more urgent one may arrive before this start
        size = pop(waiting, size)
        occupy(usage, window, prompts[request], outputs[request], start)
        starts[request] = start
        clock = start
        if free < count:
            paid = max(paid, float(start)) + spent[request]


class Queue(NamedTuple):
    """Requests numbered by urgency under the window rule, and what is known of them."""

    requests: Records
    waiting: IntArray  # ascending, from one count to another; room for all on both sides
    room: Records  # over so many steps from now on
    counts: IntArray


_REQUEST = (
    *("prompt", "output", "area"),
    "least",  # of the areas of a request and of all after it
    "not_before",  # proven by earlier tries
    "start",
    *("arrival", "arriving"),  # of this number by arrival: when, and which request it is
    "started",  # of this number by the last call: which request it is
)
_NODE = ("prompt", "output", "index", "not_before")  # the least of those that wait below a node
_ROOM = ("least", "tightest")  # how much there is at least, and at which step

# Counts of a queue: requests that have come, where those waiting lie, those that the last call
# started, and the first step after it at which one may start if none comes.
RELEASED, BEGIN, END, STARTED, DUE = range(5)


def new_queue(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray | FloatArray,
    memory: int,
    order: IntArray,
) -> Queue:
    """Make a queue in which nothing waits."""
    count, steps = len(order), int(outputs.max()) + 1
    areas = (prompts * outputs + outputs * (outputs + 1) // 2)[order]
    arriving = np.lexsort((ranks_in(order), arrivals))  # many at once are quick to add in order
    requests = records(
        count,
        _REQUEST,
        prompt=prompts[order],
        output=outputs[order],
        area=areas,
        least=np.minimum.accumulate(areas[::-1])[::-1],
        start=-1,
        arrival=arrivals[arriving],
        arriving=ranks_in(order)[arriving],
    )
    waiting, room = np.zeros(2 * count, dtype=np.int64), records(steps, _ROOM, least=memory)
    return Queue(requests, waiting, room, np.array([0, count, count, 0, 0]))


def admit_in_window(
    instance: Instance,
    order: IntArray,
    ratio: float = WINDOW_RATIO,
    length: int = WINDOW_LENGTH,
    load: IntArray | tuple[()] = (),
) -> IntArray:
    """Admit requests in order under the window rule, beside a load of the steps from 1 on."""
    queue = new_queue(instance.prompts, instance.outputs, instance.arrivals, instance.memory, order)
    usage, count = empty_worker(max(int(instance.outputs.max()), len(load))), len(instance)
    usage[0][1 : len(load) + 1], usage[1][1] = load, len(load)
    if ratio == np.inf and length >= count:
        tree = tree_over(instance.prompts[order], instance.outputs[order])
        interruptible_kernel(admit_whatever_fits, count)(queue, instance.memory, *tree, *usage)
    else:
        rule, first = (float(ratio), length), int(instance.arrivals[0])
        admit = interruptible_kernel(admit_window, count)
        admit(queue, instance.memory, *rule, first, NEVER, *usage)
    starts: IntArray = queue.requests.start[ranks_in(order)].copy()
    return starts


@compiled_inside
def let_wait(waiting: IntArray, begin: int, end: int, index: int) -> tuple[int, int]:
    """Put a request among those that wait, by urgency; return from where to where they lie."""
    place, high = begin, end
    while place < high:
        middle = (place + high) // 2
        if waiting[middle] < index:
            place = middle + 1
        else:
            high = middle
    if place - begin < end - place:  # the shorter side makes room
        begin -= 1
        place -= 1
        for other in range(begin, place):
            waiting[other] = waiting[other + 1]
    else:
        for other in range(end, place, -1):
            waiting[other] = waiting[other - 1]
        end += 1
    waiting[place] = index
    return begin, end


@compiled_inside
def delay_of(
    request: Any, memory: int, clock: int, usage: IntArray, window: IntArray, room: Any, seen: Any
) -> tuple[int, tuple[int, int, int]]:
    """Return for how many steps a request cannot start, none where it fits, and what was seen.

    That is how many steps of the least room are up to date, a step that is full, and the next one
    at which some complete: none as soon as one has started.
    """
    (known, full, leaving), output = seen, request.output
    base, ahead = clock - window[0], window[1] - clock
    while known < output:
        known += 1
        left = memory - known
        if known <= ahead:
            left -= usage[base + known]
        tight, step = room[known - 1].least, room[known - 1].tightest
        if left < tight:
            tight, step = left, known
        room[known].least, room[known].tightest = tight, step
    delay = request.prompt - room[output].least  # until its own part has shrunk enough
    if delay > 0 and delay >= room[output].tightest:  # or until one completes: no token of it fits
        if full != room[output].tightest:
            full = leaving = room[output].tightest
            while leaving < ahead and usage[base + leaving + 1] >= usage[base + leaving]:
                leaving += 1
        delay = leaving
    return delay, (known, full, leaving)


def tree_over(prompts: IntArray, outputs: IntArray) -> tuple[Records, IntArray]:
    """Make a tree below which none waits, and the leaf of each request: beside similar ones."""
    count = len(prompts)
    curve = np.zeros(count, dtype=np.int64)  # that of Morton
    for axis, lengths in enumerate((prompts, outputs)):
        ranks = ranks_in(np.argsort(lengths, kind="stable"))
        for bit in range(count.bit_length()):
            curve |= (ranks >> bit & 1) << 2 * bit + axis
    leaves = 1 << (count - 1).bit_length()
    tree = records(2 * leaves, _NODE, **dict.fromkeys(_NODE, NEVER))
    return tree, leaves + ranks_in(np.argsort(curve))


@compiled_inside
def put_below(
    tree: Records, node: int, prompt: int, output: int, index: int, not_before: int
) -> None:
    """Let a request wait at a leaf, or none where all is `NEVER`."""
    leaf = tree[node]
    leaf.prompt, leaf.output, leaf.index, leaf.not_before = prompt, output, index, not_before
    while node > 1:
        node //= 2
        above, left, right = tree[node], tree[2 * node], tree[2 * node + 1]
        above.prompt = min(left.prompt, right.prompt)
        above.output = min(left.output, right.output)
        above.index = min(left.index, right.index)
        above.not_before = min(left.not_before, right.not_before)


@compiled
def admit_whatever_fits(
    queue: Queue, memory: int, tree: Records, leaf: IntArray, usage: IntArray, window: IntArray
) -> None:
    """Admit all requests, each as soon as it fits where its turn comes.

    A node of the tree stands for those that wait below it, with the least prompt and the least
    output of any: where this does not fit, none of them does.
    """
    requests, _, room, _ = queue
    leaves, released, clock = len(tree) // 2, 0, requests[0].arrival
    while clock < NEVER:
        while released < len(requests) and requests[released].arrival <= clock:
            index = requests[released].arriving
            put_below(
                tree, leaf[index], requests[index].prompt, requests[index].output, index, clock
            )
            released += 1
        node, first, seen = 1, NEVER, (0, 0, 0)
        while node > 0:
            below = tree[node]
            if below.not_before <= clock and below.index < first:
                delay, seen = delay_of(below, memory, clock, usage, window, room, seen)
                if delay > 0:
                    below.not_before = clock + delay
                elif node >= leaves:
                    first = below.index
                else:  # the more urgent side first
                    node = 2 * node + (tree[2 * node + 1].index < tree[2 * node].index)
                    continue
            while node > 1 and tree[node].index > tree[node ^ 1].index:
                node //= 2
                tree[node].not_before = min(
                    tree[2 * node].not_before, tree[2 * node + 1].not_before
                )
            node = node ^ 1 if node > 1 else 0
        if first < NEVER:
            occupy(usage, window, requests[first].prompt, requests[first].output, clock)
            requests[first].start = clock
            put_below(tree, leaf[first], NEVER, NEVER, NEVER, NEVER)
        else:
            due = requests[released].arrival if released < len(requests) else NEVER
            clock = min(tree[1].not_before, due)


@compiled
def admit_window(
    queue: Queue,
    memory: int,
    ratio: float,
    length: int,
    clock: int,
    until: int,
    usage: IntArray,
    window: IntArray,
) -> None:
    """Admit requests from one step on until before another."""
    requests, waiting, room, counts = queue
    released, begin, end, count = counts[RELEASED], counts[BEGIN], counts[END], 0
    while clock < until:
        while released < len(requests) and requests[released].arrival <= clock:
            index = requests[released].arriving
            released += 1
            requests[index].not_before = clock
            begin, end = let_wait(waiting, begin, end, index)
        due = requests[released].arrival if released < len(requests) else NEVER
        most, place, seen = 0.0, begin, (0, 0, 0)
        while place < end and place - begin < length:
            request = requests[waiting[place]]
            if place == begin:
                most = ratio * request.area
            if request.least > most:
                break
            place += 1
            if request.area > most:
                continue
            if request.not_before <= clock:
                delay, seen = delay_of(request, memory, clock, usage, window, room, seen)
                if delay <= 0:
                    occupy(usage, window, request.prompt, request.output, clock)
                    seen = 0, 0, 0
                    request.start = clock
                    requests[count].started = waiting[place - 1]
                    count += 1
                    begin += 1
                    for other in range(place - 1, begin - 1, -1):
                        waiting[other] = waiting[other - 1]
                    continue
                request.not_before = clock + delay
            if request.not_before < due:
                due = request.not_before
        clock = due
    counts[RELEASED], counts[BEGIN], counts[END] = released, begin, end
    counts[STARTED], counts[DUE] = count, clock
