"""`make validate-cpu`: orders and plans in a vLLM that computes, on a CPU with random weights.

`validate_cpu.py [PAGE]` runs five engines. First their time comes from a clock, and every batch
must be that of optsched; exits with 1 where one is not. Then a batch takes the CPU time of this
process, and gains are held against what optsched predicts on a clock fitted to other batches,
slowed by as much as the batches of the engine took longer. Last, all requests are there at the
start, and what counts is when the last one ends. The engines take turns, batch by batch,
so that what else the machine does meets all of them alike. A model may be slower than an equal one
by a tenth because of where its memory is, so each scheduler gets each of the models once.
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from validate_vllm import equal_batches, ours, write_between

import optsched
from optsched.clock import LinearClock
from optsched.problem.work import load_on_clock

#: One thread, and one process, whose CPU time is that of the engines.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_TARGET_DEVICE": "cpu",
}
OPTIONS = {
    "num_gpu_blocks": 33,
    "block_size": 32,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 256,
    "policy": "fcfs",
    "async_scheduling": False,
}
MEMORY = (OPTIONS["num_gpu_blocks"] - 1) * OPTIONS["block_size"]
#: Label, class inside vLLM (planned or not, or none), its order, and the policy.
KINDS = (
    ("vLLM", None, None, "vllm"),
    ("planned", True, None, "vllm+plan"),
    ("work", False, "work", "vllm:work"),
    ("work, planned", True, "work", "vllm:work+plan"),
)
OFFLINE = KINDS[:2]  # for batches of requests that are there at once
LOAD, SEEDS, REQUESTS = 0.85, (1, 2, 3, 4), 100
EXACT_LOAD, EXACT_REQUESTS = 1.2, 60
FOLDER = Path("build") / "validate-cpu"


def lengths():
    """Return prompts and outputs that fit a small engine: an eighth and a quarter of a trace's."""
    folder = os.environ.get("OPTSCHED_DATA")
    if folder and (Path(folder) / "azure_conv_2023.csv.gz").exists():
        requests = optsched.read_trace(Path(folder) / "azure_conv_2023.csv.gz", 10**6)
    else:
        requests = optsched.family("chat-and-summaries", n=2000, seed=1, memory=10**6)
    prompts, outputs = requests.prompts // 8 + 1, requests.outputs // 4 + 1
    fit = prompts + outputs <= MEMORY
    return np.column_stack([prompts, outputs])[fit]


def drawn(seed, count, load, clock):
    """Return requests (prompt, output, arrival, priority) in Poisson arrivals that bring a load."""
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.permutation(lengths())[:count].T
    ticks = np.cumsum(rng.exponential(1e6, count)).astype(np.int64)
    instance = optsched.Instance(prompts, outputs, MEMORY, ticks, seconds_per_step=1e-6)
    ticks = (ticks * (load_on_clock(instance, clock).load / load)).astype(np.int64)
    columns = prompts.tolist(), outputs.tolist(), (ticks * 1e-6).tolist()
    return [(*each, 0) for each in zip(*columns, strict=True)]


def in_turns(engines, requests, clock=None, shift=0):
    """Serve requests with all engines, batch by batch in turns; return what became of them.

    The scheduler of each uses the model of the one so many places further on.
    """
    import in_vllm

    extras = [{"expected_output": output} for _, output, *_ in requests]
    every = [*engines.values()]
    models = {label: every[(at + shift) % len(every)] for at, label in enumerate(engines)}
    going = {
        label: in_vllm.batches(
            engine.scheduler, requests, clock, depth=1, extras=extras, engine=models[label]
        )
        for label, engine in engines.items()
    }
    found = {}
    while going:
        for label in tuple(going):
            served = next(going[label], None)
            if served is None:
                models[label].forget(engines[label].scheduler)
                del going[label]
            else:
                found[label] = served
    return found


def table_of(served):
    """Return the batches of an engine, for the fit of a clock."""
    table = pd.DataFrame(served.sums)
    return table.assign(seconds=[end - begin for begin, end in served.spans])


def made():
    """Return the engines, and a clock fitted to batches of vLLM's own."""
    import in_vllm

    rough = LinearClock("rough", 0.005, 0.0002, 0.0002)
    plain = in_vllm.Engine(OPTIONS, MEMORY)
    warm = {"vLLM": plain}
    in_turns(warm, drawn(10**6, 20, 1, rough))
    served = in_turns(warm, drawn(0, REQUESTS, LOAD, rough))
    FOLDER.mkdir(parents=True, exist_ok=True)
    table_of(served["vLLM"]).to_csv(FOLDER / "batches.csv", index=False)
    fit = LinearClock.fit(FOLDER / "batches.csv", "this CPU", hinges=())
    fit.clock.to_json(FOLDER / "clock.json")
    print(fit, flush=True)
    for label, planned, order, _ in KINDS[1:]:
        clock = str(FOLDER / "clock.json")
        settings = {"order": order, "aging": None, "clock": clock, "trusted": True}
        warm[label] = in_vllm.Engine(OPTIONS, MEMORY, settings, planned)
    return warm, fit


def compared(engines, clock):
    """Yield label, batches, equal ones, preemptions and the worst time apart, on a clock."""
    requests = drawn(0, EXACT_REQUESTS, EXACT_LOAD, clock)
    found = in_turns(engines, requests, clock)
    for label, _, _, policy in KINDS:
        predicted = ours(OPTIONS, requests, policy, clock)
        theirs = found[label]
        apart = max(
            np.abs(theirs.last - predicted.completions).max(),
            np.abs(theirs.first - predicted.first_tokens).max(),
        )
        yield label, *equal_batches(theirs, predicted), theirs.preemptions, apart


