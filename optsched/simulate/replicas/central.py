"""One queue for all workers: the reference that no router reaches, as it decides last.

Whenever batches can begin, the most urgent request that waits starts on one of these workers where
it fits, the one with the fewest free tokens; where it fits on none, no other passes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in, records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import MINUS_ONE, ZERO, compiled
from optsched._internal.small_kernels import pop, push
from optsched.admission import earliest_start, occupy
from optsched.errors import PolicyError
from optsched.execution import unpreempted
from optsched.simulate.replicas.result import RoutedRun
from optsched.simulate.replicas.routing import choices_of
from optsched.simulate.runners import of_starts
from optsched.simulate.seconds.batches import BatchLog, add_batch, new_log, timing, with_room
from optsched.simulate.seconds.execution import requests_of
from optsched.workers import ROUTERS

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.execution import Execution
    from optsched.simulate.replicas.routing import Choices
    from optsched.simulate.seconds.batches import Requests
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.task import Task
    from optsched.workers import Workers

_WORKER = (
    "memory",
    "batch",  # number of the next one
    *("active", "tokens"),  # requests that run and what they hold, after the last batch
    *("entered", "prefill", "squares"),  # of those that start in the next batch
    "not_before",  # batch before which the head of the queue does not fit
)
_REQUEST = ("worker", "start")  # start: batches of its worker before its own first


class _State(NamedTuple):
    workers: Records
    now: FloatArray  # by worker, when its next batch can begin
    usage: IntArray
    window: IntArray
    finishing: Records
    served: Records
    waiting: IntArray  # a heap of ranks
    begun: FloatArray


def run_central(task: Task, workers: Workers, timed: bool) -> RoutedRun:
    """Run an order of requests from one queue for all workers."""
    policy, instance = task.policy, task.instance
    if policy.needs.kind != "order" or policy.rule != "prefix":
        raise PolicyError(
            f"policy {policy.name!r} has no central queue, which is for fixed orders under the "
            "prefix rule, such as area; use another policy or router"
        )
    order = policy.order(instance, task.clock)
    choices = choices_of(instance, workers, ROUTERS["central"], task.seed)
    state, log = _served(task, workers, order, choices)
    starts, placement = state.served.start.copy(), state.served.worker.copy()
    for request in np.flatnonzero(starts < 0).tolist():  # it never left the queue
        placement[request] = choices.of(request)[0]
    runs: list[Execution | ClockedRun | None] = []
    for worker, memory in enumerate(workers.memories):
        requests = np.flatnonzero(placement == worker)
        if not len(requests):
            runs.append(None)
            continue
        own = instance.take(requests).replace(memory=memory)
        if timed:
            own_task = task._replace(instance=own)
            runs.append(of_starts(own_task, starts[requests], _of_worker(log, worker)))
        else:
            steps = state.begun[requests].astype(np.int64)
            runs.append(unpreempted(own, policy.name, steps, task.intervals))
    clock = task.clock if timed else None
    return RoutedRun(instance, workers, "central", policy.name, placement, tuple(runs), clock)


def _served(
    task: Task, workers: Workers, order: IntArray, choices: Choices
) -> tuple[_State, BatchLog]:
    """Serve all requests; return what became of them, and the batches of all workers."""
    requests = requests_of(task.instance, task.clock)
    count, longest = len(order), int(requests.outputs.max())
    size = 4 * longest + 64
    finishing = records(len(workers) * (longest + 1), ("requests", "tokens"))
    state = _State(
        workers=records(len(workers), _WORKER, memory=np.array(workers.memories)),
        now=np.zeros(len(workers)),
        usage=np.zeros((len(workers), size), dtype=np.int64),
        window=np.zeros((len(workers), 2), dtype=np.int64),
        finishing=finishing.reshape(len(workers), longest + 1).view(np.recarray),
        served=records(count, _REQUEST, worker=-1, start=-1),
        waiting=np.zeros(count, dtype=np.int64),
        begun=np.full(count, np.nan),
    )
    with timing(task.clock) as timer:
        log = interruptible_kernel(_serve, count)(
            state, requests, order, ranks_in(order), *choices, new_log(), timer, task.until
        )
    return state, log.finished()


def _of_worker(log: BatchLog, worker: int) -> BatchLog:
    """Return the batches of one worker, whose number stands where the usage is kept."""
    rows = log.usage == worker
    contents, spans = log.contents[rows], log.spans[rows]
    held = contents[:, -1].copy()
    count = np.array([len(held)])
    return BatchLog(contents, spans, held, spans[-1:, 1].copy(), count)


@compiled
def _serve(
    state: _State,
    requests: Requests,
    order: IntArray,
    ranks: IntArray,
    lines: IntArray,
    which: IntArray,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> BatchLog:
    """Go from one time at which batches can begin to the next; return the batches."""
    workers, now, waiting = state.workers, state.now, state.waiting
    arrivals = requests.arrivals
    released = size = ZERO
    tried = MINUS_ONE
    time = arrivals[0]
    while time < until:
        while released < len(arrivals) and arrivals[released] <= time:
            size = push(waiting, size, ranks[released])
            released += 1
        for index in range(len(workers)):
            if now[index] < time:
                now[index] = time
        while size > 0:
            head = order[waiting[0]]
            if head != tried:
                for index in range(len(workers)):
                    workers[index].not_before = 0
                tried = head
            best = _best(state, requests, head, lines[which[head]], time)
            if best < 0:
                break
            size = pop(waiting, size)
            _start(state, requests, head, best)
        later = np.inf
        for index in range(len(workers)):
            if now[index] == time and workers[index].active > 0:
                log = with_room(log)
                if not _run_batch(state, index, log, timer):
                    return log
            if now[index] > time:
                later = min(later, now[index])
        if released < len(arrivals):
            later = min(later, arrivals[released])
        time = later
    return log


@compiled
def _best(state: _State, requests: Requests, head: int, line: IntArray, time: float) -> int:
    """Find the worker with the fewest free tokens on which a request fits now, or -1."""
    prompt, output = requests.prompts[head], requests.outputs[head]
    best, least = MINUS_ONE, ZERO
    for index in line:
        if index < 0:
            break
        worker = state.workers[index]
        if state.now[index] > time or worker.not_before > worker.batch:
            continue
        usage, window = state.usage[index], state.window[index]
        first = earliest_start(usage, window, worker.memory, prompt, output, worker.batch)
        worker.not_before = first
        free = worker.memory - worker.tokens - worker.active
        if first == worker.batch and (best < 0 or free < least):
            best, least = index, free
    return best


@compiled
def _start(state: _State, requests: Requests, request: int, index: int) -> None:
    """Start a request in the next batch of a worker."""
    worker, served = state.workers[index], state.served[request]
    prompt, output = requests.prompts[request], requests.outputs[request]
    occupy(state.usage[index], state.window[index], prompt, output, worker.batch)
    leaving = state.finishing[index, (worker.batch + output) % state.finishing.shape[1]]
    leaving.requests += 1
    leaving.tokens += prompt + output
    served.worker, served.start = index, worker.batch
    state.begun[request] = state.now[index]
    worker.active += 1
    worker.tokens += prompt
    worker.entered += prompt > 0
    worker.prefill += prompt
    worker.squares += prompt * prompt


@compiled
def _run_batch(state: _State, index: int, log: BatchLog, timer: tuple[FloatArray, Any]) -> bool:
    """Run a batch of a worker, and log it under its number."""
    worker = state.workers[index]
    decodes, resident = worker.active - worker.entered, worker.tokens - worker.prefill
    held = worker.tokens + worker.active
    log.now[0] = state.now[index]
    if not add_batch(log, timer, worker.prefill, decodes, resident, worker.squares, held, index):
        return False
    state.now[index] = log.now[0]
    worker.batch += 1
    worker.entered = worker.prefill = worker.squares = 0
    leaving = state.finishing[index, worker.batch % state.finishing.shape[1]]
    worker.active -= leaving.requests
    worker.tokens = held - leaving.tokens
    leaving.requests = leaving.tokens = 0
    return True
