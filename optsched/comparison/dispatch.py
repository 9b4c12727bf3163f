"""`optsched.compare`: policies on the same requests, in steps, on a clock or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import checked
from optsched.comparison.cluster import compare_on_cluster
from optsched.comparison.seconds import compare_on_clock
from optsched.comparison.steps import UNDER_INTERVALS, compare_in_steps
from optsched.errors import InstanceError, PolicyError
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate.dispatch import check_beliefs
from optsched.simulate.settings import settings_of
from optsched.solvers.bounds.bound import ClockBound

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.solvers.bounds.bound import Bound


@checked(PolicyError)
def compare(
    instance: Any,
    policies: Any = None,
    settings: RunSettings | None = None,
    *,
    bound: Bound | ClockBound | None = None,
    warm_up: float | None = None,
    on_result: Callable[[Any, float], None] | None = None,
    **options: Any,
) -> Any:
    """Run policies on the same requests, and compare them with each other and a proven bound.

    Parameters
    ----------
    instance
        The requests; on a cluster perhaps several traces, such as a family under several seeds.
    policies
        A name, a policy object, a function (as for `run`), or a list of them. None: the basic
        ones, which take milliseconds; under intervals those that need no outputs; on a clock
        "work" and "mixed" beside the basic ones; on a cluster "fcfs", "jsq", "lpt" and "bf-io".
    settings
        How they are run; None: in steps. Policies that do not ask what is likely run without the
        beliefs, and one of them at least must ask.
    bound
        In steps or on a clock: a bound that was found before; None finds one, but for clocks that
        are functions.
    warm_up
        On a clock the time before which arrivals and completions do not count in the metrics; on a
        cluster the steps left out of averages (None: 300, or a quarter of a shorter run).
    on_result
        Called with each run that completes, and the seconds it took, as soon as it is there.
    **options
        Fields of `RunSettings` but `workers` and `router`, instead of settings, or to replace some
        of theirs.

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
    settings = settings_of(settings, options, "compare")
    if settings.workers is not None:
        raise PolicyError(
            "compare has no workers or router: optsched.routing_loss compares routers and policies "
            "on several workers, with the best placement and order too"
        )
    if settings.cluster is not None:
        if bound is not None:
            raise PolicyError("bound is for one worker; leave it or the cluster out")
        policies = ("fcfs", "jsq", "lpt", "bf-io") if policies is None else policies
        steps: Any = warm_up
        return compare_on_cluster(instance, policies, settings, on_result=on_result, warm_up=steps)
    if not isinstance(instance, Instance):
        raise InstanceError(
            f"compare takes one Instance, but got a {type(instance).__name__}; only a cluster "
            "compares on several"
        )
    chosen = compared(policies, settings)
    check_beliefs(chosen, settings)
    if bound is not None and isinstance(bound, ClockBound) != (settings.clock is not None):
        raise PolicyError(
            f"bound is a {type(bound).__name__}, of another kind of time than this comparison; "
            "find one with optsched.bound and the same clock, or leave it out"
        )
    known: dict[str, Any] = {"bound": bound, "on_result": on_result}
    if settings.clock is not None:
        return compare_on_clock(instance, chosen, settings, warm_up=warm_up or 0.0, **known)
    if warm_up is not None:
        raise PolicyError(
            f"warm_up is {warm_up:g}, but is for runs on a clock or a cluster; leave it out"
        )
    return compare_in_steps(instance, chosen, settings, **known)


def compared(policies: Any, settings: RunSettings) -> list[Policy]:
    """Return the policies that are named, or those that are quick and know enough."""
    if policies is not None:
        return get_policies(policies)
    timed = settings.clock is not None
    if settings.intervals and not timed:
        return get_policies(UNDER_INTERVALS)
    prefix = settings.rule == "prefix"
    basic = [each for each in get_policies() if prefix or "+" not in each.name]
    return [*basic, *get_policies(["work", "mixed"])] if timed else basic
