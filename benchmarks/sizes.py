"""How many requests each model and solver takes: the table of docs/models.md.

    python benchmarks/sizes.py [--write]

Of a ladder of sizes the largest up to which three seeds are all solved to optimality, perhaps
within the solver's tolerance, in ten seconds each; the ladder ends there. Times depend on the
machine. `--write` puts the table between its marks in the page.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optsched import HindsightProgram, family, run, solve
from optsched.models import (
    BalanceProgram,
    BalanceState,
    BatchSelection,
    EventProgram,
    LatencyRelaxation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[1] / "docs/models.md"
MARKS = re.compile(r"(<!-- sizes -->\n).*?(<!-- end of sizes -->)", re.DOTALL)
LADDER = (4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100, 200, 400, 1_000, 2_000, 4_000)
SECONDS, SEEDS = 10.0, 3


@functools.cache
def requests(n: int, seed: int):
    return family("uniform", n=n, seed=seed, load=0.9)


def near(n: int, seed: int) -> HindsightProgram:
    """Return the program with the horizon of a schedule that is known."""
    instance = requests(n, seed)
    return HindsightProgram(instance).within(run(instance, "area"))


def batch(n: int, seed: int) -> BatchSelection:
    instance = requests(n, seed)
    return BatchSelection(instance.prompts, instance.outputs, 10 * instance.memory)


def step(n: int, seed: int) -> BalanceProgram:
    """Return a step of eight workers, half of whose slots are taken."""
    rng = np.random.default_rng(seed)
    alive = np.sort(rng.integers(0, 4_000, (8, 5)))[:, ::-1]
    return BalanceProgram(BalanceState(alive, [n // 16 + 1] * 8, rng.integers(10, 900, n), drift=1))


MODELS: dict[str, tuple[Callable[[int, int], object], tuple[str, ...]]] = {
    "`HindsightProgram`, safe horizon": (
        lambda *n: HindsightProgram(requests(*n)),
        ("highs", "cp-sat"),
    ),
    "the same, `within` a run of `area`": (near, ("highs", "cp-sat")),
    "`EventProgram`": (lambda *n: EventProgram(requests(*n)), ("cp-sat",)),
    "`LatencyRelaxation`": (lambda *n: LatencyRelaxation(requests(*n)), ("highs",)),
    "`BatchSelection` of any size": (batch, ("highs", "cp-sat", "dp")),
    "`BalanceProgram`, 8 workers, H = 4": (step, ("highs", "cp-sat")),
    "an `Instance`": (requests, ("auto",)),
}


def taken(make: Callable[[int, int], object], method: str) -> str:
    """Climb the ladder."""
    most = 0
    for n in LADDER:
        for seed in range(SEEDS):
            found = solve(make(n, seed), method=method, time_limit=SECONDS)
            if not (found.proven_optimal or str(found.status).startswith("optimal")):
                return f"{most:,}" if most else "fewer than 4"
        most = n
    return f"{most:,} or more"


def main() -> None:
    """Measure, print and perhaps write the table."""
    methods = ("highs", "cp-sat", "dp", "auto")
    lines = [f"| model | {' | '.join(methods)} |", "|---" + "|--:" * len(methods) + "|"]
    for name, (make, suited) in MODELS.items():
        cells = [taken(make, method) if method in suited else "" for method in methods]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    table = "".join(f"{line}\n" for line in lines)
    if "--write" in sys.argv:
        PAGE.write_text(MARKS.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
