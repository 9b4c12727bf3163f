"""Drives the scheduler of a real vLLM with dummy tokens, against a clock; no GPU takes part.

Batches follow each other as in vLLM's engine: one at a time, or the next one formed while one runs.
An `Engine` computes them on a CPU or a GPU, with a model of random weights.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from optsched.clock import BatchContent

VERSION = vllm.__version__
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "torch_dtype": "float16",
}
_COMPUTED = _MODEL | {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "vocab_size": 1024,
}
LLAMA_8B = _MODEL | {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}
_TOKEN = 7


@dataclass
class Served:
    """What became of the requests, by their place, and all batches."""

    first: np.ndarray
    last: np.ndarray
    contents: list[list[tuple[int, int, int]]] = field(default_factory=list)  # of each batch
    sums: list[BatchContent] = field(default_factory=list)  # of each batch, for a clock
    rows: list[tuple[int, ...]] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    preemptions: int = 0
    cpu_s: float = 0.0  # in the scheduler

    def __post_init__(self):
        self.arrivals = np.zeros(len(self.first))


def make(
    options, longest, settings=None, planned=None, *, unlimited=False, window=None, caching=False
):
    """Make a scheduler with vLLM's options; settings and planned say which class of optsched.

    Unlimited: it does not know how long outputs are, although the engine does. A window is the
    ratio of memory-time and the number of requests that may pass the first one.
    """
    options = dict(options)
    blocks, size = options.pop("num_gpu_blocks"), options.pop("block_size")
    asynchronous = options["async_scheduling"]
    extra = {} if settings is None else {"optsched": settings}
    with _model(_MODEL, longest) as folder:
        model = ModelConfig(
            folder, skip_tokenizer_init=True, max_model_len=longest, dtype="float16", seed=0
        )
    cache = CacheConfig(block_size=size, enable_prefix_caching=caching)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            **{"max_model_len": longest, "is_encoder_decoder": False} | options
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        additional_config=extra,
    )
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    manager = StructuredOutputManager(config)
    made = _clocked(asynchronous, planned, unlimited)
    scheduler = made(config, kv_cache, manager, block_size=size, log_stats=False)
    if window is not None:
        scheduler.waiting = Window(scheduler, *window)
    return scheduler


@contextmanager
def _model(config, longest):
    """Yield a folder with the configuration of a model, without weights or a tokenizer."""
    with TemporaryDirectory() as folder:
        config = config | {"max_position_embeddings": longest}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def _clocked(asynchronous, planned, unlimited=False):
    """Return a class of scheduler that is on the clock of the simulation."""
    base = AsyncScheduler if asynchronous else Scheduler
    if planned is not None:
        import optsched.vllm

        base = optsched.vllm.PlannedScheduler if planned else optsched.vllm.OrderedScheduler

    class Clocked(base):
        """The scheduler, on the clock of the simulation."""

        time = 0.0

        def now(self):
            return self.time

        def limit_of(self, request):
            # The engine knows when each request ends, as with max_tokens; forecasts must not.
            room = self.max_model_len - request.num_prompt_tokens
            return room if unlimited else request.max_tokens

    return Clocked


class Engine:
    """vLLM's engine with one of the classes, and a model that computes: on one thread of a CPU.

    Prefix caching is off. On a GPU the model is that of `LLAMA_8B`, and wall time counts. `batches`
    uses the model alone, one batch at a time; `live` goes round vLLM's own loop, where the next
    batch is formed while one runs if scheduling is asynchronous.
    """

    def __init__(self, options, longest, settings=None, planned=None, *, gpu=False):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        self.timer = perf_counter if gpu else process_time
        if not gpu:
            from vllm.triton_utils import dispatcher

            # It looks at all that is imported, and at objects of llvmlite that have no dict.
            dispatcher.vars = lambda value: value.__dict__ if type(value).__dictoffset__ else {}
        options = dict(options)
        options["num_gpu_blocks_override"] = options.pop("num_gpu_blocks")
        options["scheduling_policy"] = options.pop("policy")
        with _model(LLAMA_8B if gpu else _COMPUTED, longest) as folder:
            arguments = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype="auto" if gpu else "float32",  # not every CPU computes with half of the bits
                max_model_len=longest,
                enable_prefix_caching=False,
                enforce_eager=not gpu,
                scheduler_cls=_clocked(options["async_scheduling"], planned),
                additional_config={} if settings is None else {"optsched": settings},
                **options,
            )
            config = arguments.create_engine_config()
            self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self.scheduler = self.core.scheduler
        self.made = None  # by the batch that was computed last

    def compute(self, output):
        """Compute a batch; return its seconds."""
        executor = self.core.model_executor
        began = self.timer()
        self.made = executor.execute_model(output)
        if self.made is None:
            self.made = executor.sample_tokens(None)
        return self.timer() - began

    def live(self, scheduler, requests, extras=None):
        """Serve requests in order of arrival as time passes; return what became of them."""
        core, count, there, at, began = self.core, len(requests), {}, 0, perf_counter()
        core.scheduler = scheduler
        served = Served(np.full(count, -1.0), np.full(count, -1.0))
        served.arrivals[:] = [arrival for _, _, arrival, _ in requests]
        schedule, update = scheduler.schedule, scheduler.update_from_output

        def scheduled(*given):
            begun = perf_counter()
            output = schedule(*given)
            served.cpu_s += perf_counter() - begun
            served.preemptions += len(output.preempted_req_ids or ())
            if output.num_scheduled_tokens:
                served.sums.append(content_of(output, there)[1])
            return output

        def updated(output, made):
            now = perf_counter() - began
            if output.num_scheduled_tokens:
                served.spans.append((served.spans[-1][1] if served.spans else 0.0, now))
            for group in (found := update(output, made)).values():
                for each in group.outputs:
                    index = int(each.request_id)
                    if each.new_token_ids and served.first[index] < 0:
                        served.first[index] = now
                    if each.finish_reason is not None:
                        served.last[index] = now
            return found

        scheduler.schedule, scheduler.update_from_output = scheduled, updated
        while at < count or scheduler.has_requests() or core.batch_queue:
            scheduler.time = perf_counter() - began
            while at < count and requests[at][2] <= scheduler.time:
                there[at] = request_of(at, requests[at], extras and extras[at], None, None)
                scheduler.add_request(there[at])
                at += 1
            if scheduler.has_requests() or core.batch_queue:
                core.step_fn()
            else:
                sleep(requests[at][2] - scheduler.time)
        return served

    def forget(self, scheduler):
        """Tell the model of the last requests that they have ended."""
        while scheduler.has_requests():
            output = scheduler.schedule()
            self.compute(output)
            scheduler.update_from_output(output, self.made)


class Window(PriorityRequestQueue):
    """A queue whose first request may be passed by those that ask for hardly more than it."""

    def __init__(self, scheduler, ratio, length):
        super().__init__()
        self.scheduler, self.ratio, self.length = scheduler, ratio, length
        self.chosen = None

    def area(self, request):
        """Return the memory-time that a request is expected to take from now on."""
        seen = self.scheduler.row_of(request)
        return seen.tokens * seen.left + seen.left * (seen.left + 1) / 2

    def peek_request(self):
        """Choose the request that is admitted next."""
        first, *others = islice(self, self.length)
        self.chosen = first
        fits = self.scheduler.fits
        if self.scheduler.running and not self.scheduler.fits(first):
            most = self.ratio * self.area(first)
            passing = (each for each in others if self.area(each) <= most and fits(each))
            self.chosen = next(passing, first)
        return self.chosen

    def pop_request(self):
        """Take the chosen request."""
        self.remove_request(self.chosen)
        return self.chosen


def serve(scheduler, requests, clock, **known):
    """Serve requests, as `batches`; return what became of them."""
    *_, served = batches(scheduler, requests, clock, **known)
    return served


def batches(
    scheduler,
    requests,
    clock,
    *,
    depth,
    extras=None,
    texts=None,
    after=(),
    aborts=(),
    engine=None,
):
    """Serve requests (prompt, output, arrival, priority); yield what became of them so far.

    It yields after each batch. Extras are what clients say of requests. An engine computes; without
    a clock a batch takes the time of forming, computing and taking note of it, by its timer.

    Texts are the tokens of each, prompt and output, where a prefix cache looks at them. Some come
    after another one has ended, and a pause: {request: (other one, seconds)}; some are aborted, at
    a time.
    """
    count, after, aborts = len(requests), dict(after), dict(aborts)
    served = Served(np.full(count, -1.0), np.full(count, -1.0))
    coming = [(requests[i][2], i) for i in range(count) if i not in after]
    heapify(coming)
    followers = {}
    for index, (other, pause) in after.items():
        followers.setdefault(other, []).append((index, pause))
    there, flying, done, now, free_from, cost = {}, [], 0, 0.0, 0.0, 0.0
    timer = process_time if engine is None else engine.timer
    hasher = None
    if scheduler.kv_cache_manager.enable_caching:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(scheduler.block_size, sha256)

    def leave(index):
        for other, pause in followers.get(index, ()):
            heappush(coming, (now + pause, other))
        del there[index]

    while done < count:
        while coming and coming[0][0] <= now:
            arrival, index = heappop(coming)
            facts = (*requests[index][:2], arrival, requests[index][3])
            served.arrivals[index] = arrival
            there[index] = request_of(index, facts, extras and extras[index], texts, hasher)
            scheduler.add_request(there[index])
        for index in [index for index in there if aborts.get(index, inf) <= now]:
            scheduler.finish_requests(str(index), RequestStatus.FINISHED_ABORTED)
            leave(index)
            done += 1
        if len(flying) < depth and scheduler.has_requests():
            scheduler.time = now
            waited = len(scheduler.waiting)
            begun = timer()
            output = scheduler.schedule()
            spent = timer() - begun
            served.cpu_s += spent
            cost += spent
            preempted = len(output.preempted_req_ids or ())
            served.preemptions += preempted
            if output.num_scheduled_tokens:
                parts, content = content_of(output, there)
                begin = max(now, free_from)
                computing = 0.0 if engine is None else engine.compute(output)
                free_from = begin + (cost + computing if clock is None else clock(content))
                cost = 0.0
                free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
                row = (len(parts), output.total_num_scheduled_tokens, len(scheduler.running))
                served.rows.append((*row, waited, free, preempted))
                served.contents.append([(i, at, tokens) for i, at, tokens, _ in parts])
                served.spans.append((begin, free_from))
                served.sums.append(content)
                flying.append((output, parts, free_from))
                yield served
                continue
            if engine is not None:
                engine.compute(output)  # which forgets requests that have ended
            scheduler.update_from_output(output, ModelRunnerOutput([], {}))
            if preempted and not flying:
                continue
        if flying:
            output, parts, end = flying.pop(0)
            now = max(now, end)
            parts = [part for part in parts if part[0] in there]
            made = tokens_of(parts, there, texts) if engine is None else engine.made
            begun = timer()
            scheduler.update_from_output(output, made)
            cost += timer() - begun
            for index, _, _, makes in parts:
                request = there[index]
                if makes and served.first[index] < 0:
                    served.first[index] = now
                if request.is_finished():
                    served.last[index] = now
                    leave(index)
                    done += 1
        elif coming:
            now = max(now, coming[0][0])
        else:
            break
    yield served


def request_of(index, facts, extra, texts, hasher, *, goes_on=False):
    """Return a request; one that goes on is a session whose next prompt may come at any time."""
    prompt, output, arrival, priority = facts
    parameters = vllm.SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
    tokens = [_TOKEN] * prompt if texts is None else texts[index][:prompt]
    more = {"arrival_time": arrival, "priority": priority, "block_hasher": hasher}
    more |= {"resumable": goes_on}
    return Request(str(index), tokens, parameters, None, **more)


def content_of(output, there):
    """Return (request, tokens computed before, tokens, makes one) of a batch, and its content."""
    parts = []
    prefill = decodes = resident = squares = held = 0
    for name, tokens in output.num_scheduled_tokens.items():
        request = there[int(name)]
        after = request.num_computed_tokens
        before = after - tokens
        makes = not request.is_prefill_chunk
        if tokens == 1 and before >= request.num_prompt_tokens:
            decodes += 1
            resident += after
        else:
            prefill += tokens
            squares += after**2 - before**2
        held += after + makes
        parts.append((int(name), before, tokens, makes))
    return sorted(parts), BatchContent(prefill, decodes, resident, squares, held)


def tokens_of(parts, there, texts):
    """Return the tokens of a batch, dummies where there is no text."""
    names = [str(index) for index, *_ in parts]
    made = []
    for index, _, _, makes in parts:
        token = (
            _TOKEN
            if texts is None
            else texts[index][min(there[index].num_tokens, len(texts[index]) - 1)]
        )
        made.append([token] if makes else [])
    return ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, made)
