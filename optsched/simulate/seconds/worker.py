"""Workers under a fixed order of requests, each paused between two batches of its own.

All workers share the rows of the requests. Those that came to a worker since its last batch form a
chain; at the next batch they are put into the first rows by arrival, which are free otherwise.
Admission is that of the unit clock (`optsched.admission`) with batches as steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.compiled import ZERO, compiled
from optsched.admission import DUE, NEVER, RELEASED, STARTED, Queue, admit_window, new_queue
from optsched.simulate.seconds.batches import BATCH, add_batch, next_batch, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.simulate.seconds.batches import BatchLog, Requests

_WORKER = (
    "memory",
    *BATCH,
    *("running", "held"),  # requests and tokens in the last batch
    "kind",  # workers of one memory and clock share the rows of requests
    *("waiting", "waiting_prompts", "work"),
    *("head", "tail"),  # of the chain of requests that came
    "came",  # requests of those that come by themselves
)


class Queues(NamedTuple):
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


class Limits(NamedTuple):
    """The rule of admission, when runs end, and whether all batches are logged."""

    ratio: float
    length: int
    until: float
    logged: bool = False


def new_queues(
    requests: Requests,
    memories: IntArray,
    kinds: IntArray,
    order_of: Callable[[int], IntArray],
    coming: IntArray | None = None,
) -> Queues:
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
    return Queues(
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
def place(queues: Queues, index: int, request: int, time: float) -> None:
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
    queues: Queues,
    index: int,
    until: float,
    hungry: bool,
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
) -> bool:
    """Run until a time, or until it is hungry and none waits; False where the log is full."""
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
            came = ZERO
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
        now[index] = time[0]
        _let_leave(worker, finishing)
    return True


@compiled
def _begin(worker: Any, finishing: Records, prompt: int, output: int) -> None:
    """Start a request in the next batch of a worker."""
    start(worker, prompt)
    leaving = finishing[(worker.batch + output) % len(finishing)]
    leaving.requests += 1
    leaving.tokens += prompt + output


@compiled
def _let_leave(worker: Any, finishing: Records) -> None:
    """Note what was in the last batch; those that are complete leave."""
    worker.running, worker.held = worker.active, worker.tokens
    worker.work -= worker.held
    leaving = finishing[worker.batch % len(finishing)]
    worker.active -= leaving.requests
    worker.tokens -= leaving.tokens
    leaving.requests = leaving.tokens = 0
