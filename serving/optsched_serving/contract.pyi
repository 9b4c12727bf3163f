"""What our scheduler touches of vLLM 0.32 and 0.33, which is not there when types are checked.

`Scheduler` stands for `vllm.v1.core.sched.scheduler.Scheduler`, the others for what it holds.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

class SamplingParams(Protocol):
    extra_args: Mapping[str, Any] | None

class Status(Protocol):
    name: str

class Request(Protocol):
    request_id: str
    arrival_time: float
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_output_placeholders: int
    num_computed_tokens: int
    max_tokens: int
    priority: Hashable
    status: Status
    sampling_params: SamplingParams | None
    block_hashes: Sequence[bytes]

    def __lt__(self, other: Request) -> bool: ...

class Block(Protocol):
    block_id: int
    ref_cnt: int

class KVCacheBlocks(Protocol):
    blocks: Sequence[Sequence[Block]]

class BlockTable(Protocol):
    req_to_blocks: Mapping[str, Sequence[Block]]

class BlockPool(Protocol):
    def get_num_free_blocks(self) -> int: ...

class KVCacheCoordinator(Protocol):
    single_type_managers: Sequence[BlockTable]

class KVCacheManager(Protocol):
    coordinator: KVCacheCoordinator
    block_pool: BlockPool
    allocate_slots: Callable[..., KVCacheBlocks | None]

class RequestQueue(Protocol):
    _heap: list[Request]  # of a queue by priority
    def __len__(self) -> int: ...
    def remove_requests(self, requests: Iterable[Request]) -> None: ...

class SchedulerOutput(Protocol):
    num_scheduled_tokens: Mapping[str, int]

class SchedulerConfig(Protocol):
    policy: str
    async_scheduling: bool
    max_num_seqs: int
    scheduler_cls: object

class CacheConfig(Protocol):
    enable_prefix_caching: bool

class Config(Protocol):
    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    additional_config: object

class KVCacheSpec(Protocol):
    block_size: int

class KVCacheGroup(Protocol):
    kv_cache_spec: KVCacheSpec

class KVCacheConfig(Protocol):
    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroup]

class Scheduler:
    running: list[Request]
    waiting: RequestQueue
    requests: Mapping[str, Request]
    kv_cache_manager: KVCacheManager
    max_model_len: int
    hash_block_size: int
    def __init__(
        self,
        vllm_config: Config,
        kv_cache_config: KVCacheConfig,
        *args: object,
        **more: object,
    ) -> None: ...
    def schedule(self, *args: object, **more: object) -> SchedulerOutput: ...
    def add_request(self, request: Request) -> None: ...
    def update_from_output(
        self, scheduler_output: SchedulerOutput, *args: object, **more: object
    ) -> object: ...
    def _preempt_request(self, request: Request, *args: object, **more: object) -> None: ...
    def _free_request(self, request: Request, *args: object, **more: object) -> object: ...

class Metric(Protocol):
    """A counter or gauge of Prometheus."""

    def labels(self, *, engine: int) -> Metric: ...
    def inc(self, amount: float) -> None: ...
    def set(self, value: float) -> None: ...
