"""Simulators: they run a policy on an instance; compiled, and checked by literal ones in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.policies import BatchPolicy, get_policy
from optsched.schedule import Schedule
from optsched.simulate.unit import admit_batches, admit_by_priority

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.policies import Policy


def run(instance: Instance, policy: str | Policy) -> Schedule:
    """Run a policy on an instance, one step per batch, outputs known.

    Parameters
    ----------
    instance
        The requests.
    policy
        A name such as "area", or a policy object.

    Returns
    -------
    Schedule
        A feasible schedule that carries the policy's name.

    Raises
    ------
    PolicyError
        If there is no policy of that name.

    Examples
    --------
    Sorted-F Example 1: 22 requests, total latency 64 under MC-SF and 45 under Sorted-F.

    >>> from optsched import Instance, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> run(instance, "mc-sf").total_latency, run(instance, "sorted-f").total_latency
    (64, 45)
    """
    policy = get_policy(policy)
    if isinstance(policy, BatchPolicy):
        starts = admit_batches(instance, policy.selector(instance))
    else:
        starts = admit_by_priority(instance, policy.order(instance))
    return Schedule(instance, starts, policy.name)
