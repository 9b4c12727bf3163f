"""Runs vLLM's scheduler, on one worker and on several, and what it expects of outputs meanwhile."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched._internal.compiled import compiled
from optsched.clock import BatchContent, LinearClock
from optsched.errors import PolicyError
from optsched.problem.forecasts import forecast, steps_ahead
from optsched.problem.instance import Instance
from optsched.problem.work import step_of
from optsched.simulate.runners import EngineWorkers, Runner
from optsched.simulate.seconds.batches import Arrivals, called_back, timing
from optsched.simulate.seconds.execution import requests_of, served_run
from optsched.simulate.steps.chance import TOLERANCE, chance_of_more, tables
from optsched_serving.engines import vllm
from optsched_serving.engines.vllm import ADMITTED, ARRIVED, ENDED, PREEMPTED, Prefixes
from optsched_serving.learning import Aging, OutputLearner, Seen, TokenCounters, gittins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.problem.forecasts import Forecast
    from optsched.simulate.runners import Server
    from optsched.simulate.seconds.batches import Callback, EngineRequests, Timer
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.settings import Task
    from optsched.simulate.steps.chance import ChanceTable
    from optsched_serving.engines.policy import VllmPolicy
    from optsched_serving.learning import Expected


_Told = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * 3)
#: Fields that say more of the outputs than what is expected.
_UNSEEN: dict[str, None] = dict.fromkeys(("output_lower", "output_upper", "hash_ids", "hash_block"))


class _Keys:
    """Keys of the requests of a run, and what it learns of outputs, clients and waits for them."""

    def __init__(self, task: Task, known: Forecast | None, arrivals: IntArray) -> None:
        self._task, self._policy, self._arrivals = task, task.policy, arrivals
        self._left = None if known is None else _tokens_to_come(known)
        self._learner, self._counters = OutputLearner(), TokenCounters()
        self._aging, self._step = Aging(task.policy.aging), step_of(task.instance, task.clock)
        self._expected: dict[int, Expected] = {}
        self._tags, self._later, self.given = np.zeros((3, len(arrivals)))
        self.planned, believed = np.zeros_like(arrivals), task.instance
        if self._policy.learns:
            self._seen = _seen(task.instance, task.policy.max_model_len)
            return
        if self._policy.order is not None and self._left is not None:
            self.planned = self._left(slice(None), 0)
            believed = believed.replace(outputs=self.planned, **_UNSEEN)
        self.given = np.array(self._policy.keys(believed, task.clock))

    def tell(self, event: int, request: int, made: int) -> float:
        if event in (ADMITTED, ENDED):
            self._leaves(event, request, made)
            return 0.0
        key = self._key(event, request, made)
        if event == ARRIVED:
            came = float(self._arrivals[request] * self._step)
            prompt, output = self._task.instance.prompts[request], self.planned[request]
            later = self._aging.arrives(request, came, key, int(prompt), int(output))
            self._later[request] = later
        return key if key == -np.inf else self._aging.key(key, float(self._later[request]))

    def _leaves(self, event: int, request: int, made: int) -> None:
        self._aging.leaves(request)
        if not self._policy.learns:
            return
        self._counters.serve(self._tags[request])
        if event == ENDED:
            expected = self._expected.pop(request)
            self._learner.learn(made, expected)
            self._counters.settle(expected.seen, expected.left(0), made)

    def _key(self, event: int, request: int, made: int) -> float:
        """Return the key of a request that arrives or is preempted, without age."""
        if not self._policy.learns:
            if event == ARRIVED:
                return float(self.given[request])
            assert self._left is not None
            return self._alone(request, made, int(self._left(request, made)))
        if event == ARRIVED:
            expected = self._expected[request] = self._learner.expect(self._seen[request])
            self._tags[request] = self._counters.tag(expected.seen, expected.left(0))
            self.planned[request] = expected.planned(0)
        if self._policy.fair or self._policy.order is None:
            return float(self._tags[request]) if self._policy.fair else 0.0
        if event == PREEMPTED:
            return -np.inf  # what is expected of it was too little; it goes on first
        expected = self._expected[request]
        if self._policy.gittins:
            return gittins(expected.chances, self._keys_of(request, 0, expected.outputs))
        return self._alone(request, made, expected.left(made))

    def _alone(self, request: int, made: int, left: int) -> float:
        """Return the key of a request that has made some tokens and is expected to make others."""
        return float(self._keys_of(request, made, np.array([left]))[0])

    def _keys_of(self, request: int, made: int, left: IntArray) -> FloatArray:
        """Return its keys if it makes so many other tokens."""
        instance = self._task.instance
        columns = instance.columns() | {"arrivals": self._arrivals}
        known = {
            field: columns[field][[request] * len(left)]
            for field in ("arrivals", "weights", "deadlines", "priorities")
            if field in columns
        }
        prompt, step = instance.prompts[request] + made, instance.seconds_per_step
        prompts = np.full(len(left), prompt)
        alone = Instance(prompts, left, instance.memory, **known, seconds_per_step=step)
        return np.asarray(self._policy.keys(alone, self._task.clock), dtype=np.float64)


def _seen(instance: Instance, longest: int | None) -> list[Seen]:
    most = min(instance.memory, longest or instance.memory)
    limits, turns = most - instance.prompts, None
    if instance.output_upper is not None:
        limits = np.minimum(limits, instance.output_upper)
    if instance.follows is not None:
        turns = np.zeros(len(instance), dtype=np.int64)
        for turn in np.flatnonzero(instance.follows >= 0).tolist():
            turns[turn] = turns[instance.follows[turn]] + 1
    columns = {
        **{"prompt": instance.prompts, "limit": limits, "client": instance.clients, "turn": turns},
        **{"priority": instance.priorities, "claim": instance.output_estimates},
        "weight": instance.weights,
    }
    known = {name: column.tolist() for name, column in columns.items() if column is not None}
    rows = zip(*known.values(), strict=True)
    return [Seen(**dict(zip(known, row, strict=True))) for row in rows]


def _tokens_to_come(known: Forecast) -> Callable[[slice | int, int], IntArray]:
    """Return what gives the tokens that requests are expected to make yet, from what they made."""
    lower, upper = known.lower, known.upper
    if known.beliefs is None:

        def mean_of_bounds(which: slice | int, made: int) -> IntArray:
            low, high = np.maximum(lower[which], made + 1), np.maximum(upper[which], made + 1)
            return (low + high + 1) // 2 - made

        return mean_of_bounds
    believed = tables(known.beliefs, known)
    chances = known.beliefs.chances
    sums = np.zeros_like(believed.beyond)
    longest = chances.shape[1]
    terms = chances * np.arange(1, longest + 1)
    sums[:, :-1] = np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]

    def mean_of_beliefs(which: slice | int, made: int) -> IntArray:
        row, most = believed.row[which], believed.most[which]
        least = np.minimum(np.maximum(believed.least[which], made), longest)
        mass = believed.beyond[row, least] - believed.beyond[row, most]
        total = sums[row, least] - sums[row, most]
        mean = np.where(mass > 0, total / np.where(mass > 0, mass, 1), made + 1)
        return np.maximum(np.ceil(mean - made - TOLERANCE), 1).astype(np.int64)

    return mean_of_beliefs


_Asked = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def planning(
    policy: VllmPolicy, known: Forecast | None, shares: bool
) -> Iterator[tuple[IntArray, Callback]]:
    """Return what a kernel calls to plan by beliefs, and where it lists requests before."""
    if known is None or known.beliefs is None:
        yield np.zeros((0, 3), dtype=np.int64), _Asked(lambda _, __: 1)
        return
    if known.beliefs.prior:
        raise PolicyError(
            f"the belief learns while requests complete (prior {known.beliefs.prior:g}), which "
            f"policy {policy.name!r} cannot; pass one whose prior is 0, or a history"
        )
    if shares and policy.enable_prefix_caching:
        raise PolicyError(
            f"policy {policy.name!r}: a plan by beliefs counts blocks that requests share once for "
            "each of them; leave the beliefs out, or turn enable_prefix_caching off"
        )
    listed = np.zeros((len(known), 3), dtype=np.int64)
    believed, lag = tables(known.beliefs, known), int(policy.async_scheduling)
    ahead = steps_ahead(int(known.upper.max()) + lag)

    def plan(count: int, usable: int) -> int:
        limits = (usable, policy.block_size, lag)
        return int(likely_to_fit(listed, count, believed, ahead, limits, float(policy.deviations)))

    with called_back(_Asked, plan, 0) as callback:
        yield listed, callback


@compiled
def likely_to_fit(
    listed: IntArray,
    count: int,
    beliefs: ChanceTable,
    ahead: IntArray,
    limits: tuple[int, int, int],
    deviations: float,
) -> bool:
    """Whether mean and deviations of the first `count` requests' blocks fit, batches ahead."""
    usable, block_size, lag = limits
    for batches in ahead:
        mean = variance = 0.0
        for at in range(count):
            request, prompt, made = listed[at, 0], listed[at, 1], listed[at, 2]
            others = batches - lag - 1 if batches > lag else 0
            runs = chance_of_more(beliefs, request, made + others, made)
            left = beliefs.most[request] - made
            if left > batches:
                left = batches
            elif left < 1:
                left = 1
            blocks = (prompt + made + left - 1 + block_size - 1) // block_size
            mean += blocks * runs
            variance += blocks * blocks * runs * (1.0 - runs)
        if mean + deviations * np.sqrt(variance) > usable + TOLERANCE:
            return False
    return True


