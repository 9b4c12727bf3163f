"""Policies side by side, on one instance or on several."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from optsched import errors
from optsched._internal import rooms
from optsched._internal.arguments import checked
from optsched._internal.aside import stopwatch
from optsched._internal.imports import data_frame
from optsched._internal.numbers import CONFIDENCE, ConfidenceInterval, number
from optsched._internal.views import View, text
from optsched.bounds.bound import ClockBound
from optsched.experiments.results import ClusterComparison, StepComparison, beside
from optsched.experiments.side_by_side import with_rough
from optsched.policies import Policy, get_policies, is_shipped
from optsched.policies.registry import takes_forecasts
from optsched.problem.costs import SCHEDULE_OBJECTIVES, check_due
from optsched.problem.execution import Execution
from optsched.problem.forecasts import rough_forecasts
from optsched.problem.instance import Instance
from optsched.problem.premises import KNOWLEDGE, deployable
from optsched.problem.work import due_times
from optsched.simulate import run
from optsched.simulate.cluster.results import ClusterRun
from optsched.simulate.cluster.routing import ROUTINGS, BalanceRouting, get_routings
from optsched.simulate.dispatch import check_beliefs, prepared
from optsched.simulate.runners import raise_if_interrupted
from optsched.simulate.settings import RunOptions, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias, Unpack

    import pandas as pd

    from optsched._internal.arrays import FloatArray
    from optsched._internal.files import JSON
    from optsched.bounds.ascent import Bound
    from optsched.experiments.results import ClockComparison
    from optsched.experiments.side_by_side import AnyRun, Comparison
    from optsched.policies.registry import PolicyLike
    from optsched.problem.costs import ScheduleObjective
    from optsched.problem.execution import Run
    from optsched.problem.premises import Knowledge
    from optsched.problem.workers import Cluster
    from optsched.simulate import RunSettings
    from optsched.simulate.cluster.routing import Routing
    from optsched.simulate.settings import AnyClock

    Chosen: TypeAlias = Sequence[Policy | Routing]
    Instances: TypeAlias = Instance | Iterable[Instance]
    OnProgress: TypeAlias = Callable[[int, int], None] | None
    Policies: TypeAlias = PolicyLike | Iterable[PolicyLike] | None
    Routings: TypeAlias = str | Routing | Iterable[str | Routing] | None


@dataclass(frozen=True, eq=False, repr=False)
class Replications(View):
    """Policies on several instances: means with intervals by Student's t, paired differences, gaps.

    Intervals hold as if the instances were independent draws. All policies see the same instances,
    so that shared randomness cancels out of their differences.

    Attributes
    ----------
    parts
        A `Comparison` for each instance, with bounds and gaps of its own.
    baseline
        The policy that differences are to; None: that of the least mean.
    """

    parts: tuple[Comparison, ...]
    baseline: str | None = None
    _view = ("means_table", "plot_means", "summary_page")

    def __post_init__(self) -> None:
        if not self.policies:
            raise errors.PolicyError(
                f"no policy completes all requests of all {len(self.parts)} instances; leave out "
                "the instances, or the policies, that do not go together"
            )
        if self.baseline is not None:
            self._known(self.baseline)

    @cached_property
    def policies(self) -> list[str]:
        """Names of the policies that completed the requests of all instances."""
        there = [set(part.policies) for part in self.parts]
        names = dict.fromkeys(name for part in self.parts for name in part.policies)
        return [name for name in names if all(name in each for each in there)]

    @cached_property
    def _entries(self) -> list[dict[str, JSON]]:
        contents = [part.to_dict() for part in self.parts]
        return [{entry["policy"]: entry for entry in each["policies"]} for each in contents]

    def against(self, policy: str) -> Replications:
        """Return the same with differences to this policy."""
        return replace(self, baseline=policy)

    @property
    def metric(self) -> str:
        """What the policies are ranked by, and differences are of, as in `Comparison.to_dict`."""
        return self.parts[0].metric

    @property
    def unit(self) -> str:
        """Unit of the metric; empty for what is counted."""
        return self.parts[0].unit

    @property
    def _measure(self) -> str:
        return self.metric.replace("_", " ")

    def values(self, policy: str, metric: str | None = None) -> FloatArray:
        """Return a metric of a policy, as in `Comparison.to_dict`, one number per instance."""
        rows = [entries[self._known(policy)] for entries in self._entries]
        metric = self.metric if metric is None else metric
        if not all(isinstance(row.get(metric, ""), int | float | None) for row in rows):
            known = [key for key, value in rows[0].items() if isinstance(value, int | float)]
            raise errors.PolicyError(
                f"there is no metric {metric!r}: {errors.nearest(metric, known)}"
            )
        return np.array([row[metric] for row in rows], dtype=np.float64)

    def mean(self, policy: str, metric: str | None = None) -> ConfidenceInterval:
        """Return the mean of a metric over the instances, with its 95 % confidence interval."""
        return ConfidenceInterval.of(self.values(policy, metric))

    def difference(self, policy: str, other: str, metric: str | None = None) -> ConfidenceInterval:
        """Return how much larger a metric is than that of another policy, paired by instance.

        Intervals of all policies against the same one hold together (95 %, Bonferroni).
        """
        risk = (1 - CONFIDENCE) / max(1, len(self.policies) - 1)
        return ConfidenceInterval.of(
            self.values(policy, metric) - self.values(other, metric), 1 - risk
        )

    @property
    def _candidates(self) -> list[str]:
        references = self.parts[0].references
        return [name for name in self.policies if name not in references] or self.policies

    def knows(self, policy: str) -> Knowledge:
        """Return what a policy was told of outputs, in that instance where it was told most."""
        told = (part[self._known(policy)].knows for part in self.parts)
        return min(filter(None, told), key=KNOWLEDGE.index)

    @property
    def least(self) -> str:
        """The policy of the least mean, which need not be the best one."""
        return min(self._candidates, key=lambda name: self.mean(name).mean)

    @cached_property
    def leading(self) -> list[str]:
        """Policies that may be the best: none is shown to be worse than that of the least mean."""
        return self._leading(self._candidates)

    def _leading(self, names: list[str]) -> list[str]:
        least = min(names, key=lambda name: self.mean(name).mean)
        return [name for name in names if not self.difference(name, least).low > 0]

    @property
    def _different(self) -> int:
        return len({part.instance.fingerprint for part in self.parts})

    @property
    def best(self) -> str | None:
        """The policy that is shown to have the least mean; None where none is."""
        return self._best(self._candidates)

    @property
    def best_deployable(self) -> str | None:
        """The same of those that are told no outputs."""
        return self._best([name for name in self.policies if self.knows(name) != "outputs"])

    def _best(self, names: list[str]) -> str | None:
        leading = self._leading(names) if names else []
        shown = len(leading) == 1 and 1 < len(self.parts) == self._different
        return leading[0] if shown and all(part.comparable for part in self.parts) else None

    @property
    def with_rough_forecasts(self) -> JSON | None:
        """The means of those of `parts`, where each has some of the policy of the least mean."""
        found = [part.with_rough_forecasts or {} for part in self.parts]
        if any(each.get("policy") != self.least for each in found):
            return None
        keys = dict.fromkeys(("mean_latency", self.metric, "p99_latency"))
        means = (np.mean([each[key] for each in found], axis=0).tolist() for key in keys)
        return found[0] | dict(zip(keys, means, strict=True))

    @property
    def _count(self) -> str:
        return f"{len(self)} instance{'s' * (len(self) > 1)}"

    @property
    def title(self) -> str:
        """What was compared."""
        return f"{len(self.policies)} policies on {self._count}"

    @property
    def caption(self) -> str:
        """What the columns of the table are."""
        return (
            f"{self._measure}{self.unit and f' in {self.unit}'} over "
            f"{self._count}, with the 95 % confidence interval by Student's t; difference to "
            f"{self.baseline or self.least}: paired by instance, intervals that hold together; "
            "gap to the proven bound of each instance"
        )

    @property
    def notes(self) -> list[str]:
        """What the numbers say, one sentence each."""
        count, rest = len(self.parts), [each for each in self.leading if each != self.least]
        if not all(part.comparable for part in self.parts):
            found = ["Runs completed different requests, so that no policy is the best."]
        elif self._different < count:
            found = [
                f"Only {self._different} of the {count} instances differ, so that intervals say "
                "less about other instances than they seem to, and no policy is called the best."
            ]
        elif count == 1:
            found = ["One instance has no intervals; pass several, such as a family under seeds."]
        elif not rest:
            found = [f"{self.least} is the best: shown with 95 % confidence."]
        else:
            found = [
                f"{self.least} has the least mean of these instances, but {', '.join(rest)} may be "
                "as good; more instances may tell them apart."
            ]
        if all(part.comparable for part in self.parts):
            rows = [(row["policy"], row["knows"], row[self.metric]["mean"]) for row in self.means]
            said = deployable(rows, number, measure=self._measure)
            if said and (rough := self.with_rough_forecasts) is not None:
                said[-1] = with_rough(said[-1], rough, "", self.metric)
            found += said
        missing = dict.fromkeys(run.policy for part in self.parts for run in part.incomplete)
        return found + [f"{name} does not complete all requests everywhere." for name in missing]

    def _known(self, policy: str) -> str:
        if policy not in self.policies:
            raise errors.PolicyError(
                f"policy {policy!r} did not run: {errors.nearest(policy, self.policies)}"
            )
        return policy

    @property
    def means(self) -> list[JSON]:
        """One row per policy, the least first; gaps are None unless all instances have a bound."""
        return [
            self._summary(name)
            for name in sorted(self.policies, key=lambda name: self.mean(name).mean)
        ]

    def _summary(self, policy: str) -> JSON:
        gaps = [entries[policy]["gap"] for entries in self._entries]
        proven = all(gap is not None for gap in gaps)
        baseline = self.baseline or self.least
        against = None if policy == baseline else self.difference(policy, baseline).to_dict()
        return {
            "policy": policy,
            "knows": self.knows(policy),
            **{key: self.mean(policy, key).to_dict() for key in ("mean_latency", self.metric)},
            "difference": against,
            "gap": sum(gaps) / len(gaps) if proven else None,
            "largest_gap": max(gaps) if proven else None,
        }

    def to_dict(self) -> JSON:
        """Return everything but the runs as plain data: "instances" with bounds and premises."""
        return {
            "instances": [part.to_dict() for part in self.parts],
            "confidence": CONFIDENCE,
            "baseline": self.baseline or self.least,
            "least": self.least,
            "leading": self.leading,
            "best": self.best,
            "best_deployable": self.best_deployable,
            "with_rough_forecasts": self.with_rough_forecasts,
            "policies": self.means,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per instance and policy, with the columns of `Comparison.to_pandas`."""
        rows = [
            {"instance": number, "fingerprint": part.instance.fingerprint, **entries[name]}
            for number, (part, entries) in enumerate(zip(self.parts, self._entries, strict=True))
            for name in self.policies
        ]
        return data_frame(rows).set_index(["instance", "policy"])

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        best = f": best {self.best!r}" if self.best else ""
        return f"<Replications of {', '.join(self.policies)} on {self._count}{best}>"

    def __str__(self) -> str:
        return "\n".join([text("means_table", self), *self.notes])


