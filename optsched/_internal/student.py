"""Student's t: confidence intervals of means over few seeds or instances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from optsched._internal.numbers import number

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and its confidence interval by Student's t, infinite for a single value."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return number(self.mean)
        return f"{number(self.mean)} ({number(self.low)} to {number(self.high)})"

    def to_dict(self) -> dict[str, float | None]:
        """Return it as plain data; None where an end is infinite."""
        return {
            name: value if math.isfinite(value) else None for name, value in self._asdict().items()
        }


def student(probability: float, count: int) -> float:
    """Return the quantile of Student's t for a mean of so many values."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, probability))


def reach(values: FloatArray, confidence: float = CONFIDENCE) -> float:
    """Return half the width of a two-sided confidence interval of a mean."""
    if len(values) < 2:
        return math.inf
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    return spread * student((1 + confidence) / 2, len(values))


def interval(values: FloatArray, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of values and its two-sided confidence interval."""
    mean, margin = float(values.mean()), reach(values, confidence)
    return Interval(mean, mean - margin, mean + margin)
