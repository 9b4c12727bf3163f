"""Regret as text: a table of intervals, and a line for each test of growth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from optsched.report.tables import to_text

if TYPE_CHECKING:
    from optsched.experiments.regrets import Regret
    from optsched.experiments.regrets.result import Band

#: Titles of the numbers of a band, in the order of `cells`.
COLUMNS = (
    "load",
    "horizon",
    "requests",
    "mean latency",
    "regret",
    "confidence",
    "ratio",
    "worst ratio",
)


def cells(band: Band) -> list[tuple[float, str]]:
    """Give value and text of each of `COLUMNS`; upper ends are rounded up, lower ones down.

    Parameters
    ----------
    band
        Of one policy, load and horizon.

    Returns
    -------
    list of tuple
        In the order of the columns.

    Examples
    --------
    >>> from optsched.experiments.regrets.result import Band
    >>> band = Band("area", 1.2, 5, 100, 3, 501, 9.25, 0, 0.5, 0, math.inf, 1, 1.0541, 1.02)
    >>> [text for _, text in cells(band)]
    ['1.2', '100', '501', '9.25', '0.000 to 0.500', '0.000 to ...', '1.000 to 1.055', '1.020']
    """
    return [
        (band.load, f"{band.load:g}"),
        (band.horizon, f"{band.horizon:,}"),
        (band.requests, f"{band.requests:,.0f}"),
        (band.mean_latency, f"{band.mean_latency:,.2f}"),
        (band.high, _range(band.low, band.high)),
        (band.ceiling, _range(band.floor, band.ceiling)),
        (band.ratio_high, _range(band.ratio_low, band.ratio_high)),
        (band.worst_ratio, _down(band.worst_ratio)),
    ]


def _range(low: float, high: float) -> str:
    return f"{_down(low)} to {_up(high) if math.isfinite(high) else '...'}"


def _down(value: float) -> str:
    decimals = _decimals(value)
    return f"{math.floor(value * 10**decimals + 1e-9) / 10**decimals:,.{decimals}f}"


def _up(value: float) -> str:
    decimals = _decimals(value)
    return f"{math.ceil(value * 10**decimals - 1e-9) / 10**decimals:,.{decimals}f}"


def _decimals(value: float) -> int:
    return 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def regret_table(result: Regret) -> Table:
    """Return the intervals of all policies, loads and horizons as a table."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("policy", overflow="fold", min_width=5)
    for title in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for band in result.bands():
        table.add_row(Text(band.policy), *(text for _, text in cells(band)))
    seeds = max(band.seeds for band in result.bands())
    table.caption = (
        "regret: mean latency minus the least possible, in steps per request, from the best "
        f"schedule known to the proven bound; mean over {seeds} instance{'s' * (seeds > 1)}; "
        f"confidence {result.confidence:.0%}"
    )
    table.caption_justify = "left"
    return table


def render_regret(result: Regret) -> str:
    """Return intervals, growth and thresholds as plain text."""
    lines = [
        f"{result.source}, memory {result.memory:,} tokens"
        + (" (interrupted)" if result.status != "complete" else ""),
        to_text(regret_table(result), width=130),
    ]
    lines += [f"{policy}, load {load:g}: {growth}" for policy, load, growth in result.growths()]
    lines += [str(threshold) for threshold in result.thresholds]
    return "\n".join(lines)
