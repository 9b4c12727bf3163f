"""Plots of the fluid model: memory against load, slack, memory by segments, backlogs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.student import student
from optsched.errors import PolicyError
from optsched.report.series import stack_bars
from optsched.report.style import (
    BLUE,
    DASHED,
    GREEN,
    VERMILLION,
    clock_unit,
    finish,
    line_of,
    line_styles,
    memory_limit,
    name_bars,
    note_bar,
    plain,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    from optsched.models.fluid.equilibrium import Equilibrium
    from optsched.models.fluid.nested import NestedWaitPlan
    from optsched.models.fluid.segments import SegmentDesign
    from optsched.models.fluid.wait import WaitPlan
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
