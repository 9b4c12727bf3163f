"""What a page draws of a plot of matplotlib is what the plot shows."""

import json

import numpy as np
import pandas as pd
import pytest

from optsched.report.pages import interactive
from optsched.report.style import line_styles, plot_bars, plot_series, plot_stack


@pytest.fixture
def axes():
    from matplotlib import pyplot

    return pyplot.subplots(1, 2, layout="constrained")[1]


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "n": [1, 10, 100, 1, 10, 100],
            "cost": [1.0, 4.0, np.nan, 2.0, 5.0, 6.0],
            "low": [0.5, 3.0, 5.0, 1.0, 4.0, 5.5],
            "high": [2.0, 5.0, 9.0, 3.0, 6.0, 7.0],
            "policy": [*3 * ["fcfs"], *3 * ["a $ < b"]],
        }
    )


def plots_of(axes):
    """Return the plots of the figure, after plotly.py has checked every name and value in them."""
    import plotly.graph_objects as go

    plots = interactive(axes[0].figure)
    for plot in plots:
        go.Figure(plot)
    json.dumps(plots, allow_nan=False)
    return plots


@pytest.mark.slow
def test_lines_keep_their_points_names_and_looks(axes, table):
    plot_series(table, x="n", y="cost", by="policy", xscale="log", xlabel="requests", ax=axes[0])
    (plot,) = plots_of(axes)  # the other axes are empty
    first, second = plot["data"]
    assert (first["name"], second["name"]) == ("fcfs", "a $ &lt; b")
    assert (first["meta"], second["meta"]) == ("fcfs", "a $ < b")
    assert first["x"] == [1, 10, 100]
    assert first["y"] == [1, 4, None]
    assert first["line"]["color"] == line_styles(["fcfs"])[0].colour
    assert first["line"]["dash"] == "3px,3px"
    assert (first["mode"], first["marker"]["symbol"]) == ("lines+markers", "triangle-down")
    assert plot["layout"]["xaxis"]["type"] == "log"
    assert plot["layout"]["xaxis"]["range"] == pytest.approx(np.log10(axes[0].get_xlim()))
    assert plot["layout"]["xaxis"]["title"]["text"] == "requests"
    assert plot["layout"]["showlegend"]


def test_a_band_belongs_to_the_line_of_its_colour(axes, table):
    plot_series(table, x="n", y="cost", by="policy", low="low", high="high", ax=axes[0])
    traces = plots_of(axes)[0]["data"]
    bands = [trace for trace in traces if trace.get("fill") == "toself"]
    assert [band["meta"] for band in bands] == ["fcfs", "a $ < b"]
    assert not any(band["showlegend"] for band in bands)
    assert {y for y in bands[0]["y"] if y is not None} == {0.5, 2, 3, 5, 9}


def test_a_line_across_the_plot_ends_where_the_plot_does(axes, table):
    plot_series(table, x="n", y="cost", by="policy", ax=axes[0])
    axes[0].axhline(3, label="limit")
    axes[0].axvline(50)
    across, upright = plots_of(axes)[0]["data"][-2:]
    assert (across["name"], across["y"]) == ("limit", [3, 3])
    assert across["x"] == pytest.approx(axes[0].get_xlim())
    assert upright["x"] == [50, 50]
    assert upright["y"] == pytest.approx(axes[0].get_ylim())


@pytest.mark.slow
def test_bars_keep_heights_errors_and_the_names_below_them(axes, table):
    table["n"] = ["one", "ten", "hundred"] * 2
    look = {"by": "policy", "low": "low", "high": "high"}
    plot_bars(table.dropna(), x="n", y="cost", **look, ax=axes[0])
    plot = plots_of(axes)[0]
    bars = plot["data"]
    assert [each["type"] for each in bars] == ["bar", "bar"]
    assert bars[0]["y"] == [1, 4]
    assert bars[0]["customdata"] == ["one", "ten"]
    assert bars[1]["error_y"]["array"] == pytest.approx([1, 1, 1])
    assert bars[1]["error_y"]["arrayminus"] == pytest.approx([1, 1, 0.5])
    assert plot["layout"]["xaxis"]["ticktext"] == ["one", "ten", "hundred"]
    assert plot["layout"]["xaxis"]["tickvals"] == [0, 1, 2]
    assert {one["x"][0] < two for one in bars[:1] for two in bars[1]["x"]} == {True}


def test_stacked_bars_stand_on_each_other(axes):
    table = pd.DataFrame({"segments": [1, 2], "full_batch": [9, 5], "queues": [2, 1]})
    plot_stack(table, x="segments", parts=["full_batch", "queues"], ax=axes[0])
    below, above = plots_of(axes)[0]["data"]
    assert (below["base"], below["y"], above["base"], above["y"]) == (
        [0, 0],
        [9, 5],
        [9, 5],
        [2, 1],
    )


def test_an_axis_that_plotly_lacks_is_drawn_by_its_places_and_told_by_its_values(axes, table):
    plot_series(table, x="n", y="cost", by="policy", yscale="symlog", ax=axes[0])
    axes[0].set_ylim(0, 20)
    plot = plots_of(axes)[0]
    second, axis = plot["data"][1], plot["layout"]["yaxis"]
    assert [point[1] for point in second["customdata"]] == [2, 5, 6]
    assert second["y"] == pytest.approx(
        axes[0].yaxis.get_transform().transform([2, 5, 6]), rel=1e-5
    )
    assert axis["ticktext"] == ["0", "1", "10"]


def test_one_legend_of_many_stands_above_the_first(axes, table):
    for ax, legend in zip(axes, (False, True), strict=True):
        plot_series(table, x="n", y="cost", by="policy", legend=legend, ax=ax)
    axes[1].set_title("right")
    plots = plots_of(axes)
    assert [plot["layout"]["showlegend"] for plot in plots] == [True, False]
    assert [plot["layout"]["meta"]["caption"] for plot in plots] == ["", "right"]


def test_annotations_stand_where_they_stood(axes, table):
    plot_series(table, x="n", y="cost", by="policy", yscale="log", ax=axes[0])
    axes[0].annotate("100 %", (0.9, 10), xycoords=("axes fraction", "data"), ha="right")
    (found,) = plots_of(axes)[0]["layout"]["annotations"]
    assert (found["x"], found["xref"], found["y"], found["yref"]) == (0.9, "paper", 1, "y")
    assert (found["text"], found["xanchor"]) == ("100 %", "right")
