"""Plots with matplotlib, ready for a paper: each draws on given axes and returns them.

matplotlib loads when the first plot is drawn, and nothing is shown or saved here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.report import data
from optsched.report.style import (
    BLUE,
    DASHED,
    ORANGE,
    UNAVOIDABLE,
    count_axis,
    count_log_axis,
    legend_above,
    line_of,
    line_styles,
    memory_limit,
    name_bars,
    note_bar,
    plain,
    prepare,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from optsched.comparison.steps import Comparison
    from optsched.optimum.gap import GapExplanation
    from optsched.optimum.result import Hindsight
    from optsched.schedule import Schedule

# One curve may be as fine as print; several would hide each other.
_BINS, _SHARED_BINS = 2000, 250


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Plot the total latency of each policy over the part that is proven to be unavoidable.

    Parameters
    ----------
    comparison
        Schedules and the bound.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on; a bar per policy, the best at the top, with its gap at the end.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> comparison = compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> ax = plot_comparison(comparison)
    >>> ax.get_xlabel()
    'total latency (steps)'
    """
    # Looks are chosen before sorting: other plots of the comparison have this order.
    ranked = sorted(styled(comparison.schedules), key=lambda pair: pair[0].total_latency)
    schedules = [schedule for schedule, _ in ranked]
    ax = prepare(ax, height=1.2 + 0.36 * len(schedules))
    unavoidable = comparison.bound.value
    totals = [schedule.total_latency for schedule in schedules]
    rows = np.arange(len(schedules))
    label = f"unavoidable: proven bound, {data.at_least(unavoidable)}"
    ax.barh(rows, unavoidable, height=0.68, color=UNAVOIDABLE, label=label)
    ax.barh(
        rows,
        np.maximum(np.array(totals) - unavoidable, 0),
        left=unavoidable,
        height=0.68,
        color=[style.colour for _, style in ranked],
    )
    ax.axvline(unavoidable, color="black", linewidth=1)
    for row, schedule in enumerate(schedules):
        note = f"gap {data.percent(comparison.gap(schedule))}"
        note_bar(ax, note, schedule.total_latency, row)
    name_bars(ax, [schedule.policy for schedule in schedules])
    ax.set_xlim(0, max(totals) * 1.2)
    million = "million " if max(totals) >= 1e6 else ""
    ax.set_xlabel(f"total latency ({million}{data.step_unit(comparison.instance)})")
    count_axis(ax.xaxis, scale=1e-6 if million else 1)
    legend_above(ax)
    return ax


def plot_memory(schedules: Schedule | Iterable[Schedule], ax: Axes | None = None) -> Axes:
    """Plot the tokens held over time, with the memory limit.

    Parameters
    ----------
    schedules
        One schedule, or several of one instance.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. With many steps a point is the most that is held within a few of them.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> ax = plot_memory(run(Instance([3, 1], [2, 1], memory=6), "area"))
    >>> ax.get_ylabel()
    'tokens held'
    """
    chosen = styled(schedules)
    ax = prepare(ax)
    instance, widest = chosen[0][0].instance, 1
    for schedule, style in chosen:
        edges, peaks = data.memory_curve(schedule, _BINS if len(chosen) == 1 else _SHARED_BINS)
        widest = max(widest, int(np.diff(edges).max()))
        ax.plot(
            edges,
            np.append(peaks, 0),
            drawstyle="steps-post",
            linewidth=1.3,
            label=plain(schedule.policy),
            **line_of(style),
        )
    memory_limit(ax, instance.memory)
    ax.set_xlabel(f"time ({data.step_unit(instance)})")
    ax.set_ylabel("tokens held" + (f" (most of each {widest:,} steps)" if widest > 1 else ""))
    ax.set_xlim(min(int(schedule.starts.min()) for schedule, _ in chosen), None)
    ax.set_ylim(0, None)
    count_axis(ax.xaxis, ax.yaxis)
    legend_above(ax)
    return ax


def plot_latency(schedules: Schedule | Iterable[Schedule], ax: Axes | None = None) -> Axes:
    """Plot the distribution of latencies: the share of requests that are done within a time.

    Parameters
    ----------
    schedules
        One schedule, or several of one instance.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on, with a logarithmic axis of latency.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> ax = plot_latency(run(Instance([3, 1], [2, 1], memory=6), "area"))
    >>> ax.get_xscale()
    'log'
    """
    from matplotlib.ticker import PercentFormatter

    chosen = styled(schedules)
    ax = prepare(ax)
    for index, (schedule, style) in enumerate(chosen):
        latencies, shares = data.latency_cdf(schedule)
        ax.plot(
            np.insert(latencies, 0, latencies[0]),
            np.insert(shares, 0, 0),
            drawstyle="steps-post",
            linewidth=1.5,
            marker=style.marker,
            markersize=5,
            markevery=(0.06 + 0.02 * index, 0.25),
            label=plain(schedule.policy),
            **line_of(style),
        )
    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel(f"latency ({data.step_unit(chosen[0][0].instance)})")
    ax.set_ylabel("requests completed")
    count_log_axis(ax.xaxis)
    legend_above(ax)
    return ax


