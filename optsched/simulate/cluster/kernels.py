"""The state of a cluster, and its kernels: parts of a step that no policy decides, then rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import descending, largest, repeated, total
from optsched.errors import PolicyError
from optsched.simulate.cluster.routing import NEVER, BalanceRouting
from optsched.solvers.balance_kernels import UNLIMITED, assign_inside

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records

NONE = -1


class ClusterSettings(NamedTuple):
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


class KernelState(NamedTuple):
    """The cluster between two steps: G workers, n requests, R of them in view, T steps ahead."""

    settings: ClusterSettings
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


@compiled_inside
def reveal(state: KernelState, revealing: bool) -> int:
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


@allocating_inside
def seen_loads(state: KernelState, believed: IntArray | None, lookahead: int) -> IntArray:
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


@compiled_inside
def _add_profile(
    state: KernelState, ring: IntArray, index: int, age: int, end: int, sign: int
) -> None:
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


@compiled_inside
def _admit(state: KernelState, believed: IntArray | None, index: int, place: int) -> None:
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


@compiled_inside
def _believe(state: KernelState, believed: IntArray, index: int) -> None:
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


@compiled_inside
def admit(state: KernelState, believed: IntArray | None, chosen: IntArray) -> None:
    """Put the chosen requests on their workers, or into their queues; the others stay waiting."""
    now, requests, workers = state.now[0], state.requests, state.workers
    kept = 0
    for position in range(now.waiting):
        index, place = state.waiting[position], chosen[position]
        if place == NONE:
            state.waiting[kept] = index
            kept += 1
        elif state.settings.instant:
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
    if not state.settings.instant:
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


@compiled_inside
def advance(state: KernelState, believed: IntArray | None, columns: Columns, row: int) -> None:
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
    columns.seconds[row] = state.settings.overhead_s + state.settings.seconds_per_token * most
    if not state.settings.timed:
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


#: All but the last place one request after the other, the oldest first, until one fits nowhere.
RULES = ("fcfs", "jsq", "round-robin", "power-of-d", "lpt")
_FCFS, _JSQ, _ROUND_ROBIN, _POWER_OF_D, _LPT, BALANCED = range(6)


@allocating_inside
def _in_turn(state: KernelState) -> IntArray:
    """Choose a worker for each waiting request, or NONE."""
    requests, workers = state.requests, state.workers
    chosen = repeated(NONE, state.now[0].waiting)
    held, room = np.empty(len(workers), dtype=np.int64), np.empty(len(workers), dtype=np.int64)
    memory, able = np.empty(len(workers), dtype=np.int64), np.empty(len(workers), dtype=np.int64)
    spare = NEVER // 2 if state.settings.instant else 0  # a queue has room for all
    for place in range(len(workers)):
        worker = workers[place]
        held[place] = worker.active + worker.queue_length
        room[place] = worker.slots - held[place] + spare
        memory[place] = worker.memory + spare
    for position in range(len(chosen)):
        index = state.waiting[position]
        reserved, count = requests[index].reserved, 0
        for place in range(len(workers)):
            if room[place] > 0 and memory[place] >= reserved:
                able[count] = place
                count += 1
        if count == 0:
            break
        place = _pick(state, state.settings.rule, state.draws[index], able[:count], held, room)
        chosen[position] = place
        held[place] += 1
        room[place] -= 1
        memory[place] -= reserved
    return chosen


@compiled_inside
def _pick(
    state: KernelState, rule: int, draws: FloatArray, able: IntArray, held: IntArray, room: IntArray
) -> int:
    """Choose among the workers that are able to take a request."""
    now, best, ties = state.now[0], able[0], 0
    if rule == _FCFS:
        for worker in able:
            if room[worker] > room[best]:
                best = worker
    elif rule == _ROUND_ROBIN:
        for worker in able:
            if worker >= now.turn:
                best = worker
                break
        now.turn = best + 1
    elif rule == _POWER_OF_D:
        for drawn in range(min(len(able), len(draws))):
            place = drawn + int(draws[drawn] * (len(able) - drawn))
            able[drawn], able[place] = able[place], able[drawn]
            if held[able[drawn]] < held[best] or drawn == 0:
                best = able[drawn]
    else:
        for worker in able:
            if held[worker] < held[best]:
                best, ties = worker, 0
            ties += held[worker] == held[best]
        ties = int(draws[0] * ties)  # among equals at random
        for worker in able:
            if held[worker] == held[best]:
                if ties == 0:
                    return int(worker)
                ties -= 1
    return int(best)


class Space(NamedTuple):
    """What each worker can still be given, and what it holds; shape (G,)."""

    slots: IntArray
    memory: IntArray
    loads: IntArray


@allocating_inside
def open_space(state: KernelState) -> Space:
    """Return the space before admission."""
    now, workers = state.now[0], state.workers
    slots, memory = np.empty(len(workers), dtype=np.int64), np.empty(len(workers), dtype=np.int64)
    loads = np.empty(len(workers), dtype=np.int64)
    # A queue may hold its share of what waits, and has room for all that are new in any case.
    share = -(-(now.waiting + now.queued) // len(workers))
    for place in range(len(workers)):
        worker = workers[place]
        slots[place] = worker.slots - worker.active
        memory[place] = worker.memory
        loads[place] = state.loads[place, now.step % len(state.lists)] + worker.queue_tokens
        if state.settings.instant:
            slots[place] = max(share - worker.queue_length, 0)
            memory[place] = NEVER
    return Space(slots, memory, loads)


@allocating_inside
def waiting_sizes(state: KernelState) -> IntArray:
    """Return the sizes of the waiting requests, oldest first."""
    sizes = np.empty(state.now[0].waiting, dtype=np.int64)
    for position in range(len(sizes)):
        sizes[position] = state.requests[state.waiting[position]].size
    return sizes


@compiled_inside
def _give(space: Space, worker: int, request: Records) -> None:
    space.slots[worker] -= 1
    space.memory[worker] -= request.reserved
    space.loads[worker] += request.size


@compiled_inside
def _give_lightest(state: KernelState, space: Space, chosen: IntArray, position: int) -> None:
    """Choose the worker with room that is least loaded with a request, or NONE."""
    request = state.requests[state.waiting[position]]
    best, least = NONE, 0
    for worker in range(len(space.slots)):
        if space.slots[worker] > 0 and space.memory[worker] >= request.reserved:
            work = state.slowness[worker] * (space.loads[worker] + request.size)
            if best == NONE or work < least:
                best, least = worker, work
    chosen[position] = best
    if best != NONE:
        _give(space, best, request)


@allocating_inside
def _longest_first(state: KernelState) -> IntArray:
    """Choose for the oldest requests that have slots, the largest first."""
    space = open_space(state)
    sizes = waiting_sizes(state)
    chosen = repeated(NONE, len(sizes))
    sizes = sizes[: total(space.slots)]
    for position in descending(sizes):
        _give_lightest(state, space, chosen, position)
    return chosen


@allocating_inside
def keep_to_memory(state: KernelState, chosen: IntArray) -> None:
    """Undo what does not fit, then fill the slots left with the oldest that fit."""
    space = open_space(state)
    sizes = waiting_sizes(state)
    for position in descending(sizes):
        worker, request = chosen[position], state.requests[state.waiting[position]]
        if worker != NONE and space.memory[worker] >= request.reserved:
            _give(space, worker, request)
        else:
            chosen[position] = NONE
    for position in range(len(chosen)):
        if chosen[position] == NONE:
            _give_lightest(state, space, chosen, position)


GAINED = 7.5  # fitted, as `window_scale` of `BalanceRouting` is


@allocating
def run_steps(
    state: KernelState, believed: IntArray | None, columns: Columns, revealing: bool
) -> int:
    """Run so many steps, or until all requests are done; return the number of steps that ran."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            if state.settings.rule == BALANCED:
                chosen = _balanced(state, believed)
            else:
                chosen = _longest_first(state) if state.settings.rule == _LPT else _in_turn(state)
            admit(state, believed, chosen)
        advance(state, believed, columns, row)
    return len(columns.waiting)


