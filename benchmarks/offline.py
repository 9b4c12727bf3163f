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
POLICIES = ("vllm+plan", "vllm:largest", "vllm:largest+plan", "vllm+plan+learned")


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
    shown = [f"{name.removeprefix('vllm')}, %" for name in POLICIES]
    print(f"| memory | requests | vllm, s | {' | '.join(shown)} | proven, s | gap of the best, % |")
    print("|--:" * (5 + len(POLICIES)) + "|")
    for seed, (memory, count) in enumerate(SETTINGS, 1):
        instance = drawn(memory, count, seed)
        plain, *others = (run(instance, name, clock=CLOCK).makespan for name in ("vllm", *POLICIES))
        least = bound(instance, objective="makespan", clock=CLOCK).value
        changes = " | ".join(f"{100 * (each / plain - 1):+.1f}" for each in others)
        gap = 100 * (min(plain, *others) / least - 1)
        row = f"{memory:,} | {count:,} | {plain:,.0f} | {changes} | {least:,.0f} | {gap:.1f}"
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
