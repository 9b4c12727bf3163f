"""Orders and plans in a vLLM that computes on a GPU, with the shape of Llama-3.1-8B.

`validate_gpu.py serve FOLDER [SECONDS]` serves requests of a family, those of a seed by every
scheduler, one after the other, and starts no run when the seconds are over. Time is virtual: a
batch takes the wall time of forming, computing and taking note of it, and none passes where nothing
runs. `validate_gpu.py report FOLDER [PAGE]` needs no GPU: it holds what was measured against what
optsched predicts, on a clock from kernel times, and on one fitted to batches of other requests.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from validate_vllm import ours, write_between

import optsched
from optsched.clock import BatchContent, LinearClock
from optsched.problem.work import load_on_clock

OPTIONS = {
    "num_gpu_blocks": 2561,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "policy": "fcfs",
    "async_scheduling": False,
}
MEMORY = (OPTIONS["num_gpu_blocks"] - 1) * OPTIONS["block_size"]
KERNELS = "llama-3.1-8b-h100"  # the clock from kernel times
LOAD, SEEDS, REQUESTS, FITTED = 1.1, (1, 2, 3, 4, 5), 300, 200
#: Label, class inside vLLM (planned or not, or none), its order, and the policy.
KINDS = (
    ("vLLM", None, None, "vllm"),
    ("planned", True, None, "vllm+plan"),
    ("work", False, "work", "vllm:work"),
    ("work, planned", True, "work", "vllm:work+plan"),
)


def drawn(seed, count, clock):
    """Return requests (prompt, output, arrival, priority) whose Poisson arrivals bring the load."""
    requests = optsched.family("chat-and-summaries", n=count, seed=seed, memory=MEMORY)
    ticks = np.cumsum(np.random.default_rng(seed).exponential(1e6, count)).astype(np.int64)
    facts = requests.prompts, requests.outputs
    instance = optsched.Instance(*facts, MEMORY, ticks, seconds_per_step=1e-6)
    ticks = (ticks * (load_on_clock(instance, clock).load / LOAD)).astype(np.int64)
    columns = (*(each.tolist() for each in facts), (ticks * 1e-6).tolist())
    return [(*each, 0) for each in zip(*columns, strict=True)]


def serve(folder, seconds):
    """Serve as long as there is time; write a file per run, and the batches for a fit."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    import in_vllm  # and the real vLLM with it

    began = time.monotonic()
    engine = in_vllm.Engine(OPTIONS, MEMORY, gpu=True)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    clock = optsched.get_clock(KERNELS)

    def run(name, requests, settings=None, planned=None):
        extras = [{"expected_output": output} for _, output, *_ in requests]
        scheduler = in_vllm.make(OPTIONS, MEMORY, settings, planned)
        served = in_vllm.serve(scheduler, requests, None, depth=1, extras=extras, engine=engine)
        engine.forget(scheduler)
        np.savez_compressed(
            folder / f"{name}.npz",
            requests=requests,
            first=served.first,
            last=served.last,
            sums=served.sums,
            spans=served.spans,
            preemptions=served.preemptions,
        )
        print(name, served.spans[-1][1], time.monotonic() - began, flush=True)

    run("warm", drawn(10**6, 60, clock))
    run("fit", drawn(10**6 + 1, FITTED, clock))
    for seed in SEEDS:
        requests = drawn(seed, REQUESTS, clock)
        for at, (_, planned, order, _) in enumerate(KINDS):
            if time.monotonic() - began > seconds:
                return
            settings = {"order": order, "aging": None, "clock": KERNELS, "trusted": True}
            run(f"seed-{seed}-{at}", requests, planned if planned is None else settings, planned)


def report(folder, page):
    """Hold what was measured against predictions; write the table into a page."""
    kernels = optsched.get_clock(KERNELS)
    batches = run_of(folder, "fit")
    fit = fitted(batches)
    faster = 1 - np.diff(batches["spans"]).sum() / seconds_of(kernels, batches["sums"])
    lines = [
        f"{len(batches['sums']):,} batches of vLLM took {100 * faster:.1f} % less time than by the "
        f"clock `{KERNELS}`. One fitted to half of them has a mean error of "
        f"{100 * fit.mean_error:.1f} % on the others.",
        "",
        f"| {REQUESTS} requests | mean, s | change, % | predicted, % | p99, s | mean TTFT, s "
        "| slower, % | off, blind, % | off, % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for seed in SEEDS:
        if not (folder / f"seed-{seed}-{len(KINDS) - 1}.npz").exists():
            continue
        plain = None
        for at, (label, *_, policy) in enumerate(KINDS):
            row = row_of(run_of(folder, f"seed-{seed}-{at}"), policy, kernels, fit.clock)
            mean, p99, first, slower, blind, predicted = row
            plain = plain or (mean, predicted)
            gains = (
                percent(each / of - 1) for each, of in zip((mean, predicted), plain, strict=True)
            )
            change = " | ".join(gains) if at else "|"
            off = " | ".join(percent(each / mean - 1, 1) for each in (blind, predicted))
            lines.append(
                f"| seed {seed}: {label} | {mean:.2f} | {change} | {p99:.1f} | {first:.2f} "
                f"| {percent(slower, 1)} | {off} |"
            )
    text = "\n".join(lines)
    print(text)
    if page is not None:
        write_between(page, "validate_gpu.py", text)


def percent(share, digits=0):
    """Write a change in percent, without a zero below zero."""
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}"


def fitted(run):
    """Fit a clock to half of the batches of a run."""
    table = pd.DataFrame(run["sums"], columns=BatchContent._fields)
    seconds = np.diff(run["spans"])[:, 0]
    return LinearClock.fit(table.assign(seconds=seconds), "this GPU", hinges=())


def run_of(folder, name):
    """Read what became of a run."""
    return np.load(folder / f"{name}.npz")


def seconds_of(clock, sums):
    """Return how long batches take on a clock."""
    return sum(clock(BatchContent(*map(int, row))) for row in sums)


def row_of(run, policy, kernels, fit):
    """Return mean, p99, TTFT, how much slower batches were, and the mean predicted, blind and so.

    Blind is by kernel times alone; then by the fitted clock, slowed as the batches of the run were.
    """
    requests = [(int(p), int(o), float(a), 0) for p, o, a, _ in run["requests"]]
    arrivals = run["requests"][:, 2]
    slower = np.diff(run["spans"]).sum() / seconds_of(fit, run["sums"])
    latencies = run["last"] - arrivals
    return (
        latencies.mean(),
        np.percentile(latencies, 99),
        (run["first"] - arrivals).mean(),
        slower - 1,
        *(
            ours(OPTIONS, requests, policy, clock).mean_latency
            for clock in (kernels, fit.scaled(slower))
        ),
    )


if __name__ == "__main__":
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    more = sys.argv[3:]
    if sys.argv[1] == "serve":
        serve(where, float(more[0]) if more else 600.0)
    else:
        report(where, Path(more[0]) if more else None)
