"""Student's t, for confidence limits of means over few seeds."""

from __future__ import annotations


def student(probability: float, count: int) -> float:
    """Return the quantile of Student's t for a mean of so many values."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, probability))
