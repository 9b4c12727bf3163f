"""Plots of schedules: by total latency, memory and latency of requests, and where gaps arise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import at_least, percent
from optsched.report.curves import gap_curves, growing_bars, latency_cdf, memory_curve
from optsched.report.style import (
    BLUE,
    DASHED,
    LIMIT,
    ORANGE,
    UNAVOIDABLE,
    finish,
    hover,
    line_of,
    line_styles,
    memory_limit,
    name_ranked,
    note_bar,
    plain,
    prepare,
    step_unit,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from optsched.experiments.comparison import Comparison
    from optsched.optimum.gap import GapExplanation
    from optsched.optimum.result import Optimum
    from optsched.problem.schedule import Schedule
    from optsched.rolling.decisions import Decisions

# One curve may be as fine as print; several would hide each other.
_BINS, _SHARED_BINS = 2000, 250
_SAMPLE = 40  # requests drawn where they are too many to be stacked


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Plot the total latency of each policy over the part that is proven to be unavoidable."""
    runs = comparison.ranked()
    ax = prepare(ax, height=1.2 + 0.36 * len(runs))
    colours = name_ranked(ax, comparison)
    bound, rows = comparison.bound.value, np.arange(len(runs))
    covering = [comparison.covering(run)[0] for run in runs]
    unavoidable = np.array([0.0 if claim is None else claim.value for claim in covering])
    totals = np.array([run.total_latency for run in runs])
    shares = [comparison.gap(run) for run in runs]
    gaps = ["unknown" if share is None else percent(share) for share in shares]
    label = f"unavoidable: proven bound, {at_least(bound)}"
    bars = ax.barh(rows, unavoidable, height=0.68, color=UNAVOIDABLE, label=label)
    hover(bars, [f"no such run is below {at_least(value)}<extra></extra>" for value in unavoidable])
    over = np.maximum(totals - unavoidable, 0)
    rest = ax.barh(rows, over, left=unavoidable, height=0.68, color=colours)
    hover(rest, [f"total {total:,}, gap {gap}" for total, gap in zip(totals, gaps, strict=True)])
    ax.axvline(bound, color="black", linewidth=1)
    for row, (total, gap) in enumerate(zip(totals, gaps, strict=True)):
        note_bar(ax, f"gap {gap}", total, row)
    ax.set_xlim(0, totals.max() * 1.2)
    return finish(ax, f"total latency ({step_unit(comparison.instance)})", counts="x")


def plot_memory(
    schedules: Schedule | Iterable[Schedule], ax: Axes | None = None, bins: int | None = None
) -> Axes:
    """Plot the tokens held over time; a point is the most that is held within a bin of steps."""
    chosen = styled(schedules)
    ax = prepare(ax)
    first_drawn, widest = chosen[0][0], 1
    bins = bins or (_BINS if len(chosen) == 1 else _SHARED_BINS)
    for schedule, style in chosen:
        edges, peaks = memory_curve(schedule, bins)
        widest = max(widest, int(np.diff(edges).max()))
        ax.plot(
            edges,
            np.append(peaks, 0),
            drawstyle="steps-post",
            linewidth=1.3,
            label=plain(schedule.policy),
            **line_of(style),
        )
    memory_limit(ax, first_drawn.workers.total)
    first = min(int(schedule.starts.min()) for schedule, _ in chosen)
    ax.set(xlim=(first, None), ylim=(0, None))
    ylabel = "tokens held" + (f" (most of each {widest:,} steps)" if widest > 1 else "")
    return finish(ax, f"time ({step_unit(first_drawn.instance)})", ylabel, counts="xy")


def plot_latency(schedules: Schedule | Iterable[Schedule], ax: Axes | None = None) -> Axes:
    """Plot the distribution of latencies: the share of requests that are complete within a time."""
    from matplotlib.ticker import PercentFormatter

    chosen = styled(schedules)
    ax = prepare(ax)
    for index, (schedule, style) in enumerate(chosen):
        latencies, shares = latency_cdf(schedule)
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
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    xlabel = f"latency ({step_unit(chosen[0][0].instance)})"
    ax.set(xscale="log", ylim=(0, 1.02))
    return finish(ax, xlabel, "requests completed", counts="x")


