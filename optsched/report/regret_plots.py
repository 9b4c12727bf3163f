"""Plots of regret: intervals against the horizon, and the search for the threshold load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import OptschedError
from optsched.report.style import (
    LIMIT,
    REFERENCE,
    TEXT_SIZE,
    count_log_axis,
    legend_above,
    line_of,
    line_styles,
    plain,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.experiments.regrets import OverloadThreshold, Regret

FLAT = 0.01  # steps of regret up to which the axis is linear
_SPREAD = 1.035  # factor by which policies are set apart, so that none hides another


def plot_regret(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the regret interval of each policy against the horizon, at one load.

    Parameters
    ----------
    result
        What was found.
    load
        Of which load.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. Bars reach from the mean lower to the mean upper end of the regret, which
        lines join; thin lines beyond them are the confidence limits. The axis is linear below 0.01
        steps and logarithmic above.

    Raises
    ------
    OptschedError
        If there is no such load.
    """
    if load not in result.loads:
        raise OptschedError(f"there is no load {load:g}; there are {result.loads}")
    ax = prepare(ax)
    horizons = result.horizons(load)
    middle = (len(result.policies) - 1) / 2
    for place, (policy, style) in enumerate(
        zip(result.policies, line_styles(result.policies), strict=True)
    ):
        bands = [result.band(policy, load, horizon) for horizon in horizons]
        at = np.array(horizons) * _SPREAD ** (2 * (place - middle))
        low, high = ([getattr(band, end) for band in bands] for end in ("low", "high"))
        limits = np.array([(band.floor, band.ceiling) for band in bands])
        finite = np.isfinite(limits).all(axis=1)
        ax.vlines(at[finite], *limits[finite].T, color=style.colour, linewidth=0.9)
        ax.vlines(at, low, high, color=style.colour, linewidth=4, alpha=0.45)
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5}
        ax.plot(at, high, marker=style.marker, label=plain(policy), **look)
        ax.plot(at, low, marker=style.marker, markerfacecolor="white", **look)
    ax.set_xscale("log")
    count_log_axis(ax.xaxis)
    ax.set_yscale("symlog", linthresh=FLAT)
    ax.set_ylim(bottom=0)
    _regret_axis(ax)
    ax.set_xlabel("horizon T (steps in which requests arrive)")
    ax.set_ylabel("regret (steps per request)")
    legend_above(ax, f"load {load:g}; filled: against the bound, open: against the best schedule")
    legend = ax.get_legend()
    assert legend is not None
    legend.get_title().set_fontsize(TEXT_SIZE)
    return ax


def _regret_axis(ax: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    top = max(ax.get_ylim()[1], 10 * FLAT)
    powers = np.arange(np.log10(FLAT), np.ceil(np.log10(top)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([0.0, *(10.0**powers).tolist()]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.set_ylim(top=top)


def plot_thresholds(thresholds: Sequence[OverloadThreshold], ax: Axes | None = None) -> Axes:
    """Plot what is left behind against the load, for each policy whose threshold was searched.

    Parameters
    ----------
    thresholds
        What `overload_threshold` found.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on, with the interval of each threshold shaded.

    Examples
    --------
    >>> from optsched import overload_threshold
    >>> found = overload_threshold("family:equal-prompts", "mc-sf", horizon=500, precision=0.2)
    >>> plot_thresholds([found]).get_xlabel()
    'load (memory-time that arrives over that which passes)'
    """
    from optsched.experiments.regrets.threshold import LEFT_BEHIND

    ax = prepare(ax)
    names = [threshold.policy for threshold in thresholds]
    for threshold, style in zip(thresholds, line_styles(names), strict=True):
        loads, shares = np.array(sorted(threshold.tried)).T
        look = line_of(style) | {"linewidth": 1.5, "markersize": 4.5}
        ax.plot(loads, 100 * shares, marker=style.marker, label=plain(threshold.policy), **look)
        ax.axvspan(threshold.stable, threshold.overloaded, color=style.colour, alpha=0.25, lw=0)
    ax.axhline(100 * LEFT_BEHIND, label="overloaded above", **REFERENCE)
    ax.axvline(1.0, color=LIMIT, linewidth=1)
    ax.set_xlabel("load (memory-time that arrives over that which passes)")
    ax.set_ylabel("left behind (% of what arrives)")
    legend_above(ax)
    return ax
