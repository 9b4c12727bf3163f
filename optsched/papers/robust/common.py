"""What the targets of Robust share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.report.series import plot_series
from optsched.simulate import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance
    from optsched.report.series import Scale

PAPER = "Chen et al. (Robust)"


def draw_ratios(
    table: pd.DataFrame, axes: Sequence[Axes], *, by: str = "curve", scale: Scale = "linear"
) -> None:
    """Draw ratios against the ratio of two outputs."""
    plot_series(
        table,
        x="alpha",
        y="ratio",
        by=by,
        yscale=scale,
        xlabel="ratio of the two outputs, alpha",
        ylabel="largest ratio to H-SF",
        ax=axes[0],
    )


def requests_of(shares: FloatArray, count: int, smallest: int = 1) -> IntArray:
    """Give that many outputs in these shares of the outputs from the smallest on, rounded."""
    ends = np.rint(np.cumsum(np.concatenate([[0.0], shares])) * count).astype(np.int64)
    return np.repeat(np.arange(smallest, smallest + len(shares)), np.diff(ends))


def ratio_to_hindsight(instance: Instance, policy: str, upper: int, seeds: Sequence[int]) -> float:
    """Give the mean total latency of a policy that knows [1, upper], or [l, u], over H-SF's."""
    intervals = f"common:{instance.outputs.min()},{upper}"
    totals = [
        execute(instance, policy, intervals=intervals, seed=seed).total_latency for seed in seeds
    ]
    return float(np.mean(totals)) / execute(instance, "h-sf").total_latency
