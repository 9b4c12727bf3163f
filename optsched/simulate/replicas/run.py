"""Runs a router and a policy on several workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from optsched.errors import PolicyError
from optsched.problem.execution import Execution, Run, TimedRun
from optsched.problem.premises import PREEMPTIONS, STORAGES
from optsched.problem.schedule import Schedule
from optsched.problem.work import arrival_times
from optsched.problem.workers import Load, RouterState
from optsched.simulate.runners import runner_of
from optsched.simulate.seconds.execution import ClockedRun, requests_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge, World
    from optsched.problem.schedule import Violation
    from optsched.problem.workers import Router, Workers
    from optsched.simulate.settings import Task


class Observable(Protocol):
    """Workers that can be looked at when a request arrives."""

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        ...

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        ...


class Choices(NamedTuple):
    """The workers among which a router chooses, in rows, and the row of each request."""

    drawn: IntArray  # ascending, filled up with -1
    which: IntArray

    def of(self, request: int) -> IntArray:
        """Return the workers that a request may go to."""
        line: IntArray = self.drawn[self.which[request]]
        return line[line >= 0]


def choices_of(instance: Instance, workers: Workers, router: Router, seed: int) -> Choices:
    """Return the workers where each request may run, or those of them that the router draws."""
    allowed = workers.allowed(instance)
    count = len(workers)
    if router.choices is not None and router.choices < count:
        # Another source of randomness than that of a workload of the same seed.
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
        keys = np.where(allowed, rng.random(allowed.shape), 2.0)
        drawn = np.argpartition(keys, router.choices - 1, axis=1)[:, : router.choices]
        drawn[~np.take_along_axis(allowed, drawn, axis=1)] = count
        which = np.arange(len(instance))
    else:
        lines, which = np.unique(allowed, axis=0, return_inverse=True)
        drawn = np.where(lines, np.arange(count), count)
    drawn.sort(axis=1)
    drawn[drawn == count] = -1
    return Choices(drawn.astype(np.int64), which.reshape(-1).astype(np.int64))


def in_turn(choices: Choices) -> IntArray:
    """Send each request to the next worker in turn where it may run."""
    placement = np.zeros(len(choices.which), dtype=np.int64)
    lines = [line[line >= 0] for line in choices.drawn]
    last = -1
    for request, which in enumerate(choices.which.tolist()):
        line = lines[which]
        place = int(np.searchsorted(line, last, side="right"))
        placement[request] = last = int(line[place % len(line)])
    return placement


def ask(
    router: Router,
    replicas: Observable,
    instance: Instance,
    workers: Workers,
    arrivals: FloatArray,
    choices: Choices,
) -> IntArray:
    """Ask a router at every arrival."""
    placement = np.zeros(len(instance), dtype=np.int64)
    memories = np.array(workers.memories)
    weights, every = router.coefficients(memories), np.arange(len(workers))
    for request, time in enumerate(arrivals.tolist()):
        line = choices.of(request)
        if router.function is None:
            scores = (replicas.look(time, line) * weights[line]).sum(axis=1)
            chosen = int(line[np.argmin(scores)])
        else:
            loads = Load(*replicas.look(time, every).astype(np.int64).T.copy())
            if router.knows == "nothing":
                loads = loads._replace(work=np.zeros_like(loads.work))
            prompt = int(instance.prompts[request])
            state = RouterState(time, request, prompt, line, memories, *loads)
            answer = router.function(state)
            _check_choice(answer, router, instance, request, line, len(workers))
            chosen = int(answer)
        placement[request] = chosen
        replicas.place(chosen, request, time)
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


@dataclass(frozen=True, eq=False, repr=False)
class RoutedRun(TimedRun):
    """What a router and a policy made of an instance on workers that run each on its own.

    Times are in the unit of the clock, steps without one.

    Attributes
    ----------
    placement
        Worker of each request, shape (n,).
    runs
        Run of each worker on its own requests; None for a worker that got none.
    clocks
        Clock of each worker, where they differ; `clock` is then that of the first.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> routed = run(Instance([5, 5, 5], [2, 2, 2], 8), "area", workers=2, router="round-robin")
    >>> routed.placement, routed.total_latency
    (array([0, 1, 0]), 8)
    >>> routed.on(0).schedule.starts
    array([0, 2])
    """

    instance: Instance
    workers: Workers
    router: str
    policy: str
    placement: IntArray
    runs: tuple[Execution | ClockedRun | None, ...]
    clock: Clock | None = None
    clocks: tuple[Clock, ...] = ()
    knows: Knowledge | None = None

    def __post_init__(self) -> None:
        served = self._served
        object.__setattr__(self, "intervals", served[0].intervals)
        for why in ("loop", "stall"):  # the first that a worker ran into
            found = next((each for run in served if (each := getattr(run, why))), None)
            object.__setattr__(self, why, found)

    def __repr__(self) -> str:
        return f"<RoutedRun {self.router!r}, {self.policy!r}: {len(self.workers)} workers>"

    def requests_on(self, worker: int) -> IntArray:
        """Return the requests that went to a worker, ascending."""
        return np.flatnonzero(self.placement == worker)

    def on(self, worker: int) -> Execution | ClockedRun:
        """Return the run of one worker, counted from 0, on its requests; fails if it has none."""
        found = self.runs[worker]
        if found is None:
            raise PolicyError(f"no request went to worker {worker} of {len(self.workers)}")
        return found

    @property
    def _served(self) -> list[Execution | ClockedRun]:
        return [run for run in self.runs if run is not None]

    def _gathered(self, name: str) -> FloatArray:
        """Gather one number per request from the runs."""
        values = np.full(len(self.instance), np.nan)
        for worker, run in enumerate(self.runs):
            if run is not None:
                source: Any = run.schedule if name == "starts" else run
                values[self.requests_on(worker)] = getattr(source, name)
        return values

    @cached_property
    def arrivals(self) -> FloatArray:
        """Time of each request's arrival, shape (n,)."""
        if self.clock is None:
            return self.instance.arrivals.astype(np.float64)
        return arrival_times(self.instance, self.clock)

    @cached_property
    def completions(self) -> FloatArray:
        """Time at which each request had its last token; NaN where it is unfinished, shape (n,)."""
        return self._gathered("completions")

    @property
    def completed(self) -> BoolArray:
        """Whether each request was completed, shape (n,)."""
        return ~np.isnan(self.completions)

    @cached_property
    def first_token_latencies(self) -> FloatArray:
        """Time from arrival to the first token (TTFT), shape (n,)."""
        return self._gathered("first_token_latencies")

    @cached_property
    def times_per_token(self) -> FloatArray:
        """Mean time between tokens after the first (TPOT); NaN for single tokens, shape (n,)."""
        if self.clock is not None:
            return self._gathered("times_per_token")
        others = np.where(self.instance.outputs > 1, self.instance.outputs - 1, np.nan)
        return (self.latencies - self.first_token_latencies) / others

    @property
    def deadlines(self) -> FloatArray | None:
        """Time of each request's deadline, shape (n,); None where there are none."""
        if self.instance.deadlines is None:
            return None
        if self.clock is None:
            return self.instance.deadlines.astype(np.float64)
        timed = next(run for run in self.runs if isinstance(run, ClockedRun))
        return replace(timed, instance=self.instance).deadlines

    @property
    def facts(self) -> World:
        """Facts that decide which bounds apply to the runs of all workers."""
        parts = [run.facts for run in self._served]
        least, limits = parts[0], [part.max_num_seqs for part in parts]
        equal = self.clock is not None and self.workers.equal
        one = self.instance.replace(memory=self.workers.memories[0]) if equal else None
        return replace(
            least,
            fingerprint=(one.fingerprint if one else self.workers.fingerprint(self.instance)),
            workers=len(self.workers),
            storage=max((part.storage for part in parts), key=STORAGES.index),
            preemption=max((part.preemption for part in parts), key=PREEMPTIONS.index),
            max_num_seqs=None if None in limits else max(filter(None, limits)),
            unfinished=self.unfinished,
            cached=any(part.cached for part in parts),
            clock=() if self.clocks else least.clock,  # of several no bound is known
        )

    @property
    def _clock_names(self) -> str | None:
        clocks = self.clocks or (self.clock,)
        return ", ".join(dict.fromkeys(c.name for c in clocks if c is not None)) or None

    @property
    def unfinished(self) -> int:
        """Requests that were not completed."""
        return sum(run.unfinished for run in self._served)

    @property
    def preemptions(self) -> int:
        """How often a request was preempted."""
        return sum(run.preemptions for run in self._served)

    @property
    def preempted_tokens(self) -> int:
        """Tokens lost by preemptions."""
        return sum(run.preempted_tokens for run in self._served)

    @property
    def total_latency(self) -> float:
        """Sum of the latencies of the completed requests."""
        if self.clock is None:
            return sum(run.total_latency for run in self._served)
        return float(np.nansum(self.latencies))

    @property
    def makespan(self) -> float:
        """When the last worker was done, or stopped."""
        return max(run.makespan for run in self._served)

    @property
    def schedule(self) -> Schedule:
        """Starts and placement, where batches take one step each and all requests are completed."""
        if self.clock is not None:
            Run.schedule.fget(self)  # type: ignore[attr-defined]
        starts = self._gathered("starts").astype(np.int64)
        name = f"{self.router}, {self.policy}"
        return Schedule(self.instance, starts, name, workers=self.workers, placement=self.placement)

    def check(self) -> list[Violation]:
        """Return everything that is wrong with the runs, rebuilt from what they recorded."""
        found = []
        for worker, run in enumerate(self.runs):
            if run is None:
                continue
            requests = self.requests_on(worker)
            for reason in run.check():
                request = int(requests[reason.request]) if reason.request >= 0 else -1
                said = f"worker {worker}, {reason}"
                found.append(replace(reason, request=request, message=said))
        return found

    def metrics(self, warm_up: float = 0.0) -> dict[str, Any]:
        """Return all metrics in one dictionary, ready for a table or for JSON.

        Requests that arrive before the warm-up is over are left out of the latencies. Latency, TTFT
        and TPOT are in the clock's unit (None where no request is completed), throughput in output
        tokens per unit of time; further preemptions and the tokens they lost, missed deadlines
        where there are deadlines, and requests and peak memory of each worker under "per_worker".
        """
        incomplete = self.clock is None and self.why is not None
        content: dict[str, Any] = {
            "router": self.router,
            "policy": self.policy,
            "workers": list(self.workers.memories),
            "clock": self._clock_names,
            "unit": self.unit,
            "requests": len(self.instance),
            "completed": len(self.instance) - self.unfinished,
            "unfinished": self.unfinished,
            "total_latency": None if incomplete else self.total_latency,
        }
        counted = self.arrivals >= warm_up
        content |= self._summaries(counted if not incomplete else np.zeros_like(counted))
        content |= {"makespan": None, "throughput": None}
        if not incomplete:
            span = self.makespan or np.inf
            content["makespan"] = self.makespan
            content["throughput"] = float(self.instance.outputs[self.completed].sum()) / span
            if (due := self.deadlines) is not None:
                content["missed_deadlines"] = self._missed(due)
        return content | {
            **self._outcome(self.preempted_tokens),
            "per_worker": [
                {"requests": 0, "peak_memory": 0}
                if run is None
                else {"requests": len(run.instance), "peak_memory": run.peak_memory}
                for run in self.runs
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per request: worker, lengths, arrival, completion, latency, TTFT, TPOT."""
        return self._by_request(
            worker=self.placement,
            prompt=self.instance.prompts,
            output=self.instance.outputs,
            arrival=self.arrivals,
            completion=self.completions,
            **self._times,
        )

    @property
    def _figure(self) -> tuple[str, Any]:
        if self.clock is not None:
            return "plot_clocked_usage", self._served
        return "plot_workers" if len(self.workers) > 1 else "plot_schedule", self.schedule

    def __str__(self) -> str:
        metrics = self.metrics()
        served = np.bincount(self.placement, minlength=len(self.workers))
        timed = f" on {self._clock_names}" if self._clock_names else ""
        left = f", {self.unfinished:,} unfinished" if self.unfinished else ""
        lines = [
            f"{self.router}, {self.policy}{timed}{self._known}: {len(self.instance):,} requests on "
            f"{len(self.workers):,} workers{left}"
        ]
        lines += self._lines(metrics)
        lines.append(f"  workers   {served.min():,} to {served.max():,} requests each")
        if self.preemptions:
            lost = f"{self.preempted_tokens:,} tokens ({self.facts.preemption})"
            lines.append(f"  memory    {self.preemptions:,} preemptions, {lost}")
        if self.why is not None:
            lines.append(f"  a worker's run {self.why}")
        return "\n".join(lines)


def run_routed(task: Task, workers: Workers, router: Router, timed: bool) -> RoutedRun:
    """Send requests to workers as they arrive, and run each worker on what it got."""
    clocks = task.settings.clocks(len(workers))
    placement, seen = _placed(task, workers, router, timed)
    runs: list[Execution | ClockedRun | None] = []
    for worker in range(len(workers)):
        requests = np.flatnonzero(placement == worker)
        if not len(requests):
            runs.append(None)
            continue
        own = _task_of(task, workers, worker, requests)
        runner = runner_of(task.policy)
        if timed:
            runs.append(runner.on_clock(own))
        else:
            assert runner.in_steps is not None
            runs.append(runner.in_steps(own))
        if seen is not None:
            _check(runs[-1], seen(worker, requests))
    return RoutedRun(
        task.instance,
        workers,
        router.name,
        task.policy.name,
        placement,
        tuple(runs),
        task.clock if timed else None,
        clocks if isinstance(task.settings.clock, tuple) else (),
    )


def _placed(
    task: Task, workers: Workers, router: Router, timed: bool
) -> tuple[IntArray, Callable[[int, IntArray], FloatArray] | None]:
    """Return where requests go, and what was seen of each worker meanwhile, to be compared."""
    instance = task.instance
    choices = choices_of(instance, workers, router, task.seed)
    if not router.looks:
        if choices.drawn.shape[1] == 1:
            return choices.drawn[choices.which, 0], None
        return in_turn(choices), None
    requests = requests_of(instance, task.clock)
    policy, paused = task.policy, runner_of(task.policy).paused
    if paused is not None:
        with paused(task, workers) as engines:
            placement = ask(router, engines, instance, workers, requests.arrivals, choices)
        return placement, lambda worker, _: engines.spans(worker)
    whole_runs = policy.needs.kind != "order" or policy.rule == "backfill"
    # Rows of coefficients are all that the kernel for orders knows of different clocks.
    clocks = task.settings.clocks(len(workers))
    functions = len(set(clocks)) > 1 and any(each.coefficients is None for each in clocks)
    if whole_runs or functions:
        from optsched.simulate.replicas.workers import Trajectories

        replicas = Trajectories(
            len(workers), lambda index, some: _task_of(task, workers, index, some), timed
        )
        return ask(router, replicas, instance, workers, requests.arrivals, choices), None
    from optsched.simulate.replicas.workers import OrderedWorkers

    memories = np.array(workers.memories)
    ordered = OrderedWorkers(task, memories, clocks)
    if router.function is None:
        placement = ordered.route(choices.drawn, choices.which, router.coefficients(memories))
    else:
        placement = ask(router, ordered, instance, workers, requests.arrivals, choices)
    begun = ordered.begun(placement)
    return placement, lambda _, some: begun[some]


def _task_of(task: Task, workers: Workers, worker: int, requests: IntArray) -> Task:
    """Return what one worker has to do; each draws from a seed of its own."""
    own = task.instance.take(requests)
    if own.memory != workers.memories[worker]:
        own = own.replace(memory=workers.memories[worker])
    seed = task.seed + worker
    task = task.on(task.settings.clocks(len(workers))[worker])
    settings = replace(task.settings, seed=seed, patience=task.patience)
    return task._replace(instance=own, policy=task.policy.seeded(seed), settings=settings)


def _check(run: Execution | ClockedRun | None, seen: FloatArray) -> None:
    """Refuse an order that depends on requests of other workers, by what was seen of the worker."""
    if seen.ndim == 2:  # the spans of its first batches, not when requests began
        assert isinstance(run, ClockedRun)
        times = run.log.spans[: len(seen)]
    elif isinstance(run, ClockedRun):
        times = np.append(run.log.spans[:, 0], np.nan)[run.first_batch]
    else:
        assert run is not None
        times = run.schedule.starts.astype(np.float64)
    there = ~np.isnan(seen)
    if times.shape != seen.shape or not np.array_equal(times[there], seen[there]):
        raise PolicyError(
            f"policy {run.policy!r} orders requests by what is in the instance as a whole, so a "
            "router cannot see what it will do on each worker; use the router round-robin or "
            "random, which look at no worker"
        )
