"""Plots draw on the axes they are given, label them with units, and can be rendered."""

import io
import re

import pytest
from fresh import imports
from matplotlib import pyplot
from matplotlib.colors import to_hex

from optsched import Instance, PriorityPolicy, Schedule, compare
from optsched.report import plot_comparison, plot_latency, plot_memory, plot_schedule

PLOTS = {
    "comparison": plot_comparison,
    "memory": lambda comparison, ax=None: plot_memory(comparison.schedules, ax),
    "one memory": lambda comparison, ax=None: plot_memory(comparison.best.schedule, ax),
    "latency": lambda comparison, ax=None: plot_latency(comparison.schedules, ax),
    "schedule": lambda comparison, ax=None: plot_schedule(comparison.best.schedule, ax),
}


@pytest.fixture(params=["example", "stream"])
def comparison(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=PLOTS)
def plot(request):
    return PLOTS[request.param]


def rendered(ax):
    stream = io.BytesIO()
    ax.figure.savefig(stream, dpi=40)
    return stream.getvalue()


def test_given_axes_are_used_and_returned(plot, comparison):
    ax = pyplot.subplots()[1]
    assert plot(comparison, ax) is ax
    assert pyplot.get_fignums() == [ax.figure.number]


def test_without_axes_a_figure_is_made_labelled_and_renders(plot, comparison):
    ax = plot(comparison)
    unit = "steps of 0.05 s" if comparison.instance.seconds_per_step else "steps"
    assert ax.get_xlabel().endswith(f"({unit})")
    assert ax.get_legend() is not None
    assert rendered(ax)


def test_comparison_has_a_bar_per_policy_best_on_top_with_its_gap(example):
    ax = plot_comparison(example)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["mc-sf-total", "area", "sorted-f", "area+window", "fcfs", "mc-sf"]
    gaps = [text.get_text() for text in ax.texts]
    assert gaps == ["gap 4.5%"] * 4 + ["gap 32.9%"] * 2
    bars = list(ax.patches)
    for row, schedule in enumerate(sorted(example.schedules, key=lambda s: s.total_latency)):
        assert bars[row].get_width() == example.bound.value
        assert bars[row + 6].get_width() == schedule.total_latency - example.bound.value


def test_a_policy_of_ones_own_looks_the_same_in_all_plots_of_a_comparison(stream):
    names = ["slow", "fast"]
    keys = (lambda instance: -instance.areas, lambda instance: instance.areas)
    policies = [PriorityPolicy(name, "", key) for name, key in zip(names, keys, strict=True)]
    comparison = compare(stream.instance, policies)
    bars = plot_comparison(comparison).patches[2:]  # above the bound, best first
    lines = plot_latency(comparison.schedules).lines
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == [
        line.get_color() for line in reversed(lines)
    ]


def test_memory_says_if_a_point_stands_for_several_steps(example, stream):
    assert plot_memory(example.best.schedule).get_ylabel() == "tokens held"
    assert "most of each" in plot_memory(stream.schedules).get_ylabel()


def test_a_sample_of_requests_is_called_one(stream):
    assert re.search(r"4[01] of 300 drawn", plot_schedule(stream.best.schedule).get_ylabel())


def test_the_last_request_ends_where_the_time_axis_does(stream):
    for schedule in stream.schedules:
        ax = plot_schedule(schedule)
        ends = [path.vertices[:, 0].max() for part in ax.collections for path in part.get_paths()]
        assert max(ends) == schedule.makespan
        assert ax.get_xlim()[0] <= schedule.instance.arrivals[0]
        assert schedule.makespan < ax.get_xlim()[1] < 1.02 * schedule.makespan


def test_an_overfull_schedule_is_drawn_beyond_the_limit():
    schedule = Schedule(Instance([4, 4], [2, 2], memory=6), [0, 0])
    assert plot_schedule(schedule).get_ylim()[1] > schedule.peak_memory


def test_a_name_with_dollar_signs_is_no_mathematics(plot):
    policy = PriorityPolicy(r"$\frac{1}$", "", lambda instance: instance.areas)
    assert rendered(plot(compare(Instance([1], [2], memory=3), [policy])))


def test_objects_plot_themselves(example):
    assert example.plot().get_xlabel() == plot_comparison(example).get_xlabel()
    assert example.best.plot().get_ylabel() == plot_schedule(example.best.schedule).get_ylabel()


@pytest.mark.slow
def test_matplotlib_and_plotly_load_when_used():
    code = "import optsched.report.runs, optsched.report.pages"
    assert not imports(code, "matplotlib", "plotly", "jinja2")
