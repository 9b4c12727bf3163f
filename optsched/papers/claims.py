"""What a target claims, beside what we found; verdicts follow from stated tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.papers.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

REPRODUCED, IN_SHAPE, NOT_REPRODUCED = "reproduced", "reproduced in shape", "not reproduced"


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and our value for it: made by `number` or `shape`."""

    label: str  # what is compared, as the paper names it
    ours: float
    least: float  # between these our value must lie for the claim to count as reproduced
    most: float
    paper: float | None = None  # None where it only states a shape
    low: float | None = None  # a confidence interval of ours; None where nothing is random
    high: float | None = None
    exact: bool = False  # whether the claim is the paper's number, or the shape of its result

    @property
    def holds(self) -> bool:
        """Whether our value lies where it must."""
        return self.least <= self.ours <= self.most

    @property
    def verdict(self) -> str:
        """The claim's own verdict, with the reason where it does not hold."""
        if self.holds:
            return REPRODUCED if self.exact else IN_SHAPE
        if math.isnan(self.ours):
            return f"{NOT_REPRODUCED}: {self.label} has no value"
        off, side, limit = (
            ("below", "least", self.least)
            if self.ours < self.least
            else ("above", "most", self.most)
        )
        paper = f" (paper {self.paper:.6g})" if self.paper is not None else ""
        return (
            f"{NOT_REPRODUCED}: {self.label} is {self.ours:.6g}{paper}, {off} the {side} that "
            f"counts, {limit:.6g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain data; what is infinite or missing is None."""
        numbers = {
            "paper": self.paper,
            "ours": self.ours,
            "low": self.low,
            "high": self.high,
            "least": self.least,
            "most": self.most,
        }
        return {
            "label": self.label,
            **{
                name: float(value) if value is not None and math.isfinite(value) else None
                for name, value in numbers.items()
            },
            "exact": self.exact,
            "verdict": self.verdict,
        }


def number(label: str, paper: float, ours: float | Estimate, *, within: float) -> Claim:
    """Claim a printed number; `within` is a share of it (where that is 0: absolute)."""
    slack = within * (abs(paper) or 1.0)
    mean, low, high = _with_interval(ours)
    return Claim(label, mean, paper - slack, paper + slack, paper, low, high, exact=True)


def shape(
    label: str,
    ours: float | Estimate,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    paper: float | None = None,
) -> Claim:
    """Claim what a result looks like: an order, a slope, a limit that is kept."""
    mean, low, high = _with_interval(ours)
    return Claim(label, mean, at_least, at_most, paper, low, high)


def _with_interval(ours: float | Estimate) -> Estimate:
    return ours if isinstance(ours, Estimate) else Estimate(float(ours), None, None)


def verdict(claims: Sequence[Claim]) -> str:
    """Return the verdict on all claims of a target, of which there is at least one."""
    shapes = [claim for claim in claims if not claim.exact]
    failing = [claim for claim in claims if not claim.holds]
    if not failing:
        return IN_SHAPE if len(shapes) == len(claims) else REPRODUCED
    if shapes and all(claim.holds for claim in shapes):
        return IN_SHAPE
    failing.sort(key=lambda claim: claim.exact)  # shapes first: they are what decides
    others = f"; and {len(failing) - 1} more" if len(failing) > 1 else ""
    return failing[0].verdict + others
