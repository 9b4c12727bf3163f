"""Tables of results, as text for the terminal and as HTML for notebooks.

Bounds are rounded down and gaps up, so that what a table says is proven.
"""

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

from optsched.report.numbers import at_least, down, interval, percent, round_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from optsched.comparison import ClockComparison, ClusterComparison, StepComparison
    from optsched.experiments.regrets import Regret
    from optsched.experiments.regrets.result import Band

#: Titles of the numbers of a band of regret, in the order of `regret_cells`.
REGRET_COLUMNS = (
    "load",
    "horizon",
    "requests",
    "mean latency",
    "regret",
    "confidence",
    "ratio",
    "worst ratio",
)

#: Title, metric, scale and format of the numbers of a cluster, in the order of `cluster_cells`.
CLUSTER_COLUMNS = (
    ("imbalance, tokens", "imbalance_tokens", 1, "{:,.0f}"),
    ("imbalance, ms", "imbalance_ms", 1, "{:,.2f}"),
    ("idle", "idle_share", 1, "{:.1%}"),
    ("tokens/s", "throughput", 1, "{:,.0f}"),
    ("TPOT, ms", "tpot", 1e3, "{:,.2f}"),
    ("energy, kJ", "energy_joule", 1e-3, "{:,.1f}"),
    ("max wait", "max_wait_steps", 1, "{:,.0f}"),
    ("stuck", "stuck", 1, "{:,.0f}"),
)


def comparison_table(comparison: StepComparison) -> Table:
    """Return a row per policy, the best in bold, and one for the bound."""
    proven = comparison.bound
    preempting = any(run.preemptions for run in comparison)
    known = f"; outputs known as {comparison.intervals}" if comparison.intervals else ""
    table = _table(
        f"latency in steps; gap = (total - bound) / total; bound: {proven.method}{known}",
        show_footer=True,
    )
    table.add_column("policy", footer="proven bound", no_wrap=True)
    for title, footer in (
        ("total latency", at_least(proven.value)),
        ("gap", ""),
        ("mean", at_least(proven.value / len(comparison.instance))),
        ("p50", ""),
        ("p99", ""),
        ("makespan", ""),
        ("peak memory", ""),
        *([("preempted", "")] if preempting else []),
        ("seconds", f"{proven.seconds:.3f}"),
    ):
        table.add_column(title, footer=footer, justify="right", no_wrap=True)
    for run, seconds in zip(comparison, comparison.seconds, strict=True):
        schedule = run.schedule
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
            *([f"{run.preemptions:,}"] if preempting else []),
            f"{seconds:.3f}",
            style="bold" if run is comparison.best else None,
        )
    return table


