"""Ranks that share experts: what waiting for the slowest costs, and what routers change of it.

    python benchmarks/ranks.py [--write]

vLLM's scheduler on every rank, Qwen3-30B-A3B on RTX PRO 6000 by kernel times, counts of 0.1 s ago.
Prints how much of the time ranks wait for the slowest under vLLM's rule - about the most that
evening out the same batches can save - and, for other routers, changes of mean latency and of
output tokens per second in %. A second table has BF-IO's own setting on the same clock: full
slots, steps of decodes alone, requests bound when a slot is free or at once. `--write` puts both
into serving/docs/clocks.md. Reads OPTSCHED_DATA.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from by_cost import DATA, TRACES, table_of, write_between

import optsched
from optsched.clock import BatchContent, LinearClock
from optsched.clock.hardware import kernel_batches, shared_batches
from optsched.simulate.cluster import BalanceRouting

PAGE = Path(__file__).resolve().parents[1] / "serving/docs/clocks.md"
BEGIN = "<!-- benchmarks/ranks.py -->\n"
KERNELS = DATA / "gpus/profiles/qwen3-30b-a3b-rtxpro6000"
LAYERS, HIDDEN, LINK = 48, 2048, {"link_latency": 2e-5, "link_bandwidth": 16e9}
MEMORY, COUNT, SLOTS = 400_000, 250, 64  # tokens of a rank; requests for each
WORKLOADS = ("Azure", "LMSYS", "arXiv", "lognormal")
RANKS, RATES = (2, 8), (4.0, 1000.0)  # requests per second and rank: the last are there at once
ROUTERS = ("vllm-dp@0.1", "least-tokens@0.1", "by-cost@0.1", "round-robin")


@cache
def clock_of(ranks):
    """Return the clock of so many ranks."""
    own = LinearClock.fit(kernel_batches(KERNELS, LAYERS, expert_ranks=ranks), "ranks")
    table = shared_batches(KERNELS, LAYERS, ranks, HIDDEN, **LINK)
    part = LinearClock.fit(table, "experts", ramps=[2**power for power in range(1, 12)])
    return own.with_shared(part).clock


def drawn(workload, count, rate):
    """Return requests that arrive at so many per second."""
    if workload in TRACES:
        found = optsched.read_trace(DATA / f"{TRACES[workload]}.csv.gz", MEMORY)
    else:
        found = optsched.family(workload, n=count, seed=1, memory=MEMORY)
    found = found.take(np.arange(count) % len(found))
    arrivals = np.random.default_rng(1).exponential(1e6 / rate, count).cumsum()
    columns = found.prompts, found.outputs, MEMORY, np.rint(arrivals)
    return optsched.Instance(*columns, seconds_per_step=1e-6)


def measured(case):
    """Return the share of the time that ranks wait, mean latency and output tokens per second."""
    workload, ranks, rate, router = case
    requests, clock = drawn(workload, ranks * COUNT, ranks * rate), clock_of(ranks)
    run = optsched.run(requests, "vllm", clock=clock, workers=ranks, router=router)
    steps = {}
    for each in filter(None, run.runs):
        for (begin, end), content in zip(each.log.spans, each.log.contents.tolist(), strict=True):
            batch = BatchContent(*content)
            steps.setdefault((begin, end), []).append(clock(batch) - clock.shared(batch))
    waits = sum(max(alone) - sum(alone) / ranks for alone in steps.values())
    span = sum(end - begin for begin, end in steps)
    return waits / span, run.mean_latency, requests.outputs.sum() / run.makespan


def in_steps(case):
    """Return output tokens per second of each policy on full slots."""
    workload, dispatch = case
    clock, requests = clock_of(8), drawn(workload, 3000, 1.0).replace(arrivals=None)
    cluster = optsched.Cluster(
        8,
        SLOTS,
        overhead_s=clock.together([BatchContent(0, SLOTS, 0, 0, 0)] * 8),
        seconds_per_token=clock.resident_tokens,
    )
    policies = ["fcfs", "lpt", BalanceRouting(lookahead=20)]
    how = {"cluster": cluster, "dispatch": dispatch}
    return [
        run.metrics()["throughput"]
        for run in (optsched.run(requests, each, **how) for each in policies)
    ]


def table_of_steps():
    """Return the table of BF-IO's own setting."""
    listed, rows = list(product(WORKLOADS, ("pool", "instant"))), []
    with ProcessPoolExecutor() as pool:
        found = dict(zip(listed, pool.map(in_steps, listed), strict=True))
    for workload in WORKLOADS:
        gains = (
            f"{100 * (each / found[workload, dispatch][0] - 1):+.1f}"
            for dispatch in ("pool", "instant")
            for each in found[workload, dispatch][1:]
        )
        rows.append([workload, *gains])
    heads = ("`lpt`, late", "`bf-io`, late", "`lpt`, at once", "`bf-io`, at once")
    return table_of(["workload", *heads], rows)


def main(write):
    """Measure, print the tables, and write them."""
    cells = list(product(WORKLOADS, RANKS, RATES))
    listed = [(*cell, router) for cell in cells for router in ROUTERS]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(listed, pool.map(measured, listed), strict=True))
    rows = []
    for workload, ranks, rate in cells:
        waits, latency, tokens = found[workload, ranks, rate, ROUTERS[0]]
        row = [workload, f"{ranks}", "at once" if rate > 100 else f"{rate:g}", f"{waits:.1%}"]
        for router in ROUTERS[1:]:
            _, other, served = found[workload, ranks, rate, router]
            row.append(f"{100 * (other / latency - 1):+.1f} / {100 * (served / tokens - 1):+.1f}")
        rows.append(row)
    names = (f"`{router.partition('@')[0]}`" for router in ROUTERS[1:])
    table = table_of(["workload", "ranks", "per second and rank", "waits", *names], rows)
    table += "\n" + table_of_steps()
    print(table)
    if write:
        write_between(PAGE, BEGIN, table)


if __name__ == "__main__":
    main("--write" in sys.argv)
