"""Simulators: they run a policy on an instance; compiled, and checked by literal ones in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.policies import get_policy, with_rule
from optsched.schedule import Schedule
from optsched.simulate.rules import admit

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.policies import Policy, Rule


def run(instance: Instance, policy: str | Policy, rule: Rule = "prefix") -> Schedule:
    """Run a policy on an instance, one step per batch, outputs known.

    Parameters
    ----------
    instance
        The requests.
    policy
        A name such as "area" or "area+backfill", or a policy object.
    rule
        What happens when a request does not fit: "prefix", "skip" or "backfill" (`with_rule`).

    Returns
    -------
    Schedule
        A feasible schedule that carries the policy's name.

    Raises
    ------
    PolicyError
        If there is no policy or rule of that name.

    Examples
    --------
    Sorted-F Example 1: 22 requests, total latency 64 under MC-SF and 45 under Sorted-F.

    >>> from optsched import Instance, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> run(instance, "mc-sf").total_latency, run(instance, "sorted-f").total_latency
    (64, 45)
    """
    policy = with_rule(get_policy(policy), rule)
    return Schedule(instance, admit(instance, policy), policy.name)
