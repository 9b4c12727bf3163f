"""The routing policies, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.cluster.information import NEVER
from optsched.simulate.cluster.state import (
    DONE,
    DONE_GAINS,
    DONE_SIZES,
    MADE,
    NONE,
    QUEUED,
    STEP,
    TURN,
    WAITING,
    seen_loads,
)
from optsched.solvers.balance.kernels import assign_by_deficit, assign_by_greedy, assign_by_swap

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.cluster.state import Requests, Settings, State

FCFS, JSQ, ROUND_ROBIN, POWER_OF_D, LPT, BALANCE = range(6)
SWAP, GREEDY, DEFICIT = range(3)

GAINED = 7.5  # fitted, as `window_scale` of `BalanceRouting` is


@compiled
def window(state: State, settings: Settings) -> int:
    """Return the number of steps to look ahead now."""
    counters = state.counters
    if settings.adaptive == 0.0:
        return settings.lookahead
    if counters[DONE] == 0:
        return 0
    between = counters[MADE] / counters[DONE] * len(state.slots) / state.slots.sum()
    gained = counters[DONE_GAINS] / max(1, counters[DONE_SIZES])
    wanted = settings.adaptive * (1 + GAINED * gained) * between
    return int(max(0.0, min(float(settings.lookahead), wanted + 0.5)))


@compiled
def bonuses(requests: Requests, state: State, lookahead: int) -> IntArray:
    """Say what admission of each waiting request is worth beyond balance, by its wait."""
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
    """Choose a worker for one request; NONE where it fits nowhere."""
    workers = len(room)
    best = NONE
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
            if best == NONE or held[worker] < held[best]:
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
            if best == NONE or room[worker] > room[best]:
                best = worker
        elif best == NONE or held[worker] < held[best]:
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
    chosen = np.full(count, NONE)
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
        if worker == NONE:
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
    best = NONE
    least = 0
    for worker in range(len(room)):
        if room[worker] > 0 and memory[worker] >= reserved:
            work = state.slowness[worker] * (loads[worker] + size)
            if best == NONE or work < least:
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
    chosen = np.full(count, NONE)
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
        if worker != NONE:
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
        if worker != NONE:
            reserved = requests.reserved[state.waiting[position]]
            if memory[worker] < reserved:
                chosen[position] = NONE
                continue
            room[worker] -= 1
            memory[worker] -= reserved
            loads[worker] += sizes[position]
    for position in range(len(chosen)):
        if chosen[position] == NONE:
            reserved = requests.reserved[state.waiting[position]]
            worker = _lightest(state, loads, room, memory, reserved, sizes[position])
            if worker != NONE:
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
    if settings.patient:
        bonus = np.zeros(count, dtype=np.int64)
    else:
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
    """Choose a worker for each waiting request, or NONE."""
    if settings.rule == BALANCE:
        return _balance(requests, state, settings)
    if settings.rule == LPT:
        return _longest_first(requests, state, settings)
    return _walk(requests, state, settings)