def vllm_limits(policy: VllmPolicy, instance: Instance) -> vllm.VllmLimits:
    """Return the limits of vLLM's scheduler."""
    blocks = policy.blocks(instance)
    own: dict[str, Any] = {
        "usable": blocks - 1,
        "reserve": int(policy.watermark * blocks),
        "max_num_seqs": policy.max_num_active_seqs or policy.max_num_seqs,
        "depth": 1 + policy.async_scheduling,
        "in_turn": policy.scheduling_policy == "fcfs" and not policy.reorders,
        "halts": policy.version == "0.32",
    }
    rest = [name for name in vllm.VllmLimits._fields if name not in own]
    return vllm.VllmLimits(**own, **{name: getattr(policy, name) for name in rest})


def serve_vllm(task: Task) -> ClockedRun:
    """Run vLLM's scheduler."""
    policy, requests = task.policy, requests_of(task.instance, task.clock)
    limits, until = vllm_limits(policy, task.instance), task.settings.until
    prefixes = Prefixes.of(task.instance) if policy.enable_prefix_caching else None
    with vllm_queue(task) as queue:
        arrivals = Arrivals.of(task.instance, task.clock, queue.turns)
        made = vllm.new_records(requests)
        with timing(task.clock) as timer:
            server = vllm.VllmServer(made, queue, limits, timer, until, arrivals, prefixes)
            server.run()
    served = server.served
    if task.instance.follows is not None:
        came, frozen = _as_they_came(task.instance, served.last, queue)
        served, task = served[came].view(np.recarray), task._replace(instance=frozen)
    return _run_of(task, server, served)


