"""`make validate`: optsched against the scheduler of a real vLLM, and inside it.

`validate_vllm.py [PAGE]` compares batches on random cases, runs orders and plans inside vLLM on a
trace (Azure conversations where OPTSCHED_DATA is set, else a family), and writes the tables into
the page, between the lines that say so. Exits with 1 where batches differ.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import optsched
from optsched.clock import LinearClock
from optsched.policies import get_policy
from optsched.problem.work import load_on_clock

CASES = 30  # of each kind
CLOCK = LinearClock("all", 0.02, 0.001, 0.003, 0.0005, 0.0001, 0.0002)
SERVING = "llama-2-70b-2xa100"
REQUESTS = 1000
LOG_ERROR = 0.5
#: Tokens of memory, load on the clock.
WORKLOADS = ((16_496, 0.7), (16_496, 0.97), (103_280, 1.2))


def drawn(seed, asynchronous, priority, more=False):
    """Return vLLM's options and requests (prompt, output, arrival, priority) drawn from a seed.

    With more options, such as limits on long prompts, of the same seed.
    """
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 4, 16]))
    blocks, seqs = int(rng.integers(10, 30)), int(rng.integers(2, 12))
    options = {
        "num_gpu_blocks": blocks,
        "block_size": size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": int(seqs + rng.integers(0, 5 * size + 15)),
        "policy": "priority" if priority else "fcfs",
        "watermark": float(rng.choice([0, 0, 0.1, 0.3])),
        "scheduler_reserve_full_isl": bool(rng.integers(4)),
        "async_scheduling": asynchronous,
    }
    most = (blocks - 1) * size + 1
    outputs = rng.integers(1, min(30, most - 1), 20)
    prompts = np.minimum(rng.integers(1, 4 * size + 12, 20), most - outputs)
    ticks = np.sort(rng.choice([0, 0, 50_000, 120_001, 900_000, 2_000_000], 20))
    columns = (prompts, outputs, ticks, rng.integers(0, 3, 20))
    if more:
        options |= more_options(np.random.default_rng([seed, 1]), options, prompts + outputs)
    return options, [
        (*map(int, row[:2]), row[2] * 1e-6, int(row[3])) for row in zip(*columns, strict=True)
    ]


def more_options(rng, options, lengths):
    """Draw options that most servers leave as they are."""
    most = min(options["max_num_batched_tokens"], int(lengths.max()))
    more = {
        "max_num_active_seqs": int(rng.integers(1, options["max_num_seqs"] + 1)),
        "long_prefill_token_threshold": int(rng.integers(0, most)),
        "long_prefill_token_threshold_adaptive": bool(rng.integers(2)),
        "prefill_schedule_interval": int(rng.integers(1, 6)),
    }
    more = {name: value for name, value in more.items() if rng.integers(3)}
    if not rng.integers(4):  # then a batch holds the longest request
        longest = int(lengths.max())
        more |= dict.fromkeys(("max_num_batched_tokens", "max_model_len"), longest)
        more["enable_chunked_prefill"] = False
        more.pop("long_prefill_token_threshold", None)
    return more


def ours(options, requests, name, clock, **more):
    """Run the same in optsched, where more is known of the requests."""
    prompts, outputs, arrivals, priorities = (
        np.array(column) for column in zip(*requests, strict=True)
    )
    memory = (options["num_gpu_blocks"] - 1) * options["block_size"]
    instance = optsched.Instance(
        prompts,
        outputs,
        max(memory, int((prompts + outputs).max())),
        np.round(arrivals * 1e6).astype(np.int64),
        seconds_per_step=1e-6,
        priorities=priorities,
        **more,
    )
    options = {"enable_prefix_caching": False} | options
    policy = replace(get_policy(name), scheduling_policy=options.pop("policy"), **options)
    return optsched.run(instance, policy, clock=clock)


def equal_batches(theirs, run):
    """Return how many batches there are at most, and how many are equal."""
    shared = min(len(theirs.rows), len(run.statistics))
    equal = (np.array(theirs.rows)[:shared] == run.statistics[:shared]).all(axis=1)
    equal &= np.abs(np.array(theirs.spans)[:shared] - run.log.spans[:shared]).max(axis=1) < 1e-9
    return max(len(theirs.rows), len(run.statistics)), int(equal.sum())


GITTINS = {"order": "area", "gittins": True}
SLACK = {"order": "least-slack", "clock": CLOCK}
#: What is compared: the class inside vLLM (planned or not, or none), its settings, and the policy.
KINDS = {
    "vLLM itself, by arrival": (None, None, "vllm"),
    "vLLM itself, by priority": (None, None, "vllm"),
    "`OrderedScheduler`, area": (False, {"order": "area"}, "vllm:area"),
    "`PlannedScheduler`, by arrival": (True, {"order": None}, "vllm+plan"),
    "`PlannedScheduler`, area": (True, {"order": "area"}, "vllm:area+plan"),
    "`PlannedScheduler`, mc-sf": (True, {"order": "mc-sf"}, "vllm:mc-sf+plan"),
    "`PlannedScheduler`, area, learned": (True, {"order": "area"}, "vllm:area+plan+learned"),
    "`PlannedScheduler`, Gittins index": (True, GITTINS, "vllm:area+gittins+plan+learned"),
    "`OrderedScheduler`, edf": (False, {"order": "edf"}, "vllm:edf+learned"),
    "`PlannedScheduler`, least slack": (True, SLACK, "vllm:least-slack+plan+learned"),
    "`PlannedScheduler`, by default": (True, {"aging": "load"}, "vllm:area,load+plan+learned"),
    "`PlannedScheduler`, clients in turn": (True, {"fair": True}, "vllm+plan+fair"),
}
CLIENTS = 3


def compared():
    """Yield kind, asynchronous, batches, equal ones and preemptions, over all random cases."""
    import in_vllm  # and the real vLLM with it

    for kind, (planned, settings, name) in KINDS.items():
        learns = get_policy(name).learns
        settings = settings and {"aging": None, "trusted": not learns} | settings
        for asynchronous in (False, True):
            total = equal = preempted = 0
            for seed in range(CASES):
                options, requests = drawn(seed, asynchronous, "priority" in kind, seed % 2 > 0)
                prompts, outputs = np.array([request[:2] for request in requests]).T
                memory = (options["num_gpu_blocks"] - 1) * options["block_size"]
                longest = max(memory, int((prompts + outputs).max()))
                longest = options.get("max_model_len", longest)
                scheduler = in_vllm.make(options, longest, settings, planned, unlimited=learns)
                clients = np.arange(len(requests)) % CLIENTS
                objectives = (np.arange(len(requests)) % 7 + 1) / 4  # seconds
                columns = (each.tolist() for each in (outputs, clients, objectives))
                extras = [
                    {"expected_output": output, "client": client, "objective": seconds}
                    for output, client, seconds in zip(*columns, strict=True)
                ]
                depth = 2 if asynchronous else 1
                theirs = in_vllm.serve(scheduler, requests, CLOCK, depth=depth, extras=extras)
                known = {"clients": clients, "output_estimates": outputs} if learns else {}
                due = np.array([request[2] for request in requests]) + objectives
                known |= {"deadlines": np.rint(1e6 * due).astype(np.int64)}
                both = equal_batches(theirs, ours(options, requests, name, CLOCK, **known))
                total, equal = total + both[0], equal + both[1]
                preempted += theirs.preemptions
            yield kind, asynchronous, total, equal, preempted


@dataclass
class Row:
    """One way to schedule, on a trace."""

    label: str
    planned: bool | None = None
    settings: dict | None = None
    policy: str | None = None  # that predicts it
    error: float = 0.0  # of the logarithm of forecasts; NaN: there are none
    asynchronous: bool = False
    window: tuple[float, int] | None = None


_WINDOWED = 20_000  # tokens up to which a window, which asks a plan more often, takes seconds
WORK = {"order": "work", "clock": SERVING, "aging": None, "trusted": True}
CHECKED = WORK | {"trusted": False}
INDEX = {"order": "work", "clock": SERVING, "gittins": True}

ROWS = (
    Row("vLLM, by arrival", policy="vllm"),
    Row("**work, planned**", True, WORK, "vllm:work+plan"),
    Row("the same, patience of 120 s", True, WORK | {"patience": 120}),
    Row("the same, window", True, WORK, window=(1.6, 128)),
    Row("vLLM, asynchronous", policy="vllm", asynchronous=True),
    Row("**work, planned, asynchronous**", True, WORK, "vllm:work+plan", asynchronous=True),
    Row("work, planned, rough forecasts", True, WORK, error=LOG_ERROR),
    Row("the same, beliefs", True, WORK | {"log_error": LOG_ERROR}, error=LOG_ERROR),
    Row("the same, factor 1.5", True, WORK | {"factor": 1.5}, error=LOG_ERROR),
    Row("work, not planned", False, WORK, "vllm:work"),
    Row("by arrival, planned", True, {"order": None, "trusted": True}, "vllm+plan"),
    Row("work, planned, forecasts checked", True, CHECKED, "vllm:work+plan+learned"),
    Row("the same, rough ones", True, CHECKED, "vllm:work+plan+learned", LOG_ERROR),
    Row("the same, no forecasts", True, CHECKED, "vllm:work+plan+learned", np.nan),
    Row("**by default**, no forecasts", True, {}, "vllm:area,load+plan+learned", np.nan, True),
    Row(
        "work by Gittins index, no forecasts",
        *(True, INDEX, "vllm:work,load+gittins+plan+learned", np.nan, True),
    ),
    Row(
        "the same, without aging",
        *(True, INDEX | {"aging": None}, "vllm:work+gittins+plan+learned", np.nan, True),
    ),
)


def workload(memory, load):
    """Return requests that bring a load on the clock."""
    folder = os.environ.get("OPTSCHED_DATA")
    if folder and (Path(folder) / "azure_conv_2023.csv.gz").exists():
        path = Path(folder) / "azure_conv_2023.csv.gz"
        requests = optsched.read_trace(path, memory, limit=REQUESTS, seconds_per_step=1e-6)
    else:
        requests = optsched.family(
            "chat-and-summaries", n=REQUESTS, seed=1, rate=1, memory=memory, seconds_per_step=1e-6
        )
    ratio = load_on_clock(requests, optsched.get_clock(SERVING)).load / load
    return requests.replace(seconds_per_step=1e-6 * ratio)


def expected(requests, row):
    """Return what clients expect of outputs."""
    errors = np.random.default_rng(1).normal(0, row.error, len(requests))
    return np.maximum(1, np.rint(requests.outputs * np.exp(errors))).astype(int)


def served(requests, row):
    """Serve a workload inside vLLM; return what became of it."""
    import in_vllm

    options = {
        "num_gpu_blocks": requests.memory // 16 + 1,
        "block_size": 16,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "policy": "fcfs",
        "async_scheduling": row.asynchronous,
    }
    arrivals = requests.arrivals * requests.seconds_per_step
    columns = (requests.prompts, requests.outputs, arrivals)
    facts = [(*each, 0) for each in zip(*(c.tolist() for c in columns), strict=True)]
    extras = None
    if row.planned is not None and row.error >= 0:
        extras = [{"expected_output": value} for value in expected(requests, row).tolist()]
    unlimited = bool(row.error) or (row.settings is not None and not row.settings.get("trusted"))
    scheduler = in_vllm.make(
        *(options, requests.memory, row.settings, row.planned),
        unlimited=unlimited,
        window=row.window,
    )
    clock = optsched.get_clock(SERVING)
    return in_vllm.serve(scheduler, facts, clock, depth=2 if row.asynchronous else 1, extras=extras)


def predicted(requests, row):
    """Return optsched's own run of what a row is about."""
    policy = replace(
        get_policy(row.policy), async_scheduling=row.asynchronous, enable_prefix_caching=False
    )
    if policy.learns and row.error >= 0:
        requests = requests.replace(output_estimates=expected(requests, row))
    return optsched.run(requests, policy, clock=SERVING)


