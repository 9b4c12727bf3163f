"""What runs a policy of each kind, in steps and on a clock, and workers that routers look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from optsched._internal.arguments import MAX_TOKENS
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import allocating, compiled, compiled_inside
from optsched._internal.rooms import added
from optsched.admission import require_steps
from optsched.errors import PolicyError
from optsched.policies.base import BatchSelector, window_of
from optsched.problem.execution import Execution, Loop, Run, Stall, kept_before, unpreempted
from optsched.problem.forecasts import Beliefs, forecast, steps_ahead
from optsched.problem.instance import Instance
from optsched.problem.routing import Load, RouterState
from optsched.problem.work import arrival_times, work_by_output
from optsched.simulate.seconds import batches, serving
from optsched.simulate.seconds.execution import (
    ClockedRun,
    admitted_run,
    clocked_run,
    requests_of,
    served_run,
)
from optsched.simulate.steps import chance, decisions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import Clock
    from optsched.policies import Policy
    from optsched.policies.robust import ChancePolicy, IntervalPolicy, OverflowPolicy
    from optsched.problem.premises import Preemption
    from optsched.problem.workers import Router, Workers
    from optsched.simulate.settings import Task

    Kernel = Callable[..., tuple[Any, ...]]

_MAX_URGENCY = 2.0**55  # of a request with its upper bound; six times it fits


@dataclass(frozen=True, eq=False)
class Attempts:
    """Everything that happened in a run."""

    requests: IntArray
    starts: IntArray
    tokens: IntArray
    running: int
    log: batches.BatchLog
    loop: Loop | None = None
    stall: Stall | None = None
    preemption: Preemption = "restarted"
    knows: Literal["nothing"] | None = None  # where no output or forecast of one was looked at

    @property
    def before(self) -> IntArray:
        """Tokens that each attempt kept of those before it."""
        return kept_before(self.requests, self.tokens, self.preemption)


def in_steps(task: Task, attempts: Attempts) -> Execution:
    """Return the attempts of a run whose batches take one step each as its execution."""
    steps = attempts.log.spans[attempts.starts, 0].astype(np.int64)
    return Execution(
        task.instance,
        task.policy.name,
        attempts.requests,
        steps,
        attempts.tokens,
        task.settings.intervals,
        attempts.loop,
        attempts.stall,
        preemption=attempts.preemption,
        knows=attempts.knows,
    )


def run_decided(task: Task) -> Attempts:
    """Run a policy that is a function."""
    intervals = "exact" if task.settings.intervals is None else task.settings.intervals
    if task.policy.reads == "nothing":
        intervals = f"common:1,{MAX_TOKENS}"
    known = forecast(task.instance, intervals, task.settings.beliefs)
    attempts, running, log, given_up, blind = decisions.run_decisions(task, known)
    stall = _stall(log.now[0].item(), task.patience, task.clock) if given_up else None
    kept: Preemption = "restarted" if task.policy.preemption == "none" else task.policy.preemption
    requests, starts, tokens = attempts
    told: Any = {"knows": "nothing" if blind else None}
    return Attempts(requests, starts, tokens, running, log, stall=stall, preemption=kept, **told)


def run_planned(task: Task) -> Attempts:
    """Run a policy that plans with intervals of the outputs."""
    instance, clock, intervals = task.instance, task.clock, task.settings.intervals
    assert intervals is not None
    known = forecast(instance, intervals)
    require_steps(known.upper)
    policy: IntervalPolicy = task.policy.for_forecast(known)
    rules = chance.Rules(
        int(policy.order.startswith("mean-")),
        chance.OUTLIVED.index(policy.outlived),
        chance.PREEMPT.index(policy.preempt),
        policy.reserve(instance.memory, clock),
        task.settings.seed,
    )
    requests, lower = requests_of(instance, clock), policy.first_plan(known)
    rates = _rates(task, policy, np.maximum(known.upper, instance.outputs))
    given = requests, lower, known.upper, rates, rules
    attempts, running, log = _timed(task, chance.run_planned, given)
    log = batches.BatchLog(*log).finished()
    return Attempts(attempts[0], attempts[1], attempts[2], running, log)


def _timed(task: Task, kernel: Kernel, given: tuple[object, ...]) -> tuple[Any, ...]:
    """Call a kernel that writes a log until the end of a run, on the clock of a task."""
    call = interruptible_kernel(kernel, len(task.instance))
    with batches.timing(task.clock) as timer:
        return call(*given, batches.new_log(), timer, task.settings.until)


def _run(task: Task, kernel: Kernel, rules: tuple[object, ...]) -> tuple[Attempts, list[Any]]:
    """Run a policy by a kernel; return the attempts, and what else it says."""
    requests = requests_of(task.instance, task.clock)
    worker = decisions.new_worker(len(task.instance))
    attempts, log, *rest = _timed(task, kernel, (requests, rules, worker))
    running = int(worker.now.active[0])
    log = batches.BatchLog(*log).finished()
    return Attempts(attempts[0], attempts[1], attempts[2], running, log), rest


def _rates(task: Task, policy: IntervalPolicy, longest: IntArray) -> IntArray:
    """Return a, b, c, shape (3, n): a request with output o has urgency a + b o + c o^2."""
    prompts, zeros = task.instance.prompts, np.zeros_like(longest)
    order = policy.order.removeprefix("mean-")
    if order == "random":  # all are equal, and ties are random
        return np.stack([zeros, zeros, zeros])
    if order == "bound":
        return np.stack([zeros, zeros + 1, zeros])
    if order == "area" or task.clock.unit == "steps":  # twice, and work in steps is memory-time
        return np.stack([zeros, 2 * prompts + 1, zeros + 1])
    clock = policy.linear(task.clock, "area-posterior")
    rates = np.stack(work_by_output(prompts.astype(np.float64), task.instance.memory, clock))
    most = (np.abs(rates) * np.stack([zeros + 1.0, longest, longest.astype(np.float64) ** 2])).max()
    # Up to the longest outputs, urgencies stay within 64 bits.
    # A power of two rounds least: requests that ask for the same work stay equal where they can.
    scale = 2.0 ** np.floor(np.log2(_MAX_URGENCY / most))
    whole: IntArray = np.rint(rates * scale).astype(np.int64)
    return whole


def run_by_chance(task: Task) -> Attempts:
    """Run a policy that admits what is likely to fit."""
    instance, clock = task.instance, task.clock
    assert task.settings.intervals is not None
    policy: ChancePolicy = task.policy
    known = forecast(instance, task.settings.intervals, task.settings.beliefs)
    longest = int(known.upper.max())
    beliefs = known.beliefs or Beliefs.to_learn(known.prompts, longest)
    fixed, linear, square = policy.costs(known, clock)
    margin, seed = policy.margin(clock), task.settings.seed
    rules = chance.Chance(fixed, linear, square, margin, policy.passed, beliefs.prior, seed)
    rows = chance.new_rows(chance.tables(beliefs, known), rules, steps_ahead(longest))
    return _run(task, chance.run_by_chance, rows)[0]


def run_to_threshold(task: Task) -> Attempts:
    """Run a policy that admits to a threshold and clears where the memory overflows."""
    instance, clock = task.instance, task.clock
    policy: OverflowPolicy = task.policy
    rules = decisions.Thresholds(
        serving.share_of(1 - Fraction(str(policy.alpha)), instance.memory),
        1.0 if policy.beta is None else policy.beta,
        task.patience,
        task.settings.seed,
    )
    found, (outcome, since, lasted, looping) = _run(task, decisions.run_to_threshold, rules)
    loop = stall = None
    if outcome == decisions.LOOPS:
        members = tuple(sorted(looping.tolist()))
        if clock.unit == "steps":  # none is admitted: the same at every step
            loop = Loop(int(since), max(1, int(lasted)), members)
        else:
            loop = Loop(since, lasted, members, clock.unit)
    elif outcome == decisions.STALLED:
        stall = _stall(since, int(lasted), clock)
    return replace(found, loop=loop, stall=stall)


def _stall(time: float, idle: int, clock: Clock) -> Stall:
    return Stall(int(time) if clock.unit == "steps" else time, idle, clock.unit)


def of_attempts(task: Task, attempts: Attempts) -> ClockedRun:
    """Return the run in which these attempts were made."""
    instance = task.instance
    count = len(instance)
    first, last = np.full(count, -1), np.full(count, -1)
    made = attempts.before + attempts.tokens
    done = made == instance.outputs[attempts.requests]
    last[attempts.requests[done]] = (attempts.starts + attempts.tokens - 1)[done]
    gone = ~done
    gone[len(gone) - attempts.running :] = False
    back = attempts.requests[gone]
    held = instance.prompts[back] + made[gone]
    # Of the first attempt whose tokens were kept, unless the run was stopped before its batch.
    kept = ~gone if attempts.preemption == "restarted" else np.ones_like(gone)
    kept &= attempts.starts < len(attempts.log.spans)
    first[attempts.requests[kept][::-1]] = attempts.starts[kept][::-1]
    tokens = np.bincount(back, held, minlength=count).astype(np.int64)
    lost = np.bincount(back, minlength=count), tokens
    found = clocked_run(task, attempts.log, (first, last), lost)
    why = {name: getattr(attempts, name) for name in ("loop", "stall", "preemption", "knows")}
    return replace(found, **why)


def order_on_clock(task: Task) -> ClockedRun:
    """Run an order of requests under its rule."""
    _check_rule(task, "prefix", "skip", "window")
    return _admitted(task, task.policy.order(task.instance, task.clock))


def batches_on_clock(task: Task) -> ClockedRun:
    """Run a choice of batches under the prefix rule."""
    _check_rule(task, "prefix")
    return _admitted(task, task.policy.selector(task.instance))


def _check_rule(task: Task, *offered: str) -> None:
    if task.policy.rule.partition(":")[0] not in offered:
        raise PolicyError(
            f"policy {task.policy.name!r}: on a clock the rule {task.policy.rule!r} is not "
            "offered, as it would plan all waiting requests again before every batch; use prefix, "
            "or skip or window with a fixed order"
        )


def _admitted(task: Task, order: IntArray | BatchSelector) -> ClockedRun:
    requests, clock, until = requests_of(task.instance, task.clock), task.clock, task.settings.until
    limits = window_of(task.policy.rule)
    starts, log = batches.admit_on_clock(requests, order, clock, limits=limits, until=until)
    return admitted_run(task, starts, log)


def serve_engine(task: Task) -> ClockedRun:
    """Run a serving engine."""
    policy, requests = task.policy, requests_of(task.instance, task.clock)
    how, limits = serving.BATCHING.index(policy.batching), serving.limits_of(policy, task.instance)
    served, log = serving.serve(requests, task.clock, how, limits, task.settings.until)
    return served_run(task, served, log, "recomputed")


def serve_in_queues(task: Task) -> ClockedRun:
    """Run a policy that takes requests in when enough of them wait."""
    requests = requests_of(task.instance, task.clock)
    queues = task.policy.queues(task.instance, task.clock, requests.arrivals)
    served, log = serving.serve_waiting(requests, task.clock, queues, task.settings.until)
    return served_run(task, served, log, "lost")


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
    seed = task.settings.seed + worker
    task = task.on(task.settings.clocks(len(workers))[worker])
    settings = replace(task.settings, seed=seed, patience=task.patience)
    return task._replace(instance=own, policy=task.policy.seeded(seed), settings=settings)


class Replicas(ABC):
    """Workers that a router looks at; used within `with`."""

    barrier = False  # whether they can wait for each other in every batch

    def __init__(self, task: Task, workers: Workers) -> None:
        self._task, self._workers, self._stack = task, workers, ExitStack()
        self._instance, self._clocks = task.instance, task.settings.clocks(len(workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @abstractmethod
    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 6)."""

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
        age = router.age if self._task.clock.unit == "s" else 0.0
        told, reports = np.zeros((count, len(Load._fields))), 0
        arrivals = arrival_times(instance, self._task.clock).tolist()
        first = arrivals[0]
        for request, time in enumerate(arrivals):
            line, prompt = choices.of(request), int(instance.prompts[request])
            if age and (time - first) / age >= reports:
                reports = int((time - first) / age) + 1
                told = self.look(min(first + (reports - 1) * age, time), every)
            if router.function is None:
                here = told[line] if age else self.look(time, line)
                scores = (here * weights[line]).sum(axis=1)
                chosen = int(line[np.argmin(scores)])
            else:
                now = self.look(time, every)
                seen = Load(*(told if age else now).astype(np.int64).T.copy())
                output: int | None = int(instance.outputs[request])
                if router.knows == "nothing":
                    seen, output = seen._replace(work=np.zeros_like(seen.work)), None
                in_flight = now[:, :2].sum(axis=1).astype(np.int64)
                place = time, request, prompt, line, memories
                state = RouterState(*place, *seen, in_flight, output, self._clocks)
                answer = router.function(state)
                _check_choice(answer, router, instance, request, line, count)
                chosen = int(answer)
            placement[request] = chosen
            if age:  # the report was of an earlier time
                self.look(time, every[chosen : chosen + 1])
            self.place(chosen, request, time)
            told[chosen] += (1, 0, 0, prompt, instance.areas[request], 0)
        return placement

    def follow(self, placement: IntArray) -> None:
        """Let every request come to its worker."""
        arrivals = arrival_times(self._instance, self._task.clock).tolist()
        for request, (worker, time) in enumerate(zip(placement.tolist(), arrivals, strict=True)):
            self.place(worker, request, time)


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
        return self._by_memory[self._workers.memories[index]]

    @cached_property
    def _by_memory(self) -> dict[int, tuple[IntArray, Instance]]:
        instance, fitting = self._instance, {}
        for memory in {*self._workers.memories}:
            if len(fits := np.flatnonzero(instance.peaks <= memory)):
                fitting[memory] = fits, instance.take(fits).replace(memory=memory)
            else:
                fitting[memory] = fits, Instance([memory - 1], [1], memory)
        return fitting

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
        self._queues = batches.new_queues(requests, np.array(memories), every, self._order_of)
        limits = batches.RunLimits(*window_of(task.policy.rule), task.settings.until, task.timed)
        self._paused = self._stack.enter_context(
            batches.PausedQueues(self._queues, limits, self._clocks)
        )
        return self

    def _order_of(self, index: int) -> IntArray:
        """Return the requests that fit a worker, most urgent first."""
        fits, own = self._fitting(index)
        if not len(fits):
            return fits
        return np.asarray(fits[self._task.policy.order(own, self._clocks[index])])

    def route(self, router: Router, choices: Choices) -> IntArray:
        """Ask a router at every arrival; return where each request goes."""
        if router.function is not None or router.age:
            return super().route(router, choices)
        weights = router.coefficients(np.array(self._workers.memories))
        placement = np.full(len(self._instance), -1)
        kernel = interruptible_kernel(_route, len(placement))
        self._paused.go_on(kernel, (*choices, weights), placement)
        return placement

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 6)."""
        loads = np.zeros((len(self._workers), len(Load._fields)))
        kernel = interruptible_kernel(_look, len(self._instance) if time == np.inf else 0)
        self._paused.go_on(kernel, time, loads)
        return loads[indices]

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        batches.place(self._queues, index, request, time)

    @cached_property
    def _logs(self) -> list[batches.BatchLog]:
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
        return unpreempted(task.instance, task.policy.name, begun, task.settings.intervals)


@compiled_inside
def _see(queues: batches.WorkerQueues, index: int, time: float, load: FloatArray) -> None:
    """Write down the load of a worker that was run until now."""
    worker = queues.workers[index]
    load[0] = worker.waiting
    if queues.now[index] > time:  # in the midst of a batch
        load[1], load[2] = worker.running, worker.held
    else:
        load[1], load[2] = worker.active, worker.tokens
    load[3], load[4], load[5] = worker.waiting_prompts, worker.work, worker.made


@allocating
def _route(
    queues: batches.WorkerQueues,
    limits: batches.RunLimits,
    log: batches.BatchLog,
    timers: batches.Timer,
    choices: tuple[IntArray, IntArray, FloatArray],
    placement: IntArray,
) -> bool:
    """Send each request to the worker with the least score; False where the log is full."""
    drawn, which, weights = choices
    arrivals, load = queues.arrivals, np.empty(weights.shape[1])
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
            if not batches.advance(queues, limits, log, timers, index, until, False):
                return False
            _see(queues, index, time, load)
            score = 0.0
            for field in range(len(load)):
                score += weights[index, field] * load[field]
            if best < 0 or score < least:
                best, least = index, score
        placement[request] = best
        batches.place(queues, best, request, time)
    return True


@compiled
def _look(
    queues: batches.WorkerQueues,
    limits: batches.RunLimits,
    log: batches.BatchLog,
    timers: batches.Timer,
    time: float,
    loads: FloatArray,
) -> bool:
    """Run all workers until a time, and write down what is on them; False where the log is full."""
    for index in range(len(loads)):
        if not batches.advance(queues, limits, log, timers, index, min(time, limits.until), False):
            return False
        _see(queues, index, time, loads[index])
    return True


class Server(Protocol):
    """An engine that can be paused between two batches."""

    served: Records
    log: batches.BatchLog
    progress: batches.EngineProgress

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
        self._done = np.zeros(count, dtype=np.int64)  # tokens of those that are
        served = self._new_records(requests_of(self._instance, self._task.clock))
        clocks = dict.fromkeys(self._clocks)
        timers = {each: self._stack.enter_context(batches.timing(each)) for each in clocks}
        for index, clock in enumerate(self._clocks):
            self._engines.append(self._new_engine(served, index, timers[clock]))
        return self

    def _new_records(self, requests: batches.EngineRequests) -> Records:
        return serving.new_records(requests)

    def _new_engine(self, served: Records, index: int, timer: batches.Timer) -> Server:
        """Return an engine for the requests that fit it."""
        policy, (_, own) = self._task.policy, self._fitting(index)
        how, limits = serving.BATCHING.index(policy.batching), serving.limits_of(policy, own)
        return serving.MixedServer(served, how, limits, timer, self._task.settings.until)

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 6)."""
        found = np.zeros((len(indices), len(Load._fields)))
        found[:, Load._fields.index("made")] = self._done[indices]
        for at in np.flatnonzero(self._counts[indices]).tolist():  # others stay as they are
            row, index = found[at], int(indices[at])
            self._run(index, time)
            engine = self._engines[index]
            here, spans = self._requests[index][: self._counts[index]], engine.log.spans
            log, done = (spans, engine.log.state), self._done[index : index + 1]
            kept = _load(time, here, engine.progress, self._works, log, done, row)
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
    progress: batches.EngineProgress,
    works: tuple[IntArray, IntArray],
    log: tuple[FloatArray, IntArray],
    done: IntArray,
    row: FloatArray,
) -> int:
    """Sum what requests of a worker weigh, and keep those that are not complete."""
    (prompts, areas), (spans, state) = works, log
    row[5], kept = done[0], 0
    for number in range(len(requests)):
        request = requests[number]
        last = progress.last[request]
        ends = 0 <= last < state[0]
        made = progress.made[request] + progress.in_flight[request]
        row[5] += made
        if ends and spans[last, 1] <= time:
            done[0] += made
            continue
        requests[kept] = request
        kept += 1
        if progress.queue[request] != progress.absent and not ends:
            row[0] += 1
            row[3] += prompts[request]
        else:
            row[1] += 1
            row[2] += progress.held[request]
        row[4] += areas[request] - prompts[request] * made - made * (made + 1) // 2
    return kept


