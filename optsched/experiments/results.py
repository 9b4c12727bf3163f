"""What comparisons return, in steps, on a clock and on a cluster."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, cast

import numpy as np

from optsched._internal import numbers
from optsched._internal.files import JSON
from optsched._internal.imports import data_frame
from optsched._internal.views import View, text
from optsched.bounds.ascent import bound_late
from optsched.bounds.bound import bound as find_bound
from optsched.clock import LinearClock
from optsched.errors import PolicyError, nearest
from optsched.problem.costs import schedule_cost, weights_of
from optsched.problem.forecasts import ROUGH
from optsched.problem.premises import KNOWLEDGE, STORAGES, deployable, strongest
from optsched.problem.schedule import Schedule, Started
from optsched.problem.work import going_on_from_a_cache, load_on_clock
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import typing_extensions

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

    # With defaults, `Comparison` alone is one of any runs.
    AnyRun = typing_extensions.TypeVar("AnyRun", bound=Run, default=Run, covariant=True)
    AnyBound = typing_extensions.TypeVar(
        "AnyBound", bound=Bound | ClockBound, default=Bound | ClockBound, covariant=True
    )
else:
    AnyRun, AnyBound = TypeVar("AnyRun"), TypeVar("AnyBound")

_PARTS = 10  # of a log, by which the difference of two policies is sure
_BY_ARRIVAL = ("vllm", "fcfs")
_PLAIN: ScheduleObjective = "total-latency"
ROUNDING = 1e-9  # relative, of a mean over sums of batches


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(View, Generic[AnyRun, AnyBound]):
    """Runs of several policies side by side, all in steps, on a clock or on a cluster.

    `comparison["area"]` is the run of a policy, iteration goes over all runs, and `best` has the
    fewest unfinished requests and then the least of the objective, without the `references`, which
    know more than the others. Methods take a run or the name of its policy. It is a
    `StepComparison`, a `ClockComparison` or a `ClusterComparison`, each with fields of its own.

    Attributes
    ----------
    runs_by_policy
        The runs of each policy on all traces; in steps and on a clock there is one trace.
    seconds
        Seconds that each run took.
    warm_up
        Time before which nothing counts in the metrics; on a cluster steps, or None for the usual.
    bounds
        Proven lower bounds on the objective, each under premises of its own.
    incomplete
        Runs in steps that do not complete all requests, which are not compared.
    turns
        Whether requests arrived when others had ended, in each run at times of its own.
    rough
        Where the best policy is told outputs, its run with rough forecasts in their place; None if
        there can be none.
    timed
        Whether the runs are on a clock.
    objective
        What runs are ranked and bounded by, as in `solve`.
    goodput
        The objectives that `slo` asked for, of which each entry says what it has "attained".

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> compare(Instance([1], [2], memory=3), "area").to_pandas().loc["area", "makespan"]
    np.int64(2)
    """

    runs_by_policy: dict[str, list[AnyRun]]
    seconds: tuple[float, ...]
    settings: RunSettings
    # What only some have, and what it is for the others.
    bounds = tuple["AnyBound", ...]()
    incomplete = tuple["Execution", ...]()
    rough = cast("Run | None", None)
    warm_up = cast("float | None", 0.0)
    objective = _PLAIN
    goodput = cast("Any", None)
    timed = turns = False
    _title = "Comparison"
    _untold = "alpha-beta-clearing"  # a policy that is told nothing

    @property
    def instance(self) -> Instance:
        """The requests; on a cluster those of the first trace."""
        return next(iter(self)).instance

    @property
    def cluster(self) -> Cluster | None:
        """The cluster; None in steps and on a clock."""
        return self.settings.cluster

    @property
    def clock(self) -> Clock | None:
        """How long batches take; None in steps and on a cluster."""
        return None

    @property
    def intervals(self) -> str | None:
        """What policies know of the outputs; None: everything they need."""
        return self.settings.intervals

    @property
    def bound(self) -> AnyBound | None:
        """The bound of the papers' model, in which a token is held at once; None without bounds."""
        return self.bounds[0] if self.bounds else None

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules in steps, in the order of the policies, of those whose runs have one."""
        return [run.schedule for run in self if not run.split]

    def covering(self, run: str | Run | Schedule) -> tuple[Claim | None, str | None]:
        """Return the largest bound whose premises cover a run, or None and why there is none."""
        if self.warm_up:
            return None, "requests that arrive before the warm-up do not count"
        facts = (self[run] if isinstance(run, str) else run).facts
        return strongest(self.bounds, replace(facts, objective=self.objective))

    def gap(self, run: str | Run | Schedule) -> float | None:
        """Return (value - bound) / value, or None where no bound covers the run."""
        covering, _ = self.covering(run)
        if covering is None:
            return None
        value = self.value(run)
        return (value - covering.value) / value if value else 0.0

    def value(self, run: str | Run | Schedule) -> float:
        """Return the objective of a run; of a latency what completed requests have of it."""
        found = self[run] if isinstance(run, str) else run
        if self.objective == "total-latency":
            return found.total_latency
        if isinstance(found, Started):
            return float(schedule_cost(found, self.objective))
        if self.objective == "makespan":
            return found.makespan
        return math.fsum(self._weighted(found)[found.completed])

    def _weighted(self, run: Run) -> FloatArray:
        """Return what each request adds to the latency that is the objective."""
        weighted: FloatArray = weights_of(run.instance, self.objective) * run.latencies
        return weighted

    @property
    def metric(self) -> str:
        """The name of the objective among the metrics of a run: of the total latency the mean."""
        total = self.objective == "total-latency"
        return "mean_latency" if total else self.objective.replace("-", "_")

    @property
    def measure(self) -> str:
        """The objective in words."""
        counted = "number" if self.instance.weights is None else "weight"
        words = self.objective.replace("-", " ")
        return f"{counted} of {words}" if self.objective == "late-requests" else words

    @property
    def unit(self) -> str:
        """Unit of the objective; empty for late requests."""
        return "" if self.objective == "late-requests" else next(iter(self)).unit

    def _rank(self, run: Run) -> tuple[int, float, float]:
        """Return what runs are ranked by; latency breaks ties."""
        mean = math.inf if math.isnan(run.mean_latency) else run.mean_latency
        plain = self.objective == "total-latency" or math.isinf(mean)
        value = mean if plain else self.value(run)
        return run.unfinished, value, mean

    @cached_property
    def demand(self) -> int:
        """Most tokens that would be held, were no request to wait; on a clock at their peaks."""
        return Schedule(self.instance, self.instance.arrivals).peak_memory

    @property
    def notes(self) -> list[str]:
        """Remarks on the numbers, one sentence each."""
        found, plain = [], "total-latency counts neither weights nor deadlines"
        given = self.instance.weights is not None or self.instance.deadlines is not None
        if self.objective != "total-latency":
            rest = f"; the objective {plain}" if given else ""
            found.append(f"Policies are ranked by {self.measure}{rest}.")
        elif given:
            found.append(f"Policies are ranked by latency: the objective {plain}.")
        if not self.comparable:
            found.append(
                "The runs completed different requests, so that their means are of different ones "
                "and no policy is the best."
            )
        elif len(self.tied) > 1:
            names = [run.policy for run in self.tied]
            found.append(f"{', '.join(names[:-1])} and {names[-1]} are equal.")
        most, why = self.attained_bound
        if most is not None:
            share = numbers.percent(most)
            found.append(f"No scheduler has more than {share} within {self.goodput}.")
        elif self.goodput is not None:
            found.append(f"No bound on the share within {self.goodput} is known: {why}.")
        reasons: dict[str, list[str]] = {}
        for run in self if self.bounds else ():
            if why := self.covering(run)[1]:
                reasons.setdefault(why, []).append(run.policy)
        return found + [f"No gap of {', '.join(names)}: {why}." for why, names in reasons.items()]

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in the order in which they were asked for."""
        return list(self.runs_by_policy)

    @property
    def references(self) -> list[str]:
        """Names of the policies that know the outputs beside others that know intervals only."""
        if self.intervals in (None, "exact"):
            return []
        told = [run.policy for run in self if run.knows == "outputs"]
        return told if len(told) < len(self) else []

    @property
    def best(self) -> AnyRun:
        """The first of `ranked`: never a reference beside other policies."""
        return self.ranked()[0]

    @property
    def best_deployable(self) -> AnyRun | None:
        """The best of those that are told no outputs; None if there is none."""
        able = (run for run in self.ranked() if run.knows != "outputs")
        return next(able, None) if self.comparable else None

    @property
    def margin(self) -> JSON | None:
        """How much longer latencies of the best deployable policy are than those by arrival.

        They are weighted where the objective is. "against" is "vllm", "fcfs", or the next best that
        can be deployed. The mean difference has a 95 % interval by Student's t over the consecutive
        tenths of the log, paired, as if these were independent, and together with those to all
        other such policies (Bonferroni); "p99" are those of both. None without arrivals, with fewer
        than 100 requests, or for an objective that is no latency.
        """
        able = [run for run in self.ranked() if run.knows != "outputs"] if self.comparable else []
        others = [run for run in able[1:] if not run.unfinished]
        known = [run for name in _BY_ARRIVAL for run in others if run.policy == name]
        few = len(self.instance) < 10 * _PARTS or not self.instance.arrivals.any()
        if not others or few or "latency" not in self.objective:
            return None
        best, other = able[0], (known or others)[0]
        parts = np.array_split(self._weighted(best) - self._weighted(other), _PARTS)
        tails = [float(np.percentile(run.latencies, 99)) for run in (best, other)]
        risk = (1 - numbers.CONFIDENCE) / (len(able) - 1)  # against any of the others
        found = numbers.ConfidenceInterval.of(np.array([part.mean() for part in parts]), 1 - risk)
        return {"against": other.policy, **found.to_dict(), "p99": tails}

    @property
    def with_rough_forecasts(self) -> JSON | None:
        """Mean and p99 latency of the best policy, told outputs, and told forecasts in their place.

        Another objective stands beside them. The logarithm of these forecasts has a normal error of
        a standard deviation "log_error". None where the best policy is told no outputs, or can only
        be told the true ones.
        """
        if self.rough is None:
            return None
        sides = self[self.rough.policy], self.rough
        return {
            "policy": self.rough.policy,
            "log_error": ROUGH,
            "mean_latency": [run.mean_latency for run in sides],
            self.metric: [self._rank(run)[1] for run in sides],
            "p99_latency": [float(np.percentile(run.latencies, 99)) for run in sides],
        }

    @property
    def headline(self) -> list[str]:
        """Which policy is the best that can be deployed, and what true outputs would give."""
        if not self.comparable:
            return []
        total, unit = self.objective == "total-latency", self.unit and f" {self.unit}"
        rows = [(run.policy, run.knows, self._rank(run)[1]) for run in sorted(self, key=self._rank)]
        measure = "mean latency" if total else self.measure
        found = deployable(rows, lambda value: f"{numbers.number(value)}{unit}", measure=measure)
        if found and (rough := self.with_rough_forecasts) is not None:
            found[-1] = with_rough(found[-1], rough, unit, self.metric)
        if (margin := self.margin) is not None and margin["mean"]:
            less, least, most = (
                f"{numbers.number(abs(margin[end]))}{unit} {'more' if margin[end] > 0 else 'less'}"
                for end in ("mean", "high", "low")
            )
            tails = [numbers.number(tail) for tail in margin["p99"]]
            found.insert(
                1,
                f"{'That' if total else 'Per request that'} is {less} than with "
                f"{margin['against']} ({least} to {most}, with 95 % confidence if the tenths of "
                f"the log are independent); its p99{'' if total else ' latency'} is "
                f"{tails[0]}{unit}, that of {margin['against']} {tails[1]}.",
            )
        if self.best_deployable is None:
            found.append(
                f"Add {self._untold} to the policies, which is told nothing, to see what can be."
            )
        return found

    @property
    def comparable(self) -> bool:
        """Whether all runs of a trace completed the same requests, and means say which is best."""
        return not any(
            any(run.unfinished for run in trace) and len({_served(run) for run in trace}) > 1
            for trace in zip(*self.runs_by_policy.values(), strict=False)
        )

    @property
    def tied(self) -> list[AnyRun]:
        """The best run, and those that equal it up to rounding."""
        best, (unfinished, least, _) = self.best, self._rank(self.best)
        others = [run for run in self.ranked() if run.policy not in self.references]
        equal = [run for run in others if math.isclose(self._rank(run)[1], least, rel_tol=ROUNDING)]
        known = math.isfinite(least)
        return [run for run in equal if known and run.unfinished == unfinished] or [best]

    def ranked(self) -> list[AnyRun]:
        """Return the runs by unfinished requests, then the objective; references come last."""
        references = self.references

        def place(run: Run) -> tuple[bool, int, float, float]:
            return run.policy in references, *self._rank(run)

        return sorted(self, key=place)

    def __getitem__(self, policy: str) -> AnyRun:
        if policy not in self.runs_by_policy:
            raise PolicyError(
                f"policy {policy!r} did not run: {nearest(str(policy), self.runs_by_policy)}"
            )
        return self.runs_by_policy[policy][0]

    def __iter__(self) -> Iterator[AnyRun]:
        return (runs[0] for runs in self.runs_by_policy.values())

    def __len__(self) -> int:
        return len(self.runs_by_policy)

    def __repr__(self) -> str:
        best = f": best {self.best.policy!r}" if self.comparable else ""
        return f"<{self._title} of {', '.join(self.runs_by_policy)}{best}>"

    def __str__(self) -> str:
        return "\n".join([text(self._view[0], self), *self.headline, *self.notes])

    @abstractmethod
    def to_dict(self) -> JSON:
        """Return everything but the runs as plain data; "policies" lists the metrics of each."""

    def _proven(self, *short: str) -> JSON:
        """Return the bounds as plain data, and some of what is said of the first."""
        bounds: list[JSON] = []
        for bound in self.bounds:
            entry: JSON = {"value": bound.value}
            if self.objective == "total-latency":
                mean = Fraction(bound.value) / len(self.instance)
                entry["mean_latency"] = numbers.round_down(mean)
            entry |= {"method": bound.method, "seconds": bound.seconds}
            bounds.append(entry | {"premises": bound.premises.to_dict()})
        first = {key: bounds[0][key] for key in short if key in bounds[0]} if bounds else None
        return {"objective": self.objective, "bound": first, "bounds": bounds}

    def _claim(self, run: Run) -> JSON:
        gap = self.gap(run)
        return {"gap": gap} | ({"why_no_gap": self.covering(run)[1]} if gap is None else {})

    def _entries(self, metrics: Iterable[JSON]) -> list[JSON]:
        """Add to the metrics of each run what is said alike in steps and on a clock."""
        pairs = zip(metrics, self.seconds, strict=True)
        entries = [entry | {"seconds": seconds} for entry, seconds in pairs]
        for entry in entries:
            if "missed_deadlines" in entry:
                entry["met_deadlines"] = len(self.instance) - entry["missed_deadlines"]
            if self.goodput is not None:
                run = self[entry["policy"]]
                entry["attained"] = self.goodput.attained(run, self.warm_up)
            if self.metric not in entry:
                entry[self.metric] = self.value(entry["policy"])
            if entry["policy"] in self.references:
                entry["reference"] = True
        return entries

    @cached_property
    def attained_bound(self) -> tuple[float | None, str | None]:
        """The most that any scheduler attains of `goodput`, or None and why none is known."""
        if self.goodput is None:
            return None, "no objective was given as slo"
        most: tuple[float | None, str | None] = self.goodput.most(self)
        return most

    def _leaders(self) -> JSON:
        able = self.best_deployable
        most, why = self.attained_bound
        attained = {} if self.goodput is None else {"attained_bound": most}
        return {
            **(attained | ({"why_no_bound": why} if attained and why else {})),
            "best": self.best.policy if self.comparable else None,
            "best_deployable": None if able is None else able.policy,
            "margin": self.margin,
            "with_rough_forecasts": self.with_rough_forecasts,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per policy, with columns as the entries under "policies" in `to_dict`."""
        frame = data_frame(self.to_dict()["policies"]).set_index("policy")
        return frame.drop(columns="intervals", errors="ignore")


@dataclass(frozen=True, eq=False, repr=False)
class StepComparison(Comparison["Execution", "Bound"]):
    """Runs in steps, with the bounds that cover them."""

    bounds: tuple[Bound, ...] = ()
    incomplete: tuple[Execution, ...] = ()
    rough: Execution | None = None
    objective: ScheduleObjective = _PLAIN
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
    objective: ScheduleObjective = _PLAIN
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


def with_rough(sentence: str, rough: JSON, unit: str, metric: str = "mean_latency") -> str:
    """Return a sentence on a policy that is told outputs, with what rough forecasts make of it."""
    who = "it" if sentence.startswith(rough["policy"]) else rough["policy"]
    value, told, tail = map(numbers.number, (rough[metric][1], *rough["p99_latency"]))
    p99 = f", and a p99 of {tail}{unit} in place of {told}{unit}" * (metric == "mean_latency")
    return (
        f"{sentence[:-1]}; with rough forecasts (log-error {rough['log_error']}) {who} has "
        f"{value}{unit}{p99}."
    )


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


def _served(run: Run) -> bytes | frozenset[str]:
    """Return which requests a run completed; turns come in another order in each."""
    labels, done = run.instance.labels, run.completed
    return done.tobytes() if labels is None else frozenset(np.array(labels)[done].tolist())


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