def measured(memory, load):
    """Yield label, mean, gain, p99, preemptions and error of the prediction, row by row."""
    requests = workload(memory, load)
    arrivals = requests.arrivals * requests.seconds_per_step
    plain = {}
    for row in ROWS:
        if row.window and memory > _WINDOWED:
            continue
        begun = time.process_time()
        found = served(requests, row)
        latencies = found.last - arrivals
        mean, p99 = latencies.mean(), np.percentile(latencies, 99)
        plain.setdefault(row.asynchronous, (mean, p99))
        wrong = None
        if row.policy:
            wrong = predicted(requests, row).mean_latency / mean - 1
        gain = mean / plain[row.asynchronous][0] - 1
        print(
            f"{memory} {load} {row.label}: {mean:.2f} s ({gain:+.1%}), p99 {p99:.1f} s, "
            f"{found.preemptions} preemptions, predicted {wrong}, "
            f"CPU {time.process_time() - begun:.0f} s",
            flush=True,
        )
        yield row.label, mean, gain, p99, found.preemptions, wrong


def _cell(row):
    """Write what became of a workload: mean and its change, p99, preemptions."""
    if row is None:
        return ""
    label, mean, gain, p99, preemptions, _ = row
    change = "" if label.startswith("vLLM,") else f" ({100 * gain:+.1f})"
    return f"{mean:.1f}{change}, {p99:.0f}, {preemptions}"