#: What is compared where policies may only know intervals and none are named.
UNDER_INTERVALS = ("h-sf", "a-max", "a-min", "area-lower", "area-posterior", "area-chance")
_ON_CLUSTER = ("fcfs", "jsq", "lpt", "bf-io")
_FEW = Instance([9] * 4, [2, 3, 2, 3], 4096, [0, 1, 2, 3], seconds_per_step=1.0)
_LOADED: set[tuple[str, str, bool, bool]] = set()  # names of policies, and in what world


class Options(RunOptions, total=False):
    """What `compare` takes as keywords in all worlds."""

    bound: Bound | ClockBound | None
    objective: ScheduleObjective | None
    slo: object
    warm_up: float | None
    on_result: Callable[[Run, float], None] | None


class ClockOptions(Options, total=False):
    """The same on one worker, in steps or on a clock."""

    clock: AnyClock | None


class WorldOptions(ClockOptions, total=False):
    """The same in any world."""

    cluster: Cluster | None


@overload
def compare(
    instance: Instance, policies: Policies = None, **options: Unpack[Options]
) -> StepComparison: ...
@overload
def compare(
    instance: Instance, policies: Policies = None, *, clock: AnyClock, **options: Unpack[Options]
) -> ClockComparison: ...
@overload
def compare(
    instance: Instances, policies: Routings = None, *, cluster: Cluster, **options: Unpack[Options]
) -> ClusterComparison: ...
@overload
def compare(
    instance: Iterable[Instance], policies: Policies = None, **options: Unpack[ClockOptions]
) -> Replications: ...
@overload
def compare(
    instance: Instance,
    policies: Policies | Routings = None,
    settings: RunSettings | None = None,
    **options: Unpack[WorldOptions],
) -> Comparison: ...
@overload
def compare(
    instance: Instances,
    policies: Policies | Routings = None,
    settings: RunSettings | None = None,
    **options: Unpack[WorldOptions],
) -> Comparison | Replications: ...
@checked(errors.PolicyError)
def compare(
    instance: Instances,
    policies: Any = None,
    settings: RunSettings | None = None,
    *,
    bound: Bound | ClockBound | None = None,
    objective: ScheduleObjective | None = None,
    slo: object = None,
    warm_up: float | None = None,
    on_result: Callable[[Run, float], None] | None = None,
    on_progress: OnProgress = None,
    **options: object,
) -> Comparison | Replications:
    """Run policies on the same requests, and compare them with each other and a proven bound.

    Parameters
    ----------
    instance
        The requests; or a list of instances, such as a family under several seeds, each run with a
        seed of its own.
    policies
        A name, a policy object, a function (as for `run`), or a list of them. None: the basic ones,
        which take milliseconds, and "alpha-beta-clearing", which is told nothing; under intervals
        those that need no outputs; on a clock "work" and "mixed" too; where requests have deadlines
        "edf"; on a cluster "fcfs", "jsq", "lpt" and "bf-io".
    settings
        How they are run; None: in steps. Beliefs are for policies that ask what is likely, at least
        one of which must be there.
    bound
        A bound that was found before; None finds one, except for clocks that are functions.
    objective
        What policies are ranked and bounded by: "total-latency", "weighted-latency", "makespan" or,
        in steps, "late-requests", by weights where there are any; of as many, the least latency is
        first. None: that of the bound, if one is given; the weighted latency where requests have
        weights; else in steps late requests where they have deadlines; else the total latency.
    slo
        Service-level objectives, texts or `Slo`, one or several: "attained" is the share of the
        requests that meet the limits of all, and "attained_bound" the most that any scheduler can
        reach. Percentiles and maxima say which limits; means are refused.
    warm_up
        On a clock the time before which nothing counts in the metrics; on a cluster the steps left
        out of averages (None: 300, or a quarter of a shorter run).
    on_result
        Called with each run as it completes, and the seconds that it took.
    on_progress
        As for `run`.
    **options
        Fields of `RunSettings` but `workers` and `router`, instead of settings or over theirs.

    Returns
    -------
    StepComparison, ClockComparison or ClusterComparison
        All runs, those in steps checked for feasibility; those that never complete are listed
        apart. For several instances on one worker `optsched.experiments.comparison.Replications`.

    Raises
    ------
    PolicyError, ScheduleError
        If a policy is unknown, given twice, or knows too little or too much; if none completes; if
        one of your own made an infeasible schedule; if nothing is known of the objective there.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> comparison = compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> comparison.best.policy, comparison["mc-sf"].total_latency
    ('mc-sf-total', 64)
    >>> round(comparison.gap("mc-sf-total"), 3)
    0.044
    >>> timed = compare(Instance([62, 62], [2, 1], 64), clock="affine:0.01,0.001")
    >>> timed.best.policy, round(timed.best.mean_latency, 4)
    ('mc-sf', 0.1465)
    """
    settings = settings_of(settings, options, "compare")
    if settings.workers is not None:
        raise errors.PolicyError(
            "compare has no workers or router: optsched.routing_loss compares routers and policies "
            "on several workers, with the best placement and order too"
        )
    traces = _traces(instance)
    of_bound = None if bound is None or settings.cluster else bound.premises.objective
    objective = objective_of(traces, settings, objective or of_bound)
    if settings.cluster is None and not isinstance(instance, Instance):
        policies = compared(policies, settings, traces)
        known: JSON = {"on_progress": on_progress, "bound": bound, "warm_up": warm_up}
        known |= {"objective": objective, "slo": slo}
        parts = [
            compare(trace, policies, settings, **known, on_result=on_result, seed=seed)
            for seed, trace in enumerate(traces, settings.seed)
        ]
        return Replications(tuple(parts))
    _check_bound(bound, traces[0], settings)
    warm_up, goodput = _warm_up(warm_up, settings), goodput_of(slo, settings)
    alone = settings.cluster is None
    chosen = compared(policies, settings, traces) if alone else _routed(policies, settings)
    _check_runs(traces, chosen, settings)
    runs: dict[str, list[Run]] = {}
    times: list[float] = []
    incomplete: list[Execution] = []
    for found, seconds in _runs(traces, chosen, settings, on_progress):
        if isinstance(found, Execution) and not found.all_complete:
            incomplete.append(found)
            continue
        _check(found, warm_up)
        runs.setdefault(found.policy, []).append(found)
        times.append(seconds)
        if on_result is not None:
            on_result(found, seconds)
        raise_if_interrupted(found)
    if not runs:
        raise errors.PolicyError(
            f"no policy completes all requests; policy {incomplete[0].policy!r}: its run "
            f"{incomplete[0].why}"
        )
    result = beside(runs, times, settings, warm_up, objective, goodput)
    if isinstance(result, ClusterComparison):
        return result
    if isinstance(result, StepComparison):
        assert not isinstance(bound, ClockBound)
        rough = _roughly(traces[0], result, chosen, on_progress)
        return replace(result, incomplete=tuple(incomplete), rough=rough).bounded(bound)
    assert bound is None or isinstance(bound, ClockBound)
    result = replace(result, rough=_roughly(traces[0], result, chosen, on_progress))
    return replace(result, turns=traces[0].follows is not None).bounded(bound)