class Runner(NamedTuple):
    """How policies of a kind are run."""

    in_steps: Callable[[Task], Execution] | None  # None where batches must take time
    on_clock: Callable[[Task], ClockedRun]
    attempts: Callable[[Task], Attempts] | None = None  # of policies that may preempt
    paused: type[Replicas] | None = None  # workers that a router looks at between batches

    def run(self, task: Task) -> Execution | ClockedRun:
        """Run a policy in steps or on a clock."""
        if task.timed:
            return self.on_clock(task)
        assert self.in_steps is not None
        return self.in_steps(task)


def _of_attempts(attempts: Callable[[Task], Attempts]) -> Runner:
    """Return the runner of policies that may preempt requests, given what finds their attempts."""
    return Runner(
        lambda task: in_steps(task, attempts(task)),
        lambda task: of_attempts(task, attempts(task)),
        attempts,
    )


def raise_if_interrupted(run: Run) -> None:
    """Raise KeyboardInterrupt where Ctrl-C struck a rolling horizon that finished all the same."""
    if run.decisions is not None and run.decisions.interrupted:
        raise KeyboardInterrupt


_RUNNERS: dict[str, Runner] = {
    "order": Runner(decisions.admit_in_order_of, order_on_clock, paused=OrderedWorkers),
    "batch": Runner(decisions.admit_chosen, batches_on_clock),
    "plan": _of_attempts(run_planned),
    "chance": _of_attempts(run_by_chance),
    "threshold": _of_attempts(run_to_threshold),
    "decision": _of_attempts(run_decided),
    "engine": Runner(None, serve_engine, paused=EngineWorkers),
    "wait": Runner(None, serve_in_queues),
}


def runner_of(policy: Policy) -> Runner:
    """Return what runs policies of a kind; rooms above this one add some."""
    kind = policy.needs.kind
    return _RUNNERS.get(kind) or cast("Runner", added("runner", kind))
