"""Our classes in the scheduler of a real vLLM under random abuse; counts what goes wrong.

`vllm_campaign.py [WORKLOADS [SEED [FIRST]]]` draws small workloads with short memory and prefix
caching: aborts of waiting and running requests, grammars that come late, fail, or refuse a token,
resets of the cache while requests run, several answers to one prompt, sessions of streaming input
that go on or end at any moment, priorities, wrong forecasts and none. In half of them one hook of
ours, drawn at random, raises from some call on. All requests must end, every block must come back,
and nothing may be kept of those that have left. Exits with 1 where that fails. Workloads have
numbers, from FIRST on, so that a campaign may be run in parts.

`vllm_campaign.py hostile [WORKLOADS [SEED]]` serves workloads of `hostile.py`, planned, and prints
by how much longer the honest wait where one client says anything than where all say what is true.
Exits with 1 if that is more than 2 % under some settings, or something of ours failed.

`vllm_campaign.py memory [REQUESTS]` serves small requests of ever new clients, and prints the
memory of the process.

`vllm_campaign.py steps [STEPS]` serves alike requests by vLLM's own scheduler, ordered, planned and
with a patience, a batch of each in turn, and prints the CPU time of the scheduler per batch.
"""

from __future__ import annotations

import logging
import resource
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from time import process_time
from types import FunctionType, SimpleNamespace
from unittest.mock import patch

import hostile
import in_vllm
import numpy as np
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from optsched_serving.learning import Aging, OutputLearner, TokenCounters
from optsched_serving.plugin.plan import AdmissionPlan, Foresight
from optsched_serving.plugin.scheduler import LOG, Recorder, Watch

LONGEST = 200
PATIENCE_S = 30.0  # where there is one
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
ORDERS = ({}, {"order": "mc-sf", "aging": None}, {"order": None})  # beside hostile clients
PARTS = (Foresight, AdmissionPlan, Watch, Recorder, OutputLearner, TokenCounters, Aging)
#: What stands between vLLM and our parts, or is called when a server starts.
BETWEEN = {
    *("__init__", "add_request", "schedule", "_preempt_request", "_free_request", "_if_it_fits"),
    *("update_from_output", "_guarded", "_rank", "_put", "_alone", "__new__", "serve"),
    *("_try_again", "_rank_all"),
}


def hooks(kind):
    """Return all functions of ours that a running scheduler may call, with their owners."""
    ours = next(each for each in kind.__mro__ if "_if_it_fits" in vars(each))
    return [
        (kind if owner is ours else owner, name)
        for owner in (*PARTS, ours)
        for name, member in vars(owner).items()
        if isinstance(member, FunctionType) and name not in BETWEEN
    ] + [(AdmissionPlan, "__init__")]


class InjectedError(Exception):
    """What a hook raises."""


@contextmanager
def raising(owner, name, last):
    """Let a function raise after so many calls."""
    calls, does = count(), getattr(owner, name)

    def hook(*args, **more):
        if next(calls) >= last:
            raise InjectedError(f"{owner.__name__}.{name}")
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
    counts = bool(rng.integers(2))
    return type(first)(config, cache, manager, block_size=4, log_stats=counts)


def drawn(rng, blocks, hasher):
    """Return requests that begin alike, with their texts, and how many are of a kind."""
    most = (blocks - 1) * 4
    requests, kinds = [], Counter()
    count = int(rng.integers(2, 16))
    while len(requests) < count:
        output = int(rng.integers(1, min(24, most - 2)))
        prompt = int(rng.integers(1, min(40, most - output)))
        goes_on = rng.random() < 0.2 and prompt + output + 12 <= most
        shared = prompt if rng.random() < 0.2 else int(rng.integers(0, prompt + 1))
        begin = [int(rng.integers(2)) * 1000 + place for place in range(shared)]
        begin += [10**6 + len(requests) * 1000 + place for place in range(prompt - shared)]
        extra = (
            {} if rng.random() < 0.3 else {"expected_output": float(rng.choice([1, output, 50]))}
        )
        extra |= {"client": f"client {rng.integers(5)}"} if rng.random() < 0.5 else {}
        facts = (prompt, output, float(rng.choice([0, 0, 0.3, 1.0])), int(rng.integers(0, 2)))
        answers = int(rng.integers(2, 5)) if not goes_on and rng.random() < 0.15 else 1
        grammar = not goes_on and rng.random() < 0.15
        for index in range(len(requests), len(requests) + answers):  # as the front end of vLLM
            text = begin + [2 * 10**6 + index * 1000 + place for place in range(output)]
            of = {index: text}
            request = in_vllm.request_of(index, facts, extra, of, hasher, goes_on=goes_on)
            if grammar:
                request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
                known = SimpleNamespace(grammar=None, reasoning_ended=True)
                request.structured_output_request = known
            requests.append((request, text))
            kinds["answers beside others"] += answers > 1
            kinds["sessions"] += goes_on
            kinds["requests with a grammar"] += grammar
    return requests, kinds


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
            known = request.structured_output_request
            if known is not None and known.grammar is None and rng.random() < 0.1:
                grammar = SimpleNamespace(accept_tokens=lambda *_: rng.random() < 0.95)
                known.grammar = ValueError("odd") if rng.random() < 0.1 else grammar
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