def _roughly(
    instance: Instance, result: Comparison[AnyRun], chosen: Chosen, on_progress: OnProgress
) -> AnyRun | None:
    """Run the best policy again with rough forecasts, where it was told outputs for no need."""
    best = result.best
    # One under a rule has another name, and is an order, which needs the outputs.
    named = [each for each in chosen if isinstance(each, Policy) and each.name == best.policy]
    told = best.knows == "outputs" and any(map(takes_forecasts, named))
    if not (told and result.comparable):
        return None
    own = replace(result.settings, intervals="column", beliefs=None)
    requests = rough_forecasts(instance, own.seed)
    found: AnyRun = run(requests, named[0], own, on_progress=on_progress)
    return None if found.unfinished else found


def compare_lookaheads(
    instances: Instance | Iterable[Instance],
    cluster: Cluster,
    lookaheads: Iterable[int] = (0, 1, 2, 5, 10, 20, 40, 80),
    baselines: Sequence[str | Routing] = ("fcfs",),
    **options: Unpack[Options],
) -> ClusterComparison:
    """Run BF-IO with several lookaheads beside baselines on the same traces (BF-IO Figure 4)."""
    routings = [BalanceRouting(lookahead=h, name=f"bf-io H={h}") for h in lookaheads]
    return compare(instances, [*baselines, *routings], cluster=cluster, **options)


