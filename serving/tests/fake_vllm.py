"""The interface of vLLM's scheduler, on top of the literal one, and modules of vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import literal_vllm

import optsched_serving.plugin as inside


@dataclass(eq=False)
class Request(literal_vllm.Request):
    """A request, with vLLM's names beside those of the literal scheduler."""

    extra_args: dict[str, Any] | None = None
    limit: int = 10**6
    status: Any = field(default_factory=lambda: SimpleNamespace(name="WAITING"))
    block_hashes: list[bytes] = field(default_factory=list)  # where there is a prefix cache
    resumable: bool = False  # a session, of which this is not the end
    queue: list[Request] = field(default_factory=list)  # what came of a session meanwhile

    def __lt__(self, other):
        return literal_vllm.Scheduler.key(None, self) < literal_vllm.Scheduler.key(None, other)

    @property
    def request_id(self):
        return str(self.index)

    @property
    def num_tokens(self):
        return self.known

    @property
    def num_prompt_tokens(self):
        return self.prompt

    @property
    def num_computed_tokens(self):
        return self.computed

    @property
    def num_output_tokens(self):
        return self.made

    @property
    def num_output_placeholders(self):
        return self.in_flight

    @property
    def max_tokens(self):
        return self.limit

    @property
    def arrival_time(self):
        return self.arrival

    @property
    def sampling_params(self):
        return SimpleNamespace(extra_args=self.extra_args)


class Waiting(list):
    """A queue that sorts itself anew when requests are removed, and else must be a heap."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler = scheduler

    @property
    def _heap(self):
        assert self.scheduler.settings.policy == "priority"
        return self

    def remove_requests(self, requests):
        self[:] = [request for request in self if request not in requests]
        self.scheduler.sort()


class Scheduler(literal_vllm.Scheduler):
    """The literal scheduler, called as vLLM calls its own."""

    def __init__(self, vllm_config, kv_cache_config):
        super().__init__(vllm_config.scheduler_config)
        self.waiting = Waiting(self)
        self.requests = {}
        self.hash_block_size = vllm_config.scheduler_config.block_size
        self.max_model_len = vllm_config.model_config.max_model_len
        self.kv_cache_manager = SimpleNamespace(allocate_slots=lambda request: "blocks")

    def add(self, request):
        self.add_request(request)

    def add_request(self, request):
        there = self.requests.get(request.request_id)
        if there is None:
            self.requests[request.request_id] = request
            super().add(request)
        elif there.status.name != "WAITING_FOR_STREAMING_REQ":
            there.queue.append(request)
        else:
            self.goes_on(there, request)

    def goes_on(self, session, request):
        """Let a session go on with another prompt, or end."""
        if not request.resumable:
            self.finish(session, "FINISHED_ABORTED")
            return
        session.prompt += session.made - 1 + request.prompt
        session.output, session.arrival = request.output, request.arrival
        session.made = session.computed = session.in_flight = 0
        session.last, session.status.name = None, "WAITING"
        super().add(session)

    def finish(self, request, status="FINISHED_ABORTED"):
        """End a request, wherever it is."""
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.release(request)
        request.status.name = status
        self._free_request(request)

    def preempt(self, request):
        self._preempt_request(request, 0.0)

    def _preempt_request(self, request, timestamp):
        super().preempt(request)

    def is_planned(self, request):
        return self.kv_cache_manager.allocate_slots(request) is not None

    def schedule(self):
        if self.settings.policy == "priority":
            waiting = self.waiting
            assert not any(each < waiting[(at - 1) // 2] for at, each in enumerate(waiting) if at)
        self.sort()
        batch = super().schedule()
        batch.num_scheduled_tokens = {part[0].request_id: part[2] for part in batch.parts}
        return batch

    def update(self, batch, number):
        self.number = number
        self.update_from_output(batch, None)

    def update_from_output(self, batch, tokens):
        number = self.number
        super().update(batch, number)
        for request, *_ in batch.parts:
            if request.last != number:
                continue
            if request.resumable and request.queue:
                self.goes_on(request, request.queue.pop(0))
            elif request.resumable:
                request.status.name = "WAITING_FOR_STREAMING_REQ"
            else:
                self.finish(request, "FINISHED_LENGTH_CAPPED")

    def _free_request(self, request):
        del self.requests[request.request_id]


class AsyncScheduler(Scheduler):
    """The same, under the name of the other class."""


class VllmConfig(SimpleNamespace):
    """The configuration of a server, which looks at itself when it is made."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.__post_init__()

    def __post_init__(self):
        pass


