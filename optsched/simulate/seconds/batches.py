"""Batches on a clock: arrivals, admission as on the unit clock with batches as steps, workers."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import FloatArray, IntArray, Records, ranks_in, records
from optsched._internal.aside import heard, interruptible_kernel
from optsched._internal.compiled import allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import pop_by_key, precedes, push_by_key
from optsched.admission import DUE, NEVER, RELEASED, STARTED, Queue, admit_window, new_queue
from optsched.clock import BatchContent, Clock
from optsched.errors import InstanceError
from optsched.problem.work import arrival_times, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from optsched.policies.base import BatchSelector
    from optsched.problem.instance import Instance

    Callback: TypeAlias = Callable[..., float]
    #: How long batches take: coefficients of a clock, or a function; of workers a row for each.
    Timer: TypeAlias = tuple[FloatArray, Callback]
    #: What a `BatchLog` consists of.
    LogArrays: TypeAlias = tuple[IntArray, FloatArray, IntArray, FloatArray, IntArray]


_PASSED, _CALLED, _COME = range(3)  # requests passed by, those in the heap, those that came


class Arrivals(NamedTuple):
    """Requests that are still to come; only times where none follows another."""

    times: FloatArray
    firsts: IntArray  # those that go on from no other, in the order in which they come
    followers: IntArray  # all by the one they go on from
    begins: IntArray  # where those of each request begin
    pauses: IntArray  # in steps
    step: float
    called: IntArray  # heap of those whose time has become known
    counters: IntArray

    @classmethod
    def of(cls, instance: Instance, clock: Clock, turns: IntArray) -> Arrivals:
        """Return those of an instance, on a clock; of two at once that of the lesser turn comes."""
        times, step = arrival_times(instance, clock), step_of(instance, clock)
        if (follows := instance.follows) is None:
            return cls.at(times)
        if not step:
            raise InstanceError(
                f"pauses count steps, but the clock {clock.name} needs seconds; say how long a "
                "step is (seconds_per_step)"
            )
        order = np.lexsort((turns, instance.arrivals))
        firsts = order[follows[order] < 0]
        followers = np.argsort(follows, kind="stable")
        begins = np.searchsorted(follows[followers], np.arange(len(follows) + 1))
        pauses = np.zeros_like(follows) if instance.pauses is None else instance.pauses.copy()
        rest = np.zeros_like(follows), np.zeros(3, dtype=np.int64)
        return cls(times, firsts, followers, begins, pauses, step, *rest)

    @classmethod
    def at(cls, times: FloatArray) -> Arrivals:
        """Return arrivals at known times."""
        none = np.zeros(0, dtype=np.int64)
        return cls(times, *(none,) * 4, 1.0, none, np.zeros(3, dtype=np.int64))


@compiled_inside
def next_arrival(arrivals: Arrivals, turns: IntArray) -> int:
    """Return the request that comes next; of those that come at once the one of the least turn."""
    times, firsts, counters = arrivals.times, arrivals.firsts, arrivals.counters
    first = counters[_PASSED]
    if len(firsts) > 0:
        first = firsts[first] if first < len(firsts) else len(times)
    if counters[_CALLED] > 0:
        called = arrivals.called[0]
        if first == len(times) or precedes(times, turns, called, first):
            return int(called)
    return int(first)


@compiled_inside
def pass_by(arrivals: Arrivals, turns: IntArray, index: int) -> None:
    """Pass by the request that comes next; where the order was not known it gets its turn now."""
    counters = arrivals.counters
    if counters[_CALLED] == 0 or index != arrivals.called[0]:
        counters[_PASSED] += 1
    else:
        counters[_CALLED] = pop_by_key(arrivals.called, counters[_CALLED], arrivals.times, turns)
    if len(arrivals.firsts) > 0:
        turns[index] = counters[_COME]
        counters[_COME] += 1


@compiled_inside
def call_followers(
    arrivals: Arrivals, turns: IntArray, levels: IntArray, index: int, end: float
) -> None:
    """Let those that go on from a request come after their pauses; levels are their arrivals."""
    counters, step = arrivals.counters, arrivals.step
    for at in range(arrivals.begins[index], arrivals.begins[index + 1]):
        turn = arrivals.followers[at]
        come = int(np.ceil(end / step)) + arrivals.pauses[turn]
        levels[turn] = max(levels[turn], come)
        arrivals.times[turn] = levels[turn] * step
        counters[_CALLED] = push_by_key(
            arrivals.called, counters[_CALLED], turn, arrivals.times, turns
        )


_COUNTS = len(BatchContent._fields)
_Callback = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * _COUNTS)
_LOGGED = 0

#: Of a worker: the number of its next batch; requests that run and the tokens they hold; and of
#: those that start in that batch: how many have prompts, their tokens, and the squares of these.
BATCH = ("batch", "active", "tokens", "entered", "prefill", "squares")

#: What vLLM's scheduler says of each batch; the last only where blocks can be found again.
COLUMNS = (
    *("requests", "tokens", "running", "waiting", "free_blocks", "preempted"),
    "cached_blocks",
)


class BatchLog(NamedTuple):
    """Batches so far, one row each; rows beyond those in use mean nothing."""

    contents: IntArray
    spans: FloatArray
    usage: IntArray
    now: FloatArray
    state: IntArray

    def finished(self, rows: IntArray | slice | None = None) -> BatchLog:
        """Return the log without rows that are not in use, or only some."""
        rows = slice(self.state[_LOGGED]) if rows is None else rows
        contents, spans, usage = self.contents[rows, :_COUNTS], self.spans[rows], self.usage[rows]
        return BatchLog(contents.copy(), spans.copy(), usage.copy(), self.now, self.state)

    def by_worker(self, workers: int) -> list[BatchLog]:
        """Return the log of each of several workers, whose number is in the last column."""
        worker = self.contents[: self.state[_LOGGED], _COUNTS]
        order = np.argsort(worker, kind="stable")
        ends = np.searchsorted(worker[order], np.arange(1, workers))
        return [self.finished(rows) for rows in np.split(order, ends)]

    def doubled(self) -> BatchLog:
        """Return the log with twice as many rows."""
        log = (self.contents, self.spans, self.usage)
        contents, spans, usage = (np.concatenate([rows, np.zeros_like(rows)]) for rows in log)
        return BatchLog(contents, spans, usage, self.now, self.state)


class EngineRequests(NamedTuple):
    """What a kernel knows of the requests; an output only shows whether one is complete."""

    prompts: IntArray
    arrivals: FloatArray  # ascending, in the clock's unit
    outputs: IntArray
    memory: int


class EngineProgress(NamedTuple):
    """How far an engine is with each request when the batch in progress ends, as routers see it."""

    held: IntArray  # tokens
    made: IntArray
    in_flight: IntArray  # tokens made, too
    last: IntArray  # the batch that made the last token, or -1
    queue: IntArray
    absent: int  # what `queue` has for those that do not wait


def new_log(columns: int = _COUNTS) -> BatchLog:
    """Make an empty log at time zero."""
    return BatchLog(
        contents=np.zeros((1024, columns), dtype=np.int64),
        spans=np.zeros((1024, 2)),
        usage=np.zeros(1024, dtype=np.int64),
        now=np.zeros(1),
        state=np.zeros(1, dtype=np.int64),
    )


@contextmanager
def called_back(
    kind: Callable[..., Callback], function: Callback, failed: float
) -> Iterator[Callback]:
    """Return a function as kernels call it: they get `failed` where it raises, which waits.

    Ctrl-C waits for the next call: on the way into one it would be lost.
    """
    errors: list[BaseException] = []
    with heard() as struck:

        def call(*arguments: int) -> float:
            try:
                if struck:
                    raise KeyboardInterrupt
                return function(*arguments)
            except BaseException as error:
                errors.append(error)
                return failed

        yield kind(call)
    if errors:
        raise errors[0]
    if struck:
        raise KeyboardInterrupt


@contextmanager
def timing(clock: Clock) -> Iterator[Timer]:
    """Turn a clock into what kernels can use: coefficients, or a pointer to a Python function."""

    def duration(*counts: int) -> float:
        return clock(BatchContent(*counts))

    if clock.coefficients is None:
        with called_back(_Callback, duration, float("nan")) as callback:
            yield np.zeros(0), callback
        return
    bends = [*clock.hinges, *((-most, slope) for most, slope in clock.ramps)]
    weights = np.concatenate([clock.coefficients, [clock.mixed_tokens], np.ravel(bends)])
    yield weights, _Callback(duration)  # which nobody calls


@contextmanager
def timing_each(clocks: Sequence[Clock]) -> Iterator[Timer]:
    """Turn the clocks of workers into a row of coefficients each; functions must be the same."""
    with ExitStack() as stack:
        of = {clock: stack.enter_context(timing(clock)) for clock in dict.fromkeys(clocks)}
        rows = np.zeros((len(clocks), max(len(weights) for weights, _ in of.values())))
        for row, clock in zip(rows, clocks, strict=True):
            row[: len(of[clock][0])] = of[clock][0]
        yield rows, of[clocks[0]][1]


@allocating_inside
def with_room(log: BatchLog) -> BatchLog:
    """Return the log, with twice as many rows where all are in use."""
    rows, counts = log.contents.shape
    if log.state[_LOGGED] < rows:
        return log
    # Rows that nobody has written take no memory yet.
    contents = np.empty((2 * rows, counts), dtype=np.int64)
    spans = np.empty((2 * rows, 2))
    usage = np.empty(2 * rows, dtype=np.int64)
    for row in range(rows):
        for count in range(counts):
            contents[row, count] = log.contents[row, count]
        spans[row, 0], spans[row, 1] = log.spans[row, 0], log.spans[row, 1]
        usage[row] = log.usage[row]
    return BatchLog(contents, spans, usage, log.now, log.state)


@allocating_inside
def apart(log: BatchLog) -> LogArrays:
    """Return what a log consists of, as kernels return it.

    A named tuple is made by calls into Python, and if one raises what Ctrl-C raises, numba goes on
    with nothing in place of the tuple, which ends the process.
    """
    return log.contents, log.spans, log.usage, log.now, log.state


@compiled_inside
def add_batch(
    log: BatchLog, timer: Timer, content: tuple[int, int, int, int, int], usage: int
) -> bool:
    """Run a batch: log it and let its time pass; tells whether the clock could time it."""
    row = log.state[_LOGGED]
    prefill, decodes, resident, squares, held = content
    log.contents[row, 0], log.contents[row, 1], log.contents[row, 2] = prefill, decodes, resident
    log.contents[row, 3], log.contents[row, 4] = squares, held
    c, callback = timer
    if len(c) > 0:
        duration = c[0] + c[1] * prefill + c[2] * decodes + c[3] * resident
        duration = duration + c[4] * squares + c[5] * held
        if prefill > 0:
            duration += c[_COUNTS + 1] * resident
        for at in range(_COUNTS + 2, len(c), 2):  # tokens (below zero: of a ramp), seconds of each
            tokens = prefill + decodes
            bent = max(tokens - c[at], 0.0) if c[at] >= 0 else min(tokens, -c[at])
            duration += c[at + 1] * bent
    else:
        duration = callback(prefill, decodes, resident, squares, held)
        if np.isnan(duration):
            return False
    log.usage[row] = usage
    log.spans[row, 0] = log.now[0]
    log.now[0] += duration
    log.spans[row, 1] = log.now[0]
    log.state[_LOGGED] = row + 1
    return True


@compiled
def start(worker: Records, prompt: int) -> None:
    """Let a request start in the next batch of a worker."""
    worker.active += 1
    worker.tokens += prompt
    worker.entered += prompt > 0  # without a prompt its first token is as good as a decode
    worker.prefill += prompt
    worker.squares += prompt * prompt


@compiled_inside
def next_batch(worker: Records) -> tuple[int, int, int, int, int]:
    """Let each request of a worker make a token; return the content of that batch."""
    decodes, resident = worker.active - worker.entered, worker.tokens - worker.prefill
    held = worker.tokens + worker.active
    content = (worker.prefill, decodes, resident, worker.squares, held)
    worker.tokens = held
    worker.entered = worker.prefill = worker.squares = 0
    worker.batch += 1
    return content


_WORKER = (
    "memory",
    *BATCH,
    *("running", "held"),  # requests and tokens in the last batch
    "kind",  # workers of one memory and clock share the rows of requests
    *("waiting", "waiting_prompts", "work", "made"),
    *("head", "tail"),  # of the chain of requests that came
    "came",  # requests of those that come by themselves
)


class WorkerQueues(NamedTuple):
    """Workers with a queue each, paused between two batches."""

    workers: Records
    now: FloatArray  # by worker, when its next batch can begin
    usage: IntArray
    window: IntArray
    finishing: Records  # those that complete at a batch, modulo the longest output
    rows: Records  # of requests by urgency, one line for each kind
    ranks: IntArray  # of each request in these rows
    room: Records  # one line for each kind
    waiting: IntArray
    counts: IntArray
    chain: IntArray  # request that came next to the same worker
    begun: FloatArray  # when the requests of these rows started
    arrivals: FloatArray
    coming: IntArray  # requests that come by themselves, in this order, to the only worker


class RunLimits(NamedTuple):
    """The rule of admission, when runs end, and whether all batches are logged."""

    ratio: float
    length: int
    until: float
    logged: bool = False


def new_queues(
    requests: EngineRequests,
    memories: IntArray,
    kinds: IntArray,
    order_of: Callable[[int], IntArray],
    coming: IntArray | None = None,
) -> WorkerQueues:
    """Make idle workers; the order of what fits is asked for once for a worker of each kind."""
    prompts, arrivals, outputs, _ = requests
    several, count, longest = len(memories), len(prompts), int(outputs.max())
    _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
    finishing = records(several * (longest + 1), ("requests", "tokens"))
    queues, ranks = [], np.zeros((len(first), count), dtype=np.int64)
    for kind, worker in enumerate(first.tolist()):
        urgent = order_of(worker)
        ranks[kind, urgent] = np.arange(len(urgent))
        rest = np.delete(np.arange(count), urgent)  # never come here
        every = np.concatenate([urgent, rest])
        queues.append(new_queue(prompts, outputs, np.full(count, NEVER), memories[worker], every))
    return WorkerQueues(
        workers=records(several, _WORKER, memory=memories, kind=kinds, head=-1, tail=-1),
        now=np.zeros(several),
        usage=np.zeros((several, 4 * longest + 64), dtype=np.int64),
        window=np.zeros((several, 2), dtype=np.int64),
        finishing=finishing.reshape(several, longest + 1).view(np.recarray),
        rows=np.stack([queue.requests for queue in queues]).view(np.recarray),
        ranks=ranks,
        room=np.stack([queue.room for queue in queues]).view(np.recarray),
        waiting=np.zeros((several, 2 * count), dtype=np.int64),
        counts=np.tile(queues[0].counts, (several, 1)),
        chain=np.full(count, -1),
        begun=np.full((len(first), count), np.nan),
        arrivals=arrivals,
        coming=np.zeros(0, dtype=np.int64) if coming is None else coming,
    )


@compiled
def place(queues: WorkerQueues, index: int, request: int, time: float) -> None:
    """Let a request come to a worker that was run until now."""
    worker, now = queues.workers[index], queues.now
    row = queues.rows[worker.kind, queues.ranks[worker.kind, request]]
    if worker.active == 0 and worker.waiting == 0 and now[index] < time:
        now[index] = time
    if worker.head < 0:
        worker.head = request
    else:
        queues.chain[worker.tail] = request
    worker.tail = request
    worker.waiting += 1
    worker.waiting_prompts += row.prompt
    worker.work += row.area


@compiled
def advance(
    queues: WorkerQueues,
    limits: RunLimits,
    log: BatchLog,
    timers: Timer,
    index: int,
    until: float,
    hungry: bool,
) -> bool:
    """Run until a time, or until it is hungry and none waits; False where the log is full."""
    timer = timers[0][index], timers[1]
    worker, counts, now = queues.workers[index], queues.counts[index], queues.now
    usage, window = queues.usage[index], queues.window[index]
    finishing = queues.finishing[index]
    rows, room = queues.rows[worker.kind], queues.room[worker.kind]
    queue = Queue(rows, queues.waiting[index], room, counts)
    ratio, length, _, logged = limits
    arrivals, coming, begun = queues.arrivals, queues.coming, queues.begun
    rows_used, time, most = log.state, log.now, len(log.usage)
    while now[index] < until:
        batch = worker.batch
        while worker.came < len(coming) and arrivals[coming[worker.came]] <= now[index]:
            place(queues, index, coming[worker.came], now[index])
            worker.came += 1
        if worker.head >= 0 or (worker.waiting > 0 and batch >= counts[DUE]):
            came = 0
            while worker.head >= 0:
                rows[came].arrival = batch
                rows[came].arriving = queues.ranks[worker.kind, worker.head]
                worker.head = queues.chain[worker.head]
                came += 1
            counts[RELEASED] = 0
            admit_window(queue, worker.memory, ratio, length, batch, batch + 1, usage, window)
            for slot in range(came):
                rows[slot].arrival = NEVER
            for slot in range(counts[STARTED]):
                rank = rows[slot].started
                request = rows[rank]
                _begin(worker, finishing, request.prompt, request.output)
                begun[worker.kind, rank] = now[index]
                worker.waiting -= 1
                worker.waiting_prompts -= request.prompt
        if worker.active == 0:  # then none waits either: every request fits alone
            if worker.came == len(coming):
                return True
            now[index] = arrivals[coming[worker.came]]
            continue
        if hungry and worker.waiting == 0:
            return True
        if not logged:
            rows_used[0] = 0
        elif rows_used[0] == most:
            return False
        time[0] = now[index]
        if not add_batch(log, timer, next_batch(worker), worker.tokens):
            return False
        log.contents[rows_used[0] - 1, _COUNTS] = index
        now[index] = time[0]
        _let_leave(worker, finishing)
    return True


@compiled_inside
def _begin(worker: Records, finishing: Records, prompt: int, output: int) -> None:
    """Start a request in the next batch of a worker."""
    start(worker, prompt)
    leaving = finishing[(worker.batch + output) % len(finishing)]
    leaving.requests += 1
    leaving.tokens += prompt + output


@compiled_inside
def _let_leave(worker: Records, finishing: Records) -> None:
    """Note what was in the last batch; those that are complete leave."""
    worker.running, worker.held = worker.active, worker.tokens
    worker.work -= worker.held
    worker.made += worker.running
    leaving = finishing[worker.batch % len(finishing)]
    worker.active -= leaving.requests
    worker.tokens -= leaving.tokens
    leaving.requests = leaving.tokens = 0


class PausedQueues:
    """Workers with a queue each, paused between two batches; used within `with`."""

    def __init__(self, queues: WorkerQueues, limits: RunLimits, clocks: Sequence[Clock]) -> None:
        self.queues, self.log = queues, new_log(_COUNTS + 1)  # and the worker
        self._limits, self._timing = limits, timing_each(clocks)

    def __enter__(self) -> PausedQueues:
        self._timers = self._timing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._timing.__exit__(*error)

    def go_on(self, kernel: Callable[..., bool], *arguments: object) -> bool:
        """Call a kernel until it has done all, with as many rows as it takes; tells whether."""
        while not kernel(self.queues, self._limits, self.log, self._timers, *arguments):
            if self.log.state[_LOGGED] < len(self.log.usage):
                return False  # the clock has failed
            self.log = self.log.doubled()
        return True


def admit_on_clock(
    requests: EngineRequests,
    order: IntArray | BatchSelector,
    clock: Clock,
    *,
    limits: tuple[float, int] = (1.0, 1),
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests in order, or as a selector chooses; return their starts, and the batches."""
    count, ordered = len(requests.prompts), isinstance(order, np.ndarray)
    ranked = order if isinstance(order, np.ndarray) else np.arange(count)
    # Many that arrive at once are quick to add in their order.
    coming = np.lexsort((ranks_in(ranked), requests.arrivals))[: count if ordered else 0]
    queues = new_queues(
        requests, np.array([requests.memory]), np.array([0]), lambda _: ranked, coming
    )
    with PausedQueues(queues, RunLimits(*limits, until, logged=True), [clock]) as worker:
        if isinstance(order, np.ndarray):
            worker.go_on(interruptible_kernel(advance, count), 0, until, False)
        else:
            queues.ranks[:] = -1
            _run_chosen(requests, order, worker, until)
    ranks = queues.ranks[0]
    return np.where(ranks < 0, -1, queues.rows[0].start[ranks]), worker.log.finished()


