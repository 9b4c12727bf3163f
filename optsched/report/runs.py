"""Plots of runs and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.numbers import at_least, percent
from optsched.errors import InstanceError, require_known
from optsched.problem.work import load_on_clock
from optsched.report.series import (
    gap_curves,
    growing_bars,
    latency_cdf,
    lookahead_curve,
    mean_per_bin,
    memory_curve,
    most_per_bin,
)
from optsched.report.style import (
    BLUE,
    COLOURS,
    DASHED,
    LIMIT,
    ORANGE,
    REFERENCE,
    TEXT_SIZE,
    UNAVOIDABLE,
    clock_unit,
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

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.experiments.results import ClusterComparison, Comparison
    from optsched.optimum.gap import GapExplanation
    from optsched.optimum.state import Optimum
    from optsched.problem.schedule import Schedule
    from optsched.rolling.driver import Decisions
    from optsched.simulate.cluster.results import ClusterRun
    from optsched.simulate.seconds.execution import ClockedRun


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


def plot_schedule(
    schedule: Schedule,
    ax: Axes | None = None,
    sample: int = _SAMPLE,
    *,
    by: Literal["", "client"] = "",
    labels: bool = False,
) -> Axes:
    """Plot requests as bars that grow from their prompts to prompts plus outputs.

    By client it is a Gantt chart: a bar for each request while it runs, behind a line while it
    waits, the requests of a client below each other in one colour, and their labels if asked for.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    require_known("by", by, ("", "client"), InstanceError)
    if by or labels:
        return _plot_gantt(schedule, prepare(ax, height=1.2 + 0.16 * len(schedule.starts)), labels)
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


def _plot_gantt(schedule: Schedule, ax: Axes, labels: bool) -> Axes:
    """Plot a row for each request, by client."""
    instance = schedule.instance
    clients = np.zeros(len(instance), int) if instance.clients is None else instance.clients
    order = np.lexsort((schedule.starts, clients))
    rows = np.empty(len(order), dtype=np.int64)
    rows[order] = np.arange(len(order))
    lasts = schedule.completions - schedule.starts
    for number, client in enumerate(np.unique(clients).tolist()):
        own = clients == client
        bars = ax.barh(
            rows[own],
            lasts[own],
            left=schedule.starts[own],
            height=0.8,
            color=COLOURS[number % len(COLOURS)],
            label=schedule.policy if instance.clients is None else f"client {client}",
        )
        hover(bars, [instance.label(request) for request in np.flatnonzero(own).tolist()])
    ax.hlines(rows, instance.arrivals, schedule.starts, color="0.6", lw=0.6, label="waiting")
    for request in range(len(order)) if labels else ():
        ax.annotate(
            instance.label(request),
            (schedule.completions[request], rows[request]),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=TEXT_SIZE - 3,
        )
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_yticks([])
    xlabel = f"time ({step_unit(instance)})"
    return finish(ax, xlabel, "requests by client", counts="x", title=plain(schedule.policy))


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


MAX_WORKERS = 64  # drawn one by one on a page
_RATIOS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
_RUN_BINS, _POINTS, _POWER_POINTS = 400, 300, 200


def plot_clocked_usage(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the tokens held over time: the most in each of 400 intervals."""
    listed, ax = styled(runs), prepare(ax)
    for run, style in listed:
        times, values = most_per_bin(run.log.spans[:, 1], run.log.usage, _RUN_BINS)
        ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    memory_limit(ax, listed[0][0].instance.memory)
    return finish(ax, _time(listed[0][0]), "tokens held", counts="y")


def plot_waiting(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the requests that have arrived and are not complete, over time."""
    listed, ax = styled(runs), prepare(ax)
    for run, style in listed:
        grid = np.linspace(0, run.makespan, _RUN_BINS)
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
        thin = np.unique(np.linspace(0, len(means) - 1, _RUN_BINS).astype(np.int64))
        ax.plot(number[thin], means[thin], label=plain(run.policy), **line_of(style))
    ylabel = f"mean latency so far ({clock_unit(listed[0][0])})"
    return finish(ax, "requests arrived", ylabel, counts="xy")


def plot_batches(run: ClockedRun, ax: Axes | None = None) -> Axes:
    """Plot the requests that decode in a batch over time: the most in each of 400 intervals."""
    [(_, style)], ax = styled(run), prepare(ax)
    times, values = most_per_bin(run.log.spans[:, 1], run.log.contents[:, 1], _RUN_BINS)
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
