"""What a paper claims, beside what we found; verdicts follow from stated tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from optsched._internal.numbers import student

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CONFIDENCE = 0.95
REPRODUCED, IN_SHAPE, PARTLY, UNDECIDED = "reproduced", "in shape", "partly", "cannot be decided"
#: What the failure of a claim can prove: the statement is false; it is false where an assumption is
#: dropped that only the proof makes; what its proof constructs does not do what it must; what is
#: printed excludes what is printed elsewhere.
FALSE, BEYOND = "false as stated", "false beyond an assumption"
PROOF, CONTRADICTS = "proof fails", "contradicts itself"
REFUTATIONS = (FALSE, BEYOND, PROOF, CONTRADICTS)
LABELS = (REPRODUCED, IN_SHAPE, PARTLY, *REFUTATIONS, UNDECIDED)
FAILS = "fails"  # of one claim: what the verdict on all of them makes of it is another matter
#: How far our value may be from a printed number, as a share of it, by what kind of number it is.
TOLERANCES = {
    "exact": 1e-9,  # counts, and what follows from a formula or from a few requests
    "fit": 1e-4,  # R2 of a fit
    "digits": 0.005,  # printed in three digits, or a smooth curve
    "ratio": 0.02,  # of two policies on the same requests; coefficients of a fit
    "energy": 0.03,  # and power, throughput and time per token, which follow the length of a step
    "quantile": 0.05,  # means and medians of samples of lengths
    "level": 0.1,  # latencies, loads, variances, imbalances
    "slope": 0.25,  # growth and exponents
}


class Verdict(NamedTuple):
    """One of the labels, and why."""

    label: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.reason}" if self.reason else self.label


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
    counts: bool = True  # False stands beside: ours, a proof's step, a setting the paper has not
    refutes: str = ""  # what its failure proves, one of `REFUTATIONS`; nothing if it is measured
    statement: str = ""  # what readings of one statement share: it holds if one of them does

    @property
    def holds(self) -> bool:
        """Whether our value lies where it must."""
        return self.least <= self.ours <= self.most

    @property
    def verdict(self) -> str:
        """The claim's own verdict, with the reason where it does not hold."""
        if self.holds:
            return REPRODUCED if self.exact else IN_SHAPE
        return f"{self.refutes or FAILS}: {self.distance}"

    @property
    def distance(self) -> str:
        """Where our value lies, in words."""
        if math.isnan(self.ours):
            return f"{self.label} has no value"
        side, limit = "at least", self.least
        if self.ours > self.most:
            side, limit = "at most", self.most
        printed = "" if self.paper is None else f"{self.paper:.6g}"
        paper = f"paper {printed}, " if printed not in ("", f"{limit:.6g}") else ""
        return f"{self.label} is {self.ours:.6g} ({paper}{side} {limit:.6g} counts)"

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


def number(
    label: str, paper: float, ours: float | Estimate, kind: str, *, unit: float = 0.0
) -> Claim:
    """Claim a printed number of a kind of `TOLERANCES`; a unit of it makes no difference."""
    slack = max(TOLERANCES[kind] * (abs(paper) or 1.0), unit)
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


def at_most(label: str, ours: float | Estimate, limit: float) -> Claim:
    """Claim that a value does not exceed what the paper states."""
    return shape(label, ours, at_most=limit, paper=limit)


def at_least(label: str, ours: float | Estimate, limit: float) -> Claim:
    """Claim that a value does not fall below what the paper states."""
    return shape(label, ours, at_least=limit, paper=limit)


def beside(*claims: Claim | Iterable[Claim]) -> list[Claim]:
    """Return claims that do not count: ours, steps of a proof, settings that the paper has not."""
    return _all(claims, counts=False)


def readings(statement: str, *claims: Claim | Iterable[Claim]) -> list[Claim]:
    """Return claims that are readings of one statement, which holds if one of them does."""
    return _all(claims, statement=statement)


def either(
    statement: str, ours: Mapping[str, float | Estimate], claim: Callable[..., Claim]
) -> list[Claim]:
    """Claim the same of each reading of a statement, whose name its label ends with."""
    return readings(statement, (claim(statement + name, ours=own) for name, own in ours.items()))


