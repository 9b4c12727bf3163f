"""Table, plots and page of regret."""

import json
import re

import numpy as np
import pytest

from optsched import regret
from optsched.experiments.regret import Band
from optsched.experiments.regret_cells import overload_threshold
from optsched.report import plot_thresholds, regret_page
from optsched.report.tables import regret_cells


@pytest.fixture(scope="module")
def result():
    return regret("family:equal-prompts", ["mc-sf", "fcfs"], [0.7, 1.3], [60, 240], seeds=3)


@pytest.mark.slow
def test_the_plot_shows_both_ends_of_every_policy(result, ax):
    assert result.plot(ax, load=1.3) is ax
    drawn = [line.get_ydata().tolist() for line in ax.lines]
    bands = [result.band(policy, 1.3, 240) for policy in result.policies]
    assert [line[1] for line in drawn] == [
        value for band in bands for value in (band.high, band.low)
    ]
    assert ax.get_ylabel() == "regret (steps per request)"
    assert "steps" in ax.get_xlabel()
    assert ax.get_ylim()[1] >= max(band.ceiling for band in bands)


@pytest.mark.slow
def test_without_axes_a_figure_is_made(result):
    assert result.plot().get_legend() is not None


def test_thresholds_are_shaded(ax):
    found = overload_threshold("family:equal-prompts", "fcfs", horizon=400, precision=0.1)
    assert plot_thresholds([found], ax) is ax
    assert sorted(ax.lines[0].get_xdata()) == sorted(load for load, _ in found.tried)


def test_the_table_rounds_what_is_proven_outwards(result):
    text = str(result)
    assert text.splitlines()[0] == "equal-prompts, memory 200 tokens"
    for band in result.bands():
        shown = [number for _, number in regret_cells(band).values()]
        low, high = (float(part.replace(",", "")) for part in shown[5].split(" to "))
        assert low <= band.low + 1e-9
        assert high >= band.high - 1e-9
    assert text.count("Whether regret grows is said from 4 horizons and 5 seeds on") == 1
    assert text.count("All policies here are told every true output") == 1


def test_cells_of_a_band_are_rounded_outwards():
    band = Band("area", 1.2, 5, 100, 3, 501, 9.25, 0, 0.5, 0, np.inf, 1, 1.0541, 1.02)
    shown = ["-", "1.2", "100", "501", "9.25", "0.000 to 0.500", "0.000 to ...", "1.000 to 1.055"]
    assert [text for _, text in regret_cells(band).values()] == [*shown, "1.020"]


def test_the_page_has_all_data_and_escapes_names(result):
    from dataclasses import replace

    page = regret_page(replace(result, source="a <b>"))
    assert "a &lt;b&gt;" in page
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page)[1])
    assert set(figures) == {"regret-0", "regret-1", "ratio-0", "ratio-1"}
    ends = [trace for trace in figures["regret-1"]["data"] if "markers" in trace["mode"]]
    assert [trace["meta"] for trace in ends] == ["mc-sf", "mc-sf", "fcfs", "fcfs"]
    assert np.all(np.array(ends[0]["y"]) >= np.array(ends[1]["y"]))
    assert ends[0]["customdata"][0].startswith("at most")
    bars = [trace for trace in figures["regret-1"]["data"] if trace["mode"] == "lines"]
    # Intervals, and their confidence limits.
    assert [trace["meta"] for trace in bars] == ["mc-sf", "fcfs"] * 2
    content = json.loads(re.search(r'id="comparison">(.*?)</script>', page)[1])
    assert len(content["cells"]) == 12
