"""The state of a cluster, and the parts of a step that no policy decides; compiled.

The loads to come are kept as a ring of steps for every worker. Admission adds a request's whole
profile to it, so that the load of any later step is one number to read: oracle lookahead costs
nothing more, and drift may be anything. Where a router believes something else than what will
happen, a second ring holds what it believes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.cluster.information import NEVER

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray

# Places in State.counters.
STEP, REVEALED, WAITING, QUEUED, TURN, MADE, DONE, DONE_SIZES, DONE_GAINS = range(9)

NONE = -1


class Requests(NamedTuple):
    """What does not change about the requests; arrays of shape (n,) unless said otherwise."""

    sizes: IntArray
    outputs: IntArray
    arrivals: IntArray
    reserved: IntArray
    gains: IntArray  # of all requests, one after another
    first: IntArray
    last: IntArray
    growth: IntArray  # (H + 1,)
    patience: IntArray  # 0: may wait forever
    alarms: IntArray  # (n, 4), or (0, 4) where the router knows what will happen
    draws: FloatArray  # (n, d), random numbers in [0, 1)


class Settings(NamedTuple):
    """How to run; numbers that kernels branch on."""

    rule: int
    method: int
    lookahead: int
    adaptive: float  # scale of the window; 0: the window is `lookahead`
    rounds: int
    reveal: int
    instant: int  # 1: bound to a worker's queue when revealed
    limited: int  # 1: workers' memory is limited
    patient: int  # 1: no wait is limited


class State(NamedTuple):
    """What changes; arrays of one number per worker (G,) or request (n,) unless said otherwise."""

    counters: IntArray  # (9,)
    slots: IntArray
    slowness: IntArray
    memory: IntArray  # tokens not reserved
    active: IntArray
    loads: IntArray  # (G, T), ring of steps
    believed: IntArray  # the same as the router believes; (G, 0) where it knows
    waiting: IntArray  # (R,), oldest first
    revealed: IntArray
    starts: IntArray
    workers: IntArray
    leaving: IntArray  # (T,), first request that has left at a step
    next_leaving: IntArray
    lasts: IntArray  # age to which the router believes a request to run
    telling: IntArray  # (T,), first request whose belief changes at a step
    next_telling: IntArray
    queue_head: IntArray
    queue_tail: IntArray
    queue_next: IntArray
    queue_length: IntArray
    queue_tokens: IntArray


@compiled
def reveal(requests: Requests, state: State, target: int) -> None:
    """Reveal arrived requests until so many are waiting."""
    counters = state.counters
    step = counters[STEP]
    while (
        counters[WAITING] + counters[QUEUED] < target
        and counters[REVEALED] < len(requests.sizes)
        and requests.arrivals[counters[REVEALED]] <= step
    ):
        state.revealed[counters[REVEALED]] = step
        state.waiting[counters[WAITING]] = counters[REVEALED]
        counters[WAITING] += 1
        counters[REVEALED] += 1


@compiled
def seen_loads(state: State, lookahead: int) -> IntArray:
    """Return the loads of the window as the router sees them before admission, (G, H + 1)."""
    workers, span = state.loads.shape
    step = state.counters[STEP]
    seen = np.empty((workers, lookahead + 1), dtype=np.int64)
    ring = state.believed if state.believed.shape[1] else state.loads
    for worker in range(workers):
        place = step % span
        seen[worker, 0] = state.loads[worker, place]
        for ahead in range(1, lookahead + 1):
            place += 1
            if place == span:
                place = 0
            seen[worker, ahead] = ring[worker, place]
    return seen


@compiled
def _add_profile(
    requests: Requests, ring: IntArray, worker: int, request: int, start: int, span: IntArray
) -> None:
    """Add ages span[0] .. span[1] - 1 of a request to a ring, span[2] times."""
    length = ring.shape[1]
    size = requests.sizes[request]
    first, last = requests.first[request], requests.last[request]
    age, end, sign = span[0], span[1], span[2]
    while age < end:
        place = (start + age) % length
        # Without a wrap or a test inside, the loop becomes vector instructions.
        piece = min(end - age, length - place)
        if age <= last:
            piece = min(piece, last + 1 - age)
            for step in range(piece):
                ring[worker, place + step] += sign * (size + requests.gains[first + age + step])
        else:
            for step in range(piece):
                ring[worker, place + step] += sign * (size + requests.gains[first + last])
        age += piece


@compiled
def _admit(requests: Requests, state: State, request: int, worker: int) -> None:
    counters = state.counters
    step, length = counters[STEP], state.loads.shape[1]
    output = requests.outputs[request]
    state.starts[request] = step
    state.workers[request] = worker
    state.active[worker] += 1
    state.memory[worker] -= requests.reserved[request]
    whole = np.array([0, output, 1])
    _add_profile(requests, state.loads, worker, request, step, whole)
    place = (step + output) % length
    state.next_leaving[request] = state.leaving[place]
    state.leaving[place] = request
    if state.believed.shape[1]:
        # Believed to last beyond every window that is looked at while it runs.
        state.lasts[request] = output + len(requests.growth) - 1
        whole[1] = state.lasts[request]
        _add_profile(requests, state.believed, worker, request, step, whole)
        _believe(requests, state, request)


@compiled
def _believe(requests: Requests, state: State, request: int) -> None:
    """Bring the belief on a request up to its age, and note when it next changes."""
    step, length = state.counters[STEP], state.loads.shape[1]
    age = step - state.starts[request]
    output = requests.outputs[request]
    alarm, end = requests.alarms[request, 0], requests.alarms[request, 1]
    false_alarm, false_end = requests.alarms[request, 2], requests.alarms[request, 3]
    lasts = output + len(requests.growth) - 1
    change = NEVER
    if age >= alarm:
        if end <= age + 1:  # overdue: it will end any step now
            end = age + 1
            change = age + 1
        else:
            change = end - 1
        lasts = min(lasts, end)
    elif false_alarm <= age < false_end:
        lasts = min(lasts, false_end)
        change = min(alarm, false_end)
    else:
        change = min(alarm, false_alarm if age < false_alarm else NEVER)
    before = state.lasts[request]
    span = np.array([before, lasts, 1])
    if lasts < before:
        span[:] = np.array([max(lasts, age), before, -1])
    _add_profile(
        requests, state.believed, state.workers[request], request, state.starts[request], span
    )
    state.lasts[request] = lasts
    if change < output:
        place = (state.starts[request] + change) % length
        state.next_telling[request] = state.telling[place]
        state.telling[place] = request


@compiled
def admit(requests: Requests, state: State, settings: Settings, chosen: IntArray) -> None:
    """Put the chosen requests on their workers, or into their queues; the others stay waiting."""
    counters = state.counters
    kept = 0
    for position in range(counters[WAITING]):
        request, worker = state.waiting[position], chosen[position]
        if worker == NONE:
            state.waiting[kept] = request
            kept += 1
        elif settings.instant:
            if state.queue_head[worker] == NONE:
                state.queue_head[worker] = request
            else:
                state.queue_next[state.queue_tail[worker]] = request
            state.queue_tail[worker] = request
            state.queue_length[worker] += 1
            state.queue_tokens[worker] += requests.sizes[request]
            counters[QUEUED] += 1
        else:
            _admit(requests, state, request, worker)
    counters[WAITING] = kept
    if not settings.instant:
        return
    for worker in range(len(state.slots)):
        while (
            state.queue_head[worker] != NONE
            and state.active[worker] < state.slots[worker]
            and state.memory[worker] >= requests.reserved[state.queue_head[worker]]
        ):
            request = state.queue_head[worker]
            state.queue_head[worker] = state.queue_next[request]
            state.queue_length[worker] -= 1
            state.queue_tokens[worker] -= requests.sizes[request]
            counters[QUEUED] -= 1
            _admit(requests, state, request, worker)


@compiled
def advance(requests: Requests, state: State, loads: IntArray, active: IntArray, row: int) -> None:
    """Record loads and active requests in a row, pass the barrier, and free what has ended."""
    counters = state.counters
    length = state.loads.shape[1]
    place = counters[STEP] % length
    for worker in range(len(state.slots)):
        loads[row, worker] = state.loads[worker, place]
        active[row, worker] = state.active[worker]
        counters[MADE] += state.active[worker]
        state.loads[worker, place] = 0
    if state.believed.shape[1]:
        state.believed[:, place] = 0
    counters[STEP] += 1
    place = counters[STEP] % length
    request = state.leaving[place]
    state.leaving[place] = NONE
    while request != NONE:
        worker = state.workers[request]
        output = requests.outputs[request]
        state.active[worker] -= 1
        state.memory[worker] += requests.reserved[request]
        counters[DONE] += 1
        counters[DONE_SIZES] += requests.sizes[request]
        last = requests.first[request] + min(output - 1, requests.last[request])
        counters[DONE_GAINS] += requests.gains[last]
        if state.believed.shape[1]:
            rest = np.array([output, state.lasts[request], -1])
            _add_profile(requests, state.believed, worker, request, state.starts[request], rest)
        request = state.next_leaving[request]
    request = state.telling[place]
    state.telling[place] = NONE
    while request != NONE:
        following = state.next_telling[request]
        _believe(requests, state, request)
        request = following
