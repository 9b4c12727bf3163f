"""Our classes in the scheduler of a real vLLM under random abuse; counts what goes wrong.

`vllm_campaign.py [WORKLOADS [SEED]]` draws small workloads with short memory and prefix caching:
aborts of waiting and running requests, grammars that come late, resets of the cache while requests
run, several answers to one prompt, sessions of streaming input that go on or end at any moment,
priorities, wrong forecasts and none. In half of them one hook of ours, drawn at random, raises from
some call on. All requests must end, every block must come back, and nothing may be kept of those
that have left. Exits with 1 where that fails.

`vllm_campaign.py memory [REQUESTS]` serves small requests of ever new clients, and prints the
memory of the process.
"""

from __future__ import annotations

import logging
import resource
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FunctionType, SimpleNamespace
from unittest.mock import patch

import in_vllm
import numpy as np
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from optsched.serving.learning import Aging, OutputLearner, TokenCounters
from optsched.serving.plugin.plan import AdmissionPlan, Foresight
from optsched.serving.plugin.record import Recorder
from optsched.serving.plugin.watch import LOG, Watch

LONGEST = 200
SETTINGS = (
    {},
    {"order": None},
    {"order": "mc-sf", "aging": 0.2},
    {"order": "area", "patience": 0.1, "room": 0.7},
    {"order": "work", "clock": "llama-2-7b-a100", "factor": 1.5},
    {"log_error": 0.5, "deviations": 0.5},
    {"fair": True},
    {"trusted": True},
    {"record": "build/recorded", "dry_run": True},
)
PARTS = (Foresight, AdmissionPlan, Watch, Recorder, OutputLearner, TokenCounters, Aging)
#: What stands between vLLM and our parts, or is called when a server starts.
BETWEEN = {
    *("__init__", "add_request", "schedule", "_preempt_request", "_free_request", "_if_it_fits"),
    *("update_from_output", "_guarded", "_rank", "_alone", "__new__"),
}


def hooks(kind):
    """Return all functions of ours that a running scheduler may call, with their owners."""
    ours = next(each for each in kind.__mro__ if "_if_it_fits" in vars(each))
    return [
        (owner, name)
        for owner in (*PARTS, ours)
        for name, member in vars(owner).items()
        if isinstance(member, FunctionType) and name not in BETWEEN
    ] + [(AdmissionPlan, "__init__")]


@contextmanager
def raising(owner, name, last):
    """Let a function raise after so many calls."""
    calls, does = count(), getattr(owner, name)

    def hook(*args, **more):
        if next(calls) >= last:
            raise ArithmeticError(name)
        return does(*args, **more)

    with patch.object(owner, name, hook):
        yield


def options(asynchronous, policy="fcfs"):
    """Return options that every workload changes."""
    return {
        "num_gpu_blocks": 20,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "policy": policy,
        "async_scheduling": asynchronous,
    }


def renewed(first, rng):
    """Return another scheduler of the class of the first, with other limits."""
    config, cache = first.vllm_config, first.kv_cache_config
    blocks = int(rng.integers(8, 30))
    cache.num_blocks = config.cache_config.num_gpu_blocks = blocks
    config.scheduler_config.max_num_seqs = int(rng.integers(1, 9))
    config.scheduler_config.max_num_batched_tokens = int(rng.integers(9, 60))
    config.scheduler_config.policy = str(rng.choice(["fcfs", "priority"]))
    config.scheduler_config.watermark = float(rng.choice([0, 0, 0.1]))
    manager = first.structured_output_manager
    return type(first)(config, cache, manager, block_size=4, log_stats=False)


