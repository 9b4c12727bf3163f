"""Batches of requests that are all there at once, in vLLM: when the last one ends, by order.

`offline.py` draws requests of the first Azure conversations where there is `OPTSCHED_DATA`, else of
`chat-and-summaries`, and prints the makespan of vLLM, the change by each order and plan, and how
far the best is from the least that is proven.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from optsched import Instance, bound, family, read_trace, run

CLOCK = "llama-2-70b-2xa100"
SETTINGS = ((16_496, 300), (16_496, 1_000), (50_000, 1_000), (103_280, 1_000), (103_280, 2_000))
POLICIES = "vllm", "vllm+plan"  # of requests as drawn, then in order
LATE, LONG = 0.1, 0.3


def short_last(instance):
    """Return an order in which a batch ends soon.

    The shortest outputs, a tenth of the memory-time, come last, longest first, so that no long one
    runs alone at the end. Outputs that take much of the least time there is come first.
    """
    outputs, areas = instance.outputs, instance.areas
    by_length = np.argsort(outputs, kind="stable")
    turn = np.ones(len(outputs))
    turn[by_length[np.cumsum(areas[by_length]) <= LATE * areas.sum()]] = 2
    turn[outputs >= LONG * areas.sum() / instance.memory] = 0
    return np.lexsort((np.where(turn == 1, 0, -outputs), turn))


def drawn(memory, count, seed):
    """Draw requests that fit, without arrivals."""
    folder = os.environ.get("OPTSCHED_DATA")
    if folder:
        known = read_trace(Path(folder) / "azure_conv_2023.csv.gz", 10**6)
    else:
        known = family("chat-and-summaries", n=10_000, seed=1, memory=10**6)
    fit = np.flatnonzero(known.peaks < memory)
    chosen = np.random.default_rng(seed).choice(fit, count, replace=False)
    return Instance(known.prompts[chosen], known.outputs[chosen], memory)


def main():
    names = "vllm, s", "+plan, %", "in order, %", "both, %", "proven, s", "gap of the best, %"
    print(f"| memory | requests | {' | '.join(names)} |")
    print("|--:" * (2 + len(names)) + "|")
    for seed, (memory, count) in enumerate(SETTINGS, 1):
        plain = drawn(memory, count, seed)
        order = short_last(plain)
        sorted_ = Instance(plain.prompts[order], plain.outputs[order], memory)
        first, *others = (
            run(instance, name, clock=CLOCK).makespan
            for instance in (plain, sorted_)
            for name in POLICIES
        )
        least = bound(plain, objective="makespan", clock=CLOCK).value
        changes = " | ".join(f"{100 * (each / first - 1):+.1f}" for each in others)
        gap = 100 * (min(first, *others) / least - 1)
        row = f"{memory:,} | {count:,} | {first:,.0f} | {changes} | {least:,.0f} | {gap:.1f}"
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
