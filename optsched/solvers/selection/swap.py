r"""Batches by local swap (Wang et al., Alg. 4).

Alg. 4 fills a batch by ascending peak :math:`P_i = s_i + o_i` and then swaps a member for a waiting
request with a smaller output as long as the peaks still fit, always the first such pair by (peak,
index). A tree over the requests by peak holds the smallest output of the waiting ones: for a member
its leftmost leaf below the member's output is the candidate. Members before the last swap need no
second look unless the swap freed memory: if `out` was swapped for `in` and could serve an earlier
member :math:`e` that had found nothing, then :math:`P_{out} - P_e \le slack - P_{in} + P_{out}`,
so that `in` was in reach of :math:`e`; then :math:`o_{in} \ge o_e`, and :math:`o_{out} > o_{in}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.min_tree import ABSENT, leftmost_below, new_tree, put

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance


class LocalSwap:
    """Batch selection by Alg. 4 (swap) among the requests released so far."""

    def __init__(self, instance: Instance) -> None:
        self._by_peak = np.argsort(instance.peaks, kind="stable")
        self._rank = np.empty_like(self._by_peak)
        self._rank[self._by_peak] = np.arange(len(instance))
        self._peaks = instance.peaks[self._by_peak]
        self._outputs = instance.outputs[self._by_peak]
        self._memory = instance.memory
        self._tree = new_tree(len(instance))
        self._members = np.empty(len(instance), dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        _insert(self._tree, self._outputs, self._rank[requests])

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        count = _fill(self._tree, self._peaks, self._memory, self._members)
        return self.improve(self._members[:count])

    def take(self, members: IntArray) -> IntArray:
        """Take a batch, given by ranks, out of those waiting."""
        for rank in members:
            put(self._tree, rank, ABSENT)
        return members

    def improve(self, members: IntArray) -> IntArray:
        """Swap members of a batch, ranks by ascending peak; gives requests by ascending output."""
        _swap(self._tree, self._peaks, self._outputs, self._memory, members)
        order = np.argsort(self._outputs[members], kind="stable")
        return self._by_peak[members[order]]


@compiled
def _insert(tree: IntArray, outputs: IntArray, ranks: IntArray) -> None:
    for place in range(len(ranks)):
        put(tree, ranks[place], outputs[ranks[place]])


@compiled
def _fill(tree: IntArray, peaks: IntArray, memory: int, members: IntArray) -> int:
    """Take waiting requests by ascending peak: once one does not fit, no later one does."""
    count = 0
    slack = memory
    while True:
        rank = leftmost_below(tree, ABSENT)
        if rank < 0 or peaks[rank] > slack:
            return count
        members[count] = rank
        count += 1
        slack -= peaks[rank]
        put(tree, rank, ABSENT)


@compiled
def _swap(
    tree: IntArray, peaks: IntArray, outputs: IntArray, memory: int, members: IntArray
) -> None:
    """Swap in place; `members` stays ascending."""
    count = len(members)
    slack = memory
    for position in range(count):
        slack -= peaks[members[position]]
    position = 0
    while position < count:
        leaving = members[position]
        entering = leftmost_below(tree, outputs[leaving])
        if entering < 0 or peaks[entering] > peaks[leaving] + slack:
            position += 1
            continue
        slack += peaks[leaving] - peaks[entering]
        put(tree, entering, ABSENT)
        put(tree, leaving, outputs[leaving])
        place = position
        while place > 0 and members[place - 1] > entering:
            members[place] = members[place - 1]
            place -= 1
        while place + 1 < count and members[place + 1] < entering:
            members[place] = members[place + 1]
            place += 1
        members[place] = entering
        freed = peaks[entering] < peaks[leaving]  # then any member may have found a partner
        if freed:
            position = 0
        elif place < position:
            position = place
