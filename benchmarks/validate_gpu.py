"""Orders and plans in a vLLM that computes on a GPU, with the shape of Llama-3.1-8B.

`validate_gpu.py serve FOLDER [SECONDS [sync]]` lets vLLM's own loop serve requests of a family as
time passes, with asynchronous scheduling or without, those of a seed by every scheduler, one after
the other; then batches of requests that are all there at once. It starts no run when the seconds
are over. `validate_gpu.py report FOLDER [PAGE]` needs no GPU: it holds what was measured against
what optsched predicts, on a clock from kernel times, and on one fitted to batches of other
requests. In the synchronous runs that are kept no time passed where nothing ran.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from offline import short_last
from validate_vllm import ours, write_between

import optsched
from optsched.clock import BatchContent, LinearClock
from optsched.problem.work import load_on_clock

MEMORY, ROOM = 40_960, 103_280  # tokens of KV cache online, and offline at most
LIMITS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "policy": "fcfs"}
#: Folder of what was measured, how batches were scheduled, and on what.
MEASURED = (
    ("h100", "sync", "Synchronous scheduling on an H100"),
    ("h200", "async", "Asynchronous scheduling on an H200"),
)
KERNELS = "llama-3.1-8b-h100"  # the clock from kernel times
LOAD, SEEDS, REQUESTS, FITTED = 1.1, (1, 2, 3, 4, 5), 300, 200
TOLD = {"aging": None, "clock": KERNELS, "trusted": True}  # every true output is forecast
#: Label, class inside vLLM (planned or not, or none), its settings, and the policy.
KINDS = (
    ("vLLM", None, None, "vllm"),
    ("planned", True, TOLD | {"order": None}, "vllm+plan"),
    ("work", False, TOLD | {"order": "work"}, "vllm:work"),
    ("work, planned", True, TOLD | {"order": "work"}, "vllm:work+plan"),
    ("by default, nothing forecast", True, {}, "vllm:area,load+plan+learned"),
)
BATCHES = ((16_496, 150), (40_960, 200), (40_960, 250), (103_280, 300), (103_280, 400))


def options_of(mode, memory=MEMORY):
    """Return the options of vLLM."""
    blocks = {"num_gpu_blocks": memory // 16 + 1, "block_size": 16}
    return LIMITS | blocks | {"async_scheduling": mode == "async"}


def drawn(seed, count, clock):
    """Return requests (prompt, output, arrival, priority) whose Poisson arrivals bring the load."""
    requests = optsched.family("chat-and-summaries", n=count, seed=seed, memory=MEMORY)
    ticks = np.cumsum(np.random.default_rng(seed).exponential(1e6, count)).astype(np.int64)
    facts = requests.prompts, requests.outputs
    instance = optsched.Instance(*facts, MEMORY, ticks, seconds_per_step=1e-6)
    ticks = (ticks * (load_on_clock(instance, clock).load / LOAD)).astype(np.int64)
    columns = (*(each.tolist() for each in facts), (ticks * 1e-6).tolist())
    return [(*each, 0) for each in zip(*columns, strict=True)]


def batch_of(seed, memory, count, *, in_order):
    """Return requests that are all there at once, in the order that ends them soon or as drawn."""
    requests = optsched.family("chat-and-summaries", n=count, seed=seed, memory=memory)
    order = short_last(requests) if in_order else range(count)
    return [(int(requests.prompts[i]), int(requests.outputs[i]), 0.0, 0) for i in order]


def serve(folder, seconds, mode="async"):
    """Serve as long as there is time; write a file per run, and the batches for a fit."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    import in_vllm  # and the real vLLM with it

    began = time.monotonic()
    engine = in_vllm.Engine(options_of(mode, ROOM), ROOM, gpu=True)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    clock = optsched.get_clock(KERNELS)

    def run(name, requests, kind, memory=MEMORY):
        if time.monotonic() - began > seconds:
            return
        _, planned, settings, _ = KINDS[kind]
        told = settings is not None and settings.get("trusted", False)
        extras = [{"expected_output": output} for _, output, *_ in requests] if told else None
        scheduler = in_vllm.make(
            options_of(mode, memory), memory, settings, planned, unlimited=not told
        )
        served = engine.live(scheduler, requests, extras)
        np.savez_compressed(
            folder / f"{name}.npz",
            requests=requests,
            first=served.first,
            last=served.last,
            sums=served.sums,
            spans=served.spans,
            preemptions=served.preemptions,
            forming_s=served.cpu_s,
        )
        print(name, served.last.max(), served.cpu_s, time.monotonic() - began, flush=True)

    def online(seed, kinds):
        for kind in kinds:
            run(f"seed-{seed}-{kind}", drawn(seed, REQUESTS, clock), kind)

    def batch(seed, kinds):
        memory, count = BATCHES[seed - 1]
        for at in kinds:  # as drawn, in order, and with a plan
            requests = batch_of(seed, memory, count, in_order=at > 0)
            run(f"batch-{seed}-{at}", requests, at // 2, memory)

    run("warm", drawn(10**6, 60, clock), 0)
    run("fit", drawn(10**6 + 1, FITTED, clock), 0)
    if mode == "async":  # what says most comes first, if the time is short
        for seed in (1, 2, 3):
            batch(seed, (0, 2) if seed % 2 else (2, 0))
        online(1, (0, 4))
        for seed in (4, 5):
            batch(seed, (0, 2) if seed % 2 else (2, 0))
        for seed in range(1, 6):
            batch(seed, (1,))
        online(2, (4, 0))
        online(1, (1, 2, 3))
        return
    for seed in SEEDS:
        online(seed, (0, 1, 2, 3))


def report(folder, page):
    """Hold what was measured against predictions; write the tables into a page."""
    texts = [online_of(folder / name, mode, title) for name, mode, title in MEASURED]
    text = "\n\n".join((*texts, batches_of(folder / "h200")))
    print(text)
    if page is not None:
        write_between(page, "validate_gpu.py", text)


def online_of(folder, mode, title):
    """Return the table of requests that arrive."""
    blindly = f"-{folder.name}" in KERNELS  # the clock from kernel times is that of this GPU
    kernels, batches = optsched.get_clock(KERNELS), run_of(folder, "fit")
    fit = fitted(batches)
    less = 1 - np.diff(batches["spans"]).sum() / seconds_of(kernels, batches["sums"])
    against = f" took {100 * less:.1f} % less time than by the clock `{KERNELS}`" if blindly else ""
    lines = [
        f"{title}: {len(batches['sums']):,} batches of vLLM{against or ' were served'}. A clock "
        f"fitted to half of them has a mean error of {100 * fit.mean_error:.1f} % on the others.",
        "",
        f"| {REQUESTS} requests | mean, s | change, % | predicted, % | p99, s "
        "| off, blind, % | off, % |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for seed in SEEDS:
        plain = None
        for kind, (label, *_, policy) in enumerate(KINDS):
            if not (folder / f"seed-{seed}-{kind}.npz").exists():
                continue
            run = run_of(folder, f"seed-{seed}-{kind}")
            row = row_of(run, policy, kernels, fit.clock, options_of(mode))
            mean, p99, blind, predicted = row
            plain = plain or (mean, predicted)
            gains = (
                percent(each / of - 1) for each, of in zip((mean, predicted), plain, strict=True)
            )
            change = " | ".join(gains) if kind else "|"
            off = " | ".join(
                percent(each / mean - 1, 1) if known else ""
                for each, known in ((blind, blindly), (predicted, True))
            )
            lines.append(f"| seed {seed}: {label} | {mean:.2f} | {change} | {p99:.1f} | {off} |")
    return "\n".join(lines)


def batches_of(folder):
    """Return the table of batches that are all there at once: the last end, and its change."""
    clock = fitted(run_of(folder, "fit")).clock
    names = ("in order", "predicted", "in order, planned", "predicted", "least")
    lines = [
        f"| memory | requests | vLLM, s | {' | '.join(f'{name}, %' for name in names)} |",
        "|--:" * (3 + len(names)) + "|",
    ]
    for seed, (memory, count) in enumerate(BATCHES, 1):
        ends, predicted = [], []
        for at in range(3):
            requests = batch_of(seed, memory, count, in_order=at > 0)
            policy = KINDS[at // 2][-1]
            predicted.append(ours(options_of("async", memory), requests, policy, clock).makespan)
            there = (folder / f"batch-{seed}-{at}.npz").exists()
            ends.append(run_of(folder, f"batch-{seed}-{at}")["last"].max() if there else None)
        cells = (
            "" if x[at] is None else percent(x[at] / x[0] - 1, 1)
            for at in (1, 2)
            for x in (ends, predicted)
        )
        longest = max(output for _, output, *_ in requests)  # each batch makes a token of it
        least = percent(longest / len(run_of(folder, f"batch-{seed}-0")["spans"]) - 1, 1)
        lines.append(f"| {memory:,} | {count} | {ends[0]:.1f} | {' | '.join(cells)} | {least} |")
    return "\n".join(lines)


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


def row_of(run, policy, kernels, fit, options):
    """Return the mean and p99 of latency, and the mean predicted, blind and so.

    Blind is by kernel times alone; then by the fitted clock, slowed as the batches of the run were.
    """
    requests = [(int(p), int(o), float(a), 0) for p, o, a, _ in run["requests"]]
    arrivals = run["requests"][:, 2]
    slower = np.diff(run["spans"]).sum() / seconds_of(fit, run["sums"])
    latencies = run["last"] - arrivals
    return (
        latencies.mean(),
        np.percentile(latencies, 99),
        *(
            ours(options, requests, policy, clock).mean_latency
            for clock in (kernels, fit.scaled(slower))
        ),
    )


if __name__ == "__main__":
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    more = sys.argv[3:]
    if sys.argv[1] == "serve":
        serve(where, *map(float, more[:1] or [600]), *more[1:])
    else:
        report(where, Path(more[0]) if more else None)
