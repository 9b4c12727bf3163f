"""Kernels of routing rules on a cluster, and programs that are solved at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.small_kernels import ascending, largest, total
from optsched.errors import PolicyError
from optsched.simulate.cluster.routing import NEVER
from optsched.simulate.cluster.state import NONE, admit, advance, reveal, seen_loads
from optsched.solvers.balance.kernels import UNLIMITED, assign

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.simulate.cluster.routing import BalanceRouting
    from optsched.simulate.cluster.state import Columns, Settings, State


#: All but the last place one request after the other, the oldest first, until one fits nowhere.
RULES = ("fcfs", "jsq", "round-robin", "power-of-d", "lpt")
_FCFS, _JSQ, _ROUND_ROBIN, _POWER_OF_D, _LPT = range(5)


@compiled
def run_rule(
    state: State,
    believed: IntArray | None,
    settings: Settings,
    columns: Columns,
    revealing: bool,
) -> int:
    """Run so many steps, or until all requests are done; return the number of steps that ran."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            if settings.rule == _LPT:
                chosen = _longest_first(state, settings)
            else:
                chosen = _in_turn(state, settings)
            admit(state, believed, settings, chosen)
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


@compiled
def _in_turn(state: State, settings: Settings) -> IntArray:
    """Choose a worker for each waiting request, or NONE."""
    requests, workers = state.requests, state.workers
    chosen = np.full(state.now[0].waiting, NONE)
    held, room, memory, able = np.empty((4, len(workers)), dtype=np.int64)
    spare = NEVER // 2 if settings.instant else 0  # a queue has room for all
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
        place = _pick(state, settings.rule, state.draws[index], able[:count], held, room)
        chosen[position] = place
        held[place] += 1
        room[place] -= 1
        memory[place] -= reserved
    return chosen


