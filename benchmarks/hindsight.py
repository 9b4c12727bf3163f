"""How close bound and schedule come, by set and time: medians over seeds, one thread.

`hindsight.py [share of the time limits] [seeds] [family ...]`; without families all sets.
"""

from __future__ import annotations

import statistics
import sys

from rich.console import Console
from rich.table import Table

from optsched import family, hindsight

#: Family, requests, seconds; M = 16,492 for the first, 100 for the others.
SETS = (
    ("chat-and-summaries", 2000, 0.5),
    ("chat-and-summaries", 2000, 5.0),
    ("chat-and-summaries", 2000, 20.0),
    ("chat-and-summaries", 20_000, 60.0),
    ("uniform", 10, 20.0),
    ("normal", 10, 20.0),
    ("uniform", 12, 60.0),
    ("normal", 12, 60.0),
    ("uniform", 14, 60.0),
    ("normal", 14, 60.0),
    ("uniform", 20, 60.0),
    ("normal", 20, 60.0),
    ("uniform", 40, 60.0),
    ("normal", 40, 60.0),
    ("exponential", 50, 60.0),
    ("exponential", 100, 60.0),
)


def main(share: float, seeds: int, families: list[str]) -> None:
    """Run all sets with a share of their time limits."""
    table = Table(title="hindsight interval", title_justify="left")
    for column in ("family", "n", "limit, s", "proven", "seconds", "median gap", "worst gap"):
        table.add_column(column, justify="right")
    for name, n, seconds in SETS:
        if families and f"{name}-{n}" not in families and name not in families:
            continue
        results = [
            hindsight(family(name, n=n, seed=seed), seconds * share, seed=seed)
            for seed in range(seeds)
        ]
        gaps = [result.gap for result in results]
        table.add_row(
            name,
            f"{n:,}",
            f"{seconds * share:g}",
            f"{sum(result.proven_optimal for result in results)} of {seeds}",
            f"{statistics.median(result.seconds for result in results):.1f}",
            f"{statistics.median(gaps):.2%}",
            f"{max(gaps):.2%}",
        )
        print(f"{name} {n} {seconds * share:g} s: {statistics.median(gaps):.2%}", flush=True)
    Console(width=100).print(table)


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 1.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        sys.argv[3:],
    )