def text_of(first, second):
    """Return what the page says."""
    import in_vllm

    batches, equal, preemptions = (sum(counts) for counts in list(zip(*first, strict=True))[2:])
    kinds = "; ".join(dict.fromkeys(kind for kind, *_ in first))
    lines = textwrap.wrap(
        f"Real vLLM {in_vllm.VERSION}, {CASES} random cases each, synchronous and asynchronous "
        f"({kinds}): {equal:,} of {batches:,} batches are equal, with {preemptions:,} preemptions.",
        110,
    )
    heads = [
        f"{memory:,} tokens, load {load:g}; bound {bound:.1f} s" for memory, load, bound in second
    ]
    lines += [
        "",
        "Mean latency in seconds (change against vLLM in %), p99 in seconds, preemptions:",
        "",
        f"| inside vLLM | {' | '.join(heads)} | predicted |",
        "|---" * (len(heads) + 2) + "|",
    ]
    rows = [{row[0]: row for row in found} for found in second.values()]
    for label in dict.fromkeys(label for found in rows for label in found):
        there = [found.get(label) for found in rows]
        wrong = [row[5] for row in there if row is not None and row[5] is not None]
        said = f"{max(round(100 * abs(each), 1) for each in wrong):.1f} %" if wrong else ""
        lines.append(f"| {label} | {' | '.join(map(_cell, there))} | {said} |")
    return "\n".join(lines)


def write_between(page, target, text):
    """Write a text between the lines of a page that a target of make owns."""
    begin, end = (f"<!-- written by {target}: {edge} -->" for edge in ("begin", "end"))
    whole = page.read_text(encoding="utf-8")
    before, _, rest = whole.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no lines {begin!r} and {end!r} to write between")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main(page):
    """Measure all, and write the tables into a page."""
    first = []
    for each in compared():
        print(*each, flush=True)
        first.append(each)
    second = {}
    for memory, load in WORKLOADS:
        requests = workload(memory, load)
        bound = optsched.bound(requests, clock=SERVING)
        mean = np.floor(bound.value / len(requests) * 10) / 10
        second[memory, load, mean] = list(measured(memory, load))
    text = text_of(first, second)
    print(text)
    if page is not None:
        write_between(page, "make validate", text)
    if any(total != equal for _, _, total, equal, _ in first):
        sys.exit("batches of optsched differ from those of vLLM; the lines above say where")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