def quiet():
    """Return a list that what we would log goes into: exceptions, and None for the rest."""
    raised = []
    LOG.addFilter(lambda record: not raised.append(record.exc_info))
    LOG.addHandler(logging.NullHandler())
    LOG.propagate = False
    return raised


def main(workloads, seed, begin):
    """Run workloads, and print what happened."""
    total, raised, there = Counter(), quiet(), Counter()
    logging.getLogger("vllm.v1.core.sched.scheduler").setLevel(logging.CRITICAL)  # tokens refused
    in_vllm.init_none_hash(in_vllm.sha256)
    hasher = in_vllm.get_request_block_hasher(4, in_vllm.sha256)
    firsts = [
        (in_vllm.make(options(mode), LONGEST, settings, planned, caching=True), mode)
        for mode in (False, True)
        for planned in (True, False)
        for settings in SETTINGS
    ]
    for number in range(begin, begin + workloads):
        rng = np.random.default_rng([seed, number])
        first, asynchronous = firsts[number % len(firsts)]
        scheduler = renewed(first, rng)
        requests, kinds = drawn(rng, scheduler.kv_cache_config.num_blocks, hasher)
        total += kinds
        total["workloads by clients' priorities"] += scheduler._by_client  # noqa: SLF001
        found = hooks(type(scheduler))
        owner, hook = found[int(rng.integers(len(found)))]
        last = int(30 ** rng.random()) - 1 if rng.random() < 0.5 else 10**9  # calls before it
        raised.clear()
        try:
            with raising(owner, hook, last):
                total += abused(scheduler, requests, rng, 2 if asynchronous else 1)
            errors = [str(each[1]) for each in filter(None, raised)]
            injected = all(each[0] is InjectedError for each in filter(None, raised))
            total["workloads in which a hook raised"] += bool(errors)
            there.update({hook: 0} | ({hook: 1} if errors else {}))
            if not injected:
                total["crashes of a hook by itself"] += 1
                print(f"workload {number}: {errors}", flush=True)
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
    print(
        f"of {len(there)} hooks these never raised:", *(name for name in there if not there[name])
    )
    return any(
        "never" in name or "lost" in name or "kept" in name or "crash" in name for name in +total
    )


def hostility(workloads, seed):
    """Serve workloads in which one client says anything; print how long the others wait."""
    raised, sized = quiet(), {"num_gpu_blocks": hostile.BLOCKS, "block_size": hostile.BLOCK}
    sized |= {"max_num_seqs": hostile.SEATS, "max_num_batched_tokens": hostile.BATCH}
    worst = 0.0
    for settings, later in product(ORDERS, (False, True)):
        given = options(later) | sized
        first = in_vllm.make(given, hostile.LONGEST, settings, planned=True)
        parts = first.vllm_config, first.kv_cache_config, first.structured_output_manager

        def serve(work, said, first=first, parts=parts, depth=1 + later):
            scheduler = type(first)(*parts, block_size=hostile.BLOCK, log_stats=True)
            limits = {str(index): limit for index, limit in enumerate(work.limits)}
            scheduler.limit_of = lambda request: min(
                limits[request.request_id], hostile.LONGEST - request.num_prompt_tokens
            )
            clock = lambda content: hostile.SECONDS  # noqa: E731
            passed = [  # vLLM refuses a request with larger whole numbers
                {
                    name: value
                    for name, value in each.items()
                    if type(value) is not int or value < 2**64
                }
                for each in said
            ]
            served = in_vllm.serve(scheduler, work.rows, clock, depth=depth, extras=passed)
            return served.last - served.arrivals

        means = hostile.compared(serve, range(workloads), seed)
        means["all"] = np.mean(list(means.values()), axis=0)
        told = (
            f"{habit} {100 * (after / before - 1):+.1f}" for habit, (before, after) in means.items()
        )
        print(f"{settings}, {'a' * later}synchronous, %:", "; ".join(told), flush=True)
        worst = max(worst, means["all"][1] / means["all"][0])
    failed, served = sum(map(bool, raised)), 2 * len(ORDERS) * workloads
    print(f"{served:,} workloads, each served twice; {failed} times a part of ours failed")
    return failed > 0 or bool(worst > 1.02)


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


