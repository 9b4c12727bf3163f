"""How tables are drawn: lines or bars on one panel, or a panel for each value of a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.report.series import plot_bars, plot_series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    Draw = Callable[[pd.DataFrame, Sequence[Axes]], None]

BAND: dict[str, Any] = {"low": "low", "high": "high"}


def lines(**look: Any) -> Draw:
    """Return what draws a table on one panel, as `plot_series` is passed this look."""

    def draw(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
        plot_series(table, ax=axes[0], **look)

    return draw


def bars(**look: Any) -> Draw:
    """Return what draws a table as bars on one panel, as `plot_bars` is passed this look."""

    def draw(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
        plot_bars(table, ax=axes[0], **look)

    return draw


def panels(column: str, xlabel: str, *, from_zero: bool = False, **look: Any) -> Draw:
    """Return what draws a panel for each value of a column, which the label of the x axis names."""

    def draw(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
        for ax, (value, rows) in zip(axes, table.groupby(column, sort=False), strict=True):
            plot_series(rows, xlabel=xlabel.format(value), ax=ax, **look)
            if from_zero:
                ax.set_ylim(0, None)

    return draw