def refutable(*claims: Claim | Iterable[Claim], proves: str = FALSE) -> list[Claim]:
    """Return claims whose failure is a proof: an exact value, a bound or a schedule."""
    return _all(claims, refutes=proves)


def _all(claims: Sequence[Claim | Iterable[Claim]], **changes: Any) -> list[Claim]:
    every = (each for one in claims for each in ([one] if isinstance(one, Claim) else one))
    return [replace(each, **changes) for each in every]


def verdict(claims: Sequence[Claim], unpublished: str = "", provided: str = "") -> Verdict:
    """Return the verdict on the paper's own claims.

    `unpublished` names what else may decide it, `provided` what a result that holds rests on.
    """
    statements = _statements(claims)
    failing = [each for each in statements if not any(claim.holds for claim in each)]
    refuted = [each for each in failing if all(claim.refutes for claim in each)]
    if refuted:
        kind = _refutation(refuted, statements)
        # What the verdict says comes first.
        refuted.sort(key=lambda each: each[0].refutes != kind)
        return Verdict(kind, _reasons(refuted))
    shapes = [each for each in statements if not each[0].exact]
    if not failing:
        return Verdict(IN_SHAPE if len(shapes) == len(statements) else REPRODUCED, provided)
    held = f"{len(statements) - len(failing)} of {len(statements)}"
    if shapes and all(each[0].exact for each in failing):
        rests = f"{provided}; " if provided else ""
        return Verdict(IN_SHAPE, f"{rests}{held} numbers and shapes hold; not {_names(failing)}")
    if unpublished:
        return Verdict(UNDECIDED, f"{unpublished}; {held} claims hold, not {_names(failing)}")
    if len(failing) == len(statements):
        return Verdict(UNDECIDED, f"{held} claims hold, none is refuted; not {_names(failing)}")
    return Verdict(PARTLY, f"{held} claims hold; not {_names(failing)}")


def _refutation(refuted: Sequence[list[Claim]], statements: Sequence[list[Claim]]) -> str:
    """Return what has been proven; what does not hold within its assumption is false as stated."""
    proven = {claim.refutes for each in refuted for claim in each}
    kind = next(each for each in REFUTATIONS if each in proven)
    within = [each for each in statements if {claim.refutes for claim in each} != {BEYOND}]
    holds = within and all(any(claim.holds for claim in each) for each in within)
    return FALSE if kind == BEYOND and not holds else kind


def _statements(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Group the claims that count into statements, each with its readings."""
    found: dict[str | int, list[Claim]] = {}
    for place, claim in enumerate(claims):
        if claim.counts:
            found.setdefault(claim.statement or place, []).append(claim)
    return list(found.values())


def _reasons(statements: Sequence[Sequence[Claim]]) -> str:
    """Say where the first statement fails, and how many others do."""
    others = f"; and {len(statements) - 1} more" if len(statements) > 1 else ""
    return statements[0][0].distance + others


def _names(statements: Sequence[Sequence[Claim]]) -> str:
    """Name each statement, with our value of the reading that comes nearest."""
    nearest = [(each, min(each, key=_beyond)) for each in statements]
    return ", ".join(
        f"{each[0].statement or each[0].label} ({claim.ours:.4g})" for each, claim in nearest
    )


def _beyond(claim: Claim) -> float:
    """Return by how much a value misses its limits."""
    if math.isnan(claim.ours):
        return math.inf
    return max(claim.least - claim.ours, claim.ours - claim.most)


def estimate(values: Sequence[float] | pd.Series[float]) -> Estimate:
    """Estimate a mean from independent runs, one number each."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean)
    quantile = student((1 + CONFIDENCE) / 2, len(values))
    reach = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Estimate the mean of ratios, paired run by run."""
    return estimate([a / b for a, b in zip(above, below, strict=True)])


def power(of: Any, values: Any) -> float:
    """Fit the exponent with which values grow, by least squares of logarithms."""
    return float(np.polyfit(np.log(of), np.log(values), 1)[0])


def means(runs: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Estimate the mean of a column for each combination of others, in the order of the runs."""
    groups = runs.groupby(list(by), sort=False)[value]
    rows = [[*key, *estimate(values.tolist())] for key, values in groups]
    return pd.DataFrame(rows, columns=[*by, value, "low", "high"])
