"""What deadlines, tenants and an energy price do to BF-IO: `python benchmarks/step_goals.py`.

Lognormal requests arrive at 0.9 and 1.2 times what the cluster can serve. Three in ten have to
start within 20 steps of their arrival, the others within 400. One tenant sends half of all, two a
quarter each; the prompts of one of these are three times as long. Times are CPU milliseconds per
step, the simulation of the step included.
"""

from __future__ import annotations

import time

import numpy as np

import optsched
from optsched.simulate.cluster import BalanceRouting

SEEDS = 3
SIZES = (  # workers, slots, mean output, lookahead, steps, warm-up, methods
    (4, 16, 60, 5, 600, 150, ("swap", "cp-sat", "highs")),
    (16, 72, 300, 20, 1_500, 600, ("swap",)),
)
GOALS = {
    "plain": {},
    "deadlines": {"deadlines": True},
    "tenants": {"tenants": True},
    "energy, 10⁴ tokens/J": {"energy_price": 1e4},
    "all three": {"deadlines": True, "tenants": True, "energy_price": 1e4},
}


def trace(load, slots, output, steps, seed):
    """Draw requests with arrivals, deadlines and tenants."""
    rng = np.random.default_rng(seed)
    n = int(load * slots / output * steps)
    drawn = optsched.family("lognormal", n=n, seed=seed, output_mean=output)
    arrivals = np.sort(rng.integers(0, steps, n))
    tenants = rng.choice(3, n, p=(0.5, 0.25, 0.25))
    slack = np.where(rng.random(n) < 0.3, 20, 400)
    return optsched.Instance(
        np.where(tenants == 2, 3 * drawn.prompts, drawn.prompts),
        drawn.outputs,
        10**9,
        arrivals=arrivals,
        deadlines=arrivals + drawn.outputs + slack,
        labels=[f"{'abc'[tenant]}/{number}" for number, tenant in enumerate(tenants)],
        name=f"lognormal, load {load}",
    )


def show(load, size):
    """Print a line per policy."""
    workers, slots, output, lookahead, steps, warm_up, methods = size
    cluster = optsched.Cluster(workers, slots)
    traces = [trace(load, workers * slots, output, steps, seed) for seed in range(SEEDS)]
    policies = {"fcfs": "fcfs"} | {
        f"{name}, {method}": BalanceRouting(lookahead, method, **goals)
        for method in methods
        for name, goals in GOALS.items()
    }
    print(f"\n{workers} workers of {slots} slots, H = {lookahead}, load {load}, {SEEDS} traces")
    print("policy | imbalance | missed of due | Jain | J per 1,000 tokens | CPU ms per step")
    for name, policy in policies.items():
        rows = []
        for instance in traces:
            began = time.process_time()
            done = optsched.run(instance, policy, cluster=cluster, steps=steps)
            taken = 1e3 * (time.process_time() - began) / done.steps
            got = done.metrics(warm_up)
            tokens = got["throughput"] * got["seconds"]
            energy = 1e3 * got["energy_joule"] / tokens
            missed = 100 * got["missed"] / got["due"]
            rows.append((got["imbalance_tokens"], missed, got["jain"], energy, taken))
        mean = np.mean(rows, axis=0)
        print(
            f"{name} | {mean[0]:,.0f} | {mean[1]:.1f} % | {mean[2]:.3f} | {mean[3]:.1f} | "
            f"{mean[4]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    for chosen in SIZES:
        for times in (0.9, 1.2):
            show(times, chosen)
