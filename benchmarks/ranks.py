"""Ranks that share experts: what waiting for the slowest costs, and what routers change of it.

    python benchmarks/ranks.py [--write]

vLLM's scheduler on every rank, Qwen3-30B-A3B on RTX PRO 6000 by kernel times, counts of 0.1 s ago.
Prints how much of the time ranks wait for the slowest under vLLM's rule - about the most that
evening out the same batches can save - and, for other routers, changes of mean latency and of
output tokens per second in %. A second table has BF-IO's own setting on the same clock: full
slots, steps of decodes alone, requests bound when a slot is free or at once. A third has a client
that holds requests back until few wait on a rank. `--write` puts all into serving/docs/clocks.md.
Reads OPTSCHED_DATA.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import numpy as np
from by_cost import DATA, TRACES, table_of, write_between

import optsched
from optsched.clock import BatchContent, LinearClock
from optsched.clock.hardware import kernel_batches, shared_batches
from optsched.policies import get_policy
from optsched.problem.work import arrival_times
from optsched.problem.workers import as_workers
from optsched.simulate.cluster import BalanceRouting
from optsched.simulate.dispatch import RoutedRun
from optsched.simulate.settings import REVEAL, RunSettings, Task
from optsched.solvers.balance_kernels import UNLIMITED, assign
from optsched_serving.engines.running import VllmWorkers

PAGE = Path(__file__).resolve().parents[1] / "serving/docs/clocks.md"
BEGIN = "<!-- benchmarks/ranks.py -->\n"
KERNELS = DATA / "gpus/profiles/qwen3-30b-a3b-rtxpro6000"
LAYERS, HIDDEN, LINK = 48, 2048, {"link_latency": 2e-5, "link_bandwidth": 16e9}
MEMORY, COUNT, SLOTS = 400_000, 250, 64  # tokens of a rank; requests for each
WORKLOADS = ("Azure", "LMSYS", "arXiv", "lognormal")
RANKS, RATES = (2, 8), (4.0, 1000.0)  # requests per second and rank: the last are there at once
ROUTERS = ("vllm-dp@0.1", "least-tokens@0.1", "by-cost@0.1", "round-robin")
HEADS = ("workload", "ranks", "per second and rank")
WAITING, AGES = (2, 4, 8), (0.0, 0.1)  # on a rank at most; of its counts, in seconds


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
    """Return the share of the time that ranks wait, mean latency, output tokens/s and TTFT p99."""
    (workload, ranks, rate), router = case
    requests, clock = drawn(workload, ranks * COUNT, ranks * rate), clock_of(ranks)
    if isinstance(router, str):
        run = optsched.run(requests, "vllm", clock=clock, workers=ranks, router=router)
    else:
        run = run_late(requests, get_policy("vllm"), clock, ranks, *router)
    steps = {}
    for each in filter(None, run.runs):
        for (begin, end), content in zip(each.log.spans, each.log.contents.tolist(), strict=True):
            batch = BatchContent(*content)
            steps.setdefault((begin, end), []).append(clock(batch) - clock.shared(batch))
    waits = sum(max(alone) - sum(alone) / ranks for alone in steps.values())
    span = sum(end - begin for begin, end in steps)
    first = np.quantile(run.first_tokens - run.arrivals, 0.99)
    return waits / span, run.mean_latency, requests.outputs.sum() / run.makespan, first


def oldest(waiting, running, _, room, prompts):
    """Send the oldest, each where fewest wait, and of these where fewest run."""
    waiting, chosen = waiting.copy(), np.full(len(prompts), -1)
    for at in range(min(len(prompts), room.sum())):
        chosen[at] = np.lexsort((running, waiting))[0]
        waiting[chosen[at]] += 1
    return chosen


def balanced(_, __, loads, room, prompts):
    """Send where loads differ least, by BF-IO's program of one step."""
    none, limits = np.zeros_like(prompts), np.full_like(room, UNLIMITED)
    return assign(loads[:, None], room, prompts, none[:1], np.ones_like(room), none, limits, 100)


RULES = {"`fcfs`": oldest, "`bf-io`": balanced}


