"""The scheduler of vLLM, with its block cache: a token in flight counts before it is back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import pop_by_key, push_by_key
from optsched.errors import PolicyError
from optsched.simulate.seconds.batches import (
    COLUMNS,
    Arrivals,
    BatchLog,
    EngineProgress,
    add_batch,
    call_followers,
    new_log,
    next_arrival,
    pass_by,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.problem.instance import Instance
    from optsched.simulate.seconds.batches import Callback, EngineRequests, Timer


_BLOCK = (
    *("before", "after"),  # in the ring of free blocks, from block 0, the one taken first first
    "users",
    "name",
    *("older", "newer"),  # in its bucket of names
    "owner",  # the place of the request that is planned to hold it longest
)
_UNNAMED = int(np.iinfo(np.int64).min)
_FAR = 2**62
NAMES, _SLOTS, _STACK = range(3)  # names that can be found, free slots, the first free slot
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Prefixes(NamedTuple):
    """Ids of the blocks of requests, in whose equality they and all before them are equal."""

    ids: IntArray
    begins: IntArray  # where those of each request begin
    covered: IntArray  # tokens of each request that they tell of
    tokens: int  # of a block with an id
    most: int  # tokens of the longest request

    @classmethod
    def of(cls, instance: Instance) -> Prefixes:
        """Return those of an instance; requests without ids share nothing."""
        most, given, size = int(instance.peaks.max()), instance.hash_ids, instance.hash_block
        none = np.zeros(len(instance), dtype=np.int64)
        if given is None or size is None:
            return cls(none[:0], none, none, 1, most)
        lengths = np.fromiter(map(len, given), np.int64, len(given))
        ids = np.concatenate(given).astype(np.int64, copy=False)
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= _FAR // (size + 2):
            _, ids = np.unique(ids, return_inverse=True)  # names are made of small numbers
        # The last id of a prompt says nothing of the output that follows it in its block.
        prompts, covered = instance.prompts, lengths * size
        covered = np.where(lengths == -(-prompts // size), np.minimum(prompts, covered), covered)
        return cls(ids, np.cumsum(lengths) - lengths, covered, size, most)


class Cache(NamedTuple):
    """All blocks of an engine."""

    blocks: Records
    buckets: IntArray  # the oldest and the newest block of each, 0 for none
    held: IntArray  # blocks of the running requests, by slot
    counters: IntArray
    prefixes: Prefixes
    block_size: int


def new_cache(usable: int, block_size: int, seqs: int, prefixes: Prefixes) -> Cache:
    """Return an empty cache."""
    ring = np.arange(usable + 1)
    blocks = records(
        usable + 1, _BLOCK, before=ring - 1, after=(ring + 1) % (usable + 1), name=_UNNAMED
    )
    blocks.before[0] = usable
    buckets = np.zeros(2 << int(usable).bit_length(), dtype=np.int64)
    held = np.zeros((seqs, min(usable, -(-prefixes.most // block_size))), dtype=np.int64)
    counters = np.concatenate([[0, seqs], np.arange(seqs)])
    return Cache(blocks, buckets, held, counters, prefixes, block_size)


@compiled_inside
def _name(cache: Cache, index: int, number: int) -> int:
    """Name a block of a request; one without an id has a name of its own, below zero."""
    (ids, begins, covered, tokens, most), block_size = cache.prefixes, cache.block_size
    if (number + 1) * block_size <= covered[index]:
        of_id = ((number + 1) * block_size - 1) // tokens
        inside = number - of_id * tokens // block_size
        return int(ids[begins[index] + of_id] * (tokens // block_size + 2) + inside)
    return -1 - (index * (most + 1) + number)


@compiled_inside
def _bucket(cache: Cache, name: int) -> int:
    """Return where the oldest block of a bucket stands; the newest stands behind it."""
    mixed = (np.uint64(name) * _MIX) >> np.uint64(32)
    return int(mixed & np.uint64(len(cache.buckets) // 2 - 1)) * 2


@compiled_inside
def _oldest(cache: Cache, name: int) -> int:
    block = cache.buckets[_bucket(cache, name)]
    while block > 0 and cache.blocks[block].name != name:
        block = cache.blocks[block].newer
    return int(block)


@compiled_inside
def find(cache: Cache, index: int, known: int) -> tuple[int, int]:
    """List the blocks that a request finds where it would hold them; count all and free ones."""
    blocks, counters, found, free = cache.blocks, cache.counters, 0, 0
    held = cache.held[counters[_STACK + counters[_SLOTS] - 1]]
    while found < (known - 1) // cache.block_size:  # one token at least is computed
        block = _oldest(cache, _name(cache, index, found))
        if block == 0:
            break
        held[found] = block
        free += blocks[block].users == 0
        found += 1
    return found, free


@compiled_inside
def reuse(cache: Cache, request: Records, found: int) -> None:
    """Let a request that is admitted use the blocks that it has found."""
    blocks, held, counters = cache.blocks, cache.held, cache.counters
    counters[_SLOTS] -= 1
    slot = counters[_STACK + counters[_SLOTS]]
    request.slot = slot
    for number in range(found):
        block = held[slot, number]
        if blocks[block].users == 0:
            _leave_ring(blocks, block)
        blocks[block].users += 1
    request.named = found


@compiled_inside
def count_foreign(cache: Cache, engine: VllmEngine, last: int, found: int) -> None:
    """Count the blocks of each request that another one holds longer; the last has found some."""
    blocks, held, counters, running = cache.blocks, cache.held, cache.counters, engine.running
    requests = engine.requests
    for step in range(3):
        for at in range(last + 1):
            request = requests[running[at]]
            slot, count = request.slot, request.room // cache.block_size
            if at == last:
                slot, count = counters[_STACK + counters[_SLOTS] - 1], found
            for number in range(count):
                block = blocks[held[slot, number]]
                if step == 0:
                    block.owner = -1
                elif step == 2:
                    request.foreign += block.owner != at
                elif block.owner < 0 or request.ends > requests[running[block.owner]].ends:
                    block.owner = at


@compiled_inside
def _leave_ring(blocks: Records, block: int) -> None:
    """Take a block out of those that are free."""
    before, after = blocks[block].before, blocks[block].after
    blocks[before].after, blocks[after].before = after, before


@compiled_inside
def _unname(cache: Cache, block: int) -> None:
    """Let a block be found no more."""
    blocks, buckets = cache.blocks, cache.buckets
    taken = blocks[block]
    name, bucket = taken.name, _bucket(cache, taken.name)
    if taken.older > 0:
        blocks[taken.older].newer = taken.newer
    else:
        buckets[bucket] = taken.newer
    if taken.newer > 0:
        blocks[taken.newer].older = taken.older
    else:
        buckets[bucket + 1] = taken.older
    taken.name = _UNNAMED
    cache.counters[NAMES] -= _oldest(cache, name) == 0


@compiled_inside
def publish(cache: Cache, index: int, request: Records, full: int) -> None:
    """Name the first blocks of a request, which are full."""
    blocks, buckets = cache.blocks, cache.buckets
    while request.named < full:
        name = _name(cache, index, request.named)
        cache.counters[NAMES] += _oldest(cache, name) == 0
        block, bucket = cache.held[request.slot, request.named], _bucket(cache, name)
        newest = buckets[bucket + 1]
        blocks[block].name, blocks[block].older, blocks[block].newer = name, newest, 0
        if newest > 0:
            blocks[newest].newer = block
        else:
            buckets[bucket] = block
        buckets[bucket + 1] = block
        request.named += 1


@compiled_inside
def extend(cache: Cache, index: int, request: Records, room: int, tokens: int) -> None:
    """Let a request hold blocks for all its room, and name those that its next tokens fill."""
    blocks, block_size = cache.blocks, cache.block_size
    for number in range(room // block_size, request.room // block_size):
        block = blocks[0].after
        _leave_ring(blocks, block)
        if blocks[block].name != _UNNAMED:
            _unname(cache, block)
        blocks[block].users = 1
        cache.held[request.slot, number] = block
    known = request.prompt + request.made  # else it is in flight
    full = min(request.computed + tokens, known) // block_size
    publish(cache, index, request, full)


@compiled_inside
def give_back(cache: Cache, request: Records, count: int) -> int:
    """Free the blocks of a request, the last one first; return how many are free now."""
    blocks, counters = cache.blocks, cache.counters
    free = 0
    for number in range(count - 1, -1, -1):
        block = cache.held[request.slot, number]
        blocks[block].users -= 1
        if blocks[block].users > 0:
            continue
        free += 1
        # What cannot be found is taken first, what can be found last.
        before = blocks[0].before if blocks[block].name != _UNNAMED else 0
        after = blocks[before].after
        blocks[block].before, blocks[block].after = before, after
        blocks[before].after = blocks[after].before = block
    counters[_STACK + counters[_SLOTS]] = request.slot
    counters[_SLOTS] += 1
    request.slot = -1
    request.named = 0
    return free


_RUNNING, _WAITING, _HEAP, _FREE, _FLYING, _OLDEST = range(6)
_BATCHES, _PREFILLED, _BACKED_UP = range(6, 9)  # formed; up to the last with a prompt; left waiting
_NEVER = -1
#: What is told of a request.
ARRIVED, PREEMPTED, ADMITTED, ENDED = range(4)
_REQUEST = (
    *("prompt", "output", "made"),
    "computed",  # tokens that are computed when the batches in flight have ended
    "in_flight",  # tokens of the output that these batches make
    "room",  # tokens that its blocks hold
    "chunk",  # tokens in the batch that is formed
    "partial",  # whether the last batch with it left some of its prompt
    "waits",
    *("first", "last"),  # batches in which these tokens were made
    "preempted",  # how often
    "recomputed",  # tokens that were in the KV cache before and are computed again
    *("slot", "named"),  # where a prefix cache lists its blocks, and how many of them can be found
    *("asked", "cached"),  # tokens at its admissions, and those of them that were found
    *("ends", "foreign"),  # of a plan: batches to its end, and blocks that another holds longer
)


class VllmLimits(NamedTuple):
    """Options of the engine, in whole numbers."""

    usable: int  # blocks, without the null block
    block_size: int
    reserve: int  # blocks that an admission leaves free while others run
    max_num_seqs: int
    max_num_batched_tokens: int
    depth: int  # batches in flight at most
    in_turn: bool  # first come, first served
    halts: bool  # a request that preempts itself keeps those behind it out of the batch
    # As of `VllmPolicy`.
    reorders: bool
    is_told: bool
    plan: bool
    scheduler_reserve_full_isl: bool
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    enable_chunked_prefill: bool
    prefill_schedule_interval: int


class VllmQueue(NamedTuple):
    """By what waiting requests are admitted, and running ones preempted."""

    turns: IntArray  # the least of those waiting is admitted first; no two are equal
    levels: IntArray  # arrivals; the latest of those running is preempted first
    keys: FloatArray  # come before turns and levels
    intervals: tuple[IntArray, IntArray]  # of the outputs, as far as they are known
    listed: IntArray  # where requests are listed for a plan by beliefs; empty where it has none
    is_likely: Callback  # returns whether so many of them fit so many blocks
    tell: Callback  # is told an event, a request and the tokens it made, and returns its key


class Flight(NamedTuple):
    """Batches whose tokens are not back yet, at most two."""

    requests: IntArray  # that make a token, by slot
    sizes: IntArray
    numbers: IntArray
    ends: FloatArray


class VllmEngine(NamedTuple):
    """State of an engine between two batches."""

    arrivals: Arrivals
    requests: Records
    queue: VllmQueue
    heap: IntArray  # of waiting requests
    running: IntArray  # by admission
    flight: Flight
    counters: IntArray
    now: FloatArray
    limits: VllmLimits
    timer: Timer


class VllmServer:
    """An engine that can be paused between two batches; several may share requests' records."""

    def __init__(
        self,
        served: Records,
        queue: VllmQueue,
        limits: VllmLimits,
        timer: Timer,
        until: float,
        arrivals: Arrivals | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.served, self.log = served, new_log()
        self.keys = queue.keys.copy()  # before any is served
        self.rows = np.zeros((len(self.log.usage), len(COLUMNS)), dtype=np.int64)
        self._until = until
        count, seqs = len(served), min(limits.max_num_seqs, len(served))
        counters = np.zeros(_BACKED_UP + 1, dtype=np.int64)
        counters[_FREE], counters[_PREFILLED] = limits.usable, -limits.prefill_schedule_interval
        heap, running, sizes, numbers = (
            np.zeros(size, dtype=np.int64) for size in (count, seqs, 2, 2)
        )
        flight = Flight(np.zeros((2, seqs), dtype=np.int64), sizes, numbers, np.zeros(2))
        arrivals = Arrivals.at(np.zeros(0)) if arrivals is None else arrivals
        self._engine = VllmEngine(
            arrivals, served, queue, heap, running, flight, counters, np.zeros(1), limits, timer
        )
        of = served.view(np.ndarray)
        self.progress = EngineProgress(
            of["computed"], of["made"], of["in_flight"], of["last"], of["waits"], 0
        )
        self._cache = None
        if prefixes is not None:
            self._cache = new_cache(limits.usable, limits.block_size, seqs, prefixes)

    def run(self, pause: float = np.inf) -> None:
        """Run until all is done or it is time to pause."""
        engine, cache = self._engine, self._cache
        go_on = interruptible_kernel(run_until, len(self.served) if pause == np.inf else 0)
        while not go_on(engine, cache, self.log, self.rows, self._until, pause):
            of = self.served.view(np.ndarray)
            tokens = int(of["prompt"].sum() + of["output"].sum())
            if (batches := len(self.rows)) >= max(_OFTEN * tokens, _FEW_BATCHES):
                raise PolicyError(
                    f"{batches:,} batches have not served {tokens:,} tokens: requests preempt each "
                    "other without end, as they would in vLLM; give more memory, or a smaller "
                    "max_num_seqs"
                )
            self.log = self.log.doubled()
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""
        self._engine.now[0] = max(self._engine.now[0], time)
        arrive(self._engine, request)

    def run_once(self, now: float, moment: float) -> None:
        """Form a batch, and let the one that ran before end; until a moment from now."""
        self._engine.now[0] = now
        self.run(now + moment)

    def set_back(self, now: float, moment: float) -> None:
        """Let the time be now, and what is in flight end in a moment."""
        self._engine.now[0] = self.log.now[0] = now
        self._engine.flight.ends[:] = now + moment

    @property
    def now(self) -> float:
        """Until when it has run."""
        return float(self._engine.now[0])


# Batches, and as many times the tokens, up to which nothing is said of a run without end.
_FEW_BATCHES, _OFTEN = 2**14, 4


def new_records(requests: EngineRequests) -> Records:
    """Make the records of requests of which none has come."""
    prompts, outputs = requests.prompts, requests.outputs
    never = {"first": _NEVER, "last": _NEVER, "slot": _NEVER}
    return records(len(prompts), _REQUEST, prompt=prompts, output=outputs, **never)


@compiled
def run_until(
    engine: VllmEngine,
    cache: Cache | None,
    log: BatchLog,
    rows: IntArray,
    until: float,
    pause: float,
) -> bool:
    """Run until all is done, it is time to pause, or the log is full; tells which."""
    counters, arrivals, now, ends = engine.counters, engine.arrivals, engine.now, engine.flight.ends
    turns, depth = engine.queue.turns, engine.limits.depth
    while log.state[0] < len(log.usage):
        if now[0] >= pause:
            return True
        index = next_arrival(arrivals, turns)
        while index < len(arrivals.times) and arrivals.times[index] <= now[0]:
            pass_by(arrivals, turns, index)
            _arrive(engine, index)
            index = next_arrival(arrivals, turns)
        there = counters[_WAITING] + counters[_RUNNING] > 0
        if there and counters[_FLYING] < depth and now[0] < until:
            number = log.state[0]
            preempted = _form(engine, cache, rows[number])
            if rows[number, 0] > 0:
                log.now[0] = max(log.now[0], now[0])
                if not _start(engine, log):
                    return True
                continue
            if preempted and counters[_FLYING] == 0:
                continue  # all were preempted: the queue goes on
        if counters[_FLYING] > 0:
            now[0] = max(now[0], ends[counters[_OLDEST]])
            _finish_oldest(engine, cache)
        elif now[0] >= until or index == len(arrivals.times):
            return True
        else:
            now[0] = arrivals.times[index]
    return False


@compiled_inside
def _form(engine: VllmEngine, cache: Cache | None, row: IntArray) -> int:
    """Decide what is in the next batch; return how many were preempted."""
    counters, requests, running = engine.counters, engine.requests, engine.running
    limits, row[3] = engine.limits, counters[_WAITING]
    left = limits.max_num_batched_tokens
    longest = _longest_part(engine)
    held_back = limits.prefill_schedule_interval > 1 and _holds_back(engine)
    prefills = False
    preempted = place = chosen = 0
    while place < counters[_RUNNING] and left > 0:
        index = running[place]
        request = requests[index]
        known = request.made + request.in_flight
        if request.in_flight > 0 and known >= request.output:
            place += 1  # its last token is in flight
            continue
        if held_back and request.partial:
            place += 1
            continue
        tokens = min(request.prompt + known - request.computed, left, longest)
        victim, room = -1, request.room
        while victim != index and not _hold(engine, index, tokens):
            worst = counters[_RUNNING] - 1 if limits.in_turn else _largest(engine)
            victim = running[worst]
            given_back = _preempt(engine, cache, worst)
            preempted += 1
            if worst < place:  # in the batch, or with its last token in flight
                place -= 1
            if given_back > 0:
                left += given_back
                chosen -= 1
        if victim != index:
            full = (request.computed + tokens) // limits.block_size
            if cache is not None and (request.room > room or request.named < full):
                extend(cache, index, request, room, tokens)
            request.chunk = tokens
            prefills |= request.partial > 0
            left -= tokens
            chosen += 1
            place += 1
        elif limits.halts:
            break
    before = counters[_RUNNING]
    if preempted == 0:
        if counters[_WAITING] > 0:
            left, begins = _admit(engine, cache, left, longest, held_back)
            prefills |= begins
        if not held_back:
            counters[_BACKED_UP] = counters[_WAITING] > 0
    counters[_BATCHES] += left < limits.max_num_batched_tokens
    if prefills:
        counters[_PREFILLED] = counters[_BATCHES]
    row[0], row[1] = chosen + counters[_RUNNING] - before, limits.max_num_batched_tokens - left
    row[2], row[4], row[5] = counters[_RUNNING], counters[_FREE], preempted
    if cache is not None:
        row[6] = cache.counters[NAMES]
    return preempted


@compiled_inside
def _longest_part(engine: VllmEngine) -> int:
    """Return the most tokens of a request in the batch that is formed."""
    limits, there = engine.limits, engine.counters[_RUNNING] + engine.counters[_WAITING]
    longest = limits.long_prefill_token_threshold
    if longest == 0 or there <= 1:
        return limits.max_num_batched_tokens
    share = limits.max_num_batched_tokens // there
    return max(longest, share) if limits.long_prefill_token_threshold_adaptive else longest


@compiled_inside
def _holds_back(engine: VllmEngine) -> bool:
    """Whether prompts wait for a later batch, so that others decode undisturbed."""
    counters = engine.counters
    since = counters[_BATCHES] + 1 - counters[_PREFILLED]
    if counters[_BACKED_UP] > 0 or since >= engine.limits.prefill_schedule_interval:
        return False
    for place in range(counters[_RUNNING]):
        if engine.requests[engine.running[place]].partial == 0:
            return True
    return False


@compiled_inside
def _hold(engine: VllmEngine, index: int, tokens: int) -> bool:
    """Take the blocks for more tokens of a request; tells whether there are enough."""
    request, block_size = engine.requests[index], engine.limits.block_size
    lacking = request.computed + tokens - request.room
    if lacking <= 0:
        return True
    blocks = (lacking + block_size - 1) // block_size
    if blocks > engine.counters[_FREE]:
        return False
    engine.counters[_FREE] -= blocks
    request.room += blocks * block_size
    return True


@compiled_inside
def _release(engine: VllmEngine, cache: Cache | None, index: int) -> None:
    request = engine.requests[index]
    blocks = request.room // engine.limits.block_size
    if cache is not None and request.slot >= 0:
        blocks = give_back(cache, request, blocks)
    engine.counters[_FREE] += blocks
    request.room = 0


@compiled_inside
def _largest(engine: VllmEngine) -> int:
    running, levels, keys = engine.running, engine.queue.levels, engine.queue.keys
    worst = 0
    for place in range(1, engine.counters[_RUNNING]):
        one, other = running[place], running[worst]
        if keys[one] > keys[other] or (keys[one] == keys[other] and levels[one] > levels[other]):
            worst = place
    return worst


@compiled_inside
def _preempt(engine: VllmEngine, cache: Cache | None, worst: int) -> int:
    """Send a request back to the queue; return its tokens in the batch that is formed."""
    running, counters = engine.running, engine.counters
    index = running[worst]
    request = engine.requests[index]
    counters[_RUNNING] -= 1
    for place in range(worst, counters[_RUNNING]):
        running[place] = running[place + 1]
    _release(engine, cache, index)
    request.preempted += 1
    request.recomputed += request.computed
    given_back = request.chunk
    request.computed = request.in_flight = request.chunk = 0
    if engine.limits.reorders:
        engine.queue.keys[index] = engine.queue.tell(PREEMPTED, index, request.made)
    enqueue(engine, index)
    return int(given_back)


@compiled_inside
def _admit(
    engine: VllmEngine, cache: Cache | None, left: int, longest: int, held_back: bool
) -> tuple[int, bool]:
    """Admit requests while their blocks are free; return the tokens left, and if prompts begin."""
    begins, limits = False, engine.limits
    counters, running, requests = engine.counters, engine.running, engine.requests
    heap, keys, turns = engine.heap, engine.queue.keys, engine.queue.turns
    while left > 0 and counters[_WAITING] > 0 and counters[_RUNNING] < limits.max_num_seqs:
        while requests[heap[0]].waits == 0:  # its last token came while it waited
            counters[_HEAP] = pop_by_key(heap, counters[_HEAP], keys, turns)
        index = heap[0]
        request = requests[index]
        known = request.prompt + request.made
        found = free = 0
        if cache is not None:
            found, free = find(cache, index, known)
        cached = found * limits.block_size
        if held_back and cached < known - 1:
            break
        tokens = min(known - cached, longest)
        if tokens > left and not limits.enable_chunked_prefill:
            break
        tokens = min(tokens, left)
        needed = known if limits.scheduler_reserve_full_isl else cached + tokens
        blocks = (needed + limits.block_size - 1) // limits.block_size - found + free
        if counters[_RUNNING] > 0:
            blocks += limits.reserve
        if blocks > counters[_FREE]:
            break
        running[counters[_RUNNING]] = index
        if limits.plan and counters[_RUNNING] > 0 and not _is_planned(engine, cache, found):
            break
        counters[_HEAP] = pop_by_key(heap, counters[_HEAP], keys, turns)
        counters[_WAITING] -= 1
        request.waits = 0
        if limits.is_told:
            engine.queue.tell(ADMITTED, index, request.made)
        if cache is not None:
            reuse(cache, request, found)
            counters[_FREE] -= free
            request.computed = request.room = cached
            request.asked += known
            request.cached += cached
        _hold(engine, index, tokens)
        if cache is not None:
            extend(cache, index, request, cached, tokens)
        counters[_RUNNING] += 1
        request.chunk = tokens
        begins |= cached < known - 1
        left -= tokens
    return left, begins


@compiled_inside
def _is_planned(engine: VllmEngine, cache: Cache | None, found: int) -> bool:
    """Whether those that run and the one behind them, which finds blocks, will fit to the end."""
    requests, running, queue = engine.requests, engine.running, engine.queue
    limits = engine.limits
    count, listed, (lower, upper) = engine.counters[_RUNNING] + 1, queue.listed, queue.intervals
    for at in range(count):
        index = running[at]
        made = requests[index].made + requests[index].in_flight
        left = _expected_left(lower[index], upper[index], made)
        requests[index].ends, requests[index].foreign = left + limits.depth - 1, 0
        if len(listed) > 0:
            listed[at, 0], listed[at, 1], listed[at, 2] = index, requests[index].prompt, made
    if len(listed) > 0:
        return bool(queue.is_likely(count, limits.usable) == 1)
    if cache is not None:
        count_foreign(cache, engine, count - 1, found)
    return _fits_to_the_end(engine, count)


@compiled_inside
def _expected_left(lower: int, upper: int, made: int) -> int:
    """Return the mean of the tokens that are still to come, one at least, rounded up."""
    low, high = max(lower, made + 1), max(upper, made + 1)
    return (low + high + 1) // 2 - made


@compiled_inside
def _fits_to_the_end(engine: VllmEngine, count: int) -> bool:
    """Whether requests are expected to fit into the blocks that no others hold for longer."""
    limits, lag = engine.limits, engine.limits.depth - 1
    requests, running = engine.requests, engine.running
    for one in range(count):
        ahead, blocks = requests[running[one]].ends, 0
        for at in range(count):
            request = requests[running[at]]
            if request.ends >= ahead:
                made = request.made + request.in_flight
                stored = request.prompt + made + min(request.ends - lag, ahead) - 1
                blocks += (stored + limits.block_size - 1) // limits.block_size - request.foreign
        if blocks > limits.usable:
            return False
    return True


@compiled_inside
def _start(engine: VllmEngine, log: BatchLog) -> bool:
    """Let the batch that was formed run; tells whether the clock could time it."""
    requests, running, counters = engine.requests, engine.running, engine.counters
    flight = engine.flight
    slot = (counters[_OLDEST] + counters[_FLYING]) % 2
    prefill = decodes = resident = squares = held = makers = 0
    for place in range(counters[_RUNNING]):
        index = running[place]
        request = requests[index]
        tokens, before = request.chunk, request.computed
        if tokens == 0:
            continue
        request.chunk = 0
        after = before + tokens
        request.computed = after
        if tokens == 1 and before >= request.prompt:
            decodes += 1
            resident += after
        else:
            prefill += tokens
            squares += after * after - before * before
        held += after
        request.partial = after < request.prompt + request.made + request.in_flight
        if request.partial == 0:
            request.in_flight += 1
            flight.requests[slot, makers] = index
            makers += 1
    flight.sizes[slot], flight.numbers[slot] = makers, log.state[0]
    usage = (engine.limits.usable - counters[_FREE]) * engine.limits.block_size
    if not add_batch(
        log, engine.timer, (prefill, decodes, resident, squares, held + makers), usage
    ):
        return False
    flight.ends[slot] = log.now[0]
    counters[_FLYING] += 1
    return True


@compiled_inside
def _finish_oldest(engine: VllmEngine, cache: Cache | None) -> None:
    """Take the tokens of the batch that ends first; requests that are complete leave."""
    requests, running, counters = engine.requests, engine.running, engine.counters
    flight, slot, limits = engine.flight, counters[_OLDEST], engine.limits
    done = 0
    for maker in range(flight.sizes[slot]):
        index = flight.requests[slot, maker]
        request = requests[index]
        request.made += 1
        if request.in_flight > 0:  # else it was preempted meanwhile, and keeps the token
            request.in_flight -= 1
        if cache is not None and limits.depth > 1 and request.slot >= 0:
            # What was under way is known now.
            full = (request.computed - request.in_flight) // limits.block_size
            if request.named < full:
                publish(cache, index, request, full)
        if request.made == 1:
            request.first = flight.numbers[slot]
        if request.made == request.output:
            request.last = flight.numbers[slot]
            _release(engine, cache, index)
            counters[_WAITING] -= request.waits
            request.waits = 0
            done += 1
            if limits.is_told:
                engine.queue.tell(ENDED, index, request.made)
            if len(engine.arrivals.firsts) > 0:
                queue, end = engine.queue, flight.ends[slot]
                call_followers(engine.arrivals, queue.turns, queue.levels, index, end)
    counters[_OLDEST] = (slot + 1) % 2
    counters[_FLYING] -= 1
    if done == 0:
        return
    kept = 0
    for place in range(counters[_RUNNING]):
        index = running[place]
        if requests[index].last < 0:
            running[kept] = index
            kept += 1
    counters[_RUNNING] = kept


@compiled_inside
def _arrive(engine: VllmEngine, index: int) -> None:
    """Let a request that has arrived wait."""
    if engine.limits.is_told:
        engine.queue.keys[index] = engine.queue.tell(ARRIVED, index, 0)
    enqueue(engine, index)


@compiled_inside
def enqueue(engine: VllmEngine, index: int) -> None:
    """Let a request wait."""
    counters, keys, turns = engine.counters, engine.queue.keys, engine.queue.turns
    counters[_HEAP] = push_by_key(engine.heap, counters[_HEAP], index, keys, turns)
    counters[_WAITING] += 1
    engine.requests[index].waits = 1


arrive = compiled(_arrive)
