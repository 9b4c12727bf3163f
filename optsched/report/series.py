"""Plots of a table's columns: lines with bands, bars, and stacks of parts, one per name.

What else a plot is given goes to `Axes.set`: labels, with units, and scales of the axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame
from optsched._internal.student import interval
from optsched.errors import OptschedError, nearest
from optsched.report.style import (
    BLUE,
    COLOURS,
    TEXT_SIZE,
    count_axis,
    count_log_axis,
    legend_above,
    line_of,
    line_styles,
    plain,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.experiments.comparison import Replications
    from optsched.experiments.sweeps import Sweep
    from optsched.report.style import LineStyle

_MEANS = ("policy", "knows", "runs", "failed", "mean_latency", "difference", "gap", "largest_gap")
_MAX_MARKED = 40  # points of a line that get markers
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")


def plot_series(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | None = None,
    low: str | None = None,
    high: str | None = None,
    over: str = "seed",
    legend: bool = True,
    ax: Axes | None = None,
    **axes: Any,
) -> Axes:
    """Plot one line per name in column `by`, with a band between columns `low` and `high`.

    Repeats, which the column `over` tells apart where the table has it, become their mean, with the
    95 % confidence interval by Student's t as the band.
    """
    _require(table, x, y, by, low, high)
    keys = [x] if by is None else [by, x]
    if over in table and table[over].nunique() > 1 and table.duplicated(keys).any():
        if low is not None or high is not None or table.duplicated([*keys, over]).any():
            raise OptschedError(
                f"several rows have the same {x!r} and {by or over!r}, but cannot be averaged over "
                f"{over!r}; leave low and high out, and pass as by the column that tells them apart"
            )
        table, low, high = _averaged(table, keys, y), "low", "high"
    ax = prepare(ax)
    ax.set(**axes)
    for name, style, rows in _groups(table, by):
        marker = style.marker if len(rows) <= _MAX_MARKED else ""
        look = {"marker": marker, "markersize": 4, "linewidth": 1.6, **line_of(style)}
        ax.plot(rows[x], rows[y], label=plain(name), **look)
        if low is not None and high is not None:
            ax.fill_between(rows[x], rows[low], rows[high], color=style.colour, alpha=0.15, lw=0)
    _number(ax.xaxis, table[x].to_numpy())
    _number(ax.yaxis, table[y].to_numpy())
    if legend and by is not None:
        legend_above(ax)
    return ax


def _require(table: pd.DataFrame, *names: str | None) -> None:
    """Refuse columns that are not there."""
    for name in names:
        if name is not None and name not in table:
            raise OptschedError(
                f"the table has no column {name!r}; {nearest(name, map(str, table))}"
            )


def _averaged(table: pd.DataFrame, keys: list[str], y: str) -> pd.DataFrame:
    """Return one row per key: the mean of y and its interval, NaN for a single value."""
    rows = []
    for key, values in table.groupby(keys, sort=False)[y]:
        mean, *ends = interval(values.to_numpy(np.float64))
        rows.append((*key, mean, *np.where(np.isfinite(ends), ends, np.nan)))
    return data_frame(rows, columns=[*keys, y, "low", "high"])


def plot_bars(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | None = None,
    low: str | None = None,
    high: str | None = None,
    ax: Axes | None = None,
    **axes: Any,
) -> Axes:
    """Plot a group of bars for each name in column `x`, one bar for each name in column `by`."""
    _require(table, x, y, by, low, high)
    ax = prepare(ax)
    ax.set(**axes)
    places = list(dict.fromkeys(table[x].astype(str)))
    groups = _groups(table, by)
    width = 0.8 / len(groups)
    for index, (name, style, rows) in enumerate(groups):
        at = np.array([places.index(str(place)) for place in rows[x]])
        at = at + (index - (len(groups) - 1) / 2) * width
        ends = None
        if low is not None and high is not None:
            ends = np.maximum([rows[y] - rows[low], rows[high] - rows[y]], 0)
        ax.bar(
            at,
            rows[y],
            0.92 * width,
            yerr=ends,
            error_kw={"ecolor": "#333333", "capsize": 2.5, "lw": 1},
            label=plain(name),
            color=style.colour if by is not None else BLUE,
            edgecolor="white",
            hatch=_HATCHES[index % len(_HATCHES)],
            linewidth=0.5,
        )
    ax.set_xticks(range(len(places)), [plain(place) for place in places])
    if sum(map(len, places)) > 60:  # names that would run into each other
        ax.tick_params(axis="x", rotation=30)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("right")
    ax.grid(visible=False, axis="x")
    _number(ax.yaxis, table[y].to_numpy())
    if by is not None:
        legend_above(ax)
    return ax


def plot_means(result: Replications | Sweep, ax: Axes | None = None) -> Axes:
    """Plot the mean latency of each policy with its interval, side by side in each setting."""
    rows = []
    for entry in result.means:
        mean = entry["mean_latency"] or {"mean": np.nan, "low": None, "high": None}
        ends = {end: mean["mean"] if mean[end] is None else mean[end] for end in ("low", "high")}
        rest = [f"{key} {value}" for key, value in entry.items() if key not in _MEANS]
        setting = ", ".join(rest) or entry["policy"]
        rows.append({"policy": entry["policy"], "setting": setting, "mean": mean["mean"], **ends})
    table = data_frame(rows)
    by = "policy" if (table.setting != table.policy).any() else None
    return plot_bars(
        table, x="setting", y="mean", by=by, low="low", high="high", ax=ax, ylabel="mean latency"
    )


def plot_stack(
    table: pd.DataFrame,
    *,
    x: str,
    parts: Sequence[str],
    ax: Axes | None = None,
    **axes: Any,
) -> Axes:
    """Plot a bar per row, made of at most six columns on top of each other, the first lowest."""
    ax = prepare(ax)
    ax.set(**axes)
    places = np.arange(len(table))
    heights = {part.replace("_", " "): table[part].to_numpy(np.float64) for part in parts}
    tops = stack_bars(ax, places, heights)
    ax.set_ylim(0, 1.05 * tops.max())  # parts of no height would take the margin away
    ax.set_xticks(places, [plain(str(place)) for place in table[x]])
    _number(ax.xaxis, tops[:0])
    _number(ax.yaxis, tops)
    legend_above(ax)
    return ax


def stack_bars(ax: Axes, places: IntArray, parts: Mapping[str, FloatArray]) -> FloatArray:
    """Draw bars made of parts on top of each other, the lowest first, and return their tops."""
    below = np.zeros(len(places))
    for (name, heights), colour, hatch in zip(parts.items(), COLOURS, _HATCHES, strict=False):
        ax.bar(
            places,
            heights,
            0.76,
            below,
            label=plain(name),
            color=colour,
            edgecolor="white",
            hatch=hatch,
            linewidth=0.3,
        )
        below = below + heights
    ax.grid(visible=False, axis="x")
    return below


def _groups(table: pd.DataFrame, by: str | None) -> list[tuple[str, LineStyle, pd.DataFrame]]:
    """Split a table by a column; return name, look and rows of each part."""
    groups = [("", table)] if by is None else list(table.groupby(by, sort=False))
    names = [str(name) for name, _ in groups]
    return [
        (name, style, rows)
        for name, style, (_, rows) in zip(names, line_styles(names), groups, strict=True)
    ]


def _number(axis: Axis, values: np.ndarray) -> None:
    """Write counts in full; leave other numbers to matplotlib."""
    axis.label.set_fontsize(TEXT_SIZE)
    finite = values[np.isfinite(values.astype(float))] if values.dtype.kind in "if" else values[:0]
    if axis.get_scale() == "log":
        if len(finite) and finite.min() >= 1:
            count_log_axis(axis)
    elif axis.get_scale() == "linear" and len(finite) and np.abs(finite).max() >= 1000:
        count_axis(axis)
