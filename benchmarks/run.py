"""All ratios in one table: `python benchmarks/run.py [NAME ...] [--quick] [--json OUT] [--docs]`.

A ratio says how many times as long the alternative takes as optsched, in CPU time of one run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
import growth
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from timing import Row

BENCHMARKS = ("admission", "optima", "routing", "selection", "models", "reading")
DOCS = Path(__file__).parents[1] / "docs"
HEADER = ("task", "size", "instead", "optsched, s", "instead, s", "ratio", "range", "checked")
GROWTH_HEADER = ("task", "range", "seconds", "exponent")
LIBRARIES = ("numpy", "numba", "highspy", "ortools", "pyomo", "linopy", "scipy", "pandas")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice([*BENCHMARKS, "growth"]))
@click.option("--quick", is_flag=True, help="Small sizes, each measured once.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write all figures there.")
@click.option("--docs", is_flag=True, help="Put ratios and plot into docs/evidence.md.")
def main(names: tuple[str, ...], quick: bool, out: Path | None, docs: bool) -> None:
    """Measure optsched against what a user would write otherwise; without NAMES, everything."""
    if docs and (names or quick):
        raise click.UsageError("--docs takes everything in full: leave out names and --quick")
    rows: list[Row] = []
    curves: list[growth.Curve] = []
    setting = describe_setting()
    stopped = False
    try:
        collect(names or (*BENCHMARKS, "growth"), quick, rows, curves)
    except KeyboardInterrupt:
        stopped = True
    tables = [table for table in (ratio_table(rows), growth_table(curves)) if len(table) > 1]
    for table in tables:
        show(table)
    print(setting)
    if out is not None:
        out.write_text(json.dumps(as_json(rows, curves, setting), indent=2) + "\n")
    if stopped:
        sys.exit(130)
    if docs:
        update_docs(setting, tables[0])
        growth.draw(curves)[0].figure.savefig(
            DOCS / "images" / "growth.png", dpi=140, metadata={"Software": None}
        )


def collect(
    names: tuple[str, ...], quick: bool, rows: list[Row], curves: list[growth.Curve]
) -> None:
    """Measure and keep what is there, so that Ctrl-C loses nothing."""
    console = Console(stderr=True)
    with console.status("") as status:
        for name in names:
            status.update(name)
            if name == "growth":
                for curve in growth.curves(quick):
                    curves.append(curve)
                    status.update(f"growth: {curve.task}")
                continue
            for row in importlib.import_module(f"ratios.{name}").rows(quick):
                rows.append(row)
                status.update(f"{name}: {row.task}, {row.alternative}")


def describe_setting() -> str:
    """One sentence on the machine and what it was doing."""
    libraries = ", ".join(
        f"{name} {version(name)}" for name in LIBRARIES if importlib.util.find_spec(name)
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()}), load "
        f"{os.getloadavg()[0]:.1f} at the start, Python {platform.python_version()}, {libraries}."
    )


def number(value: float) -> str:
    """Two or three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def ratio_table(rows: list[Row]) -> list[tuple[str, ...]]:
    """Rows as text, below their header."""
    table = [HEADER]
    for row in rows:
        least = "≥ " * row.stopped
        low, high = row.ratio_range
        single = len(row.ours.cpu) == len(row.theirs.cpu) == 1
        table.append(
            (
                *(row.task, row.size, row.alternative),
                duration(row.ours.median),
                least + duration(row.theirs.median),
                least + number(row.ratio),
                "one run" if single else f"{number(low)} to {number(high)}",
                row.agreement,
            )
        )
    return table


def duration(value: float) -> str:
    """Seconds with three significant digits."""
    return f"{value:,.1f}" if value >= 10 else f"{value:#.3g}" if value >= 1e-4 else f"{value:.1e}"


def growth_table(curves: list[growth.Curve]) -> list[tuple[str, ...]]:
    """Curves as text, below their header."""
    table = [GROWTH_HEADER]
    for curve in curves:
        exponent, error, _ = curve.fit()
        (first, *_, last), seconds = curve.sizes, [duration(curve.times[at]) for at in (0, -1)]
        sizes = f"{curve.axis} {first:,} to {last:,}"
        table.append((curve.task, sizes, " to ".join(seconds), f"{exponent:.2f} ± {error:.2f}"))
    return table


def show(table: list[tuple[str, ...]]) -> None:
    """Print a table."""
    printed = Table()
    for at, name in enumerate(table[0]):
        right = name not in ("task", "size", "instead", "checked", "range")
        printed.add_column(name, justify="right" if right else "left", no_wrap=at == 0)
    for row in table[1:]:
        printed.add_row(*row)
    Console(width=160).print(printed)


def grouped(table: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Name the closest alternative of each task; the printed table and JSON have all."""
    lines: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for task, size, alternative, ours, _, ratio, _, checked in table[1:]:
        said = "" if checked.startswith("same") else f" ({checked})"
        value = float(ratio.lstrip("≥ ").replace(",", ""))
        lines.setdefault((task, size, ours), []).append((value, f"{alternative} {ratio}{said}"))
    header = ("task", "size", "optsched, s", "times as long")
    return [header, *((*line, min(found)[1]) for line, found in lines.items())]


def as_markdown(table: list[tuple[str, ...]]) -> str:
    """Write a table as Markdown."""
    header, *rows = (f"| {' | '.join(line)} |" for line in table)
    return "\n".join([header, "|---" * len(table[0]) + "|", *rows])


def as_json(rows: list[Row], curves: list[growth.Curve], setting: str) -> dict:
    """All figures, every run of them."""
    return {
        "setting": setting,
        "ratios": [asdict(row) | {"ratio": row.ratio} for row in rows],
        "growth": [
            asdict(curve) | {"exponent": curve.fit()[0], "standard_error": curve.fit()[1]}
            for curve in curves
        ],
    }


def update_docs(setting: str, ratios: list[tuple[str, ...]]) -> None:
    """Replace what stands between the markers of docs/evidence.md: of a task one size."""
    path = DOCS / "evidence.md"
    text = path.read_text()
    shown = list({row[0]: row for row in grouped(ratios)}.values())
    for name, content in {"setting": setting, "ratios": as_markdown(shown)}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + content + "\n" + end + rest.split(end)[1]
    path.write_text(text)


if __name__ == "__main__":
    main()
