"""Serving engines that know no outputs, and below them batches that wait for thresholds.

**Engines** admit a prompt when it fits beside the tokens held now. When the memory runs out, the
request admitted last waits again, and prefills its tokens again (vLLM's recomputation).

**WAIT.** Requests pass through segments of stages and queue in front of each. They move in convoys:
a request taken in at the t-th batch of a segment leaves a known number of its batches later.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import FloatArray, IntArray, Records, records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import ABSENT, leftmost_below, new_tree, put
from optsched.simulate.seconds.batches import (
    BatchLog,
    EngineProgress,
    add_batch,
    apart,
    new_log,
    timing,
    with_room,
)

if TYPE_CHECKING:
    from optsched.clock import Clock
    from optsched.policies.priorities import EnginePolicy
    from optsched.policies.wait import TypeQueues
    from optsched.problem.instance import Instance
    from optsched.simulate.seconds.batches import EngineRequests, LogArrays, Timer

BATCHING = ("mixed", "prefill-first", "chunked")  # of `EnginePolicy`
MIXED, PREFILL_FIRST, CHUNKED = range(3)
_RELEASED, _RUNNING, _USAGE = range(3)
_NEVER = -1
_NONE = np.zeros(0)
_SERVED = (
    *("prompt", "output", "held", "made"),  # held: tokens in the KV cache; made: of the output
    "target",  # tokens to prefill before the next token is made
    "chunk",  # tokens to prefill in the batch that is formed; -1 for a decode
    *("first", "last"),  # batches in which these tokens were made
    "preempted",  # how often
    "recomputed",  # tokens that were in the KV cache before and are prefilled again
)


class MixedEngine(NamedTuple):
    """State of an engine between two batches."""

    arrivals: FloatArray
    requests: Records
    waiting: IntArray  # tree over requests
    running: IntArray  # requests by admission, the last one latest
    counters: IntArray
    limits: MixedLimits
    how: int  # one of `BATCHING`


class MixedLimits(NamedTuple):
    """Limits of memory in whole blocks, of requests that run at once, and of tokens in a batch."""

    memory: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    reserve: int = 0  # tokens that an admission leaves free while others run
    block_size: int = 1


def share_of(share: float | Fraction, memory: int) -> int:
    """Return a share of the memory in whole tokens, rounded down from the number as written."""
    return int(Fraction(str(share)) * memory)


def limits_of(policy: EnginePolicy, instance: Instance) -> MixedLimits:
    """Return the limits of an engine in tokens."""
    blocks = policy.blocks(instance)
    return MixedLimits(
        blocks * policy.block_size,
        policy.max_num_seqs,
        policy.max_num_batched_tokens,
        share_of(policy.watermark, blocks) * policy.block_size,
        policy.block_size,
    )


class MixedServer:
    """An engine that can be paused between two batches, as that of vLLM is."""

    def __init__(
        self,
        served: Records,
        how: int,
        limits: MixedLimits,
        timer: Timer,
        until: float,
        arrivals: FloatArray = _NONE,
    ) -> None:
        self.served, self.log = served, new_log()
        self._timer, self._until = timer, until
        count = len(served)
        running, counters = np.zeros(count, dtype=np.int64), np.zeros(_USAGE + 1, dtype=np.int64)
        tree, of, none = new_tree(count), served.view(np.ndarray), np.zeros(count, dtype=np.int64)
        self._engine = MixedEngine(arrivals, served, tree, running, counters, limits, how)
        leaves = tree[len(tree) // 2 :]
        self.progress = EngineProgress(
            of["held"], of["made"], none, of["last"], leaves, int(ABSENT)
        )

    def run(self, pause: float = np.inf) -> None:
        """Run until all is done or it is time to pause."""
        go_on = interruptible_kernel(run_until, len(self.served) if pause == np.inf else 0)
        until = min(pause, self._until)
        while not go_on(self._engine, self.log, self._timer, until):
            self.log = self.log.doubled()

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""
        self.log.now[0] = max(self.log.now[0], time)
        put(self._engine.waiting, request, 0)

    @property
    def now(self) -> float:
        """Until when it has run."""
        return float(self.log.now[0])


def serve(
    requests: EngineRequests, clock: Clock, how: int, limits: MixedLimits, until: float = np.inf
) -> tuple[Records, BatchLog]:
    """Serve requests in order of arrival; return what became of each, and the batches."""
    with timing(clock) as timer:
        server = MixedServer(new_records(requests), how, limits, timer, until, requests.arrivals)
        server.run()
    return server.served, server.log.finished()


def new_records(requests: EngineRequests) -> Records:
    """Make the records of requests of which none has come."""
    prompts, _, outputs, _ = requests
    never = {"first": _NEVER, "last": _NEVER}
    count = len(prompts)
    return records(count, _SERVED, prompt=prompts, output=outputs, target=prompts, **never)


@compiled
def run_until(engine: MixedEngine, log: BatchLog, timer: Timer, until: float) -> bool:
    """Run until all is done, or the log is full; tells which."""
    counters, arrivals, waiting = engine.counters, engine.arrivals, engine.waiting
    now = log.now
    while log.state[0] < len(log.usage):
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= now[0]:
            put(waiting, released, 0)
            released += 1
        counters[_RELEASED] = released
        if counters[_RUNNING] == 0 and waiting[1] == ABSENT:
            if released == len(arrivals):
                return True
            now[0] = arrivals[released]
            continue
        if now[0] >= until:
            return True
        _choose(engine)
        row = log.state[0]
        if not _add_batch(engine, log, timer):
            return True
        _progress(engine, row)
    return False


@allocating_inside
def _choose(engine: MixedEngine) -> None:
    """Decide what each running request does in the next batch, and what is admitted to it."""
    requests, running, counters = engine.requests, engine.running, engine.counters
    how, limits = engine.how, engine.limits
    if how == PREFILL_FIRST:
        for place in range(counters[_RUNNING]):
            requests[running[place]].chunk = 0
        if _admit(engine, limits.max_num_batched_tokens, False) > 0:
            return
    preempted = _make_room(engine)
    left = limits.max_num_batched_tokens
    for place in range(counters[_RUNNING]):
        request = requests[running[place]]
        if request.held >= request.target:
            request.chunk = -1
            left -= 1
    if how == PREFILL_FIRST:
        return
    for place in range(counters[_RUNNING]):
        request = requests[running[place]]
        if request.held < request.target:
            request.chunk = max(0, min(left, request.target - request.held))
            left -= request.chunk
    if not preempted:
        _admit(engine, left, how == CHUNKED)


@compiled_inside
def _room(tokens: int, block_size: int) -> int:
    """Return the tokens of the blocks that hold so many, and one that is made."""
    if block_size == 1:
        return tokens + 1
    return (tokens // block_size + 1) * block_size


@allocating_inside
def _promised(engine: MixedEngine, block_size: int) -> int:
    """Tokens held when the next batch ends if none is admitted; whole prompts count already."""
    requests, running = engine.requests, engine.running
    total = 0
    for place in range(engine.counters[_RUNNING]):
        request = requests[running[place]]
        total += _room(max(request.held, request.target), block_size)
    return total


@allocating_inside
def _make_room(engine: MixedEngine) -> bool:
    """Preempt requests, the latest first, until all others can make a token."""
    counters, limits = engine.counters, engine.limits
    promised, before = _promised(engine, limits.block_size), counters[_RUNNING]
    while promised > limits.memory:
        counters[_RUNNING] -= 1
        index = engine.running[counters[_RUNNING]]
        request = engine.requests[index]
        promised -= _room(max(request.held, request.target), limits.block_size)
        counters[_USAGE] -= request.held
        request.recomputed += request.held
        request.preempted += 1
        request.held = 0
        request.target = request.prompt + request.made
        put(engine.waiting, index, 0)
    return bool(counters[_RUNNING] < before)


@compiled_inside
def _admit(engine: MixedEngine, tokens: int, in_chunks: bool) -> int:
    """Admit waiting requests in order of arrival while they fit; return how many."""
    counters, limits = engine.counters, engine.limits
    promised = _promised(engine, limits.block_size)
    admitted = 0
    while counters[_RUNNING] < limits.max_num_seqs:
        index = leftmost_below(engine.waiting, ABSENT)
        if index < 0:
            break
        target = engine.requests[index].target
        room = _room(target, limits.block_size)
        reserve = limits.reserve if counters[_RUNNING] > 0 else 0
        if promised + room + reserve > limits.memory:
            break
        if in_chunks:
            if tokens <= 0:
                break
        elif target > tokens and (admitted > 0 or target <= limits.max_num_batched_tokens):
            break
        put(engine.waiting, index, ABSENT)
        engine.running[counters[_RUNNING]] = index
        counters[_RUNNING] += 1
        chunk = min(target, tokens) if in_chunks else target
        engine.requests[index].chunk = chunk if target > 0 else -1
        tokens -= chunk
        promised += room
        admitted += 1
    return admitted


@compiled_inside
def _add_batch(engine: MixedEngine, log: BatchLog, timer: Timer) -> bool:
    prefill = decodes = resident = squares = held = 0
    requests, running = engine.requests, engine.running
    sitting_out = engine.counters[_USAGE]
    for place in range(engine.counters[_RUNNING]):
        request = requests[running[place]]
        before, chunk = request.held, request.chunk
        if chunk < 0:
            decodes += 1
            resident += before
            held += before + 1
            sitting_out -= before
        elif chunk > 0:
            after = before + chunk
            prefill += chunk
            squares += after * after - before * before
            held += after + (after == request.target)
            sitting_out -= before
    return add_batch(log, timer, (prefill, decodes, resident, squares, held), sitting_out + held)


@compiled_inside
def _progress(engine: MixedEngine, row: int) -> None:
    """Let the batch have had its effect; requests that are complete leave."""
    requests, running, counters = engine.requests, engine.running, engine.counters
    kept = 0
    for place in range(counters[_RUNNING]):
        index = running[place]
        request = requests[index]
        gained = max(request.chunk, 0)
        if request.chunk < 0 or (gained > 0 and request.held + gained == request.target):
            gained += 1
            request.made += 1
            request.target = 0  # nothing left to prefill
            if request.made == 1:
                request.first = row
        request.held += gained
        counters[_USAGE] += gained
        if request.made == request.output:
            request.last = row
            counters[_USAGE] -= request.held
        else:
            running[kept] = index
            kept += 1
    counters[_RUNNING] = kept


_NOBODY = -1
_QUEUED = (
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
        _QUEUED,
        prompt=prompts,
        output=outputs,
        entrance=queues.entrance,
        **dict.fromkeys(("place", "preceding", "following", "earlier"), _NOBODY),
        **dict.fromkeys(("first", "last"), _NEVER),
    )
    segments = records(count, _SEGMENT, length=length, before=before, after=_NOBODY, turns=turns)
    segments["ring"] = count + np.cumsum(turns) - turns
    segments["takes"] = _NEVER
    inner = np.flatnonzero(before >= 0)
    segments["after"][before[inner]] = inner
    lists = records(count + int(turns.sum()), ("head", "tail"), head=_NOBODY, tail=_NOBODY)
    now = records(1, ("released", "usage", "latest", "flushing"), latest=_NOBODY)
    state = Waiting(arrivals, served, segments, lists, now)
    with timing(clock) as timer:
        log = interruptible_kernel(_run, len(prompts))(
            state, new_log(), timer, memory, queues, until
        )
    return served, BatchLog(*log).finished()


@allocating
def _run(
    state: Waiting, log: BatchLog, timer: Timer, memory: int, queues: TypeQueues, until: float
) -> LogArrays:
    now, arrivals = state.now[0], state.arrivals
    while True:
        while now.released < len(arrivals) and arrivals[now.released] <= log.now[0]:
            entrance = state.requests[now.released].entrance
            _append(state, entrance, now.released)
            state.segments[entrance].queued += 1
            now.released += 1
        now.flushing = now.released == len(arrivals)
        if log.now[0] >= until:
            return apart(log)
        period = np.searchsorted(queues.changes, log.now[0], side="right") - 1
        levels = queues.thresholds[period]
        if not _invite(state, levels):
            if now.flushing:
                return apart(log)
            log.now[0] = arrivals[now.released]
            continue
        while not _fit(state, memory):
            _preempt_latest(state)
            _invite(state, levels)
        row = log.state[0]
        log = with_room(log)
        if not _take_in(state, log, timer):
            return apart(log)
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
def _take_in(state: Waiting, log: BatchLog, timer: Timer) -> bool:
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
    _link(state, request.entrance, _NOBODY, latest, state.lists[request.entrance].head)
    state.segments[request.entrance].queued += 1


@compiled_inside
def _append(state: Waiting, place: int, index: int) -> None:
    _link(state, place, state.lists[place].tail, index, _NOBODY)


@compiled_inside
def _link(state: Waiting, place: int, before: int, index: int, after: int) -> None:
    """Add a request to a list between two others, or at an end of it."""
    ends, request = state.lists[place], state.requests[index]
    if before < 0:
        ends.head = index
    else:
        state.requests[before].following = index
    if after < 0:
        ends.tail = index
    else:
        state.requests[after].preceding = index
    request.preceding, request.following, request.place = before, after, place


@compiled_inside
def _unlink(state: Waiting, index: int) -> None:
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
    request.place = _NOBODY
