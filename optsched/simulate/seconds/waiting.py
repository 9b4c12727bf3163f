"""Batches that wait for thresholds: WAIT and Nested WAIT (Fluid Alg. 1 and 2).

Requests pass through segments, runs of consecutive stages, and queue in front of each, at first as
prompts, later with their KV cache kept. A segment takes part in a batch when at least as many
requests queue as its threshold says, and the segment before it takes part too; it takes that many
in, and all those inside advance by one token. They move in convoys, so a segment is described by
how often it has taken part: a request taken in at the t-th time leaves a known number of times
later. WAIT has one segment per type of request, Nested WAIT a chain of segments for all.

When no arrivals are left, every segment with requests in it takes part, whatever its threshold. If
a batch would need more memory than there is, fewer prompts are taken in; where that is not enough,
requests lose all their tokens and queue again in front, the one admitted last first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled, compiled_inside
from optsched.simulate.seconds.batches import BatchLog, add_batch, new_log, timing, with_room

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import Clock
    from optsched.policies.wait import TypeQueues
    from optsched.simulate.seconds.batches import EngineRequests

_NONE = _NEVER = -1
_REQUEST = (
    *("prompt", "output"),
    "entrance",  # first segment
    "made",  # output tokens when it last changed places
    "stay",  # tokens it makes in the segment it is in
    *("place", "preceding", "following"),  # the list it is in, and its neighbours there
    "earlier",  # the one admitted before it, -1 if there is none
    *("first", "last"),  # batches in which these tokens were made
    *("preempted", "lost"),  # how often, and tokens made in those attempts
)
_SEGMENT = (
    "length",  # tokens made in it at most
    *("before", "after"),  # segments, or -1
    *("ring", "turns"),  # first list of those inside, by when they leave, and how many lists
    "turn",  # how often it took part
    *("queued", "inside"),  # requests
    "tokens",  # held by those inside
    "takes",  # requests taken into the batch that is formed; -1 where it sits it out
)


class Waiting(NamedTuple):
    """State between two batches: n requests, m segments, lists of requests that queue or run."""

    arrivals: FloatArray
    requests: Records
    segments: Records
    lists: Records  # first and last request; a queue for each segment, then the rings
    now: Records  # counters


def serve_waiting(
    requests: EngineRequests, clock: Clock, queues: TypeQueues, until: float = np.inf
) -> tuple[Records, BatchLog]:
    """Serve requests when enough of them wait; return what became of each, and the batches."""
    prompts, arrivals, outputs, memory = requests
    before, length = queues.before, np.minimum(queues.length, outputs.max())
    count, turns = len(before), length + 1
    served = records(
        len(prompts),
        _REQUEST,
        prompt=prompts,
        output=outputs,
        entrance=queues.entrance,
        **dict.fromkeys(("place", "preceding", "following", "earlier"), _NONE),
        **dict.fromkeys(("first", "last"), _NEVER),
    )
    segments = records(count, _SEGMENT, length=length, before=before, after=_NONE, turns=turns)
    segments["ring"] = count + np.cumsum(turns) - turns
    segments["takes"] = _NEVER
    inner = np.flatnonzero(before >= 0)
    segments["after"][before[inner]] = inner
    lists = records(count + int(turns.sum()), ("head", "tail"), head=_NONE, tail=_NONE)
    now = records(1, ("released", "usage", "latest", "flushing"), latest=_NONE)
    state = Waiting(arrivals, served, segments, lists, now)
    with timing(clock) as timer:
        log = interruptible_kernel(_run, len(prompts))(
            state, new_log(), timer, memory, queues, until
        )
    return served, log.finished()


@compiled
def _run(
    state: Waiting,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    memory: int,
    queues: TypeQueues,
    until: float,
) -> BatchLog:
    now, arrivals = state.now[0], state.arrivals
    while True:
        while now.released < len(arrivals) and arrivals[now.released] <= log.now[0]:
            entrance = state.requests[now.released].entrance
            _append(state, entrance, now.released)
            state.segments[entrance].queued += 1
            now.released += 1
        now.flushing = now.released == len(arrivals)
        if log.now[0] >= until:
            return log
        period = np.searchsorted(queues.changes, log.now[0], side="right") - 1
        levels = queues.thresholds[period]
        if not _invite(state, levels):
            if now.flushing:
                return log
            log.now[0] = arrivals[now.released]
            continue
        while not _fit(state, memory):
            _preempt_latest(state)
            _invite(state, levels)
        row = log.state[0]
        log = with_room(log)
        if not _take_in(state, log, timer):
            return log
        for segment in state.segments:
            if segment.takes >= 0:
                _let_leave(state, segment, row)


@compiled_inside
def _invite(state: Waiting, thresholds: IntArray) -> bool:
    """Decide which segments take part, and how many each takes in."""
    any_joins = False
    for place in range(len(thresholds)):
        segment, threshold = state.segments[place], thresholds[place]
        if state.now[0].flushing:
            joins = segment.queued + segment.inside > 0
        else:
            joins = segment.queued >= threshold and (
                segment.before < 0 or state.segments[segment.before].takes >= 0
            )
        segment.takes = min(segment.queued, threshold) if joins else _NEVER
        any_joins = any_joins or joins
    return any_joins


@compiled_inside
def _fit(state: Waiting, memory: int) -> bool:
    """Take in only as many prompts as fit; tells whether the batch then fits and is not empty."""
    moving = 0
    for segment in state.segments:  # one token for each that has been prefilled
        if segment.takes >= 0:
            moving += segment.inside
            if segment.before >= 0:
                moving += segment.takes
    room = memory - state.now[0].usage - moving
    for place in range(len(state.segments)):
        segment = state.segments[place]
        if segment.takes > 0 and segment.before < 0:
            taken = 0
            index = state.lists[place].head
            while taken < segment.takes and state.requests[index].prompt + 1 <= room:
                room -= state.requests[index].prompt + 1
                index = state.requests[index].following
                taken += 1
            segment.takes = taken
            moving += taken
    return room >= 0 and moving > 0


@compiled_inside
def _take_in(state: Waiting, log: BatchLog, timer: tuple[FloatArray, Any]) -> bool:
    """Let those taken in enter their segments, and run the batch if the clock can time it."""
    now = state.now[0]
    prefill = entered = decodes = resident = squares = 0
    for place in range(len(state.segments)):
        segment = state.segments[place]
        if segment.takes < 0:
            continue
        decodes += segment.inside
        resident += segment.tokens
        for _ in range(segment.takes):
            index = state.lists[place].head
            request = state.requests[index]
            _unlink(state, index)
            segment.queued -= 1
            held = request.prompt + request.made
            if request.first < 0:
                request.earlier, now.latest = now.latest, index
                request.first = log.state[0]
                now.usage += held
            if held > request.prompt or held == 0:
                decodes += 1
                resident += held
            else:
                entered += 1
                prefill += held
                squares += held * held
            request.stay = min(segment.length, request.output - request.made)
            leaves = (segment.turn + request.stay) % segment.turns
            _append(state, segment.ring + leaves, index)
            segment.inside += 1
            segment.tokens += held
        # All inside make a token.
        segment.turn += 1
        segment.tokens += segment.inside
        now.usage += segment.inside
    held = prefill + entered + resident + decodes
    return add_batch(log, timer, (prefill, decodes, resident, squares, held), now.usage)


@compiled_inside
def _let_leave(state: Waiting, segment: Records, row: int) -> None:
    """After a batch: what has passed the segment is complete or queues for the next one."""
    place = segment.ring + segment.turn % segment.turns
    while state.lists[place].head >= 0:
        index = state.lists[place].head
        request = state.requests[index]
        _unlink(state, index)
        request.made += request.stay
        request.stay = 0
        held = request.prompt + request.made
        segment.inside -= 1
        segment.tokens -= held
        if request.made == request.output:
            request.last = row
            state.now[0].usage -= held
        else:
            _append(state, segment.after, index)
            state.segments[segment.after].queued += 1


@compiled_inside
def _preempt_latest(state: Waiting) -> None:
    """Let the request admitted last lose all its tokens; it queues again in front."""
    latest = state.now[0].latest
    while state.requests[latest].last >= 0:
        latest = state.requests[latest].earlier
    request = state.requests[latest]
    state.now[0].latest = request.earlier
    place, made = request.place, request.made
    if place < len(state.segments):
        state.segments[place].queued -= 1
    else:
        number = len(state.segments) - 1
        while state.segments[number].ring > place:
            number -= 1
        segment = state.segments[number]
        # Its place tells how many turns it has still to go.
        made += request.stay - (place - segment.ring - segment.turn) % segment.turns
        segment.inside -= 1
        segment.tokens -= request.prompt + made
    _unlink(state, latest)
    state.now[0].usage -= request.prompt + made
    request.preempted += 1
    request.lost += made
    request.made = request.stay = 0
    request.first = _NEVER
    request.place = request.entrance
    queue = state.lists[request.entrance]
    request.preceding, request.following = _NONE, queue.head
    if queue.head < 0:
        queue.tail = latest
    else:
        state.requests[queue.head].preceding = latest
    queue.head = latest
    state.segments[request.entrance].queued += 1


@compiled_inside
def _append(state: Waiting, place: int, index: int) -> None:
    """Add a request at the end of a list."""
    ends, request = state.lists[place], state.requests[index]
    if ends.head < 0:
        ends.head = index
    else:
        state.requests[ends.tail].following = index
    request.preceding, request.following, request.place = ends.tail, _NONE, place
    ends.tail = index


@compiled_inside
def _unlink(state: Waiting, index: int) -> None:
    """Take a request out of its list."""
    request = state.requests[index]
    ends = state.lists[request.place]
    if request.preceding < 0:
        ends.head = request.following
    else:
        state.requests[request.preceding].following = request.following
    if request.following < 0:
        ends.tail = request.preceding
    else:
        state.requests[request.following].preceding = request.preceding
    request.place = _NONE
