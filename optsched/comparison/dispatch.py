"""`optsched.compare`: policies on the same requests, in steps, on a clock or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from optsched._internal.arguments import checked
from optsched.clock import get_clock
from optsched.comparison.cluster import ClusterComparison, compare_on_cluster
from optsched.comparison.seconds import ClockComparison, compare_on_clock
from optsched.comparison.steps import UNDER_INTERVALS, StepComparison, compare_in_steps
from optsched.errors import InstanceError, PolicyError, nearest
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate.cluster.run import ClusterOptions
from optsched.simulate.dispatch import check_beliefs
from optsched.solvers.bounds.bound import ClockBound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched.clock import BatchContent, Clock
    from optsched.cluster.facts import Cluster
    from optsched.cluster.results import ClusterRun
    from optsched.execution import Execution
    from optsched.forecasts import Beliefs
    from optsched.policies import Policy, Rule
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.solvers.bounds.bound import Bound

_ON_CLOCK = ("until", "warm_up")
_ON_CLUSTER = ("warm_up", *ClusterOptions._fields)


@overload
def compare(
    instance: Instance,
    policies: Any = None,
    *,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    bound: Bound | None = None,
    on_result: Callable[[Execution, float], None] | None = None,
) -> StepComparison: ...
@overload
def compare(
    instance: Instance,
    policies: Any = None,
    *,
    clock: str | Clock | Callable[[BatchContent], float],
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    bound: ClockBound | None = None,
    on_result: Callable[[ClockedRun, float], None] | None = None,
    **options: Any,
) -> ClockComparison: ...
@overload
def compare(
    instance: Instance | Iterable[Instance],
    policies: Any = None,
    *,
    cluster: Cluster,
    seed: int = 0,
    on_result: Callable[[ClusterRun, float], None] | None = None,
    **options: Any,
) -> ClusterComparison: ...
@checked(PolicyError)
def compare(
    instance: Any,
    policies: Any = None,
    *,
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    cluster: Cluster | None = None,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    bound: Bound | ClockBound | None = None,
    on_result: Callable[[Any, float], None] | None = None,
    **options: Any,
) -> StepComparison | ClockComparison | ClusterComparison:
    """Run policies on the same requests, and compare them with each other and a proven bound.

    Parameters
    ----------
    instance
        The requests; on a cluster perhaps several traces, such as a family under several seeds.
    policies
        A name, a policy object, a function (as for `run`), or a list of them. None: the basic
        ones, which take milliseconds; under intervals those that need no outputs; on a clock
        "work" and "mixed" beside the basic ones; on a cluster "fcfs", "jsq", "lpt" and "bf-io".
    clock, cluster, intervals, beliefs, rule, seed
        As for `run`. Policies that do not ask what is likely run without the beliefs, and one of
        them at least must ask.
    bound
        In steps or on a clock: a bound that was found before; None finds one, but for clocks that
        are functions.
    on_result
        Called with each run that completes, and the seconds it took, as soon as it is there.
    **options
        On a clock `until` (as for `run`) and `warm_up`, the time before which arrivals and
        completions do not count in the metrics. On a cluster those of `run` and `warm_up`, the
        steps left out of averages (None: 300, or a quarter of a shorter run).

    Returns
    -------
    Comparison
        All runs, those in steps checked for feasibility. In steps a policy whose run never
        completes is listed as incomplete.

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
    if routed := sorted({"workers", "router"} & set(options)):
        raise PolicyError(
            f"compare has no {routed[0]}: optsched.routing_loss compares routers and policies on "
            "several workers, with the best placement and order too"
        )
    if cluster is not None:
        _check(options, _ON_CLUSTER, "on a cluster")
        _refuse("is for one worker", clock=clock, intervals=intervals, beliefs=beliefs, bound=bound)
        if rule != "prefix":
            raise PolicyError("rule is for one worker; leave it or the cluster out")
        options |= {"seed": seed, "on_result": on_result}
        if policies is not None:
            options["policies"] = policies
        return compare_on_cluster(instance, cluster, **options)
    if not isinstance(instance, Instance):
        raise InstanceError(
            f"compare takes one Instance, but got a {type(instance).__name__}; only a cluster "
            "compares on several"
        )
    known: dict[str, Any] = {"intervals": intervals, "rule": rule, "seed": seed}
    known["beliefs"] = beliefs
    chosen = compared(policies, intervals, clock, rule)
    check_beliefs(chosen, beliefs)
    if bound is not None and isinstance(bound, ClockBound) != (clock is not None):
        raise PolicyError(
            f"bound is a {type(bound).__name__}, of another kind of time than this comparison; "
            "find one with optsched.bound and the same clock, or leave it out"
        )
    known["bound"] = bound
    if clock is not None:
        _check(options, _ON_CLOCK, "on a clock")
        return compare_on_clock(
            instance, get_clock(clock), chosen, on_result=on_result, **known, **options
        )
    _check(options, (), "in steps")
    return compare_in_steps(instance, chosen, on_result=on_result, **known)


def compared(
    policies: Any, intervals: str | None, clock: Any = None, rule: Rule = "prefix"
) -> list[Policy]:
    """Return the policies that are named, or those that are quick and know enough."""
    if policies is not None:
        return get_policies(policies)
    if intervals and clock is None:
        return get_policies(UNDER_INTERVALS)
    basic = [each for each in get_policies() if rule == "prefix" or "+" not in each.name]
    return basic if clock is None else [*basic, *get_policies(["work", "mixed"])]


def _check(options: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in options:
        if name not in known:
            others = (
                "clock",
                "cluster",
                "intervals",
                "beliefs",
                "rule",
                "seed",
                "bound",
                "on_result",
                *known,
            )
            raise PolicyError(f"compare has no option {name!r} {where}: {nearest(name, others)}")


def _refuse(reason: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise PolicyError(f"{name} {reason}; leave it out")
