"""Policies and findings of 2026 beside ours: `python benchmarks/newcomers.py [PART ...] [--write]`.

Parts: `cycles` (equal requests in a saturated worker), `orders` (1-bit SVF in steps and in vLLM),
`routers` (BalanceRoute). Requests of OPTSCHED_DATA, drawn by seeds that nothing else uses.
`--write` puts the tables into papers/docs/neighbours.md, and the picture beside it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from optsched import Cluster, DecisionPolicy, Instance, Schedule, get_clock, run
from optsched.policies import get_policy
from optsched.policies.one_bit import ONE_BIT
from optsched.report.style import REFERENCE, legend_above, plot_series, prepare, save_figure
from optsched.simulate.cluster import BalanceRoute, BalanceRouting

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "papers/docs/neighbours.md", ROOT / "papers/docs/images/cycles.png"
DATA = Path(os.environ.get("OPTSCHED_DATA", ROOT / "../shared/data"))
WORKLOADS = {
    "Azure, code": "azure_code_2023",
    "Azure, conversations": "azure_conv_2023",
    "LMSYS-Chat": "lmsys_chat",
    "arXiv": "arxiv_summarization",
}
SEEDS = (7101, 7102, 7103)
MEMORY, CLOCK, CLOCK_MEMORY = 16_492, "llama-3.1-8b-h100", 400_000
OUTPUT, AT_ONCE, ROUNDS = (
    30,
    2,
    40,
)  # tokens, starts per step that fill the memory, in so many waves
PROMPTS = (1, 3, 10, 30, 100, 300)


def drawn(name: str, count: int, seed: int, memory: int) -> Instance:
    """Draw requests of a trace that are there at once."""
    frame = pd.read_csv(DATA / f"{name}.csv.gz")
    frame = frame.iloc[np.random.default_rng(seed).choice(len(frame), count, replace=False)]
    return Instance(frame["prompt_tokens"], frame["output_tokens"], memory)


def arriving(instance: Instance, load: float, of: float, seed: int, step: float = 1.0) -> Instance:
    """Let requests arrive at a load of the work that they are, in steps of so many seconds."""
    last = of / load / step
    times = np.sort(np.random.default_rng([seed, 1]).uniform(0, last, len(instance)))
    seconds = None if step == 1 else step
    return Instance(
        instance.prompts,
        instance.outputs,
        instance.memory,
        times.astype(int),
        seconds_per_step=seconds,
    )


def means(row: str, cells: dict[str, list[float]]) -> list[str]:
    """Return a row of geometric means."""
    return [row, *(f"{np.exp(np.mean(np.log(values))):.2f}" for values in cells.values())]


# Equal requests in a saturated worker


def as_vllm(state):
    """Start what fits the next step; what overflows later preempts the one that started last."""
    return state.waiting[: max(0, state.free) // (int(state.forecast.prompts[0]) + 1)]


STARTS_WHAT_FITS = DecisionPolicy("starts what fits", "", as_vllm, reads="nothing")


def saturated(prompt: int) -> Instance:
    """Return requests of which two started at every step would fill the memory exactly."""
    memory = AT_ONCE * (prompt * OUTPUT + OUTPUT * (OUTPUT + 1) // 2)
    count = ROUNDS * AT_ONCE * OUTPUT
    return Instance([prompt] * count, [OUTPUT] * count, memory)


def completed(instance: Instance, policy: object) -> np.ndarray:
    """Return how many requests complete at each step of the middle half of a run."""
    ends = policy.completions if isinstance(policy, Schedule) else run(instance, policy).completions
    per_step = np.bincount(ends)
    return per_step[len(per_step) // 4 : 3 * len(per_step) // 4]


def cycles() -> list[list[str]]:
    """Return throughput over that of the fluid limit, and draw it."""
    rows = [["prompt over output", STARTS_WHAT_FITS.name, "`fcfs`, told outputs", "two per step"]]
    course, points = None, []
    for prompt in PROMPTS:
        instance = saturated(prompt)
        even = Schedule(instance, np.arange(len(instance)) // AT_ONCE, "even pace")
        assert even.check() == []
        found = [completed(instance, each) for each in (STARTS_WHAT_FITS, "fcfs", even)]
        course = found if course is None else course
        shares = [float(each.mean()) / AT_ONCE for each in found]
        rows.append([f"{prompt / OUTPUT:.2g}", *(f"{each:.2f}" for each in shares)])
        names = ("starts what fits", "fcfs, told outputs", "two per step")
        points += [
            (prompt / OUTPUT, name, share) for name, share in zip(names, shares, strict=True)
        ]
    draw(course[0], pd.DataFrame(points, columns=["ratio", "policy", "share"]))
    return rows


def draw(course: np.ndarray, points: pd.DataFrame) -> None:
    """Draw completions by step, and throughput by the share of the prompt."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    prepare(left).bar(np.arange(len(course))[: 4 * OUTPUT], course[: 4 * OUTPUT], width=1.0)
    left.axhline(AT_ONCE, label="fluid limit", **REFERENCE)
    left.set(xlabel="step", ylabel="requests completed")
    legend_above(left)
    labels = {"xlabel": "prompt over output", "ylabel": "throughput over the fluid limit"}
    plot_series(
        points, x="ratio", y="share", by="policy", ax=prepare(right), xscale="log", **labels
    )
    right.set_ylim(0, 1.05)
    save_figure(figure, PICTURE, dpi=110)


