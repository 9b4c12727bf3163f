"""What it is worth to solve every step of a cluster: `python benchmarks/exact_steps.py`.

Imbalance of bf-io by swap over that by CP-SAT, which proves every step, on the same traces.
"""

import time

import numpy as np

import optsched
from optsched.cluster import BalanceRouting

SEEDS, STEPS, WARM_UP = range(5), 250, 50
GRID = ((4, 8, 0), (4, 8, 5), (4, 8, 20), (8, 8, 0), (8, 8, 5), (8, 16, 0))


def imbalance(instance, cluster, method, lookahead):
    """Return the mean imbalance in tokens, and CPU seconds."""
    began = time.process_time()
    routing = BalanceRouting(lookahead=lookahead, method=method)
    done = optsched.run(instance, routing, cluster=cluster, steps=STEPS, reveal=2 * cluster.workers)
    seconds = time.process_time() - began
    idle = cluster.workers * done.max_work - done.total_work
    return float(idle[WARM_UP:].mean()), seconds


def main():
    """Print one line per size."""
    print("workers, slots, H: swap over CP-SAT, mean and range over seeds; CPU s per run")
    for workers, slots, lookahead in GRID:
        cluster, ratios, spent = optsched.Cluster(workers, slots), [], []
        for seed in SEEDS:
            instance = optsched.family(
                "lognormal", n=4 * workers * slots, seed=seed, prompt_mean=300, output_mean=60
            )
            swap, quick = imbalance(instance, cluster, "swap", lookahead)
            exact, slow = imbalance(instance, cluster, "cp-sat", lookahead)
            ratios.append(swap / exact)
            spent.append((quick, slow))
        quick, slow = np.mean(spent, axis=0)
        print(
            f"{workers}, {slots}, {lookahead}: {np.mean(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}); {quick:.2f}, {slow:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
