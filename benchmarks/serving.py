"""What a run on a clock costs for each kind of policy.

Lengths are exponential with the means of Jaillet et al., Section 7 (41 and 86), arrivals Poisson
with 50 per second, M = 16,492, on the clock of Llama-2-70B on two A100. Every time is CPU
time: the median of several runs in this process, after one that loads the kernels; those of a
million requests are of one run.
"""

from __future__ import annotations

import resource

import numpy as np
from rich.console import Console
from rich.table import Table
from timing import seconds

from optsched import Instance, run

CLOCK = "llama-2-70b-2xa100"
POLICIES = (
    "fcfs",
    "mc-sf",
    "area",
    "sorted-f",
    "mixed",
    "vllm",
    "vllm-v0",
    "sarathi",
    "a-min",
    "alpha-greedy:0.3",
    "alpha-beta-clearing:0.1,0.1",
    "wait",
    "nested-wait",
)


def requests(count):
    rng = np.random.default_rng(1)

    def lengths(mean):
        return np.clip(np.rint(rng.exponential(mean, count)), 1, 4000).astype(np.int64)

    ticks = np.floor(np.cumsum(rng.exponential(1e6 / 50, count))).astype(np.int64)
    return Instance(lengths(41), lengths(86), 16_492, ticks, seconds_per_step=1e-6)


def main():
    console = Console()
    thousands, million = requests(10_000), requests(1_000_000)
    table = Table(title="seconds to simulate", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for column in ("n = 10,000", "n = 1,000,000", "mean latency, 10,000"):
        table.add_column(column, justify="right")
    for policy in POLICIES:
        options = {"clock": CLOCK, "intervals": "relative:0.5" if policy == "a-min" else None}
        short = seconds(lambda p=policy, o=options: run(thousands, p, **o), 3)
        long = seconds(lambda p=policy, o=options: run(million, p, **o), 1)
        latency = run(thousands, policy, **options).mean_latency
        table.add_row(policy, f"{short:.3f}", f"{long:.2f}", f"{latency:.1f} s")
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"peak memory of this process {peak:.2f} GB")


if __name__ == "__main__":
    main()
