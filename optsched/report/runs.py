"""Plots of runs and schedules, fluid models, regret, routing and placements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.numbers import at_least, percent, proven, student
from optsched.errors import InstanceError, OptschedError, PolicyError, require_known
from optsched.problem.work import load_on_clock
from optsched.report import style as common
from optsched.report.style import finish, hover, line_of, line_styles, plain, prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.experiments.regret import Regret
    from optsched.experiments.regret_cells import OverloadThreshold
    from optsched.experiments.results import ClockComparison, ClusterComparison, StepComparison
    from optsched.models import BalanceProgram, Equilibrium, NestedWaitPlan, SegmentDesign, WaitPlan
    from optsched.optimum.gap import GapExplanation
    from optsched.optimum.routing import RoutingLoss
    from optsched.optimum.state import Optimum
    from optsched.problem.schedule import Schedule
    from optsched.rolling.decisions import Decisions
    from optsched.simulate.cluster.results import ClusterRun
    from optsched.simulate.seconds.execution import ClockedRun

# One curve may be as fine as print; several would hide each other.
_BINS, _SHARED_BINS = 2000, 250
_SAMPLE = 40  # requests drawn where they are too many to be stacked


def plot_comparison(comparison: StepComparison, ax: Axes | None = None) -> Axes:
    """Plot the objective of each policy over the part that is proven to be unavoidable."""
    runs = comparison.ranked()
    ax = prepare(ax, height=1.2 + 0.36 * len(runs))
    colours = common.name_ranked(ax, comparison)
    bound, rows = comparison.bounds[0].value, np.arange(len(runs))
    covering = [comparison.covering(run)[0] for run in runs]
    unavoidable = np.array([0.0 if claim is None else claim.value for claim in covering])
    totals = np.array([comparison.value(run) for run in runs])
    shares = [comparison.gap(run) for run in runs]
    gaps = ["unknown" if share is None else percent(share) for share in shares]
    label = f"unavoidable: proven bound, {at_least(bound)}"
    bars = ax.barh(rows, unavoidable, height=0.68, color=common.UNAVOIDABLE, label=label)
    hover(bars, [f"no such run is below {at_least(value)}<extra></extra>" for value in unavoidable])
    over = np.maximum(totals - unavoidable, 0)
    rest = ax.barh(rows, over, left=unavoidable, height=0.68, color=colours)
    hover(rest, [f"total {total:,}, gap {gap}" for total, gap in zip(totals, gaps, strict=True)])
    ax.axvline(bound, color="black", linewidth=1)
    for row, (total, gap) in enumerate(zip(totals, gaps, strict=True)):
        common.note_bar(ax, f"gap {gap}", total, row)
    ax.set_xlim(0, totals.max() * 1.2 or 1)
    unit = comparison.unit and f" ({common.step_unit(comparison.instance)})"
    return finish(ax, f"{comparison.measure}{unit}", counts="x")


def plot_memory(
    schedules: Schedule | Iterable[Schedule], ax: Axes | None = None, bins: int | None = None
) -> Axes:
    """Plot the tokens held over time; a point is the most that is held within a bin of steps."""
    chosen = common.styled(schedules)
    ax = prepare(ax)
    first_drawn, widest = chosen[0][0], 1
    bins = bins or (_BINS if len(chosen) == 1 else _SHARED_BINS)
    for schedule, style in chosen:
        edges, peaks = common.memory_curve(schedule, bins)
        widest = max(widest, int(np.diff(edges).max()))
        ax.plot(
            edges,
            np.append(peaks, 0),
            drawstyle="steps-post",
            linewidth=1.3,
            label=plain(schedule.policy),
            **line_of(style),
        )
    common.memory_limit(ax, first_drawn.workers.total)
    first = min(int(schedule.starts.min()) for schedule, _ in chosen)
    ax.set(xlim=(first, None), ylim=(0, None))
    ylabel = "tokens held" + (f" (most of each {widest:,} steps)" if widest > 1 else "")
    return finish(ax, common.in_steps(first_drawn.instance), ylabel, counts="xy")


def plot_latency(schedules: Schedule | Iterable[Schedule], ax: Axes | None = None) -> Axes:
    """Plot the distribution of latencies: the share of requests that are complete within a time."""
    from matplotlib.ticker import PercentFormatter

    chosen = common.styled(schedules)
    ax = prepare(ax)
    for index, (schedule, style) in enumerate(chosen):
        latencies, shares = common.latency_cdf(schedule)
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
    xlabel = f"latency ({common.step_unit(chosen[0][0].instance)})"
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

    By client it is a Gantt chart: a bar for each request, labelled if asked for, behind its wait.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    require_known("by", by, ("", "client"), InstanceError)
    if by or labels:
        return _plot_gantt(schedule, prepare(ax, height=1.2 + 0.16 * len(schedule.starts)), labels)
    ax = prepare(ax)
    bars = common.growing_bars(schedule, sample)
    style = line_styles([schedule.policy])[0]
    first = int(schedule.starts.min())
    if bars.stacked:
        edges = ["white", "white"]
        common.memory_limit(ax, schedule.instance.memory)
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
    xlabel, title = common.in_steps(schedule.instance), plain(schedule.policy)
    return finish(ax, xlabel, ylabel, counts="xy", title=title)


def _plot_gantt(schedule: Schedule, ax: Axes, labels: bool) -> Axes:
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
            color=common.COLOURS[number % len(common.COLOURS)],
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
            fontsize=common.TEXT_SIZE - 3,
        )
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_yticks([])
    xlabel, title = common.in_steps(instance), plain(schedule.policy)
    ylabel = "requests" if instance.clients is None else "requests by client"
    return finish(ax, xlabel, ylabel, counts="x", title=title)


def plot_gap(explanation: GapExplanation, ax: Axes | None = None) -> Axes:
    """Plot how a gap adds up over the steps: starts that cost more, and memory that lies idle."""
    ax = prepare(ax)
    steps, waste, regret = common.gap_curves(explanation, _BINS)
    ax.fill_between(steps, 0, waste, color=common.ORANGE, linewidth=0, label="wasted memory")
    label = "order regret of the starts"
    ax.fill_between(steps, waste, waste + regret, color=common.BLUE, linewidth=0, label=label)
    ax.set_xlim(0, steps[-1])
    ax.set_ylim(0, max(1.0, 1.05 * float((waste + regret)[-1])))
    xlabel = common.in_steps(explanation.schedule.instance)
    unit = "steps of latency" if explanation.unit == "steps" else explanation.unit
    return finish(ax, xlabel, f"gap so far ({unit})", counts="xy")


def plot_history(result: Optimum, ax: Axes | None = None) -> Axes:
    """Plot how the interval between the bound and the best schedule closed."""
    ax = prepare(ax)
    known = [entry for entry in result.history if entry[1] is not None]
    seconds = np.array([entry[0] for entry in known] + [result.seconds])
    costs = np.array([entry[1] for entry in known] + [result.objective], dtype=float)
    bounds = np.array([entry[2] for entry in known] + [result.bound], dtype=float)
    ax.fill_between(
        seconds, bounds, costs, step="post", color=common.UNAVOIDABLE, alpha=0.4, linewidth=0
    )
    (best,) = ax.step(seconds, costs, where="post", color=common.BLUE, label="best schedule")
    hover(best, [f"{cost:,.10g} after {at:.2f} s" for at, cost in zip(seconds, costs, strict=True)])
    label = f"proven bound; gap {percent(result.gap)} at the end"
    (line,) = ax.step(
        seconds, bounds, where="post", color="black", linestyle=common.DASHED, label=label
    )
    pairs = zip(seconds, bounds, strict=True)
    hover(line, [f"at least {at_least(bound)} after {at:.2f} s" for at, bound in pairs])
    ax.set_xlim(0, seconds[-1])
    late = result.minimised == "late-requests"
    label = f"{result.minimised.replace('-', ' ')} ({result.unit})"
    return finish(ax, "time (seconds)", result.unit if late else label, counts="y")


def plot_decision_times(decisions: Decisions, ax: Axes | None = None) -> Axes:
    """Plot the share of decisions that took at least as long as a time, with the budget."""
    ax = prepare(ax)
    times = 1e3 * np.sort(decisions.counts.seconds)
    longer = 1 - np.arange(len(times)) / max(len(times), 1)
    ax.step(times, longer, where="pre", color=common.BLUE, label=f"{len(times):,} decisions")
    if 0 < decisions.policy.seconds < math.inf:
        budget = 1e3 * decisions.policy.seconds
        ax.axvline(budget, color=common.LIMIT, linewidth=1, label=f"budget, {budget:g} ms")
        ax.axvline(
            2 * budget, color=common.LIMIT, linewidth=1, linestyle="--", label="twice the budget"
        )
    ylabel = "share of decisions that took at least as long"
    return finish(ax, "time of a decision (ms)", ylabel, xscale="log", yscale="log")


MAX_WORKERS = 64  # drawn one by one on a page
_RATIOS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
_RUN_BINS, _POINTS, _POWER_POINTS = 400, 300, 200


def plot_clocked_usage(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the tokens held over time: the most in each of 400 intervals."""
    listed, ax = common.styled(runs), prepare(ax)
    for run, style in listed:
        times, values = common.most_per_bin(run.log.spans[:, 1], run.log.usage, _RUN_BINS)
        ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    common.memory_limit(ax, listed[0][0].instance.memory)
    return finish(ax, common.in_seconds(listed[0][0]), "tokens held", counts="y")


