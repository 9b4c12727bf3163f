"""Tables for the terminal."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from optsched.report.data import at_least, percent, round_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from optsched.comparison.seconds import ClockComparison
    from optsched.comparison.steps import Comparison


def comparison_table(comparison: Comparison) -> Table:
    """Lay a comparison out as a table, the best policy in bold.

    Bounds are rounded down and gaps up, so that what the table says is proven.

    Parameters
    ----------
    comparison
        What to show.

    Returns
    -------
    rich.table.Table
        One row per policy and one for the bound.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> comparison_table(compare(Instance([1], [2], memory=3), ["area"])).row_count
    1
    """
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    proven = comparison.bound
    evicting = any(result.evictions for result in comparison.results)
    table.add_column("policy", footer="proven bound", no_wrap=True)
    for title, footer in (
        ("total latency", at_least(proven.value)),
        ("gap", ""),
        ("mean", at_least(proven.value / len(comparison.instance))),
        ("p50", ""),
        ("p99", ""),
        ("makespan", ""),
        ("peak memory", ""),
        *([("evictions", "")] if evicting else []),
        ("seconds", f"{proven.seconds:.3f}"),
    ):
        table.add_column(title, footer=footer, justify="right", no_wrap=True)
    for result in comparison.results:
        schedule = result.schedule
        percentiles = schedule.latency_percentiles()
        table.add_row(
            Text(schedule.policy),  # a name of the user's is not markup
            f"{schedule.total_latency:,}",
            percent(comparison.gap(schedule)),
            f"{schedule.mean_latency:,.1f}",
            f"{percentiles['p50']:,.0f}",
            f"{percentiles['p99']:,.0f}",
            f"{schedule.makespan:,}",
            f"{schedule.peak_memory:,}",
            *([f"{result.evictions:,}"] if evicting else []),
            f"{result.seconds:.3f}",
            style="bold" if schedule is comparison.best else None,
        )
    known = f"; outputs known as {comparison.intervals}" if comparison.intervals else ""
    caption = f"latency in steps; gap = (total - bound) / total; bound: {proven.method}{known}"
    table.caption = caption
    table.caption_justify = "left"
    return table


def clock_table(comparison: ClockComparison) -> Table:
    """Lay a comparison on a clock out as a table, the best policy in bold.

    Parameters
    ----------
    comparison
        What to show.

    Returns
    -------
    rich.table.Table
        One row per policy.

    Examples
    --------
    >>> from optsched import Instance, compare_on_clock
    >>> clock_table(compare_on_clock(Instance([1], [2], 3), "unit", ["area"])).row_count
    1
    """
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    unit = comparison.clock.unit
    rows = comparison.to_dict()["policies"]
    columns = {
        "mean": "mean_latency",
        "p50": "p50_latency",
        "p99": "p99_latency",
        "TTFT": "mean_ttft",
        "TPOT": "mean_tpot",
        f"tokens/{unit.removesuffix('s') or 's'}": "throughput",
        "peak memory": "peak_memory",
        "evictions": "evictions",
        "unfinished": "unfinished",
        "seconds": "seconds",
    }
    shown = {
        title: key
        for title, key in columns.items()
        if key not in ("evictions", "unfinished") or any(row[key] for row in rows)
    }
    # Long names and titles take a second line, so that no number is cut.
    table.add_column("policy", overflow="fold", min_width=10)
    for title in shown:
        table.add_column(title, justify="right", overflow="fold")
    for run, row in zip(comparison.runs, rows, strict=True):
        table.add_row(
            Text(run.policy),
            *(_number(row[key], key) for key in shown.values()),
            style="bold" if run is comparison.best else None,
        )
    table.caption = (
        f"latency, TTFT and TPOT in {unit} on the clock {comparison.clock.name}; seconds: to "
        "simulate"
    )
    table.caption_justify = "left"
    return table


def _number(value: float | None, key: str) -> str:
    if value is None:
        return "none"
    if key == "seconds":
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def facts_table(result: Any) -> Table:
    """Return the numbers and words of a result's `to_dict()`, or of a mapping, as two columns.

    What is missing, and what holds several values, is left out. A gap is rounded up, and a bound
    away from the objective, so that both remain proven.
    """
    facts = result if isinstance(result, Mapping) else result.to_dict()
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("fact")
    table.add_column("value", justify="right")
    for name, value in facts.items():
        if isinstance(value, str | Real):
            table.add_row(name.replace("_", " "), Text(_fact(name, value, facts)))
    return table


def _fact(name: str, value: Any, facts: Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = float(value)
    if name == "gap" and math.isfinite(number):
        return percent(number)
    if isinstance(value, Integral) or not math.isfinite(number):
        return f"{value:,}"
    if name == "bound":
        objective = facts.get("objective")
        above = isinstance(objective, Real) and number > objective  # of what is maximised
        return f"{round_to(number, ROUND_CEILING if above else ROUND_FLOOR):,f}"
    return f"{number:,.6g}"


def to_html(table: Table) -> str:
    """Return a table as HTML, to be shown within a page of someone else's, as notebooks are."""
    align = [
        f"text-align: {'right' if each.justify == 'right' else 'left'}" for each in table.columns
    ]

    def row(texts: Iterable[RenderableType], tag: str, look: str = "") -> str:
        cells = "".join(
            f'<{tag} style="{side}{look}">{html.escape(_words(text))}</{tag}>'
            for side, text in zip(align, texts, strict=True)
        )
        return f"<tr>{cells}</tr>"

    body = zip(*(column.cells for column in table.columns), strict=True)
    parts = ["<table>"]
    if table.caption is not None:
        caption = html.escape(_words(table.caption))
        parts.append(f'<caption style="caption-side: bottom; text-align: left">{caption}</caption>')
    if table.show_header:
        parts.append(f"<thead>{row((each.header for each in table.columns), 'th')}</thead>")
    bold = ["; font-weight: bold" if each.style == "bold" else "" for each in table.rows]
    rows = "".join(row(cells, "td", look) for cells, look in zip(body, bold, strict=True))
    parts.append(f"<tbody>{rows}</tbody>")
    if table.show_footer:
        parts.append(f"<tfoot>{row((each.footer for each in table.columns), 'td')}</tfoot>")
    return "".join([*parts, "</table>"])


def _words(text: object) -> str:
    return text.plain if isinstance(text, Text) else str(text)


def to_text(renderable: RenderableType, width: int = 110) -> str:
    """Return something of rich as plain text, without colours or trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def comparison_text(comparison: Comparison) -> str:
    """Render a comparison in steps as plain text."""
    return to_text(comparison_table(comparison), width=150)


def clock_text(comparison: ClockComparison) -> str:
    """Render a comparison on a clock as plain text."""
    return to_text(clock_table(comparison))


def claims_table(result: dict[str, Any]) -> Table:
    """Lay the claims of a reproduction out as a table: the paper's value, ours, the verdict.

    Parameters
    ----------
    result
        The JSON of a reproduction.

    Returns
    -------
    rich.table.Table
        One row per claim.

    Examples
    --------
    >>> from optsched import reproduce
    >>> claims_table(reproduce("sorted-f-example-1", quick=True).to_dict()).row_count
    3
    """
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("claim")
    for title in ("paper", "ours", "interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in result["rows"]:
        interval = "" if row["low"] is None else f"{row['low']:,.5g} to {row['high']:,.5g}"
        numbers = ("" if row[key] is None else f"{row[key]:,.5g}" for key in ("paper", "ours"))
        reason = row["verdict"].replace(f": {row['label']} is", ": is")
        table.add_row(Text(row["label"]), *numbers, interval, Text(reason))
    return table
