"""The plots of a reproduction, for paper and for the page."""

from __future__ import annotations

import json

from optsched.report.pages import interactive


def drawn(found):
    """Draw a reproduction; labels lie inside it, the page shows all, no two lines look alike."""
    figure = found.plot()
    figure.draw_without_rendering()
    labels = [axis.label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    for label in [each for each in labels if each.get_text()]:
        extent = label.get_window_extent()
        assert figure.bbox.containsx(extent.x0), label
        assert figure.bbox.containsx(extent.x1), label
    plots = interactive(figure)
    assert len(plots) == len(figure.axes)
    for plot, ax in zip(plots, figure.axes, strict=True):
        named = {trace["name"] for trace in plot["data"] if "name" in trace}
        assert len(named) >= len(ax.get_legend_handles_labels()[1])
        assert ax.lines or ax.patches
        lines = [each for each in plot["data"] if "name" in each and "dash" in each.get("line", {})]
        looks = {each["name"]: (each["line"]["color"], each["line"]["dash"]) for each in lines}
        assert len(set(looks.values())) == len(looks), looks
    json.dumps(plots, allow_nan=False)
    return figure
