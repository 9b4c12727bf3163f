"""The plots of a reproduction, for paper and for the page."""

from __future__ import annotations

import json

from optsched.report.interactive import interactive


def drawn(found):
    """Draw a reproduction; the page can show all of it too, and no two lines look alike."""
    figure = found.plot()
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