@allocating_inside
def _balanced(state: KernelState, believed: IntArray | None) -> IntArray:
    """Choose by the program of the step, for as many admissions as there is room for."""
    loads, slots, sizes, growth, slowness, bonus = _step_now(state, believed)
    memory = repeated(UNLIMITED, len(slots))
    chosen = assign_inside(
        loads, slots, sizes, growth, slowness, bonus, memory, state.settings.rounds
    )
    if state.settings.limited:
        keep_to_memory(state, chosen)
    return chosen


class _Step(NamedTuple):
    """What the program of a step knows, as of `BalanceState`."""

    loads: IntArray
    slots: IntArray
    sizes: IntArray
    growth: IntArray
    slowness: IntArray
    bonus: IntArray


@allocating_inside
def _step_now(state: KernelState, believed: IntArray | None) -> _Step:
    """Return the program of this step."""
    lookahead = window_now(state)
    loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
    sizes, slots = waiting_sizes(state), open_space(state).slots
    if state.settings.instant:
        add_queues(state, loads, growth)
    bonus = repeated(0, len(sizes))
    if not state.settings.patient:
        add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
    return _Step(loads, slots, sizes, growth, state.slowness, bonus)


@compiled_inside
def add_queues(state: KernelState, loads: IntArray, growth: IntArray) -> None:
    """Add what waits in the queues of workers to their loads."""
    for place in range(len(loads)):
        worker = state.workers[place]
        for ahead in range(len(growth)):
            loads[place, ahead] += worker.queue_tokens + worker.queue_length * growth[ahead]


