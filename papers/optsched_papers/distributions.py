"""Distributions of lengths that a paper draws: a family of ours beside the numbers it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.report.style import BLUE, DASHED, LIMIT, VERMILLION, finish, prepare
from optsched.workloads import family
from optsched_papers.claims import Claim, beside, estimate, number
from optsched_papers.target import Outcome, Panels, Study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched._internal.arrays import IntArray

#: Requests of a public sample of LMSYS-Chat-1M by their outputs, 1 to 10, 11 to 20, ..., in words
#: of whole conversations (60,000 of them, outputs below 600); a test counts them again.
CONVERSATIONS = (
    7366, 3635, 2736, 2224, 2074, 2066, 1818, 1721, 1641, 1492, 1394, 1287, 1281, 1208, 1280,
    1215, 1242, 1305, 1243, 1221, 1269, 1194, 1253, 1119, 1017, 1036, 946, 932, 827, 783,
    758, 702, 614, 584, 558, 551, 482, 461, 398, 397, 341, 339, 280, 298, 291,
    255, 268, 263, 247, 200, 226, 210, 215, 219, 199, 178, 175, 156, 171, 139,
)  # fmt: skip
CONVERSATION = 159.99065  # their mean output

_BINS = 40  # of a histogram, which ends where all but a few lengths do
_SHOWN = 0.99


def distributions(
    study: Study, workload: str, printed: Mapping[str, Mapping[str, float]], **options: Any
) -> Outcome:
    """Compare draws of a family with what is printed of its "prompts" and "outputs"."""
    seeds = study.seeds(20, 20)
    draws = [family(workload, seed=seed, **options) for seed in seeds]
    claims: list[Claim] = []
    parts = []
    for kind, paper in printed.items():
        lengths = [getattr(draw, kind) for draw in draws]
        claims += _compare(kind, paper, lengths)
        lines = {f"printed_{what}": paper.get(what) for what in ("mean", "median")}
        parts.append(_histogram(np.concatenate(lengths)).assign(lengths=kind, **lines))
    settings = {"workload": workload, "requests": len(draws[0]), "seeds": seeds}
    return Outcome(pd.concat(parts, ignore_index=True), claims, {**options, **settings})


def _compare(kind: str, paper: Mapping[str, float], draws: Sequence[IntArray]) -> list[Claim]:
    """Compare each number that is printed with the mean of ours over the draws."""
    claims = []
    for what, value in paper.items():
        ours = estimate([_STATISTICS[what](lengths) for lengths in draws])
        near = "level" if what == "variance" else "quantile"
        unit = 1.0 if what == "median" else 0.0
        claim = number(f"{kind}, {what}", value, ours, near, unit=unit)
        # One extreme of a sample decides nothing.
        claims += beside(claim) if what in ("least", "most") else [claim]
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
        finish(ax, f"{kind} (tokens)".replace(", ", ",\n"), ylabel, counts="x")