def _run_of(task: Task, server: vllm.VllmServer, served: Records) -> ClockedRun:
    log, policy = server.log.finished(), task.policy
    run = served_run(task, served, log, "recomputed")
    run = replace(run, intervals=None if policy.foresees == "nothing" else task.settings.intervals)
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
def vllm_queue(task: Task) -> Iterator[vllm.VllmQueue]:
    """Return by what vLLM's scheduler admits, preempts and plans."""
    policy, known = task.policy, None
    if policy.foresees != "nothing":
        known = forecast(task.instance, task.settings.intervals or "exact", task.settings.beliefs)
    turns, levels = policy.ranks(task.instance)
    keys, shares = _Keys(task, known, levels), task.instance.hash_ids is not None
    bounds = (keys.planned, keys.planned) if known is None else (known.lower, known.upper)
    telling = called_back(_Told, keys.tell, 0.0)
    with telling as tell, planning(policy, known, shares) as plan:
        yield vllm.VllmQueue(turns, levels, keys.given.copy(), bounds, *plan, tell)


#: Seconds that a batch takes while the other ranks form theirs.
_MOMENT = LinearClock("a moment", constant=1e-6)


class VllmWorkers(EngineWorkers):
    """Schedulers of vLLM that are paused when a request arrives."""

    barrier = True

    def __enter__(self) -> Self:
        super().__enter__()
        self._at, self._batches = 0.0, [0] * len(self._workers)  # behind the barrier
        return self

    def _run(self, index: int, time: float) -> None:
        if not self._task.barrier:
            super()._run(index, time)
            return
        until = min(time, self._task.settings.until)
        while self._at < until and self._take_step():
            pass
        self._at = max(self._at, time)

    def _take_step(self) -> bool:
        """Let every rank form a batch, which last until the slowest is done; tells if any did."""
        began, rows = self._at, []
        for index, engine in enumerate(self._engines):
            engine.run_once(began, _MOMENT.constant / 2)
            if engine.log.state[0] > self._batches[index]:
                rows.append((engine, self._batches[index]))
                self._batches[index] += 1
        if not rows:
            return False
        contents = [BatchContent(*engine.log.contents[row].tolist()) for engine, row in rows]
        clock = cast("LinearClock", self._task.clock)
        self._at = began + clock.together(contents)
        for engine, row in rows:
            engine.log.spans[row] = began, self._at
        for engine in self._engines:
            engine.set_back(self._at, _MOMENT.constant)
        return True

    def _new_records(self, requests: EngineRequests) -> Records:
        return vllm.new_records(requests)

    def _new_engine(self, served: Records, index: int, timer: Timer) -> Server:
        limits = vllm_limits(self._task.policy, self._fitting(index)[1])
        if self._task.barrier:
            timer = self._stack.enter_context(timing(_MOMENT))
        queue, until = self._queue(index), self._task.settings.until
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
        queue = self._stack.enter_context(vllm_queue(task))
        turns, levels = task.policy.ranks(self._instance)
        lower, upper = (bound[place] for bound in queue.intervals)

        def tell(event: int, at: int, made: int) -> float:
            key: float = queue.tell(event, place[at], made)
            lower[at], upper[at] = (bound[place[at]] for bound in queue.intervals)
            return key

        return queue._replace(
            turns=turns,
            levels=levels,
            keys=queue.keys[place],
            intervals=(lower, upper),
            tell=_Told(tell),
        )

    def _run_of(self, index: int, requests: IntArray) -> ClockedRun:
        task, engine = self._alone(index, requests), self._engines[index]
        with vllm_queue(task) as queue:
            here = np.lexsort((queue.turns, engine.keys[requests]))
            self.require_order((here, np.lexsort((queue.turns, queue.keys))))
        return _run_of(task, engine, engine.served[requests])


RUNNER = Runner(None, serve_vllm, paused=VllmWorkers)