def plot_schedule(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Plot requests as bars that grow from their prompts to prompts plus outputs.

    Parameters
    ----------
    schedule
        What to draw.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. Up to 60 requests are stacked, so that they make up the tokens held;
        of more a sample stands one below the other, each with a line for the time it waits.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> ax = plot_schedule(run(Instance([3, 1], [2, 1], memory=6), "area"))
    >>> ax.get_ylabel()
    'tokens held, stacked by request'
    """
    from matplotlib.collections import LineCollection, PolyCollection

    ax = prepare(ax)
    bars = data.growing_bars(schedule)
    style = line_styles([schedule.policy])[0]
    first = int(schedule.starts.min())
    if bars.stacked:
        edges = ["white", "white"]
        memory_limit(ax, schedule.instance.memory)
        ax.set_ylim(0, max(schedule.instance.memory, schedule.peak_memory) * 1.05)
        ax.set_ylabel("tokens held, stacked by request")
    else:
        edges = [style.colour, style.tint]
        ax.add_collection(LineCollection(bars.waits, colors="0.6", lw=0.6, label="waiting"))
        count, shown = len(schedule.starts), len(bars.requests)
        first = min(first, int(schedule.instance.arrivals[0]))
        ax.set_ylim(count * 1.01, -1.1 * count / shown)
        ax.grid(visible=False, axis="y")
        ax.set_ylabel(f"requests by start ({shown} of {count:,} drawn)")
    for part, colour, edge, label in (
        (bars.prompts, style.colour, edges[0], "prompt tokens"),
        (bars.outputs, style.tint, edges[1], "output tokens"),
    ):
        width = 0.4 if bars.stacked else 1.2
        ax.add_collection(
            PolyCollection(part, facecolors=colour, edgecolors=edge, lw=width, label=label)
        )
    ax.set_xlim(first, schedule.makespan + 0.01 * (schedule.makespan - first))
    ax.set_xlabel(f"time ({data.step_unit(schedule.instance)})")
    count_axis(ax.xaxis, ax.yaxis)
    legend_above(ax, title=plain(schedule.policy))
    return ax


def plot_gap(explanation: GapExplanation, ax: Axes | None = None) -> Axes:
    """Plot how a gap adds up over the steps: starts that cost more, and memory that lies idle.

    Parameters
    ----------
    explanation
        The gap, taken apart.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on; the upper edge at the right is the whole gap.

    Examples
    --------
    >>> from optsched import Instance, bound, explain_gap, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> certificate = bound(instance, "lagrangian").certificate
    >>> plot_gap(explain_gap(run(instance, "mc-sf"), certificate)).get_ylabel()
    'gap so far (steps of latency)'
    """
    ax = prepare(ax)
    steps, waste, regret = data.gap_curves(explanation, _BINS)
    ax.fill_between(steps, 0, waste, color=ORANGE, linewidth=0, label="wasted memory")
    label = "order regret of the starts"
    ax.fill_between(steps, waste, waste + regret, color=BLUE, linewidth=0, label=label)
    ax.set_xlim(0, steps[-1])
    ax.set_ylim(0, max(1.0, 1.05 * float((waste + regret)[-1])))
    ax.set_xlabel(f"time ({data.step_unit(explanation.schedule.instance)})")
    ax.set_ylabel("gap so far (steps of latency)")
    count_axis(ax.xaxis, ax.yaxis)
    legend_above(ax)
    return ax


def plot_history(result: Hindsight, ax: Axes | None = None) -> Axes:
    """Plot how the interval between the bound and the best schedule closed.

    Parameters
    ----------
    result
        What `solve` gave.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on; no schedule costs less than the lower edge.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> plot_history(solve(Instance([4] * 4, [1, 1, 6, 6], memory=13))).get_xlabel()
    'time (seconds)'
    """
    ax = prepare(ax)
    known = [entry for entry in result.history if entry[1] is not None]
    seconds = np.array([entry[0] for entry in known] + [result.seconds])
    costs = np.array([entry[1] for entry in known] + [result.cost], dtype=float)
    bounds = np.array([entry[2] for entry in known] + [result.bound], dtype=float)
    ax.fill_between(seconds, bounds, costs, step="post", color=UNAVOIDABLE, alpha=0.4, linewidth=0)
    ax.step(seconds, costs, where="post", color=BLUE, label="best schedule")
    label = f"proven bound; gap {data.percent(result.gap)} at the end"
    ax.step(seconds, bounds, where="post", color="black", linestyle=DASHED, label=label)
    ax.set_xlim(0, seconds[-1])
    ax.set_xlabel("time (seconds)")
    ax.set_ylabel(f"{result.objective.replace('-', ' ')} (steps)")
    count_axis(ax.yaxis)
    legend_above(ax)
    return ax
