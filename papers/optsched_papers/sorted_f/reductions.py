"""Hard questions about numbers as scheduling instances (Sorted-F, Theorems 2 and EC.2)."""

# Every number x becomes a request that makes one token. In that step it holds s + 1 tokens by Eq.
# 6; the proofs print s = x and the intended sum as the memory, in which no batch of that sum fits.
# Triples need three tokens more; halves, whose size is open, have prompts s = x - 1 instead.
# `Reduction.decide` answers from the numbers alone, to be compared with an optimum.

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched.errors import InstanceError
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Reduction:
    """A yes-or-no question about numbers, and the instance whose optimum answers it."""

    question: Literal["3-partition", "partition"]
    numbers: tuple[int, ...]
    instance: Instance  # one request per number, in the same order
    objective: Literal["total-latency", "makespan"]
    least: int  # the optimum where the answer is yes; where it is no, the optimum is larger

    def read(self, optimum: float) -> bool:
        """Whether the answer is yes, from the proven least value of the objective."""
        if optimum < self.least - 0.5:
            raise InstanceError(
                f"an optimum of {optimum:g} was read, but no schedule is below {self.least}"
            )
        return optimum < self.least + 0.5

    def decide(self) -> bool:
        """Answer from the numbers alone: by all sums of subsets, or by trying all triples."""
        if self.question == "partition":
            return _has_half(self.numbers)
        return _has_triples(
            sorted(self.numbers, reverse=True), 3 * sum(self.numbers) // len(self.numbers)
        )


def three_partition(numbers: Iterable[int]) -> Reduction:
    r"""Ask whether :math:`3 m` numbers can be split into triples of equal sum :math:`T`."""
    given = _checked(numbers)
    groups, rest = divmod(len(given), 3)
    if rest or not groups or sum(given) % groups:
        raise InstanceError(
            f"{len(given)} numbers with sum {sum(given)} were given, but 3-partition needs 3 m "
            "numbers whose sum is a multiple of m"
        )
    total = sum(given) // groups
    for number in given:
        if not total < 4 * number < 2 * total:
            raise InstanceError(
                f"{number} is among the numbers, but all must be above a quarter and below a half "
                f"of {total}"
            )
    least = 3 * groups * (groups + 1) // 2
    requests = Instance(np.array(given), np.ones(len(given), dtype=np.int64), total + 3)
    return Reduction("3-partition", given, requests, "total-latency", least)


def partition(numbers: Iterable[int]) -> Reduction:
    """Ask whether numbers can be split into two parts of equal sum: makespan 2, otherwise more."""
    given = _checked(numbers)
    half, odd = divmod(sum(given), 2)
    if odd or not given or max(given) > half:
        raise InstanceError(
            f"numbers with sum {sum(given)} and largest {max(given, default=0)} were given, "
            "but partition needs an even sum and none above its half"
        )
    requests = Instance(np.array(given) - 1, np.ones(len(given), dtype=np.int64), half)
    return Reduction("partition", given, requests, "makespan", 2)


def _checked(numbers: Iterable[int]) -> tuple[int, ...]:
    given = tuple(numbers)
    for number in given:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
            raise InstanceError(f"{number!r} is among the numbers, but all must be whole, from 1")
    return tuple(map(int, given))


def _has_half(numbers: Sequence[int]) -> bool:
    sums = 1  # bit k is set where k is the sum of a subset
    for number in numbers:
        sums |= sums << number
    return bool(sums >> sum(numbers) // 2 & 1)


def _has_triples(descending: Sequence[int], total: int) -> bool:
    """Try all triples with the largest number, then split what is left."""
    if not descending:
        return True
    largest, others = descending[0], descending[1:]
    for i, j in itertools.combinations(range(len(others)), 2):
        repeated = (i and others[i] == others[i - 1]) or (j > i + 1 and others[j] == others[j - 1])
        if largest + others[i] + others[j] == total and not repeated:
            left = [number for place, number in enumerate(others) if place not in (i, j)]
            if _has_triples(left, total):
                return True
    return False
