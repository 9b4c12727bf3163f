"""What a policy is: an order of requests, or a way to choose batches of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from optsched._internal.compiled import compiled
from optsched.errors import PolicyError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.instance import Instance

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
        """Give all request indices, most urgent first.

        Raises
        ------
        PolicyError
            If the key is not one number per request.
        """
        key = np.asarray(self.key(instance))
        if key.shape != (len(instance),) or not np.issubdtype(key.dtype, np.number):
            raise PolicyError(
                f"policy {self.name!r}: the key has shape {key.shape} and type {key.dtype}, but "
                f"must be one number for each of {len(instance)} requests"
            )
        if (unordered := np.isnan(key)).any():
            request = instance.label(int(np.argmax(unordered)))
            raise PolicyError(f"policy {self.name!r}: the key of request {request} is not a number")
        return np.argsort(key, kind="stable").astype(np.int64)


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

    def batches(self, instance: Instance) -> BatchSelector:
        """Make a selector that refuses batches nobody can admit.

        Parameters
        ----------
        instance
            The requests.

        Returns
        -------
        BatchSelector
            Its `next_batch` raises PolicyError if a batch is empty, or holds an unknown request,
            one that has not arrived, or one that was in a batch before.
        """
        return _Checked(self, instance)


class _Checked:
    def __init__(self, policy: BatchPolicy, instance: Instance) -> None:
        self._selector = policy.selector(instance)
        self._name, self._instance = policy.name, instance
        self._waiting = np.zeros(len(instance), dtype=bool)

    def release(self, requests: IntArray) -> None:
        self._waiting[requests] = True
        self._selector.release(requests)

    def next_batch(self) -> IntArray:
        batch = np.asarray(self._selector.next_batch())
        if not len(batch):
            raise PolicyError(f"policy {self._name!r} gives an empty batch although requests wait")
        if not np.issubdtype(batch.dtype, np.integer):
            raise PolicyError(f"policy {self._name!r} gives a batch of {batch.dtype}, not indices")
        batch = batch.astype(np.int64, copy=False)
        place = _take(batch, self._waiting)
        if place == len(batch):
            return batch
        request = int(batch[place])
        if not 0 <= request < len(self._waiting):
            raise PolicyError(
                f"policy {self._name!r} gives the request {request}, but there are only 0 to "
                f"{len(self._waiting) - 1}"
            )
        raise PolicyError(
            f"policy {self._name!r} gives the request {self._instance.label(request)}, which does "
            "not wait: it has not arrived, or was in a batch before"
        )


@compiled
def _take(batch: IntArray, waiting: BoolArray) -> int:
    """Take requests out of those waiting; gives the place of the first that does not wait."""
    for place in range(len(batch)):
        request = batch[place]
        if request < 0 or request >= len(waiting) or not waiting[request]:
            return place
        waiting[request] = False
    return len(batch)


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