@compiled
def _pick(
    state: State, rule: int, draws: FloatArray, able: IntArray, held: IntArray, room: IntArray
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


@compiled
def open_space(state: State, settings: Settings) -> Space:
    """Return the space before admission."""
    now, workers = state.now[0], state.workers
    slots, memory, loads = np.empty((3, len(workers)), dtype=np.int64)
    # A queue may hold its share of what waits, and has room for all that are new in any case.
    share = -(-(now.waiting + now.queued) // len(workers))
    for place in range(len(workers)):
        worker = workers[place]
        slots[place] = worker.slots - worker.active
        memory[place] = worker.memory
        loads[place] = state.loads[place, now.step % len(state.lists)] + worker.queue_tokens
        if settings.instant:
            slots[place] = max(share - worker.queue_length, 0)
            memory[place] = NEVER
    return Space(slots, memory, loads)


@compiled
def waiting_sizes(state: State) -> IntArray:
    """Return the sizes of the waiting requests, oldest first."""
    sizes = np.empty(state.now[0].waiting, dtype=np.int64)
    for position in range(len(sizes)):
        sizes[position] = state.requests[state.waiting[position]].size
    return sizes


@compiled
def _give(space: Space, worker: int, request: Records) -> None:
    space.slots[worker] -= 1
    space.memory[worker] -= request.reserved
    space.loads[worker] += request.size


@compiled
def _give_lightest(state: State, space: Space, chosen: IntArray, position: int) -> None:
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


@compiled
def _longest_first(state: State, settings: Settings) -> IntArray:
    """Choose for the oldest requests that have slots, the largest first."""
    space = open_space(state, settings)
    sizes = waiting_sizes(state)
    chosen = np.full(len(sizes), NONE)
    sizes = sizes[: total(space.slots)]
    for position in ascending(largest(sizes) - sizes):
        _give_lightest(state, space, chosen, position)
    return chosen


@compiled
def keep_to_memory(state: State, settings: Settings, chosen: IntArray) -> None:
    """Undo what does not fit, then fill the slots left with the oldest that fit."""
    space = open_space(state, settings)
    sizes = waiting_sizes(state)
    for position in ascending(largest(sizes) - sizes):
        worker, request = chosen[position], state.requests[state.waiting[position]]
        if worker != NONE and space.memory[worker] >= request.reserved:
            _give(space, worker, request)
        else:
            chosen[position] = NONE
    for position in range(len(chosen)):
        if chosen[position] == NONE:
            _give_lightest(state, space, chosen, position)


GAINED = 7.5  # fitted, as `window_scale` of `BalanceRouting` is


@compiled
def run_balanced(
    state: State,
    believed: IntArray | None,
    settings: Settings,
    columns: Columns,
    revealing: bool,
) -> int:
    """Do as `run_rule`; a kernel of its own, as `assign` takes seconds to compile."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            # As many admissions as there is room for.
            loads, slots, sizes, growth, slowness, bonus = _step_now(state, believed, settings)
            memory = np.empty(len(slots), dtype=np.int64)
            memory[:] = UNLIMITED
            chosen = assign(loads, slots, sizes, growth, slowness, bonus, memory, settings.rounds)
            if settings.limited:
                keep_to_memory(state, settings, chosen)
            admit(state, believed, settings, chosen)
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


class _Step(NamedTuple):
    """What the program of a step knows, as of `BalanceState`."""

    loads: IntArray
    slots: IntArray
    sizes: IntArray
    growth: IntArray
    slowness: IntArray
    bonus: IntArray


@compiled
def _step_now(state: State, believed: IntArray | None, settings: Settings) -> _Step:
    """Return the program of this step."""
    lookahead = window_now(state, settings)
    loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
    sizes, slots = waiting_sizes(state), open_space(state, settings).slots
    if settings.instant:
        add_queues(state, loads, growth)
    bonus = np.empty(len(sizes), dtype=np.int64)
    bonus[:] = 0
    if not settings.patient:
        add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
    return _Step(loads, slots, sizes, growth, state.slowness, bonus)


@compiled
def add_queues(state: State, loads: IntArray, growth: IntArray) -> None:
    """Add what waits in the queues of workers to their loads."""
    for place in range(len(loads)):
        worker = state.workers[place]
        for ahead in range(len(growth)):
            loads[place, ahead] += worker.queue_tokens + worker.queue_length * growth[ahead]


@compiled
def window_now(state: State, settings: Settings) -> int:
    """Return the number of steps to look ahead now."""
    now = state.now[0]
    if settings.adaptive == 0.0:
        return settings.lookahead
    if now.done == 0:
        return 0
    slots = 0
    for worker in state.workers:
        slots += worker.slots
    between = now.made / now.done * len(state.workers) / slots
    gained = now.done_gains / max(1, now.done_sizes)
    wanted = settings.adaptive * (1 + GAINED * gained) * between
    return int(max(0.0, min(float(settings.lookahead), wanted + 0.5)))


@compiled
def add_bonus(state: State, sizes: IntArray, cost: int, bonus: IntArray) -> None:
    """Say what admission of each waiting request is worth beyond balance, by its wait."""
    most = float(cost * largest(sizes))
    for position in range(len(sizes)):
        request = state.requests[state.waiting[position]]
        if request.patience > 0:
            share = (state.now[0].step - request.revealed) / request.patience
            bonus[position] = np.int64(most * share * share)


def choose_solved(
    routing: BalanceRouting,
    state: State,
    believed: IntArray | None,
    settings: Settings,
    _: bool,
) -> IntArray:
    """Choose workers as `run_balanced` does, by a solver at every step."""
    step = _step_now(state, believed, settings)
    chosen = np.full(len(step.sizes), NONE)
    if step.slots.any():
        chosen = solve_step(step, routing)
    if settings.limited:
        keep_to_memory(state, settings, chosen)
    return chosen


def solve_step(step: _Step, routing: BalanceRouting) -> IntArray:
    """Solve the program of one step; the solver has one thread, so that a run can be repeated."""
    from optsched.models.balance import BalanceProgram, BalanceState
    from optsched.solvers.backends.base import Options
    from optsched.solvers.balance.balance import assign_balanced

    loads, slots, sizes, growth, slowness, bonus = step
    now = BalanceState(loads, slots, sizes, np.diff(growth), slowness, bonus=bonus)
    options = Options(time_limit=routing.time_limit, threads=1)
    found = assign_balanced(BalanceProgram(now), routing.method, options)
    if found.answer is None:
        raise PolicyError(
            f"{routing.method} found no assignment of {len(sizes)} requests: {found.status}"
        )
    return np.array(found.answer.worker)
