"""Adversarial requests: the instances of the papers' proofs.

Sorted-F is "LLM Serving Optimization with Variable Prefill and Decode Lengths", Jaillet is "Online
Scheduling for LLM Inference with KV Cache Constraints", Robust is "Adaptively Robust LLM Inference
Optimization under Prediction Uncertainty". Each function makes requests from a random
generator, the number of requests and the memory; `optsched.workloads.families` names them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.instance import Instance
    from optsched.workloads.arrivals import Requests

_MAX_REQUESTS = 10**8  # requests that follow from the memory


def _two_types(
    n: int | None, first: tuple[int, int, int], second: tuple[int, int, int]
) -> Requests:
    """Repeat two types (prompt, output, count), scaled to n requests if n is given."""
    counts = [first[2], second[2]]
    if n is not None:
        counts[0] = min(max(1, round(n * counts[0] / sum(counts))), max(1, n - 1))
        counts[1] = n - counts[0]
    return np.repeat([first[0], second[0]], counts), np.repeat([first[1], second[1]], counts)


def _root(memory: int) -> int:
    root = math.isqrt(memory)
    if root * root != memory or root < 2:
        near = max(2, round(math.sqrt(memory)))
        raise InstanceError(
            f"memory is {memory}, but this family needs a square from 4; take {near * near}"
        )
    return root


def theorem_1(rng: np.random.Generator, n: int | None, memory: int) -> Requests:
    """Make the requests of Sorted-F Theorem 1 as printed."""
    root = _root(memory)
    return _as_printed(n, memory, (root - 1, 1), (1, 2))


def theorem_ec_1(rng: np.random.Generator, n: int | None, memory: int) -> Requests:
    """Make the requests of Sorted-F Theorem EC.1 as printed."""
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


def opposite_orders(instance: Instance) -> tuple[int, int]:
    r"""Total latency of two types of requests, in full batches that follow one another."""
    pairs = np.stack([instance.prompts, instance.outputs], axis=1)
    types, at, counts = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    if len(types) != 2:
        raise InstanceError(f"the instance has {len(types)} types of requests, but 2 are needed")
    order = np.argsort(at)
    rows = [(*types[k].tolist(), int(counts[k])) for k in order]
    return _in_batches(rows, instance.memory), _in_batches(rows[::-1], instance.memory)


def _in_batches(rows: list[tuple[int, int, int]], memory: int) -> int:
    begin = total = 0
    for prompt, output, count in rows:
        size = memory // (prompt + output)
        full, rest = divmod(count, size)
        total += begin * count + output * (size * full * (full + 1) // 2 + rest * (full + 1))
        begin += output * (full + (rest > 0))
    return total


def theorem_1_balanced(
    rng: np.random.Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """Take the types of Sorted-F Theorem 1 in the worst numbers; `batches` of the second."""
    root = _root(memory)
    return _balanced(n, memory, (root - 1, 1), (1, 2), batches, of_first=False)


def theorem_1_long(
    rng: np.random.Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """Make the requests of Sorted-F Theorem 1 with prompts that fill the memory."""
    return _balanced(n, memory, (memory - 1, 1), (1, 2), batches, of_first=False)


def theorem_ec_1_balanced(
    rng: np.random.Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """Take the types of Sorted-F Theorem EC.1 in the worst numbers; `batches` of the first."""
    root = _root(memory)
    return _balanced(n, memory, (1, root - 1), (root, 1), batches, of_first=True)


def theorem_ec_1_long(
    rng: np.random.Generator, n: int | None, memory: int, batches: int = 3
) -> Requests:
    """Make the requests of Sorted-F Theorem EC.1 with requests that fill the memory."""
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
    if int(batches) != batches or batches < 1:
        raise InstanceError(f"batches is {batches}, but must be a whole number from 1")
    given = int(batches)
    (d, p), (e, q) = ((o, memory // (s + o)) for s, o in (first, second))
    weight, other = (d * p, e * q) if of_first else (e * q, d * p)
    matched = max(1, round(math.sqrt(weight * given * (given + 1) / other)))
    a, b = (given, matched) if of_first else (matched, given)
    if n is None and a * p + b * q > _MAX_REQUESTS:
        raise InstanceError(f"this would be {a * p + b * q:,} requests; take fewer batches")
    return _two_types(n, (*first, a * p), (*second, b * q))


def example_1(rng: np.random.Generator, n: int | None, memory: int) -> Requests:
    """Make the requests of Sorted-F Example 1."""
    seconds = memory // 3 if n is None else n - 1
    return np.array([memory - 1] + [1] * seconds), np.array([1] + [2] * seconds)


def jaillet(rng: np.random.Generator, n: int | None, memory: int) -> Requests:
    """Make the requests of Jaillet Theorem 6.2."""
    # epsilon = shorts / M. The long request is taken to start at once, t' = 0.
    shorts = memory // 8 if n is None else n - 1
    if not 1 <= 2 * shorts <= memory:
        raise InstanceError(
            f"n is {shorts + 1}, but must be from 2 to 1 + half of the memory {memory}"
        )
    arrivals = np.array([0] + [memory - 2 * shorts] * shorts)
    return np.full(shorts + 1, shorts), np.array([memory - shorts] + [1] * shorts), arrivals


def robust_two_point(
    rng: np.random.Generator,
    n: int | None,
    memory: int,
    short: int = 4,
    long: int = 20,
    share: float = 0.5,
) -> Requests:
    """Make requests without prompts whose outputs are one of two (Robust Section 5.1)."""
    if not (1 <= short <= long <= memory and 0 <= share <= 1):
        raise InstanceError(
            f"short is {short}, long {long} and share {share}, but must be whole numbers with "
            f"1 <= short <= long <= memory {memory}, and from 0 to 1"
        )
    count = 20 * memory // int(short) if n is None else n
    shorts = round(share * count)
    outputs = np.repeat([int(short), int(long)], [shorts, count - shorts])
    return np.zeros_like(outputs), outputs


def robust_theorem_3_4(
    rng: np.random.Generator,
    n: int | None,
    memory: int,
    short: int = 4,
    batches: int = 100,
    mix: float | None = None,
) -> Requests:
    """Make the requests of Robust Theorem 3.4, M = l u: `batches` of long ones, mix of short."""
    if not (short >= 1 and memory % short == 0 and memory // short >= short and batches >= 1):
        raise InstanceError(
            f"short is {short} and batches {batches}, but short must divide the memory {memory} "
            "and be at most its root, and there is at least one batch"
        )
    short, long = int(short), memory // int(short)
    shorts = round((math.sqrt(short / long) if mix is None else mix) * batches)
    return _two_types(n, (0, short, shorts * long), (0, long, int(batches) * short))


def partition(rng: np.random.Generator, n: int, memory: int) -> Requests:
    """Make the requests of Partition (Sorted-F Theorem EC.2)."""
    if n < 2 or n - n // 2 > memory:
        raise InstanceError(f"n is {n}, but must be from 2 to twice the memory {memory}")
    halves = []
    for count in (n // 2, n - n // 2):
        cuts = np.sort(rng.choice(memory - 1, count - 1, replace=False)) + 1
        halves.append(np.diff(cuts, prepend=0, append=memory))
    return _sets(rng, np.concatenate(halves))


def three_partition(rng: np.random.Generator, n: int, memory: int) -> Requests:
    """Make the requests of 3-Partition (Sorted-F Theorem 2)."""
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


def partition_no(rng: np.random.Generator, n: int, memory: int) -> Requests:
    """Make the requests of a question of Partition that parity answers with no."""
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


def three_partition_no(rng: np.random.Generator, n: int, memory: int) -> Requests:
    """Make the requests of a question of 3-Partition that divisibility answers with no."""
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


def _sets(rng: np.random.Generator, numbers: IntArray) -> Requests:
    # A request of s tokens holds s + 1 while it makes its only one; the proofs count it as s.
    return rng.permutation(numbers) - 1, np.ones(len(numbers), dtype=np.int64)
