"""Plots of the fluid model show the numbers they are made from."""

from functools import cache

import numpy as np
import pytest

from optsched import Instance, RequestTypes, report, run
from optsched.errors import PolicyError
from optsched.models import NestedWaitThresholds, SegmentDesign, WaitThresholds, equilibrium
from optsched.report import plot_backlogs, plot_equilibrium, plot_segments, plot_slacks

CLOCK = "affine:0.0085,2.7e-7"
TYPES = RequestTypes([10, 10], [10, 20], [1000, 1000], names=["$a$", "b"])
SYNTHETIC = RequestTypes([10] * 4, [20, 40, 80, 160], [20, 40, 80, 160])
WAIT = WaitThresholds(TYPES, CLOCK).plan([12, 11])
NESTED = NestedWaitThresholds(SYNTHETIC, CLOCK).plan([60, 57, 50, 34])
DESIGN = SegmentDesign(SYNTHETIC, 60)


@cache
def backlogs():
    """On the unit clock, three requests that come together and are served one after the other."""
    return [
        run(Instance([1] * 3, [4] * 3, memory=5, arrivals=[at] * 3), "fcfs", clock="unit")
        for at in (0, 2)
    ]


PLOTS = {
    "equilibrium": lambda ax=None: plot_equilibrium(equilibrium(TYPES, CLOCK), 20_000, ax),
    "overload": lambda ax=None: plot_equilibrium(equilibrium(TYPES.scaled(9), CLOCK), None, ax),
    "slacks": lambda ax=None: plot_slacks(WAIT, ax),
    "nested": lambda ax=None: report.plot_nested_memory(NESTED, ax),
    "segments": lambda ax=None: plot_segments(DESIGN, None, ax),
    "backlogs": lambda ax=None: plot_backlogs({"one at a time": backlogs()}, ax),
}


@pytest.mark.slow("equilibrium")
@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_plots_use_given_axes_have_labels_and_render(drawn, plot):
    assert drawn(plot).get_xlabel()


def test_memory_of_the_fluid_is_drawn_below_that_of_wait():
    ax = plot_equilibrium(equilibrium(TYPES, CLOCK), 20_000)
    waiting, fluid, point, limit = ax.lines
    assert (waiting.get_ydata() >= fluid.get_ydata()).all()
    assert point.get_ydata()[0] == pytest.approx(5905.23, abs=0.01)
    assert set(limit.get_ydata()) == {20_000}
    at = np.interp(point.get_xdata()[0], fluid.get_xdata(), fluid.get_ydata())
    assert at == pytest.approx(5905, rel=0.01)


def test_an_overload_is_no_point():
    assert len(plot_equilibrium(equilibrium(TYPES.scaled(9), CLOCK)).lines) == 2


def test_bars_of_slack_end_when_enough_have_arrived():
    ax = plot_slacks(WAIT)
    ends = sorted(bar.get_x() + bar.get_width() for bar in ax.containers[1])
    assert ends == pytest.approx([11 / 1000, 12 / 1000])
    assert [text.get_text() for text in ax.texts] == ["11 arrive", "12 arrive"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["type b", r"type \$a\$"]


def test_bars_of_segments_add_up_to_the_bounds():
    ax = report.plot_nested_memory(NESTED)
    heights = [sum(bar.get_height() for bar in group) for group in ax.containers]
    assert heights[:2] == [567_330, 7_270]
    assert sum(heights) == pytest.approx(NESTED.memory_bound, abs=1)
    ax = plot_segments(DESIGN, [1, 2, 3, 4])
    totals = np.sum([[bar.get_height() for bar in group] for group in ax.containers], axis=0)
    assert totals == pytest.approx(DESIGN.bounds([1, 2, 3, 4]), abs=1)
    least = DESIGN.best()[1]  # rounded up: what the legend says suffices
    assert f"least: {least:,.0f} tokens" in ax.get_legend().get_texts()[0].get_text()
    assert 591_600 < least < 591_700


def test_backlogs_are_means_over_runs_with_their_confidence():
    ax = plot_backlogs({"first": backlogs(), "again": backlogs()})
    first, again = ax.lines
    times, means = first.get_data()
    assert (means == again.get_ydata()).all()
    assert times[-1] == 12
    one, other = (
        [3 - sum(time >= at + end for end in (4, 8, 12)) if time >= at else 0 for time in times]
        for at in (0, 2)
    )
    assert means.tolist() == (np.add(one, other) / 2).tolist()
    # Between 0 and 2 one run has 3 requests and the other none: 1.5, with an error of 1.5, times
    # the quantile of one degree of freedom, tan(0.475 pi).
    edges = ax.collections[0].get_paths()[0].vertices
    assert edges[:, 1].max() == pytest.approx(1.5 + 1.5 * np.tan(0.475 * np.pi))
    with pytest.raises(PolicyError, match="1 run of 'first' says nothing about how runs differ"):
        plot_backlogs({"first": backlogs()[:1]})


def test_objects_plot_themselves():
    assert equilibrium(TYPES, CLOCK).plot().get_ylabel() == "tokens held"
    assert WAIT.plot().get_xlabel() == "time (s)"
    assert NESTED.plot().get_ylabel() == "tokens"
    assert DESIGN.plot().get_xlabel() == "segments"
