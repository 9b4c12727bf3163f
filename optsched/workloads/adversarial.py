"""Adversarial requests: the instances of the papers' proofs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import as_count
from optsched.errors import InstanceError
from optsched.workloads.families import require_requests, workload

if TYPE_CHECKING:
    from numpy.random import Generator

    from optsched._internal.arrays import IntArray
    from optsched.workloads.families import Requests

_MAX_REQUESTS = 10**8  # requests that follow from the memory


def _two_types(
    n: int | None, first: tuple[int, int, int], second: tuple[int, int, int]
) -> Requests:
    """Repeat two types (prompt, output, count), scaled to n requests if n is given."""
    counts = [first[2], second[2]]
    if n is not None:
        counts[0] = min(max(1, round(n * counts[0] / sum(counts))), max(1, n - 1))
        counts[1] = n - counts[0]
    require_requests(sum(counts))
    return np.repeat([first[0], second[0]], counts), np.repeat([first[1], second[1]], counts)


def _root(memory: int) -> int:
    root = math.isqrt(memory)
    if root * root != memory or root < 2:
        near = max(2, round(math.sqrt(memory)))
        raise InstanceError(
            f"memory is {memory}, but this family needs a square from 4; take {near * near}"
        )
    return root


@workload("sorted-f-theorem-1", 64, None, "Sorted-F Theorem 1")
def _theorem_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """M requests of sqrt(M) - 1 and 1 tokens, M^1.5 of 1 and 2: shortest output first fails"""
    root = _root(memory)
    return _as_printed(n, memory, (root - 1, 1), (1, 2))


@workload("sorted-f-theorem-ec-1", 64, None, "Sorted-F Theorem EC.1")
def _theorem_ec_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """M requests of 1 and sqrt(M) - 1 tokens, M^1.5 of sqrt(M) and 1: smallest total first fails"""
    root = _root(memory)
    return _as_printed(n, memory, (1, root - 1), (root, 1))


def _as_printed(
    n: int | None, memory: int, first: tuple[int, int], second: tuple[int, int]
) -> Requests:
    many = memory * math.isqrt(memory)
    if n is None and many > _MAX_REQUESTS:
        raise InstanceError(
            f"with memory {memory} this family has {many + memory:,} requests; give n, or take the "
            "family of the same name that ends in -balanced"
        )
    return _two_types(n, (*first, memory), (*second, many))


@workload("sorted-f-theorem-1-balanced", 64, None, "after Sorted-F Theorem 1")
def _theorem_1_balanced(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the requests of sorted-f-theorem-1 in the numbers for which shortest output first is worst:
    its ratio to the other order grows like M^0.25"""
    root = _root(memory)
    return _balanced(n, memory, (root - 1, 1), (1, 2), batches, of_first=False)


