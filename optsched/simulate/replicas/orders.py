"""Workers under a fixed order behind a router, each run to the next arrival."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import MINUS_ONE, compiled
from optsched.policies.base import window_of
from optsched.problem.workers import Load
from optsched.simulate.seconds.batches import new_log, timing
from optsched.simulate.seconds.execution import requests_of
from optsched.simulate.seconds.worker import Limits, advance, new_queues, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.seconds.worker import Queues
    from optsched.simulate.task import Task


class OrderedWorkers:
    """Workers under a fixed order of requests, run as far as they are looked at."""

    def __init__(self, task: Task, memories: IntArray, clocks: Sequence[Clock]) -> None:
        instance, policy = task.instance, task.policy

        def order_of(worker: int) -> IntArray:
            """Return the requests that fit a worker, most urgent first."""
            size = int(memories[worker])
            fits = np.flatnonzero(instance.peaks <= size)
            if not len(fits):
                return fits
            some = instance.take(fits) if len(fits) < len(instance) else instance
            own = some if size == instance.memory else some.replace(memory=size)
            return np.asarray(fits[policy.order(own, clocks[worker])])

        requests = requests_of(instance, task.clock)
        self._arrivals, self._clocks = requests.arrivals, clocks
        kinds = {
            pair: kind for kind, pair in enumerate(zip(memories.tolist(), clocks, strict=True))
        }
        every = [kinds[pair] for pair in zip(memories.tolist(), clocks, strict=True)]
        self._queues = new_queues(requests, memories, np.array(every), order_of)
        self._limits = Limits(*window_of(policy.rule), task.until)
        self._log = new_log()

    def route(self, drawn: IntArray, which: IntArray, weights: FloatArray) -> IntArray:
        """Send each request to the drawn worker whose load adds up to least."""
        arrivals, queues = self._arrivals, self._queues
        placement = np.zeros(len(arrivals), dtype=np.int64)
        kernel = interruptible_kernel(_route, len(arrivals))
        choices = (drawn, which, weights)
        with _timing(self._clocks) as timer:
            kernel(queues, arrivals, choices, self._limits, self._log, timer, placement)
        return placement

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        loads = np.zeros((len(self._queues.counts), len(Load._fields)))
        with _timing(self._clocks) as timer:
            _look(self._queues, time, self._limits, self._log, timer, loads)
        return loads[indices]

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        place(self._queues, index, request, time)

    def begun(self, placement: IntArray) -> FloatArray:
        """Return when each request began; NaN where its worker was not run until then."""
        kinds = self._queues.workers.kind[placement]
        ranks = self._queues.ranks[kinds, np.arange(len(placement))]
        times: FloatArray = self._queues.begun[kinds, ranks]
        return times


@contextmanager
def _timing(clocks: Sequence[Clock]) -> Iterator[tuple[FloatArray, Any]]:
    """Turn the clocks of workers into rows of coefficients, and what times batches without any."""
    rows = []
    for clock in clocks:
        with timing(clock) as (weights, _):
            rows.append(weights)
    longest = max(map(len, rows))
    with timing(clocks[0]) as (_, callback):
        yield np.array([np.append(row, np.zeros(longest - len(row))) for row in rows]), callback


@compiled
def _see(queues: Queues, index: int, time: float, load: FloatArray) -> None:
    """Write down the load of a worker that was run until now."""
    worker = queues.workers[index]
    load[0] = worker.waiting
    if queues.now[index] > time:  # in the midst of a batch
        load[1], load[2] = worker.running, worker.held
    else:
        load[1], load[2] = worker.active, worker.tokens
    load[3], load[4] = worker.waiting_prompts, worker.work


@compiled
def _route(
    queues: Queues,
    arrivals: FloatArray,
    choices: tuple[IntArray, IntArray, FloatArray],
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    placement: IntArray,
) -> None:
    """Send each request to the worker with the least score, as long as batches have a time."""
    drawn, which, weights = choices
    load = np.empty(5)
    for request in range(len(arrivals)):
        time = arrivals[request]
        until = min(time, limits.until)
        best, least = MINUS_ONE, 0.0
        for choice in range(drawn.shape[1]):
            index = drawn[which[request], choice]
            if index < 0:
                break
            own = (timer[0][index], timer[1])
            if not advance(queues, index, until, False, limits, log, own):
                return
            _see(queues, index, time, load)
            score = 0.0
            for field in range(len(load)):
                score += weights[index, field] * load[field]
            if best < 0 or score < least:
                best, least = index, score
        placement[request] = best
        place(queues, best, request, time)


@compiled
def _look(
    queues: Queues,
    time: float,
    limits: Limits,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    loads: FloatArray,
) -> None:
    """Run all workers until a time, and write down what is on them."""
    for index in range(len(loads)):
        own = (timer[0][index], timer[1])
        if not advance(queues, index, min(time, limits.until), False, limits, log, own):
            return
        _see(queues, index, time, loads[index])
