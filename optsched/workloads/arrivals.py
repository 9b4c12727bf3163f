"""Arrival processes: when the requests of a family come."""

from __future__ import annotations

import math

import numpy as np

from optsched._internal.arrays import IntArray
from optsched.errors import InstanceError

#: What a family draws: prompts and outputs, and arrivals where the family sets them.
Requests = tuple[IntArray, IntArray] | tuple[IntArray, IntArray, IntArray]


def poisson(requests: int, rate: float, rng: np.random.Generator) -> IntArray:
    """Draw the steps in which a Poisson process brings its first requests.

    Parameters
    ----------
    requests
        How many requests come.
    rate
        Requests per step in the mean.
    rng
        The source of randomness.

    Returns
    -------
    IntArray
        Steps, ascending, shape (n,): the instants of the process rounded down, so that a request
        that comes during a step may start at its beginning.

    Raises
    ------
    InstanceError
        If the rate is not positive and finite.

    Examples
    --------
    >>> poisson(5, rate=0.5, rng=np.random.default_rng(0))
    array([1, 3, 3, 3, 4])
    """
    _check_rate(rate)
    return np.floor(np.cumsum(rng.exponential(1 / rate, requests))).astype(np.int64)


def bounded(requests: int, rate: float, rng: np.random.Generator) -> IntArray:
    """Draw the steps of requests whose number per step is bounded (Jaillet Section 3).

    Each step brings, independently of the others, a binomial number of requests: of b trials with
    b the first whole number from twice the rate on.

    Parameters
    ----------
    requests
        How many requests come.
    rate
        Requests per step in the mean.
    rng
        The source of randomness.

    Returns
    -------
    IntArray
        Steps, ascending, shape (n,); none occurs more than b times.

    Raises
    ------
    InstanceError
        If the rate is not positive and finite.

    Examples
    --------
    >>> bounded(9, rate=1.5, rng=np.random.default_rng(0))
    array([0, 0, 1, 4, 4, 5, 5, 5, 6])
    """
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