def measured(engines, clock):
    """Yield seed, and by label mean, p99 and TTFT as measured, drift, and the mean predicted."""
    engines = {label: engines[label] for label, *_ in KINDS}
    for seed in SEEDS:
        requests = drawn(seed, REQUESTS, LOAD, clock)
        found = in_turns(engines, requests, shift=seed)
        arrivals = np.array([arrival for _, _, arrival, _ in requests])
        rows = {}
        for label, _, _, policy in KINDS:
            served = found[label]
            # The time of a scheduler itself is in it, too.
            took = sum(end - begin for begin, end in served.spans)
            drift = took / sum(map(clock, served.sums)) - 1
            latencies = served.last - arrivals
            predicted = ours(OPTIONS, requests, policy, clock.scaled(1 + drift))
            rows[label] = (
                latencies.mean(),
                np.percentile(latencies, 99),
                (served.first - arrivals).mean(),
                drift,
                predicted.mean_latency,
            )
        yield seed, rows


def offline(engines, clock):
    """Yield by label when the last request ended, when it should; and the least that is proven.

    Each time other requests, which are there at the start; each scheduler gets each model once.
    """
    engines = {label: engines[label] for label, *_ in OFFLINE}
    for seed in range(len(OFFLINE)):
        requests = [(*each[:2], 0.0, 0) for each in drawn(seed + 10, REQUESTS, LOAD, clock)]
        found = in_turns(engines, requests, shift=seed)
        took = sum(end - begin for begin, end in found["vLLM"].spans)
        real = clock.scaled(took / sum(map(clock, found["vLLM"].sums)))
        prompts, outputs = np.array([each[:2] for each in requests]).T
        instance = optsched.Instance(prompts, outputs, MEMORY)
        least = optsched.bound(instance, objective="makespan", clock=real).value
        rows = {
            label: (found[label].last.max(), ours(OPTIONS, requests, policy, real).makespan)
            for label, _, _, policy in OFFLINE
        }
        yield rows, least


def text_of(fit, first, second, third):
    """Return the tables of the page."""
    import in_vllm
    import torch

    batches, equal, preemptions = (sum(row[at] for row in first) for at in (1, 2, 3))
    apart = max(row[-1] for row in first)
    bias, error = f"{100 * fit.bias:+.1f} %", f"{100 * fit.mean_error:.1f} %"
    torch_version = torch.__version__.partition("+")[0]
    lines = [
        *textwrap.wrap(
            f"vLLM {in_vllm.VERSION} with torch {torch_version}, time from a clock: {equal:,} of "
            f"{batches:,} batches are equal, with {preemptions:,} preemptions; times differ by at "
            f"most {apart:.1g} s.",
            100,
        )
    ]
    lines += [
        "",
        *textwrap.wrap(
            f"Measured on {REQUESTS} requests at load {LOAD:g}: mean latency in seconds (its "
            f"change in %; the one predicted). The clock has a bias of {bias} and a mean error of "
            f"{error} on {fit.judged:,} batches that were not fitted.",
            100,
        ),
        "",
        f"| scheduler | {' | '.join(f'seed {seed}' for seed, _ in second)} | all |",
        "|---" * (len(second) + 2) + "|",
    ]
    for label, *_ in KINDS:
        cells = [_cell(rows[label], rows["vLLM"]) for _, rows in second]
        total, plain = (sum(rows[each][0] for _, rows in second) for each in (label, "vLLM"))
        cells.append(f"{100 * (total / plain - 1):+.0f} %" if label != "vLLM" else "")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += [
        "",
        f"{REQUESTS} requests at once: seconds to the last end (change; predicted).",
        "",
        f"| scheduler | {' | '.join(str(number + 1) for number in range(len(third)))} |",
        "|---" * (len(third) + 1) + "|",
    ]
    for label, *_ in OFFLINE:
        cells = (_end(rows[label], rows["vLLM"]) for rows, _ in third)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines.append(f"| proven least | {' | '.join(f'{least:.2f}' for _, least in third)} |")
    return "\n".join(lines)


def _end(row, plain):
    """Write when the last request ended, and by how much that changed."""
    gains = (100 * (now / before - 1) for now, before in zip(row, plain, strict=True))
    return f"{row[0]:.2f}" + ("" if row is plain else " ({:+.1f} %; {:+.1f} %)".format(*gains))


def _cell(row, plain):
    """Write what was measured, and by how much it changed."""
    mean, *_, predicted = row
    gains = mean / plain[0] - 1, predicted / plain[-1] - 1
    change = "" if row is plain else " ({:+.0f}; {:+.0f})".format(*(100 * g for g in gains))
    return f"{mean:.2f}{change}"


def main(page):
    """Compare, measure, and write the tables into a page."""
    os.environ |= ENVIRONMENT
    engines, fit = made()
    first, second = [], []
    for each in compared(engines, fit.clock):
        print(*each, flush=True)
        first.append(each)
    wrong = any(total != equal or apart > 1e-9 for _, total, equal, _, apart in first)
    if wrong:
        sys.exit("batches of optsched differ from those of vLLM; the lines above say where")
    for each in measured(engines, fit.clock):
        print(*each, flush=True)
        second.append(each)
    third = list(offline(engines, fit.clock))
    text = text_of(fit, first, second, third)
    print(text)
    if page is not None:
        write_between(page, "make validate-cpu", text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
