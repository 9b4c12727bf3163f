"""Redraw the picture of README and of the first page of docs: `python docs/images/make.py`."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot

import optsched
from optsched.report import plot_comparison, plot_latency


def draw_comparison(path: Path) -> None:
    """Draw all policies on a family: total latency over the bound, and latency of requests."""
    comparison = optsched.compare(
        optsched.family("chat-and-summaries", n=2000, seed=1), list(optsched.policies.BASIC)
    )
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    plot_comparison(comparison, left)
    plot_latency(comparison.schedules, right)
    figure.savefig(path, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    draw_comparison(Path(__file__).parent / "comparison.png")
