"""Means over seeds with confidence intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean and its 95 % confidence interval (Student's t); without one after a single run."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean from independent runs, one number each."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None)
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    reach = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Estimate the mean of ratios, paired run by run."""
    return estimate([a / b for a, b in zip(above, below, strict=True)])


def means(runs: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Estimate the mean of a column for each combination of others, in the order of the runs."""
    groups = runs.groupby(list(by), sort=False)[value]
    rows = [[*key, *estimate(values.tolist())] for key, values in groups]
    return pd.DataFrame(rows, columns=[*by, value, "low", "high"])
