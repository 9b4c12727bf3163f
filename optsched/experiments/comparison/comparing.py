"""`optsched.compare`: policies on the same requests, in steps, on a clock or on a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import checked
from optsched._internal.loading import stopwatch
from optsched.bounds.bound import ClockBound
from optsched.errors import InstanceError, OptschedError, PolicyError, ScheduleError, require
from optsched.experiments.comparison.cluster import ClusterComparison
from optsched.experiments.comparison.replications import Replications
from optsched.experiments.comparison.result import Comparison
from optsched.policies import get_policies, is_shipped
from optsched.problem.execution import Execution
from optsched.problem.instance import Instance
from optsched.simulate import run
from optsched.simulate.cluster.results import ClusterRun
from optsched.simulate.cluster.routing import ROUTINGS, BalanceRouting, get_routings
from optsched.simulate.cluster.run import prepared as prepared_on_cluster
from optsched.simulate.dispatch import check_beliefs, prepared
from optsched.simulate.runners import raise_if_interrupted
from optsched.simulate.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.bounds.one_worker import Bound
    from optsched.problem.cluster import Cluster
    from optsched.problem.execution import Run
    from optsched.simulate import RunSettings
    from optsched.simulate.cluster.routing import Routing

#: What is compared where policies may only know intervals and none are named.
UNDER_INTERVALS = ("h-sf", "a-max", "a-min", "area-lower", "area-posterior", "area-chance")
_ON_CLUSTER = ("fcfs", "jsq", "lpt", "bf-io")
_FEW = Instance([9] * 4, [2, 3, 2, 3], 4096, [0, 1, 2, 3], seconds_per_step=1.0)
_LOADED: set[tuple[Any, ...]] = set()  # names of policies, and in what world


@checked(PolicyError)
def compare(
    instance: Any,
    policies: Any = None,
    settings: RunSettings | None = None,
    *,
    bound: Bound | ClockBound | None = None,
    warm_up: float | None = None,
    on_result: Callable[[Any, float], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Any:
    """Run policies on the same requests, and compare them with each other and a proven bound.

    Parameters
    ----------
    instance
        The requests; or a list of instances, such as a family under several seeds, each run with a
        seed of its own.
    policies
        A name, a policy object, a function (as for `run`), or a list of them. None: the basic
        ones, which take milliseconds; under intervals those that need no outputs; on a clock
        "work" and "mixed" beside the basic ones; on a cluster "fcfs", "jsq", "lpt" and "bf-io".
    settings
        How they are run; None: in steps. Policies that do not ask what is likely run without the
        beliefs, and one of them at least must ask.
    bound
        A bound that was found before; None finds one, except for clocks that are functions.
    warm_up
        On a clock the time before which arrivals and completions do not count in the metrics; on a
        cluster the steps left out of averages (None: 300, or a quarter of a shorter run).
    on_result
        Called with each run as it completes, and the seconds that it took.
    on_progress
        As for `run`, called by each run.
    **options
        Fields of `RunSettings` but `workers` and `router`, instead of settings, or to replace some
        of theirs.

    Returns
    -------
    Comparison
        All runs, those in steps checked for feasibility; those that never complete are listed
        apart. For several instances `optsched.experiments.comparison.Replications`: means with
        confidence intervals, paired differences, and a `Comparison` of each.

    Raises
    ------
    PolicyError
        If a policy is unknown, given twice, may know too little or too much, or none completes.
    ScheduleError
        If a policy of your own made an infeasible schedule.

    Examples
    --------
    >>> from optsched import Cluster, Instance, compare
    >>> comparison = compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> comparison.best.policy, comparison["mc-sf"].total_latency
    ('mc-sf-total', 64)
    >>> round(comparison.gap("mc-sf-total"), 3)
    0.044
    >>> timed = compare(Instance([62, 62], [2, 1], 64), clock="affine:0.01,0.001")
    >>> timed.best.policy, round(timed.best.mean_latency, 4)
    ('mc-sf', 0.1465)
    >>> requests = Instance([9, 1, 8, 2], [2, 2, 2, 2], memory=99)
    >>> compare(requests, ["fcfs", "lpt"], cluster=Cluster(2, 2)).best.policy
    'lpt'
    """
    settings = settings_of(settings, options, "compare")
    if settings.workers is not None:
        raise PolicyError(
            "compare has no workers or router: optsched.routing_loss compares routers and policies "
            "on several workers, with the best placement and order too"
        )
    clustered = settings.cluster is not None
    traces = _traces(instance)
    if not clustered and not isinstance(instance, Instance):
        known: Any = {"bound": bound, "warm_up": warm_up, "on_result": on_result}
        policies = compared(policies, settings)
        parts = [
            compare(trace, policies, settings, on_progress=on_progress, **known, seed=seed)
            for seed, trace in enumerate(traces, settings.seed)
        ]
        return Replications(tuple(parts))
    _check_bound(bound, traces[0], settings)
    warm_up = _warm_up(warm_up, settings)
    chosen = compared(policies, settings)
    for trace in traces:
        for policy in chosen:
            if clustered:
                prepared_on_cluster(trace, policy, settings)
            else:
                prepared(trace, policy, settings.of(policy))
    if not clustered:
        check_beliefs(chosen, settings)
    runs: dict[str, list[Any]] = {}
    times: list[float] = []
    incomplete: list[Execution] = []
    for number, trace in enumerate(traces):
        for policy in chosen:
            own = settings if clustered else settings.of(policy)
            _load(policy, settings)
            began = stopwatch()
            found = run(trace, policy, own, seed=settings.seed + number, on_progress=on_progress)
            seconds = found.seconds if isinstance(found, ClusterRun) else stopwatch() - began
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
        raise PolicyError(
            f"no policy completes all requests; policy {incomplete[0].policy!r}: its run "
            f"{incomplete[0].why}"
        )
    kind = ClusterComparison if clustered else Comparison
    result = kind(runs, tuple(times), settings, warm_up, incomplete=tuple(incomplete))
    if traces[0].follows is not None:
        result = replace(result, turns=True)
    return result.bounded(bound)


def compare_lookaheads(
    instances: Instance | Iterable[Instance],
    cluster: Cluster,
    lookaheads: Iterable[int] = (0, 1, 2, 5, 10, 20, 40, 80),
    baselines: Sequence[str | Routing] = ("fcfs",),
    **options: Any,
) -> ClusterComparison:
    """Run BF-IO with several lookaheads beside baselines on the same traces (BF-IO Figure 4)."""
    routings = [BalanceRouting(lookahead=h, name=f"bf-io H={h}") for h in lookaheads]
    found: ClusterComparison = compare(
        instances, [*baselines, *routings], cluster=cluster, **options
    )
    return found


def _load(policy: Any, settings: RunSettings) -> None:
    """Run a few requests by a policy of ours, once, so that the next run has nothing to load."""
    known = policy.name, settings.rule, settings.clock is None, settings.cluster is None
    own = getattr(settings.clock, "coefficients", ()) is None
    if known in _LOADED or own or not (is_shipped(policy.name) or policy.name in ROUTINGS):
        return
    _LOADED.add(known)
    intervals = None if settings.intervals is None else "exact"
    few = replace(settings, beliefs=None, intervals=intervals, until=inf, steps=None, drain=False)
    with suppress(OptschedError):  # which the run itself meets, or not
        raise_if_interrupted(run(_FEW, policy, few))


def _traces(instance: Any) -> list[Instance]:
    several = isinstance(instance, Iterable) and not isinstance(instance, str)
    traces = list(instance) if several else [instance]
    for trace in traces:
        require(trace, Instance, "one of the instances", "an Instance", InstanceError)
    if not traces:
        raise InstanceError("there is no instance to compare policies on")
    return traces


def _check_bound(
    bound: Bound | ClockBound | None, instance: Instance, settings: RunSettings
) -> None:
    """Refuse a bound that was found for other requests, or for another kind of time."""
    if bound is None:
        return
    if settings.cluster is not None:
        raise PolicyError("bound is for one worker; leave it or the cluster out")
    if isinstance(bound, ClockBound) != (settings.clock is not None):
        raise PolicyError(
            f"bound is a {type(bound).__name__}, of another kind of time than this comparison; "
            "find one with optsched.bound and the same clock, or leave it out"
        )
    if bound.premises.fingerprint != instance.fingerprint:
        raise PolicyError(
            f"the bound of {bound.value:g} is of another instance than {instance.name!r}; leave it "
            "out, or find it with bound(instance)"
        )


def _warm_up(warm_up: float | None, settings: RunSettings) -> Any:
    """Return what is left out of the metrics, or refuse what cannot be."""
    if settings.cluster is None:
        if warm_up is not None and settings.clock is None:
            raise PolicyError(
                f"warm_up is {warm_up:g}, but is for runs on a clock or a cluster; leave it out"
            )
        if not 0 <= (warm_up or 0.0) < settings.until:
            raise PolicyError(
                f"warm_up is {warm_up:g}, but must be a time from 0 to the end of the run"
            )
        return warm_up or 0.0
    longest = inf if settings.steps is None or settings.drain else settings.steps
    if warm_up is not None and not 0 <= warm_up < longest:
        raise InstanceError(
            f"warm_up is {warm_up}, but must be a number of steps from 0 that the run passes; "
            "leave it out, or give more steps"
        )
    return warm_up


def compared(policies: Any, settings: RunSettings) -> Sequence[Any]:
    """Return the policies that are named, or those that are quick and know enough."""
    if settings.cluster is not None:
        policies = _ON_CLUSTER if policies is None else policies
        several = hasattr(policies, "__iter__") and not isinstance(policies, str)
        return get_routings(policies if several else [policies])
    if policies is not None:
        return get_policies(policies)
    timed = settings.clock is not None
    if settings.intervals and not timed:
        return get_policies(UNDER_INTERVALS)
    prefix = settings.rule == "prefix"
    basic = [each for each in get_policies() if prefix or "+" not in each.name]
    return [*basic, *get_policies(["work", "mixed"])] if timed else basic


def _check(found: Run, warm_up: Any) -> None:
    """Refuse an infeasible schedule, and too short a run on a cluster."""
    if isinstance(found, ClusterRun):
        found.metrics(warm_up)
    # No policy knows of deadlines; metrics count those that were missed.
    if isinstance(found, Execution) and (broken := found.check()):
        raise ScheduleError(f"policy {found.policy!r} is infeasible: {broken[0]}")