class LateRanks(VllmWorkers):
    """Ranks behind a client that holds requests back until few wait on a rank."""

    def bind(self, most, age, rule):
        """Send requests before each step while fewer than `most` wait; return where each went.

        Ranks report every `age` seconds from the first arrival on, or before each step for 0;
        between two reports the client adds what it sends.
        """
        prompts, arrivals = self._instance.prompts, arrival_times(self._instance, self._task.clock)
        placement, every = np.full(len(prompts), -1), np.arange(len(self._engines))
        due = self._at = arrivals[0]
        while (placement < 0).any():
            now = self._at
            if due <= now:
                seen = now
                while age and due <= now:
                    seen, due = due, due + age
                waiting, running = self.look(seen, every)[:, :2].astype(np.int64).T
                progress = self._engines[0].progress  # of all
                tokens = prompts + progress.made + progress.in_flight
                there = zip(self._requests, self._counts, strict=True)
                loads = np.array([tokens[here[:count]].sum() for here, count in there])
            held = np.flatnonzero((placement < 0) & (arrivals <= now))[:REVEAL]
            room = np.maximum(most - waiting, 0)
            chosen = RULES[rule](waiting, running, loads, room, prompts[held])
            for request, rank in zip(held[chosen >= 0], chosen[chosen >= 0], strict=True):
                self._turns[request] = (placement >= 0).sum()  # a rank serves in order of sending
                self.place(rank, request, now)
                placement[request] = rank
                waiting[rank] += 1
                loads[rank] += prompts[request]
            if not self._take_step():
                self._at = min([*arrivals[arrivals > now][:1], due if age else np.inf])
        return placement

    @cached_property
    def _turns(self):
        return np.arange(len(self._instance))

    def _queue(self, index):
        return super()._queue(index)._replace(turns=self._turns)


def run_late(requests, policy, clock, ranks, *how):
    """Run ranks behind a client that binds late."""
    task = Task(requests, policy, RunSettings(clock=clock, workers=ranks))
    workers = as_workers(ranks, requests)
    with LateRanks(task, workers) as there:
        placement = there.bind(*how)
        runs = tuple(there.finish(placement))
    return RoutedRun(requests, workers, "late", policy.name, placement, runs, clock)


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


def named(workload, ranks, rate):
    """Return the first columns of a cell."""
    return [workload, f"{ranks}", "at once" if rate > 100 else f"{rate:g}"]


def table_of_late(found, cells):
    """Return the table of clients that bind late, with the W of the most tokens per second."""
    rows, hows = [], list(product(AGES, RULES))
    for cell in cells:
        row = named(*cell)
        for age, rule in hows:
            of = {most: np.array(found[cell, (most, age, rule)]) for most in WAITING}
            best = max(WAITING, key=lambda most, of=of: of[most][2])
            change = 100 * (of[best] / found[cell, f"vllm-dp@{age}"] - 1)[1:]
            row.append(f"{best}: {' / '.join(f'{each:+.1f}' for each in change)}")
        rows.append(row)
    return table_of([*HEADS, *(f"{rule}, {1e3 * age:g} ms" for age, rule in hows)], rows)


def main(write):
    """Measure, print the tables, and write them."""
    cells = list(product(WORKLOADS, RANKS, RATES))
    routers = *ROUTERS, "vllm-dp@0.0", *product(WAITING, AGES, RULES)
    listed = list(product(cells, routers))
    with ProcessPoolExecutor() as pool:
        found = dict(zip(listed, pool.map(measured, listed), strict=True))
    rows = []
    for cell in cells:
        waits, latency, tokens, _ = found[cell, ROUTERS[0]]
        row = [*named(*cell), f"{waits:.1%}"]
        for router in ROUTERS[1:]:
            _, other, served, _ = found[cell, router]
            row.append(f"{100 * (other / latency - 1):+.1f} / {100 * (served / tokens - 1):+.1f}")
        rows.append(row)
    names = (f"`{router.partition('@')[0]}`" for router in ROUTERS[1:])
    table = table_of([*HEADS, "waits", *names], rows)
    table += f"\n{table_of_steps()}\n{table_of_late(found, cells)}"
    print(table)
    if write:
        write_between(PAGE, BEGIN, table)


if __name__ == "__main__":
    main("--write" in sys.argv)
