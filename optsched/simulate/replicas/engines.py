"""Workers that are serving engines, as far as a router needs them: each paused at every arrival.

All engines share the records of the requests, as each request is on one of them; a request is put
into the queue of its engine when the router sends it there.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.compiled import ZERO
from optsched._internal.min_tree import ABSENT, put
from optsched.simulate.runners import engine_limits, vllm_limits, vllm_queue
from optsched.simulate.seconds import serving, vllm
from optsched.simulate.seconds.batches import COLUMNS, new_log, timing
from optsched.simulate.seconds.execution import requests_of
from optsched.workers import Load

if TYPE_CHECKING:
    from types import TracebackType

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.instance import Instance
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.task import Task
    from optsched.workers import Workers


class EngineWorkers:
    """Engines that are paused when a request arrives; used within `with`."""

    def __init__(self, task: Task, workers: Workers) -> None:
        self._task, self._stack = task, ExitStack()
        self._instance, self._memories = task.instance, workers.memories
        self._engines: list[_Vllm | _Simple] = []

    def __enter__(self) -> EngineWorkers:
        task, policy = self._task, self._task.policy
        timer = self._stack.enter_context(timing(task.clock))
        requests = requests_of(task.instance, task.clock)
        if policy.needs.kind == "vllm":
            of_turn = ranks_in(policy.ranks(task.instance).turns)
            served = vllm.new_records(requests)
        else:
            served, how = serving.new_records(requests), serving.BATCHING.index(policy.batching)
        for memory in self._memories:
            own = self._fitting(memory)
            if policy.needs.kind == "vllm":
                options, queue = vllm_limits(policy, own), self._queue(own)
                self._engines.append(_Vllm(served, queue, of_turn, options, timer, task.until))
            else:
                limits = engine_limits(policy, own)
                self._engines.append(_Simple(served, how, limits, timer, task.until))
        return self

    def _fitting(self, memory: int) -> Instance:
        """Return the requests that fit a worker, with its memory."""
        fits = np.flatnonzero(self._instance.peaks <= memory)
        if not len(fits):
            return type(self._instance)([memory - 1], [1], memory)
        return self._instance.take(fits).replace(memory=memory)

    def _queue(self, own: Instance) -> vllm.Queue:
        """Return the queue of an engine; keys and bounds of outputs depend on its memory."""
        fits = self._instance.peaks <= own.memory
        if not fits.any():
            own, fits = self._instance, ~fits
        place = np.zeros(len(fits), dtype=np.int64)  # of others, which never come here, too
        place[fits] = np.arange(len(own))
        task = self._task._replace(instance=own)
        queue = self._stack.enter_context(vllm_queue(task, requests_of(own, task.clock)))
        turns, levels = task.policy.ranks(self._instance)
        lower, upper = queue.intervals
        rerank = type(queue.rerank)(lambda request, made: queue.rerank(place[request], made))
        return queue._replace(
            turns=turns,
            levels=levels,
            keys=queue.keys[place],
            intervals=(lower[place], upper[place]),
            rerank=rerank,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        loads = [self._load(self._engines[index], time) for index in indices.tolist()]
        return np.array(loads, dtype=np.float64)

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        self._engines[index].run_until(time)
        self._engines[index].place(request, time)

    def spans(self, index: int) -> FloatArray:
        """Return when the batches of a worker were that began so far."""
        return self._engines[index].log.finished().spans

    def _load(self, engine: _Vllm | _Simple, time: float) -> Load:
        engine.run_until(time)
        requests = engine.requests
        found = engine.served[requests]
        ends = np.append(engine.log.spans[: engine.log.state[0], 1], np.inf)[found.last]
        open_yet = ends > time  # of index -1: not complete in any batch
        requests = engine.requests = requests[open_yet]
        found, ends = found[open_yet], ends[open_yet]
        waits = engine.waiting(requests) & np.isinf(ends)
        held, made = engine.tokens(found)
        prompts, areas = self._instance.prompts[requests], self._instance.areas[requests]
        return Load(
            waiting=waits.sum(),
            running=len(requests) - waits.sum(),
            held=held[~waits].sum(),
            waiting_prompts=prompts[waits].sum(),
            work=(areas - prompts * made - made * (made + 1) // 2).sum(),
        )


class _Engine:
    """One engine, its log, and the requests that came to it and are not complete."""

    def __init__(self, timer: Any, until: float) -> None:
        self.log: BatchLog = new_log()
        self.requests = np.zeros(0, dtype=np.int64)
        self._timer, self._until = timer, until


class _Vllm(_Engine):
    def __init__(
        self,
        served: Any,
        queue: vllm.Queue,
        of_turn: IntArray,
        limits: vllm.Limits,
        timer: Any,
        until: float,
    ) -> None:
        super().__init__(timer, until)
        self.served, self._limits = served, limits
        self._rows = np.zeros((len(self.log.usage), len(COLUMNS)), dtype=np.int64)
        self._engine = vllm.new_engine(np.zeros(0), served, queue, of_turn, limits)

    def run_until(self, time: float) -> None:
        """Run until nothing can happen before a time."""
        pause = min(time, self._until)
        while not vllm.run_until(
            self._engine, self.log, self._rows, self._timer, self._limits, np.inf, pause
        ):
            self.log = self.log.doubled()
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""
        self._engine.now[0] = max(self._engine.now[0], time)
        self.requests = np.append(self.requests, request)
        vllm.enqueue(self._engine, request, self._limits)

    def waiting(self, requests: IntArray) -> BoolArray:
        """Return which of the requests are in the queue."""
        found: BoolArray = self.served.waits[requests] == 1
        return found

    def tokens(self, found: Any) -> tuple[IntArray, IntArray]:
        """Return the tokens that requests hold and have made when the batch in progress ends."""
        return found.computed, found.made + found.in_flight


class _Simple(_Engine):
    def __init__(
        self, served: Any, how: int, limits: serving.Limits, timer: Any, until: float
    ) -> None:
        super().__init__(timer, until)
        self.served, self._how, self._limits = served, how, limits
        self._engine = serving.new_engine(np.zeros(0), served)

    def run_until(self, time: float) -> None:
        """Run until nothing can happen before a time."""
        pause = min(time, self._until)
        while not serving.run_until(
            self._engine, self.log, self._timer, self._how, self._limits, pause
        ):
            self.log = self.log.doubled()

    def place(self, request: int, time: float) -> None:
        """Let a request wait."""
        self.log.now[0] = max(self.log.now[0], time)
        self.requests = np.append(self.requests, request)
        put(self._engine.waiting, request, ZERO)

    def waiting(self, requests: IntArray) -> BoolArray:
        """Return which of the requests are in the queue."""
        tree = self._engine.waiting
        return np.not_equal(tree[len(tree) // 2 + requests], ABSENT)

    def tokens(self, found: Any) -> tuple[IntArray, IntArray]:
        """Return the tokens that requests hold and have made when the batch in progress ends."""
        return found.held, found.made
