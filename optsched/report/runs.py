"""Plots of runs on a clock and on a cluster (BF-IO Figures 4, 6 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError
from optsched.problem.work import load_on_clock
from optsched.report.curves import lookahead_curve, mean_per_bin, most_per_bin
from optsched.report.style import (
    LIMIT,
    REFERENCE,
    TEXT_SIZE,
    clock_unit,
    finish,
    hover,
    line_of,
    line_styles,
    memory_limit,
    name_ranked,
    plain,
    prepare,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.experiments.comparison import ClusterComparison, Comparison
    from optsched.simulate.cluster.results import ClusterRun
    from optsched.simulate.seconds.execution import ClockedRun

MAX_WORKERS = 64  # drawn one by one on a page
_RATIOS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
_BINS, _POINTS, _POWER_POINTS = 400, 300, 200


def plot_clocked_usage(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the tokens held over time: the most in each of 400 intervals."""
    listed, ax = styled(runs), prepare(ax)
    for run, style in listed:
        times, values = most_per_bin(run.log.spans[:, 1], run.log.usage, _BINS)
        ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    memory_limit(ax, listed[0][0].instance.memory)
    return finish(ax, _time(listed[0][0]), "tokens held", counts="y")


def plot_waiting(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the requests that have arrived and are not complete, over time."""
    listed, ax = styled(runs), prepare(ax)
    for run, style in listed:
        grid = np.linspace(0, run.makespan, _BINS)
        ax.plot(grid, run.in_system(grid), label=plain(run.policy), **line_of(style))
    return finish(ax, _time(listed[0][0]), "requests in the system", counts="y")


def plot_mean_latency(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the mean latency of the requests that arrived so far (Jaillet Fig. 5)."""
    listed, ax = styled(runs), prepare(ax)
    for run, style in listed:
        latencies = run.latencies
        counted = np.cumsum(~np.isnan(latencies))
        means = np.nancumsum(latencies) / np.maximum(counted, 1)
        number = np.arange(1, len(means) + 1)
        thin = np.unique(np.linspace(0, len(means) - 1, _BINS).astype(np.int64))
        ax.plot(number[thin], means[thin], label=plain(run.policy), **line_of(style))
    ylabel = f"mean latency so far ({clock_unit(listed[0][0])})"
    return finish(ax, "requests arrived", ylabel, counts="xy")


def plot_batches(run: ClockedRun, ax: Axes | None = None) -> Axes:
    """Plot the requests that decode in a batch over time: the most in each of 400 intervals."""
    [(_, style)], ax = styled(run), prepare(ax)
    times, values = most_per_bin(run.log.spans[:, 1], run.log.contents[:, 1], _BINS)
    ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    return finish(ax, _time(run), "requests decoding in a batch", counts="y")


def plot_clock_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Plot the mean latency of each policy as a bar, with its median and 99th percentile."""
    entries = {entry["policy"]: entry for entry in comparison.to_dict()["policies"]}
    rows = [entries[run.policy] for run in comparison.ranked()]
    ax = prepare(ax, height=0.8 + 0.36 * len(rows))
    colours = name_ranked(ax, comparison)
    right = max(row["p99_latency"] or 0 for row in rows)
    some = [at for at, row in enumerate(rows) if row["mean_latency"] is not None]
    if some:
        means, medians, tails = (
            [rows[at][f"{of}_latency"] for at in some] for of in ("mean", "p50", "p99")
        )
        ax.barh(some, means, color=[colours[at] for at in some], height=0.62)
        for marks, symbol, size in ((medians, "|", 11), (tails, ">", 4)):
            ax.plot(marks, some, symbol, color="black", markersize=size)
    for at, row in enumerate(rows):
        if row["unfinished"]:
            note = f"{row['unfinished']:,} unfinished"
            ax.text(right * 1.03, at, note, va="center", fontsize=TEXT_SIZE)
    ax.set_xlim(0, right * 1.05 or 1)
    ax.set_xlabel(
        f"latency ({clock_unit(next(iter(comparison)))}): mean, median |, 99th percentile >"
    )
    return ax


def plot_over_bound(comparisons: Iterable[Comparison], ax: Axes | None = None) -> Axes:
    """Plot mean latency over the proven bound, which is 1, from comparisons at several loads."""
    from matplotlib.ticker import FuncFormatter

    listed = sorted(comparisons, key=_load)
    ax = prepare(ax)
    policies = list(dict.fromkeys(name for each in listed for name in each.policies))
    for policy, style in zip(policies, line_styles(policies), strict=True):
        points = [
            (_load(each), each[policy].total_latency / covering.value)
            for each in listed
            if policy in each.policies and (covering := each.covering(policy)[0]) is not None
        ]
        loads, ratios = zip(*points, strict=True) if points else ((), ())
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5, "marker": style.marker}
        (line,) = ax.plot(loads, ratios, label=plain(policy), **look)
        hover(line, [f"{ratio:.4g} times the bound at load {load:.3g}" for load, ratio in points])
    ax.axhline(1, color=LIMIT, linewidth=1, label="proven bound")
    ax.axvline(1, **REFERENCE)
    ax.set(xscale="log", yscale="log")
    highest = max(1.5, ax.get_ylim()[1])
    ax.set_ylim(0.95, highest)
    ax.set_xticks([_load(each) for each in listed])
    ax.set_yticks([ratio for ratio in _RATIOS if ratio <= highest])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    ax.minorticks_off()
    return finish(ax, "load on the clock", "mean latency over the proven bound")


def _load(comparison: Comparison) -> float:
    """Return the load on the clock of a comparison that has a bound."""
    load = load_on_clock(comparison.instance, comparison.clock)
    if load is None or comparison.bound is None or not load.span:
        clock = comparison.clock.name
        raise InstanceError(
            f"the comparison on {clock} has no bound or no arrivals, but the plot is of latency "
            "over the bound by load; compare on a LinearClock, with arrivals"
        )
    return load.load


def _time(run: ClockedRun) -> str:
    return f"time ({clock_unit(run)})"


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
    ax.set(xlim=(0, None), ylim=(0, None))
    return finish(ax, "time (steps)", "load (tokens)", counts="xy")


def plot_power(runs: ClusterRun | Iterable[ClusterRun], ax: Axes | None = None) -> Axes:
    """Plot the mean power of a worker over time."""
    ax = prepare(ax)
    for run, style in styled(runs):
        steps, watt = mean_per_bin(run.watt / run.cluster.workers, _POWER_POINTS)
        times = run.times[steps]
        (line,) = ax.plot(times, watt, linewidth=1.4, label=plain(run.policy), **line_of(style))
        hover(line, "%{y:.0f} W at %{x:.1f} s")
    return finish(ax, "time (s)", "mean power of a worker (W)", xlim=(0, None))


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
    ax.set_xticks(places, [f"{window:g}" for window in windows])
    ylabel = "imbalance (ms idle per step)"
    scale = "log" if max(*means, *others.values()) > 0 else "linear"  # of one worker all are zero
    return finish(ax, "lookahead H (steps)", ylabel, counts="y", yscale=scale)
