"""Runs vLLM's scheduler, on one worker and on several behind a router."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.problem.forecasts import forecast
from optsched.serving.engines import vllm
from optsched.serving.engines.expected import planning, reranking
from optsched.serving.engines.vllm import Prefixes
from optsched.simulate.replicas import EngineWorkers
from optsched.simulate.runners import Runner
from optsched.simulate.seconds.batches import Arrivals, timing
from optsched.simulate.seconds.execution import requests_of, served_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray, Records
    from optsched.problem.instance import Instance
    from optsched.serving.engines.policy import VllmPolicy
    from optsched.simulate.replicas import Server
    from optsched.simulate.seconds.batches import EngineRequests
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.settings import Task


def vllm_limits(policy: VllmPolicy, instance: Instance) -> vllm.VllmLimits:
    """Return the limits of vLLM's scheduler."""
    blocks = policy.blocks(instance)
    return vllm.VllmLimits(
        blocks - 1,
        policy.block_size,
        int(policy.watermark * blocks),
        policy.max_num_active_seqs or policy.max_num_seqs,
        policy.max_num_batched_tokens,
        policy.scheduler_reserve_full_isl,
        1 + policy.async_scheduling,
        policy.scheduling_policy == "fcfs" and not policy.reorders,
        policy.reorders,
        policy.plan,
        policy.is_told,
        policy.version == "0.32",
        policy.long_prefill_token_threshold,
        policy.long_prefill_token_threshold_adaptive,
        policy.enable_chunked_prefill,
        policy.prefill_schedule_interval,
    )


def serve_vllm(task: Task) -> ClockedRun:
    """Run vLLM's scheduler."""
    policy, requests = task.policy, requests_of(task.instance, task.clock)
    limits = vllm_limits(policy, task.instance)
    prefixes = Prefixes.of(task.instance) if policy.enable_prefix_caching else None
    with vllm_queue(task, requests) as queue:
        arrivals = Arrivals.of(task.instance, task.clock, queue.turns)
        made = vllm.new_records(requests)
        with timing(task.clock) as timer:
            server = vllm.VllmServer(made, queue, limits, timer, task.until, arrivals, prefixes)
            server.run()
    served = server.served
    if task.instance.follows is not None:
        came, frozen = _as_they_came(task.instance, served.last, queue)
        served, task = served[came].view(np.recarray), task._replace(instance=frozen)
    return _run_of(task, server, served)


def _run_of(task: Task, server: vllm.VllmServer, served: Records) -> ClockedRun:
    """Return what an engine did for some requests."""
    log, policy = server.log.finished(), task.policy
    run = served_run(task, served, log, "recomputed")
    run = replace(run, intervals=None if policy.foresees == "nothing" else task.intervals)
    rows = server.rows[: len(log.usage)].copy()
    if not policy.enable_prefix_caching:
        return replace(run, statistics=rows[:, :-1])
    return replace(
        run, statistics=rows, cached=served["cached"].copy(), asked=served["asked"].copy()
    )


def _as_they_came(
    instance: Instance, last: IntArray, queue: vllm.VllmQueue
) -> tuple[IntArray, Instance]:
    """Return the requests that came, in that order, and their instance with their arrivals."""
    assert instance.follows is not None
    came = (instance.follows < 0) | (last[instance.follows] >= 0)
    every = np.lexsort((queue.turns, queue.levels))
    order = every[came[every]]
    known = instance.replace(follows=None, pauses=None, arrivals=np.zeros_like(every))
    return order, known.take(order).replace(arrivals=queue.levels[order])


@contextmanager
def vllm_queue(task: Task, requests: EngineRequests) -> Iterator[vllm.VllmQueue]:
    """Return by what vLLM's scheduler admits, preempts and plans."""
    policy, known = task.policy, None
    if policy.foresees != "nothing":
        known = forecast(task.instance, task.intervals or "exact", task.beliefs)
    planned = np.zeros_like(requests.outputs)
    bounds = (planned, planned) if known is None else (known.lower, known.upper)
    turns, levels = policy.ranks(task.instance)
    shares = task.instance.hash_ids is not None
    telling = reranking(task, known, planned, levels)
    with telling as (keys, tell), planning(policy, known, shares) as plan:
        yield vllm.VllmQueue(turns, levels, keys, bounds, *plan, tell)


class VllmWorkers(EngineWorkers):
    """Schedulers of vLLM that are paused when a request arrives."""

    def _new_records(self, requests: EngineRequests) -> Records:
        """Return what engines note of requests."""
        return vllm.new_records(requests)

    def _new_engine(self, served: Records, index: int, timer: Any) -> Server:
        """Return an engine for the requests that fit it."""
        limits = vllm_limits(self._task.policy, self._fitting(index)[1])
        queue, until = self._queue(index), self._task.until
        return vllm.VllmServer(served, queue, limits, timer, until, prefixes=self._prefixes)

    @cached_property
    def _prefixes(self) -> Prefixes | None:
        cached = self._task.policy.enable_prefix_caching
        return Prefixes.of(self._task.instance) if cached else None

    def _queue(self, index: int) -> vllm.VllmQueue:
        """Return the queue of an engine; keys and bounds depend on its memory and clock."""
        fits, own = self._fitting(index)
        if not len(fits):
            fits, own = np.arange(len(self._instance)), self._instance
        place = np.zeros(len(self._instance), dtype=np.int64)  # of others, which never come, too
        place[fits] = np.arange(len(fits))
        task = self._task.on(self._clocks[index])._replace(instance=own)
        queue = self._stack.enter_context(vllm_queue(task, requests_of(own, task.clock)))
        turns, levels = task.policy.ranks(self._instance)
        lower, upper = (bound[place] for bound in queue.intervals)

        def tell(event: int, at: int, made: int) -> float:
            """Take note of an event; what is planned for may change where outputs are learned."""
            key: float = queue.tell(event, place[at], made)
            lower[at], upper[at] = (bound[place[at]] for bound in queue.intervals)
            return key

        return queue._replace(
            turns=turns,
            levels=levels,
            keys=queue.keys[place],
            intervals=(lower, upper),
            tell=type(queue.tell)(tell),
        )

    def _run_of(self, index: int, requests: IntArray) -> ClockedRun:
        task, engine = self._alone(index, requests), self._engines[index]
        with vllm_queue(task, requests_of(task.instance, task.clock)) as queue:
            here = np.lexsort((queue.turns, engine.keys[requests]))
            self.require_order((here, np.lexsort((queue.turns, queue.keys))))
        return _run_of(task, engine, engine.served[requests])


RUNNER = Runner(None, serve_vllm, paused=VllmWorkers)