def drawn(rng, blocks, hasher):
    """Return requests that begin alike, with their texts."""
    most = (blocks - 1) * 4
    requests = []
    for index in range(int(rng.integers(2, 16))):
        output = int(rng.integers(1, min(24, most - 2)))
        prompt = int(rng.integers(1, min(40, most - output)))
        goes_on = rng.random() < 0.2 and prompt + output + 12 <= most
        shared = prompt if rng.random() < 0.2 else int(rng.integers(0, prompt + 1))
        text = [int(rng.integers(2)) * 1000 + place for place in range(shared)]
        text += [10**6 + index * 1000 + place for place in range(prompt + output - shared)]
        extra = (
            {} if rng.random() < 0.3 else {"expected_output": float(rng.choice([1, output, 50]))}
        )
        extra |= {"client": f"client {rng.integers(5)}"} if rng.random() < 0.5 else {}
        facts = (prompt, output, float(rng.choice([0, 0, 0.3, 1.0])), int(rng.integers(0, 2)))
        text_of = {index: text}
        request = in_vllm.request_of(index, facts, extra, text_of, hasher, goes_on=goes_on)
        if not goes_on and rng.random() < 0.15:
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            request.structured_output_request = SimpleNamespace(grammar=None)
        requests.append((request, text))
    return requests


def abused(scheduler, requests, rng, depth):
    """Serve requests while things happen to them; return what happened, and how often."""
    there = {int(request.request_id): request for request, _ in requests}
    texts = {int(request.request_id): text for request, text in requests}
    coming = sorted((request for request, _ in requests), key=lambda each: each.arrival_time)
    seen, flying, turns = Counter(), [], {}
    for step in range(4000):
        scheduler.time = step * 0.02
        while coming and coming[0].arrival_time <= scheduler.time:
            scheduler.add_request(coming.pop(0))
        active = [each for each in there.values() if each not in coming]
        for request in active:
            if request.structured_output_request is not None and rng.random() < 0.1:
                request.structured_output_request = None
                request.status = RequestStatus.WAITING
                seen["late grammars"] += 1
            if request.resumable and rng.random() < 0.2 and turns.get(request, 0) < 4:
                turns[request] = turns.get(request, 0) + int(rng.integers(1, 5))  # 4: the last one
                index, goes_on = int(request.request_id), turns[request] < 4
                facts = (2, 2, scheduler.time, 0)
                more = in_vllm.request_of(index, facts, None, texts, None, goes_on=goes_on)
                scheduler.add_request(more)
                seen["sessions that went on" if goes_on else "sessions that ended"] += 1
        if active and rng.random() < 0.02:
            victim = active[int(rng.integers(len(active)))]
            scheduler.finish_requests(victim.request_id, RequestStatus.FINISHED_ABORTED)
            del there[int(victim.request_id)]
            seen["aborts"] += 1
        # A session that waits for its next prompt holds blocks, which vLLM cannot reset.
        if rng.random() < 0.01 and not any(each.resumable for each in active):
            scheduler.reset_prefix_cache(reset_running_requests=True)
            seen["resets"] += 1
        output = scheduler.schedule()
        seen["preemptions"] += len(output.preempted_req_ids or ())
        flying.append((output, in_vllm.content_of(output, texts_of(there, output))[0]))
        if len(flying) == depth:
            output, parts = flying.pop(0)
            parts = [part for part in parts if part[0] in there]
            made = in_vllm.tokens_of(parts, there, texts) if parts else ModelRunnerOutput([], {})
            scheduler.update_from_output(output, made)
            there = {index: each for index, each in there.items() if not each.is_finished()}
        if not there and not coming:
            break
    seen["workloads that never ended"] += bool(there)
    pool = scheduler.kv_cache_manager.block_pool
    lost = scheduler.kv_cache_config.num_blocks - 1 - pool.get_num_free_blocks()
    seen["workloads with blocks lost"] += lost != 0
    kept = [vars(scheduler)[name] for name in ("_seen", "_by_arrival")]
    seen["workloads with requests kept"] += any(map(bool, kept))
    return seen


def texts_of(there, output):
    """Return the requests of a batch, also those that have left meanwhile."""
    return {int(name): there[int(name)] for name in output.num_scheduled_tokens}