def clock_table(comparison: ClockComparison) -> Table:
    """Return a row per policy on a clock, the best in bold."""
    unit = comparison.clock.unit
    table = _table(
        f"latency, TTFT and TPOT in {unit} on the clock {comparison.clock.name}; seconds: to "
        "simulate",
        collapse_padding=True,
    )
    rows = comparison.to_dict()["policies"]
    columns = {
        "mean": "mean_latency",
        "p50": "p50_latency",
        "p99": "p99_latency",
        "TTFT": "mean_ttft",
        "TPOT": "mean_tpot",
        f"tokens/{unit.removesuffix('s') or 's'}": "throughput",
        "peak memory": "peak_memory",
        "preempted": "preemptions",
        "unfinished": "unfinished",
        "seconds": "seconds",
    }
    shown = {
        title: key
        for title, key in columns.items()
        if key not in ("preemptions", "unfinished") or any(row[key] for row in rows)
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
    return table


def _number(value: float | None, key: str) -> str:
    if value is None:
        return "none"
    if key == "seconds":
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def cluster_cells(entry: dict[str, float | None]) -> list[tuple[float | None, str]]:
    """Return value and text of each of `CLUSTER_COLUMNS` for one policy."""
    values = [(entry[metric], scale, form) for _, metric, scale, form in CLUSTER_COLUMNS]
    return [
        (value, "-" if value is None else form.format(value * scale))
        for value, scale, form in values
    ]


def cluster_table(comparison: ClusterComparison) -> Table:
    """Return a row per policy on a cluster."""
    content = comparison.to_dict()
    count = len(content["instances"])
    traces = "" if count == 1 else f"; means over {count} traces, largest wait and stuck"
    table = _table(f"{comparison.cluster}{traces}")
    table.add_column("policy", no_wrap=True)
    for title, *_ in CLUSTER_COLUMNS:
        table.add_column(title, justify="right")
    for entry in content["policies"]:
        table.add_row(Text(entry["policy"]), *(text for _, text in cluster_cells(entry)))
    return table


def regret_cells(band: Band) -> list[tuple[float, str]]:
    """Return value and text of each of `REGRET_COLUMNS`, intervals rounded outwards."""
    return [
        (band.load, f"{band.load:g}"),
        (band.horizon, f"{band.horizon:,}"),
        (band.requests, f"{band.requests:,.0f}"),
        (band.mean_latency, f"{band.mean_latency:,.2f}"),
        (band.high, interval(band.low, band.high)),
        (band.ceiling, interval(band.floor, band.ceiling)),
        (band.ratio_high, interval(band.ratio_low, band.ratio_high)),
        (band.worst_ratio, down(band.worst_ratio)),
    ]


def regret_table(result: Regret) -> Table:
    """Return the intervals of all policies, loads and horizons."""
    bands = result.bands()
    seeds = max(band.seeds for band in bands)
    table = _table(
        "regret: mean latency minus the least possible, in steps per request, from the best "
        f"schedule known to the proven bound; mean over {seeds} instance{'s' * (seeds > 1)}; "
        f"confidence {result.confidence:.0%}",
        collapse_padding=True,
    )
    table.add_column("policy", overflow="fold", min_width=5)
    for title in REGRET_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for band in bands:
        table.add_row(Text(band.policy), *(text for _, text in regret_cells(band)))
    return table


def claims_table(result: dict[str, Any]) -> Table:
    """Return the claims of a reproduction, from its JSON: the paper's value, ours, the verdict."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("claim")
    for title in ("paper", "ours", "interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in result["rows"]:
        ends = "" if row["low"] is None else f"{row['low']:,.5g} to {row['high']:,.5g}"
        numbers = ("" if row[key] is None else f"{row[key]:,.5g}" for key in ("paper", "ours"))
        reason = row["verdict"].replace(f": {row['label']} is", ": is")
        table.add_row(Text(row["label"]), *numbers, ends, Text(reason))
    return table


def facts_table(result: Any) -> Table:
    """Return the numbers and words of a result's `to_dict()`, or of a mapping, as two columns."""
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


def _table(caption: str, **look: Any) -> Table:
    return Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", **look)


def to_text(table: RenderableType, width: int = 110) -> str:
    """Return a table as plain text, without colours or trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def to_html(table: Table) -> str:
    """Return a table as HTML, for a page with a look of its own, such as a notebook."""
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
    bold = ["; font-weight: bold" if each.style == "bold" else "" for each in table.rows]
    rows = "".join(row(cells, "td", look) for cells, look in zip(body, bold, strict=True))
    parts = ["<table>"]
    if table.caption is not None:
        caption = html.escape(_words(table.caption))
        parts.append(f'<caption style="caption-side: bottom; text-align: left">{caption}</caption>')
    if table.show_header:
        parts.append(f"<thead>{row((each.header for each in table.columns), 'th')}</thead>")
    parts.append(f"<tbody>{rows}</tbody>")
    if table.show_footer:
        parts.append(f"<tfoot>{row((each.footer for each in table.columns), 'td')}</tfoot>")
    return "".join([*parts, "</table>"])


def _words(text: object) -> str:
    return text.plain if isinstance(text, Text) else str(text)


def comparison_text(comparison: StepComparison) -> str:
    """Return a comparison in steps as plain text."""
    return to_text(comparison_table(comparison), width=150)


def clock_text(comparison: ClockComparison) -> str:
    """Return a comparison on a clock as plain text."""
    return to_text(clock_table(comparison))


def cluster_text(comparison: ClusterComparison) -> str:
    """Return a comparison on a cluster as plain text."""
    return to_text(cluster_table(comparison))


def regret_text(result: Regret) -> str:
    """Return intervals, growth and thresholds of regret as plain text."""
    lines = [
        f"{result.source}, memory {result.memory:,} tokens"
        + (" (interrupted)" if result.status != "complete" else ""),
        to_text(regret_table(result), width=130),
    ]
    lines += [f"{policy}, load {load:g}: {growth}" for policy, load, growth in result.growths()]
    lines += [str(threshold) for threshold in result.thresholds]
    return "\n".join(lines)
