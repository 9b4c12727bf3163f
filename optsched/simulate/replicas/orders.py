r"""Workers under a fixed order of requests, as far as a router needs them: until the next arrival.

The router looks at the workers when a request arrives, so each worker is run batch by batch until
then, by the admission rule of one worker (`optsched.admission`), and nothing is written down but
what a router sees. What the workers did is found afterwards by ordinary runs of one worker each, as
the requests of each are known then.

All workers share the rows of the requests, as each request is on one of them. Those that came to a
worker since its last batch form a chain; at the next batch they are put into the first rows by
arrival, which are free otherwise.

On the unit clock a batch is a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import MINUS_ONE, ZERO, compiled
from optsched.admission import DUE, NEVER, RELEASED, STARTED, Queue, admit_window, new_queue
from optsched.simulate.seconds.batches import add_batch, new_log, timing
from optsched.workers import Load

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.simulate.seconds.batches import BatchLog, Requests

_WORKER = (
    "batch",  # number of the next one
    "kind",  # workers of one memory share the rows of requests
    "memory",
    *("active", "tokens"),  # requests that run and what they hold, after the last batch
    *("running", "held"),  # the same in the last batch
    *("waiting", "waiting_prompts", "work"),
    *("entered", "prefill", "squares"),  # of the requests that start in the next batch
    *("head", "tail"),  # of the chain of those that came
)


class Replicas(NamedTuple):
    """State of all workers, each between two batches of its own."""

    workers: Records
    now: FloatArray  # by worker, when its next batch can begin
    rows: Records  # of requests by urgency, one line for each kind
    ranks: IntArray  # of each request in these rows
    room: Records  # one line for each kind
    waiting: IntArray
    counts: IntArray
    usage: IntArray
    window: IntArray
    finishing: Records  # those that complete at a batch, modulo the longest output
    chain: IntArray  # request that came next to the same worker
    begun: FloatArray  # when the requests of these rows started


class Limits(NamedTuple):
    """The rule of admission, and when runs end."""

    ratio: float
    length: int
    until: float


def new_replicas(
    instance: Instance, memories: IntArray, order: Callable[[Instance], IntArray]
) -> Replicas:
    """Make workers that are idle; the order is asked for once for each size of memory."""
    count, workers = len(instance), len(memories)
    sizes, kinds = np.unique(memories, return_inverse=True)
    longest = int(instance.outputs.max())
    state = records(workers, _WORKER, kind=kinds, memory=memories, head=-1, tail=-1)
    queues, ranks = [], np.zeros((len(sizes), count), dtype=np.int64)
    for kind, size in enumerate(sizes.tolist()):
        fits = np.flatnonzero(instance.peaks <= size)
        urgent = fits
        if len(fits):
            some = instance.take(fits) if len(fits) < count else instance
            urgent = fits[order(some if size == instance.memory else some.replace(memory=size))]
        ranks[kind, urgent] = np.arange(len(urgent))
        rest = np.setdiff1d(np.arange(count), urgent)  # never come here
        every = np.concatenate([urgent, rest])
        arrivals = np.full(count, NEVER)
        queue = new_queue(instance.prompts, instance.outputs, arrivals, size, every)
        queues.append(queue)
    window = 4 * longest + 64
    finishing = records(workers * (longest + 1), ("requests", "tokens"))
    return Replicas(
        workers=state,
        now=np.zeros(workers),
        rows=np.stack([queue.requests for queue in queues]).view(np.recarray),
        ranks=ranks,
        room=np.stack([queue.room for queue in queues]).view(np.recarray),
        waiting=np.zeros((workers, 2 * count), dtype=np.int64),
        counts=np.tile(queues[0].counts, (workers, 1)),
        usage=np.zeros((workers, window), dtype=np.int64),
        window=np.zeros((workers, 2), dtype=np.int64),
        finishing=finishing.reshape(workers, longest + 1).view(np.recarray),
        chain=np.full(count, -1),
        begun=np.full((len(sizes), count), np.nan),
    )


@compiled
def _advance(
    replicas: Replicas,
    index: int,
    until: float,
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
) -> bool:
    """Run one worker until its next batch cannot begin before a time; tells whether it could."""
    worker, counts = replicas.workers[index], replicas.counts[index]
    usage, window = replicas.usage[index], replicas.window[index]
    rows, room = replicas.rows[worker.kind], replicas.room[worker.kind]
    finishing = replicas.finishing[index]
    queue = Queue(rows, replicas.waiting[index], room, counts)
    while replicas.now[index] < until:
        batch = worker.batch
        if worker.head >= 0 or (worker.waiting > 0 and batch >= counts[DUE]):
            came = ZERO
            while worker.head >= 0:
                rows[came].arrival = batch
                rows[came].arriving = replicas.ranks[worker.kind, worker.head]
                worker.head = replicas.chain[worker.head]
                came += 1
            counts[RELEASED] = 0
            admit_window(
                queue, worker.memory, limits.ratio, limits.length, batch, batch + 1, usage, window
            )
            for place in range(came):
                rows[place].arrival = NEVER
            for place in range(counts[STARTED]):
                rank = rows[place].started
                request = rows[rank]
                leaving = finishing[(batch + request.output) % len(finishing)]
                leaving.requests += 1
                leaving.tokens += request.prompt + request.output
                replicas.begun[worker.kind, rank] = replicas.now[index]
                worker.waiting -= 1
                worker.waiting_prompts -= request.prompt
                worker.active += 1
                worker.tokens += request.prompt
                worker.entered += request.prompt > 0
                worker.prefill += request.prompt
                worker.squares += request.prompt * request.prompt
        if worker.active == 0:  # then none waits either: every request fits alone
            return True
        decodes, resident = worker.active - worker.entered, worker.tokens - worker.prefill
        held = worker.tokens + worker.active
        log.state[0], log.now[0] = 0, replicas.now[index]
        if not add_batch(log, timer, worker.prefill, decodes, resident, worker.squares, held, held):
            return False
        replicas.now[index] = log.now[0]
        worker.batch += 1
        worker.running, worker.held = worker.active, held
        worker.work -= held
        worker.entered = worker.prefill = worker.squares = 0
        leaving = finishing[worker.batch % len(finishing)]
        worker.active -= leaving.requests
        worker.tokens = held - leaving.tokens
        leaving.requests = leaving.tokens = 0
    return True


@compiled
def _score(
    replicas: Replicas, index: int, time: float, weights: FloatArray, load: FloatArray
) -> float:
    """Look at a worker that was run until now; return what its load adds up to."""
    worker = replicas.workers[index]
    load[0] = worker.waiting
    if replicas.now[index] > time:  # in the midst of a batch
        load[1], load[2] = worker.running, worker.held
    else:
        load[1], load[2] = worker.active, worker.tokens
    load[3], load[4] = worker.waiting_prompts, worker.work
    score = 0.0
    for field in range(len(load)):
        score += weights[index, field] * load[field]
    return score


@compiled
def _place(replicas: Replicas, index: int, request: int, time: float) -> None:
    """Let a request come to a worker that was run until now."""
    worker = replicas.workers[index]
    row = replicas.rows[worker.kind, replicas.ranks[worker.kind, request]]
    if worker.active == 0 and worker.waiting == 0 and replicas.now[index] < time:
        replicas.now[index] = time
    if worker.head < 0:
        worker.head = request
    else:
        replicas.chain[worker.tail] = request
    worker.tail = request
    worker.waiting += 1
    worker.waiting_prompts += row.prompt
    worker.work += row.area


@compiled
def _route(
    replicas: Replicas,
    arrivals: FloatArray,
    drawn: IntArray,
    which: IntArray,
    weights: FloatArray,
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    placement: IntArray,
) -> bool:
    """Send each request to the worker with the least score; tells whether batches had a time."""
    load = np.empty(5)
    for request in range(len(arrivals)):
        time = arrivals[request]
        until = min(time, limits.until)
        best, least = MINUS_ONE, 0.0
        for place in range(drawn.shape[1]):
            index = drawn[which[request], place]
            if index < 0:
                break
            if not _advance(replicas, index, until, limits, log, timer):
                return False
            score = _score(replicas, index, time, weights, load)
            if best < 0 or score < least:
                best, least = index, score
        placement[request] = best
        _place(replicas, best, request, time)
    return True


@compiled
def _look(
    replicas: Replicas,
    time: float,
    weights: FloatArray,
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    loads: FloatArray,
) -> bool:
    """Run all workers until a time, and write down what is on them."""
    for index in range(len(loads)):
        if not _advance(replicas, index, min(time, limits.until), limits, log, timer):
            return False
        _score(replicas, index, time, weights, loads[index])
    return True


class OrderedWorkers:
    """Workers under a fixed order of requests, run as far as they are looked at."""

    def __init__(
        self, requests: Requests, replicas: Replicas, limits: Limits, clock: Clock
    ) -> None:
        self._requests, self._replicas = requests, replicas
        self._limits, self._clock = limits, clock
        self._log = new_log()

    def route(self, drawn: IntArray, which: IntArray, weights: FloatArray) -> IntArray:
        """Send each request to the drawn worker whose load adds up to least."""
        arrivals = self._requests.arrivals
        placement = np.zeros(len(arrivals), dtype=np.int64)
        kernel = interruptible_kernel(_route, len(arrivals))
        with timing(self._clock) as timer:
            kernel(
                self._replicas,
                arrivals,
                drawn,
                which,
                weights,
                self._limits,
                self._log,
                timer,
                placement,
            )
        return placement

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        loads = np.zeros((len(self._replicas.now), len(Load._fields)))
        with timing(self._clock) as timer:
            _look(self._replicas, time, np.zeros_like(loads), self._limits, self._log, timer, loads)
        return loads[indices]

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        _place(self._replicas, index, request, time)

    def begun(self, placement: IntArray) -> FloatArray:
        """Return when each request began; NaN where its worker was not run until then."""
        kinds = self._replicas.workers.kind[placement]
        ranks = self._replicas.ranks[kinds, np.arange(len(placement))]
        times: FloatArray = self._replicas.begun[kinds, ranks]
        return times
