"""Which engine a request goes to: `by-cost` and others against vLLM's rule, outputs learned.

    python benchmarks/by_cost.py [--write | --full]

vLLM's scheduler in every engine, 70B clock, Poisson arrivals. Prints changes of mean latency, its
p99, mean TTFT and its p99 in % against `vllm-dp` on the same requests: means over two disjoint
parts of a trace, or seeds of a family, and for the mean latency half their difference. A second
table has the rule by which `by-cost` pays, read off the first part, and what it changes on the
second. `--write` puts both into serving/docs/routers.md. `--full` prints them for 2 to 64 engines,
more loads, fresh counts, a large memory and power-of-d. Reads OPTSCHED_DATA.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

import optsched
from optsched.policies.priorities import WORK

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "serving/docs/routers.md"
BEGIN, END = "<!-- benchmarks/by_cost.py -->\n", "<!-- end -->\n"
DATA = Path(os.environ.get("OPTSCHED_DATA", ROOT / "../shared/data"))
CLOCK = "llama-2-70b-2xa100"
SMALL, LARGE = 16_492, 103_280  # tokens of memory
TRACES = {
    "Azure": "azure_conv_2023",
    "LMSYS": "lmsys_chat",
    "Azure code": "azure_code_2023",
    "arXiv": "arxiv_summarization",
    "LMSYS and arXiv": "mixed_2000",
}
EVERY = (*TRACES, "chat-and-summaries", "lognormal")
COMPARED = ("Azure", "LMSYS", "chat-and-summaries", "lognormal")
PARTS = (0, 1)


class Grid(NamedTuple):
    """What is measured: engines, load, age of the counts in seconds, memory, requests."""

    routers: tuple
    cells: tuple
    rule: tuple  # where it is tried
    real: tuple = ()  # cells of traces alone


WRITTEN = Grid(
    ("by-cost", "least-tokens", "jsq"),
    ((4, 0.8, 0.1, SMALL, 400), (4, 1.2, 0.1, SMALL, 400)),
    (4, 0.8, 0.1, SMALL, 400),
)
FULL = Grid(
    ("by-cost", "least-tokens", "jsq", "power-of-d"),
    (
        *((8, load, 0.1, SMALL, 1500) for load in (0.5, 0.8, 1.0, 1.2)),
        (8, 0.8, 0.0, SMALL, 1500),
        (2, 0.8, 0.1, SMALL, 400),
        (64, 0.8, 0.1, SMALL, 1500),
    ),
    (8, 0.8, 0.1, SMALL, 1000),
    ((8, 0.8, 0.1, LARGE, 2500),),
)


def drawn(workload, part, engines, load, memory, count):
    """Return requests of one part of a workload that arrive at a load of so many engines."""
    if workload in TRACES:
        found = optsched.read_trace(DATA / f"{TRACES[workload]}.csv.gz", memory)
        found = found.take(np.arange(part * count, (part + 1) * count))
    else:
        found = optsched.family(workload, n=count, seed=1 + part, memory=memory)
    work = float(WORK.keys(found, optsched.get_clock(CLOCK)).sum())  # seconds
    gaps = np.random.default_rng(part).exponential(work / load / engines / count, count)
    arrivals = np.rint(gaps.cumsum() * 1e3)
    columns = found.prompts, found.outputs, memory, arrivals
    return optsched.Instance(*columns, seconds_per_step=1e-3)


def measured(case):
    """Return mean and p99 of latency and TTFT, shape (4,)."""
    workload, part, router, (engines, load, age, memory, count) = case
    requests = drawn(workload, part, engines, load, memory, count)
    how = {"clock": CLOCK, "workers": engines, "router": f"{router}@{age}"}
    run = optsched.run(requests, "vllm", **how)
    waits = run.first_tokens - run.arrivals
    return [f(x) for x in (run.latencies, waits) for f in (np.mean, lambda y: np.quantile(y, 0.99))]


def prefill(workload, rule):
    """Return how often as long as an empty batch the mean prompt of the first part prefills."""
    engines, load, _, memory, count = rule
    clock = optsched.get_clock(CLOCK)
    prompts = drawn(workload, 0, engines, load, memory, count).prompts
    return clock.prefill_tokens * float(prompts.mean()) / clock.constant


def table_of(heads, rows):
    """Return a table in Markdown, numbers to the right."""
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_between(page, begin, table):
    """Put a table into a page, from a mark to the next end."""
    text = page.read_text(encoding="utf-8")
    before = text.index(begin) + len(begin)
    page.write_text(
        f"{text[:before]}\n{table}\n{text[text.index(END, before) :]}", encoding="utf-8"
    )


def cells(workload, grid):
    """Return the cells of a workload."""
    return *grid.cells, *(grid.real if workload in TRACES else ())


def cases(grid):
    """List all runs."""
    for workload in COMPARED:
        for cell in cells(workload, grid):
            for router in ("vllm-dp", *grid.routers):
                yield from ((workload, part, router, cell) for part in PARTS)
    for workload in EVERY:
        yield from ((workload, 1, router, grid.rule) for router in ("vllm-dp", "by-cost"))


def tables(found, grid):
    """Return both tables of what was measured."""

    def changes(workload, router, cell, parts=PARTS):
        values = np.array(
            [[found[workload, part, name, cell] for name in (router, "vllm-dp")] for part in parts]
        )
        return 100 * (values[:, 0] / values[:, 1] - 1)

    rows = []
    for workload in COMPARED:
        for cell in cells(workload, grid):
            engines, load, age, memory, count = cell
            row = [workload, f"{engines}, {load:g}, {1e3 * age:g} ms, {memory:,}, {count:,}"]
            for router in grid.routers:
                change = changes(workload, router, cell)
                half = f" ± {np.ptp(change[:, 0]) / 2:.1f}"
                row.append(written(change.mean(axis=0), half))
            rows.append(row)
    heads = ["workload", "engines, load, age, memory, requests", *(f"`{r}`" for r in grid.routers)]
    held_back = [
        [workload, f"{ratio:.1f}", written(changes(workload, "by-cost", grid.rule, (1,))[0])]
        for ratio, workload in sorted((prefill(name, grid.rule), name) for name in EVERY)
    ]
    rule = ["workload", "prefill / empty batch, first part", "`by-cost`, second part"]
    return f"{table_of(heads, rows)}\n{table_of(rule, held_back)}"


def written(change, half=""):
    """Return four changes as a cell."""
    return " / ".join((f"{change[0]:+.1f}{half}", *(f"{each:+.0f}" for each in change[1:])))


def main(write, grid):
    """Measure, print the tables, and write them."""
    listed, found = list(dict.fromkeys(cases(grid))), {}
    with ProcessPoolExecutor() as pool:
        for case, value in zip(listed, pool.map(measured, listed), strict=True):
            print(*case, np.round(value, 3).tolist(), flush=True)
            found[case] = value
    table = tables(found, grid)
    print(table)
    if write:
        write_between(PAGE, BEGIN, table)


if __name__ == "__main__":
    main("--write" in sys.argv, FULL if "--full" in sys.argv else WRITTEN)
