"""How close bound and schedule come, by set and time: medians over seeds, one thread.

`hindsight.py [share of the time limits] [seeds] [family ...]`; without families all sets. A set is
also chosen by `family-n`, or `family-n-load`. Seeds begin at 3: the beam was tuned on those before,
and some of its settings were looked at on seeds 3 and 4 as well. Limits are wall time: run it on a
quiet machine.
"""

from __future__ import annotations

import statistics
import sys

from rich.console import Console
from rich.table import Table

from optsched import SolveParams, family, solve

FIRST_SEED = 3

#: Family, requests, seconds, load (None: offline); M = 16,492 for chat-and-summaries, else 100.
SETS = (
    ("chat-and-summaries", 2000, 0.5, None),
    ("chat-and-summaries", 2000, 5.0, None),
    ("chat-and-summaries", 2000, 20.0, None),
    ("chat-and-summaries", 20_000, 1.0, None),
    ("chat-and-summaries", 20_000, 60.0, None),
    ("chat-and-summaries", 100_000, 60.0, None),
    ("uniform", 10, 20.0, None),
    ("normal", 10, 20.0, None),
    ("uniform", 12, 60.0, None),
    ("normal", 12, 60.0, None),
    ("uniform", 14, 60.0, None),
    ("normal", 14, 60.0, None),
    ("uniform", 20, 60.0, None),
    ("normal", 20, 60.0, None),
    ("uniform", 40, 60.0, None),
    ("normal", 40, 60.0, None),
    ("exponential", 50, 60.0, None),
    ("exponential", 100, 60.0, None),
    *(("chat-and-summaries", 500, 20.0, load) for load in (0.9, 1.1, 2.0)),
    *(("chat-and-summaries", 2000, 60.0, load) for load in (0.7, 0.9, 1.1, 2.0)),
    ("chat-and-summaries", 10_000, 60.0, 1.1),
)


def main(share: float, seeds: int, families: list[str]) -> None:
    """Run all sets with a share of their time limits."""
    table = Table(title="hindsight interval", title_justify="left")
    names = ("family", "n", "load", "limit, s", "proven", "seconds", "median gap", "worst gap")
    for column in names:
        table.add_column(column, justify="right")
    for name, n, seconds, load in SETS:
        if families and not {name, f"{name}-{n}", f"{name}-{n}-{load}"} & set(families):
            continue
        results = [
            solve(
                family(name, n=n, seed=seed, load=load),
                time_limit=seconds * share,
                params=SolveParams(seed=seed),
            )
            for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        ]
        gaps = [result.gap for result in results]
        table.add_row(
            name,
            f"{n:,}",
            str(load or "-"),
            f"{seconds * share:g}",
            f"{sum(result.proven_optimal for result in results)} of {seeds}",
            f"{statistics.median(result.seconds for result in results):.1f}",
            f"{statistics.median(gaps):.2%}",
            f"{max(gaps):.2%}",
        )
        gap = f"{statistics.median(gaps):.2%}"
        print(f"{name} {n} {load or '-'} {seconds * share:g} s: {gap}", flush=True)
    Console(width=100).print(table)


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 1.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        sys.argv[3:],
    )
