"""Where our classes gain and where they cost: a grid of workloads in the scheduler of a real vLLM.

`harmless.py [SEED ...] [WORD ...]` runs the workloads whose names hold a word, all of them without
one, and prints mean and p99 against vLLM's own scheduler, and by how much optsched's own run of the
same is off. It runs where vLLM is (`make validate`); with `simulated` as the first word it runs in
optsched alone, but for aborts. `0.32` among the words is the version whose scheduler is predicted.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from time import process_time

import numpy as np

import optsched
from optsched.policies import get_policy

CLOCK = optsched.get_clock("llama-2-70b-2xa100")
SMALL, LARGE = 16_496, 103_280  # tokens of memory
REQUESTS = 300
SEED = 1


@dataclass
class Workload:
    """Requests with their texts, and how they are served."""

    facts: list[tuple[int, int, float, int]]  # prompt, output, arrival, priority
    memory: int = SMALL
    texts: list[list[int]] | None = None
    after: dict[int, tuple[int, float]] = field(default_factory=dict)
    aborts: dict[int, float] = field(default_factory=dict)
    options: dict = field(default_factory=dict)


def traced(count=REQUESTS, name="azure_conv_2023"):
    """Return prompts and outputs of a trace, from where the seed says; or of a family."""
    folder = os.environ.get("OPTSCHED_DATA")
    if folder:
        found = optsched.read_trace(Path(folder) / f"{name}.csv.gz", 10**6, limit=SEED * count)
    else:
        found = optsched.family("chat-and-summaries", n=count, seed=SEED, memory=10**6)
    return found.prompts[-count:].tolist(), found.outputs[-count:].tolist()


def arriving(rate, count=REQUESTS):
    """Return times of arrival at a rate per second."""
    return np.random.default_rng(SEED).exponential(1 / rate, count).cumsum().tolist()


def begun_alike(heads, rate, memory=SMALL, count=REQUESTS, **options):
    """Return requests that begin with one of some heads, given by their tokens."""
    prompts, outputs = traced(count)
    which = np.random.default_rng(2).integers(0, len(heads), len(prompts)).tolist()
    facts, texts = [], []
    for index, arrival in enumerate(arriving(rate, len(prompts))):
        head = heads[which[index]]
        prompt, output = head + prompts[index], outputs[index]
        texts.append(
            [which[index] * 10_000 + place for place in range(head)]
            + [10**6 + index * 10_000 + place for place in range(prompts[index] + output)]
        )
        facts.append((prompt, output, arrival, 0))
    return Workload(facts, memory, texts, options=options)


def conversations(memory, rate, pause=30.0, count=REQUESTS):
    """Return conversations of up to eight turns, each a pause after the one before."""
    prompts, outputs = traced(count)
    rng = np.random.default_rng(3)
    facts, texts, after = [], [], {}
    begins = iter(arriving(rate, count))
    text = []
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        prompt = min(prompt, 500) if text else prompt
        goes_on = text and len(text) + prompt + output < 8000 and rng.random() < 0.8
        if goes_on:
            after[index] = (index - 1, float(rng.exponential(pause)))
        else:
            text = []
        new = [10**6 + index * 10_000 + place for place in range(prompt + output)]
        facts.append((len(text) + prompt, output, 0.0 if goes_on else next(begins), 0))
        text = text + new
        texts.append(text)
    return Workload(facts, memory, texts, after)


def plain(rate, memory=SMALL, name="azure_conv_2023", priorities=False, burst=0.0, **options):
    """Return requests that share nothing, in bursts if so many seconds pass between two."""
    prompts, outputs = traced(name=name)
    times = np.array(arriving(rate, len(prompts)))
    times = np.floor(times / burst) * burst if burst else times
    classes = np.random.default_rng(4).integers(0, 3 if priorities else 1, len(prompts))
    facts = list(zip(prompts, outputs, times.tolist(), classes.tolist(), strict=True))
    kept = [fact for fact in facts if sum(fact[:2]) < 0.9 * memory]
    return Workload(kept, memory, options=options)


def aborted(rate):
    """Return requests of which a fifth is aborted, half of them while they wait."""
    found = plain(rate)
    rng = np.random.default_rng(5)
    for index, (_, _, arrival, _) in enumerate(found.facts):
        if rng.random() < 0.2:
            found.aborts[index] = arrival + float(rng.exponential(20))
    return found


WORKLOADS = {
    "shared 0, low": lambda: begun_alike([0], 0.5),
    "shared 0, high": lambda: begun_alike([0], 0.7),
    "shared 2,000, low": lambda: begun_alike([2000], 0.5),
    "shared 2,000, high": lambda: begun_alike([2000], 0.7),
    "shared 4,000, low": lambda: begun_alike([4000], 0.4),
    "shared 4,000, high": lambda: begun_alike([4000], 0.6),
    "heads 0 to 4,000": lambda: begun_alike([0, 500, 1000, 2000, 3000, 4000], 1.0),
    "heads 0 to 4,000, large": lambda: begun_alike([0, 500, 1000, 2000, 3000, 4000], 2.5, LARGE),
    "conversations": lambda: conversations(SMALL, 0.3),
    "conversations, large": lambda: conversations(LARGE, 0.8),
    "bursts": lambda: plain(0.8, burst=120),
    "all at once, large": lambda: plain(1e6, LARGE),
    "aborts": lambda: aborted(1.0),
    "8 at once": lambda: plain(0.6, max_num_seqs=8),
    "64 at once, large": lambda: plain(2.0, LARGE, max_num_seqs=64),
    "long prompts": lambda: plain(0.2, LARGE, "arxiv_summarization"),
    "long prompts, high": lambda: plain(0.6, LARGE, "arxiv_summarization"),
    "overload": lambda: plain(1.5),
    "priorities": lambda: plain(1.0, priorities=True, policy="priority"),
    "low load, large": lambda: plain(1.0, LARGE),
    "high load, large": lambda: plain(2.5, LARGE),
}
#: The class (planned or not, none: vLLM's own), its settings, whether clients say what they expect,
#: and the policy that predicts it.
WAYS = {
    "vLLM": (None, None, False, "vllm"),
    "default, forecasts": (True, {}, True, "vllm:area,load+plan+learned"),
    "default": (True, {}, False, "vllm:area,load+plan+learned"),
    "ordered": (False, {}, False, "vllm:area,load+learned"),
}


def texts_of(workload):
    """Return the tokens of each request, all different where nothing is shared."""
    return workload.texts or [
        range(index * 10_000, index * 10_000 + prompt + output)
        for index, (prompt, output, *_) in enumerate(workload.facts)
    ]


def served(workload, way, asynchronous):
    """Serve a workload; return latencies of what was not aborted, preemptions and CPU seconds."""
    import in_vllm

    planned, settings, told, _ = way
    options = {
        "num_gpu_blocks": workload.memory // 16 + 1,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "policy": "fcfs",
        "async_scheduling": asynchronous,
    } | workload.options
    turns = [0] * len(workload.facts)
    for index, (other, _) in sorted(workload.after.items()):
        turns[index] = turns[other] + 1
    extras = [
        {"turn": turn} | ({"expected_output": fact[1]} if told else {})
        for turn, fact in zip(turns, workload.facts, strict=True)
    ]
    scheduler = in_vllm.make(
        options, workload.memory, settings, planned, unlimited=True, caching=True
    )
    found = in_vllm.serve(
        scheduler,
        workload.facts,
        CLOCK,
        depth=2 if asynchronous else 1,
        extras=extras,
        texts=[list(text) for text in texts_of(workload)],
        after=workload.after,
        aborts=workload.aborts,
    )
    done = found.last >= 0
    return (found.last - found.arrivals)[done], found.preemptions, found.cpu_s


def predicted(workload, way, asynchronous, version="0.33"):
    """Return latencies and preemptions in optsched's own run; None where it has no such run.

    It has no aborts, and no order within clients' priorities.
    """
    planned, _, told, name = way
    by_priority = workload.options.get("policy") == "priority"
    if workload.aborts or (by_priority and planned is not None):
        return None
    known, ids = {}, []
    for text in texts_of(workload):
        block, names = 0, []
        for end in range(16, len(text) + 1, 16):
            block = known.setdefault((block, tuple(text[end - 16 : end])), len(known) + 1)
            names.append(block)
        ids.append(names)
    prompts, outputs, arrivals, priorities = map(np.array, zip(*workload.facts, strict=True))
    ticks = np.maximum.accumulate(np.round(arrivals * 1e6).astype(np.int64))
    more = {}
    if workload.after:
        after = [workload.after.get(index, (-1, 0.0)) for index in range(len(prompts))]
        more["follows"] = [other for other, _ in after]
        more["pauses"] = [round(pause * 1e6) for _, pause in after]
    instance = optsched.Instance(
        *(prompts, outputs, workload.memory, ticks),
        seconds_per_step=1e-6,
        hash_ids=ids,
        hash_block=16,
        priorities=priorities if by_priority else None,
        output_estimates=outputs if told else None,
        **more,
    )
    options = dict(workload.options)
    policy = replace(
        get_policy(name),
        enable_prefix_caching=True,
        async_scheduling=asynchronous,
        scheduling_policy=options.pop("policy", "fcfs"),
        version=version,
        **options,
    )
    run = optsched.run(instance, policy, clock=CLOCK)
    return run.completions - run.arrivals, run.preemptions


def main(words, ways=WAYS, modes=(True, False)):
    """Print a line for each workload and way, and the worst ones."""
    global SEED
    simulated = words[:1] == ["simulated"]
    words = words[simulated:]
    seeds = [int(word) for word in words if word.isdigit()] or [1]
    version = "0.32" if "0.32" in words else "0.33"
    words = [word for word in words if not word.isdigit() and word != version]
    worst = {}
    for (name, make), SEED, asynchronous in product(WORKLOADS.items(), seeds, modes):
        if words and not any(word in name for word in words):
            continue
        workload, first = make(), None
        row = f"{name} | seed {SEED}, {'async' if asynchronous else 'sync'}"
        for label, way in ways.items():
            begun = process_time()
            own, cpu, off = predicted(workload, way, asynchronous, version), 0.0, ""
            if not simulated:
                latencies, preempted, cpu = served(workload, way, asynchronous)
                off = "" if own is None else f"{own[0].mean() / latencies.mean() - 1:+.2%}"
            elif own is not None:
                latencies, preempted = own
            else:
                continue
            mean, p99 = latencies.mean(), np.percentile(latencies, 99)
            first = first or (mean, p99)
            change, tail = mean / first[0] - 1, p99 / first[1] - 1
            worst[label] = max(worst.get(label, [(-1, "")]), [(change, row)])
            print(
                f"{row} | {label} | {mean:.2f} s | {change:+.1%} | {p99:.1f} s | {tail:+.1%} "
                f"| {preempted} | {off} | CPU {cpu:.2f} of {process_time() - begun:.0f} s",
                flush=True,
            )
    for label, [(change, row)] in worst.items():
        print(f"worst of {label}: {change:+.1%} | {row}")


if __name__ == "__main__":
    main(sys.argv[1:])
