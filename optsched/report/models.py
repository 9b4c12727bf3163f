"""Plots of fluid models, regret, routing and placements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import percent, proven, student
from optsched.errors import OptschedError, PolicyError
from optsched.report.series import memory_curve, sample_by_start, stack_bars
from optsched.report.style import (
    BLUE,
    DASHED,
    GREEN,
    LIMIT,
    ORANGE,
    REFERENCE,
    SKY,
    UNAVOIDABLE,
    VERMILLION,
    clock_unit,
    finish,
    hover,
    line_of,
    line_styles,
    memory_limit,
    name_bars,
    note_bar,
    plain,
    prepare,
    step_unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.experiments.regret import Band, Regret
    from optsched.experiments.regret_cells import OverloadThreshold
    from optsched.models.fluid.equilibrium import Equilibrium
    from optsched.models.fluid.nested import NestedWaitPlan, SegmentDesign
    from optsched.models.fluid.wait import WaitPlan
    from optsched.optimum.routing import RoutingLoss
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun


_LOADS = np.linspace(0.02, 0.96, 95)
_MAX_TYPES = 30
_TIMES = 300
_PARTS = ("full batch", "queues", "rare queues")


def plot_equilibrium(found: Equilibrium, memory: int | None = None, ax: Axes | None = None) -> Axes:
    """Plot the memory of the fluid and of WAIT against the load, with all rates scaled alike."""
    from optsched.models.fluid.equilibrium import equilibrium
    from optsched.models.fluid.wait import WaitThresholds

    ax = prepare(ax)
    scaled = [found.types.scaled(load / found.load) for load in _LOADS.tolist()]
    fluid = [equilibrium(types, found.clock).memory for types in scaled]
    programs = [WaitThresholds(types, found.clock) for types in scaled]
    waiting = [program.plan(program.least_fixed_point()).memory for program in programs]
    ax.plot(_LOADS, waiting, color=VERMILLION, linestyle=(0, (4, 1.5)), label="WAIT, a full batch")
    ax.plot(_LOADS, fluid, color=BLUE, label="fluid equilibrium")
    if found.stable:
        label = f"load {found.load:.3g}: {found.memory:,.0f} tokens"
        ax.plot(found.load, found.memory, "o", color=BLUE, label=label)
    if memory is not None:
        memory_limit(ax, memory)
    xlabel = "load (share of the time that the arrivals need)"
    return finish(ax, xlabel, "tokens held", counts="y", xlim=(0, 1), yscale="log")


def plot_slacks(plan: WaitPlan, ax: Axes | None = None) -> Axes:
    """Plot how long the requests that fill a batch take to arrive, against how long it lasts."""
    shown = np.argsort(plan.slacks, kind="stable")[:_MAX_TYPES]
    ax = prepare(ax, height=1.3 + 0.36 * len(shown))
    rows = np.arange(len(shown))
    time = plan.iteration_time
    ax.barh(rows, time, height=0.68, color=BLUE, label="a full batch")
    ax.barh(rows, plan.slacks[shown], left=time, height=0.68, color=GREEN, label="slack")
    ax.axvline(time, color="black", linewidth=1)
    names = plan.program.types.names
    for row, j in enumerate(shown.tolist()):
        note_bar(ax, f"{plan.thresholds[j]:,} arrive", time + plan.slacks[j], row)
    name_bars(ax, [f"type {names[j]}" for j in shown])
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
    stack_bars(ax, np.arange(count), dict(zip(_PARTS, plan.parts_by_segment, strict=True)))
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
    stack_bars(ax, at, dict(zip(_PARTS, np.array(list(drawn.values())).T, strict=True)))
    totals = {number: sum(part) for number, part in drawn.items()}
    best = min(totals, key=totals.__getitem__)
    least = totals[best]
    ax.axhline(least, color="black", linewidth=0.8, linestyle=DASHED)
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
    return finish(ax, f"time ({clock_unit(all_runs[0])})", "requests in the system", counts="y")


_FLAT = 0.01  # regret up to which the axis is linear
_SPREAD = 1.035  # factor by which policies are set apart, so that none hides another


def plot_regret(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the regret interval of each policy against the horizon, at one load."""
    ax = _intervals(result, load, ("low", "high"), ("floor", "ceiling"), ax)
    ax.set_yscale("symlog", linthresh=_FLAT)
    ax.set_ylim(bottom=0)
    _regret_axis(ax)
    ax.set_ylabel(f"regret ({result.unit} per request)")
    return ax


def plot_regret_ratio(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the interval of each policy's ratio to the least possible latency, as `plot_regret`."""
    ax = _intervals(result, load, ("ratio_low", "ratio_high"), None, ax)
    ax.set_ylabel("latency over the least possible")
    return ax


def _intervals(
    result: Regret,
    load: float,
    ends: tuple[str, str],
    limits: tuple[str, str] | None,
    ax: Axes | None,
) -> Axes:
    from matplotlib.ticker import NullLocator

    if load not in result.loads:
        raise OptschedError(f"there is no load {load:g}; there are {result.loads}")
    ax = prepare(ax)
    horizons = result.horizons(load)
    middle = (len(result.policies) - 1) / 2
    styles = line_styles(result.policies)
    for place, (policy, style) in enumerate(zip(result.policies, styles, strict=True)):
        bands = [result.band(policy, load, horizon) for horizon in horizons]
        at = np.array(horizons) * _SPREAD ** (2 * (place - middle))
        low, high = _pairs(bands, ends)
        ax.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        if limits:
            reach = _pairs(bands, limits)
            known = np.isfinite(reach).all(axis=0)
            ax.vlines(at[known], *reach[:, known], color=style.colour, linewidth=0.9)
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5, "marker": style.marker}
        lines = ax.plot(at, high, label=plain(policy), **look)
        lines += ax.plot(at, low, markerfacecolor="white", **look)
        for line, end, found in zip(lines, ("at most", "at least"), (high, low), strict=True):
            shown = (proven(value, up=end == "at most", digits=4) for value in found)
            hover(line, [f"{end} {y} at T = {x:,}" for y, x in zip(shown, horizons, strict=True)])
    ax.set_xscale("log")
    ax.set_xticks(horizons, [f"{horizon:,}" for horizon in horizons])
    ax.xaxis.set_minor_locator(NullLocator())
    title = f"load {load:g}; filled: against the bound, open: against the best schedule"
    return finish(ax, f"horizon T ({result.unit} in which requests arrive)", title=title)


