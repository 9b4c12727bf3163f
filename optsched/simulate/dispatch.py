"""Running a policy of any kind, with all its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np

from optsched.clock import UNIT, get_clock
from optsched.errors import PolicyError
from optsched.execution import Execution, of_schedule
from optsched.policies import OrderPolicy, get_policy, with_rule
from optsched.policies.robust import Hindsight, IntervalPolicy, RandomOrder
from optsched.policies.rolling import RollingPolicy
from optsched.policies.serving import EnginePolicy
from optsched.policies.wait import WaitingPolicy
from optsched.schedule import Schedule
from optsched.simulate.seconds.run import execute_on_clock
from optsched.simulate.steps.attempts import run_attempts
from optsched.simulate.steps.rules import admit

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import BatchContent, Clock
    from optsched.instance import Instance
    from optsched.policies import Policy, Rule
    from optsched.simulate.seconds.execution import ClockedRun


@overload
def execute(
    instance: Instance,
    policy: str | Policy,
    *,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
) -> Execution: ...
@overload
def execute(
    instance: Instance,
    policy: str | Policy,
    *,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    clock: str | Clock | Callable[[BatchContent], float],
    until: float = np.inf,
) -> ClockedRun: ...
def execute(
    instance: Instance,
    policy: str | Policy,
    *,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    patience: int | None = None,
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    until: float = np.inf,
) -> Execution | ClockedRun:
    """Run a policy of any kind on an instance, and keep all that it did.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        A name such as "area" or "a-min", or a policy object.
    intervals
        What the policy may know of the outputs, as for `forecast`: "exact", "common:L,U",
        "classes:W", "relative:X" or "column". None: the outputs, for policies that need them.
    rule
        What happens when a request does not fit: "prefix", "skip" or "backfill" (`with_rule`), the
        latter two for policies that know the outputs.
    seed
        Of all randomness in the policy; the same seed gives the same run.
    patience
        Steps without a completion or an arrival after which a run that may never end is given up
        (`Execution.stall`): random clearing, and policies of your own. None: a hundred times the
        largest output, which is how long the slowest request takes if it is left alone, but at
        least 10,000. Loops of the greedy overflow policy need no patience: they are proven.
    clock
        How long batches take, as for `get_clock`: "unit", "affine:D0,D1", the name of a profiled
        model, a clock, or a function. None: one step each, and times are counted in steps.
    until
        On a clock: form no batch at or after this time; what is unfinished then is counted.

    Returns
    -------
    Execution or ClockedRun
        Without a clock every attempt; `Execution.schedule` where all requests were completed. With
        a clock all batches, and which of them made each request's tokens.

    Raises
    ------
    PolicyError
        If the policy is unknown, or needs outputs where it is given intervals or the reverse.
    InstanceError
        If an output lies outside its interval.

    Examples
    --------
    Robust Example 3.2: five requests whose single token may be up to four.

    >>> from optsched import Instance, execute
    >>> instance = Instance([1] * 5, [1] * 5, memory=10)
    >>> for policy in ("h-sf", "a-max", "a-min"):
    ...     print(policy, execute(instance, policy, intervals="common:1,4").total_latency)
    h-sf 5
    a-max 9
    a-min 5
    """
    chosen = get_policy(policy)
    check_knowledge(chosen, intervals, rule)
    if clock is None and until < np.inf:
        raise PolicyError(f"until is {until:g}, but only runs on a clock can be stopped; give one")
    if isinstance(chosen, OrderPolicy):
        chosen = with_rule(chosen, rule)
        if isinstance(chosen, RandomOrder):
            chosen = chosen.seeded(seed)
    if clock is not None:
        return execute_on_clock(
            instance,
            chosen,
            get_clock(clock),
            intervals=intervals,
            patience=patience,
            seed=seed,
            until=until,
        )
    if isinstance(chosen, EnginePolicy | WaitingPolicy):
        raise PolicyError(
            f"policy {chosen.name!r} forms batches that take time; give a clock, such as unit or "
            "llama-2-70b-2xa100"
        )
    if isinstance(chosen, RollingPolicy):
        from optsched.rolling.driver import driven

        chosen = driven(chosen, seed)
    if isinstance(chosen, OrderPolicy):
        schedule = Schedule(instance, admit(instance, chosen), chosen.name)
        return of_schedule(schedule, intervals)
    attempts = run_attempts(
        instance, chosen, UNIT, intervals=intervals, patience=patience, seed=seed
    )
    steps = attempts.log.spans[attempts.starts, 0].astype(np.int64)
    return Execution(
        instance,
        chosen.name,
        attempts.requests,
        steps,
        attempts.tokens,
        intervals,
        attempts.loop,
        attempts.stall,
    )


def check_knowledge(policy: Policy, intervals: str | None, rule: Rule = "prefix") -> None:
    """Refuse a policy that would be told too little or too much.

    Parameters
    ----------
    policy
        What is to be run.
    intervals
        What it may know; None means the outputs.
    rule
        The rule of admission asked for.

    Raises
    ------
    PolicyError
        If the policy needs outputs where it is given intervals or the reverse, or has no such rule.
    """
    if isinstance(policy, OrderPolicy):
        if intervals not in (None, "exact") and not isinstance(policy, Hindsight):
            raise PolicyError(
                f"policy {policy.name!r} needs the outputs, but may only know the intervals "
                f"{intervals!r}; leave the intervals out, or run h-sf beside the others as the "
                "reference that knows the outputs"
            )
        return
    if rule != "prefix":
        raise PolicyError(
            f"policy {policy.name!r} admits by rules of its own; the rule {rule!r} is for policies "
            "that order requests by their outputs"
        )
    if isinstance(policy, IntervalPolicy) and intervals is None:
        raise PolicyError(
            f"policy {policy.name!r} plans with intervals of the outputs; say what it may know, "
            "such as common:1,1000 or relative:0.5 (exact: the outputs themselves)"
        )
