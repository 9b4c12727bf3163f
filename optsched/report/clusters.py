"""Plots of runs on a cluster (BF-IO Figures 4, 6 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError
from optsched.report.curves import lookahead_curve, mean_per_bin
from optsched.report.style import (
    count_axis,
    count_log_axis,
    hover,
    legend_above,
    line_of,
    line_styles,
    plain,
    prepare,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.cluster.results import ClusterRun
    from optsched.comparison import ClusterComparison

MAX_WORKERS = 64  # drawn one by one on a page
_POINTS, _POWER_POINTS = 300, 200


def plot_loads(run: ClusterRun, ax: Axes | None = None, workers: int | None = None) -> Axes:
    """Plot the load of every worker, or of the first few, and the heaviest load of each step."""
    if run.loads is None:
        raise InstanceError(
            f"the loads of {run.policy} were not recorded; run it with record_loads=True"
        )
    steps, loads = mean_per_bin(run.loads[:, :workers], _POINTS)
    heaviest = mean_per_bin(run.loads.max(axis=1), _POINTS)[1]
    ax = plot_trajectories(steps, loads, heaviest, run.policy, ax)
    ax.set_xlim(0, run.steps)
    return ax


def plot_trajectories(
    steps: IntArray,
    loads: FloatArray,
    heaviest: FloatArray,
    policy: str,
    ax: Axes | None = None,
) -> Axes:
    """Plot loads, shape (steps, workers), that were averaged before, as `plot_loads` does."""
    ax = prepare(ax)
    colour = line_styles([policy])[0].colour
    numbers = "%{y:,.0f} tokens at step %{x:,}<extra></extra>"
    for worker, line in enumerate(ax.plot(steps, loads, color=colour, linewidth=0.7, alpha=0.7)):
        hover(line, f"worker {worker}: {numbers}")
    (line,) = ax.plot(steps, heaviest, color="black", linewidth=1.1, label="heaviest")
    hover(line, f"heaviest: {numbers}")
    ax.plot([], [], color=colour, linewidth=0.8, label=f"each worker, {plain(policy)}")
    ax.set_xlabel("time (steps)")
    ax.set_ylabel("load (tokens)")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    count_axis(ax.xaxis, ax.yaxis)
    legend_above(ax)
    return ax


def plot_power(runs: ClusterRun | Iterable[ClusterRun], ax: Axes | None = None) -> Axes:
    """Plot the mean power of a worker over time."""
    ax = prepare(ax)
    for run, style in styled(runs):
        steps, watt = mean_per_bin(run.watt / run.cluster.workers, _POWER_POINTS)
        times = run.times[steps]
        (line,) = ax.plot(times, watt, linewidth=1.4, label=plain(run.policy), **line_of(style))
        hover(line, "%{y:.0f} W at %{x:.1f} s")
    ax.set_xlabel("time (s)")
    ax.set_ylabel("mean power of a worker (W)")
    ax.set_xlim(0, None)
    legend_above(ax)
    return ax


def plot_lookahead(comparison: ClusterComparison, ax: Axes | None = None) -> Axes:
    """Plot the mean imbalance against the lookahead H, with 95 % confidence intervals."""
    ax = prepare(ax)
    windows, means, lows, highs = lookahead_curve(comparison).T
    places = np.arange(len(windows))
    others = {
        policy: comparison.mean("imbalance_ms", policy).mean
        for policy, runs in comparison.runs.items()
        if runs[0].lookahead is None
    }
    own, *styles = line_styles(["bf-io", *others])
    ax.vlines(places, lows, highs, color=own.colour, linewidth=1.4)
    look = line_of(own) | {"marker": own.marker, "markersize": 4, "linewidth": 1.4}
    (line,) = ax.plot(places, means, label="bf-io", **look)
    hover(line, [f"{ms:.2f} ms at H = {h:g}" for h, ms in zip(windows, means, strict=True)])
    for (policy, level), style in zip(others.items(), styles, strict=True):
        line = ax.axhline(level, label=plain(policy), linewidth=1.2, **line_of(style))
        hover(line, "%{y:.2f} ms")
    ax.set_yscale("log")
    ax.set_xticks(places, [f"{window:g}" for window in windows])
    count_log_axis(ax.yaxis)
    ax.set_xlabel("lookahead H (steps)")
    ax.set_ylabel("imbalance (ms idle per step)")
    legend_above(ax)
    return ax
