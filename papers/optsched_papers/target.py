"""A target: a table, a figure or a theorem of a paper, what computes it and what draws it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pandas as pd

from optsched._internal.fingerprints import fingerprint
from optsched.experiments.cells import INTERRUPTED, JsonFolder, Places, Store, finish
from optsched.report.style import REFERENCE, plot_bars, plot_series

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched.experiments.cells import CellProgress
    from optsched_papers.claims import Claim

Key = TypeVar("Key")
Panels: TypeAlias = "Sequence[Axes]"  # as many axes as a target has panels
Compute: TypeAlias = "Callable[[Study], Outcome]"
Draw: TypeAlias = Callable[[pd.DataFrame, Panels], object]

BAND: dict[str, Any] = {"low": "low", "high": "high"}


def band(what: str) -> dict[str, Any]:
    """Return the look of a line with the band of its column."""
    return {"y": what, "low": f"{what}_low", "high": f"{what}_high"}


@dataclass(frozen=True)
class Outcome:
    """What a target's computation returns."""

    table: pd.DataFrame  # the data of the plot, one row per point
    claims: Sequence[Claim]  # what the paper states, and ours
    settings: dict[str, Any] = field(default_factory=dict)  # sizes, policies, seeds, clocks


@dataclass(frozen=True)
class Target:
    """One table, figure or theorem; `targets.toml` has the texts of all."""

    name: str  # PAPER-WHAT, such as "robust-fig-1"
    title: str
    source: str  # where it stands, such as "Robust (Chen et al.), Fig. 1"
    compute: Compute
    draw: Draw
    version: str = ""  # of the paper, as it was read
    panels: tuple[int, int] = (1, 1)  # rows and columns of axes
    remark: str = ""  # what we know beyond the numbers: a slip of the paper, what was left out
    unpublished: str = ""  # the data or the setting that decides, where the paper does not state it
    holds_if: str = ""  # of what is refuted: a change with which it holds
    provided: str = ""  # what it rests on that it holds: requests made to have what is printed

    def qualified(self, verdict: str, reason: str) -> str:
        """Return a verdict with what it rests on or lacks, where its reason begins with that."""
        begins = [each for each in (self.provided, self.unpublished) if reason.startswith(each)]
        rests = max(begins, default="", key=len).partition(":")[0]
        return f"{verdict}, {rests}" if rests else verdict


@dataclass
class Study:
    """How much to compute, where finished cells are kept, and in how many processes."""

    target: str
    quick: bool = False  # whether seconds are to suffice in place of minutes
    seed: int = 0
    places: Places = field(default_factory=Places)
    cells: Path | None = None  # folder of finished cells; None keeps nothing
    on_progress: Callable[[CellProgress], object] | None = None
    seconds: float = field(default=0.0, init=False)  # spent in cells, earlier calls included

    def choose(self, quick: Any, full: Any) -> Any:
        """Return the first in a quick study, the second otherwise."""
        return quick if self.quick else full

    def seeds(self, quick: int, full: int, apart: int = 1) -> list[int]:
        """Return so many seeds from the study's own on, or from so many times that."""
        return [apart * self.seed + place for place in range(self.choose(quick, full))]

    def map(self, function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
        """Call a function once per cell, with plain data; what is done is not done again."""
        code = fingerprint(function)  # once: it takes a tenth of a second to write all of it down
        keys = [fingerprint([code, call])[:24] for call in calls]
        kept = Store[Any]() if self.cells is None else JsonFolder(self.cells, keys)
        status = finish(
            _carry_out,
            {key: (function, call) for key, call in zip(keys, calls, strict=True)},
            kept,
            self.places,
            title=f"cells of {self.target} ({function.__name__.strip('_').replace('_', ' ')})",
            on_progress=self.on_progress,
        )
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        self.seconds += sum(kept[key]["seconds"] for key in keys)
        return [kept[key]["result"] for key in keys]

    def table(self, function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> pd.DataFrame:
        """Return the rows of each call, of which there are one or several, with its arguments."""
        rows = []
        for call, found in zip(calls, self.map(function, calls), strict=True):
            rows += [call | row for row in (found if isinstance(found, list) else [found])]
        return pd.DataFrame(rows)

    def by_seed(
        self, function: Callable[..., Any], cells: Mapping[Key, dict[str, Any]], seeds: list[int]
    ) -> dict[Key, list[Any]]:
        """Call a function for each cell with each seed; return the results by cell."""
        calls = [{**cell, "seed": seed} for cell in cells.values() for seed in seeds]
        found = iter(self.map(function, calls))
        return {key: [next(found) for _ in seeds] for key in cells}


def _carry_out(cell: tuple[Callable[..., Any], dict[str, Any]]) -> dict[str, Any]:
    function, arguments = cell
    began = time.perf_counter()
    result = json.loads(json.dumps(function(**arguments)))  # the same from memory as from disk
    seconds = time.perf_counter() - began
    return {"arguments": arguments, "result": result, "seconds": seconds}


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the calls with all combinations of arguments; the last one changes fastest."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def lines(
    table: pd.DataFrame,
    axes: Panels,
    *,
    only: Mapping[str, Sequence[Any]] | None = None,
    limits: Sequence[str] = (),
    across: float | None = None,
    down: float | None = None,
    from_zero: bool = False,
    plot: Callable[..., object] = plot_series,
    **look: Any,
) -> None:
    """Draw a table on one panel, as `plot_series` is passed this look.

    Rows without x or a name stay out, and so do those with other values of the columns that `only`
    names. What `by` calls one of `limits` becomes a thin line, as do values `across` and `down`.
    """
    ax, x, by = axes[0], look["x"], look.get("by", look["x"])
    table = table.dropna(subset=[x, by])
    for name, values in (only or {}).items():
        table = table[table[name].isin(values)]
    for name in limits:
        rows = table[table[by] == name]
        ax.plot(rows[x], rows[look["y"]], label=name, **REFERENCE)
    if across is not None:
        ax.axhline(across, **REFERENCE)
    if down is not None:
        ax.axvline(down, **REFERENCE)
    plot(table[~table[by].isin(limits)], ax=ax, **look)
    if from_zero:
        ax.set_ylim(0, None)


def bars(table: pd.DataFrame, axes: Panels, **look: Any) -> None:
    """Draw a table as bars on one panel, as `plot_bars` is passed this look."""
    lines(table, axes, plot=plot_bars, **look)


def panels(table: pd.DataFrame, axes: Panels, *, column: str, xlabel: str, **look: Any) -> None:
    """Draw a panel for each value of a column, which the label of the x axis names."""
    only = look.get("only", {}).get(column, table[column].dropna().unique())
    for ax, value in zip(axes, only, strict=True):
        rows = table[table[column] == value]
        lines(rows, [ax], xlabel=xlabel.format(value), **look)


def side_by_side(table: pd.DataFrame, axes: Panels, draws: Sequence[Draw]) -> None:
    """Draw a table once per panel."""
    for ax, draw in zip(axes, draws, strict=True):
        draw(table, [ax])