def _check_runs(traces: Sequence[Instance], chosen: Chosen, settings: RunSettings) -> None:
    """Refuse what cannot be run before anything is."""
    for trace, policy in itertools.product(traces, chosen):
        if isinstance(policy, Policy):
            prepared(trace, policy, settings.of(policy))
        else:
            from optsched.simulate.cluster.run import prepared as prepared_on_cluster

            prepared_on_cluster(trace, policy, settings)
    if settings.cluster is None:
        check_beliefs([each for each in chosen if isinstance(each, Policy)], settings)


def _runs(
    traces: Sequence[Instance], chosen: Chosen, settings: RunSettings, on_progress: OnProgress
) -> Iterator[tuple[Run, float]]:
    for place, trace in enumerate(traces):
        for policy in chosen:
            own = settings.of(policy) if isinstance(policy, Policy) else settings
            _load(policy, settings)
            began = stopwatch()
            found = run(trace, policy, own, seed=settings.seed + place, on_progress=on_progress)
            taken = stopwatch() - began
            yield found, found.seconds if isinstance(found, ClusterRun) else taken


def _load(policy: Policy | Routing, settings: RunSettings) -> None:
    """Run a few requests by a policy of ours, once, so that the next run has nothing to load."""
    known = policy.name, settings.rule, settings.clock is None, settings.cluster is None
    own = getattr(settings.clock, "coefficients", ()) is None
    if known in _LOADED or own or not (is_shipped(policy.name) or policy.name in ROUTINGS):
        return
    _LOADED.add(known)
    intervals = None if settings.intervals is None else "exact"
    few = replace(settings, beliefs=None, intervals=intervals, until=inf, steps=None, drain=False)
    with suppress(errors.OptschedError):  # which the run itself meets, or not
        raise_if_interrupted(run(_FEW, policy, few))


