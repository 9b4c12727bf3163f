"""Plots of runs on a clock show the numbers they are made from."""

import numpy as np
import pytest

from optsched import Instance, compare, family, report, run
from optsched.errors import InstanceError
from optsched.problem.work import load_on_clock
from optsched.report import plot_batches, plot_mean_latency, plot_over_bound, plot_waiting

CLOCK = "affine:0.01,0.001"
MANY = family("uniform", n=600, seed=1, rate=20, seconds_per_step=1e-6)
PLOTS = {
    "usage": report.plot_clocked_usage,
    "waiting": plot_waiting,
    "latency": plot_mean_latency,
    "batches": lambda runs, ax=None: plot_batches(runs[0], ax),
}


@pytest.fixture(scope="module")
def runs():
    return [run(MANY, policy, clock=CLOCK) for policy in ("mc-sf", "mixed")]


@pytest.fixture(scope="module")
def stopped():
    return run(MANY, "mixed", clock=CLOCK, until=20)


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_plots_use_given_axes_have_labels_and_render(drawn, runs, plot):
    made = drawn(lambda ax=None: plot(runs, ax))
    assert made.get_xlabel() in ("time (seconds)", "requests arrived")


def test_the_peak_of_memory_is_drawn(runs):
    ax = report.plot_clocked_usage(runs)
    assert [line.get_ydata().max() for line in ax.lines[:2]] == [run.peak_memory for run in runs]
    assert set(ax.lines[2].get_ydata()) == {MANY.memory}
    assert len(ax.lines[0].get_xdata()) == 400 < len(runs[0].log.spans)
    assert plot_batches(runs[1]).lines[0].get_ydata().max() == runs[1].log.contents[:, 1].max()


@pytest.mark.parametrize("which", ["all", "stopped"])
def test_who_has_come_and_is_not_complete_waits(runs, stopped, which):
    run = stopped if which == "stopped" else runs[0]
    times, counts = plot_waiting(run).lines[0].get_data()
    done = np.where(run.completed, run.completions, np.inf)
    literal = [((run.arrivals <= time) & (done > time)).sum() for time in times]
    assert counts.tolist() == literal
    assert counts[-1] == (run.arrivals <= times[-1]).sum() - run.completed.sum()


def test_mean_latency_so_far_ends_at_the_mean_of_those_completed(runs, stopped):
    assert stopped.unfinished > 0
    ax = plot_mean_latency([*runs, stopped])
    ends = [line.get_ydata()[-1] for line in ax.lines]
    assert ends == pytest.approx([run.mean_latency for run in (*runs, stopped)])
    numbers, means = ax.lines[0].get_data()
    assert means[200] == pytest.approx(runs[0].latencies[: numbers[200]].mean())


@pytest.mark.slow
def test_bars_are_ordered_by_unfinished_requests_and_mean_latency():
    compared = compare(MANY, ["fcfs", "mc-sf", "mixed"], clock=CLOCK, until=20)
    ax = report.plot_clock_comparison(compared)
    names = [label.get_text() for label in ax.get_yticklabels()]
    runs = sorted(compared.runs, key=lambda run: (run.unfinished, run.mean_latency))
    assert names == [run.policy for run in runs]  # from the top
    widths = [bar.get_width() for group in ax.containers for bar in group]
    assert widths == pytest.approx([run.mean_latency for run in runs])
    assert [text.get_text() for text in ax.texts] == [
        f"{run.unfinished} unfinished" for run in runs
    ]


def test_nothing_completed_is_an_empty_bar():
    never = compare(Instance([1], [9], memory=20), ["fcfs"], clock=CLOCK, until=0.02)
    ax = report.plot_clock_comparison(never)
    assert not ax.containers
    assert ax.texts[0].get_text() == "1 unfinished"


def test_ratios_to_the_bound_are_drawn_by_load(drawn):
    few = family("chat-and-summaries", n=40, seed=1, rate=0.1)
    names = ["fcfs", "work"]
    by_load = [
        compare(few.replace(seconds_per_step=step), names, clock="llama-2-70b-2xa100")
        for step in (0.1, 0.02, 0.05)
    ]
    ax = drawn(lambda ax=None: plot_over_bound(by_load, ax))
    assert ax.get_xlabel() == "load on the clock"
    ordered = [by_load[place] for place in (0, 2, 1)]
    for line, name in zip(ax.lines, names, strict=False):
        loads, ratios = line.get_data()
        assert list(loads) == [load_on_clock(c.instance, c.clock).load for c in ordered]
        assert list(ratios) == [c[name].total_latency / c.bound.value for c in ordered]
        assert min(ratios) >= 1
    at_once = compare(few.replace(arrivals=None), names, clock="llama-2-70b-2xa100")
    with pytest.raises(InstanceError, match="has no bound or no arrivals"):
        plot_over_bound([at_once])