def modules(scheduler=Scheduler, asynchronous=AsyncScheduler, version="0.33.0"):
    """Return modules as vLLM has them, by name."""
    made = {
        name: ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")
    }
    made["vllm"].__version__ = version
    for name, title, found in (
        ("scheduler", "Scheduler", scheduler),
        ("async_scheduler", "AsyncScheduler", asynchronous),
    ):
        module = ModuleType(f"vllm.v1.core.sched.{name}")
        setattr(module, title, found)
        made[module.__name__] = module
    made["vllm.config"] = ModuleType("vllm.config")
    made["vllm.config"].VllmConfig = type("VllmConfig", (VllmConfig,), dict(vars(VllmConfig)))
    made["vllm.v1.request"] = ModuleType("vllm.v1.request")
    made["vllm.v1.request"].RequestStatus = SimpleNamespace(RUNNING="running")
    return made


@dataclass
class FullAttentionSpec:
    """What a layer keeps: all tokens."""

    block_size: int


def config(settings, extra=None, longest=10**6, spec=FullAttentionSpec):
    """Return vLLM's configurations: of all, and of the KV cache."""
    group = SimpleNamespace(kv_cache_spec=spec(settings.block_size))
    return (
        SimpleNamespace(
            scheduler_config=settings,
            model_config=SimpleNamespace(max_model_len=longest),
            cache_config=SimpleNamespace(enable_prefix_caching=False),
            additional_config={} if extra is None else {"optsched": extra},
        ),
        SimpleNamespace(num_blocks=settings.num_gpu_blocks, kv_cache_groups=[group]),
    )


NAMES = [f"{kind}{mode}Scheduler" for kind in ("Ordered", "Planned") for mode in ("", "Async")]
CASE = literal_vllm.Settings(num_gpu_blocks=24, block_size=4, max_num_seqs=8)


def made(name, case=CASE, extra=None, **attributes):
    """Make a scheduler of ours, of a name."""
    kind = type("Mine", (getattr(inside, name),), attributes)
    return kind(*config(replace(case, async_scheduling="Async" in name), extra))


def serve(scheduler, rng):
    """Serve requests, some of them sessions, while things happen; all end, and give all back."""
    depth = 1 + scheduler.settings.async_scheduling
    coming, chunks = [], {}
    for index in range(8):
        said = {"client": int(rng.integers(3)), "expected_output": int(rng.integers(1, 30))}
        facts = (int(rng.integers(1, 16)), int(rng.integers(1, 12)))
        extra = said if rng.random() < 0.7 else {}
        request = Request(index, *facts, float(rng.integers(0, 8)) / 10, extra_args=extra)
        request.resumable = rng.random() < 0.4
        coming.append(request)
        if request.resumable:
            chunks[index] = int(rng.integers(0, 3))
    coming.sort(key=lambda each: each.arrival)
    flying = []
    for number in range(3000):
        scheduler.time = number * 0.03
        while coming and coming[0].arrival <= scheduler.time:
            scheduler.add_request(coming.pop(0))
        for request in [*scheduler.requests.values()]:
            index = request.index
            if rng.random() < 0.01:
                scheduler.finish(request)
            elif index in chunks and rng.random() < 0.2:
                more = Request(index, 2, 3, scheduler.time, resumable=chunks[index] > 0)
                chunks[index] -= 1
                if not more.resumable:
                    del chunks[index]
                scheduler.add_request(more)
        if rng.random() < 0.02:
            while scheduler.running:
                scheduler.preempt(scheduler.running[-1])
        flying.append(scheduler.schedule())
        if len(flying) == depth:
            batch = flying.pop(0)
            batch.parts = [part for part in batch.parts if part[0].request_id in scheduler.requests]
            scheduler.update(batch, number)
        if not coming and not scheduler.requests:
            break
    assert not scheduler.requests
    assert not scheduler.waiting
    assert not scheduler.running
    assert scheduler.free == scheduler.usable()
    assert not scheduler._seen  # noqa: SLF001
    assert not scheduler._by_arrival  # noqa: SLF001
