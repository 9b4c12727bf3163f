"""What comparisons return, in steps, on a clock and on a cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from optsched._internal import numbers
from optsched._internal.files import JSON
from optsched.bounds.ascent import bound_late
from optsched.bounds.bound import bound as find_bound
from optsched.clock import LinearClock
from optsched.errors import PolicyError, nearest
from optsched.experiments.side_by_side import PLAIN, Comparison
from optsched.problem.premises import KNOWLEDGE, STORAGES, deployable
from optsched.problem.schedule import Schedule
from optsched.problem.work import going_on_from_a_cache, load_on_clock
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.bounds.ascent import Bound, BoundMethod
    from optsched.bounds.bound import ClockBound
    from optsched.clock import Clock
    from optsched.problem.costs import ScheduleObjective
    from optsched.problem.execution import Execution, Run
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Claim
    from optsched.problem.workers import Cluster
    from optsched.simulate import RunSettings
    from optsched.simulate.cluster.results import ClusterRun


@dataclass(frozen=True, eq=False, repr=False)
class StepComparison(Comparison["Execution", "Bound"]):
    """Runs in steps, with the bounds that cover them."""

    bounds: tuple[Bound, ...] = ()
    incomplete: tuple[Execution, ...] = ()
    rough: Execution | None = None
    objective: ScheduleObjective = PLAIN
    goodput: Any = None
    _view = "comparison_table", "plot_comparison", "comparison_page"

    @property
    def runs(self) -> tuple[Execution, ...]:
        """One run per policy."""
        return tuple(self)

    def bounded(self, bound: Bound | None = None, method: BoundMethod = "auto") -> StepComparison:
        """Return the comparison with a known bound, or those of a method of `optsched.bound`."""
        split = any(run.split for run in self)
        if self.objective == "late-requests":
            anything = Schedule(self.instance, self.instance.arrivals)
            best = min(self.schedules, key=self.value, default=anything)
            alone = bound_late(best, work=0.0)  # also holds for those that are split
            if bound is None:
                bound = alone if method == "closed-form" else bound_late(best)
            return replace(self, bounds=(bound, alone) if split else (bound,))
        bounds = [find_bound(self.instance, method, self.objective) if bound is None else bound]
        if split:
            bounds.append(find_bound(self.instance, "closed-form", self.objective))
        return replace(self, bounds=tuple(bounds))

    @property
    def notes(self) -> list[str]:
        """Remarks on the numbers, one sentence each."""
        found, memory, best = super().notes, self.instance.memory, self.best
        split = [run.policy for run in self if run.split]
        if split and self.bounds:
            found.append(
                f"{', '.join(split)}: preempted requests go on where they were stopped; for that "
                f"the proven bound is {numbers.at_least(self.bounds[-1].value)}."
            )
        if self.demand <= memory:
            said = (
                f"Memory is never the limit: if every request starts when it arrives, at most "
                f"{self.demand:,} of {memory:,} tokens are held."
            )
        else:
            said = (
                f"Memory is a limit: {best.policy} holds up to {best.peak_memory:,} of {memory:,} "
                f"tokens, and {_waited(best):,} of {len(self.instance):,} requests wait."
            )
        return [*found, said]

    def __str__(self) -> str:
        lines = [str(self.instance), super().__str__()]
        for each in self.incomplete:
            lines.append(f"  {each.policy} does not complete all: its run {each.why}")
        return "\n".join(lines)

    def to_dict(self) -> JSON:
        """Return everything but the runs as plain data; "policies" lists the metrics of each."""
        metrics = (
            {"policy": run.policy, "knows": run.knows, **run.summary(), **self._claim(run)}
            | {"waited": _waited(run), **run.losses}
            for run in self
        )
        return {
            "instance": _named(self.instance, self.instance.arrivals),
            **self._proven("value", "method", "seconds"),
            "memory_binds": self.demand > self.instance.memory,
            "intervals": self.intervals,
            "policies": self._entries(metrics),
            **self._leaders(),
            "unfinished": [run.metrics() for run in self.incomplete],
        }


@dataclass(frozen=True, eq=False, repr=False)
class ClockComparison(Comparison[ClockedRun, "ClockBound"]):
    """Runs on a clock, with the bounds that cover them; all times are in its unit."""

    warm_up: float = 0.0
    bounds: tuple[ClockBound, ...] = ()
    turns: bool = False
    rough: ClockedRun | None = None
    objective: ScheduleObjective = PLAIN
    goodput: Any = None
    timed = True
    _view = "clock_table", "plot_clock_comparison", "clock_page"
    _untold = "mixed"

    @property
    def runs(self) -> tuple[ClockedRun, ...]:
        """One run per policy."""
        return tuple(self)

    @property
    def clock(self) -> Clock:
        """How long batches take."""
        return self.settings.batch_clock

    def bounded(
        self, bound: ClockBound | None = None, method: BoundMethod = "auto"
    ) -> ClockComparison:
        """Return the comparison with a known bound, or those of a method of `optsched.bound`."""
        if self.turns:
            return self
        clock, objective = self.clock, self.objective
        assert objective != "late-requests"  # of which no bound is known on a clock
        if bound is None and isinstance(clock, LinearClock):
            bound = find_bound(self.instance, method, objective, clock=clock)
        bounds = [] if bound is None else [bound]
        if bound is not None and isinstance(clock, LinearClock):
            premises, known = bound.premises, JSON()
            alike = all(run.facts.storage == premises.storage for run in self)
            if not alike and premises.storage == STORAGES[0]:  # weaker, for what it does not cover
                known |= {"max_num_seqs": premises.max_num_seqs, "storage": STORAGES[1]}
                bounds.append(find_bound(self.instance, method, objective, clock=clock, **known))
            if any(run.facts.clock != premises.clock and run.facts.clock for run in self):
                cached = going_on_from_a_cache(clock)  # weaker, for what found its tokens
                bounds.append(find_bound(self.instance, method, objective, clock=cached, **known))
        return replace(self, bounds=tuple(bounds))

    def covering(self, run: str | Run | Schedule) -> tuple[Claim | None, str | None]:
        """Return the largest bound whose premises cover a run, or None and why there is none."""
        found = self[run] if isinstance(run, str) else run
        # On a clock that is a function what the batches took says whether a bound covers them.
        if self.bound and isinstance(found, ClockedRun) and not found.facts.clock:
            clock = self.bound.clock
            found = replace(found, clock=clock) if found.lasts_as_on(clock) else found
        return super().covering(found)

    @cached_property
    def demand(self) -> int:
        """Most tokens that would be held at their peaks, were no request to wait."""
        return max(_demand(run) for run in self)

    @property
    def notes(self) -> list[str]:
        """Remarks on the numbers, one sentence each."""
        found = super().notes
        if self.turns:
            found.append(
                "There is no bound: requests arrive when others have ended, in each run at times "
                "of its own."
            )
        memory, peak = self.instance.memory, max(run.peak_memory for run in self)
        limit = "may be a limit" if self.demand > memory else "is never the limit"
        found.append(
            f"Memory {limit}: at most {peak:,} of {memory:,} tokens are held, and the requests in "
            f"the system would hold at most {self.demand:,} at their peaks."
        )
        full: dict[int | None, list[str]] = {}
        for run in self:
            if run.full:
                full.setdefault(run.max_num_seqs, []).append(run.policy)
        free = [run.policy for run in self if run.max_num_seqs is None]
        found += [
            f"The limit of {most:,} requests in a batch (max_num_seqs) binds for {', '.join(names)}"
            + (f"; {', '.join(free)} ran without it." if free else ".")
            for most, names in full.items()
        ]
        guessed = {run.policy: run.beyond for run in self if run.beyond is not None}
        found += [f"{name}: {said}." for name, said in guessed.items()]
        late = [run.policy for run in self if run.facts.storage != STORAGES[0]]
        if late and len(self.bounds) > 1:
            total = self.objective == "total-latency"
            least = Fraction(self.bounds[1].value) / (len(self.instance) if total else 1)
            found.append(
                f"{', '.join(late)}: tokens are stored one batch later than the papers count them, "
                f"which leaves more room; for that the proven bound on the "
                f"{'mean' if total else self.measure} is {numbers.proven(least)}."
            )
        return found

    def __str__(self) -> str:
        lines = str(self.instance).splitlines()
        lines = [line for line in lines if line.split()[0] != "load"]  # which is that in steps
        if load := load_on_clock(self.instance, self.clock):
            lines.append(f"  load      {load}")
        return "\n".join([*lines, super().__str__()])

    def to_dict(self) -> JSON:
        """Return everything but the runs as plain data; "policies" lists the metrics of each."""
        clock, load = self.clock, load_on_clock(self.instance, self.clock)
        metrics = ({**run.metrics(self.warm_up), **self._claim(run)} for run in self)
        return {
            "instance": _named(self.instance, next(iter(self)).arrivals),
            "clock": {"name": clock.name, "unit": clock.unit},
            "load": None if load is None or not load.span else load.load,
            **self._proven("value", "mean_latency", "method", "seconds"),
            "memory_binds": self.demand > self.instance.memory,
            "policies": self._entries(metrics),
            **self._leaders(),
        }


def _demand(run: ClockedRun) -> int:
    """Return the most tokens that arrived and incomplete requests would hold at their peaks."""
    peaks, done = run.instance.peaks, run.completed
    times = np.concatenate([run.arrivals, run.completions[done]])
    changes = np.concatenate([peaks, -peaks[done]])
    order = np.lexsort((changes, times))  # at equal times those that complete go first
    return int(np.cumsum(changes[order]).max())


def _named(instance: Instance, arrivals: FloatArray | IntArray) -> JSON:
    return {
        "name": instance.name,
        "requests": len(instance),
        "memory": instance.memory,
        "last_arrival": arrivals[-1].item(),
        "seconds_per_step": instance.seconds_per_step,
    }


def _waited(run: Execution) -> int:
    return int((run.first_token_latencies > 1).sum())


@dataclass(frozen=True, eq=False, repr=False)
class ClusterComparison(Comparison["ClusterRun", Never]):
    """Runs of several routing policies on the same traces."""

    warm_up: float | None = None
    _title = "ClusterComparison"
    _view = "cluster_table", "plot_power", "cluster_page"

    @property
    def runs(self) -> dict[str, list[ClusterRun]]:
        """The runs of each policy on all traces."""
        return self.runs_by_policy

    @property
    def cluster(self) -> Cluster:
        """The workers, which wait for each other."""
        return next(iter(self)).cluster

    def bounded(self, *_: object, **__: object) -> ClusterComparison:
        """Return the comparison as it is: no bound is known where workers wait for each other."""
        return self

    def values(self, metric: str, policy: str) -> FloatArray:
        """Return a key of `ClusterRun.metrics`, one number per trace; NaN where a run has none."""
        if policy not in self.runs_by_policy:
            raise PolicyError(f"policy {policy!r} did not run; {nearest(policy, self.policies)}")
        rows = [run.metrics(self.warm_up) for run in self.runs_by_policy[policy]]
        if metric not in rows[0]:
            raise PolicyError(f"there is no metric {metric!r}; {nearest(metric, rows[0])}")
        return np.array(
            [math.nan if row[metric] is None else row[metric] for row in rows], dtype=np.float64
        )

    def mean(self, metric: str, policy: str) -> numbers.ConfidenceInterval:
        """Return the mean of a metric over the traces."""
        return _interval(self.values(metric, policy))

    def ratio(self, metric: str, policy: str, baseline: str) -> numbers.ConfidenceInterval:
        """Return the geometric mean over traces of a policy's positive metric over a baseline's."""
        logs = np.log(self.values(metric, policy)) - np.log(self.values(metric, baseline))
        return numbers.ConfidenceInterval(*(math.exp(value) for value in _interval(logs)))

    def to_dict(self) -> JSON:
        """Return cluster, traces and metrics as plain data, ready for JSON."""
        traces = [run.instance for run in next(iter(self.runs_by_policy.values()))]
        return {
            "cluster": self.cluster.to_dict(),
            "instances": [{"name": each.name, "requests": len(each)} for each in traces],
            "policies": self._rows,
            **self._leaders(),
        }

    @property
    def headline(self) -> list[str]:
        """Which policy is the best that can be deployed, and what true outputs would give."""
        keys = itemgetter("policy", "knows", "imbalance_tokens")
        ranked = sorted(map(keys, self._rows), key=itemgetter(2))
        return deployable(ranked, lambda value: f"{value:,.0f} tokens", measure="imbalance")

    @cached_property
    def _rows(self) -> list[JSON]:
        return [self._summary(policy) for policy in self.runs_by_policy]

    @property
    def notes(self) -> list[str]:
        """Remarks on the numbers, one sentence each."""
        entries = {entry["policy"]: entry for entry in self._rows}
        found = [*filter(None, [_rising(entries, self)])]
        if self.comparable:
            return found
        waiting, tokens = (
            [entry[key] for entry in entries.values()] for key in ("waiting", "tokens_waiting")
        )
        return [
            "The runs were stopped with different backlogs, from "
            f"{min(waiting):,.0f} to {max(waiting):,.0f} waiting requests of "
            f"{min(tokens):,.0f} to {max(tokens):,.0f} tokens, so that throughputs do not compare; "
            "run until all is done, or finish what is in view (drain).",
            *found,
        ]

    def _summary(self, policy: str) -> JSON:
        runs = self.runs_by_policy[policy]
        rows = [run.metrics(self.warm_up) for run in runs]
        told = min((run.knows for run in runs if run.knows), key=KNOWLEDGE.index, default=None)
        entry: JSON = {"policy": policy, "knows": told}
        if len(rows) == 1:
            entry |= rows[0]
        else:
            for metric in (key for key in rows[0] if all(key in row for row in rows)):
                given = [row[metric] for row in rows if row[metric] is not None]
                entry[metric] = sum(given) / len(given) if given else None
            for metric in ("max_wait_steps", "stuck"):
                entry[metric] = max(row[metric] for row in rows)
            entry["intervals"] = {
                metric: list(_interval(np.array([row[metric] for row in rows], dtype=float))[1:])
                for metric in ("imbalance_tokens", "throughput", "tpot", "energy_joule")
                if all(row[metric] is not None for row in rows)
            }
        return {**entry, "run_seconds": sum(run.seconds for run in runs)}


def _rising(entries: dict[str, JSON], runs: Iterable[ClusterRun]) -> str | None:
    """Point out a lookahead that leaves more imbalance than less of it, or than none."""
    ahead = {run.policy: run.lookahead for run in runs if run.lookahead is not None}
    imbalance = {policy: entry["imbalance_tokens"] for policy, entry in entries.items()}
    if not ahead or not (longest := max(ahead.values())):
        return None
    far = max((name for name in ahead if ahead[name] == longest), key=lambda name: imbalance[name])
    best = min(imbalance, key=lambda name: imbalance[name])
    if imbalance[far] <= imbalance[best]:  # the best itself, or level with it
        return None
    advice = f"take a lookahead of {ahead[best]}" if best in ahead else "try 0, or adaptive"
    return (
        f"A lookahead of {longest} steps leaves more imbalance ({imbalance[far]:,.0f} tokens) than "
        f"{best} ({imbalance[best]:,.0f}): {advice}."
    )


def _interval(values: FloatArray) -> numbers.ConfidenceInterval:
    if len(values) > 1:
        return numbers.ConfidenceInterval.of(values)
    mean = float(values.mean())
    return numbers.ConfidenceInterval(mean, mean, mean)


def beside(
    runs: dict[str, list[Any]],
    seconds: list[float],
    settings: RunSettings,
    warm_up: float | None,
    objective: ScheduleObjective,
    goodput: Any = None,
) -> StepComparison | ClockComparison | ClusterComparison:
    """Return the runs of each policy as the result of the world that they were in."""
    times = tuple(seconds)
    if settings.cluster is not None:
        return ClusterComparison(runs, times, settings, warm_up)
    if settings.clock is not None:
        made = ClockComparison(runs, times, settings, warm_up or 0.0)
        return replace(made, objective=objective, goodput=goodput)
    return StepComparison(runs, times, settings, objective=objective, goodput=goodput)
