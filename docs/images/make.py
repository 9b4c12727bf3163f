"""Redraw the pictures of README and docs: `python docs/images/make.py`."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot

import optsched
from optsched.policies import PriorityPolicy
from optsched.report import plot_comparison, plot_latency
from optsched.report.style import (
    TEXT_SIZE,
    count_axis,
    count_log_axis,
    line_of,
    line_styles,
    prepare,
)


def draw_comparison(path: Path) -> None:
    """Draw all policies on a family: total latency over the bound, and latency of requests."""
    comparison = optsched.compare(optsched.family("chat-and-summaries", n=2000, seed=1))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    plot_comparison(comparison, left)
    plot_latency(comparison.schedules, right)
    figure.savefig(path, dpi=160, metadata={"Software": None})


def draw_policies(path: Path) -> None:
    """Draw Sorted-F Figure 8 on a family: mean latency of each order by number of requests."""
    names = ["fcfs", "mc-sf", "sorted-f-quantile", "mc-sf-total", "sorted-f", "area"]
    counts = range(200, 2001, 300)
    requests = optsched.family("chat-and-summaries", n=2000, seed=1)
    ax = prepare(None, 6.6, 4.2)
    for name, style in zip(names, line_styles(names), strict=True):
        schedules = [optsched.run(requests.take(range(count)), name).schedule for count in counts]
        mean = [schedule.mean_latency for schedule in schedules]
        ax.plot(counts, mean, label=name, marker=style.marker, markersize=5, **line_of(style))
    ax.set_yscale("log")
    count_log_axis(ax.yaxis)
    count_axis(ax.xaxis)
    ax.set_xlabel("requests, all arriving at step 0")
    ax.set_ylabel("mean latency (steps)")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=TEXT_SIZE)
    ax.figure.savefig(path, dpi=160, metadata={"Software": None})


def draw_shortest_first(path: Path) -> None:
    """Draw how bad shortest first is on the instances of Sorted-F Theorem 1 and EC.1."""
    memories = np.array([100, 1024, 10_000, 99_856, 1_000_000])
    panels = (
        ("Theorem 1", "sorted-f-theorem-1", "mc-sf", lambda i: -i.outputs),
        ("Theorem EC.1", "sorted-f-theorem-ec-1", "mc-sf-total", lambda i: i.outputs),
    )
    figure, axes = pyplot.subplots(
        1, 2, figsize=(10, 4), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, family, failing, key) in zip(axes, panels, strict=True):
        prepare(ax)
        names = ["sorted-f", "area", failing]
        sizes = (11, 6, 6)  # those drawn later must not hide the first
        for name, style, size in zip(names, line_styles(names), sizes, strict=True):
            for kind, filled in (("long", True), ("balanced", False)):
                ratios = []
                for memory in memories.tolist():
                    instance = optsched.family(f"{family}-{kind}", memory=memory)
                    other = optsched.run(instance, PriorityPolicy("other", "", key)).schedule
                    found = optsched.run(instance, name).total_latency
                    ratios.append(found / other.total_latency)
                slope = np.polyfit(np.log(memories), np.log(ratios), 1)[0]
                ax.plot(
                    memories,
                    ratios,
                    label=f"{name}, {kind}: $M^{{{abs(slope):.2f}}}$",
                    marker=style.marker,
                    markersize=size,
                    markerfacecolor=style.colour if filled else "white",
                    **line_of(style),
                )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(0.7, 20_000)
        ax.set_title(title, fontsize=TEXT_SIZE + 1)
        ax.set_xlabel("memory M (tokens)")
        ax.legend(loc="upper left", frameon=False, fontsize=TEXT_SIZE, handlelength=3.5)
    axes[0].set_ylabel("total latency over that of\nthe other type first")
    for axis in (axes[0].xaxis, axes[0].yaxis):
        count_log_axis(axis)
    figure.savefig(path, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    folder = Path(__file__).parent
    draw_comparison(folder / "comparison.png")
    draw_policies(folder / "policies.png")
    draw_shortest_first(folder / "shortest-first.png")
