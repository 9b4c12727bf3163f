"""Rolling horizons beside their fallback and mc-sf on six workloads, and how long decisions take.

    python benchmarks/rolling.py            # six workloads, then 1,000 decisions on windows of 64
    python benchmarks/rolling.py --exact    # small windows by HiGHS
    python benchmarks/rolling.py --models   # what else plans, and what the parts are worth

Ratios are to the total latency of the fallback `area`, over seeds that nothing was tuned on. With
`--cpu` budgets and times are CPU time: what a machine with nothing else to do would show.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from optsched import RollingPolicy, family, run
from optsched.rolling import driver, planners, scenarios
from optsched.search import annealing as search

SEEDS = range(1, 6)
WORKLOADS = {
    "chat-and-summaries, load 0.7": ("chat-and-summaries", 500, 0.7),
    "chat-and-summaries, load 0.9": ("chat-and-summaries", 500, 0.9),
    "chat-and-summaries, load 1.1": ("chat-and-summaries", 500, 1.1),
    "exponential, load 0.9": ("exponential", 500, 0.9),
    "uniform, load 0.9": ("uniform", 200, 0.9),
    "mixed, all at step 0": ("mixed", 200, None),
}


def compare(options: dict[str, object], names: list[str], seeds: range = SEEDS) -> None:
    """Print one line per workload."""
    for name in names:
        kind, count, load = WORKLOADS[name]
        ratios, shortest, decisions, times = [], [], np.zeros(6, dtype=int), []
        for seed in seeds:
            instance = family(kind, n=count, seed=seed, load=load)
            found = run(instance, RollingPolicy(**options))  # type: ignore[arg-type]
            area = run(instance, "area").total_latency
            ratios.append(found.schedule.total_latency / area)
            shortest.append(run(instance, "mc-sf").total_latency / area)
            counts = found.decisions.counts
            decisions += [
                *(len(found.decisions), counts.planned, counts.overruled),
                *(counts.failed, counts.late, counts.cut),
            ]
            times += counts.seconds
        print(
            f"  {name:29} rolling {np.mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            f"  mc-sf {np.mean(shortest):.3f}  decisions, planned, overruled, failed, late, cut: "
            f"{' '.join(map(str, decisions))}  median {1e3 * np.median(times):.1f} ms",
            flush=True,
        )


def decision_times() -> None:
    """Overload, so that windows are full: more than 1,000 decisions on 64 requests in all."""
    for kind, count, load in (("chat-and-summaries", 1200, 3.0), ("uniform", 700, 3.0)):
        instance = family(kind, n=count, seed=1, load=load)
        began = time.process_time()
        found = run(instance, RollingPolicy())
        busy = time.process_time() - began
        full = np.array(found.decisions.counts.requests) == 64
        times = 1e3 * np.array(found.decisions.counts.seconds)[full]
        print(
            f"  {kind}, load {load:g}: {len(times):,} decisions on 64 requests, median "
            f"{np.median(times):.1f} ms, 99 % {np.quantile(times, 0.99):.1f} ms, most "
            f"{times.max():.1f} ms; {(times > 40).sum()} above 40 ms; CPU time per decision "
            f"{1e3 * busy / len(found.decisions):.1f} ms",
            flush=True,
        )


def main() -> None:
    """Print what was asked for."""
    everything = list(WORKLOADS)
    if "--cpu" in sys.argv:
        run(family("uniform", n=50, seed=1, load=3.0), RollingPolicy())  # loads the kernels
        for module in (driver, planners, scenarios, search):
            module.stopwatch = time.thread_time  # type: ignore[attr-defined]
    if "--exact" in sys.argv:
        small = ["exponential, load 0.9", "mixed, all at step 0"]
        for window in (6, 10):
            print(f"windows of {window} by HiGHS, 10 s each")
            options = {"model": "hindsight-exact", "window": window, "budget": 10.0}
            compare(options, small, range(1, 3))
    elif "--models" in sys.argv:
        for title, options in {
            "relax-lp": {"model": "relax-lp", "budget": 0.1},
            "batch": {"model": "batch"},
            "hindsight without scenarios": {"scenarios": 0},
            "hindsight, windows of 16": {"window": 16},
            "hindsight, budget 0.1 s": {"budget": 0.1},
        }.items():
            print(title)
            compare(options, everything, range(1, 4))
    else:
        print("total latency as a share of that of area")
        compare({}, everything)
        print("decision times")
        decision_times()


if __name__ == "__main__":
    main()
