"""Simulators: they run a policy on an instance; compiled, and checked by literal ones in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.simulate.dispatch import execute

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.policies import Policy, Rule
    from optsched.schedule import Schedule

__all__ = ["execute", "run"]


def run(
    instance: Instance,
    policy: str | Policy,
    rule: Rule = "prefix",
    *,
    intervals: str | None = None,
    seed: int = 0,
) -> Schedule:
    """Run a policy on an instance, one step per batch, and give the start of each request.

    This is the schedule of `execute`, which also knows what was cancelled on the way.

    Parameters
    ----------
    instance
        The requests.
    policy
        A name such as "area" or "area+backfill", or a policy object.
    rule
        What happens when a request does not fit: "prefix", "skip" or "backfill" (`with_rule`).
    intervals
        What the policy may know of the outputs, as for `forecast`; None: the outputs.
    seed
        Of all randomness in the policy.

    Returns
    -------
    Schedule
        A feasible schedule that carries the policy's name.

    Raises
    ------
    PolicyError
        If there is no policy or rule of that name, the policy is told too little or too much, or
        it does not complete all requests.

    Examples
    --------
    Sorted-F Example 1: 22 requests, total latency 64 under MC-SF and 45 under Sorted-F.

    >>> from optsched import Instance, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> run(instance, "mc-sf").total_latency, run(instance, "sorted-f").total_latency
    (64, 45)
    """
    return execute(instance, policy, intervals=intervals, rule=rule, seed=seed).schedule
