"""Distributions of lengths that a paper draws: a family of ours beside the numbers it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from optsched.report.style import BLUE, DASHED, LIMIT, VERMILLION, finish, prepare
from optsched.workloads import family
from optsched_papers.claims import Claim, estimate, number
from optsched_papers.target import Outcome, Panels, Study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched._internal.arrays import IntArray

_BINS = 40  # of a histogram, which ends where all but a few lengths do
_SHOWN = 0.99
# Samples of some thousand lengths of one distribution have means and medians that differ by less
# than a twentieth or a token, and variances by less than a tenth.
_NEAR, _NEAR_VARIANCE = 0.05, 0.1


class Printed(NamedTuple):
    """What a paper prints of lengths; None where it prints nothing."""

    mean: float | None = None
    median: float | None = None
    variance: float | None = None
    least: float | None = None
    most: float | None = None


def distributions(
    study: Study, workload: str, printed: Mapping[str, Printed], **options: Any
) -> Outcome:
    """Compare draws of a family with what is printed of its "prompts" and "outputs"."""
    seeds = study.seeds(20, 20)
    draws = [family(workload, seed=seed, **options) for seed in seeds]
    claims: list[Claim] = []
    parts = []
    for kind, paper in printed.items():
        lengths = [getattr(draw, kind) for draw in draws]
        claims += _compare(kind, paper, lengths)
        lines = {"printed_mean": paper.mean, "printed_median": paper.median}
        parts.append(_histogram(np.concatenate(lengths)).assign(lengths=kind, **lines))
    settings = {"workload": workload, "requests": len(draws[0]), "seeds": seeds}
    return Outcome(pd.concat(parts, ignore_index=True), claims, {**options, **settings})


def _compare(kind: str, paper: Printed, draws: Sequence[IntArray]) -> list[Claim]:
    """Compare each number that is printed with the mean of ours over the draws."""
    claims = []
    for what, value in paper._asdict().items():
        if value is None:
            continue
        ours = estimate([_STATISTICS[what](lengths) for lengths in draws])
        near = _NEAR_VARIANCE if what == "variance" else max(_NEAR, 1 / value)
        claims.append(number(f"{kind}, {what}", value, ours, within=near))
    return claims


_STATISTICS: dict[str, Callable[[IntArray], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "variance": np.var,
    "least": np.min,
    "most": np.max,
}


def _histogram(lengths: IntArray) -> pd.DataFrame:
    """Return the share of lengths in bins of equally many tokens, the last one open."""
    width = max(1, int(np.quantile(lengths, _SHOWN)) // _BINS)
    bins = np.minimum(lengths // width, _BINS)
    shares = np.bincount(bins, minlength=_BINS + 1) / len(lengths)
    return pd.DataFrame({"least": width * np.arange(_BINS + 1), "width": width, "share": shares})


def draw_distributions(table: pd.DataFrame, axes: Panels) -> None:
    """Draw a histogram per panel, with the printed mean and median as lines."""
    for ax, (kind, rows) in zip(axes, table.groupby("lengths", sort=False), strict=True):
        prepare(ax)
        shown = rows[:-1]  # the open bin lies beyond the axis
        width = int(shown["width"].iloc[0])
        ax.bar(shown["least"], shown["share"], width, align="edge", color=BLUE, label="ours")
        looks = {"mean": (VERMILLION, "-"), "median": (LIMIT, DASHED)}
        for what, (colour, line) in looks.items():
            at = rows[f"printed_{what}"].iloc[0]
            if at is not None and not np.isnan(at):
                label = f"printed {what}, {at:,.6g}"
                ax.axvline(at, color=colour, linestyle=line, linewidth=1.4, label=label)
        ax.set_xlim(0, None)
        ylabel = f"share of requests per {width} tokens"
        finish(ax, f"{kind} (tokens)", ylabel, counts="x")
