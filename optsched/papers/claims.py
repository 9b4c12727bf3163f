"""What a target claims, beside what we found; verdicts follow from stated tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
REPRODUCED, IN_SHAPE, NOT_REPRODUCED = "reproduced", "reproduced in shape", "not reproduced"


class Estimate(NamedTuple):
    """A mean and its 95 % confidence interval (Student's t); without one after a single run."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and our value for it: made by `number` or `shape`."""

    label: str  # what is compared, as the paper names it
    paper: float | None  # None where it only states a shape
    ours: float
    low: float | None  # a confidence interval of ours; None where nothing is random
    high: float | None
    least: float  # between these our value must lie for the claim to count as reproduced
    most: float
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
        below = self.ours < self.least
        limit = (
            f"least that counts, {self.least:.6g}"
            if below
            else f"most that counts, {self.most:.6g}"
        )
        paper = f" (paper {self.paper:.6g})" if self.paper is not None else ""
        side = "below" if below else "above"
        return f"{NOT_REPRODUCED}: {self.label} is {self.ours:.6g}{paper}, {side} the {limit}"

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain data; what is infinite or missing is None."""
        plain = {
            name: value if isinstance(value, (str, bool)) else _finite(value)
            for name, value in vars(self).items()
        }
        return {**plain, "verdict": self.verdict}


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _with_interval(ours: float | Estimate) -> Estimate:
    return ours if isinstance(ours, Estimate) else Estimate(float(ours))


def number(label: str, paper: float, ours: float | Estimate, *, within: float) -> Claim:
    """Claim a printed number; `within` is a share of it (where that is 0: absolute)."""
    slack = within * (abs(paper) or 1.0)
    limits = paper - slack, paper + slack
    return Claim(label, paper, *_with_interval(ours), *limits, exact=True)


def shape(
    label: str,
    ours: float | Estimate,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    paper: float | None = None,
) -> Claim:
    """Claim what a result looks like: an order, a slope, a limit that is kept."""
    return Claim(label, paper, *_with_interval(ours), at_least, at_most)


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


def estimate(values: Sequence[float] | pd.Series[float]) -> Estimate:
    """Estimate a mean from independent runs, one number each."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean)
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
