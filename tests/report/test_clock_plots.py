"""Plots of runs on a clock show the numbers they are made from."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib import pyplot

from optsched import Instance, compare_on_clock, execute, family
from optsched.report.clock_plots import (
    plot_batches,
    plot_clock_comparison,
    plot_clocked_usage,
    plot_mean_latency,
    plot_waiting,
)

CLOCK = "affine:0.01,0.001"
MANY = family("uniform", n=600, seed=1, rate=20, seconds_per_step=1e-6)
RUNS = [execute(MANY, policy, clock=CLOCK) for policy in ("mc-sf", "mixed")]
STOPPED = execute(MANY, "mixed", clock=CLOCK, until=20)
PLOTS = {
    "usage": lambda ax=None: plot_clocked_usage(RUNS, ax),
    "waiting": lambda ax=None: plot_waiting(RUNS, ax),
    "latency": lambda ax=None: plot_mean_latency(RUNS, ax),
    "batches": lambda ax=None: plot_batches(RUNS[0], ax),
}


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_plots_use_given_axes_have_labels_and_render(plot):
    ax = pyplot.subplots()[1]
    assert plot(ax) is ax
    made = plot()
    assert made is not ax
    assert made.get_xlabel() in ("time (seconds)", "requests arrived")
    assert made.get_legend() is not None
    made.figure.savefig(io.BytesIO(), dpi=40)


def test_the_peak_of_memory_is_drawn():
    ax = plot_clocked_usage(RUNS)
    assert [line.get_ydata().max() for line in ax.lines[:2]] == [run.peak_memory for run in RUNS]
    assert set(ax.lines[2].get_ydata()) == {MANY.memory}
    assert len(ax.lines[0].get_xdata()) == 400 < len(RUNS[0].log.spans)
    assert plot_batches(RUNS[1]).lines[0].get_ydata().max() == RUNS[1].log.contents[:, 1].max()


@pytest.mark.parametrize("run", [RUNS[0], STOPPED], ids=["all", "stopped"])
def test_who_has_come_and_is_not_complete_waits(run):
    times, counts = plot_waiting(run).lines[0].get_data()
    done = np.where(run.completed, run.completions, np.inf)
    literal = [((run.arrivals <= time) & (done > time)).sum() for time in times]
    assert counts.tolist() == literal
    assert counts[-1] == (run.arrivals <= times[-1]).sum() - run.completed.sum()


def test_mean_latency_so_far_ends_at_the_mean_of_those_completed():
    assert STOPPED.unfinished > 0
    ax = plot_mean_latency([*RUNS, STOPPED])
    ends = [line.get_ydata()[-1] for line in ax.lines]
    assert ends == pytest.approx([run.mean_latency for run in (*RUNS, STOPPED)])
    numbers, means = ax.lines[0].get_data()
    assert means[200] == pytest.approx(RUNS[0].latencies[: numbers[200]].mean())


def test_bars_are_ordered_by_unfinished_requests_and_mean_latency():
    compared = compare_on_clock(MANY, CLOCK, ["fcfs", "mc-sf", "mixed"], until=20)
    ax = plot_clock_comparison(compared)
    names = [label.get_text() for label in ax.get_yticklabels()]
    runs = sorted(compared.runs, key=lambda run: (-run.unfinished, -run.mean_latency))
    assert names == [run.policy for run in runs]
    widths = [bar.get_width() for group in ax.containers for bar in group]
    assert widths == pytest.approx([run.mean_latency for run in runs])
    assert [text.get_text() for text in ax.texts] == [
        f"{run.unfinished} unfinished" for run in runs
    ]


def test_nothing_completed_is_an_empty_bar():
    never = compare_on_clock(Instance([1], [9], memory=20), CLOCK, ["fcfs"], until=0.02)
    ax = plot_clock_comparison(never)
    assert not ax.containers
    assert ax.texts[0].get_text() == "1 unfinished"
