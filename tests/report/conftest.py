"""Plots are drawn in memory, and what a test leaves open is closed."""

from __future__ import annotations

import matplotlib as mpl
import pytest

from optsched import Instance, compare

mpl.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


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
