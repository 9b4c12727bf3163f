"""Numbers that stay true when rounded: bounds downwards, gaps and upper ends upwards."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def percent(share: float) -> str:
    """Write a share that is proven to be an upper limit, rounded up."""
    return f"{_tenths(100 * Decimal(repr(float(share))), ROUND_CEILING):,}%"


def at_least(value: float) -> str:
    """Write a proven lower bound, rounded down; from ten thousand on without a decimal."""
    if value >= 1e4:
        return f"{math.floor(value):,}"
    return f"{_tenths(Decimal(repr(float(value))), ROUND_FLOOR):,}"


def _tenths(value: Decimal, rounding: str) -> Decimal:
    return value.quantize(Decimal("0.1"), rounding)


def round_to(value: float, rounding: str, digits: int = 6) -> Decimal:
    """Round to that many significant digits, and a whole number to itself."""
    exact = Decimal(repr(float(value)))
    if exact == exact.to_integral_value():
        return exact.quantize(Decimal(1))
    return exact.quantize(Decimal(1).scaleb(min(0, exact.adjusted() + 1 - digits)), rounding)


def interval(low: float, high: float) -> str:
    """Write an interval, rounded outwards; the upper end may be infinite."""
    return f"{down(low)} to {_up(high) if math.isfinite(high) else '...'}"


def down(value: float) -> str:
    """Write the lower end of an interval, rounded down."""
    decimals = _decimals(value)
    return f"{math.floor(value * 10**decimals + 1e-9) / 10**decimals:,.{decimals}f}"


def _up(value: float) -> str:
    decimals = _decimals(value)
    return f"{math.ceil(value * 10**decimals - 1e-9) / 10**decimals:,.{decimals}f}"


def _decimals(value: float) -> int:
    return 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
