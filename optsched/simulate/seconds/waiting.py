"""Batches that wait for thresholds: WAIT and Nested WAIT (Ao et al., Alg. 1 and 2).

Requests pass through segments, runs of consecutive stages. In front of a segment they queue, in
front of a first one as prompts and in front of a later one with their KV cache kept. A segment
takes part in a batch when at least as many requests queue as its threshold says, and the segment
before it takes part too. Then it takes that many in, and everybody inside advances by one token.
So the requests inside move in convoys, and a segment is fully described by how often it has taken
part: a request taken in at the t-th time leaves a known number of times later.

WAIT has one segment per type of request; Nested WAIT has a chain of segments for all.

The flush rule for finite traces: when no arrivals are left, every segment with anybody in it takes
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

_RELEASED, _USAGE, _ADMITTED, _FLUSHING = range(4)
_NOBODY = _NEVER = -1


class Hall(NamedTuple):
    """State between two batches: (n,) arrays per request, (m,) arrays per segment.

    Lists are linked through `following`: list i is the queue of segment i, and the lists from
    `ring[i]` on hold who leaves segment i at which of its turns, modulo `turns[i]`.
    """

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
    evicted: IntArray  # how often
    wasted: IntArray  # tokens made in vain
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
    *,
    entrance: IntArray,
    before: IntArray,
    length: IntArray,
    changes: FloatArray,
    thresholds: IntArray,
    until: float = np.inf,
) -> tuple[Hall, BatchLog]:
    """Serve requests when enough of them wait.

    Parameters
    ----------
    prompts, outputs
        Tokens of each request, shape (n,); outputs are looked at only to see who is complete.
    arrivals
        Ascending times of arrival in the clock's unit, shape (n,).
    memory
        Tokens that the worker holds at most.
    clock
        Gives the duration of a batch.
    entrance
        First segment of each request, shape (n,).
    before
        The segment before each one, which has a smaller index, or -1; shape (m,).
    length
        Tokens made in each segment before a request leaves it, shape (m,).
    changes
        Ascending times from which thresholds hold, the first one 0, shape (p,).
    thresholds
        Of each segment from each of these times on, at least 1, shape (p, m).
    until
        Form no batch at or after this time.

    Returns
    -------
    hall
        What is known at the end; `first` and `last` are rows of the log, -1 where never.
    log
        The batches.
    """
    count, segments = len(prompts), len(before)
    length = np.minimum(length, outputs.max())
    turns = length + 1
    ring = segments + np.concatenate(([0], np.cumsum(turns)[:-1]))
    after = np.full(segments, _NOBODY, dtype=np.int64)
    for segment in range(segments):
        if before[segment] >= 0:
            after[before[segment]] = segment

    def filled(value: int, size: int) -> IntArray:
        return np.full(size, value, dtype=np.int64)

    lists = segments + int(turns.sum())
    hall = Hall(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        entrance=entrance,
        made=filled(0, count),
        stay=filled(0, count),
        place=filled(_NOBODY, count),
        following=filled(_NOBODY, count),
        admitted=filled(_NEVER, count),
        first=filled(_NEVER, count),
        last=filled(_NEVER, count),
        evicted=filled(0, count),
        wasted=filled(0, count),
        heads=filled(_NOBODY, lists),
        tails=filled(_NOBODY, lists),
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
    log = _run(hall, new_log(), timer.handle, memory, changes, thresholds, until)
    timer.reraise()
    return hall, log.finished()


@compiled
def _run(
    hall: Hall,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    memory: int,
    changes: FloatArray,
    thresholds: IntArray,
    until: float,
) -> BatchLog:
    counters, arrivals = hall.counters, hall.arrivals
    while True:
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= log.now[0]:
            _append(hall, hall.entrance[released], released)
            hall.queued[hall.entrance[released]] += 1
            released += 1
        counters[_RELEASED] = released
        counters[_FLUSHING] = released == len(arrivals)
        if log.now[0] >= until:
            return log
        levels = thresholds[np.searchsorted(changes, log.now[0], side="right") - 1]
        if not _invite(hall, levels):
            if counters[_FLUSHING]:
                return log
            log.now[0] = arrivals[released]
            continue
        while not _fit(hall, memory):
            _evict_latest(hall)
            _invite(hall, levels)
        row = log.state[0]
        if is_full(log):
            log = enlarged(log)
        if not _take_in(hall, log, timer):
            return log
        for segment in range(len(hall.takes)):
            if hall.takes[segment] >= 0:
                _let_leave(hall, segment, row)


@compiled
def _invite(hall: Hall, thresholds: IntArray) -> bool:
    """Decide which segments take part, and how many each takes in."""
    anybody = False
    for segment in range(len(thresholds)):
        queued, before = hall.queued[segment], hall.before[segment]
        if hall.counters[_FLUSHING]:
            joins = queued + hall.inside[segment] > 0
        else:
            joins = queued >= thresholds[segment] and (before < 0 or hall.takes[before] >= 0)
        hall.takes[segment] = min(queued, thresholds[segment]) if joins else _NEVER
        anybody = anybody or joins
    return anybody


@compiled
def _fit(hall: Hall, memory: int) -> bool:
    """Take in only as many prompts as fit; tells whether the batch then fits and is not empty."""
    room = memory - hall.counters[_USAGE]
    moving = 0
    for segment in range(len(hall.takes)):  # one token for everybody who has been prefilled
        if hall.takes[segment] >= 0:
            moving += hall.inside[segment]
            if hall.before[segment] >= 0:
                moving += hall.takes[segment]
    room -= moving
    for segment in range(len(hall.takes)):
        if hall.takes[segment] > 0 and hall.before[segment] < 0:
            taken = 0
            request = hall.heads[segment]
            while taken < hall.takes[segment] and hall.prompts[request] + 1 <= room:
                room -= hall.prompts[request] + 1
                request = hall.following[request]
                taken += 1
            hall.takes[segment] = taken
            moving += taken
    return room >= 0 and moving > 0


@compiled
def _take_in(hall: Hall, log: BatchLog, timer: tuple[FloatArray, Any]) -> bool:
    """Let those taken in enter their segments, and run the batch if the clock can time it."""
    prefill = entered = decodes = resident = squares = 0
    for segment in range(len(hall.takes)):
        takes = hall.takes[segment]
        if takes < 0:
            continue
        decodes += hall.inside[segment]
        resident += hall.tokens[segment]
        for _ in range(takes):
            request = hall.heads[segment]
            _unlink(hall, request, _NOBODY)
            hall.queued[segment] -= 1
            held = hall.prompts[request] + hall.made[request]
            if hall.admitted[request] < 0:
                hall.counters[_ADMITTED] += 1
                hall.admitted[request] = hall.counters[_ADMITTED]
                hall.first[request] = log.state[0]
                hall.counters[_USAGE] += held
            if held > hall.prompts[request] or held == 0:
                decodes += 1
                resident += held
            else:
                entered += 1
                prefill += held
                squares += held * held
            stay = min(hall.length[segment], hall.outputs[request] - hall.made[request])
            hall.stay[request] = stay
            leaves = (hall.turn[segment] + stay) % hall.turns[segment]
            _append(hall, hall.ring[segment] + leaves, request)
            hall.inside[segment] += 1
            hall.tokens[segment] += held
        # Everybody inside makes a token.
        hall.turn[segment] += 1
        hall.tokens[segment] += hall.inside[segment]
        hall.counters[_USAGE] += hall.inside[segment]
    held = prefill + entered + resident + decodes
    return add_batch(log, timer, prefill, decodes, resident, squares, held, hall.counters[_USAGE])


@compiled
def _let_leave(hall: Hall, segment: int, row: int) -> None:
    """After a batch: who has passed the segment is complete or queues for the next one."""
    place = hall.ring[segment] + hall.turn[segment] % hall.turns[segment]
    while hall.heads[place] >= 0:
        request = hall.heads[place]
        _unlink(hall, request, _NOBODY)
        hall.made[request] += hall.stay[request]
        hall.stay[request] = 0
        held = hall.prompts[request] + hall.made[request]
        hall.inside[segment] -= 1
        hall.tokens[segment] -= held
        if hall.made[request] == hall.outputs[request]:
            hall.last[request] = row
            hall.counters[_USAGE] -= held
        else:
            following = hall.after[segment]
            _append(hall, following, request)
            hall.queued[following] += 1


@compiled
def _evict_latest(hall: Hall) -> None:
    """Let the request admitted last lose all its tokens; it queues again in front."""
    latest = _NOBODY
    for request in range(hall.counters[_RELEASED]):
        holds = hall.admitted[request] >= 0 and hall.last[request] < 0
        if holds and (latest < 0 or hall.admitted[request] > hall.admitted[latest]):
            latest = request
    place, made = hall.place[latest], hall.made[latest]
    segments = len(hall.takes)
    if place < segments:
        hall.queued[place] -= 1
    else:
        segment = np.searchsorted(hall.ring, place, side="right") - 1
        # Its place tells how many turns it has still to go.
        turns = hall.turns[segment]
        left = (place - hall.ring[segment] - hall.turn[segment]) % turns
        made += hall.stay[latest] - left
        hall.inside[segment] -= 1
        hall.tokens[segment] -= hall.prompts[latest] + made
    before = _NOBODY
    request = hall.heads[place]
    while request != latest:
        before = request
        request = hall.following[request]
    _unlink(hall, latest, before)
    hall.counters[_USAGE] -= hall.prompts[latest] + made
    hall.evicted[latest] += 1
    hall.wasted[latest] += made
    hall.made[latest] = hall.stay[latest] = 0
    hall.admitted[latest] = _NEVER
    entrance = hall.entrance[latest]
    hall.following[latest] = hall.heads[entrance]
    hall.heads[entrance] = latest
    if hall.tails[entrance] < 0:
        hall.tails[entrance] = latest
    hall.place[latest] = entrance
    hall.queued[entrance] += 1


@compiled
def _append(hall: Hall, place: int, request: int) -> None:
    """Add a request at the end of a list."""
    if hall.heads[place] < 0:
        hall.heads[place] = request
    else:
        hall.following[hall.tails[place]] = request
    hall.tails[place] = request
    hall.following[request] = _NOBODY
    hall.place[request] = place


@compiled
def _unlink(hall: Hall, request: int, before: int) -> None:
    """Take a request out of its list, given the one before it there."""
    place, following = hall.place[request], hall.following[request]
    if before < 0:
        hall.heads[place] = following
    else:
        hall.following[before] = following
    if following < 0:
        hall.tails[place] = before
    hall.place[request] = _NOBODY
