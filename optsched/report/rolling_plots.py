"""Plots of rolling horizons: how long decisions took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.report.style import BLUE, LIMIT, legend_above, prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched.simulate.rolling import RollingRun


def plot_decision_times(run: RollingRun, ax: Axes | None = None) -> Axes:
    """Plot the share of decisions that took longer than so long, with the budget.

    Parameters
    ----------
    run
        A rolling horizon.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on, both logarithmic: the slowest of 1,000 decisions is as visible as the
        median.
    """
    ax = prepare(ax)
    times = 1e3 * np.sort(run.counts.seconds)
    longer = 1 - np.arange(len(times)) / max(len(times), 1)
    ax.step(times, longer, where="pre", color=BLUE, label=f"{len(times):,} decisions")
    if run.policy.budget:
        budget = 1e3 * run.policy.budget
        ax.axvline(budget, color=LIMIT, linewidth=1, label=f"budget, {budget:g} ms")
        ax.axvline(2 * budget, color=LIMIT, linewidth=1, linestyle="--", label="twice the budget")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("time of a decision (ms)")
    ax.set_ylabel("share of decisions that took as long")
    legend_above(ax)
    return ax
