"""Reading requests, against `pandas`.

Pandas only parses; `read_trace` also checks every cell, converts clocks and makes an instance. It
should take about as long, not less.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from timing import Row, measure

import optsched

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = 16_492
OUTPUT_COLUMNS = ("output_tokens", "GeneratedTokens", "output_length")


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
            ids = list(range(-(-prompt // 512)))
            target.write(
                f'{{"timestamp": {int(instant * 1000)}, "input_length": {prompt}, '
                f'"output_length": {output}, "hash_ids": {ids}}}\n'
            )
    return files


def rows(quick: bool) -> Iterator[Row]:
    """The same requests in every format."""
    count, repeats = (2_000, 1) if quick else (200_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write_traces(Path(folder), count).items():
            ours, instance = measure(partial(optsched.read_trace, path, MEMORY), repeats)
            if path.suffix == ".jsonl":
                theirs, frame = measure(partial(pd.read_json, path, lines=True), 1)
            else:
                dates = ["TIMESTAMP"] if name == "Azure stamps" else None
                read = partial(pd.read_csv, path, parse_dates=dates)
                theirs, frame = measure(read, repeats)
            column = next(c for c in frame if c in OUTPUT_COLUMNS)
            assert np.array_equal(frame[column], instance.outputs)
            alternative = f"pandas.{'read_json' if path.suffix == '.jsonl' else 'read_csv'}"
            yield Row(f"read {name}", f"{count:,} rows", alternative, ours, theirs, "same outputs")
