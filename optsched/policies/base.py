"""What a policy is: an order of requests, or a way to choose batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.instance import Instance, IntArray


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
    """

    name: str
    title: str
    selector: Callable[[Instance], BatchSelector]
