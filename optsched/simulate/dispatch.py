"""`optsched.run`: one policy on one instance, in steps or on a clock; on one worker or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from optsched._internal.arguments import MAX_SEED, as_count, checked
from optsched._internal.arrays import MAX_STEP
from optsched.admission import STEP_AHEAD, require_steps
from optsched.clock import UNIT, get_clock
from optsched.errors import PolicyError, nearest
from optsched.forecasts import forecast
from optsched.policies import get_policy, with_rule
from optsched.policies.base import window_of
from optsched.simulate.cluster.run import ClusterOptions, run_cluster
from optsched.simulate.runners import RUNNERS
from optsched.simulate.task import Task
from optsched.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.clock import BatchContent, Clock
    from optsched.cluster import Cluster, ClusterRun
    from optsched.cluster.routing import Routing
    from optsched.execution import Execution
    from optsched.forecasts import Beliefs
    from optsched.instance import Instance
    from optsched.policies import Policy, Rule
    from optsched.routers import Router, RouterState
    from optsched.simulate.replicas.result import RoutedRun
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.workers import Workers


@overload
def run(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    *,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Execution: ...
@overload
def run(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    *,
    clock: str | Clock | Callable[[BatchContent], float],
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = np.inf,
    on_progress: Callable[[int, int], None] | None = None,
) -> ClockedRun: ...
@overload
def run(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    *,
    workers: int | str | Sequence[int] | Workers,
    router: str | Router | Callable[[RouterState], int] = "least-tokens",
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = np.inf,
) -> RoutedRun: ...
@overload
def run(
    instance: Instance,
    policy: str | Routing,
    *,
    cluster: Cluster,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ClusterRun: ...
@checked(PolicyError)
def run(
    instance: Instance,
    policy: Any,
    *,
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    cluster: Cluster | None = None,
    workers: int | str | Sequence[int] | Workers | None = None,
    router: str | Router | Callable[[RouterState], int] | None = None,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = np.inf,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Execution | ClockedRun | ClusterRun | RoutedRun:
    r"""Run a policy on an instance and record everything that it did.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        A name such as "area", "area+backfill" or "a-min"; a policy object; or a function of a
        `state` (as for `DecisionPolicy`) or of an `instance` (as for `PriorityPolicy`). On a
        cluster a routing policy: a name out of `optsched.cluster.ROUTINGS`, a `BalanceRouting`
        with its options, or a rule of your own.
    clock
        How long batches take, as for `get_clock`: "unit", "affine:D0,D1", the name of a profiled
        model, a clock, or a function. None: one step each, and times are counted in steps.
    cluster
        Workers that wait for each other. At every step requests are revealed in order of arrival;
        the policy admits; the step takes :math:`C + t_\ell \max_g a_g L_g` seconds; every running
        request makes one token and gains its drift. The memory is that of the cluster.
    workers
        Workers that run each on its own: their number, each with the memory of the instance;
        their memories; or `Workers`. The policy runs on each of them, with the requests that the
        router sends there when they arrive, and with the seed plus the number of the worker.
    router
        Where requests go: a name out of `optsched.routers.ROUTERS`, a `Router`, or a function of
        a `RouterState` that returns a worker. None: "least-tokens". "central" is no router but one
        queue for all workers, a reference for orders under the prefix rule.
    intervals
        What the policy may know of the outputs, as for `forecast`: "exact", "common:L,U",
        "classes:W", "relative:X" or "column". None: the outputs, for policies that need them.
        Policies that look at no outputs, such as "vllm", run the same under all.
    beliefs
        What policies under intervals may know beyond them: which outputs are likely, or completed
        requests from which that is taken. None: nothing; a policy that needs a belief learns one.
        Only for policies that ask what is likely, as "area-chance" does and "a-min" does not.
    rule
        What happens when a request does not fit: "prefix" (none passes it), "skip", "backfill" or
        "window", perhaps with a ratio and a length as in "window:1.4,64"; all but the first for
        policies that know the outputs.
    seed
        Of all randomness in the policy; the same seed gives the same run.
    patience
        Steps without a completion or an arrival after which a run that may never end is given up.
        None: a hundred times the largest output, but at least 10,000.
    until
        On a clock: form no batch at or after this time; what is unfinished then is counted.
    on_progress
        Called now and then with what is done and all there is: by a rolling horizon requests that
        run or are complete, on a cluster requests that are done.
    **options
        On a cluster. `steps`: run so many (None: until all is done). `drain`: after them reveal
        nothing more and finish what was revealed. `reveal`: how many waiting requests the router
        sees. `drift`: tokens that a request gains per step, a number, a sequence by age, or
        `optsched.cluster.Profiles`. `dispatch`: "pool", or "instant" into the queue of a worker.
        `record_loads`: keep the load of every worker at every step.

    Returns
    -------
    Execution, ClockedRun, ClusterRun or RoutedRun
        In steps every attempt; `Execution.schedule` where all requests were completed. On a clock
        all batches, and which of them made each request's tokens. On a cluster arrays by request
        and step, and the metrics. On workers the placement, and the run of each.

    Raises
    ------
    PolicyError
        If the policy is unknown, or needs outputs where it is given intervals or the reverse.
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

    Two workers:

    >>> instance = Instance([4, 1, 3, 2], [2, 3, 1, 2], memory=99)
    >>> run(instance, "lpt", cluster=Cluster(workers=2, slots=2)).imbalance
    array([0, 4, 3])

    The same without waiting for each other:

    >>> run(instance, "area", workers=2, router="jsq").placement
    array([0, 1, 0, 1])
    """
    if isinstance(policy, list | tuple | set):
        raise PolicyError(
            f"run takes one policy, but got {len(policy)}; compare(instance, policies) runs several"
        )
    seed = as_count("seed", seed, 0, MAX_SEED, error=PolicyError)
    if cluster is not None:
        if workers is not None or router is not None:
            raise PolicyError(
                "a cluster is of workers that wait for each other and has routers of its own, "
                "passed as the policy; leave the cluster out, or workers and router"
            )
        given = {
            "clock": clock,
            "intervals": intervals,
            "beliefs": beliefs,
            "patience": patience,
        }
        wrong = [name for name, value in given.items() if value is not None]
        if wrong or rule != "prefix" or until < np.inf:
            name = [*wrong, *(["rule"] if rule != "prefix" else []), "until"][0]
            raise PolicyError(f"{name} is for one worker; leave it or the cluster out")
        _check_options(options, ClusterOptions._fields)
        return run_cluster(instance, cluster, policy, ClusterOptions(**options), seed, on_progress)
    _check_options(options, ())
    if router is not None and workers is None:
        raise PolicyError("a router chooses among several workers; pass workers, such as 8")
    if clock is None and until < np.inf:
        raise PolicyError(
            f"until is {until:g}, but only runs on a clock can be stopped; pass a clock"
        )
    if until < 0:
        raise PolicyError(f"until is {until:g}, but must be a time of at least 0")
    task = task_of(
        instance, policy, clock, intervals, beliefs, rule, seed, patience, until, on_progress
    )
    runner = RUNNERS[task.policy.needs.kind]
    several = None if workers is None else as_workers(workers, instance)
    logged = clock is not None and until == np.inf
    seats = 1 if several is None else len(several)
    require_steps(instance.outputs, seats, _BATCH if logged else STEP_AHEAD)
    if several is not None:
        from optsched.routers import get_router
        from optsched.simulate.replicas.run import run_routed

        if beliefs is not None:
            raise PolicyError("beliefs are about the requests of one worker; leave them out")
        found = get_router("least-tokens" if router is None else router)
        return run_routed(task, several, found, clock is not None)
    if clock is not None:
        return runner.on_clock(task)
    assert runner.in_steps is not None
    return runner.in_steps(task)


_BATCH = 512  # bytes of a batch, of which a run on a clock has one for each token of an output

_OPTIONS = (
    *("clock", "cluster", "workers", "router", "intervals"),
    *("rule", "seed", "patience", "until"),
)


def _check_options(options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name in ClusterOptions._fields and not known:
            raise PolicyError(f"{name} is for a run on a cluster; give cluster=Cluster(...) too")
        if name not in known:
            names = (
                "clock",
                "cluster",
                "workers",
                "router",
                "intervals",
                "beliefs",
                "rule",
                "seed",
                "patience",
                "until",
                *known,
            )
            raise PolicyError(f"run has no option {name!r}: {nearest(name, names)}")


def check_beliefs(policies: Sequence[Policy], beliefs: object) -> None:
    """Refuse beliefs for which no policy asks."""
    if beliefs is not None and all(each.foresees != "beliefs" for each in policies):
        names = ", ".join(each.name for each in policies)
        raise PolicyError(
            "beliefs or a history are for policies that ask what is likely, such as area-chance, "
            f"but not for {names}; leave them out, or run such a policy"
        )


def task_of(
    instance: Instance,
    policy: str | Policy | Callable[[Any], Any],
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = np.inf,
    on_progress: Callable[[int, int], None] | None = None,
) -> Task:
    """Return a run on one worker, or refuse it before anything is compiled for it."""
    chosen = get_policy(policy)
    check_knowledge(chosen, intervals, rule)
    if beliefs is not None and intervals is None:
        raise PolicyError(
            "beliefs or a history say which outputs in an interval are likely; pass intervals "
            "too, such as common:1,1000"
        )
    check_beliefs([chosen], beliefs)
    chosen = with_rule(chosen, rule).seeded(seed)
    if patience is None:
        patience = max(10_000, 100 * int(instance.outputs.max()))
    as_count("patience", patience, most=MAX_STEP, error=PolicyError)
    if clock is None and RUNNERS[chosen.needs.kind].in_steps is None:
        raise PolicyError(
            f"policy {chosen.name!r} forms batches that take time; pass a clock, such as unit or "
            "llama-2-70b-2xa100"
        )
    if clock is None and (of_policy := getattr(chosen, "rule", "prefix")).startswith("delay"):
        window_of(of_policy)  # which says what it takes
    if intervals is not None:
        forecast(instance, intervals)
    timed = UNIT if clock is None else get_clock(clock)
    return Task(instance, chosen, timed, intervals, seed, patience, until, on_progress, beliefs)


def check_knowledge(policy: Policy, intervals: str | None, rule: Rule = "prefix") -> None:
    """Refuse a policy that would know too little or too much, or that has no such rule."""
    knows = policy.needs.knows
    if knows == "outputs" and intervals not in (None, "exact"):
        raise PolicyError(
            f"policy {policy.name!r} needs the outputs, but may only know the intervals "
            f"{intervals!r}; leave the intervals out, or run h-sf beside the others as the "
            "reference that knows the outputs"
        )
    with_rule(policy, rule)
    if knows == "intervals" and intervals is None:
        raise PolicyError(
            f"policy {policy.name!r} plans with intervals of the outputs; pass intervals, "
            "such as common:1,1000 or relative:0.5 (exact: the outputs themselves)"
        )