@workload("sorted-f-theorem-1-long", 64, None, "after Sorted-F Theorem 1")
def _theorem_1_long(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the same with prompts of M - 1 in place of sqrt(M) - 1: the ratio grows like M^0.5"""
    return _balanced(n, memory, (memory - 1, 1), (1, 2), batches, of_first=False)


@workload("sorted-f-theorem-ec-1-balanced", 64, None, "after Sorted-F Theorem EC.1")
def _theorem_ec_1_balanced(
    rng: Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """the requests of sorted-f-theorem-ec-1 in the numbers for which smallest total first is worst:
    its ratio to the other order grows like M^0.25"""
    root = _root(memory)
    return _balanced(n, memory, (1, root - 1), (root, 1), batches, of_first=True)


@workload("sorted-f-theorem-ec-1-long", 64, None, "after Sorted-F Theorem EC.1")
def _theorem_ec_1_long(rng: Generator, n: int | None, memory: int, batches: int = 3) -> Requests:
    """the same with peaks of M - 1 and M in place of sqrt(M) and sqrt(M) + 1: the ratio grows like
    M^0.5"""
    return _balanced(n, memory, (1, memory - 2), (memory - 1, 1), batches, of_first=True)


def _balanced(
    n: int | None,
    memory: int,
    first: tuple[int, int],
    second: tuple[int, int],
    batches: int,
    *,
    of_first: bool,
) -> Requests:
    """Take so many batches of two types that serving the first type first is as bad as can be."""
    if memory < 16:
        raise InstanceError(f"memory is {memory}, but this family needs 16 or more")
    as_count("batches", batches)
    (d, p), (e, q) = ((o, memory // (s + o)) for s, o in (first, second))
    weight, other = (d * p, e * q) if of_first else (e * q, d * p)
    matched = max(1, round(math.sqrt(weight * batches * (batches + 1) / other)))
    a, b = (batches, matched) if of_first else (matched, batches)
    if n is None and a * p + b * q > _MAX_REQUESTS:
        raise InstanceError(f"this would be {a * p + b * q:,} requests; take fewer batches")
    return _two_types(n, (*first, a * p), (*second, b * q))


@workload("sorted-f-example-1", 64, None, "Sorted-F Example 1")
def _example_1(rng: Generator, n: int | None, memory: int) -> Requests:
    """one request of M - 1 and 1 tokens before many of 1 and 2"""
    seconds = memory // 3 if n is None else n - 1
    require_requests(seconds)
    return np.array([memory - 1] + [1] * seconds), np.array([1] + [2] * seconds)


@workload("jaillet-theorem-6-2", 64, None, "Jaillet Theorem 6.2")
def _jaillet(rng: Generator, n: int | None, memory: int) -> tuple[IntArray, IntArray, IntArray]:
    """one request that fills the memory, and short ones that come shortly before it ends"""
    # epsilon = shorts / M. The long request is taken to start at once, t' = 0.
    shorts = memory // 8 if n is None else n - 1
    if not 1 <= 2 * shorts <= memory:
        raise InstanceError(
            f"n is {shorts + 1}, but must be from 2 to 1 + half of the memory {memory}"
        )
    require_requests(shorts)
    arrivals = np.array([0] + [memory - 2 * shorts] * shorts)
    return np.full(shorts + 1, shorts), np.array([memory - shorts] + [1] * shorts), arrivals


@workload("jaillet-theorem-6-4", 64, None, "after Jaillet Theorem 6.4")
def _jaillet_random(rng: Generator, n: int | None, memory: int, delay: int = 2) -> Requests:
    """the same requests, but the short ones come at a random step: an algorithm that starts the
    long one within delay * memory steps has no constant ratio in expectation"""
    prompts, outputs = _jaillet(rng, n, memory)[:2]
    as_count("delay", delay)
    shorts = len(prompts) - 1
    # From epsilon M to (delay + 1 - 2 epsilon) M, in steps of epsilon M: each is as likely.
    place = rng.integers(1, (delay + 1) * (memory // shorts) - 1)
    return prompts, outputs, np.array([0] + [place * shorts] * shorts)


@workload("robust-two-point", 400, None, "Robust Theorem 5.1")
def _robust_two_point(
    rng: Generator,
    n: int | None,
    memory: int,
    short: int = 4,
    long: int = 20,
    share: float = 0.5,
) -> Requests:
    """no prompts, outputs short or long: A_min is bounded by (3 - short / long) / 2, where the
    share of short ones is long / (short + long)"""
    if not (1 <= short <= long <= memory and 0 <= share <= 1):
        raise InstanceError(
            f"short is {short}, long {long} and share {share}, but must be whole numbers with "
            f"1 <= short <= long <= memory {memory}, and from 0 to 1"
        )
    count = 20 * memory // short if n is None else n
    require_requests(count)
    shorts = round(share * count)
    outputs = np.repeat([short, long], [shorts, count - shorts])
    return np.zeros_like(outputs), outputs


@workload("robust-theorem-3-4", 64, None, "Robust Theorem 3.4")
def _robust_theorem_3_4(
    rng: Generator,
    n: int | None,
    memory: int,
    short: int = 4,
    batches: int = 100,
    mix: float | None = None,
) -> Requests:
    """no prompts, outputs short and M / short in so many batches: reserving the longest output for
    each costs 3 times H-SF here, not the printed 6"""
    if not (short >= 1 and memory % short == 0 and memory // short >= short and batches >= 1):
        raise InstanceError(
            f"short is {short} and batches {batches}, but short must divide the memory {memory} "
            "and be at most its root, and there is at least one batch"
        )
    long = memory // short
    shorts = round((math.sqrt(short / long) if mix is None else mix) * batches)
    return _two_types(n, (0, short, shorts * long), (0, long, batches * short))


@workload("partition", 100, 20, "Partition, Sorted-F Theorem EC.2")
def _partition(rng: Generator, n: int, memory: int) -> Requests:
    """2 batches can hold all requests, makespan 2"""
    if n < 2 or n - n // 2 > memory:
        raise InstanceError(f"n is {n}, but must be from 2 to twice the memory {memory}")
    halves = []
    for count in (n // 2, n - n // 2):
        cuts = np.sort(rng.choice(memory - 1, count - 1, replace=False)) + 1
        halves.append(np.diff(cuts, prepend=0, append=memory))
    return _sets(rng, np.concatenate(halves))


@workload("partition-no", 101, 20, "Partition, Sorted-F Theorem EC.2")
def _partition_no(rng: Generator, n: int, memory: int) -> Requests:
    """2 batches cannot hold all requests by parity, makespan 3 or more"""
    halves = memory
    if not memory % 2 or not 3 <= n <= halves:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but the memory must be odd and n from 3 to it"
        )
    while True:
        cuts = np.sort(rng.choice(halves - 1, n - 1, replace=False)) + 1
        numbers = np.diff(cuts, prepend=0, append=halves)
        if 2 * numbers.max() <= memory:
            return _sets(rng, 2 * numbers)


@workload("3-partition", 100, 30, "3-Partition, Sorted-F Theorem 2")
def _three_partition(rng: Generator, n: int, memory: int) -> Requests:
    """n / 3 batches of three requests each fill the memory"""
    least = memory // 4 + 1
    if n % 3 or 3 * least > memory:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but n must be a multiple of 3 and the memory the "
            "sum of three numbers above its quarter, as 100 is"
        )
    # All three exceed a quarter of the memory, so that none reaches half of it.
    first = rng.integers(least, memory - 2 * least + 1, n // 3)
    second = rng.integers(least, memory - least - first + 1)
    return _sets(rng, np.concatenate([first, second, memory - first - second]))


@workload("3-partition-no", 99, 30, "3-Partition, Sorted-F Theorem 2")
def _three_partition_no(rng: Generator, n: int, memory: int) -> Requests:
    """n / 3 batches cannot hold all requests by divisibility"""
    groups = n // 3
    prime = next((p for p in range(2, groups + 1) if groups % p == 0 and memory % p), 0)
    least, most = (memory // (4 * prime) + 1, (memory - 1) // (2 * prime)) if prime else (1, 0)
    total = groups * memory // max(prime, 1)
    if n % 3 or not n * least <= total <= n * most:
        raise InstanceError(
            f"n is {n} and the memory {memory}, but n must be a multiple of 3 and n / 3 must have "
            "a prime factor p that does not divide the memory, with multiples of p between its "
            "quarter and its half, as 30 and 99 have"
        )
    numbers = rng.integers(least, most + 1, n)
    while (missing := total - int(numbers.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(numbers != (most if missing > 0 else least))
        numbers[rng.choice(free, min(abs(missing), len(free)), replace=False)] += step
    return _sets(rng, prime * numbers)


def _sets(rng: Generator, numbers: IntArray) -> Requests:
    # A request of s tokens holds s + 1 while it makes its only one; the proofs count it as s.
    return rng.permutation(numbers) - 1, np.ones(len(numbers), dtype=np.int64)