@compiled_inside
def window_now(state: KernelState) -> int:
    """Return the number of steps to look ahead now."""
    now = state.now[0]
    if state.settings.adaptive == 0.0:
        return state.settings.lookahead
    if now.done == 0:
        return 0
    slots = 0
    for worker in state.workers:
        slots += worker.slots
    between = now.made / now.done * len(state.workers) / slots
    gained = now.done_gains / max(1, now.done_sizes)
    wanted = state.settings.adaptive * (1 + GAINED * gained) * between
    return int(max(0.0, min(float(state.settings.lookahead), wanted + 0.5)))


@compiled_inside
def add_bonus(state: KernelState, sizes: IntArray, cost: int, bonus: IntArray) -> None:
    """Say what admission of each waiting request is worth beyond balance, by its wait."""
    most = float(cost * largest(sizes))
    for position in range(len(sizes)):
        request = state.requests[state.waiting[position]]
        if request.patience > 0:
            share = (state.now[0].step - request.revealed) / request.patience
            bonus[position] = np.int64(most * share * share)


_keep_to_memory = compiled(keep_to_memory)


@allocating
def _step_apart(state: KernelState, believed: IntArray | None) -> tuple[IntArray, ...]:
    """Return the step as arrays: numba makes named tuples by calls into Python, deaf to errors."""
    step = _step_now(state, believed)
    return step.loads, step.slots, step.sizes, step.growth, step.slowness, step.bonus


def choose_solved(
    routing: BalanceRouting, state: KernelState, believed: IntArray | None, _: bool
) -> IntArray:
    """Choose workers as `_balanced` does, by a solver at every step."""
    step = _Step(*_step_apart(state, believed))
    chosen = np.full(len(step.sizes), NONE)
    if step.slots.any():
        chosen = solve_step(step, routing)
    if state.settings.limited:
        _keep_to_memory(state, chosen)
    return chosen


def solve_step(step: _Step, routing: BalanceRouting) -> IntArray:
    """Solve the program of one step; the solver has one thread, so that a run can be repeated."""
    from optsched.models.balance import BalanceProgram, BalanceState
    from optsched.solvers.backends.base import Options
    from optsched.solvers.balance import assign_balanced

    loads, slots, sizes, growth, slowness, bonus = step
    now = BalanceState(loads, slots, sizes, np.diff(growth), slowness, bonus=bonus)
    options = Options(time_limit=routing.time_limit, threads=1)
    found = assign_balanced(BalanceProgram(now), routing.method, options)
    if found.answer is None:
        raise PolicyError(
            f"{routing.method} found no assignment of {len(sizes)} requests: {found.status}"
        )
    return np.array(found.answer.worker)