def _traces(instance: object) -> list[Instance]:
    if isinstance(instance, str) or not isinstance(instance, Iterable):
        instance = [instance]
    traces = list(instance)
    for trace in traces:
        errors.require(trace, Instance, "one of the instances", "an Instance", errors.InstanceError)
    if not traces:
        raise errors.InstanceError("there is no instance to compare policies on")
    return traces


def _check_bound(
    bound: Bound | ClockBound | None, instance: Instance, settings: RunSettings
) -> None:
    if bound is None:
        return
    if settings.cluster is not None:
        raise errors.PolicyError("bound is for one worker; leave it or the cluster out")
    if isinstance(bound, ClockBound) != (settings.clock is not None):
        raise errors.PolicyError(
            f"bound is a {type(bound).__name__}, of another kind of time than this comparison; "
            "find one with optsched.bound and the same clock, or leave it out"
        )
    if bound.premises.fingerprint != instance.fingerprint:
        raise errors.PolicyError(
            f"the bound of {bound.value:g} is of another instance than {instance.name!r}; leave it "
            "out, or find it with bound(instance)"
        )


def objective_of(
    traces: Sequence[Instance], settings: RunSettings, asked: str | None
) -> ScheduleObjective:
    """Return the objective that was asked for, or what traces suggest; refuse what there is not."""
    if asked is not None:
        errors.require_known("objective", asked, SCHEDULE_OBJECTIVES, errors.PolicyError)
    if settings.cluster is not None:
        if asked is not None:
            raise errors.PolicyError(
                f"objective is {asked!r}, but on a cluster imbalance is compared; leave it out"
            )
        return "total-latency"
    if asked is None:
        if any(trace.weights is not None for trace in traces):
            return "weighted-latency"
        due = settings.clock is None and all(trace.deadlines is not None for trace in traces)
        return "late-requests" if due else "total-latency"
    if asked == "late-requests" and settings.clock is not None:
        raise errors.PolicyError(
            "objective is 'late-requests', which is bounded in steps only; leave it out: the "
            "deadlines that are met are counted on a clock, too"
        )
    for trace in traces:
        check_due(trace, asked, "forbidden", errors.PolicyError)
    return cast("ScheduleObjective", asked)


