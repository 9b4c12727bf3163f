"""`optsched.run`: one policy on one instance, in steps or on a clock; on one worker or several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from optsched._internal.arguments import checked, refuse_turns
from optsched._internal.aside import watched
from optsched.admission import STEP_AHEAD, require_steps
from optsched.errors import PolicyError
from optsched.policies import get_policy, with_rule
from optsched.problem.forecasts import forecast
from optsched.problem.workers import as_workers
from optsched.simulate.cluster.run import run_cluster
from optsched.simulate.runners import runner_of
from optsched.simulate.settings import Task, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from optsched.clock import BatchContent, Clock
    from optsched.policies import Policy
    from optsched.problem.execution import Execution
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers
    from optsched.simulate.cluster import Cluster, ClusterRun
    from optsched.simulate.cluster.routing import Routing
    from optsched.simulate.replicas.run import RoutedRun
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.settings import AnyClock, RunOptions, RunSettings


@overload
def run(
    instance: Instance, policy: str | Policy | Callable[[Any], Any], **options: Unpack[RunOptions]
) -> Execution: ...
@overload
def run(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    *,
    clock: str | Clock | Callable[[BatchContent], float],
    **options: Unpack[RunOptions],
) -> ClockedRun: ...
@overload
def run(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    *,
    workers: int | str | Sequence[int] | Workers,
    clock: AnyClock | Sequence[AnyClock] | None = None,
    **options: Unpack[RunOptions],
) -> RoutedRun: ...
@overload
def run(
    instance: Instance,
    policy: str | Routing,
    *,
    cluster: Cluster,
    **options: Unpack[RunOptions],
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

    >>> from optsched import Cluster, Instance, run
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

    Two workers that wait for each other, and two that do not:

    >>> instance = Instance([4, 1, 3, 2], [2, 3, 1, 2], memory=99)
    >>> run(instance, "lpt", cluster=Cluster(workers=2, slots=2)).imbalance
    array([0, 4, 3])
    >>> run(instance, "area", workers=2, router="jsq").placement
    array([0, 1, 0, 1])
    """
    if isinstance(policy, list | tuple | set):
        raise PolicyError(
            f"run takes one policy, but got {len(policy)}; compare(instance, policies) runs several"
        )
    settings = settings_of(settings, options)
    with watched(on_progress) as tell:
        found = _run(instance, policy, settings, tell)
    return replace(found, knows=settings.knows(policy, instance))


def _run(
    instance: Instance,
    policy: Any,
    settings: RunSettings,
    on_progress: Callable[[int, int], None] | None,
) -> Execution | ClockedRun | ClusterRun | RoutedRun:
    """Run a policy as settings say."""
    if settings.cluster is not None:
        refuse_turns(instance, "a cluster", PolicyError)
        return run_cluster(instance, policy, settings, on_progress)
    task = prepared(instance, policy, settings, on_progress)
    runner = runner_of(task.policy)
    several = None if settings.workers is None else as_workers(settings.workers, instance)
    logged = task.timed and settings.until == float("inf")
    seats = 1 if several is None else len(several)
    require_steps(instance.outputs, seats, _BATCH if logged else STEP_AHEAD)
    if several is not None:
        from optsched.problem.workers import get_router
        from optsched.simulate.replicas.run import run_routed

        router = get_router("least-tokens" if settings.router is None else settings.router)
        return run_routed(task, several, router)
    return runner.run(task)


_BATCH = 512  # bytes of a batch, of which a run on a clock has one for each token of an output


def prepared(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
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


def fitted(policy: str | Policy | Callable[[Any], Any], settings: RunSettings) -> Policy:
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
    if runner_of(chosen).in_steps is None:
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