def _run_chosen(
    requests: EngineRequests, selector: BatchSelector, worker: PausedQueues, until: float
) -> None:
    """Let batches come that a selector chooses, each when the one before is used up."""
    queues = worker.queues
    arrivals, now = requests.arrivals, queues.now
    released = chosen = 0
    while now[0] < until:
        there = int(np.searchsorted(arrivals, now[0], side="right"))
        hungry = there > chosen
        pause = until
        if hungry:
            if there > released:
                selector.release(np.arange(released, there))
                released = there
            batch = selector.next_batch()
            _place_chosen(queues, requests, batch, chosen)
            chosen += len(batch)
        elif there < len(arrivals):
            pause = min(arrivals[there], until)
        if not worker.go_on(advance, 0, pause, hungry):
            return
        if not hungry:
            if there == len(arrivals):
                return
            now[0] = max(now[0], pause)


@compiled
def _place_chosen(
    queues: WorkerQueues, requests: EngineRequests, batch: IntArray, rank: int
) -> None:
    """Let a batch come, the first of which has a rank."""
    for request in batch:
        queues.ranks[0, request] = rank
        row = queues.rows[0, rank]
        row.prompt, row.output = requests.prompts[request], requests.outputs[request]
        place(queues, 0, request, queues.now[0])
        rank += 1
