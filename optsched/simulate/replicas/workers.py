"""Workers that a router looks at: in order, or by trajectories.

A policy that acts on what has arrived does the same until a time whatever arrives later, so the run
on the requests so far tells what is on a worker then; each run checks that its policy does so.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled
from optsched.errors import PolicyError
from optsched.policies.base import window_of
from optsched.problem.workers import Load
from optsched.simulate.runners import Attempts, runner_of
from optsched.simulate.seconds.batches import Limits, advance, new_log, new_queues, place, timing
from optsched.simulate.seconds.execution import requests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.execution import Execution
    from optsched.problem.instance import Instance
    from optsched.simulate.seconds.batches import BatchLog, Queues
    from optsched.simulate.settings import Task


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
        best, least = -1, 0.0
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


class Attempted(NamedTuple):
    """What a worker did."""

    found: Attempts | Execution

    @property
    def spans(self) -> FloatArray | None:
        """When its batches were; None where they are the steps."""
        return self.found.log.spans if isinstance(self.found, Attempts) else None

    def until(self, time: float) -> tuple[int, float]:
        """Count the batches that begin before a time; tells how long after it the last ends."""
        if self.spans is None:
            return int(time), 0.0
        count = int(np.searchsorted(self.spans[:, 0], time))
        return count, float(self.spans[count - 1, 1] - time) if count else -np.inf

    def before(self, time: float) -> bytes:
        """Return all that was done before a time, to be compared."""
        found, (count, _) = self.found, self.until(time)
        begun = found.starts < count
        requests, starts = found.requests[begun], found.starts[begun]
        made = np.minimum(found.tokens[begun], count - starts)
        order = np.lexsort((requests, starts))
        spans = b"" if self.spans is None else self.spans[:count].tobytes()
        return np.stack([requests, starts, made])[:, order].tobytes() + spans

    def load(self, instance: Instance, time: float) -> Load:
        """Return what a router sees at a time."""
        found, (count, rest) = self.found, self.until(time)
        ends, made = found.starts + found.tokens, found.before + found.tokens
        begun = found.starts < count
        complete = made == instance.outputs[found.requests]
        # One that is about to be preempted runs until the worker decides on its next batch.
        last = ends == count if rest > 0 else (ends == count) & ~complete & (rest == 0)
        runs = begun & ((ends > count) | last)
        done, running = found.requests[begun & ~runs & complete], found.requests[runs]
        prompts, areas = instance.prompts, instance.areas
        has = np.zeros(len(instance), dtype=np.int64)  # tokens of those that are not complete
        if found.preemption != "restarted":
            np.maximum.at(has, found.requests[begun], made[begun])
        has[running] = (count - found.starts + found.before)[runs]
        has[done] = 0
        taken = prompts * has + has * (has + 1) // 2
        return Load(
            waiting=len(instance) - len(running) - len(done),
            running=len(running),
            held=prompts[running].sum() + has[running].sum(),
            waiting_prompts=prompts.sum() - prompts[running].sum() - prompts[done].sum(),
            work=areas.sum() - areas[done].sum() - taken.sum(),
        )


def attempted(task: Task, timed: bool) -> Attempted:
    """Run a policy on one worker, and keep what it did."""
    runner = runner_of(task.policy)
    if runner.attempts is not None:
        return Attempted(runner.attempts(task))
    if not timed:
        assert runner.in_steps is not None
        return Attempted(runner.in_steps(task))
    run = runner.on_clock(task)
    if run.preemptions:
        raise PolicyError(
            f"policy {task.policy.name!r} preempts requests, which a router cannot follow; use the "
            "router round-robin or random, which look at no worker"
        )
    begun = np.flatnonzero(run.first_batch >= 0)
    tokens = task.instance.outputs[begun]
    return Attempted(Attempts(begun, run.first_batch[begun], tokens, 0, run.log))


class Trajectories:
    """Workers whose runs are known until the next request comes."""

    def __init__(self, count: int, task_of: Callable[[int, IntArray], Task], timed: bool) -> None:
        self._workers = [_Trajectory(index, task_of, timed) for index in range(count)]

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        loads = [self._workers[index].look(time) for index in indices.tolist()]
        return np.array(loads, dtype=np.float64)

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        self._workers[index].place(request, time)


class _Trajectory:
    """One worker."""

    def __init__(self, index: int, task_of: Callable[[int, IntArray], Task], timed: bool) -> None:
        self._index, self._task_of, self._timed = index, task_of, timed
        self._requests: list[int] = []
        self._changed: float | None = None  # since when what is known is old
        self._task: Task
        self._known: Attempted | None = None

    def place(self, request: int, time: float) -> None:
        """Let a request come."""
        if self._changed is None:
            self._changed = time
        self._requests.append(request)

    def look(self, time: float) -> Load:
        """Return what a router sees."""
        if not self._requests:
            return Load(0, 0, 0, 0, 0)
        if self._changed is not None:
            self._task = self._task_of(self._index, np.array(self._requests))
            known = attempted(self._task, self._timed)
            if self._known is not None and known.before(self._changed) != self._known.before(
                self._changed
            ):
                raise PolicyError(
                    f"policy {self._task.policy.name!r} plans with requests that have not arrived, "
                    "so a router cannot see what it will do; use the router round-robin or random, "
                    "which look at no worker"
                )
            self._known, self._changed = known, None
        assert self._known is not None
        return self._known.load(self._task.instance, time)
