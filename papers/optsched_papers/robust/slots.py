"""Robust Theorems 4.2 to 5.2 where prompts are so long that the memory is a number of slots."""

# With prompts of s = m u tokens and a memory of m (s + u), m requests fit at any age, and m + 1
# never do: they hold at least (m + 1) (s + 1) > m (s + u) tokens. As m grows, so does the memory,
# and the share of it that a prompt takes vanishes. `a-min`, in which a request that outlives its
# bound keeps its memory until it ends, admits no more than fit and preempts nothing: it serves the
# requests in random order, one after the other on each slot. `a-min-overcommit` admits more, and
# preempts; nothing here is proven of it.

from __future__ import annotations

import heapq
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched._internal.arrays import IntArray

#: No outputs cost `in_rounds` more than this times the least total latency on as many slots.
MOST_OF_ROUNDS = 12
#: Prompts of so many times u. As M grows, the memory has fewer than (s + u) / s times as many
#: places for short requests as slots for long ones: the bound holds there but for such a factor.
PROMPTS = 10
MOST_AS_MEMORY_GROWS = MOST_OF_ROUNDS * (1 + 1 / PROMPTS)
MANY = {"slots": 100, "each": 10_000}  # by then the proven ratio of A_min is nearly its limit


# Without prompts rounds have a constant as well. One of limit L has N open requests, all with more
# than L / 2 tokens to make, and floor(M / L) >= M / 2 L places: it takes at most 2 L^2 N / M + L
# steps, for each of the N. Over L = 1, 2, 4, ... below 2 min(o_i, o_j), L^2 sums up to at most
# 16/3 min(o_i, o_j)^2, which is 32/3 times the smaller of both memory-times, and these minima, over
# all pairs in both orders, to at most 2 M times the optimum. L sums up to at most 4 o_j. So rounds
# cost at most 128/3 + 4 < 47 times the optimum. Lemma 4.6 without prompts, with l = 1 and requests
# in proportion to 1 / i^2, is at least (H^2 / 2 - 2.5 H - 2) / (2 H + 1.7) > H / 4 - 2, where H is
# the sum of 1 / k up to u: above 47 from H = 196 on. So a limit on prompts does not reconcile it
# with Theorem 4.2.


@dataclass(frozen=True)
class Slots:
    """Outputs of 1 and u = root^2 on slots, each of which runs so many long requests."""

    # With `root` short requests for each long one, which is worst for A_min as both numbers grow.

    root: int
    slots: int
    each: int

    @property
    def upper(self) -> int:
        """The long output, u."""
        return self.root**2

    @property
    def outputs(self) -> IntArray:
        """All outputs, the shortest first."""
        long = self.slots * self.each
        return np.repeat(np.array([1, self.upper], np.int64), [long * self.root, long])

    @property
    def instance(self) -> Instance:
        """The requests with their prompts, and the memory for so many slots."""
        prompt = self.slots * self.upper
        memory = self.slots * (prompt + self.upper)
        return Instance(np.full(len(self.outputs), prompt), self.outputs, memory)

    @property
    def a_min_least(self) -> Fraction:
        """Bound the expected total latency of A_min from below."""
        # When the k-th request in its order starts, all before it have started, and at most m - 1
        # of them run, with at most u steps left. So it starts no earlier than at a share 1 / m of
        # their outputs, less (m - 1) u / m; in random order these are k - 1 times the mean.
        long = self.slots * self.each
        count, total = long * (self.root + 1), long * (self.root + self.upper)
        waits = Fraction((count - 1) * total, 2 * self.slots)
        return total + waits - Fraction(count * (self.slots - 1) * self.upper, self.slots)

    @property
    def shortest_first(self) -> int:
        """The total latency of H-SF: the short ones fill all slots step by step, then the long."""
        steps, longs = self.each * self.root, self.each
        short = steps * (steps + 1) // 2
        return self.slots * (short + longs * steps + self.upper * longs * (longs + 1) // 2)

    @property
    def proven(self) -> Fraction:
        """What A_min costs at least over H-SF; it tends to (1 + root) / 2."""
        return self.a_min_least / self.shortest_first


def a_l_ratio(short: int, long: int, shorts: int, longs: int) -> Fraction:
    """Return what A_l costs over H-SF in expectation, with so many requests per slot."""
    # It runs all requests for `short` steps, in random order, and then the long ones to their end.
    count = shorts + longs
    after = long * longs * (longs + 1) // 2
    a_l = Fraction(shorts * short * (count + 1), 2) + longs * short * count + after
    return a_l / (short * shorts * (shorts + 1) // 2 + longs * short * shorts + after)


def one_by_one(outputs: Iterable[int], slots: int, begin: int = 0) -> list[int]:
    """Serve outputs in order, each on the first free slot; return when they end."""
    free, ends = [begin] * slots, []
    for output in outputs:
        ends.append(free[0] + output)
        heapq.heapreplace(free, ends[-1])
    return ends


def in_rounds(outputs: Sequence[int], slots: int) -> int:
    """Return the total latency of a policy that knows no outputs: each round doubles a limit."""
    # In a round of limit 1, 2, 4, ... every open request is started anew and preempted when it has
    # produced so many tokens. With m slots round r takes at most sum_i min(o_i, 2^r) / m + 2^r
    # steps, the sum over the requests that are open then. So request j, 2^(p - 1) < o_j <= 2^p,
    # ends by 4 sum_i min(o_i, o_j) / m + 4 o_j, and all of them cost at most 12 times the larger of
    # sum o and sum_ij min(o_i, o_j) / 2 m. No schedule on m slots costs less than either.
    open_ones, begin, limit, total = list(outputs), 0, 1, 0
    while open_ones:
        ends = one_by_one((min(output, limit) for output in open_ones), slots, begin)
        total += sum(end for end, o in zip(ends, open_ones, strict=True) if o <= limit)
        begin, limit, open_ones = max(ends), 2 * limit, [o for o in open_ones if o > limit]
    return total
