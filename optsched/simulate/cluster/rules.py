"""Routing by counts or current loads, step by step; compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_apart
from optsched.simulate.cluster.routing import NEVER
from optsched.simulate.cluster.state import NONE, admit, advance, reveal
from optsched.solvers.balance.greedy_kernels import ascending, largest, total

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.simulate.cluster.state import Columns, Settings, State

#: Policies that place one request after the other, the oldest first, until one fits nowhere.
IN_TURN = ("fcfs", "jsq", "round-robin", "power-of-d")
_FCFS, _JSQ, _ROUND_ROBIN, _POWER_OF_D = range(4)


@compiled
def run_in_turn(
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
            admit(state, believed, settings, _in_turn(state, settings))
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


@compiled_apart
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


@compiled_apart
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
def run_longest_first(
    state: State,
    believed: IntArray | None,
    settings: Settings,
    columns: Columns,
    revealing: bool,
) -> int:
    """Do as `run_in_turn`, with the oldest requests that have slots, the largest first."""
    for row in range(len(columns.waiting)):
        waiting = reveal(state, revealing)
        if waiting == NONE:
            return row
        if waiting > 0:
            admit(state, believed, settings, _longest_first(state, settings))
        advance(state, believed, settings, columns, row)
    return len(columns.waiting)


@compiled_apart
def _longest_first(state: State, settings: Settings) -> IntArray:
    space = open_space(state, settings)
    sizes = waiting_sizes(state)
    chosen = np.full(len(sizes), NONE)
    sizes = sizes[: total(space.slots)]
    for position in ascending(largest(sizes) - sizes):
        _give_lightest(state, space, chosen, position)
    return chosen


@compiled_apart
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
