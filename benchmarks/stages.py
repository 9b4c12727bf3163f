"""What each stage of `solve` gains, from 5 to 100,000 requests: the gap after it, one thread.

`stages.py [--cpu] [share of the time limits] [seed] [family-n ...]`; with `--cpu` limits are CPU
seconds of the process, which other work on the machine hardly changes.
"""

from __future__ import annotations

from cpu_seconds import ARGUMENTS  # before optsched

from optsched import Optimum, SolveParams, family, solve

#: Family, requests, seconds, load (None: offline).
SETS = (
    ("uniform", 5, 5.0, None),
    ("uniform", 8, 5.0, None),
    ("uniform", 12, 10.0, None),
    ("uniform", 16, 30.0, None),
    ("uniform", 40, 10.0, None),
    ("exponential", 100, 10.0, None),
    ("exponential", 200, 10.0, None),
    ("chat-and-summaries", 100, 5.0, 1.1),
    ("chat-and-summaries", 500, 5.0, None),
    ("chat-and-summaries", 500, 10.0, 1.1),
    ("chat-and-summaries", 2000, 10.0, None),
    ("chat-and-summaries", 2000, 10.0, 1.1),
    ("chat-and-summaries", 10_000, 20.0, 1.1),
    ("chat-and-summaries", 20_000, 10.0, None),
    ("chat-and-summaries", 100_000, 10.0, None),
)


def stages(result: Optimum) -> list[str]:
    """Say after each stage when it ended and how far apart cost and bound are."""
    ends = {f"{at:7.2f}": (cost, bound) for at, cost, bound in result.history}
    said = []
    for step in result.steps:
        clock, _, text = step.partition(" s  ")
        name = text.split(":")[0]
        cost, bound = ends[clock]
        gap = "-" if cost is None else f"{max(0.0, (cost - bound) / cost):.2%}"
        left_out = " (left out)" if "left out" in text else ""
        said.append(f"{name} {gap} at {float(clock):.1f} s{left_out}")
    return said


def main(share: float, seed: int, chosen: set[str]) -> None:
    """Print a row for each set."""
    print("| set | load | limit, s | gap after each stage |\n|---|---|--:|---|")
    for name, n, seconds, load in SETS:
        if chosen and f"{name}-{n}" not in chosen:
            continue
        result = solve(
            family(name, n=n, seed=seed, load=load),
            time_limit=seconds * share,
            params=SolveParams(seed=seed),
        )
        found = "; ".join(stages(result))
        print(f"| {name} {n:,} | {load or '-'} | {seconds * share:g} | {found} |", flush=True)


if __name__ == "__main__":
    numbers = [each for each in ARGUMENTS if each.replace(".", "").isdigit()]
    main(
        float(numbers[0]) if numbers else 1.0,
        int(numbers[1]) if len(numbers) > 1 else 11,
        {each for each in ARGUMENTS if each not in numbers},
    )
