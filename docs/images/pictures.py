"""Redraw the pictures of docs/pictures.md: `python docs/images/pictures.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot

import optsched
from optsched.report.style import (
    BLUE,
    LIMIT,
    ORANGE,
    REFERENCE,
    SKY,
    TEXT_SIZE,
    UNAVOIDABLE,
    VERMILLION,
    count_axis,
    prepare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARROW = {"arrowstyle": "<->", "color": LIMIT, "shrinkA": 0, "shrinkB": 0}
TINTS = (BLUE, "#5B93C4", "#8AB4D8", "#3A7DB6", "#B7D0E7", "#D5E3F0")


def save(ax: Axes, path: Path) -> None:
    """Write a figure, the same bytes each time."""
    ax.figure.savefig(path, dpi=160, metadata={"Software": None})


def draw_request(path: Path) -> None:
    """Draw what one request holds from its arrival to its completion."""
    arrival, start, prompt, output = 1, 3, 4, 5
    steps = np.arange(start + 1, start + output + 1)
    ax = prepare(None, 5.6, 3.2)
    ax.bar(steps, prompt, 0.96, color=UNAVOIDABLE)
    ax.bar(steps, steps - start, 0.96, prompt, color=BLUE)
    middle = start + output / 2 + 0.5
    ax.text(middle, prompt / 2, "prompt", ha="center", va="center", fontsize=TEXT_SIZE)
    words = {"color": "white", "ha": "center", "va": "center", "fontsize": TEXT_SIZE}
    ax.text(middle + 1, prompt + 1.1, "tokens made", **words)
    peak = prompt + output
    ax.text(start + output + 0.7, peak - 0.35, "peak", va="center", fontsize=TEXT_SIZE)
    for word, step in {"arrives": arrival, "starts": start, "complete": start + output}.items():
        ax.axvline(step + 0.5, **REFERENCE)
        ax.text(step + 0.5, 12.2, word, ha="center", va="bottom", fontsize=TEXT_SIZE)
    spans = {"waits": (arrival, start), "runs: one token per step": (start, start + output)}
    for word, (begin, end) in spans.items():
        ax.annotate("", (end + 0.5, 10.2), (begin + 0.5, 10.2), arrowprops=ARROW)
        ax.text((begin + end + 1) / 2, 10.4, word, ha="center", va="bottom", fontsize=TEXT_SIZE)
    ax.set_xlim(0.4, start + output + 2.6)
    ax.set_ylim(0, 12)
    ax.set_xticks(range(1, start + output + 3))
    ax.set_ylabel("tokens held")
    ax.set_xlabel("step")
    save(ax, path)


def draw_orders(path: Path) -> None:
    """Draw two orders of the same requests in the same memory."""
    instance = optsched.Instance(prompts=[8] + 6 * [1], outputs=[1] + 6 * [2], memory=9)
    _, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.2), sharey=True, layout="constrained")
    titles = {"mc-sf": "smallest output first", "area": "smallest memory-time first"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        prepare(ax)
        schedule = optsched.run(instance, name).schedule
        held = np.zeros(schedule.makespan + 1)
        for request, start in enumerate(schedule.starts.tolist()):
            for made in range(1, int(instance.outputs[request]) + 1):
                tokens = int(instance.prompts[request]) + made
                long = request == 0
                ax.bar(
                    start + made,
                    tokens,
                    0.96,
                    held[start + made],
                    color=ORANGE if long else TINTS[request - 1],
                    hatch="//" if long else None,
                    edgecolor="white",
                    linewidth=0.8,
                )
                held[start + made] += tokens
        ax.axhline(instance.memory, color=LIMIT, linewidth=1.5)
        ax.text(
            5.5, instance.memory + 0.15, "memory M", ha="right", va="bottom", fontsize=TEXT_SIZE
        )
        ax.set_title(f"{title}: total latency {schedule.total_latency}", fontsize=TEXT_SIZE + 1)
        ax.set_xlabel("step")
        ax.set_xticks(range(1, 6))
        ax.set_xlim(0.4, 5.6)
    axes[0].set_ylim(0, 10.4)
    axes[0].set_ylabel("tokens held")
    save(axes[0], path)


def draw_bound(path: Path) -> None:
    """Draw where the optimum lies between a bound and a schedule."""
    instance = optsched.family("uniform", n=60, seed=1)
    found = optsched.solve(instance, time_limit=60)
    names = ("area", "mc-sf", "fcfs")
    latency = {name: optsched.run(instance, name).total_latency for name in names}
    bound, area = found.bound, latency["area"]
    ax = prepare(None, 7.2, 2.5)
    least = 0.75 * bound
    ax.axvspan(least, bound, color=UNAVOIDABLE, linewidth=0)
    middle = (least + bound) / 2
    sentence = "proven:\nno schedule\nis here"
    ax.text(middle, 0.5, sentence, ha="center", va="center", fontsize=TEXT_SIZE)
    ax.axvspan(bound, found.objective, color=SKY, alpha=0.6, linewidth=0)
    sentence = "the optimum\nis in here"
    middle, right = (bound + found.objective) / 2, 1.03 * found.objective
    arrow = {"arrowstyle": "->", "color": LIMIT}
    ax.annotate(
        sentence, (middle, 0.2), (right, 0.2), arrowprops=arrow, va="center", fontsize=TEXT_SIZE
    )
    for name, value in {"bound": bound, "best\nfound": found.objective, **latency}.items():
        ax.axvline(value, color=LIMIT if name == "bound" else VERMILLION, linewidth=1.5)
        side = {"bound": "right", "mc-sf": "left"}.get(name, "center")
        ax.text(value, 1.04, name, ha=side, va="bottom", fontsize=TEXT_SIZE)
    ax.annotate("", (bound, 0.75), (area, 0.75), arrowprops=ARROW)
    sentence = f"gap of area: {1 - bound / area:.0%} of its latency"
    ax.text(1.01 * latency["mc-sf"], 0.75, sentence, va="center", fontsize=TEXT_SIZE)
    ax.set_xlim(least, 1.04 * max(latency.values()))
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    count_axis(ax.xaxis)
    ax.set_xlabel("total latency (steps)")
    save(ax, path)


def draw_barrier(path: Path) -> None:
    """Draw the loads of four workers at one step under two routings."""
    cluster = optsched.Cluster(workers=4, slots=36)
    trace = optsched.family("lognormal", n=3000, seed=1)
    runs = {
        name: optsched.run(trace, name, cluster=cluster, steps=1200, record_loads=True)
        for name in ("fcfs", "bf-io")
    }
    totals = [run.total_load[300:] for run in runs.values()]
    step = 300 + int(np.abs(totals[0] - totals[1]).argmin())  # much the same work in both
    _, axes = pyplot.subplots(1, 2, figsize=(7.2, 3), sharey=True, layout="constrained")
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        prepare(ax)
        loads = np.asarray(run.loads)[step] / 1000
        most = loads.max()
        workers = np.arange(1, len(loads) + 1)
        ax.bar(workers, loads, 0.7, color=BLUE, label="tokens held")
        ax.bar(
            workers,
            most - loads,
            0.7,
            loads,
            color="white",
            edgecolor=VERMILLION,
            hatch="////",
            linewidth=0.8,
            label="waits for the slowest",
        )
        ax.axhline(most, color=LIMIT, linewidth=1.5)
        ax.set_title(name, fontsize=TEXT_SIZE + 1)
        ax.set_xticks(workers)
        ax.set_xlabel("worker")
    axes[0].set_ylabel(f"load in step {step + 1} (1,000 tokens)")
    axes[0].set_ylim(0, 1.45 * axes[0].get_ylim()[1])
    axes[0].legend(loc="upper left", frameon=False, fontsize=TEXT_SIZE)
    save(axes[0], path)


if __name__ == "__main__":
    folder = Path(__file__).parent
    draw_request(folder / "one-request.png")
    draw_orders(folder / "two-orders.png")
    draw_bound(folder / "bound.png")
    draw_barrier(folder / "barrier.png")