def main(workloads, seed):
    """Run workloads, and print what happened."""
    total, raised = Counter(), []
    LOG.addFilter(lambda record: not raised.append(record.getMessage()))
    LOG.addHandler(logging.NullHandler())
    LOG.propagate = False
    in_vllm.init_none_hash(in_vllm.sha256)
    hasher = in_vllm.get_request_block_hasher(4, in_vllm.sha256)
    firsts = [
        (in_vllm.make(options(mode), LONGEST, settings, planned, caching=True), mode)
        for mode in (False, True)
        for planned in (True, False)
        for settings in SETTINGS
    ]
    for number in range(workloads):
        rng = np.random.default_rng([seed, number])
        first, asynchronous = firsts[number % len(firsts)]
        scheduler = renewed(first, rng)
        requests = drawn(rng, scheduler.kv_cache_config.num_blocks, hasher)
        found = hooks(type(scheduler))
        owner, hook = found[int(rng.integers(len(found)))]
        last = int(rng.integers(30)) if rng.random() < 0.5 else 10**9  # call that does not raise
        raised.clear()
        try:
            with raising(owner, hook, last):
                total += abused(scheduler, requests, rng, 2 if asynchronous else 1)
            total["workloads in which a hook raised"] += bool(raised)
        except Exception as error:
            total["crashes"] += 1
            print(f"workload {number}: {type(error).__name__}: {error}", flush=True)
            if total["crashes"] > 3:
                raise
        total["workloads"] += 1
        total["requests"] += len(requests)
        if number % 500 == 499:
            print(dict(total), flush=True)
    print(", ".join(f"{name}: {value:,}" for name, value in total.items()))
    return any(
        "never" in name or "lost" in name or "kept" in name or "crash" in name for name in +total
    )


def remembered(scheduler):
    """Return how many things a scheduler of ours keeps, by where."""
    known = vars(scheduler.foresight)
    owners = (scheduler, scheduler.watch, known["_learner"], known["_counters"])
    return {
        name.strip("_"): len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if type(value) is dict
    }


def memory(requests, every=10_000):
    """Serve requests, about 200 at a time; print MiB and what is kept now and then."""
    in_vllm.init_none_hash(in_vllm.sha256)
    hasher = in_vllm.get_request_block_hasher(4, in_vllm.sha256)
    sized = {"num_gpu_blocks": 2000, "max_num_seqs": 64, "max_num_batched_tokens": 1024}
    given = options(asynchronous=False) | sized
    scheduler = in_vllm.make(given, LONGEST, {"fair": True}, planned=True, caching=True)
    rng, there, texts, sent, ended = np.random.default_rng(1), {}, {}, 0, 0
    while ended < requests:
        while sent < requests and len(there) < 200:
            prompt, output = (int(each) for each in rng.integers([8, 1], [40, 8]))
            texts[sent] = [sent % 50 * 1000 + place for place in range(prompt + output)]
            extra = {"client": f"client {sent // 3}", "expected_output": output}
            facts = (prompt, output, scheduler.time, 0)
            there[sent] = in_vllm.request_of(sent, facts, extra, texts, hasher)
            scheduler.add_request(there[sent])
            sent += 1
        scheduler.time += 0.02
        output = scheduler.schedule()
        parts = in_vllm.content_of(output, there)[0]
        scheduler.update_from_output(output, in_vllm.tokens_of(parts, there, texts))
        for index in [index for index, *_ in parts if there[index].is_finished()]:
            del there[index], texts[index]
            ended += 1
            if ended % every == 0:
                pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
                mib = pages * resource.getpagesize() / 2**20
                print(f"{ended:,}: {mib:.1f} MiB, {remembered(scheduler)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        sys.exit(memory(int((sys.argv[2:] or ["100000"])[0])))
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers + [1000, 1][len(numbers) :])))
