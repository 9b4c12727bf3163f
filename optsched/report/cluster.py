"""Tables and plots of runs on a cluster (BF-IO Table 1 and Figures 4, 6 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError
from optsched.report.style import (
    REFERENCE,
    TEXT_SIZE,
    count_axis,
    count_log_axis,
    legend_above,
    line_of,
    line_styles,
    plain,
    prepare,
    styled,
)
from optsched.report.tables import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from rich.table import Table

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.cluster.results import ClusterRun
    from optsched.comparison.cluster import ClusterComparison

POINTS = 400  # drawn of one line

#: Title, metric, scale and format of the columns of the table.
COLUMNS = (
    ("imbalance, tokens", "imbalance_tokens", 1, "{:,.0f}"),
    ("imbalance, ms", "imbalance_ms", 1, "{:,.2f}"),
    ("idle", "idle_share", 1, "{:.1%}"),
    ("tokens/s", "throughput", 1, "{:,.0f}"),
    ("TPOT, ms", "tpot", 1e3, "{:,.2f}"),
    ("energy, kJ", "energy_joule", 1e-3, "{:,.1f}"),
    ("max wait", "max_wait_steps", 1, "{:,.0f}"),
    ("stuck", "stuck", 1, "{:,.0f}"),
)


def cells(entry: dict[str, float | None]) -> list[tuple[float | None, str]]:
    """Give value and text of each of `COLUMNS` for one policy.

    Parameters
    ----------
    entry
        Metrics by name, as in `ClusterComparison.to_dict`.

    Returns
    -------
    list of tuple
        In the order of the columns; a dash for what is missing.
    """
    values = [(entry[metric], scale, form) for _, metric, scale, form in COLUMNS]
    return [
        (value, "-" if value is None else form.format(value * scale))
        for value, scale, form in values
    ]


def cluster_table(comparison: ClusterComparison) -> Table:
    """Return the metrics of all policies as a table, with a caption on what was run."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    content = comparison.to_dict()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for title, *_ in COLUMNS:
        table.add_column(title, justify="right")
    for entry in content["policies"]:
        table.add_row(Text(entry["policy"]), *(text for _, text in cells(entry)))
    count = len(content["instances"])
    traces = "" if count == 1 else f"; means over {count} traces, largest wait and stuck"
    table.caption = f"{comparison.cluster}{traces}"
    table.caption_justify = "left"
    return table


def render_table(comparison: ClusterComparison) -> str:
    """Return the metrics of all policies as plain text."""
    return to_text(cluster_table(comparison))


