"""Batches that wait for thresholds: WAIT and Nested WAIT (Fluid Alg. 1 and 2).

Requests pass through segments, runs of consecutive stages. In front of a segment they queue, in
front of a first one as prompts and in front of a later one with their KV cache kept. A segment
takes part in a batch when at least as many requests queue as its threshold says, and the segment
before it takes part too. Then it takes that many in, and all those inside advance by one token.
So the requests inside move in convoys, and a segment is fully described by how often it has taken
part: a request taken in at the t-th time leaves a known number of times later.

WAIT has one segment per type of request; Nested WAIT has a chain of segments for all.

The flush rule for finite traces: when no arrivals are left, every segment with requests in it takes
part, whatever its threshold.

If a batch would need more memory than there is, fewer prompts are taken in; where that is not
enough, requests lose all their tokens and queue again in front, the one admitted last first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.simulate.seconds.batches import BatchLog, Timer, add_batch, enlarged, is_full, new_log

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.policies.wait import Queues

_RELEASED, _USAGE, _ADMITTED, _FLUSHING = range(4)
_NONE = _NEVER = -1


class Waiting(NamedTuple):
    """State between two batches: (n,) arrays per request, (m,) arrays per segment."""

    arrivals: FloatArray
    prompts: IntArray
    outputs: IntArray
    entrance: IntArray  # first segment of each request
    made: IntArray  # output tokens when the request last changed places
    stay: IntArray  # tokens it makes in the segment it is in
    place: IntArray  # the list it is in
    following: IntArray
    admitted: IntArray  # rank of its admission; -1 while it holds no KV cache
    first: IntArray
    last: IntArray
    preempted: IntArray  # how often
    lost: IntArray  # tokens made in attempts that were preempted
    heads: IntArray
    tails: IntArray
    ring: IntArray
    turns: IntArray
    length: IntArray  # tokens made in each segment at most
    before: IntArray  # the segment before; -1 for a first one
    after: IntArray
    turn: IntArray  # how often each segment took part
    queued: IntArray
    inside: IntArray
    tokens: IntArray  # held by those inside
    takes: IntArray  # requests taken into the batch that is formed; -1 where it sits it out
    counters: IntArray


def serve_waiting(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: FloatArray,
    memory: int,
    clock: Clock,
    queues: Queues,
    until: float = np.inf,
) -> tuple[Waiting, BatchLog]:
    """Serve requests when enough of them wait; return the state at the end, and the batches."""
    before, length = queues.before, queues.length
    count, segments = len(prompts), len(before)
    length = np.minimum(length, outputs.max())
    turns = length + 1
    ring = segments + np.concatenate(([0], np.cumsum(turns)[:-1]))
    after = np.full(segments, _NONE, dtype=np.int64)
    for segment in range(segments):
        if before[segment] >= 0:
            after[before[segment]] = segment

    def filled(value: int, size: int) -> IntArray:
        return np.full(size, value, dtype=np.int64)

    lists = segments + int(turns.sum())
    state = Waiting(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        entrance=queues.entrance,
        made=filled(0, count),
        stay=filled(0, count),
        place=filled(_NONE, count),
        following=filled(_NONE, count),
        admitted=filled(_NEVER, count),
        first=filled(_NEVER, count),
        last=filled(_NEVER, count),
        preempted=filled(0, count),
        lost=filled(0, count),
        heads=filled(_NONE, lists),
        tails=filled(_NONE, lists),
        ring=ring,
        turns=turns,
        length=length,
        before=before,
        after=after,
        turn=filled(0, segments),
        queued=filled(0, segments),
        inside=filled(0, segments),
        tokens=filled(0, segments),
        takes=filled(_NEVER, segments),
        counters=filled(0, _FLUSHING + 1),
    )
    timer = Timer(clock)
    log = _run(state, new_log(), timer.handle, memory, queues, until)
    timer.reraise()
    return state, log.finished()


@compiled
def _run(
    state: Waiting,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    memory: int,
    queues: Queues,
    until: float,
) -> BatchLog:
    counters, arrivals = state.counters, state.arrivals
    while True:
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= log.now[0]:
            _append(state, state.entrance[released], released)
            state.queued[state.entrance[released]] += 1
            released += 1
        counters[_RELEASED] = released
        counters[_FLUSHING] = released == len(arrivals)
        if log.now[0] >= until:
            return log
        period = np.searchsorted(queues.changes, log.now[0], side="right") - 1
        levels = queues.thresholds[period]
        if not _invite(state, levels):
            if counters[_FLUSHING]:
                return log
            log.now[0] = arrivals[released]
            continue
        while not _fit(state, memory):
            _preempt_latest(state)
            _invite(state, levels)
        row = log.state[0]
        if is_full(log):
            log = enlarged(log)
        if not _take_in(state, log, timer):
            return log
        for segment in range(len(state.takes)):
            if state.takes[segment] >= 0:
                _let_leave(state, segment, row)


@compiled
def _invite(state: Waiting, thresholds: IntArray) -> bool:
    """Decide which segments take part, and how many each takes in."""
    any_joins = False
    for segment in range(len(thresholds)):
        queued, before = state.queued[segment], state.before[segment]
        if state.counters[_FLUSHING]:
            joins = queued + state.inside[segment] > 0
        else:
            joins = queued >= thresholds[segment] and (before < 0 or state.takes[before] >= 0)
        state.takes[segment] = min(queued, thresholds[segment]) if joins else _NEVER
        any_joins = any_joins or joins
    return any_joins


@compiled
def _fit(state: Waiting, memory: int) -> bool:
    """Take in only as many prompts as fit; tells whether the batch then fits and is not empty."""
    room = memory - state.counters[_USAGE]
    moving = 0
    for segment in range(len(state.takes)):  # one token for each that has been prefilled
        if state.takes[segment] >= 0:
            moving += state.inside[segment]
            if state.before[segment] >= 0:
                moving += state.takes[segment]
    room -= moving
    for segment in range(len(state.takes)):
        if state.takes[segment] > 0 and state.before[segment] < 0:
            taken = 0
            request = state.heads[segment]
            while taken < state.takes[segment] and state.prompts[request] + 1 <= room:
                room -= state.prompts[request] + 1
                request = state.following[request]
                taken += 1
            state.takes[segment] = taken
            moving += taken
    return room >= 0 and moving > 0


@compiled
def _take_in(state: Waiting, log: BatchLog, timer: tuple[FloatArray, Any]) -> bool:
    """Let those taken in enter their segments, and run the batch if the clock can time it."""
    prefill = entered = decodes = resident = squares = 0
    for segment in range(len(state.takes)):
        takes = state.takes[segment]
        if takes < 0:
            continue
        decodes += state.inside[segment]
        resident += state.tokens[segment]
        for _ in range(takes):
            request = state.heads[segment]
            _unlink(state, request, _NONE)
            state.queued[segment] -= 1
            held = state.prompts[request] + state.made[request]
            if state.admitted[request] < 0:
                state.counters[_ADMITTED] += 1
                state.admitted[request] = state.counters[_ADMITTED]
                state.first[request] = log.state[0]
                state.counters[_USAGE] += held
            if held > state.prompts[request] or held == 0:
                decodes += 1
                resident += held
            else:
                entered += 1
                prefill += held
                squares += held * held
            stay = min(state.length[segment], state.outputs[request] - state.made[request])
            state.stay[request] = stay
            leaves = (state.turn[segment] + stay) % state.turns[segment]
            _append(state, state.ring[segment] + leaves, request)
            state.inside[segment] += 1
            state.tokens[segment] += held
        # All inside make a token.
        state.turn[segment] += 1
        state.tokens[segment] += state.inside[segment]
        state.counters[_USAGE] += state.inside[segment]
    held = prefill + entered + resident + decodes
    return add_batch(log, timer, prefill, decodes, resident, squares, held, state.counters[_USAGE])


@compiled
def _let_leave(state: Waiting, segment: int, row: int) -> None:
    """After a batch: what has passed the segment is complete or queues for the next one."""
    place = state.ring[segment] + state.turn[segment] % state.turns[segment]
    while state.heads[place] >= 0:
        request = state.heads[place]
        _unlink(state, request, _NONE)
        state.made[request] += state.stay[request]
        state.stay[request] = 0
        held = state.prompts[request] + state.made[request]
        state.inside[segment] -= 1
        state.tokens[segment] -= held
        if state.made[request] == state.outputs[request]:
            state.last[request] = row
            state.counters[_USAGE] -= held
        else:
            following = state.after[segment]
            _append(state, following, request)
            state.queued[following] += 1


@compiled
def _preempt_latest(state: Waiting) -> None:
    """Let the request admitted last lose all its tokens; it queues again in front."""
    latest = _NONE
    for request in range(state.counters[_RELEASED]):
        holds = state.admitted[request] >= 0 and state.last[request] < 0
        if holds and (latest < 0 or state.admitted[request] > state.admitted[latest]):
            latest = request
    place, made = state.place[latest], state.made[latest]
    segments = len(state.takes)
    if place < segments:
        state.queued[place] -= 1
    else:
        segment = np.searchsorted(state.ring, place, side="right") - 1
        # Its place tells how many turns it has still to go.
        turns = state.turns[segment]
        left = (place - state.ring[segment] - state.turn[segment]) % turns
        made += state.stay[latest] - left
        state.inside[segment] -= 1
        state.tokens[segment] -= state.prompts[latest] + made
    before = _NONE
    request = state.heads[place]
    while request != latest:
        before = request
        request = state.following[request]
    _unlink(state, latest, before)
    state.counters[_USAGE] -= state.prompts[latest] + made
    state.preempted[latest] += 1
    state.lost[latest] += made
    state.made[latest] = state.stay[latest] = 0
    state.admitted[latest] = _NEVER
    entrance = state.entrance[latest]
    state.following[latest] = state.heads[entrance]
    state.heads[entrance] = latest
    if state.tails[entrance] < 0:
        state.tails[entrance] = latest
    state.place[latest] = entrance
    state.queued[entrance] += 1


@compiled
def _append(state: Waiting, place: int, request: int) -> None:
    """Add a request at the end of a list."""
    if state.heads[place] < 0:
        state.heads[place] = request
    else:
        state.following[state.tails[place]] = request
    state.tails[place] = request
    state.following[request] = _NONE
    state.place[request] = place


@compiled
def _unlink(state: Waiting, request: int, before: int) -> None:
    """Take a request out of its list, given the one before it there."""
    place, following = state.place[request], state.following[request]
    if before < 0:
        state.heads[place] = following
    else:
        state.following[before] = following
    if following < 0:
        state.tails[place] = before
    state.place[request] = _NONE
