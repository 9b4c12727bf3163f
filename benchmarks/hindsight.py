"""How close bound and schedule come, by set and time: medians over seeds, one thread.

`hindsight.py [--cpu] [share of the time limits] [seeds] [set ...]`; without sets all. A set is a
family, `family-n` or `family-n-load`, or the name of a trace; traces need OPTSCHED_DATA, the folder
they are in, and have one seed. Seeds begin at 3: the beam was tuned on those before, and some of
its settings were looked at on seeds 3 and 4 as well. Limits are wall time, on a quiet machine; with
`--cpu` they are CPU seconds of the process, which other work on the machine hardly changes.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from cpu_seconds import ARGUMENTS  # before optsched
from rich.console import Console
from rich.table import Table

from optsched import Instance, SolveParams, family, read_trace, solve

FIRST_SEED = 3
MEMORY = 16_492  # of the traces

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
    *((name, n, 60.0, None) for n in (16, 18) for name in ("uniform", "normal")),
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

#: Trace, first requests, seconds, whether they arrive as they did or are all there at the start.
TRACES = (
    ("azure_conv_2023", 2000, 60.0, True),
    ("azure_conv_2023", 2000, 60.0, False),
    ("azure_code_2023", 2000, 60.0, True),
    ("azure_code_2023", 2000, 60.0, False),
)


def traces() -> list[tuple[str, Instance, float]]:
    """Read what there is of the traces."""
    folder = Path(os.environ.get("OPTSCHED_DATA", ""))
    found = []
    for name, n, seconds, arriving in TRACES:
        path = folder / f"{name}.csv.gz"
        if not path.is_file():
            print(f"{name}: left out, there is no {path}", file=sys.stderr)
            continue
        instance = read_trace(path, MEMORY, limit=n)
        if not arriving:
            instance = instance.replace(arrivals=[0] * n)
        found.append((name, instance, seconds))
    return found


def main(share: float, seeds: int, chosen: set[str]) -> None:
    """Run all sets with a share of their time limits."""
    table = Table(title="hindsight interval", title_justify="left")
    names = ("set", "n", "load", "limit, s", "proven", "seconds", "median gap", "worst gap")
    for column in names:
        table.add_column(column, justify="right")
    every = range(FIRST_SEED, FIRST_SEED + seeds)
    for name, n, seconds, load in SETS:
        if not chosen or {name, f"{name}-{n}", f"{name}-{n}-{load}"} & chosen:
            instances = [family(name, n=n, seed=seed, load=load) for seed in every]
            table.add_row(*row(name, instances, seconds * share, str(load or "-")))
    if not chosen or {name for name, *_ in TRACES} & chosen:
        for name, instance, seconds in traces():
            if not chosen or name in chosen:
                arrival = "as it was" if instance.arrivals.any() else "-"
                table.add_row(*row(name, [instance], seconds * share, arrival))
    Console(width=100).print(table)


def row(name: str, instances: list[Instance], seconds: float, load: str) -> list[str]:
    """Solve the instances of a set, and say how close they came."""
    n = len(instances[0])
    results = []
    for seed, instance in enumerate(instances, FIRST_SEED):
        params = SolveParams(seed=seed)
        results.append(solve(instance, time_limit=seconds, params=params))
        last = results[-1]
        print(
            f"{name} {n} {load} seed {seed}: {last.status}, {last.objective:,.0f}, "
            f"gap {last.gap:.2%}, {last.seconds:.1f} s",
            flush=True,
        )
    gaps = [result.gap for result in results]
    return [
        name,
        f"{n:,}",
        load,
        f"{seconds:g}",
        f"{sum(result.proven_optimal for result in results)} of {len(results)}",
        f"{statistics.median(result.seconds for result in results):.1f}",
        f"{statistics.median(gaps):.2%}",
        f"{max(gaps):.2%}",
    ]


if __name__ == "__main__":
    numbers = [each for each in ARGUMENTS if each.replace(".", "").isdigit()]
    main(
        float(numbers[0]) if numbers else 1.0,
        int(numbers[1]) if len(numbers) > 1 else 5,
        {each for each in ARGUMENTS if each not in numbers},
    )
