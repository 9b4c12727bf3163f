"""Drives the scheduler of a real vLLM with dummy tokens, against a clock; no GPU takes part.

Batches follow each other as in vLLM's engine: one at a time, or the next one formed while one runs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

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
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
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
_TOKEN = 7


@dataclass
class Served:
    """What became of the requests, by their place, and all batches."""

    first: np.ndarray
    last: np.ndarray
    contents: list[list[tuple[int, int, int]]] = field(default_factory=list)  # of each batch
    rows: list[tuple[int, ...]] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    preemptions: int = 0


def make(options, longest, settings=None, planned=None, *, unlimited=False, window=None):
    """Make a scheduler with vLLM's options; settings and planned say which class of optsched.

    Unlimited: it does not know how long outputs are, although the engine does. A window is the
    ratio of memory-time and the number of requests that may pass the first one.
    """
    options = dict(options)
    blocks, size = options.pop("num_gpu_blocks"), options.pop("block_size")
    asynchronous = options["async_scheduling"]
    extra = {} if settings is None else {"optsched": settings}
    with TemporaryDirectory() as folder:
        config = _MODEL | {"max_position_embeddings": longest}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        model = ModelConfig(
            folder, skip_tokenizer_init=True, max_model_len=longest, dtype="float16", seed=0
        )
    cache = CacheConfig(block_size=size, enable_prefix_caching=False)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_model_len=longest, is_encoder_decoder=False, enable_chunked_prefill=True, **options
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        additional_config=extra,
    )
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    base = AsyncScheduler if asynchronous else Scheduler
    if planned is not None:
        import optsched.vllm

        name = f"{'Planned' if planned else 'Ordered'}{'Async' if asynchronous else ''}Scheduler"
        base = getattr(optsched.vllm, name)

    class Clocked(base):
        """The scheduler, on the clock of the simulation."""

        time = 0.0

        def now(self):
            return self.time

        def limit_of(self, request):
            # The engine knows when each request ends, as with max_tokens; forecasts must not.
            return longest - request.num_prompt_tokens if unlimited else request.max_tokens

    manager = StructuredOutputManager(config)
    scheduler = Clocked(config, kv_cache, manager, block_size=size, log_stats=False)
    if window is not None:
        scheduler.waiting = Window(scheduler, *window)
    return scheduler


class Window(PriorityRequestQueue):
    """A queue whose first request may be passed by those that ask for hardly more than it."""

    def __init__(self, scheduler, ratio, length):
        super().__init__()
        self.scheduler, self.ratio, self.length = scheduler, ratio, length
        self.chosen = None

    def fits(self, request):
        """Whether the plan would admit a request."""
        seen = map(self.scheduler.looked_at, (*self.scheduler.running, request))
        return self.scheduler.foresight.fit(seen, self.scheduler.lag)

    def area(self, request):
        """Return the memory-time that a request is expected to take from now on."""
        prompt, made, _, look = self.scheduler.looked_at(request)
        return (prompt + made) * look.left + look.left * (look.left + 1) / 2

    def peek_request(self):
        """Choose the request that is admitted next."""
        first, *others = islice(self, self.length)
        self.chosen = first
        if self.scheduler.running and not self.fits(first):
            most = self.ratio * self.area(first)
            passing = (each for each in others if self.area(each) <= most and self.fits(each))
            self.chosen = next(passing, first)
        return self.chosen

    def pop_request(self):
        """Take the chosen request."""
        self.remove_request(self.chosen)
        return self.chosen


def serve(scheduler, requests, clock, *, depth, extras=None):
    """Serve requests (prompt, output, arrival, priority); extras are what clients say of them."""
    count = len(requests)
    served = Served(np.full(count, -1.0), np.full(count, -1.0))
    coming = sorted(range(count), key=lambda i: requests[i][2])
    there = {}
    flying = []
    now = free_from = 0.0
    done = released = 0
    while done < count:
        while released < count and requests[coming[released]][2] <= now:
            index = coming[released]
            there[index] = _request(index, requests[index], extras and extras[index])
            scheduler.add_request(there[index])
            released += 1
        if len(flying) < depth and scheduler.has_requests():
            scheduler.time = now
            waited = len(scheduler.waiting)
            before = sum(r.num_preemptions for r in there.values())
            output = scheduler.schedule()
            preempted = sum(r.num_preemptions for r in there.values()) - before
            served.preemptions += preempted
            if output.num_scheduled_tokens:
                parts, content = _content(output, there)
                begin = max(now, free_from)
                free_from = begin + clock(content)
                free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
                row = (len(parts), output.total_num_scheduled_tokens, len(scheduler.running))
                served.rows.append((*row, waited, free, preempted))
                served.contents.append([(i, at, tokens) for i, at, tokens, _ in parts])
                served.spans.append((begin, free_from))
                flying.append((output, parts, free_from))
                continue
            scheduler.update_from_output(output, ModelRunnerOutput([], {}))
            if preempted and not flying:
                continue
        if flying:
            output, parts, end = flying.pop(0)
            now = max(now, end)
            scheduler.update_from_output(output, _tokens(parts))
            for index, _, _, makes in parts:
                request = there[index]
                if makes and served.first[index] < 0:
                    served.first[index] = now
                if request.is_finished() and served.last[index] < 0:
                    served.last[index] = now
                    del there[index]
                    done += 1
        else:
            now = requests[coming[released]][2]
    return served


def _request(index, facts, extra):
    prompt, output, arrival, priority = facts
    parameters = vllm.SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
    return Request(
        str(index), [_TOKEN] * prompt, parameters, None, arrival_time=arrival, priority=priority
    )


def _content(output, there):
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


def _tokens(parts):
    """Return the dummy tokens of a batch."""
    names = [str(index) for index, *_ in parts]
    places = {name: place for place, name in enumerate(names)}
    return ModelRunnerOutput(names, places, [[_TOKEN] if makes else [] for *_, makes in parts])
