"""Workers that a router looks at whenever a request arrives, each run only as far as that takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled, compiled_inside
from optsched.errors import PolicyError
from optsched.policies.base import window_of
from optsched.problem.execution import unpreempted
from optsched.problem.instance import Instance
from optsched.problem.work import arrival_times
from optsched.problem.workers import Load, RouterState
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.batches import (
    PausedQueues,
    RunLimits,
    advance,
    new_queues,
    place,
    timing,
)
from optsched.simulate.seconds.execution import admitted_run, requests_of, served_run

if TYPE_CHECKING:
    from typing import Self

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import Clock
    from optsched.problem.execution import Execution
    from optsched.problem.workers import Router, Workers
    from optsched.simulate.seconds.batches import (
        BatchLog,
        EngineProgress,
        EngineRequests,
        WorkerQueues,
    )
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.settings import Task


class Choices(NamedTuple):
    """The workers among which a router chooses, in rows, and the row of each request."""

    drawn: IntArray  # ascending, filled up with -1
    which: IntArray

    def of(self, request: int) -> IntArray:
        """Return the workers that a request may go to."""
        line: IntArray = self.drawn[self.which[request]]
        return line[line >= 0]


def alone(task: Task, workers: Workers, worker: int, requests: IntArray) -> Task:
    """Return what one worker has to do; each draws from a seed of its own."""
    own = task.instance.take(requests)
    if own.memory != workers.memories[worker]:
        own = own.replace(memory=workers.memories[worker])
    seed = task.seed + worker
    task = task.on(task.settings.clocks(len(workers))[worker])
    settings = replace(task.settings, seed=seed, patience=task.patience)
    return task._replace(instance=own, policy=task.policy.seeded(seed), settings=settings)


class Replicas(ABC):
    """Workers that a router looks at; used within `with`."""

    def __init__(self, task: Task, workers: Workers) -> None:
        self._task, self._workers, self._stack = task, workers, ExitStack()
        self._instance, self._clocks = task.instance, task.settings.clocks(len(workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @abstractmethod
    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""

    @abstractmethod
    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""

    @abstractmethod
    def finish(self, placement: IntArray) -> list[Execution | ClockedRun | None]:
        """Run all workers to their ends; return the run of each that got requests."""

    def _alone(self, index: int, requests: IntArray) -> Task:
        return alone(self._task, self._workers, index, requests)

    def route(self, router: Router, choices: Choices) -> IntArray:
        """Ask a router at every arrival; return where each request goes."""
        instance, count = self._instance, len(self._workers)
        placement = np.zeros(len(instance), dtype=np.int64)
        memories = np.array(self._workers.memories)
        weights, every = router.coefficients(memories), np.arange(count)
        arrivals = arrival_times(instance, self._task.clock)
        for request, time in enumerate(arrivals.tolist()):
            line = choices.of(request)
            if router.function is None:
                scores = (self.look(time, line) * weights[line]).sum(axis=1)
                chosen = int(line[np.argmin(scores)])
            else:
                loads = Load(*self.look(time, every).astype(np.int64).T.copy())
                if router.knows == "nothing":
                    loads = loads._replace(work=np.zeros_like(loads.work))
                prompt = int(instance.prompts[request])
                state = RouterState(time, request, prompt, line, memories, *loads)
                answer = router.function(state)
                _check_choice(answer, router, instance, request, line, count)
                chosen = int(answer)
            placement[request] = chosen
            self.place(chosen, request, time)
        return placement


def _check_choice(
    answer: object, router: Router, instance: Instance, request: int, line: IntArray, count: int
) -> None:
    """Refuse a worker that is not there, or where the request may not run."""
    whole = isinstance(answer, int | np.integer) and not isinstance(answer, bool)
    if whole and answer in line:
        return
    named = f"router {router.name!r} sends request {instance.label(request)} to worker {answer!r}"
    if not whole or not 0 <= answer < count:  # type: ignore[operator]
        raise PolicyError(f"{named}, but workers are numbered from 0 to {count - 1}")
    raise PolicyError(f"{named}, where it may not run; choose one of state.workers")


class PausedWorkers(Replicas):
    """Workers that are paused when a request arrives."""

    def finish(self, placement: IntArray) -> list[Execution | ClockedRun | None]:
        """Run all workers to their ends; return the run of each that got requests."""
        self.look(np.inf, np.arange(len(self._workers)))
        runs: list[Execution | ClockedRun | None] = []
        for index in range(len(self._workers)):
            requests = np.flatnonzero(placement == index)
            runs.append(self._run_of(index, requests) if len(requests) else None)
        return runs

    @abstractmethod
    def _run_of(self, index: int, requests: IntArray) -> Execution | ClockedRun:
        """Return the run of a worker that got requests, and has ended."""

    def _fitting(self, index: int) -> tuple[IntArray, Instance]:
        """Return the requests that fit a worker, and as an instance with its memory."""
        memory = self._workers.memories[index]
        fits = np.flatnonzero(self._instance.peaks <= memory)
        if not len(fits):
            return fits, Instance([memory - 1], [1], memory)
        return fits, self._instance.take(fits).replace(memory=memory)

    def require_order(self, orders: tuple[IntArray, IntArray]) -> None:
        """Refuse an order that is another one without requests of other workers."""
        if not np.array_equal(*orders):
            raise PolicyError(
                f"policy {self._task.policy.name!r} orders requests by what is in the instance as "
                "a whole, so a router cannot see what it will do on each worker; use the router "
                "round-robin or random, which look at no worker"
            )


class OrderedWorkers(PausedWorkers):
    """Workers under a fixed order of requests."""

    def __enter__(self) -> Self:
        task, memories = self._task, self._workers.memories
        kinds: dict[tuple[int, Clock], int] = {}
        pairs = zip(memories, self._clocks, strict=True)
        every = np.array([kinds.setdefault(pair, len(kinds)) for pair in pairs])
        requests = requests_of(self._instance, task.clock)
        self._queues = new_queues(requests, np.array(memories), every, self._order_of)
        limits = RunLimits(*window_of(task.policy.rule), task.until, task.timed)
        self._paused = self._stack.enter_context(PausedQueues(self._queues, limits, self._clocks))
        return self

    def _order_of(self, index: int) -> IntArray:
        """Return the requests that fit a worker, most urgent first."""
        fits, own = self._fitting(index)
        if not len(fits):
            return fits
        return np.asarray(fits[self._task.policy.order(own, self._clocks[index])])

    def route(self, router: Router, choices: Choices) -> IntArray:
        """Ask a router at every arrival; return where each request goes."""
        if router.function is not None:
            return super().route(router, choices)
        weights = router.coefficients(np.array(self._workers.memories))
        placement = np.full(len(self._instance), -1)
        kernel = interruptible_kernel(_route, len(placement))
        self._paused.go_on(kernel, (*choices, weights), placement)
        return placement

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        loads = np.zeros((len(self._workers), len(Load._fields)))
        kernel = interruptible_kernel(_look, len(self._instance) if time == np.inf else 0)
        self._paused.go_on(kernel, time, loads)
        return loads[indices]

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        place(self._queues, index, request, time)

    @cached_property
    def _logs(self) -> list[BatchLog]:
        """The batches of each worker, once all have ended."""
        return self._paused.log.by_worker(len(self._workers))

    def _run_of(self, index: int, requests: IntArray) -> Execution | ClockedRun:
        task, kind = self._alone(index, requests), self._queues.workers[index].kind
        ranks = self._queues.ranks[kind, requests]
        self.require_order((np.argsort(ranks), task.policy.order(task.instance, task.clock)))
        if task.timed:
            starts = self._queues.rows[kind].start[ranks]
            return admitted_run(task, starts, self._logs[index])
        begun = self._queues.begun[kind, ranks].astype(np.int64)
        return unpreempted(task.instance, task.policy.name, begun, task.intervals)


@compiled_inside
def _see(queues: WorkerQueues, index: int, time: float, load: FloatArray) -> None:
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
    queues: WorkerQueues,
    limits: RunLimits,
    log: BatchLog,
    timers: tuple[FloatArray, Any],
    choices: tuple[IntArray, IntArray, FloatArray],
    placement: IntArray,
) -> bool:
    """Send each request to the worker with the least score; False where the log is full."""
    drawn, which, weights = choices
    arrivals, load = queues.arrivals, np.empty(5)
    for request in range(len(placement)):
        if placement[request] >= 0:
            continue
        time = arrivals[request]
        until = min(time, limits.until)
        best, least = -1, 0.0
        for choice in range(drawn.shape[1]):
            index = drawn[which[request], choice]
            if index < 0:
                break
            if not advance(queues, limits, log, timers, index, until, False):
                return False
            _see(queues, index, time, load)
            score = 0.0
            for field in range(len(load)):
                score += weights[index, field] * load[field]
            if best < 0 or score < least:
                best, least = index, score
        placement[request] = best
        place(queues, best, request, time)
    return True


@compiled
def _look(
    queues: WorkerQueues,
    limits: RunLimits,
    log: BatchLog,
    timers: tuple[FloatArray, Any],
    time: float,
    loads: FloatArray,
) -> bool:
    """Run all workers until a time, and write down what is on them; False where the log is full."""
    for index in range(len(loads)):
        if not advance(queues, limits, log, timers, index, min(time, limits.until), False):
            return False
        _see(queues, index, time, loads[index])
    return True


class Server(Protocol):
    """An engine that can be paused between two batches."""

    served: Records
    log: BatchLog
    progress: EngineProgress

    @property
    def now(self) -> float:
        """Until when it has run."""

    def run(self, pause: float) -> None:
        """Run until all is done or it is time to pause."""

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""


class EngineWorkers(PausedWorkers):
    """Serving engines."""

    def __enter__(self) -> Self:
        count = len(self._workers)
        self._engines: list[Any] = []
        self._works = self._instance.prompts, self._instance.areas
        # Requests of each worker that are not complete, and how many those are.
        self._requests = [np.zeros(64, dtype=np.int64) for _ in range(count)]
        self._counts = np.zeros(count, dtype=np.int64)
        served = self._new_records(requests_of(self._instance, self._task.clock))
        clocks = dict.fromkeys(self._clocks)
        timers = {each: self._stack.enter_context(timing(each)) for each in clocks}
        for index, clock in enumerate(self._clocks):
            self._engines.append(self._new_engine(served, index, timers[clock]))
        return self

    def _new_records(self, requests: EngineRequests) -> Records:
        """Return what engines note of requests."""
        return serving.new_records(requests)

    def _new_engine(self, served: Records, index: int, timer: Any) -> Server:
        """Return an engine for the requests that fit it."""
        policy, (_, own) = self._task.policy, self._fitting(index)
        how, limits = serving.BATCHING.index(policy.batching), serving.limits_of(policy, own)
        return serving.MixedServer(served, how, limits, timer, self._task.until)

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

    def _run_of(self, index: int, requests: IntArray) -> ClockedRun:
        engine = self._engines[index]
        served, log = engine.served[requests], engine.log.finished()
        return served_run(self._alone(index, requests), served, log, "recomputed")


@compiled
def _load(
    time: float,
    requests: IntArray,
    progress: EngineProgress,
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
