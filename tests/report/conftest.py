"""Plots are drawn in memory; what tests of plots and pages share."""

import io

import matplotlib as mpl
import pytest

from optsched import Instance, compare

mpl.use("Agg")


@pytest.fixture
def ax():
    """Axes to draw on."""
    from matplotlib import pyplot

    return pyplot.subplots()[1]


@pytest.fixture
def drawn(ax):
    """Draw on axes that are given, then on new ones with a legend that can be saved: the latter."""

    def draw(plot):
        assert plot(ax) is ax
        made = plot()
        assert made is not ax
        assert made.get_legend() is not None
        made.figure.savefig(io.BytesIO(), dpi=40)
        return made

    return draw


@pytest.fixture(scope="session")
def example():
    """Sorted-F Example 1: few requests, all at once."""
    return compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64, name="Example 1"))


@pytest.fixture(scope="session")
def stream():
    """More requests than can be stacked, arriving over time."""
    requests = range(300)
    return compare(
        Instance(
            prompts=[1 + request * 37 % 90 for request in requests],
            outputs=[1 + request * 53 % 200 for request in requests],
            memory=1000,
            arrivals=[3 * request for request in requests],
            name="stream",
            seconds_per_step=0.05,
        )
    )