def goodput_of(slo: object, settings: RunSettings) -> Any:
    """Return what finds shares within objectives, which is of another distribution."""
    if not slo:
        return None
    if settings.cluster is not None:
        raise errors.PolicyError(f"slo is {slo!r}, but is for one worker; leave it out")
    if "Goodput" not in rooms.names("slo"):
        raise errors.PolicyError(f"{rooms.elsewhere('slo')}")
    unit = "steps" if settings.clock is None else settings.batch_clock.unit
    return rooms.added("slo", "Goodput").of(slo, unit)


def _warm_up(warm_up: float | None, settings: RunSettings) -> float | None:
    """Return what is left out of the metrics, or refuse what cannot be."""
    if settings.cluster is None:
        if warm_up is not None and settings.clock is None:
            raise errors.PolicyError(
                f"warm_up is {warm_up:g}, but is for runs on a clock or a cluster; leave it out"
            )
        if not 0 <= (warm_up or 0.0) < settings.until:
            raise errors.PolicyError(
                f"warm_up is {warm_up:g}, but must be a time from 0 to the end of the run"
            )
        return warm_up or 0.0
    longest = inf if settings.steps is None or settings.drain else settings.steps
    if warm_up is not None and not 0 <= warm_up < longest:
        raise errors.InstanceError(
            f"warm_up is {warm_up}, but must be a number of steps from 0 that the run passes; "
            "leave it out, or give more steps"
        )
    return warm_up


def _routed(policies: Routings, settings: RunSettings) -> list[Routing]:
    policies = _ON_CLUSTER if policies is None else policies
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        policies = [policies]
    return get_routings(policies)


def compared(policies: Policies, settings: RunSettings, traces: Sequence[Instance]) -> list[Policy]:
    """Return the policies that are named, or those that are quick and know enough."""
    if policies is not None:
        return get_policies(policies)
    timed = settings.clock is not None
    if settings.intervals and not timed:
        return get_policies(UNDER_INTERVALS)
    prefix = settings.rule == "prefix"
    basic = [each for each in get_policies() if prefix or "+" not in each.name]
    # With one that is told nothing and completes all: an answer is one that can be deployed.
    more = ["work", "mixed"] if timed else ["alpha-beta-clearing"] * prefix
    dated = all(due_times(each, settings.batch_clock) is not None for each in traces)
    more += ["edf"] * dated
    return [*basic, *get_policies(more)] if more else basic


def _check(found: Run, warm_up: float | None) -> None:
    """Refuse an infeasible schedule, and too short a run on a cluster."""
    if isinstance(found, ClusterRun):
        found.metrics(warm_up)
    # No policy has to meet deadlines; metrics count those that were missed.
    if isinstance(found, Execution) and (broken := found.check()):
        raise errors.ScheduleError(f"policy {found.policy!r} is infeasible: {broken[0]}")
