"""The state of a cluster, and the parts of a step that no policy decides; compiled.

The loads to come are a ring of steps for every worker. Admission adds a request's whole profile to
it, so that oracle lookahead costs nothing more, and drift may be anything. Where a router believes
something else than what will happen, a second ring holds that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.simulate.cluster.routing import NEVER

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records

NONE = -1


class Settings(NamedTuple):
    """How to run; numbers that kernels branch on."""

    rule: int = 0
    lookahead: int = 0
    adaptive: float = 0.0  # scale of the window; 0: the window is `lookahead`
    rounds: int = 0
    instant: bool = False  # whether requests are bound to a worker's queue when revealed
    limited: bool = False  # whether workers' memory is
    patient: bool = True  # whether no wait is limited
    timed: bool = False  # whether requests arrive at seconds, not at steps
    overhead_s: float = 0.0
    seconds_per_token: float = 0.0


class State(NamedTuple):
    """The cluster between two steps: G workers, n requests, R of them in view, T steps ahead."""

    now: Records  # (1,), counters
    time: FloatArray  # (1,), of the step that comes, in the unit of arrivals: seconds, or steps
    arrivals: FloatArray  # (n,)
    requests: Records  # (n,)
    workers: Records  # (G,)
    slowness: IntArray  # (G,)
    draws: FloatArray  # (n, d), random numbers in [0, 1)
    gains: IntArray  # of all requests by age, one after another
    growth: IntArray  # (H + 1,), what a new request is believed to gain
    loads: IntArray  # (G, T), ring of steps
    waiting: IntArray  # (R,), oldest first
    lists: Records  # (T,), the first request that leaves at a step, or whose belief changes


NOW = ("step", "revealed", "waiting", "queued", "turn", "made", "done", "done_sizes", "done_gains")
REQUEST = (
    *("size", "output", "reserved", "patience"),
    *("first", "last"),  # place of its gains at age 0, and the age from which they stay the same
    *("alarm", "end", "false_alarm", "false_end"),  # as of `Predictor.alarms`
    *("revealed", "start", "worker"),
    "lasts",  # age to which the router believes it to run
    *("next_leaving", "next_telling", "next_queued"),
)
WORKER = ("slots", "memory", "active", "queue_head", "queue_tail", "queue_length", "queue_tokens")
LISTS = ("leaving", "telling")


class Columns(NamedTuple):
    """What is recorded of so many steps."""

    loads: IntArray  # (K, G)
    active: IntArray  # (K, G)
    waiting: IntArray  # (K,)
    seconds: FloatArray  # (K,)


@compiled
def reveal(state: State, revealing: bool) -> int:
    """Reveal arrived requests up to the number in view; return how many wait, -1 if all is done."""
    now, requests, in_view = state.now[0], state.requests, len(state.waiting)
    if now.done == (len(requests) if revealing else now.revealed):
        return NONE
    while (
        revealing
        and now.waiting + now.queued < in_view
        and now.revealed < len(requests)
        and state.arrivals[now.revealed] <= state.time[0]
    ):
        requests[now.revealed].revealed = now.step
        state.waiting[now.waiting] = now.revealed
        now.waiting += 1
        now.revealed += 1
    return int(now.waiting + now.queued)


@compiled
def seen_loads(state: State, believed: IntArray | None, lookahead: int) -> IntArray:
    """Return the loads of the window as the router sees them before admission, (G, H + 1)."""
    workers, span = state.loads.shape
    now = state.now[0].step % span
    seen = np.empty((workers, lookahead + 1), dtype=np.int64)
    ring = state.loads
    if believed is not None:
        ring = believed
    for worker in range(workers):
        place = now
        seen[worker, 0] = state.loads[worker, place]
        for ahead in range(1, lookahead + 1):
            place += 1
            if place == span:
                place = 0
            seen[worker, ahead] = ring[worker, place]
    return seen


@compiled
def _add_profile(state: State, ring: IntArray, index: int, age: int, end: int, sign: int) -> None:
    """Add a request's loads at ages up to `end`, exclusive, to a ring, or take them away."""
    request, gains, length = state.requests[index], state.gains, ring.shape[1]
    loads, start = ring[request.worker], request.start
    size, first, last = request.size, request.first, request.last
    while age < end:
        place = (start + age) % length
        # Without a wrap or a test inside, the loop becomes vector instructions.
        piece = min(end - age, length - place)
        if age <= last:
            piece = min(piece, last + 1 - age)
            for step in range(piece):
                loads[place + step] += sign * (size + gains[first + age + step])
        else:
            for step in range(piece):
                loads[place + step] += sign * (size + gains[first + last])
        age += piece


