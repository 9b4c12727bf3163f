"""What it is worth to solve every step of a cluster.

    python benchmarks/exact_steps.py [small] [paper [H ...]]

"small" compares whole runs on small clusters: imbalance of bf-io by swap over that by CP-SAT, on
the same traces. "paper" does so on 16 workers of 72 slots, where both runs share a warm-up by swap,
and prints how far swap is from the optimum of the steps that the exact run meets.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import optsched
from optsched.models import BalanceProgram, BalanceState
from optsched.simulate.cluster import BalanceRouting
from optsched.solvers.backends.base import Options
from optsched.solvers.balance import assign_balanced

SEEDS, STEPS, WARM_UP = range(5), 250, 50
GRID = ((4, 8, 0), (4, 8, 5), (4, 8, 20), (8, 8, 0), (8, 8, 5), (8, 16, 0))
PAPER = {0: (10, 2_400), 5: (3, 200), 20: (7, 200)}  # by lookahead: seeds, steps after the warm-up
SETTLED, LIMIT_S = 300, 5.0  # steps by swap at first, and seconds for the proof of a step


class Proven:
    """Swap until the cluster has settled, then the proven best assignment of every step."""

    name = "proven"

    def __init__(self, lookahead, first=SETTLED):
        self.lookahead, self.first = lookahead, first
        self.gaps, self.steps = [], 0

    def route(self, state):
        """Return the best assignment, and note by how much swap misses its value."""
        program = BalanceProgram(BalanceState(state.loads, state.free, state.sizes))
        if not state.free.any():
            return np.full(len(state.sizes), -1)
        swap = assign_balanced(program, "swap", Options(1e-9)).answer
        if state.step < self.first:
            return swap.worker
        self.steps += 1
        best = assign_balanced(program, options=Options(LIMIT_S, threads=1))
        if best.proven_optimal:
            self.gaps.append((swap.value - best.objective) / max(best.objective, 1))
        return best.answer.worker


def paper_size(lookahead):
    """Print the comparison at 16 workers of 72 slots with the requests of Table 1."""
    seeds, steps = PAPER[lookahead]
    cluster, ratios, gaps, tried, means = optsched.Cluster(16, 72), [], [], 0, []
    began = time.process_time()
    for seed in range(seeds):
        instance = optsched.family("lognormal", n=4 * (SETTLED + steps) + 2_000, seed=seed)
        rules = (Proven(lookahead, first=SETTLED + steps), Proven(lookahead))
        settings = {"cluster": cluster, "steps": SETTLED + steps, "reveal": 128}
        swap, exact = (optsched.run(instance, rule, **settings) for rule in rules)
        means.append([float(run.imbalance[SETTLED:].mean()) for run in (swap, exact)])
        ratios.append(means[-1][0] / means[-1][1])
        gaps += rules[1].gaps
        tried += rules[1].steps
    shares, both = 100 * np.array(gaps), np.mean(means, axis=0)
    print(
        f"16, 72, {lookahead}: {seeds} seeds of {steps} steps, {len(gaps)} of {tried} proven; gap "
        f"of a step: mean {shares.mean():.3f} %, p99 {np.percentile(shares, 99):.2f} %, largest "
        f"{shares.max():.2f} %, none in {(shares < 1e-9).mean():.1%}; imbalance of the run, swap "
        f"over exact: {np.exp(np.mean(np.log(ratios))):.3f} ({min(ratios):.3f} to "
        f"{max(ratios):.3f}), {both[0]:,.0f} and {both[1]:,.0f} tokens; "
        f"{time.process_time() - began:.0f} CPU s",
        flush=True,
    )


def imbalance(instance, cluster, method, lookahead):
    """Return the mean imbalance in tokens, and CPU seconds."""
    began = time.process_time()
    routing = BalanceRouting(lookahead=lookahead, method=method)
    done = optsched.run(instance, routing, cluster=cluster, steps=STEPS, reveal=2 * cluster.workers)
    seconds = time.process_time() - began
    return float(done.imbalance[WARM_UP:].mean()), seconds


def small():
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
    asked = sys.argv[1:] or ["small", "paper"]
    if "small" in asked:
        small()
    if "paper" in asked:
        for chosen in [int(part) for part in asked if part.isdecimal()] or PAPER:
            paper_size(chosen)
