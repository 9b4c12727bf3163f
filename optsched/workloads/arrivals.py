"""Arrival processes: when the requests of a family come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError

if TYPE_CHECKING:
    from optsched.instance import IntArray


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
    if not 0 < rate < np.inf:
        raise InstanceError(f"rate is {rate}, but must be a positive number of requests per step")
    return np.floor(np.cumsum(rng.exponential(1 / rate, requests))).astype(np.int64)
