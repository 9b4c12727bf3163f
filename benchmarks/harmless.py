"""Where our classes gain and where they cost: a grid of workloads in the scheduler of a real vLLM.

`harmless.py [WORD ...]` runs the workloads whose names hold a word, all of them without one, and
prints mean and p99 against vLLM's own scheduler. It runs where vLLM is (`make validate`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time

import in_vllm
import numpy as np

import optsched
from optsched.policies import get_policy

CLOCK = optsched.get_clock("llama-2-70b-2xa100")
SMALL, LARGE = 16_496, 103_280  # tokens of memory
REQUESTS = 300


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
    """Return prompts and outputs of a trace; where there is none, of a family."""
    folder = os.environ.get("OPTSCHED_DATA")
    if folder:
        found = optsched.read_trace(Path(folder) / f"{name}.csv.gz", 10**6, limit=count)
    else:
        found = optsched.family("chat-and-summaries", n=count, seed=1, memory=10**6)
    return found.prompts.tolist(), found.outputs.tolist()


def arriving(rate, count=REQUESTS, seed=1):
    """Return times of arrival at a rate per second."""
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()


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
    "priorities": lambda: plain(1.0, priorities=True, policy="priority"),
    "low load, large": lambda: plain(1.0, LARGE),
    "high load, large": lambda: plain(2.5, LARGE),
}
#: The class (planned or not, none: vLLM's own), its settings, the error of forecasts (NaN: none).
WAYS = {
    "vLLM": (None, None, np.nan),
    "default": (True, {}, 0.0),
    "default, no forecasts": (True, {}, np.nan),
}


def served(workload, way, asynchronous):
    """Serve a workload; return latencies of what was not aborted, preemptions and CPU seconds."""
    planned, settings, error = way
    options = {
        "num_gpu_blocks": workload.memory // 16 + 1,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "policy": "fcfs",
        "async_scheduling": asynchronous,
    } | workload.options
    outputs = np.array([fact[1] for fact in workload.facts])
    extras = None
    if planned is not None and not np.isnan(error):
        errors = np.random.default_rng(1).normal(0, error, len(outputs))
        expected = np.clip(outputs * np.exp(errors), 1, None)
        extras = [{"expected_output": float(value)} for value in expected]
    longest = max(fact[0] + fact[1] for fact in workload.facts) + 64
    scheduler = in_vllm.make(
        options, longest, settings, planned, unlimited=bool(error), caching=True
    )
    texts = workload.texts
    if texts is None:
        texts = [
            [index * 10_000 + place for place in range(fact[0] + fact[1])]
            for index, fact in enumerate(workload.facts)
        ]
    found = in_vllm.serve(
        scheduler,
        workload.facts,
        CLOCK,
        depth=2 if asynchronous else 1,
        extras=extras,
        texts=texts,
        after=workload.after,
        aborts=workload.aborts,
    )
    done = found.last >= 0
    return (found.last - found.arrivals)[done], found.preemptions, found.cpu_s


def predicted(workload, asynchronous):
    """Return the mean latency of the default in optsched's own run; None where it has no such run.

    There are neither closed loops nor aborts in it.
    """
    if workload.after or workload.aborts or workload.options.get("policy") == "priority":
        return None
    known, ids = {}, []
    for index, (prompt, output, *_) in enumerate(workload.facts):
        text = workload.texts[index] if workload.texts else range(index * 10_000, 10**9)
        block, names = 0, []
        for end in range(16, prompt + output + 1, 16):
            block = known.setdefault((block, tuple(text[end - 16 : end])), len(known) + 1)
            names.append(block)
        ids.append(names)
    prompts, outputs, arrivals, _ = (
        np.array(column) for column in zip(*workload.facts, strict=True)
    )
    instance = optsched.Instance(
        prompts,
        outputs,
        workload.memory,
        np.round(arrivals * 1e6).astype(np.int64),
        seconds_per_step=1e-6,
        hash_ids=ids,
        hash_block=16,
    )
    options = {name: workload.options[name] for name in workload.options}
    policy = replace(
        get_policy("vllm:area,80+plan"),
        enable_prefix_caching=True,
        async_scheduling=asynchronous,
        **options,
    )
    return optsched.run(instance, policy, clock=CLOCK).mean_latency


def main(words, ways=WAYS, modes=(True, False)):
    """Print a line for each workload and way."""
    for name, make in WORKLOADS.items():
        if words and not any(word in name for word in words):
            continue
        for asynchronous in modes:
            first = None
            for label, way in ways.items():
                begun = process_time()
                latencies, preempted, cpu = served(make(), way, asynchronous)
                mean, p99 = latencies.mean(), np.percentile(latencies, 99)
                first = first or (mean, p99)
                own = predicted(make(), asynchronous) if label == "default" else None
                print(
                    f"{name} | {'async' if asynchronous else 'sync'} | {label} | {mean:.2f} s "
                    f"| {mean / first[0] - 1:+.1%} | {p99:.1f} s | {p99 / first[1] - 1:+.1%} "
                    f"| {preempted} | {'' if own is None else f'{own / mean - 1:+.2%}'} "
                    f"| CPU {cpu:.2f} of {process_time() - begun:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
