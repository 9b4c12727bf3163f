"""Arrival processes: when the requests of a family come."""

from __future__ import annotations

import math

import numpy as np

from optsched._internal.arrays import IntArray
from optsched.errors import InstanceError

#: What a family draws: prompts and outputs, and arrivals where the family sets them.
Requests = tuple[IntArray, IntArray] | tuple[IntArray, IntArray, IntArray]


def poisson(requests: int, rate: float, rng: np.random.Generator) -> IntArray:
    """Draw the steps in which a Poisson process brings its first requests."""
    _check_rate(rate)
    return np.floor(np.cumsum(rng.exponential(1 / rate, requests))).astype(np.int64)


def bounded(requests: int, rate: float, rng: np.random.Generator) -> IntArray:
    """Draw the steps of requests whose number per step is bounded (Jaillet Section 3)."""
    _check_rate(rate)
    most = math.ceil(2 * rate)
    steps = np.empty(0, dtype=np.int64)
    begin = 0
    while len(steps) < requests:
        more = 1 + int((requests - len(steps)) / rate)
        counts = rng.binomial(most, rate / most, more)
        steps = np.concatenate([steps, np.repeat(np.arange(begin, begin + more), counts)])
        begin += more
    return steps[:requests]


def _check_rate(rate: float) -> None:
    if not 0 < rate < np.inf:
        raise InstanceError(f"rate is {rate}, but must be a positive number of requests per step")
