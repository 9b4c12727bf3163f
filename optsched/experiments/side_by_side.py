"""Runs of several policies side by side: ranked, bounded, and what is to be said of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from optsched._internal import numbers
from optsched._internal.imports import data_frame
from optsched._internal.views import View, text
from optsched.errors import PolicyError, nearest
from optsched.problem.costs import schedule_cost, weights_of
from optsched.problem.forecasts import ROUGH
from optsched.problem.premises import deployable, strongest
from optsched.problem.schedule import Schedule, Started

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import typing_extensions

    from optsched._internal.arrays import FloatArray
    from optsched._internal.files import JSON
    from optsched.bounds.ascent import Bound
    from optsched.bounds.bound import ClockBound
    from optsched.clock import Clock
    from optsched.problem.costs import ScheduleObjective
    from optsched.problem.execution import Execution, Run
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Claim
    from optsched.problem.workers import Cluster
    from optsched.simulate import RunSettings

    # With defaults, `Comparison` alone is one of any runs.
    AnyRun = typing_extensions.TypeVar("AnyRun", bound=Run, default=Run, covariant=True)
    AnyBound = typing_extensions.TypeVar(
        "AnyBound", bound=Bound | ClockBound, default=Bound | ClockBound, covariant=True
    )
else:
    AnyRun, AnyBound = TypeVar("AnyRun"), TypeVar("AnyBound")

_PARTS = 10  # of a log, by which the difference of two policies is sure
_BY_ARRIVAL = ("vllm", "fcfs")
PLAIN: ScheduleObjective = "total-latency"
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
    objective = PLAIN
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
        if self.goodput is not None:
            found.append(self._within())
        reasons: dict[str, list[str]] = {}
        for run in self if self.bounds else ():
            if why := self.covering(run)[1]:
                reasons.setdefault(why, []).append(run.policy)
        return found + [f"No gap of {', '.join(names)}: {why}." for why, names in reasons.items()]

    def _within(self) -> str:
        """Say which policies have most requests within the objectives, and what none exceeds."""
        share = {run.policy: self.goodput.attained(run, self.warm_up) for run in self}
        able = [run.policy for run in self if run.knows != "outputs"]
        leaders = dict.fromkeys(max(some, key=share.__getitem__) for some in (share, able) if some)
        said = [f"{name} has {numbers.proven(100 * share[name], decimals=1)}%" for name in leaders]
        most, why = self.attained_bound
        if most is None:
            bound = f"no bound on it is known: {why}"
        elif most < 1:
            bound = f"no scheduler has more than {numbers.percent(most)}"
        else:
            bound = "no limit below 100% is proven"
        return f"Within {self.goodput}, {' and '.join(said)}; {bound}."

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
            chance = ", which may be chance" if margin["low"] <= 0 <= margin["high"] else ""
            found.insert(
                1,
                f"{'That' if total else 'Per request that'} is {less} than with "
                f"{margin['against']}{chance} ({least} to {most}, with 95 % confidence if the "
                f"tenths of the log are independent); its p99{'' if total else ' latency'} is "
                f"{tails[0]}{unit}, that of {margin['against']} {tails[1]}.",
            )
        if self.best_deployable is None:
            found.append(
                f"Add {self._untold} to the policies: it is told nothing, and shows what can be "
                "deployed."
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


def with_rough(sentence: str, rough: JSON, unit: str, metric: str = "mean_latency") -> str:
    """Return a sentence on a policy that is told outputs, with what rough forecasts make of it."""
    who = "it" if sentence.startswith(rough["policy"]) else rough["policy"]
    value, told, tail = map(numbers.number, (rough[metric][1], *rough["p99_latency"]))
    p99 = f", and a p99 of {tail}{unit} in place of {told}{unit}" * (metric == "mean_latency")
    return (
        f"{sentence[:-1]}; with rough forecasts (log-error {rough['log_error']}) {who} has "
        f"{value}{unit}{p99}."
    )


def _served(run: Run) -> bytes | frozenset[str]:
    """Return which requests a run completed; turns come in another order in each."""
    labels, done = run.instance.labels, run.completed
    return done.tobytes() if labels is None else frozenset(np.array(labels)[done].tolist())
