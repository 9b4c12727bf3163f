"""Engines as recorded against optsched: vLLM's scheduler batch by batch, Vidur request by request.

`validation.py FOLDER` reads the recordings of a folder (their README says how they were made) and
prints the tables of serving/docs/evidence.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from optsched import Instance, run
from optsched.clock import LinearClock
from optsched.policies import EnginePolicy, VllmPolicy

CLOCKS = ("llama-2-70b-2xa100", "llama-2-70b-2xa100-hinges")
VIDUR = {"sarathi": ("chunked", 512), "vllm": ("prefill-first", 4096)}


def requests_of(table, memory, **columns):
    """Return requests whose arrivals are written in seconds, and their order by arrival."""
    order = np.argsort(table["arrival_s"].to_numpy(), kind="stable")
    table = table.iloc[order]
    ticks = np.round(table["arrival_s"].to_numpy() * 1e6).astype(np.int64)
    columns = {name: table[column].to_numpy() for name, column in columns.items()}
    instance = Instance(
        table["prompt_tokens"].to_numpy(),
        table["output_tokens"].to_numpy(),
        memory,
        ticks,
        labels=order.tolist(),
        seconds_per_step=1e-6,
        **columns,
    )
    return instance, order


def batches_of_vllm(folder):
    """Yield by workload: asynchronous, order, batches, equal ones, preemptions, worst time."""
    found = json.loads((folder / "vllm_batches.json").read_text(encoding="utf-8"))
    clock = LinearClock("recorded", *found["clock"])
    with np.load(folder / "vllm_batches.npz") as arrays:
        for number, case in enumerate(found["cases"]):
            options = {name: value for name, value in case.items() if name != "requests"}
            order_by = options.pop("policy")
            table = pd.DataFrame(case["requests"])
            usable = (case["num_gpu_blocks"] - 1) * case["block_size"]
            memory = max(usable, int((table["prompt_tokens"] + table["output_tokens"]).max()))
            instance, order = requests_of(table, memory, priorities="priority")
            policy = VllmPolicy(
                *("vllm", ""), scheduling_policy=order_by, enable_prefix_caching=False, **options
            )
            ours = run(instance, policy, clock=clock)
            rows, spans = arrays[f"rows{number}"], arrays[f"span{number}"]
            shared = min(len(rows), len(ours.statistics))
            equal = (rows[:shared] == ours.statistics[:shared]).all(axis=1)
            equal &= np.abs(spans[:shared] - ours.log.spans[:shared]).max(axis=1) < 1e-9
            apart = np.abs(ours.completions - arrays[f"last{number}"][order]).max()
            yield (
                case["async_scheduling"],
                order_by,
                max(len(rows), len(ours.statistics)),
                int(equal.sum()),
                int(rows[:, 5].sum()),
                apart,
            )


def against_vidur(folder):
    """Yield engine, clock and by how much latencies and TTFT differ, with the scatter."""
    for engine, (batching, tokens) in VIDUR.items():
        table = pd.read_csv(folder / f"vidur_{engine}_conv_requests.csv.gz")
        instance, order = requests_of(table, 6455 * 16)
        table = table.iloc[order]
        policy = EnginePolicy(engine, "", batching, 128, tokens, watermark=0.01, block_size=16)
        theirs = [(table[c] - table["arrival_s"]).to_numpy() for c in ("last_s", "first_s")]
        for clock in CLOCKS:
            ours = run(instance, policy, clock=clock)
            apart = [
                measure(mine) / measure(other) - 1
                for mine, other in zip(
                    (ours.latencies, ours.first_token_latencies), theirs, strict=True
                )
                for measure in (np.mean, np.median, lambda times: np.percentile(times, 99))
            ]
            scatter = np.abs(ours.latencies / theirs[0] - 1)
            yield engine, clock, apart, float(np.median(scatter)), float(np.percentile(scatter, 95))


def tables(folder):
    """Return both tables."""
    first = Table(title="vLLM 0.33.0, batches", title_justify="left")
    for title in ("mode", "order", "workloads", "batches", "equal", "preemptions", "largest (s)"):
        first.add_column(title, justify="right")
    frame = pd.DataFrame(
        batches_of_vllm(folder), columns=["async", "order", "all", "equal", "preempted", "apart"]
    )
    for (mode, order), group in frame.groupby(["async", "order"]):
        first.add_row(
            "asynchronous" if mode else "synchronous",
            str(order),
            str(len(group)),
            f"{group['all'].sum():,}",
            f"{group['equal'].sum():,}",
            f"{group['preempted'].sum():,}",
            f"{group['apart'].max():.0e}",
        )
    second = Table(title="Vidur, 1,000 requests", title_justify="left")
    parts = [f"{part} {what}" for what in ("latency", "TTFT") for part in ("mean", "p50", "p99")]
    for title in ("engine", "clock", *parts, "scatter p50", "scatter p95"):
        second.add_column(title, justify="right")
    for engine, clock, apart, middle, high in against_vidur(folder):
        shares = [f"{share:+.1%}" for share in apart]
        second.add_row(engine, clock, *shares, f"{middle:.1%}", f"{high:.1%}")
    return first, second


if __name__ == "__main__":
    console = Console(width=None if sys.stdout.isatty() else 200)
    for each in tables(Path(sys.argv[1])):
        console.print(each)
