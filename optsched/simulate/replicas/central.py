"""One queue for all workers: the reference that no router reaches, as it decides last."""

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
from optsched.simulate.seconds.batches import (
    BatchLog,
    add_batch,
    new_log,
    next_batch,
    timing,
    with_room,
)
from optsched.simulate.seconds.execution import requests_of
from optsched.simulate.seconds.worker import Replicas, begin, let_leave, new_workers
from optsched.workers import ROUTERS

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.execution import Execution
    from optsched.simulate.replicas.routing import Choices
    from optsched.simulate.seconds.batches import Requests
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.task import Task
    from optsched.workers import Workers

_REQUEST = ("worker", "start")  # start: batches of its worker before its own first


class _State(NamedTuple):
    workers: Replicas
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
    count = len(order)
    state = _State(
        workers=new_workers(np.array(workers.memories), int(requests.outputs.max())),
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
    workers, now, waiting = state.workers.state, state.workers.now, state.waiting
    prompts, arrivals, outputs, _ = requests
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
            best = _best(state.workers, prompts[head], outputs[head], lines[which[head]], time)
            if best < 0:
                break
            size = pop(waiting, size)
            usage, window = state.workers.usage[best], state.workers.window[best]
            occupy(usage, window, prompts[head], outputs[head], workers[best].batch)
            begin(workers[best], state.workers.finishing[best], prompts[head], outputs[head])
            state.served[head].worker, state.served[head].start = best, workers[best].batch
            state.begun[head] = time
        later = np.inf
        for index in range(len(workers)):
            worker = workers[index]
            if now[index] == time and worker.active > 0:
                log = with_room(log)
                log.now[0] = time
                if not add_batch(log, timer, next_batch(worker), index):
                    return log
                now[index] = log.now[0]
                let_leave(worker, state.workers.finishing[index])
            if now[index] > time:
                later = min(later, now[index])
        if released < len(arrivals):
            later = min(later, arrivals[released])
        time = later
    return log


@compiled
def _best(workers: Replicas, prompt: int, output: int, line: IntArray, time: float) -> int:
    """Find the worker with the fewest free tokens on which a request fits now, or -1."""
    best, least = MINUS_ONE, ZERO
    for index in line:
        if index < 0:
            break
        worker = workers.state[index]
        if workers.now[index] > time or worker.not_before > worker.batch:
            continue
        usage, window = workers.usage[index], workers.window[index]
        first = earliest_start(usage, window, worker.memory, prompt, output, worker.batch)
        worker.not_before = first
        free = worker.memory - worker.tokens - worker.active
        if first == worker.batch and (best < 0 or free < least):
            best, least = index, free
    return best