# 1-bit SVF


def in_steps(count: int = 2000) -> list[list[str]]:
    """Return mean latencies over those of `area`, in steps at loads around one."""
    plain = ("fcfs", "mc-sf", "area", "area+window")
    policies = {each: get_policy(each) for each in plain}
    policies |= {each.name: each for each in (ONE_BIT, ONE_BIT.parsed("0.8"))}
    rows = [["in steps, load", *(f"`{each}`" for each in policies)]]
    for name, trace in WORKLOADS.items():
        for load in (0, 1.1):
            cells: dict[str, list[float]] = {each: [] for each in policies}
            for seed in SEEDS:
                instance = drawn(trace, count, seed, MEMORY)
                if load:
                    work = float(instance.areas.sum()) / MEMORY
                    instance = arriving(instance, load, work, seed)
                found = {each: run(instance, of).mean_latency for each, of in policies.items()}
                for each in policies:
                    cells[each].append(found[each] / found["area"])
            rows.append(means(f"{name}, {load or 'all at once'}", cells))
    return rows


def in_vllm(count: int = 2000) -> list[list[str]]:
    """Return mean latencies over vLLM's own, on a clock at a load of 1.5."""
    vllm = get_policy("vllm")
    policies = {
        "vLLM": vllm,
        "`mc-sf`": get_policy("vllm:mc-sf"),
        "`svf-1bit`": replace(vllm, name="vllm:svf-1bit", order=ONE_BIT),
        "`area`": get_policy("vllm:area"),
        "told nothing: `area+plan+learned`": get_policy("vllm:area+plan+learned"),
    }
    rows = [["in vLLM, load 1.5", *policies]]
    clock = get_clock(CLOCK)
    for name, trace in WORKLOADS.items():
        cells: dict[str, list[float]] = {each: [] for each in policies}
        for seed in SEEDS:
            instance = drawn(trace, count, seed, CLOCK_MEMORY)
            work = float(get_policy("work").keys(instance, clock).sum())
            instance = arriving(instance, 1.5, work, seed, step=1e-3)
            found = {
                each: run(instance, policy, clock=clock).mean_latency
                for each, policy in policies.items()
            }
            for each in policies:
                cells[each].append(found[each] / found["vLLM"])
        rows.append(means(name, cells))
    return rows


# BalanceRoute


def routers(count: int = 6000, steps: int = 1500) -> list[list[str]]:
    """Return how many times as much imbalance FCFS has, on 16 workers of 24 slots."""
    policies = {
        "`lpt`": "lpt",
        "`bf-io`, H = 0": BalanceRouting(lookahead=0, name="bf-io 0"),
        "BR-0": BalanceRoute(),
        "`bf-io`, H = 20": BalanceRouting(lookahead=20, name="bf-io 20"),
        "BR-H, H = 20, penalty G": BalanceRoute(lookahead=20, name="br-h"),
        "penalty 43": BalanceRoute(lookahead=20, penalty=43, name="br-h 43"),
    }
    rows = [["imbalance of `fcfs` over that of", *policies]]
    cluster = Cluster(workers=16, slots=24)
    slots = cluster.workers * 24
    for name, trace in WORKLOADS.items():
        cells: dict[str, list[float]] = {each: [] for each in policies}
        for seed in SEEDS:
            instance = drawn(trace, count, seed, 10**6)
            if instance.outputs.sum() < slots * steps:
                break  # too few to fill the slots all along
            options = {"cluster": cluster, "steps": steps, "seed": seed}

            def imbalance(policy, instance=instance, options=options):
                return run(instance, policy, **options).metrics(300)["imbalance_tokens"]

            own = imbalance("fcfs")
            for each, policy in policies.items():
                cells[each].append(own / imbalance(policy))
        if cells["BR-0"]:
            rows.append(means(name, cells))
    return rows


PARTS = {"cycles": [cycles], "orders": [in_steps, in_vllm], "routers": [routers]}


def main(parts: list[str], write: bool) -> None:
    """Print the tables of these parts, and write them."""
    for part in parts or PARTS:
        tables = []
        for table in PARTS[part]:
            heads, *rows = table()
            lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
            tables.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
        text = "\n".join(tables)
        print(text, flush=True)
        if write:
            begin, end = f"<!-- benchmarks/newcomers.py {part} -->\n", "<!-- end -->\n"
            page = PAGE.read_text(encoding="utf-8")
            start = page.index(begin) + len(begin)
            stop = page.index(end, start)
            PAGE.write_text(f"{page[:start]}\n{text}\n{page[stop:]}", encoding="utf-8")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--write"], "--write" in sys.argv)
