"""What a policy is: an order of requests, or a way to choose batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from optsched.errors import PolicyError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.instance import Instance, IntArray

#: What happens when a waiting request does not fit: nobody after it is tried at this step, the
#: others are, or they may start only into room that no more urgent one is planned to use.
Rule = Literal["prefix", "skip", "backfill"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class PriorityPolicy:
    """Admit waiting requests by ascending key; equal keys in order of arrival.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    title
        What the policy does, in a few words.
    key
        Gives one number per request, shape (n,); smaller is more urgent.
    rule
        What happens when a request does not fit: `with_rule` says more.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> longest_first = PriorityPolicy("longest", "longest output first", lambda i: -i.outputs)
    >>> run(Instance([1, 1], [2, 3], memory=4), longest_first).starts
    array([3, 0])
    """

    name: str
    title: str
    key: Callable[[Instance], npt.NDArray[np.number]]
    rule: Rule = "prefix"

    def order(self, instance: Instance) -> IntArray:
        """Give all request indices, most urgent first."""
        return np.argsort(self.key(instance), kind="stable").astype(np.int64)


class BatchSelector(Protocol):
    """Chooses batches of waiting requests, to be admitted one after another."""

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        ...

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting: indices in the order of admission."""
        ...


@dataclass(frozen=True)
class BatchPolicy:
    """Choose a batch among the waiting requests, admit it in order, then choose the next.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    title
        What the policy does, in a few words.
    selector
        Makes, for an instance, the object that chooses the batches.
    rule
        What happens when a request does not fit: `with_rule` says more.
    """

    name: str
    title: str
    selector: Callable[[Instance], BatchSelector]
    rule: Rule = "prefix"


def with_rule(policy: PriorityPolicy | BatchPolicy, rule: Rule) -> PriorityPolicy | BatchPolicy:
    """Give a policy another rule of admission.

    Parameters
    ----------
    policy
        A policy under the prefix rule.
    rule
        At each step the waiting requests are tried in order. "prefix": the first that does not fit
        ends the step. "skip": the others are tried all the same, so that a large request may wait
        forever. "backfill": all are planned, each at its earliest feasible start given who runs
        and who was planned before, and whoever is planned for this step starts.

    Returns
    -------
    PriorityPolicy or BatchPolicy
        Under the name "policy+rule"; for "prefix" the policy itself.

    Raises
    ------
    PolicyError
        If the rule is unknown, or the policy has another already.

    Examples
    --------
    >>> from optsched.policies import get_policy
    >>> with_rule(get_policy("area"), "backfill").name
    'area+backfill'
    """
    if rule not in RULES:
        raise PolicyError(f"unknown rule {rule!r}: {nearest(str(rule), RULES)}")
    if rule == "prefix" or policy.rule == rule:
        return policy
    if policy.rule != "prefix":
        raise PolicyError(f"the policy {policy.name!r} has a rule already; leave {rule!r} out")
    return replace(policy, name=f"{policy.name}+{rule}", rule=rule)
