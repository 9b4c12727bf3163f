"""Plots of runs on a clock: memory, waiting, batches and latency over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.report.curves import most_per_bin
from optsched.report.style import (
    TEXT_SIZE,
    clock_unit,
    count_axis,
    legend_above,
    line_of,
    memory_limit,
    plain,
    prepare,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from optsched.comparison import ClockComparison
    from optsched.report.style import LineStyle
    from optsched.simulate.seconds.execution import ClockedRun

_BINS = 400


def plot_clocked_usage(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the tokens held over time: the most in each of 400 intervals."""
    listed, ax = _begin(runs, ax, "tokens held")
    for run, style in listed:
        times, values = most_per_bin(run.log.spans[:, 1], run.log.usage, _BINS)
        ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    memory_limit(ax, listed[0][0].instance.memory)
    legend_above(ax)
    return ax


def plot_waiting(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the requests that have arrived and are not complete, over time."""
    listed, ax = _begin(runs, ax, "requests in the system")
    for run, style in listed:
        grid = np.linspace(0, run.makespan, _BINS)
        ax.plot(grid, run.in_system(grid), label=plain(run.policy), **line_of(style))
    legend_above(ax)
    return ax


def plot_mean_latency(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the mean latency of the requests that arrived so far (Jaillet Fig. 5)."""
    listed, ax = _begin(runs, ax, "mean latency so far")
    ax.set_xlabel("requests arrived")
    count_axis(ax.xaxis)
    for run, style in listed:
        latencies = run.latencies
        counted = np.cumsum(~np.isnan(latencies))
        means = np.nancumsum(latencies) / np.maximum(counted, 1)
        number = np.arange(1, len(means) + 1)
        thin = np.unique(np.linspace(0, len(means) - 1, _BINS).astype(np.int64))
        ax.plot(number[thin], means[thin], label=plain(run.policy), **line_of(style))
    ax.set_ylabel(f"mean latency so far ({clock_unit(listed[0][0])})")
    legend_above(ax)
    return ax


def plot_batches(run: ClockedRun, ax: Axes | None = None) -> Axes:
    """Plot the requests that decode in a batch over time: the most in each of 400 intervals."""
    [(_, style)], ax = _begin(run, ax, "requests decoding in a batch")
    times, values = most_per_bin(run.log.spans[:, 1], run.log.contents[:, 1], _BINS)
    ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    legend_above(ax)
    return ax


def plot_clock_comparison(comparison: ClockComparison, ax: Axes | None = None) -> Axes:
    """Plot the mean latency of each policy as a bar, with its median and 99th percentile."""
    rows = comparison.to_dict()["policies"]
    order = sorted(
        range(len(rows)), key=lambda at: (-rows[at]["unfinished"], -(rows[at]["mean_latency"] or 0))
    )
    ax = prepare(ax, height=0.8 + 0.36 * len(rows))
    styles = [style for _, style in styled(comparison.runs)]
    right = max(row["p99_latency"] or 0 for row in rows)
    for place, at in enumerate(order):
        row = rows[at]
        note = f"{row['unfinished']:,} unfinished" if row["unfinished"] else ""
        if row["mean_latency"] is not None:
            ax.barh(place, row["mean_latency"], color=styles[at].colour, height=0.62)
            ax.plot(row["p50_latency"], place, "|", color="black", markersize=11)
            ax.plot(row["p99_latency"], place, ">", color="black", markersize=4)
        if note:
            ax.text(right * 1.03, place, note, va="center", fontsize=TEXT_SIZE)
    ax.set_yticks(range(len(rows)), [plain(rows[at]["policy"]) for at in order])
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, right * 1.05 or 1)
    ax.set_xlabel(f"latency ({clock_unit(comparison.runs[0])}): mean, median |, 99th percentile >")
    return ax


def _begin(
    runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None, ylabel: str
) -> tuple[list[tuple[ClockedRun, LineStyle]], Axes]:
    listed, ax = styled(runs), prepare(ax)
    ax.set_xlabel(f"time ({clock_unit(listed[0][0])})")
    ax.set_ylabel(ylabel)
    count_axis(ax.yaxis)
    return listed, ax
