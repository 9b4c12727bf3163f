"""A run on several workers: where requests went, and the run of each worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.errors import PolicyError
from optsched.problem.execution import Execution, Run, TimedRun
from optsched.problem.premises import PREEMPTIONS, STORAGES
from optsched.problem.schedule import Schedule
from optsched.problem.work import arrival_times
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    import pandas as pd

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge, World
    from optsched.problem.schedule import Violation
    from optsched.problem.workers import Workers


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
