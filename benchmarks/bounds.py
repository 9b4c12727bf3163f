"""The table of all bounds in docs/bounds.md: what each costs here, and how far off it is.

    python benchmarks/bounds.py [--write]

Each bound of each objective and world is computed for families of 300 and 3,000 requests, a run
before to load kernels. The gap is that to the best policy tried, so that part of it is the
policy's. `--write` puts the table between its marks in the page.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

from optsched import bound, family, run

PAGE = Path(__file__).parents[1] / "docs/bounds.md"
MARKS = re.compile(r"(<!-- bounds -->\n).*?(<!-- end of bounds -->)", re.DOTALL)
CLOCK = "llama-2-70b-2xa100"
SIZES = 300, 3_000


class Row(NamedTuple):
    """A bound: what is asked of `bound`, in which world, and whom it is held against."""

    method: str
    objective: str
    world: str
    how: dict[str, object]
    policies: tuple[str, ...] = ("area", "area+window", "mc-sf")


STEPS = "steps"
SEVERAL = {"workers": 4}
ON_CLOCK = {"clock": CLOCK}
OF_A_CLOCK = "work", "fcfs"
ROWS = [
    *(
        Row(method, "total-latency", STEPS, {})
        for method in ("closed-form", "lagrangian", "sawtooth")
    ),
    *(Row(method, "weighted-latency", STEPS, {}) for method in ("lagrangian", "sawtooth")),
    *(
        Row(method, "makespan", STEPS, {}, ("area", "fcfs"))
        for method in ("closed-form", "sawtooth")
    ),
    *(Row(method, "total-latency", "4 workers", SEVERAL) for method in ("lagrangian", "sawtooth")),
    *(
        Row(method, "total-latency", "a clock", ON_CLOCK, OF_A_CLOCK)
        for method in ("closed-form", "lagrangian", "path")
    ),
    Row("closed-form", "makespan", "a clock", ON_CLOCK, OF_A_CLOCK),
]


def requests(row: Row, count: int):
    """Return a family at load 0.9 of all memory, with weights where they count."""
    workers = 4 if row.how == SEVERAL else 1
    if row.how == ON_CLOCK:
        return family("chat", n=count, seed=1, rate=1.5, seconds_per_step=1)
    given = family("chat-and-summaries", n=count, seed=1, load=0.9 * workers)
    weights = 1 + given.prompts % 3
    return given.replace(weights=weights) if row.objective == "weighted-latency" else given


def least(row: Row, instance) -> float:
    """Return the least value of the objective that a policy reaches."""
    how = dict(row.how)
    if how == SEVERAL:
        how |= {"router": "least-tokens"}
    runs = [run(instance, policy, **how) for policy in row.policies]
    if row.objective == "weighted-latency":
        return min(float(each.latencies @ instance.weights) for each in runs)
    return min(getattr(each, row.objective.replace("-", "_")) for each in runs)


def measured(row: Row) -> list[str]:
    """Return the cells of a row."""
    cells, certified = [], False
    for count in SIZES:
        instance = requests(row, count)
        bound(requests(row, 50), row.method, row.objective, **row.how)
        began = time.process_time()
        found = bound(instance, row.method, row.objective, **row.how)
        seconds = time.process_time() - began
        certified = found.certificate is not None
        gap = 1 - found.value / least(row, instance)
        cells += [f"{100 * gap:.1f} %", f"{seconds:.2g} s"]
    how = "yes" if certified else "no"
    return [f"`{row.method}`", row.objective, row.world, how, *cells]


def main() -> None:
    """Measure, print and perhaps write the table."""
    sizes = [f"{what}, n = {count:,}" for count in SIZES for what in ("gap", "CPU")]
    head = ["bound", "objective", "world", "certificate", *sizes]
    lines = [head, ["---"] * 4 + ["--:"] * 4, *map(measured, ROWS)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(table)
    if "--write" in sys.argv:
        PAGE.write_text(MARKS.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
