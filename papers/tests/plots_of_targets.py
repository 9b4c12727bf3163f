"""The plots of a reproduction, for paper and for the page."""

from __future__ import annotations

import json

from optsched.report.interactive import interactive


def drawn(found):
    """Draw a reproduction; all that the plot shows can be shown by the page too."""
    figure = found.plot()
    plots = interactive(figure)
    assert len(plots) == len(figure.axes)
    for plot, ax in zip(plots, figure.axes, strict=True):
        named = {trace["name"] for trace in plot["data"] if "name" in trace}
        assert len(named) >= len(ax.get_legend_handles_labels()[1])
        assert ax.lines or ax.patches
    json.dumps(plots, allow_nan=False)
    return figure