@compiled
def _admit(state: State, believed: IntArray | None, index: int, place: int) -> None:
    request, worker = state.requests[index], state.workers[place]
    request.start, request.worker = state.now[0].step, place
    worker.active += 1
    worker.memory -= request.reserved
    _add_profile(state, state.loads, index, 0, request.output, 1)
    leaves = state.lists[(request.start + request.output) % len(state.lists)]
    request.next_leaving, leaves.leaving = leaves.leaving, index
    if believed is not None:
        # Believed to last beyond every window that is looked at while it runs.
        request.lasts = request.output + len(state.growth) - 1
        _add_profile(state, believed, index, 0, request.lasts, 1)
        _believe(state, believed, index)


@compiled
def _believe(state: State, believed: IntArray, index: int) -> None:
    """Bring the belief on a request up to its age, and note when it next changes."""
    request = state.requests[index]
    age = state.now[0].step - request.start
    lasts = request.output + len(state.growth) - 1
    if age >= request.alarm:
        # One that is overdue will end any step now.
        lasts = min(lasts, max(request.end, age + 1))
        change = max(request.end - 1, age + 1)
    elif request.false_alarm <= age < request.false_end:
        lasts = min(lasts, request.false_end)
        change = min(request.alarm, request.false_end)
    else:
        change = min(request.alarm, request.false_alarm if age < request.false_alarm else NEVER)
    before, request.lasts = request.lasts, lasts
    if lasts < before:
        _add_profile(state, believed, index, max(lasts, age), before, -1)
    else:
        _add_profile(state, believed, index, before, lasts, 1)
    if change < request.output:
        changes = state.lists[(request.start + change) % len(state.lists)]
        request.next_telling, changes.telling = changes.telling, index


@compiled
def admit(state: State, believed: IntArray | None, settings: Settings, chosen: IntArray) -> None:
    """Put the chosen requests on their workers, or into their queues; the others stay waiting."""
    now, requests, workers = state.now[0], state.requests, state.workers
    kept = 0
    for position in range(now.waiting):
        index, place = state.waiting[position], chosen[position]
        if place == NONE:
            state.waiting[kept] = index
            kept += 1
        elif settings.instant:
            worker = workers[place]
            if worker.queue_head == NONE:
                worker.queue_head = index
            else:
                requests[worker.queue_tail].next_queued = index
            worker.queue_tail = index
            worker.queue_length += 1
            worker.queue_tokens += requests[index].size
            now.queued += 1
        else:
            _admit(state, believed, index, place)
    now.waiting = kept
    if not settings.instant:
        return
    for place in range(len(workers)):
        worker = workers[place]
        while (
            worker.queue_head != NONE
            and worker.active < worker.slots
            and worker.memory >= requests[worker.queue_head].reserved
        ):
            index = worker.queue_head
            worker.queue_head = requests[index].next_queued
            worker.queue_length -= 1
            worker.queue_tokens -= requests[index].size
            now.queued -= 1
            _admit(state, believed, index, place)


@compiled
def advance(
    state: State, believed: IntArray | None, settings: Settings, columns: Columns, row: int
) -> None:
    """Record a step, pass the barrier, and free what has ended."""
    now, requests, workers = state.now[0], state.requests, state.workers
    length = len(state.lists)
    place = now.step % length
    before, most = now.made, 0
    for worker in range(len(workers)):
        load = state.loads[worker, place]
        most = max(most, state.slowness[worker] * load)
        columns.loads[row, worker] = load
        columns.active[row, worker] = workers[worker].active
        now.made += workers[worker].active
        state.loads[worker, place] = 0
    columns.waiting[row] = now.waiting + now.queued
    columns.seconds[row] = settings.overhead_s + settings.seconds_per_token * most
    if not settings.timed:
        state.time[0] += 1
    elif now.made > before or columns.waiting[row] > 0 or now.revealed == len(requests):
        state.time[0] += columns.seconds[row]
    else:  # an idle cluster sleeps until the next request arrives
        columns.seconds[row] = state.arrivals[now.revealed] - state.time[0]
        state.time[0] = state.arrivals[now.revealed]
    if believed is not None:
        for worker in range(len(workers)):
            believed[worker, place] = 0
    now.step += 1
    lists = state.lists[now.step % length]
    index, lists.leaving = lists.leaving, NONE
    while index != NONE:
        request = requests[index]
        workers[request.worker].active -= 1
        workers[request.worker].memory += request.reserved
        now.done += 1
        now.done_sizes += request.size
        now.done_gains += state.gains[request.first + min(request.output - 1, request.last)]
        if believed is not None:
            _add_profile(state, believed, index, request.output, request.lasts, -1)
        index = request.next_leaving
    if believed is not None:
        index, lists.telling = lists.telling, NONE
        while index != NONE:
            following = requests[index].next_telling
            _believe(state, believed, index)
            index = following
