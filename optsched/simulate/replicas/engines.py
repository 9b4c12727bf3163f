"""Workers that are serving engines behind a router, each paused at every arrival."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from optsched._internal.compiled import compiled
from optsched.problem.workers import Load
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.batches import timing
from optsched.simulate.seconds.execution import requests_of

if TYPE_CHECKING:
    from types import TracebackType

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers
    from optsched.simulate.seconds.batches import BatchLog, Progress, Requests
    from optsched.simulate.settings import Task


class Server(Protocol):
    """An engine that can be paused between two batches."""

    log: BatchLog
    progress: Progress

    @property
    def now(self) -> float:
        """Until when it has run."""

    def run(self, pause: float) -> None:
        """Run until all is done or it is time to pause."""

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""


class EngineWorkers:
    """Engines that are paused when a request arrives; used within `with`."""

    def __init__(self, task: Task, workers: Workers) -> None:
        self._task, self._stack, self._memories = task, ExitStack(), workers.memories
        self._instance = task.instance
        self._engines: list[Server] = []
        # Requests of each worker that are not complete, and how many those are.
        self._requests = [np.zeros(64, dtype=np.int64) for _ in range(len(workers))]
        self._counts = np.zeros(len(workers), dtype=np.int64)
        self._works = task.instance.prompts, task.instance.areas

    def __enter__(self) -> EngineWorkers:
        task = self._task
        clocks = task.settings.clocks(len(self._memories))
        timers = {each: self._stack.enter_context(timing(each)) for each in dict.fromkeys(clocks)}
        requests = requests_of(task.instance, task.clock)
        served = self.new_records(requests)
        for memory, clock in zip(self._memories, clocks, strict=True):
            engine = self.new_engine(served, self._fitting(memory), clock, timers[clock])
            self._engines.append(engine)
        return self

    def new_records(self, requests: Requests) -> Records:
        """Return what engines note of requests."""
        return serving.new_records(requests)

    def new_engine(self, served: Records, own: Instance, clock: Clock, timer: Any) -> Server:
        """Return an engine for the requests that fit it."""
        policy, until = self._task.policy, self._task.until
        how, limits = serving.BATCHING.index(policy.batching), serving.limits_of(policy, own)
        return serving.Server(served, how, limits, timer, until)

    def _fitting(self, memory: int) -> Instance:
        """Return the requests that fit a worker, with its memory."""
        fits = np.flatnonzero(self._instance.peaks <= memory)
        if not len(fits):
            return type(self._instance)([memory - 1], [1], memory)
        return self._instance.take(fits).replace(memory=memory)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        found = np.zeros((len(indices), len(Load._fields)))
        for row, index in zip(found, indices.tolist(), strict=True):
            self._run(index, time)
            engine = self._engines[index]
            here, spans = self._requests[index][: self._counts[index]], engine.log.spans
            kept = _load(time, here, engine.progress, self._works, spans, engine.log.state, row)
            self._counts[index] = kept
        return found

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        self._run(index, time)
        self._engines[index].place(request, time)
        here, count = self._requests[index], self._counts[index]
        if count == len(here):
            self._requests[index] = here = np.concatenate([here, here])
        here[count] = request
        self._counts[index] += 1

    def _run(self, index: int, time: float) -> None:
        if self._engines[index].now < time:
            self._engines[index].run(time)

    def spans(self, index: int) -> FloatArray:
        """Return when the batches of a worker so far began and ended."""
        return self._engines[index].log.finished().spans


@compiled
def _load(
    time: float,
    requests: IntArray,
    progress: Progress,
    works: tuple[IntArray, IntArray],
    spans: FloatArray,
    state: IntArray,
    row: FloatArray,
) -> int:
    """Sum what requests of a worker weigh, and keep those that are not complete."""
    prompts, areas = works
    kept = 0
    for number in range(len(requests)):
        request = requests[number]
        last = progress.last[request]
        ends = 0 <= last < state[0]
        if ends and spans[last, 1] <= time:
            continue
        requests[kept] = request
        kept += 1
        made = progress.made[request] + progress.in_flight[request]
        if progress.queue[request] != progress.absent and not ends:
            row[0] += 1
            row[3] += prompts[request]
        else:
            row[1] += 1
            row[2] += progress.held[request]
        row[4] += areas[request] - prompts[request] * made - made * (made + 1) // 2
    return kept
