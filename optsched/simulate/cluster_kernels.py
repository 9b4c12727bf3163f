"""The cluster step by step, compiled: reveal, route, admit, wait for the slowest, free.

The loads to come are kept as a ring of steps for every worker. Admission adds a request's whole
profile to it, so that the load of any later step is one number to read: oracle lookahead costs
nothing more, and drift may be anything. Where a router believes something else than what will
happen, a second ring holds what it believes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._compiled import compiled
from optsched.cluster.information import NEVER
from optsched.solvers.balance_kernels import assign_by_deficit, assign_by_greedy, assign_by_swap

if TYPE_CHECKING:
    from optsched.instance import FloatArray, IntArray

FCFS, JSQ, ROUND_ROBIN, POWER_OF_D, LPT, BALANCE = range(6)
SWAP, GREEDY, DEFICIT = range(3)

# Places in State.counters.
STEP, REVEALED, WAITING, QUEUED, TURN, DONE, DONE_OUTPUTS, DONE_SIZES, DONE_GAINS = range(9)

NOBODY = -1


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
    """Give the loads of the window as the router sees them before admission, (G, H + 1)."""
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
def window(state: State, settings: Settings) -> int:
    """Give the number of steps to look ahead now.

    On a worker a request leaves every E[o] / B steps. The window can hold more of these steps the
    less of the load that leaves is brought back by requests that the window does not know of.
    """
    counters = state.counters
    if settings.adaptive == 0.0 or counters[DONE] == 0:
        return settings.lookahead if settings.adaptive == 0.0 else 0
    between = counters[DONE_OUTPUTS] / counters[DONE] * len(state.slots) / state.slots.sum()
    left = 1 + counters[DONE_GAINS] / max(1, counters[DONE_SIZES])
    wanted = settings.adaptive * left * left * between
    return int(min(float(settings.lookahead), wanted + 0.5))


@compiled
def bonuses(requests: Requests, state: State, lookahead: int) -> IntArray:
    """Say what admission of each waiting request is worth beyond balance, by its wait.

    Admission can cost no more than G (H + 1) times its size, where it alone raises the heaviest
    worker. At the end of its patience a request is worth that for the largest that waits; the
    square keeps young requests free to wait for their place.
    """
    count = state.counters[WAITING]
    step = state.counters[STEP]
    largest = 0
    for position in range(count):
        largest = max(largest, requests.sizes[state.waiting[position]])
    most = float((lookahead + 1) * len(state.slots) * largest)
    bonus = np.zeros(count, dtype=np.int64)
    for position in range(count):
        request = state.waiting[position]
        if requests.patience[request] > 0:
            share = (step - state.revealed[request]) / requests.patience[request]
            bonus[position] = np.int64(most * share * share)
    return bonus


@compiled
def _pick(
    state: State,
    rule: int,
    room: IntArray,
    held: IntArray,
    memory: IntArray,
    reserved: int,
    instant: int,
    draws: FloatArray,
) -> int:
    """Choose a worker for one request; NOBODY where it fits nowhere."""
    workers = len(room)
    best = NOBODY
    if rule == POWER_OF_D:
        open_workers = np.empty(workers, dtype=np.int64)
        count = 0
        for worker in range(workers):
            if instant or (room[worker] > 0 and memory[worker] >= reserved):
                open_workers[count] = worker
                count += 1
        for drawn in range(min(count, len(draws))):
            place = drawn + int(draws[drawn] * (count - drawn))
            worker = open_workers[place]
            open_workers[place] = open_workers[drawn]
            if best == NOBODY or held[worker] < held[best]:
                best = worker
        return best
    ties = 0
    for offset in range(workers):
        worker = offset
        if rule == ROUND_ROBIN:
            worker = (state.counters[TURN] + offset) % workers
        if not instant and (room[worker] <= 0 or memory[worker] < reserved):
            continue
        if rule == ROUND_ROBIN:
            state.counters[TURN] = worker + 1
            return worker
        if rule == FCFS:
            if best == NOBODY or room[worker] > room[best]:
                best = worker
        elif best == NOBODY or held[worker] < held[best]:
            best, ties = worker, 1
        elif held[worker] == held[best]:
            ties += 1
    if rule == JSQ and ties > 1:  # among equals at random
        chosen = int(draws[0] * ties)
        for worker in range(best, workers):
            if held[worker] == held[best] and (
                instant or (room[worker] > 0 and memory[worker] >= reserved)
            ):
                if chosen == 0:
                    return worker
                chosen -= 1
    return best


@compiled
def _walk(requests: Requests, state: State, settings: Settings) -> IntArray:
    """Place the waiting requests one by one, oldest first, until one fits nowhere."""
    count = state.counters[WAITING]
    chosen = np.full(count, NOBODY)
    held = state.active + state.queue_length
    room = state.slots - held
    memory = state.memory.copy()
    for position in range(count):
        request = state.waiting[position]
        reserved = requests.reserved[request]
        worker = _pick(
            state,
            settings.rule,
            room,
            held,
            memory,
            reserved,
            settings.instant,
            requests.draws[request],
        )
        if worker == NOBODY:
            break
        chosen[position] = worker
        room[worker] -= 1
        held[worker] += 1
        memory[worker] -= reserved
    return chosen


@compiled
def _lightest(
    state: State, loads: IntArray, room: IntArray, memory: IntArray, reserved: int, size: int
) -> int:
    """Find the worker with room that is least loaded with a request of this size."""
    best = NOBODY
    least = 0
    for worker in range(len(room)):
        if room[worker] > 0 and memory[worker] >= reserved:
            work = state.slowness[worker] * (loads[worker] + size)
            if best == NOBODY or work < least:
                best, least = worker, work
    return best


@compiled
def _room(state: State, settings: Settings) -> IntArray:
    """How many requests each worker can still be given."""
    if not settings.instant:
        return state.slots - state.active
    # A queue may hold its share of what waits, and has room for all that are new in any case.
    count = state.counters[WAITING]
    share = -(-(count + state.counters[QUEUED]) // len(state.slots))
    room: IntArray = np.maximum(share - state.queue_length, 0)
    return room


@compiled
def _longest_first(requests: Requests, state: State, settings: Settings) -> IntArray:
    """Take the oldest requests that have slots, and place the largest first on the lightest."""
    count = state.counters[WAITING]
    chosen = np.full(count, NOBODY)
    room = _room(state, settings)
    taken = min(count, room.sum())
    loads = seen_loads(state, 0)[:, 0] + state.queue_tokens
    memory = state.memory.copy()
    if settings.instant:
        memory[:] = NEVER
    sizes = np.empty(taken, dtype=np.int64)
    for position in range(taken):
        sizes[position] = requests.sizes[state.waiting[position]]
    for position in np.argsort(-sizes, kind="mergesort"):
        request = state.waiting[position]
        reserved = requests.reserved[request]
        worker = _lightest(state, loads, room, memory, reserved, sizes[position])
        if worker != NOBODY:
            chosen[position] = worker
            room[worker] -= 1
            memory[worker] -= reserved
            loads[worker] += sizes[position]
    return chosen


@compiled
def _keep_to_memory(
    requests: Requests, state: State, chosen: IntArray, sizes: IntArray, loads: IntArray
) -> None:
    """Take back what does not fit, then fill the slots left with the oldest that fit."""
    room = state.slots - state.active
    memory = state.memory.copy()
    for position in np.argsort(-sizes, kind="mergesort"):
        worker = chosen[position]
        if worker != NOBODY:
            reserved = requests.reserved[state.waiting[position]]
            if memory[worker] < reserved:
                chosen[position] = NOBODY
                continue
            room[worker] -= 1
            memory[worker] -= reserved
            loads[worker] += sizes[position]
    for position in range(len(chosen)):
        if chosen[position] == NOBODY:
            reserved = requests.reserved[state.waiting[position]]
            worker = _lightest(state, loads, room, memory, reserved, sizes[position])
            if worker != NOBODY:
                chosen[position] = worker
                room[worker] -= 1
                memory[worker] -= reserved
                loads[worker] += sizes[position]


@compiled
def _balance(requests: Requests, state: State, settings: Settings) -> IntArray:
    """Solve the step program, exactly as many admissions as there is room for."""
    lookahead = window(state, settings)
    loads = seen_loads(state, lookahead)
    count = state.counters[WAITING]
    sizes = np.empty(count, dtype=np.int64)
    for position in range(count):
        sizes[position] = requests.sizes[state.waiting[position]]
    room = _room(state, settings)
    growth = requests.growth[: lookahead + 1].copy()
    if settings.instant:
        for worker in range(len(room)):
            for ahead in range(lookahead + 1):
                loads[worker, ahead] += (
                    state.queue_tokens[worker] + state.queue_length[worker] * growth[ahead]
                )
    bonus = bonuses(requests, state, lookahead)
    if settings.method == SWAP:
        chosen = assign_by_swap(loads, room, sizes, growth, state.slowness, bonus, settings.rounds)
    elif settings.method == GREEDY:
        chosen = assign_by_greedy(loads, room, sizes, growth, state.slowness, bonus)
    else:
        chosen = assign_by_deficit(loads, room, sizes)
    if settings.limited and not settings.instant:
        _keep_to_memory(requests, state, chosen, sizes, loads[:, 0].copy())
    return chosen


@compiled
def route(requests: Requests, state: State, settings: Settings) -> IntArray:
    """Choose a worker for each waiting request, or NOBODY."""
    if settings.rule == BALANCE:
        return _balance(requests, state, settings)
    if settings.rule == LPT:
        return _longest_first(requests, state, settings)
    return _walk(requests, state, settings)


@compiled
def _add_profile(
    requests: Requests, ring: IntArray, worker: int, request: int, start: int, span: IntArray
) -> None:
    """Add ages span[0] .. span[1] - 1 of a request to a ring, span[2] times."""
    length = ring.shape[1]
    size = requests.sizes[request]
    first, last = requests.first[request], requests.last[request]
    place = (start + span[0]) % length
    for age in range(span[0], span[1]):
        ring[worker, place] += span[2] * (size + requests.gains[first + min(age, last)])
        place += 1
        if place == length:
            place = 0


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
        if worker == NOBODY:
            state.waiting[kept] = request
            kept += 1
        elif settings.instant:
            if state.queue_head[worker] == NOBODY:
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
            state.queue_head[worker] != NOBODY
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
        state.loads[worker, place] = 0
    if state.believed.shape[1]:
        state.believed[:, place] = 0
    counters[STEP] += 1
    place = counters[STEP] % length
    request = state.leaving[place]
    state.leaving[place] = NOBODY
    while request != NOBODY:
        worker = state.workers[request]
        output = requests.outputs[request]
        state.active[worker] -= 1
        state.memory[worker] += requests.reserved[request]
        counters[DONE] += 1
        counters[DONE_OUTPUTS] += output
        counters[DONE_SIZES] += requests.sizes[request]
        last = requests.first[request] + min(output - 1, requests.last[request])
        counters[DONE_GAINS] += requests.gains[last]
        if state.believed.shape[1]:
            rest = np.array([output, state.lasts[request], -1])
            _add_profile(requests, state.believed, worker, request, state.starts[request], rest)
        request = state.next_leaving[request]
    request = state.telling[place]
    state.telling[place] = NOBODY
    while request != NOBODY:
        following = state.next_telling[request]
        _believe(requests, state, request)
        request = following


@compiled
def run_steps(
    requests: Requests,
    state: State,
    settings: Settings,
    loads: IntArray,
    active: IntArray,
    waiting: IntArray,
    steps: int,
    revealing: bool,
) -> int:
    """Run so many steps, or until all requests are done; give the number of steps that ran."""
    counters = state.counters
    for row in range(steps):
        if counters[DONE] == (len(requests.sizes) if revealing else counters[REVEALED]):
            return row
        if revealing:
            reveal(requests, state, settings.reveal)
        if counters[WAITING] > 0 or counters[QUEUED] > 0:
            admit(requests, state, settings, route(requests, state, settings))
        waiting[row] = counters[WAITING] + counters[QUEUED]
        advance(requests, state, loads, active, row)
    return steps
