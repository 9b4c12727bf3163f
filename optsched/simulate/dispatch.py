"""`optsched.run`: one policy on one instance, in steps or on a clock; on one worker or several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from optsched._internal.arguments import checked, refuse_turns
from optsched._internal.aside import watched
from optsched.admission import STEP_AHEAD, require_steps
from optsched.errors import PolicyError
from optsched.policies import Policy, get_policy, with_rule
from optsched.problem.execution import Execution, Run, TimedRun
from optsched.problem.forecasts import forecast
from optsched.problem.premises import PREEMPTIONS, STORAGES, Knowledge, World
from optsched.problem.routing import Load
from optsched.problem.schedule import Schedule, Violation
from optsched.problem.workers import Router, Workers, as_workers, get_router
from optsched.simulate import runners
from optsched.simulate.settings import Task, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, Unpack

    import pandas as pd

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.files import JSON
    from optsched.clock import BatchContent, Clock
    from optsched.policies.registry import PolicyLike
    from optsched.problem.instance import Instance
    from optsched.simulate.cluster import Cluster, ClusterRun
    from optsched.simulate.cluster.routing import Routing
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.settings import AnyClock, RunOptions, RunSettings


@overload
def run(instance: Instance, policy: PolicyLike, **options: Unpack[RunOptions]) -> Execution: ...
@overload
def run(
    instance: Instance,
    policy: PolicyLike,
    *,
    clock: str | Clock | Callable[[BatchContent], float],
    **options: Unpack[RunOptions],
) -> ClockedRun: ...
@overload
def run(
    instance: Instance,
    policy: PolicyLike,
    *,
    workers: int | str | Sequence[int] | Workers,
    clock: AnyClock | Sequence[AnyClock] | None = None,
    **options: Unpack[RunOptions],
) -> RoutedRun: ...
@overload
def run(
    instance: Instance, policy: str | Routing, *, cluster: Cluster, **options: Unpack[RunOptions]
) -> ClusterRun: ...
@overload
def run(
    instance: Instance,
    policy: Any,
    settings: RunSettings | None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Any: ...
@checked(PolicyError, turns=True)
def run(
    instance: Instance,
    policy: Any,
    settings: RunSettings | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Execution | ClockedRun | ClusterRun | RoutedRun:
    """Run a policy on an instance and record everything that it did.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        A name such as "area", "area+backfill" or "a-min"; a policy object; or a function of a
        `state` (as for `DecisionPolicy`) or of an `instance` (as for `PriorityPolicy`). On a
        cluster a routing policy: a name out of `optsched.simulate.cluster.ROUTINGS`, a
        `BalanceRouting` with its options, or a rule of your own.
    settings
        How it is run; None: in steps, on one worker.
    on_progress
        Called now and then with what is done and all there is: by a rolling horizon requests that
        run or are complete, on a cluster requests that are done.
    **options
        Fields of `RunSettings`, instead of settings, or to replace some of theirs.

    Returns
    -------
    Execution, ClockedRun, ClusterRun or RoutedRun
        All attempts in steps; all batches on a clock; arrays by request and step on a cluster; on
        several workers the placement, and the run of each.

    Raises
    ------
    PolicyError
        If the policy is unknown, or needs outputs where it is given intervals or the reverse, or
        the options contradict each other.
    InstanceError
        If an output lies outside its interval, or the cluster cannot run these requests.

    Examples
    --------
    Sorted-F Example 1: 22 requests, total latency 64 under MC-SF and 45 under Sorted-F.

    >>> from optsched import Instance, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> run(instance, "mc-sf").total_latency, run(instance, "sorted-f").total_latency
    (64, 45)

    Robust Example 3.2: five requests whose single token may be up to four.

    >>> instance = Instance([1] * 5, [1] * 5, memory=10)
    >>> for policy in ("h-sf", "a-max", "a-min"):
    ...     print(policy, run(instance, policy, intervals="common:1,4").total_latency)
    h-sf 5
    a-max 9
    a-min 5
    """
    if isinstance(policy, list | tuple | set):
        raise PolicyError(
            f"run takes one policy, but got {len(policy)}; compare(instance, policies) runs several"
        )
    settings = settings_of(settings, options)
    with watched(on_progress) as tell:
        found = _run(instance, policy, settings, tell)
    told, runs = settings.knows(policy, instance), getattr(found, "runs", (found,))
    router = settings.router is not None and get_router(settings.router).knows == "outputs"
    if not router and all(each is None or each.knows == "nothing" for each in runs):
        told = "nothing"  # whatever it could have looked at
    return replace(found, knows=told)


def _run(
    instance: Instance,
    policy: Any,
    settings: RunSettings,
    on_progress: Callable[[int, int], None] | None,
) -> Execution | ClockedRun | ClusterRun | RoutedRun:
    if settings.cluster is not None:
        refuse_turns(instance, "a cluster", PolicyError)
        from optsched.simulate.cluster.run import run_cluster

        return run_cluster(instance, policy, settings, on_progress)
    task = prepared(instance, policy, settings, on_progress)
    runner = runners.runner_of(task.policy)
    several = None if settings.workers is None else as_workers(settings.workers, instance)
    logged = task.timed and settings.until == float("inf")
    seats = 1 if several is None else len(several)
    require_steps(instance.outputs, seats, _BATCH if logged else STEP_AHEAD)
    if several is not None:
        router = get_router("least-tokens" if settings.router is None else settings.router)
        return run_routed(task, several, router)
    return runner.run(task)


_BATCH = 512  # bytes of a batch, of which a run on a clock has one for each token of an output


def prepared(
    instance: Instance,
    policy: PolicyLike,
    settings: RunSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> Task:
    """Return a run on one worker, or refuse it before anything is compiled for it."""
    chosen = fitted(policy, settings)
    if settings.workers is not None or chosen.needs.kind != "vllm":
        taker = f"policy {chosen.name!r}" if settings.workers is None else "a router"
        refuse_turns(instance, taker, PolicyError)
    if settings.intervals is not None:
        forecast(instance, settings.intervals)
    return Task(instance, chosen, settings, on_progress)


def fitted(policy: PolicyLike, settings: RunSettings) -> Policy:
    """Return a policy as it runs under settings, or refuse those that do not suit what it needs."""
    chosen, intervals = get_policy(policy), settings.intervals
    knows = chosen.needs.knows
    if knows == "outputs" and intervals not in (None, "exact"):
        raise PolicyError(
            f"policy {chosen.name!r} needs the outputs, but may only know the intervals "
            f"{intervals!r}; leave the intervals out, or run h-sf beside the others as the "
            "reference that knows the outputs"
        )
    ruled = with_rule(chosen, settings.rule)
    if knows == "intervals" and intervals is None:
        raise PolicyError(
            f"policy {chosen.name!r} plans with intervals of the outputs; pass intervals, "
            "such as common:1,1000 or relative:0.5 (exact: the outputs themselves)"
        )
    check_beliefs([chosen], settings)
    chosen = ruled.seeded(settings.seed)
    if settings.clock is not None:
        return chosen
    if runners.runner_of(chosen).in_steps is None:
        raise PolicyError(
            f"policy {chosen.name!r} forms batches that take time; pass a clock, such as unit or "
            "llama-2-70b-2xa100"
        )
    return chosen


def check_beliefs(policies: Sequence[Policy], settings: RunSettings) -> None:
    """Refuse beliefs for which no policy asks."""
    if settings.beliefs is not None and all(each.foresees != "beliefs" for each in policies):
        names = ", ".join(each.name for each in policies)
        raise PolicyError(
            "beliefs or a history are for policies that ask what is likely, such as area-chance, "
            f"but not for {names}; leave them out, or run such a policy"
        )


def choices_of(instance: Instance, workers: Workers, router: Router, seed: int) -> runners.Choices:
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
    return runners.Choices(drawn.astype(np.int64), which.reshape(-1).astype(np.int64))


def in_turn(choices: runners.Choices) -> IntArray:
    """Send each request to the next worker in turn where it may run."""
    placement = np.zeros(len(choices.which), dtype=np.int64)
    lines = [line[line >= 0] for line in choices.drawn]
    last = -1
    for request, which in enumerate(choices.which.tolist()):
        line = lines[which]
        place = int(np.searchsorted(line, last, side="right"))
        placement[request] = last = int(line[place % len(line)])
    return placement


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
    def beyond(self) -> str | None:
        """Where batches leave the range that a fitted clock knows, of the first such worker."""
        return next((said for run in self._served if (said := run.beyond) is not None), None)

    @property
    def _served(self) -> list[Execution | ClockedRun]:
        return [run for run in self.runs if run is not None]

    def _gathered(self, name: str) -> FloatArray:
        """Gather one number per request from the runs."""
        values = np.full(len(self.instance), np.nan)
        for worker, run in enumerate(self.runs):
            if run is not None:
                source = run.schedule if name == "starts" else run
                values[self.requests_on(worker)] = getattr(source, name)
        return values

    @cached_property
    def completions(self) -> FloatArray:
        """Time at which each request had its last token; NaN where it is unfinished, shape (n,)."""
        return self._gathered("completions")

    @cached_property
    def first_tokens(self) -> FloatArray:
        """Time at which each request had its first token; NaN where it never had, shape (n,)."""
        return self._gathered("first_tokens")

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

    def metrics(self, warm_up: float = 0.0) -> JSON:
        """Return all metrics in one dictionary, ready for a table or for JSON.

        Requests that arrive before the warm-up is over are left out of the latencies. Latency, TTFT
        and TPOT are in the clock's unit (None where no request is completed), throughput in output
        tokens per unit of time; further preemptions and the tokens they lost, missed deadlines
        where there are deadlines, and requests and peak memory of each worker under "per_worker".
        """
        incomplete = self.clock is None and self.why is not None
        content: JSON = {
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
            **self._outcome(),
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
            **self.times._asdict(),
        )

    @property
    def _figure(self) -> tuple[str, object]:
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


def run_routed(task: Task, workers: Workers, router: Router) -> RoutedRun:
    """Send requests to workers as they arrive, and run each worker on what it gets."""
    instance, runner = task.instance, runners.runner_of(task.policy)
    choices = choices_of(instance, workers, router, task.settings.seed)
    runs: list[Execution | ClockedRun | None] = []
    barrier = task.barrier and len(workers) > 1
    if barrier:
        _check_barrier(task)
    if not router.looks:
        alone = choices.drawn.shape[1] == 1
        placement = choices.drawn[choices.which, 0] if alone else in_turn(choices)
    if router.looks or barrier:
        with _watched(task, workers) as replicas:
            if router.looks:
                placement = replicas.route(router, choices)
            else:
                replicas.follow(placement)
            runs = replicas.finish(placement)
    else:
        for worker in range(len(workers)):
            requests = np.flatnonzero(placement == worker)
            own = runners.alone(task, workers, worker, requests) if len(requests) else None
            runs.append(runner.run(own) if own else None)
    return RoutedRun(
        instance,
        workers,
        router.name,
        task.policy.name,
        placement,
        tuple(runs),
        task.clock if task.timed else None,
        task.settings.clock if isinstance(task.settings.clock, tuple) else (),
    )


def _check_barrier(task: Task) -> None:
    """Refuse engines that cannot wait for each other, as those do that share experts."""
    clock, paused = task.clock, runners.runner_of(task.policy).paused
    if isinstance(task.settings.clock, tuple):
        raise PolicyError("ranks that share experts have one clock; pass that alone")
    if paused is None or not paused.barrier:
        raise PolicyError(
            f"policy {task.policy.name!r}: on clock {clock.name} workers share experts and wait "
            "for each other in every batch, as only vllm and its orders do; take one of these, or "
            "a clock without a shared part"
        )


def _watched(task: Task, workers: Workers) -> runners.Replicas:
    """Return workers that a router looks at: paused where that can be, or run again and again."""
    paused, clocks = runners.runner_of(task.policy).paused, set(task.settings.clocks(len(workers)))
    # Of clocks that are functions, orders know one.
    functions = len(clocks) > 1 and any(each.coefficients is None for each in clocks)
    ordered = task.policy.needs.kind == "order"
    if paused is None or (ordered and (functions or task.policy.rule == "backfill")):
        return Trajectories(task, workers)
    return paused(task, workers)


class Attempted(NamedTuple):
    """What a worker did."""

    task: Task
    found: runners.Attempts | Execution
    run: Execution | ClockedRun | None = None  # where it is not made of the attempts

    @property
    def spans(self) -> FloatArray | None:
        """When its batches were; None where they are the steps."""
        return self.found.log.spans if isinstance(self.found, runners.Attempts) else None

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

    def load(self, time: float) -> Load[int]:
        """Return what a router sees at a time."""
        instance = self.task.instance
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
            made=instance.outputs[done].sum() + has.sum(),
        )

    def finished(self) -> Execution | ClockedRun:
        """Return the run."""
        if self.run is not None:
            return self.run
        assert isinstance(self.found, runners.Attempts)
        made = runners.of_attempts if self.task.timed else runners.in_steps
        return made(self.task, self.found)


def attempted(task: Task) -> Attempted:
    """Run a policy on one worker, and keep what it did."""
    runner = runners.runner_of(task.policy)
    if runner.attempts is not None:
        return Attempted(task, runner.attempts(task))
    run = runner.run(task)
    if isinstance(run, Execution):
        return Attempted(task, run, run)
    if run.preemptions:
        raise PolicyError(
            f"policy {task.policy.name!r} preempts requests, which a router cannot follow; use the "
            "router round-robin or random, which look at no worker"
        )
    begun = np.flatnonzero(run.first_batch >= 0)
    tokens = task.instance.outputs[begun]
    return Attempted(task, runners.Attempts(begun, run.first_batch[begun], tokens, 0, run.log), run)


class Trajectories(runners.Replicas):
    """Workers whose run on the requests so far tells what is on them; each new run checks that."""

    def __enter__(self) -> Self:
        count = len(self._workers)
        self._requests: list[list[int]] = [[] for _ in range(count)]
        self._known: list[Attempted | None] = [None] * count
        self._changed: list[float | None] = [None] * count  # since when what is known is old
        return self

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 6)."""
        known = (self._known_of(index) for index in indices.tolist())
        loads = [Load(0, 0, 0, 0, 0, 0) if each is None else each.load(time) for each in known]
        return np.array(loads, dtype=np.float64)

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        if self._changed[index] is None:
            self._changed[index] = time
        self._requests[index].append(request)

    def _known_of(self, index: int) -> Attempted | None:
        """Return what a worker does with the requests that came."""
        before, changed = self._known[index], self._changed[index]
        if changed is not None:
            known = attempted(self._alone(index, np.array(self._requests[index])))
            if before is not None and known.before(changed) != before.before(changed):
                raise PolicyError(
                    f"policy {self._task.policy.name!r} plans with requests that have not arrived, "
                    "so a router cannot see what it will do; use the router round-robin or random, "
                    "which look at no worker"
                )
            self._known[index], self._changed[index] = known, None
        return self._known[index]

    def finish(self, placement: IntArray) -> list[Execution | ClockedRun | None]:
        """Return the run of each worker that got requests."""
        known = [self._known_of(index) for index in range(len(self._workers))]
        return [None if each is None else each.finished() for each in known]
