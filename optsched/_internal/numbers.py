"""Numbers: exact ones, how they are shown, and Student's intervals."""

from __future__ import annotations

import math
from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat

from optsched._internal.aside import untimed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray


def in_units(numbers: npt.NDArray[np.number | np.object_]) -> tuple[Fraction, list[int]]:
    """Write numbers as whole multiples of the largest number that divides them all."""
    ratios = [number.as_integer_ratio() for number in numbers.tolist()]
    common = math.lcm(*{below for _, below in ratios})
    whole = [above * (common // below) for above, below in ratios]
    divisor = math.gcd(*whole) or common
    return Fraction(divisor, common), [number // divisor for number in whole]


def exact_dot(numbers: npt.NDArray[np.number], others: npt.NDArray[np.number]) -> Fraction:
    """Return the sum of products without rounding."""
    (unit, whole), (other_unit, other_whole) = in_units(numbers), in_units(others)
    return unit * other_unit * int(sum(map(mul, whole, other_whole)))


def round_down(value: Fraction) -> float:
    """Return the largest double that is not above a fraction."""
    close = float(value)
    return close if Fraction(close) <= value else math.nextafter(close, -math.inf)


def proven(
    value: SupportsFloat, *, up: bool = False, decimals: int | None = None, digits: int = 6
) -> str:
    """Write a lower bound, rounded down, or with `up` a gap or an upper bound, rounded up."""
    if not math.isfinite(value):
        return f"{float(value):,}"
    exact = _exact(value)  # a float counts as the decimal that it is written as
    shown = decimals
    if shown is None:
        first = math.floor(math.log10(abs(exact))) if exact else 0  # power of ten, or one above
        shown = 0 if exact.denominator == 1 else max(0, digits - 1 - first)
    whole = (math.ceil if up else math.floor)(exact * 10**shown)
    units, rest = divmod(abs(whole), 10**shown)
    text = f"{'-' * (whole < 0)}{units:,}" + (f".{rest:0{shown}d}" if shown else "")
    return text.rstrip("0").rstrip(".") if decimals is None and shown else text


def _exact(value: SupportsFloat) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(str(value))


def percent(share: SupportsFloat, decimals: int = 1) -> str:
    """Write a gap, or another share that is proven to be an upper limit, rounded up."""
    if not math.isfinite(share):
        return f"{float(share)}%"
    return f"{proven(100 * _exact(share), up=True, decimals=decimals)}%"


def small_percent(share: float) -> str:
    """Write a gap, rounded up, with two decimals, or with as many as it has."""
    if not 0 < share < math.inf:
        return percent(share, 2)
    if share < 1e-3:
        share += 2**-50  # what a difference of doubles that are close has lost
    return percent(share, max(2, math.ceil(-math.log10(100 * share))))


def number(value: float, digits: int = 4) -> str:
    """Write a number with so many digits, or with all that stand before the point."""
    shown = f"{value:,.{digits}g}"
    return f"{value:,.0f}" if "e+" in shown else shown


def duration(seconds: float) -> str:
    """Write a duration in the unit that people would say it in: 5.73 s, 43 ms."""
    return f"{number(seconds, 3)} s" if seconds >= 1 else f"{number(1e3 * seconds, 3)} ms"


def at_least(value: SupportsFloat) -> str:
    """Write a proven lower bound, rounded down, with a decimal if it is small and not whole."""
    return proven(value, decimals=0 if float(value) >= 1e4 or float(value).is_integer() else 1)


def interval(low: float, high: float) -> str:
    """Write an interval, rounded outwards; the upper end may be infinite."""
    upper = proven(high, up=True, decimals=_decimals(high)) if math.isfinite(high) else "..."
    return f"{down(low)} to {upper}"


def down(value: float) -> str:
    """Write the lower end of an interval, rounded down."""
    return proven(value, decimals=_decimals(value))


def _decimals(value: float) -> int:
    return 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


CONFIDENCE = 0.95


class ConfidenceInterval(NamedTuple):
    """A mean and its confidence interval by Student's t, infinite for a single value."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: FloatArray, confidence: float = CONFIDENCE) -> ConfidenceInterval:
        """Return the mean of values and its two-sided confidence interval."""
        mean, margin = float(values.mean()), reach(values, confidence)
        return cls(mean, mean - margin, mean + margin)

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
    with untimed():
        from scipy.special import stdtrit

    return float(stdtrit(count - 1, probability))


def reach(values: FloatArray, confidence: float = CONFIDENCE) -> float:
    """Return half the width of a two-sided confidence interval of a mean."""
    if len(values) < 2:
        return math.inf
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    return spread * student((1 + confidence) / 2, len(values))
