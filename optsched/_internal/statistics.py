"""Student's intervals and smoothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.numbers import number

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray


CONFIDENCE = 0.95


class ConfidenceInterval(NamedTuple):
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


def interval(values: FloatArray, confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """Return the mean of values and its two-sided confidence interval."""
    mean, margin = float(values.mean()), reach(values, confidence)
    return ConfidenceInterval(mean, mean - margin, mean + margin)


_REACH = 5.0  # bandwidths, beyond which a kernel is below a hundred-thousandth of its peak


@compiled
def smooth(values: IntArray, counts: IntArray, bandwidth: float, total: FloatArray) -> None:
    """Spread each value over those near it; rows of counts become rows of chances of 1, 2, ..."""
    longest = total.shape[1]
    near = np.empty(longest)
    factor = np.exp(_REACH * bandwidth)
    for at in range(len(values)):
        value = values[at]
        first, last = int(value / factor) + 1, min(int(value * factor), longest)
        whole = 0.0
        for output in range(first, last + 1):
            distance = np.log(output / value) / bandwidth
            near[output - 1] = np.exp(-0.5 * distance * distance) / output
            whole += near[output - 1]
        for row in range(len(counts)):
            if counts[row, at] == 0:
                continue
            for output in range(first, last + 1):
                total[row, output - 1] += counts[row, at] / whole * near[output - 1]
