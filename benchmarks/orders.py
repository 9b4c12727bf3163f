"""Which order inside vLLM: mean against p99 over workloads, loads and models, nothing told.

    python benchmarks/orders.py [COUNT] [--write]

Simulates COUNT requests (default 3,000) of each workload by vLLM's own order, the plugin's default
and its other orders, with learned outputs and a plan. Prints changes of mean latency and of p99
against vLLM's own. `--write` puts the table into serving/docs/evidence.md, and the picture beside
it. Workloads: Azure conversations and LMSYS with Poisson arrivals; Azure in bursts, as BurstGPT's
(gamma, coefficient of variation 4); prompts of arXiv, long as Mooncake's. Reads OPTSCHED_DATA.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

import optsched
from optsched.policies.priorities import WORK
from optsched.report.style import legend_above, prepare, save_figure

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "serving/docs/evidence.md", ROOT / "serving/docs/images/orders.png"
BEGIN, END = "<!-- benchmarks/orders.py -->\n", "<!-- end -->\n"
DATA = Path(os.environ.get("OPTSCHED_DATA", ROOT / "../shared/data"))
WORKLOADS = {
    "Azure": ("azure_conv_2023", 1.0),
    "LMSYS": ("lmsys_chat", 1.0),
    "Azure in bursts": ("azure_conv_2023", 4.0),
    "arXiv": ("arxiv_summarization", 1.0),
}
CLOCKS = {"llama-2-70b-2xa100": 103_280, "llama-3.1-8b-h100": 400_000}
LOADS = (0.6, 1.0, 1.5, 3.0)
WAYS = {
    "the default": "vllm:area,load+plan+learned",
    "`area` without aging": "vllm:area+plan+learned",
    "`work`": "vllm:work,load+plan+learned",
    "`work` without aging": "vllm:work+plan+learned",
    "`work`, Gittins": "vllm:work,load+gittins+plan+learned",
    "`work`, Gittins, without aging": "vllm:work+gittins+plan+learned",
}


def drawn(name, variation, memory, clock, load, count):
    """Return requests of a trace whose work on the clock arrives at a load."""
    found = optsched.read_trace(DATA / f"{name}.csv.gz", memory, limit=count)
    work = float(WORK.keys(found, clock).sum())  # seconds
    shape = variation**-2
    gaps = np.random.default_rng(1).gamma(shape, work / load / len(found) / shape, len(found))
    return optsched.Instance(
        found.prompts, found.outputs, memory, np.rint(gaps.cumsum() * 1e3), seconds_per_step=1e-3
    )


def cell(count, clock_name, name, load):
    """Return the row of a workload, and changes of mean and p99 by each way, in per cent."""
    clock, memory = optsched.get_clock(clock_name), CLOCKS[clock_name]
    instance = drawn(*WORKLOADS[name], memory, clock, load, count)

    def mean_and_p99(policy):
        latencies = optsched.run(instance, policy, clock=clock).latencies
        return np.array([latencies.mean(), np.quantile(latencies, 0.99)])

    own = mean_and_p99("vllm")
    changes = [100 * (mean_and_p99(policy) / own - 1) for policy in WAYS.values()]
    row = [f"{name}, {clock_name.split('-h100')[0].split('-2x')[0]}, {load:g}"]
    row += [f"{own[0]:.3g} / {own[1]:.3g}"]
    return row + [" / ".join(f"{each:+.0f}" for each in change) for change in changes], changes


def main(count, write):
    """Print the table, and write it and the picture."""
    rows, changes = [], {name: [] for name in WAYS}
    cells = zip(*product(CLOCKS, WORKLOADS, LOADS), strict=True)
    with ProcessPoolExecutor() as pool:
        for row, changed in pool.map(partial(cell, count), *cells):
            rows.append(row)
            print(" | ".join(row), flush=True)
            for way, change in zip(WAYS, changed, strict=True):
                changes[way].append(change)
    for label, take in (("median", np.median), ("worst", np.max)):
        spread = [take(np.array(changes[way]), axis=0) for way in WAYS]
        cells = [f"**{label}**", ""] + [" / ".join(f"{x:+.0f}" for x in each) for each in spread]
        rows.append(cells)
        print(" | ".join(cells))
    if write:
        heads = ["workload, model, load", "vLLM, s", *WAYS]
        lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(page[:before] + "\n" + table + "\n" + page[after:], encoding="utf-8")
        draw(changes)


def draw(changes):
    """Draw every run: its mean against its p99, both over vLLM's own."""
    ax = prepare(None, 5.6, 4.2)
    for number, (way, pairs) in enumerate(changes.items()):
        mean, p99 = np.array(pairs).T
        colour = f"C{number}"
        label = way.replace("`", "")
        ax.scatter(mean, p99, s=22, marker="os^Dvp"[number], color=colour, alpha=0.7, label=label)
        middle = np.median(mean), np.median(p99)
        ax.scatter(
            *middle, s=110, marker="os^Dvp"[number], color=colour, edgecolor="black", zorder=3
        )
    ax.set_yscale("symlog", linthresh=10)
    ax.axhline(0, color="0.7", zorder=0)
    ax.axvline(0, color="0.7", zorder=0)
    ax.set_xlabel("change of mean latency against vLLM's own order, %")
    ax.set_ylabel("change of p99, %")
    legend_above(ax)
    save_figure(ax, PICTURE)


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--write"]
    main(int(given[0]) if given else 3000, "--write" in sys.argv)
