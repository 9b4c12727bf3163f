"""What BF-IO Section 5 proves of a cluster's imbalance, and what the proofs ask for."""

# All B slots of G workers are in use. After each step a request ends with probability p,
# independently; those that stay gain delta tokens. Prompts have standard deviation sigma_s and at
# most s_max tokens. Logarithms are natural.

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The constant that the proofs of (C5) and (C17) give: (1 - e^(-1 / (4 sqrt(2 pi)))) / sqrt 2.
PROVEN_CONSTANT = (1 - math.exp(-1 / (4 * math.sqrt(2 * math.pi)))) / math.sqrt(2)

_MAX_SLOTS = 10**30


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    r"""Return the mean of the largest of independent standard normal numbers."""
    if count < 1:
        raise ModelError(f"count is {count}, but there is no largest of less than 1 number")
    from scipy.integrate import quad
    from scipy.special import ndtr

    def tail(x: float) -> float:
        return float(1 - ndtr(x) ** count - ndtr(-x) ** count)

    return float(quad(tail, 0, 40, limit=200, points=[math.sqrt(2 * math.log(count + 1))])[0])


def slot_deviation(
    prompt_deviation: float, completion: float = 1.0, drift: float | Sequence[float] = 1.0
) -> float:
    r"""Return the standard deviation of the tokens in a slot, prompt and growth (C15)."""
    _check_completion(completion)
    gains = np.atleast_1d(np.asarray(drift, dtype=np.float64))
    # Age is at least a with probability (1 - p)^a. From the last entry on growth is linear in what
    # is left of the age, which is geometric again.
    alive = (1 - completion) ** np.arange(len(gains) + 1)
    grown = np.concatenate([[0.0], np.cumsum(gains)])[:-1]  # before each age's gain
    at_age = completion * alive[:-1]
    rest, spread = (1 - completion) / completion, (1 - completion) / completion**2
    last = len(gains) - 1
    at_last = grown[last] + gains[last] * rest
    mean = float(at_age[:last] @ grown[:last] + alive[last] * at_last)
    square = float(
        at_age[:last] @ grown[:last] ** 2 + alive[last] * (at_last**2 + gains[last] ** 2 * spread)
    )
    return math.sqrt(prompt_deviation**2 + max(square - mean**2, 0.0))


def fcfs_imbalance(workers: int, slots: int, deviation: float) -> float:
    r"""Return the mean imbalance of first come, first served, where loads are normal."""
    return workers * deviation * math.sqrt(slots) * expected_maximum(workers)


def improvement_bound(
    workers: int, slots: int, deviation: float, largest_prompt: int, completion: float = 1.0
) -> float:
    r"""Return the least ratio of the imbalance of FCFS to that of BF-IO (Theorems 1 to 3)."""
    if workers < 2:
        raise ModelError(f"workers is {workers}, but one alone is always balanced")
    _check_completion(completion)
    scale = math.sqrt(slots * math.log(workers)) * workers / (workers - 1)
    return PROVEN_CONSTANT * completion * deviation / largest_prompt * scale


def slots_required(workers: int, largest_prompt: int, completion: float) -> int:
    r"""Return the fewest slots per worker that the proof of Theorem 2 asks for (C8)."""
    _check_completion(completion)
    if largest_prompt < 1:
        raise ModelError(f"largest_prompt is {largest_prompt}, but must be at least 1")
    gamma = 1 - (2 * largest_prompt - 1) / (4 * largest_prompt)

    def is_enough(slots: int) -> bool:
        alpha = 3 * math.log(workers * slots)
        spread = math.sqrt(completion * (1 - completion) * slots * alpha)
        largest = largest_prompt + math.ceil(alpha / completion)
        return gamma * slots * completion >= 16 * largest * max(spread, alpha)

    # From the top: where few slots are few requests too, too few can look enough.
    enough = _MAX_SLOTS
    if not is_enough(enough):
        raise ModelError(f"the proof asks for more than {_MAX_SLOTS:.0e} slots per worker")
    while enough > 1 and is_enough(enough // 2):
        enough //= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if is_enough(middle) else (enough, middle)
    return enough


def _check_completion(completion: float) -> None:
    if not 0 < completion <= 1:
        raise ModelError(
            f"completion is {completion}, but must be a probability above 0, at most 1"
        )
