"""What a target claims, beside what we found; verdicts follow from stated tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

REPRODUCED, IN_SHAPE, NOT_REPRODUCED = "reproduced", "reproduced in shape", "not reproduced"


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and our value for it: made by `number` or `shape`.

    Attributes
    ----------
    label
        What is compared, as the paper names it.
    ours
        Our value.
    least, most
        Between these our value must lie for the claim to count as reproduced.
    paper
        The paper's value; None where it only states a shape.
    low, high
        A confidence interval of our value; None where nothing is random.
    exact
        Whether the claim is the paper's number; otherwise it is the shape of its result.
    """

    label: str
    ours: float
    least: float
    most: float
    paper: float | None = None
    low: float | None = None
    high: float | None = None
    exact: bool = False

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
        """Give the claim as plain data; what is infinite or missing is None."""
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


def number(
    label: str,
    paper: float,
    ours: float,
    *,
    within: float,
    low: float | None = None,
    high: float | None = None,
) -> Claim:
    """Claim a number that the paper prints.

    Parameters
    ----------
    label
        What is compared.
    paper, ours
        The two values.
    within
        By how much ours may differ, as a share of the paper's (where that is 0: absolutely).
    low, high
        A confidence interval of ours.

    Returns
    -------
    Claim
        Holds where ours differs by no more.

    Examples
    --------
    >>> number("u=100", 2.3354, 2.3333, within=0.01).verdict
    'reproduced'
    >>> number("u=1", 1.222, 1.0, within=0.01).verdict
    'not reproduced: u=1 is 1 (paper 1.222), below the least that counts, 1.20978'
    """
    slack = within * (abs(paper) or 1.0)
    return Claim(label, ours, paper - slack, paper + slack, paper, low, high, exact=True)


def shape(
    label: str,
    ours: float,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    paper: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Claim:
    """Claim what a result looks like: an order, a slope, a limit that is kept.

    Parameters
    ----------
    label
        What is compared.
    ours
        Our value.
    at_least, at_most
        Between these it must lie.
    paper
        The paper's value, where it says one.
    low, high
        A confidence interval of ours.

    Returns
    -------
    Claim
        Holds where ours lies between.

    Examples
    --------
    >>> shape("best benchmark over MC-SF, slopes", 2.9, at_least=1, paper=2.0).verdict
    'reproduced in shape'
    """
    return Claim(label, ours, at_least, at_most, paper, low, high)


def verdict(claims: Sequence[Claim]) -> str:
    """Give the verdict on all claims of a target.

    Parameters
    ----------
    claims
        At least one.

    Returns
    -------
    str
        "reproduced" if all hold and there are numbers among them, "reproduced in shape" if all
        that are no numbers hold and there is such a claim; otherwise "not reproduced" with the
        reason of the first claim that fails.

    Examples
    --------
    >>> rises, number_off = shape("slope", 2.0, at_least=0), number("slope", 3.0, 2.0, within=0.1)
    >>> verdict([rises, number_off]), verdict([rises])
    ('reproduced in shape', 'reproduced in shape')
    >>> verdict([number_off])
    'not reproduced: slope is 2 (paper 3), below the least that counts, 2.7'
    """
    shapes = [claim for claim in claims if not claim.exact]
    failing = [claim for claim in claims if not claim.holds]
    if not failing:
        return IN_SHAPE if len(shapes) == len(claims) else REPRODUCED
    if shapes and all(claim.holds for claim in shapes):
        return IN_SHAPE
    failing.sort(key=lambda claim: claim.exact)  # shapes first: they are what decides
    others = f"; and {len(failing) - 1} more" if len(failing) > 1 else ""
    return failing[0].verdict + others
