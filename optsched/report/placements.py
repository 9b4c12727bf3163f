"""Plots of schedules on several workers: memory over time, and who serves whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.report.curves import memory_curve, sample_by_start
from optsched.report.style import BLUE, LIMIT, ORANGE, finish, plain, prepare, step_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched.problem.schedule import Schedule

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