class Lane:
    """A scheduler whose memory, or whose seats, are full; other requests wait."""

    def __init__(self, running, waiting, settings, planned, full):
        blocks, seqs = (17, 4) if full == "memory" else (60, 1)
        sized = {"num_gpu_blocks": running * blocks, "max_num_seqs": running * seqs}
        sized["block_size"] = 16
        given = options(asynchronous=True) | sized | {"max_num_batched_tokens": 2048}
        known = {"unlimited": True, "caching": True}
        self.scheduler = in_vllm.make(given, 2048, settings, planned, **known)
        self.hasher = in_vllm.get_request_block_hasher(16, in_vllm.sha256)
        self.rng, self.sent, self.there, self.texts = np.random.default_rng(1), 0, {}, {}
        self.waiting, self.flying, self.spent, self.running = waiting, [], [], []
        # Those that are there at once came one by one, half of them longer ago than a patience.
        self.came = np.linspace(-2 * PATIENCE_S, 0, waiting).tolist()

    def step(self):
        """Form a batch, and end the one before; note the CPU time of the scheduler."""
        scheduler, coming = self.scheduler, []
        while len(scheduler.waiting) + len(coming) < self.waiting:
            prompt, output = 1 + self.rng.geometric([1 / 200, 1 / 100])
            text = self.rng.integers(10**9, size=min(prompt, 900) + min(output, 900)).tolist()
            came = self.came.pop(0) if self.came else scheduler.time
            facts = (min(prompt, 900), min(int(output), 900), came, 0)
            self.texts[self.sent] = text
            made = in_vllm.request_of(self.sent, facts, None, self.texts, self.hasher)
            self.there[self.sent] = made
            coming.append(made)
            self.sent += 1
        scheduler.time += 0.02
        spent = -process_time()
        for request in coming:
            scheduler.add_request(request)
        output = scheduler.schedule()
        spent += process_time()
        self.flying.append((output, in_vllm.content_of(output, self.there)[0]))
        if len(self.flying) > 1:
            output, parts = self.flying.pop(0)
            parts = [part for part in parts if part[0] in self.there]
            made = in_vllm.tokens_of(parts, self.there, self.texts)
            spent -= process_time()
            scheduler.update_from_output(output, made)
            spent += process_time()
            for index in [index for index, *_ in parts if self.there[index].is_finished()]:
                del self.there[index], self.texts[index]
        self.spent.append(1000 * spent)
        self.running.append(len(scheduler.running))


def steps(count):
    """Print the time of each scheduler per batch, in milliseconds, and against vLLM's."""
    in_vllm.init_none_hash(in_vllm.sha256)
    kinds = {"vLLM": (None, None), "ordered": ({}, False), "planned": ({}, True)}
    kinds["patient"] = {"patience": PATIENCE_S}, True
    places = [(*each, each[1]) for each in product(("memory", "seats"), (8, 64, 256))]
    for full, running, waiting in (*places, ("memory", 64, 10_000)):
        lanes = {label: Lane(running, waiting, *kind, full) for label, kind in kinds.items()}
        for _ in range(count + 300):  # the first are warm-up
            for lane in lanes.values():
                lane.step()
        base = np.percentile(lanes["vLLM"].spent[300:], [50, 99])
        for label, lane in lanes.items():
            found = np.percentile(lane.spent[300:], [50, 99])
            (median, p99), (of, tail), there = found, found / base, np.mean(lane.running[300:])
            print(
                f"{full} full, {waiting} wait, {label}: {median:.3f} ms ({of:.2f}), "
                f"p99 {p99:.3f} ({tail:.2f}), {there:.0f} running",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["steps"]:
        sys.exit(steps(int((sys.argv[2:] or ["1000"])[0])))
    if sys.argv[1:2] == ["memory"]:
        sys.exit(memory(int((sys.argv[2:] or ["100000"])[0])))
    if sys.argv[1:2] == ["hostile"]:
        numbers = [int(word) for word in sys.argv[2:]]
        sys.exit(hostility(*(numbers + [100, 1][len(numbers) :])))
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers + [1000, 1, 0][len(numbers) :])))
