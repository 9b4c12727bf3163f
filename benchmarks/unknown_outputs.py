"""What policies that do not know the outputs cost, beside one that does, over many workloads.

    python benchmarks/unknown_outputs.py [--seeds 5] [--clock llama-2-70b-2xa100]
    python benchmarks/unknown_outputs.py --speed

Requests of LMSYS-Chat and of Azure's conversations, where the folder OPTSCHED_DATA has them, and of
the family `chat-and-summaries`; 16,492 tokens; offline and at loads around one; intervals of four
kinds. Each number is a geometric mean of ratios of mean latencies to `area-posterior` with the
reserve of a tenth that it had before.

With `--speed`, CPU seconds of runs with 600 and with 100,000 requests.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import optsched
from optsched.policies import POLICIES

MEMORY = 16_492
LOADS = (0, 0.9, 1.0, 1.1)  # 0: all there at the start
KINDS = ("common", "classes", "relative", "column")
SECONDS_PER_STEP = 0.05
BEFORE = replace(POLICIES["area-posterior"], slack=0.1, slack_on_clock=None)
POLICIES_SHOWN = {
    "a-min": ("a-min", False),
    "area-posterior": ("area-posterior", False),
    "area-chance, learned": ("area-chance", False),
    "area-chance, history": ("area-chance", True),
    "work-chance, history": ("work-chance", True),
    "area, outputs known": ("area", None),
}


def drawn(workload: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw prompts and outputs, those that fit."""
    if workload == "chat-and-summaries":
        requests = optsched.family(workload, n=count, seed=seed, memory=MEMORY)
        return requests.prompts, requests.outputs
    frame = pd.read_csv(Path(os.environ["OPTSCHED_DATA"]) / f"{workload}.csv.gz")
    frame = frame.iloc[np.random.default_rng(seed).choice(len(frame), count, replace=False)]
    frame = frame[frame["prompt_tokens"] + frame["output_tokens"] <= MEMORY]
    return frame["prompt_tokens"].to_numpy(), frame["output_tokens"].to_numpy()


def instance(workload: str, count: int, seed: int, load: float, kind: str) -> tuple[object, str]:
    """Make requests that arrive at a load in steps, and say what is known of their outputs."""
    prompts, outputs = drawn(workload, count, seed)
    rng = np.random.default_rng([seed, 1])
    work = (prompts * outputs + outputs * (outputs + 1) / 2).sum() / MEMORY
    last = work / load if load else 0
    arrivals = np.sort(rng.uniform(0, last, len(outputs))).astype(int)
    bounds = {}
    if kind == "column":  # a predictor with a log-error of a half, and twice that on both sides
        guess = outputs * np.exp(rng.normal(0, 0.5, len(outputs)))
        bounds["output_lower"] = np.maximum(1, np.minimum(guess / np.e, outputs)).astype(int)
        bounds["output_upper"] = np.ceil(np.maximum(guess * np.e, outputs)).astype(int)
    known = {
        "common": f"common:1,{outputs.max()}",
        "classes": "classes:100",
        "relative": "relative:0.5",
        "column": "column",
    }[kind]
    made = optsched.Instance(
        prompts, outputs, MEMORY, arrivals, seconds_per_step=SECONDS_PER_STEP, **bounds
    )
    return made, known


def cell(
    workload: str, count: int, seed: int, load: float, kind: str, clock: str | None
) -> list[dict[str, object]]:
    """Run all policies on the same requests."""
    requests, known = instance(workload, count, seed, load, kind)
    past = optsched.Instance(*drawn(workload, 2_000, 10_000 + seed), MEMORY)
    timed = {} if clock is None else {"clock": clock}
    base = optsched.run(requests, BEFORE, intervals=known, seed=seed, **timed)
    rows = []
    for name, (policy, history) in POLICIES_SHOWN.items():
        if policy.startswith("work") and clock is None:
            continue
        options = {} if history is None else {"intervals": known}
        if history:
            options["beliefs"] = past
        run = optsched.run(requests, policy, seed=seed, **options, **timed)
        tail, before = (tail_latency(each) for each in (run, base))
        rows.append(
            {
                "policy": name,
                "workload": workload,
                "known": kind,
                "load": load,
                "seed": seed,
                "mean": run.total_latency / base.total_latency,
                "p99": tail / before,
                "preempted": run.preemptions / len(requests),
            }
        )
    return rows


def tail_latency(run: Any) -> float:
    """Return the 99th percentile of the latencies."""
    latencies = run.latencies if run.unit == "s" else run.schedule.latencies
    return float(np.quantile(latencies, 0.99))


def speed(workloads: list[str]) -> None:
    """Print CPU seconds of warm runs, the belief taken from a history, learned, or not used."""
    for workload in workloads:
        past = optsched.Instance(*drawn(workload, 2_000, 10_001), MEMORY)
        for count, times in ((600, 5), (100_000, 1)):
            prompts, outputs = drawn(workload, min(count, 10_000), 1)
            chosen = np.random.default_rng(1).integers(0, len(prompts), count)
            prompts, outputs = prompts[chosen], outputs[chosen]
            work = (prompts * outputs + outputs * (outputs + 1) / 2).sum() / MEMORY
            for last in (0, work):
                arrivals = np.sort(np.random.default_rng(2).uniform(0, last, count)).astype(int)
                requests = optsched.Instance(prompts, outputs, MEMORY, arrivals)
                known = f"common:1,{outputs.max()}"
                for name, policy, more in (
                    ("history", "area-chance", {"beliefs": past}),
                    ("learned", "area-chance", {}),
                    ("none", "area-posterior", {}),
                ):
                    seconds = []
                    for _ in range(times + (count == 600)):  # the first one warms up
                        began = time.process_time()
                        optsched.run(requests, policy, intervals=known, **more)
                        seconds.append(time.process_time() - began)
                    load = "arrivals" if last else "offline"
                    print(f"{workload:20} {count:7,} {load:9} {name:8} {min(seconds):8.4f} s")


def geometric(values: pd.Series) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(values).mean()))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--clock")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    workloads = {"chat-and-summaries": 1_000}
    if "OPTSCHED_DATA" in os.environ:
        workloads |= {"lmsys_chat": 1_000, "azure_conv_2023": 600}
    if options.speed:
        speed(list(workloads))
        return
    rows = [
        row
        for workload, count in workloads.items()
        for kind in KINDS
        for load in LOADS
        for seed in range(options.first, options.first + options.seeds)
        for row in cell(workload, count, seed, load, kind, options.clock)
    ]
    frame = pd.DataFrame(rows)
    frame["arriving"] = frame["load"] > 0
    frame["informative"] = frame["known"] != "common"

    for by in ("workload", "known", "load", "arriving", "informative"):
        print(frame.pivot_table("mean", "policy", by, geometric, sort=False).round(3), "\n")
    means = frame.groupby("policy", sort=False)
    table = means[["mean", "p99"]].agg(geometric)
    table["preempted"] = means["preempted"].mean()
    cells = frame.groupby(["policy", "workload", "known", "load"], sort=False)["mean"]
    table["worst cell"] = cells.agg(geometric).groupby("policy", sort=False).max()
    print(table.round(3))


if __name__ == "__main__":
    main()