def _pairs(bands: Sequence[Band], names: tuple[str, str]) -> FloatArray:
    return np.array([[getattr(band, name) for band in bands] for name in names])


def _regret_axis(ax: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    top = max(ax.get_ylim()[1], 10 * _FLAT)
    powers = np.arange(np.log10(_FLAT), np.ceil(np.log10(top)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([0.0, *(10.0**powers).tolist()]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.set_ylim(top=top)


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
    ax.axhline(100 * LEFT_BEHIND, label="overloaded above", **REFERENCE)
    ax.axvline(1.0, color=LIMIT, linewidth=1)
    xlabel = "load (memory-time that arrives over that which passes)"
    return finish(ax, xlabel, "left behind (% of what arrives)")


def plot_losses(result: RoutingLoss, ax: Axes | None = None) -> Axes:
    """Plot what each router and policy provably lose, by part, and what they may lose on top."""
    losses = sorted(result.losses, key=lambda each: each.loss.high)
    ax = prepare(ax, height=1.2 + 0.36 * len(losses))
    name_bars(ax, [f"{each.run.router}, {each.run.policy}" for each in losses])
    low, high = 100 * np.array([each.loss for each in losses]).T
    order, placement = np.zeros(len(losses)), np.zeros(len(losses))
    for row, each in enumerate(losses):
        if each.order is not None and each.placement is not None:
            order[row], placement[row] = 100 * each.order.low, 100 * each.placement.low
    rows, below = np.arange(len(losses)), np.zeros(len(losses))
    parts: list[tuple[str, FloatArray, str]] = [("order, at least", order, BLUE)]
    parts.append(("placement, at least", placement, ORANGE))
    parts.append(("one of them, at least", np.maximum(low - order - placement, 0), SKY))
    if not order.any() and not placement.any():
        parts = [("lost, at least", low, BLUE)]
    parts.append(("open", high - low, UNAVOIDABLE))
    for label, widths, colour in parts:
        bars = ax.barh(rows, widths, left=below, height=0.68, color=colour, label=label)
        hover(bars, [f"{label} {width:.1f} %" for width in widths])
        below = below + widths
    ax.axvline(0, color=LIMIT, linewidth=1)
    for row, each in enumerate(losses):
        note_bar(ax, f"at most {percent(each.loss.high)}", float(high[row]), row)
    ax.set_xlim(0, max(1.0, 1.25 * high.max()))
    return finish(ax, "lost against the best placement and order (% of the own latency)")


_BINS = 2000  # over all workers
_FEWEST_BINS = 100
_SAMPLE = 4000  # requests drawn


def plot_workers(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Plot the share of its memory that each worker uses, in a band for each."""
    ax = _bands(schedule, ax)
    bins = max(_FEWEST_BINS, _BINS // len(schedule.workers))
    for worker, memory in enumerate(schedule.workers.memories):
        if not len(schedule.requests_on(worker)):
            continue
        edges, peaks = memory_curve(schedule.on(worker), bins)
        tops = worker + 0.9 * np.append(peaks, 0) / memory
        label = "most tokens held" if worker == schedule.placement[0] else None
        ax.fill_between(edges, worker, tops, step="post", color=BLUE, linewidth=0, label=label)
    limits = np.arange(len(schedule.workers)) + 0.9
    begin, end = ax.get_xlim()
    ax.hlines(limits, begin, end, color=LIMIT, linewidth=0.6, label="memory limit of each")
    return _finished(schedule, ax)


def plot_placement(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Plot each request while it runs, or a sample of them: the larger, the higher in the band."""
    from matplotlib.collections import LineCollection

    ax = _bands(schedule, ax)
    requests, _ = sample_by_start(schedule, _SAMPLE)
    areas = schedule.instance.areas[requests]
    heights = np.empty(len(requests))
    heights[np.argsort(areas, kind="stable")] = np.linspace(0.05, 0.9, len(requests))
    heights += schedule.placement[requests]
    large = areas > np.median(schedule.instance.areas)
    begins, ends = schedule.starts[requests], schedule.completions[requests]
    for mask, colour, label in (
        (~large, ORANGE, "smaller half of the requests"),
        (large, BLUE, "larger half"),
    ):
        lines = np.stack(
            [
                np.column_stack([begins[mask], heights[mask]]),
                np.column_stack([ends[mask], heights[mask]]),
            ],
            axis=1,
        )
        ax.add_collection(LineCollection(list(lines), colors=colour, lw=1.2, label=label))
    return _finished(schedule, ax)


def _bands(schedule: Schedule, ax: Axes | None) -> Axes:
    """Return axes with a band for each worker, the first at the bottom."""
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
    xlabel = f"time ({step_unit(schedule.instance)})"
    return finish(ax, xlabel, "worker", counts="x", title=plain(schedule.policy))