def thinned(values: IntArray | FloatArray, points: int = POINTS) -> tuple[IntArray, FloatArray]:
    """Average columns over bins of steps, so that a line has a bounded number of points.

    Parameters
    ----------
    values
        By step, shape (K,) or (K, G).
    points
        How many points are wanted at most.

    Returns
    -------
    tuple
        First step of each bin, and the means.

    Examples
    --------
    >>> thinned(np.arange(10), points=5)
    (array([0, 2, 4, 6, 8]), array([0.5, 2.5, 4.5, 6.5, 8.5]))
    """
    width = -(-len(values) // points)
    edges = np.arange(0, len(values), width)
    counts = np.diff(np.append(edges, len(values)))
    sums = np.add.reduceat(values, edges, axis=0).astype(np.float64)
    return edges, sums / (counts if values.ndim == 1 else counts[:, None])


def plot_loads(run: ClusterRun, ax: Axes | None = None) -> Axes:
    """Plot the load of every worker over the steps (BF-IO Figure 6).

    Parameters
    ----------
    run
        A run with recorded loads.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: a line per worker, and the heaviest one of each step in black. A point is
        the mean of a few steps.

    Raises
    ------
    InstanceError
        If the loads were not recorded.
    """
    steps, loads = thinned(_recorded(run))
    heaviest = thinned(_recorded(run).max(axis=1))[1]
    ax = plot_trajectories(steps, loads, heaviest, run.policy, ax)
    ax.set_xlim(0, run.steps)
    return ax


def plot_trajectories(
    steps: IntArray,
    loads: FloatArray,
    heaviest: FloatArray,
    policy: str,
    ax: Axes | None = None,
) -> Axes:
    """Plot loads of workers that were averaged before, as `plot_loads` does.

    Parameters
    ----------
    steps
        Where the points lie, shape (points,).
    loads
        Load of each worker, shape (points, workers).
    heaviest
        Load of the heaviest of each step, shape (points,).
    policy
        Names the look.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.
    """
    ax = prepare(ax)
    colour = line_styles([policy])[0].colour
    ax.plot(steps, loads, color=colour, linewidth=0.6, alpha=0.55)
    ax.plot(steps, heaviest, color="black", linewidth=1.1, label="heaviest")
    ax.plot([], [], color=colour, linewidth=0.8, label=f"each worker, {plain(policy)}")
    ax.set_xlabel("time (steps)")
    ax.set_ylabel("load (tokens)")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    count_axis(ax.xaxis, ax.yaxis)
    legend_above(ax)
    return ax


def plot_power(runs: ClusterRun | Iterable[ClusterRun], ax: Axes | None = None) -> Axes:
    """Plot the mean power of a worker over time (BF-IO Figure 7).

    Parameters
    ----------
    runs
        One run, or several.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.
    """
    ax = prepare(ax)
    for run, style in styled(runs):
        steps, watt = thinned(run.watt / run.cluster.workers, 150)
        ax.plot(run.clock[steps], watt, linewidth=1.4, label=plain(run.policy), **line_of(style))
    ax.set_xlabel("time (s)")
    ax.set_ylabel("mean power of a worker (W)")
    ax.set_xlim(0, None)
    legend_above(ax)
    return ax


def plot_lookahead(comparison: ClusterComparison, ax: Axes | None = None) -> Axes:
    """Plot the mean imbalance against the lookahead H (BF-IO Figure 4).

    Parameters
    ----------
    comparison
        Runs of BF-IO with several lookaheads, each under a name of its own, as
        `compare_lookaheads` makes them; other policies become level lines.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on, imbalance in milliseconds of idle time summed over workers; bars are
        95 % confidence intervals over the traces.
    """
    ax = prepare(ax)
    windows, means, lows, highs = lookahead_curve(comparison)
    places = np.arange(len(windows))
    ax.errorbar(
        places,
        means,
        yerr=[means - lows, highs - means],
        marker="o",
        markersize=4,
        linewidth=1.4,
        capsize=2,
        color=line_styles(["bf-io"])[0].colour,
        label="bf-io",
    )
    for policy, runs in comparison.runs.items():
        if runs[0].lookahead is None:
            level = comparison.mean("imbalance_ms", policy).mean
            ax.axhline(level, **REFERENCE)
            ax.annotate(
                plain(policy), (1, level), xycoords=("axes fraction", "data"), va="bottom",
                ha="right", fontsize=TEXT_SIZE,
            )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xticks(places, [f"{window:g}" for window in windows])
    count_log_axis(ax.yaxis)
    ax.set_xlabel("lookahead H (steps)")
    ax.set_ylabel("imbalance (ms idle per step)")
    legend_above(ax)
    return ax


def lookahead_curve(
    comparison: ClusterComparison,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Give lookaheads and the mean, low and high imbalance in ms, by ascending lookahead.

    Parameters
    ----------
    comparison
        Runs of BF-IO with several lookaheads.

    Returns
    -------
    tuple of FloatArray
        One entry per lookahead.
    """
    rows = sorted(
        (runs[0].lookahead, *comparison.mean("imbalance_ms", policy))
        for policy, runs in comparison.runs.items()
        if runs[0].lookahead is not None
    )
    if not rows:
        raise InstanceError("no policy with a lookahead has run; compare_lookaheads runs some")
    table = np.array(rows, dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _recorded(run: ClusterRun) -> IntArray:
    if run.loads is None:
        raise InstanceError(
            f"the loads of {run.policy} were not recorded; run it with record_loads=True"
        )
    return run.loads
