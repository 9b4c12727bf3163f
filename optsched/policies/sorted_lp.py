"""Sorted-LP and LP-Swap (Wang et al., Alg. 6 and 7): the linear relaxation gives the order.

Both order requests by their expected starts in Relax-LP (`solvers.selection.expected_starts`), of
those that wait, as if the worker were empty, whenever requests have arrived since the last batch. A
batch of Sorted-LP is what comes first in the order and fits together by peaks; offline the batches
together are the paper's order. LP-Swap passes over what does not fit, and improves by Alg. 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.policies.base import BatchPolicy
from optsched.solvers.selection.swap import LocalSwap

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance


class SortedLP:
    """Batches by ascending expected start among the requests released so far."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._sorted = True
        self.waiting = np.zeros(0, dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        self.waiting = np.concatenate([self.waiting, requests])
        self._sorted = False

    def order(self) -> IntArray:
        """Return the waiting requests in order; new ones make the relaxation be solved again."""
        if not self._sorted:
            from optsched.bounds.expected_starts import expected_starts

            waiting = np.sort(self.waiting)
            starts: FloatArray = expected_starts(self._instance.take(waiting))
            self.waiting = waiting[np.argsort(starts, kind="stable")]
            self._sorted = True
        return self.waiting

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending expected start."""
        order, memory = self.order(), self._instance.memory
        held = np.cumsum(self._instance.peaks[order[:memory]])
        size = int(np.searchsorted(held, memory, side="right"))
        self.waiting = order[size:]
        return order[:size]


class LPSwap(LocalSwap):
    """Batches filled by ascending expected start and improved by Alg. 4."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self._expected = SortedLP(instance)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        super().release(requests)
        self._expected.release(requests)

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        order = self._expected.order()
        members = self._rank[order[_fitting(self._peaks[self._rank[order]], self._memory)]]
        batch = self.improve(self.take(np.sort(members)))
        self._expected.waiting = order[~np.isin(order, batch)]
        return batch


SORTED_LP = (
    BatchPolicy(
        "sorted-lp",
        "smallest expected start in the linear relaxation first",
        SortedLP,
        source="Sorted-F Alg. 6",
    ),
    BatchPolicy(
        "lp-swap",
        "batches by expected start, improved by local swap",
        LPSwap,
        source="Sorted-F Alg. 7",
    ),
)


@compiled
def _fitting(peaks: IntArray, memory: int) -> IntArray:
    """Find those that fit, taken one after another, passing over what does not."""
    chosen = np.empty(len(peaks), dtype=np.int64)
    count = 0
    for place in range(len(peaks)):
        if peaks[place] <= memory:
            memory -= peaks[place]
            chosen[count] = place
            count += 1
    return chosen[:count]