def plot_schedule(schedule: Schedule, ax: Axes | None = None, sample: int = _SAMPLE) -> Axes:
    """Plot requests as bars that grow from their prompts to prompts plus outputs."""
    from matplotlib.collections import LineCollection, PolyCollection

    ax = prepare(ax)
    bars = growing_bars(schedule, sample)
    style = line_styles([schedule.policy])[0]
    first = int(schedule.starts.min())
    if bars.stacked:
        edges = ["white", "white"]
        memory_limit(ax, schedule.instance.memory)
        ax.set_ylim(0, max(schedule.instance.memory, schedule.peak_memory) * 1.05)
        ylabel = "tokens held, stacked by request"
    else:
        edges = [style.colour, style.tint]
        ax.add_collection(LineCollection(bars.waits, colors="0.6", lw=0.6, label="waiting"))
        count, shown = len(schedule.starts), len(bars.requests)
        first = min(first, int(schedule.instance.arrivals[0]))
        ax.set_ylim(count * 1.01, -1.1 * count / shown)
        ax.grid(visible=False, axis="y")
        ylabel = f"requests by start ({shown} of {count:,} drawn)"
    for part, colour, edge, label in (
        (bars.prompts, style.colour, edges[0], "prompt tokens"),
        (bars.outputs, style.tint, edges[1], "output tokens"),
    ):
        width = 0.4 if bars.stacked else 1.2
        ax.add_collection(
            PolyCollection(part, facecolors=colour, edgecolors=edge, lw=width, label=label)
        )
    ax.set_xlim(first, schedule.makespan + 0.01 * (schedule.makespan - first))
    xlabel = f"time ({step_unit(schedule.instance)})"
    return finish(ax, xlabel, ylabel, counts="xy", title=plain(schedule.policy))


def plot_gap(explanation: GapExplanation, ax: Axes | None = None) -> Axes:
    """Plot how a gap adds up over the steps: starts that cost more, and memory that lies idle."""
    ax = prepare(ax)
    steps, waste, regret = gap_curves(explanation, _BINS)
    ax.fill_between(steps, 0, waste, color=ORANGE, linewidth=0, label="wasted memory")
    label = "order regret of the starts"
    ax.fill_between(steps, waste, waste + regret, color=BLUE, linewidth=0, label=label)
    ax.set_xlim(0, steps[-1])
    ax.set_ylim(0, max(1.0, 1.05 * float((waste + regret)[-1])))
    xlabel = f"time ({step_unit(explanation.schedule.instance)})"
    return finish(ax, xlabel, "gap so far (steps of latency)", counts="xy")


def plot_history(result: Optimum, ax: Axes | None = None) -> Axes:
    """Plot how the interval between the bound and the best schedule closed."""
    ax = prepare(ax)
    known = [entry for entry in result.history if entry[1] is not None]
    seconds = np.array([entry[0] for entry in known] + [result.seconds])
    costs = np.array([entry[1] for entry in known] + [result.objective], dtype=float)
    bounds = np.array([entry[2] for entry in known] + [result.bound], dtype=float)
    ax.fill_between(seconds, bounds, costs, step="post", color=UNAVOIDABLE, alpha=0.4, linewidth=0)
    (best,) = ax.step(seconds, costs, where="post", color=BLUE, label="best schedule")
    hover(best, [f"{cost:,.10g} after {at:.2f} s" for at, cost in zip(seconds, costs, strict=True)])
    label = f"proven bound; gap {percent(result.gap)} at the end"
    (line,) = ax.step(seconds, bounds, where="post", color="black", linestyle=DASHED, label=label)
    pairs = zip(seconds, bounds, strict=True)
    hover(line, [f"at least {at_least(bound)} after {at:.2f} s" for at, bound in pairs])
    ax.set_xlim(0, seconds[-1])
    return finish(ax, "time (seconds)", f"{result.minimised.replace('-', ' ')} (steps)", counts="y")


def plot_decision_times(decisions: Decisions, ax: Axes | None = None) -> Axes:
    """Plot the share of decisions that took at least as long as a time, with the budget."""
    ax = prepare(ax)
    times = 1e3 * np.sort(decisions.counts.seconds)
    longer = 1 - np.arange(len(times)) / max(len(times), 1)
    ax.step(times, longer, where="pre", color=BLUE, label=f"{len(times):,} decisions")
    if decisions.policy.budget:
        budget = 1e3 * decisions.policy.budget
        ax.axvline(budget, color=LIMIT, linewidth=1, label=f"budget, {budget:g} ms")
        ax.axvline(2 * budget, color=LIMIT, linewidth=1, linestyle="--", label="twice the budget")
    ylabel = "share of decisions that took at least as long"
    return finish(ax, "time of a decision (ms)", ylabel, xscale="log", yscale="log")
