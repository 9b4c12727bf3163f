"""Time of reading a million requests, beside pandas.read_csv in the same run.

    python benchmarks/readers.py [rows]

Pandas only parses; `read_trace` also checks every cell, converts clocks and makes an instance.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import optsched

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = 16_492


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Give the shortest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def write_traces(folder: Path, rows: int) -> dict[str, Path]:
    """Write the same requests in every format that is timed."""
    instance = optsched.family("chat-and-summaries", n=rows)
    gaps = np.random.default_rng(0).exponential(0.05, rows)
    clock = np.round(np.cumsum(gaps), 6)
    frame = pd.DataFrame({"prompt_tokens": instance.prompts, "output_tokens": instance.outputs})
    stamps = pd.Timestamp("2023-11-16 18:15:46") + pd.to_timedelta(clock, unit="s")
    azure = pd.DataFrame(
        {
            "TIMESTAMP": stamps.strftime("%Y-%m-%d %H:%M:%S.%f0"),
            "ContextTokens": instance.prompts,
            "GeneratedTokens": instance.outputs,
        }
    )
    files = {
        "native CSV": folder / "lengths.csv",
        "native CSV, arrival_s": folder / "timed.csv",
        "native CSV, arrival_s, gzip": folder / "timed.csv.gz",
        "Azure stamps": folder / "azure.csv",
        "Mooncake JSONL": folder / "mooncake.jsonl",
    }
    frame.to_csv(files["native CSV"], index=False)
    frame.assign(arrival_s=clock).to_csv(files["native CSV, arrival_s"], index=False)
    azure.to_csv(files["Azure stamps"], index=False)
    with (
        files["native CSV, arrival_s"].open("rb") as source,
        gzip.open(files["native CSV, arrival_s, gzip"], "wb", compresslevel=6) as target,
    ):
        shutil.copyfileobj(source, target)
    with files["Mooncake JSONL"].open("w") as target:
        for prompt, output, instant in zip(
            instance.prompts.tolist(), instance.outputs.tolist(), clock.tolist(), strict=True
        ):
            target.write(
                f'{{"timestamp": {int(instant * 1000)}, "input_length": {prompt}, '
                f'"output_length": {output}, "hash_ids": [0, 1, 2, 3]}}\n'
            )
    return files


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{rows:,} rows{'read_trace':>30} s{'pandas':>10} s{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write_traces(Path(folder), rows).items():
            ours = seconds(partial(optsched.read_trace, path, MEMORY))
            dates = ["TIMESTAMP"] if name == "Azure stamps" else None
            if path.suffix == ".jsonl":
                theirs = seconds(partial(pd.read_json, path, lines=True), repeats=1)
            else:
                theirs = seconds(partial(pd.read_csv, path, parse_dates=dates))
            print(f"{name:<32}{ours:>12.2f}{theirs:>12.2f}{ours / theirs:>8.2f}")


if __name__ == "__main__":
    main()
