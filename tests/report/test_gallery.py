"""Nothing of any plot of the gallery is cut off: marks lie within axes, text within the figure."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

SCRIPT = Path(__file__).parents[2] / "docs/images/gallery.py"


def outside(figure):
    """Name the marks beyond the limits of their axes, and the text beyond the figure."""
    figure.canvas.draw()
    for ax in figure.axes:
        ends = np.array([*zip(ax.get_xlim(), ax.get_ylim(), strict=True)])
        low, high = np.sort(ax.transData.transform(ends), axis=0)
        low, high = low - 1, high + 1
        marks = [line.get_xydata() for line in ax.lines if line.get_transform() == ax.transData]
        for each in ax.collections:
            marks += each.get_segments() if isinstance(each, LineCollection) else []
        bars = [each for each in ax.patches if isinstance(each, Rectangle)]
        marks += [
            each.get_bbox().get_points() for each in bars if each.get_transform() != ax.transAxes
        ]
        for points in marks:
            at = ax.transData.transform(np.atleast_2d(points))
            at = at[np.isfinite(at).all(axis=1)]
            if ((at < low) | (at > high)).any():
                yield f"marks at {np.round(points, 3).tolist()[:4]}"
    whole = figure.bbox.padded(1.5)
    ticks = {each for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for each in labels(axis)}
    said = [
        each
        for each in figure.findobj(pyplot.Text)
        if each.get_visible() and each.get_text().strip() and each not in ticks
    ]
    boxes = [(each.get_text(), each.get_window_extent()) for each in said]
    for ax in figure.axes:  # of ticks only those within the limits are drawn
        drawn = (axis for axis in (ax.xaxis, ax.yaxis) if axis.get_visible())
        boxes += [("an axis", axis.get_tightbbox()) for axis in drawn]
    for text, box in boxes:
        if box and not (whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1)):
            yield f"text {text!r}"


def labels(axis):
    return [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]


@pytest.mark.slow
@pytest.mark.serving
@pytest.mark.parametrize("number", [0, 1], ids=["gallery", "capacity"])
def test_nothing_is_cut_off(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(SCRIPT))
    drawn = script["figures"](script["PAGES"][number])
    found = {picture: list(outside(figure)) for picture, figure in drawn}
    assert {picture: said for picture, said in found.items() if said} == {}
