"""Plots of what routers lose: parts on top of each other that are proven, and what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import percent
from optsched.report.style import (
    BLUE,
    LIMIT,
    ORANGE,
    SKY,
    UNAVOIDABLE,
    finish,
    hover,
    name_bars,
    note_bar,
    prepare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.optimum.routing import RoutingLoss


def plot_losses(result: RoutingLoss, ax: Axes | None = None) -> Axes:
    """Plot what each router and policy provably lose, by part, and what they may lose on top."""
    losses = sorted(result.losses, key=lambda each: each.loss.high)
    ax = prepare(ax, height=1.2 + 0.36 * len(losses))
    name_bars(ax, [f"{each.run.router}, {each.run.policy}" for each in losses])
    low, high = 100 * np.array([each.loss for each in losses]).T
    order, placement = np.zeros(len(losses)), np.zeros(len(losses))
    for row, each in enumerate(losses):
        if each.order is not None and each.placement is not None:
            order[row], placement[row] = 100 * each.order.low, 100 * each.placement.low
    rows, below = np.arange(len(losses)), np.zeros(len(losses))
    parts: list[tuple[str, FloatArray, str]] = [("order, at least", order, BLUE)]
    parts.append(("placement, at least", placement, ORANGE))
    parts.append(("one of them, at least", np.maximum(low - order - placement, 0), SKY))
    if not order.any() and not placement.any():
        parts = [("lost, at least", low, BLUE)]
    parts.append(("open", high - low, UNAVOIDABLE))
    for label, widths, colour in parts:
        bars = ax.barh(rows, widths, left=below, height=0.68, color=colour, label=label)
        hover(bars, [f"{label} {width:.1f} %" for width in widths])
        below = below + widths
    ax.axvline(0, color=LIMIT, linewidth=1)
    for row, each in enumerate(losses):
        note_bar(ax, f"at most {percent(each.loss.high)}", float(high[row]), row)
    ax.set_xlim(0, max(1.0, 1.25 * high.max()))
    return finish(ax, "lost against the best placement and order (% of the own latency)")
