"""Sums of floats without rounding: every float is a whole number times a power of two."""

from __future__ import annotations

import math
from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def in_units(numbers: npt.NDArray[np.number]) -> tuple[Fraction, list[int]]:
    """Write numbers as whole multiples of the largest number that divides them all."""
    ratios = [number.as_integer_ratio() for number in numbers.tolist()]
    common = max((below for _, below in ratios), default=1)
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