def plot_waiting(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the requests that have arrived and are not complete, over time."""
    listed, ax = common.styled(runs), prepare(ax)
    for run, style in listed:
        grid = np.linspace(0, run.makespan, _RUN_BINS)
        ax.plot(grid, run.in_system(grid), label=plain(run.policy), **line_of(style))
    return finish(ax, common.in_seconds(listed[0][0]), "requests in the system", counts="y")


def plot_mean_latency(runs: ClockedRun | Iterable[ClockedRun], ax: Axes | None = None) -> Axes:
    """Plot the mean latency of the requests that arrived so far (Jaillet Fig. 5)."""
    listed, ax = common.styled(runs), prepare(ax)
    for run, style in listed:
        latencies = run.latencies
        counted = np.cumsum(~np.isnan(latencies))
        means = np.nancumsum(latencies) / np.maximum(counted, 1)
        number = np.arange(1, len(means) + 1)
        thin = np.unique(np.linspace(0, len(means) - 1, _RUN_BINS).astype(np.int64))
        ax.plot(number[thin], means[thin], label=plain(run.policy), **line_of(style))
    ylabel = f"mean latency so far ({common.clock_unit(listed[0][0])})"
    return finish(ax, "requests arrived", ylabel, counts="xy")


def plot_batches(run: ClockedRun, ax: Axes | None = None) -> Axes:
    """Plot the requests that decode in a batch over time: the most in each of 400 intervals."""
    [(_, style)], ax = common.styled(run), prepare(ax)
    times, values = common.most_per_bin(run.log.spans[:, 1], run.log.contents[:, 1], _RUN_BINS)
    ax.step(times, values, where="pre", label=plain(run.policy), **line_of(style))
    return finish(ax, common.in_seconds(run), "requests decoding in a batch", counts="y")


def plot_clock_comparison(comparison: ClockComparison, ax: Axes | None = None) -> Axes:
    """Plot the mean latency of each policy as a bar, with its median and 99th percentile."""
    entries = {entry["policy"]: entry for entry in comparison.to_dict()["policies"]}
    rows = [entries[run.policy] for run in comparison.ranked()]
    ax = prepare(ax, height=0.8 + 0.36 * len(rows))
    colours = common.name_ranked(ax, comparison)
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
            ax.text(right * 1.03, at, note, va="center", fontsize=common.TEXT_SIZE)
    ax.set_xlim(0, right * 1.05 or 1)
    ax.set_xlabel(
        f"latency ({common.clock_unit(next(iter(comparison)))}): mean, median |, 99th percentile >"
    )
    return ax


def plot_over_bound(comparisons: Iterable[ClockComparison], ax: Axes | None = None) -> Axes:
    """Plot the objective over its proven bound, which is 1, from comparisons at several loads."""
    listed = sorted(comparisons, key=_load)
    ax = prepare(ax)
    policies = list(dict.fromkeys(name for each in listed for name in each.policies))
    for policy, style in zip(policies, line_styles(policies), strict=True):
        points = [
            (_load(each), each.value(policy) / covering.value)
            for each in listed
            if policy in each.policies and (covering := each.covering(policy)[0]) is not None
        ]
        loads, ratios = zip(*points, strict=True) if points else ((), ())
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5, "marker": style.marker}
        (line,) = ax.plot(loads, ratios, label=plain(policy), **look)
        hover(line, [f"{ratio:.4g} times the bound at load {load:.3g}" for load, ratio in points])
    ax.axhline(1, color=common.LIMIT, linewidth=1, label="proven bound")
    ax.axvline(1, **common.REFERENCE)
    ax.set(xscale="log", yscale="log")
    highest = max(1.5, ax.get_ylim()[1])
    ax.set_ylim(0.95, highest)
    ax.set_xticks([_load(each) for each in listed])
    ax.set_yticks([ratio for ratio in _RATIOS if ratio <= highest])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:.2g}")
    ax.minorticks_off()
    measures = dict.fromkeys(each.metric.replace("_", " ") for each in listed)
    return finish(ax, "load on the clock", f"{', '.join(measures)} over the proven bound")


def _load(comparison: ClockComparison) -> float:
    load = load_on_clock(comparison.instance, comparison.clock)
    if load is None or comparison.bound is None or not load.span:
        clock = comparison.clock.name
        raise InstanceError(
            f"the comparison on {clock} has no bound or no arrivals, but the plot is of latency "
            "over the bound by load; compare on a LinearClock, with arrivals"
        )
    return load.load


def plot_loads(run: ClusterRun, ax: Axes | None = None, workers: int | None = None) -> Axes:
    """Plot the load of every worker, or of the first few, and the heaviest load of each step."""
    if run.loads is None:
        raise InstanceError(
            f"the loads of {run.policy} were not recorded; run it with record_loads=True"
        )
    steps, loads = common.mean_per_bin(run.loads[:, :workers], _POINTS)
    heaviest = common.mean_per_bin(run.loads.max(axis=1), _POINTS)[1]
    ax = plot_trajectories(steps, loads, heaviest, run.policy, ax)
    ax.set_xlim(0, run.steps)
    return ax


def plot_trajectories(
    steps: IntArray, loads: FloatArray, heaviest: FloatArray, policy: str, ax: Axes | None = None
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


def plot_balance(program: BalanceProgram, worker: IntArray, ax: Axes | None = None) -> Axes:
    """Plot the loads of workers, as they are and as an assignment makes them."""
    from matplotlib.ticker import MaxNLocator

    ax = prepare(ax)
    none = np.full(len(worker), -1)
    before, after = program.loads(none), program.loads(worker)
    places, ahead = np.arange(len(after)), after.shape[1] - 1
    parts = {"running": before[:, 0].astype(np.float64)}
    if (worker != -1).any():
        parts["admitted"] = (after[:, 0] - before[:, 0]).astype(np.float64)
    common.stack_bars(ax, places, parts)
    if ahead:
        label = f"{ahead} step{'s' * (ahead > 1)} ahead"
        (line,) = ax.plot(places, after[:, -1], "_", color="black", markersize=12, label=label)
        hover(line, "%{y:,.0f} tokens on worker %{x}")
    most = ax.axhline(after[:, 0].max(), color="black", linewidth=0.8, label="heaviest now")
    most.set_linestyle(common.DASHED)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(ax, "worker", "load (tokens)", counts="y")


def plot_power(runs: ClusterRun | Iterable[ClusterRun], ax: Axes | None = None) -> Axes:
    """Plot the mean power of a worker over time."""
    ax = prepare(ax)
    for run, style in common.styled(runs):
        steps, watt = common.mean_per_bin(run.watt / run.cluster.workers, _POWER_POINTS)
        times = run.times[steps]
        (line,) = ax.plot(times, watt, linewidth=1.4, label=plain(run.policy), **line_of(style))
        hover(line, "%{y:.0f} W at %{x:.1f} s")
    return finish(ax, "time (s)", "mean power of a worker (W)", xlim=(0, None))


def plot_lookahead(comparison: ClusterComparison, ax: Axes | None = None) -> Axes:
    """Plot the mean imbalance against the lookahead H, with 95 % confidence intervals."""
    ax = prepare(ax)
    windows, means, lows, highs = common.lookahead_curve(comparison).T
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


_LOADS = np.linspace(0.02, 0.96, 95)
_MAX_TYPES = 30
_TIMES = 300
_PARTS = ("full batch", "queues", "rare queues")


def plot_equilibrium(found: Equilibrium, memory: int | None = None, ax: Axes | None = None) -> Axes:
    """Plot the memory of the fluid and of WAIT against the load, with all rates scaled alike."""
    from optsched.models import WaitThresholds, equilibrium

    ax = prepare(ax)
    scaled = [found.types.scaled(load / found.load) for load in _LOADS.tolist()]
    fluid = [equilibrium(types, found.clock).memory for types in scaled]
    programs = [WaitThresholds(types, found.clock) for types in scaled]
    waiting = [program.plan(program.least_fixed_point()).memory for program in programs]
    ax.plot(
        _LOADS,
        waiting,
        color=common.VERMILLION,
        linestyle=(0, (4, 1.5)),
        label="WAIT, a full batch",
    )
    ax.plot(_LOADS, fluid, color=common.BLUE, label="fluid equilibrium")
    if found.stable:
        label = f"load {found.load:.3g}: {found.memory:,.0f} tokens"
        ax.plot(found.load, found.memory, "o", color=common.BLUE, label=label)
    if memory is not None:
        common.memory_limit(ax, memory)
    xlabel = "load (share of the time that the arrivals need)"
    return finish(ax, xlabel, "tokens held", counts="y", xlim=(0, 1), yscale="log")


def plot_slacks(plan: WaitPlan, ax: Axes | None = None) -> Axes:
    """Plot how long the requests that fill a batch take to arrive, against how long it lasts."""
    shown = np.argsort(plan.slacks, kind="stable")[:_MAX_TYPES]
    ax = prepare(ax, height=1.3 + 0.36 * len(shown))
    rows = np.arange(len(shown))
    time = plan.iteration_time
    ax.barh(rows, time, height=0.68, color=common.BLUE, label="a full batch")
    ax.barh(rows, plan.slacks[shown], left=time, height=0.68, color=common.GREEN, label="slack")
    ax.axvline(time, color="black", linewidth=1)
    names = plan.program.types.names
    for row, j in enumerate(shown.tolist()):
        common.note_bar(ax, f"{plan.thresholds[j]:,} arrive", time + plan.slacks[j], row)
    common.name_bars(ax, [f"type {names[j]}" for j in shown])
    ax.set_xlim(0, 1.2 * (time + plan.slacks[shown].max()))
    return finish(ax, "time (s)")


def plot_nested_memory(plan: NestedWaitPlan, ax: Axes | None = None) -> Axes:
    """Plot the memory that Nested WAIT needs, by segment and purpose."""
    ax = prepare(ax)
    program, count = plan.program, len(plan.thresholds)
    stages = [
        f"{first}-{last}"
        for first, last in zip(program.first_stages, program.last_stages, strict=True)
    ]
    common.stack_bars(ax, np.arange(count), dict(zip(_PARTS, plan.parts_by_segment, strict=True)))
    step = max(1, count // 10)
    ax.set_xticks(np.arange(count)[::step], stages[::step], fontsize=8)
    return finish(ax, "stages of the segment (output tokens)", "tokens", counts="y")


def plot_segments(
    design: SegmentDesign, numbers: Iterable[int] | None = None, ax: Axes | None = None
) -> Axes:
    """Plot the memory that suffices against the number of segments, each with its best borders."""
    from matplotlib.ticker import MaxNLocator

    ax = prepare(ax)
    most = len(design.thresholds)
    chosen = range(min(2, most), min(30, most) + 1) if numbers is None else numbers
    parts = {number: design.parts(number) for number in chosen}
    drawn = {number: part for number, part in parts.items() if part is not None}
    at = np.array(list(drawn))
    common.stack_bars(ax, at, dict(zip(_PARTS, np.array(list(drawn.values())).T, strict=True)))
    totals = {number: sum(part) for number, part in drawn.items()}
    best = min(totals, key=totals.__getitem__)
    least = totals[best]
    ax.axhline(least, color="black", linewidth=0.8, linestyle=common.DASHED)
    label = f"least: {math.ceil(least - 1e-6):,} tokens in {best} segments"
    ax.plot(best, least, "v", color="black", markersize=7, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(ax, "segments", "tokens that suffice", counts="y")


def plot_backlogs(runs: Mapping[str, Sequence[ClockedRun]], ax: Axes | None = None) -> Axes:
    """Plot the requests in the system over time: means over seeds, with confidence bands."""
    for name, group in runs.items():
        if len(group) < 2:
            raise PolicyError(
                f"{len(group)} run of {name!r} says nothing about how runs differ; pass at least 2"
            )
    ax = prepare(ax)
    all_runs = [run for group in runs.values() for run in group]
    grid = np.linspace(0, min(run.makespan for run in all_runs), _TIMES)
    for (name, group), style in zip(runs.items(), line_styles(runs), strict=True):
        counts = np.array([run.in_system(grid) for run in group])
        mean, error = counts.mean(axis=0), counts.std(axis=0, ddof=1) / np.sqrt(len(group))
        reach = error * student(0.975, len(group))
        ax.fill_between(grid, mean - reach, mean + reach, color=style.tint, linewidth=0)
        ax.plot(grid, mean, label=plain(name), **line_of(style))
    ax.set_ylim(bottom=0)
    return finish(ax, common.in_seconds(all_runs[0]), "requests in the system", counts="y")


_FLAT = 0.01  # regret up to which the axis is linear
_SPREAD = 1.035  # factor by which policies are set apart, so that none hides another


def plot_regret(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the regret interval of each policy against the horizon, at one load."""
    ax = _intervals(result, load, ax, "low", "high", "floor", "ceiling")
    bands = [each for each in result.bands() if each.load == load]
    drawn = np.array([[each.low, each.high, each.floor, each.ceiling] for each in bands])
    drawn = drawn[np.isfinite(drawn)]  # of one seed there are no limits
    top = max(1.15 * float(drawn.max()), 10 * _FLAT)
    bottom = drawn.min() / 2 if drawn.min() > _FLAT else 0.0  # the part around 0 is linear
    ax.set_yscale("symlog", linthresh=_FLAT)
    first = np.log10(_FLAT) if bottom == 0 else np.floor(np.log10(bottom))
    powers = 10.0 ** np.arange(first, np.ceil(np.log10(top)) + 1)
    ax.set_yticks([0.0, *powers.tolist()] if bottom == 0 else powers.tolist())
    ax.minorticks_off()
    ax.yaxis.set_major_formatter("{x:,.10g}")
    ax.set(ylim=(bottom, top), ylabel=f"regret ({result.unit} per request)")
    return ax


def plot_regret_ratio(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the interval of each policy's ratio to the least possible latency, as `plot_regret`."""
    ax = _intervals(result, load, ax, "ratio_low", "ratio_high")
    ax.set_ylabel("latency over the least possible")
    return ax


def _intervals(result: Regret, load: float, ax: Axes | None, *names: str) -> Axes:
    """Plot both ends of an interval by their names in bands, perhaps with confidence limits."""
    if load not in result.loads:
        raise OptschedError(f"there is no load {load:g}; there are {result.loads}")
    ax = prepare(ax)
    horizons = result.horizons(load)
    middle = (len(result.policies) - 1) / 2
    styles = line_styles(result.policies)
    for place, (policy, style) in enumerate(zip(result.policies, styles, strict=True)):
        bands = [result.band(policy, load, horizon) for horizon in horizons]
        at = np.array(horizons) * _SPREAD ** (2 * (place - middle))
        low, high, *limits = (np.array([getattr(each, name) for each in bands]) for name in names)
        ax.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        if limits:
            known = np.isfinite(limits).all(axis=0)
            floor, ceiling = (limit[known] for limit in limits)
            ax.vlines(at[known], floor, ceiling, color=style.colour, linewidth=0.9)
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5, "marker": style.marker}
        lines = ax.plot(at, high, label=plain(policy), **look)
        lines += ax.plot(at, low, markerfacecolor="white", **look)
        for line, end, found in zip(lines, ("at most", "at least"), (high, low), strict=True):
            shown = (proven(value, up=end == "at most", digits=4) for value in found)
            hover(line, [f"{end} {y} at T = {x:,}" for y, x in zip(shown, horizons, strict=True)])
    ax.set_xscale("log")
    if len(horizons) == 1:  # marks stay together
        ax.set_xlim(horizons[0] / 3, horizons[0] * 3)
    ax.set_xticks(horizons, [f"{horizon:,}" for horizon in horizons])
    ax.minorticks_off()
    title = f"load {load:g}; filled: against the bound, open: against the best schedule"
    return finish(ax, f"horizon T ({result.unit} in which requests arrive)", title=title)


def plot_thresholds(thresholds: Sequence[OverloadThreshold], ax: Axes | None = None) -> Axes:
    """Plot what is left behind against the load, and shade where each policy's threshold lies."""
    from optsched.experiments.regret_cells import LEFT_BEHIND

    ax = prepare(ax)
    names = [threshold.policy for threshold in thresholds]
    for threshold, style in zip(thresholds, line_styles(names), strict=True):
        loads, shares = np.array(sorted(threshold.tried)).T
        look = line_of(style) | {"linewidth": 1.5, "markersize": 4.5}
        ax.plot(loads, 100 * shares, marker=style.marker, label=plain(threshold.policy), **look)
        ax.axvspan(threshold.stable, threshold.overloaded, color=style.colour, alpha=0.25, lw=0)
    ax.axhline(100 * LEFT_BEHIND, label="overloaded above", **common.REFERENCE)
    ax.axvline(1.0, color=common.LIMIT, linewidth=1)
    xlabel = "load (memory-time that arrives over that which passes)"
    return finish(ax, xlabel, "left behind (% of what arrives)")


def plot_losses(result: RoutingLoss, ax: Axes | None = None) -> Axes:
    """Plot what each router and policy provably lose, by part, and what they may lose on top."""
    losses = sorted(result.losses, key=lambda each: each.loss.high)
    ax = prepare(ax, height=1.2 + 0.36 * len(losses))
    common.name_bars(ax, [f"{each.run.router}, {each.run.policy}" for each in losses])
    low, high = 100 * np.array([each.loss for each in losses]).T
    order, placement = np.zeros(len(losses)), np.zeros(len(losses))
    for row, each in enumerate(losses):
        if each.order is not None and each.placement is not None:
            order[row], placement[row] = 100 * each.order.low, 100 * each.placement.low
    rows, below = np.arange(len(losses)), np.zeros(len(losses))
    parts = [("lost, at least", low, common.BLUE)]
    if order.any() or placement.any():
        parts = [("order, at least", order, common.BLUE)]
        parts.append(("placement, at least", placement, common.ORANGE))
        parts.append(("one of them, at least", np.maximum(low - order - placement, 0), common.SKY))
    parts.append(("open", high - low, common.UNAVOIDABLE))
    for label, widths, colour in parts:
        bars = ax.barh(rows, widths, left=below, height=0.68, color=colour, label=label)
        hover(bars, [f"{label} {width:.1f} %" for width in widths])
        below = below + widths
    ax.axvline(0, color=common.LIMIT, linewidth=1)
    for row, each in enumerate(losses):
        common.note_bar(ax, f"at most {percent(each.loss.high)}", float(high[row]), row)
    ax.set_xlim(0, max(1.0, 1.25 * high.max()))
    return finish(ax, "lost against the best placement and order (% of the own latency)")


_ALL_BINS = 2000  # over all workers
_FEWEST_BINS = 100
_SHARED_SAMPLE = 4000  # requests drawn


def plot_workers(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Plot the share of its memory that each worker uses, in a band for each."""
    ax = _bands(schedule, ax)
    bins = max(_FEWEST_BINS, _ALL_BINS // len(schedule.workers))
    for worker, memory in enumerate(schedule.workers.memories):
        if not len(schedule.requests_on(worker)):
            continue
        edges, peaks = common.memory_curve(schedule.on(worker), bins)
        tops = worker + 0.9 * np.append(peaks, 0) / memory
        label = "most tokens held" if worker == schedule.placement[0] else None
        ax.fill_between(
            edges, worker, tops, step="post", color=common.BLUE, linewidth=0, label=label
        )
    limits = np.arange(len(schedule.workers)) + 0.9
    begin, end = ax.get_xlim()
    ax.hlines(limits, begin, end, color=common.LIMIT, linewidth=0.6, label="memory limit of each")
    return _finished(schedule, ax)


def plot_placement(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Plot each request while it runs, or a sample of them: the larger, the higher in the band."""
    from matplotlib.collections import LineCollection

    ax = _bands(schedule, ax)
    requests, _ = common.sample_by_start(schedule, _SHARED_SAMPLE)
    areas = schedule.instance.areas[requests]
    heights = np.empty(len(requests))
    heights[np.argsort(areas, kind="stable")] = np.linspace(0.05, 0.9, len(requests))
    heights += schedule.placement[requests]
    large = areas > np.median(schedule.instance.areas)
    begins, ends = schedule.starts[requests], schedule.completions[requests]
    lines = np.column_stack([begins, heights, ends, heights]).reshape(-1, 2, 2)
    for mask, colour, label in (
        (~large, common.ORANGE, "smaller half of the requests"),
        (large, common.BLUE, "larger half"),
    ):
        ax.add_collection(LineCollection(list(lines[mask]), colors=colour, lw=1.2, label=label))
    return _finished(schedule, ax)


def _bands(schedule: Schedule, ax: Axes | None) -> Axes:
    count = len(schedule.workers)
    ax = prepare(ax, height=min(7.0, 1.6 + 0.5 * count))
    memories = schedule.workers.memories
    names = [f"{worker}" for worker in range(count)]
    if len(set(memories)) > 1:
        names = [f"{worker}: {memory:,}" for worker, memory in enumerate(memories)]
    every = -(-count // 16)
    ax.set_yticks(np.arange(0, count, every) + 0.45, names[::every])
    ax.set_xlim(int(schedule.starts.min()), schedule.makespan)
    ax.set_ylim(0, count)
    ax.grid(visible=False, axis="y")
    return ax


def _finished(schedule: Schedule, ax: Axes) -> Axes:
    xlabel = common.in_steps(schedule.instance)
    return finish(ax, xlabel, "worker", counts="x", title=plain(schedule.policy))
