"""Means over seeds with confidence intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean and its 95 % confidence interval (Student's t); without one after a single run."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean from independent runs.

    Parameters
    ----------
    values
        One number per run.

    Returns
    -------
    Estimate
        The mean of the numbers and what is known of the true one.

    Examples
    --------
    >>> [round(number, 2) for number in estimate([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    >>> estimate([1.0])
    Estimate(mean=1.0, low=None, high=None)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None)
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    reach = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)
