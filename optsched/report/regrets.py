"""Plots of regret: intervals against the horizon, and the search for the threshold load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import proven
from optsched.errors import OptschedError
from optsched.report.style import (
    LIMIT,
    REFERENCE,
    finish,
    hover,
    line_of,
    line_styles,
    plain,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.experiments.regrets import OverloadThreshold, Regret
    from optsched.experiments.regrets.result import Band

_FLAT = 0.01  # regret up to which the axis is linear
_SPREAD = 1.035  # factor by which policies are set apart, so that none hides another


def plot_regret(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the regret interval of each policy against the horizon, at one load."""
    ax = _intervals(result, load, ("low", "high"), ("floor", "ceiling"), ax)
    ax.set_yscale("symlog", linthresh=_FLAT)
    ax.set_ylim(bottom=0)
    _regret_axis(ax)
    ax.set_ylabel(f"regret ({result.unit} per request)")
    return ax


def plot_regret_ratio(result: Regret, load: float, ax: Axes | None = None) -> Axes:
    """Plot the interval of each policy's ratio to the least possible latency, as `plot_regret`."""
    ax = _intervals(result, load, ("ratio_low", "ratio_high"), None, ax)
    ax.set_ylabel("latency over the least possible")
    return ax


def _intervals(
    result: Regret,
    load: float,
    ends: tuple[str, str],
    limits: tuple[str, str] | None,
    ax: Axes | None,
) -> Axes:
    from matplotlib.ticker import NullLocator

    if load not in result.loads:
        raise OptschedError(f"there is no load {load:g}; there are {result.loads}")
    ax = prepare(ax)
    horizons = result.horizons(load)
    middle = (len(result.policies) - 1) / 2
    styles = line_styles(result.policies)
    for place, (policy, style) in enumerate(zip(result.policies, styles, strict=True)):
        bands = [result.band(policy, load, horizon) for horizon in horizons]
        at = np.array(horizons) * _SPREAD ** (2 * (place - middle))
        low, high = _pairs(bands, ends)
        ax.fill_between(at, low, high, color=style.colour, alpha=0.18, linewidth=0)
        if limits:
            reach = _pairs(bands, limits)
            known = np.isfinite(reach).all(axis=0)
            ax.vlines(at[known], *reach[:, known], color=style.colour, linewidth=0.9)
        look = line_of(style) | {"linewidth": 1.5, "markersize": 5, "marker": style.marker}
        lines = ax.plot(at, high, label=plain(policy), **look)
        lines += ax.plot(at, low, markerfacecolor="white", **look)
        for line, end, found in zip(lines, ("at most", "at least"), (high, low), strict=True):
            shown = (proven(value, up=end == "at most", digits=4) for value in found)
            hover(line, [f"{end} {y} at T = {x:,}" for y, x in zip(shown, horizons, strict=True)])
    ax.set_xscale("log")
    ax.set_xticks(horizons, [f"{horizon:,}" for horizon in horizons])
    ax.xaxis.set_minor_locator(NullLocator())
    title = f"load {load:g}; filled: against the bound, open: against the best schedule"
    return finish(ax, f"horizon T ({result.unit} in which requests arrive)", title=title)


def _pairs(bands: Sequence[Band], names: tuple[str, str]) -> FloatArray:
    return np.array([[getattr(band, name) for band in bands] for name in names])


def _regret_axis(ax: Axes) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    top = max(ax.get_ylim()[1], 10 * _FLAT)
    powers = np.arange(np.log10(_FLAT), np.ceil(np.log10(top)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([0.0, *(10.0**powers).tolist()]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.set_ylim(top=top)


def plot_thresholds(thresholds: Sequence[OverloadThreshold], ax: Axes | None = None) -> Axes:
    """Plot what is left behind against the load, and shade where each policy's threshold lies."""
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
    xlabel = "load (memory-time that arrives over that which passes)"
    return finish(ax, xlabel, "left behind (% of what arrives)")
