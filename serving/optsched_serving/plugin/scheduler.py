"""The scheduler classes, on top of those of vLLM, and what they count."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from importlib import import_module
from itertools import islice, takewhile
from math import ceil, inf
from os import urandom
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._version import __version__
from optsched.clock import BatchContent
from optsched.errors import OptschedError
from optsched_serving.learning import Expected, Seen
from optsched_serving.plugin.plan import POINT, AdmissionPlan, Foresight, Outlook, Row, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence, Set
    from typing import Self, TypeVar, TypeVarTuple

    import optsched_serving.contract as vllm
    from optsched._internal.arrays import IntArray

    Base = vllm.Scheduler
    T = TypeVar("T")
    Given = TypeVarTuple("Given")
else:
    Base = object  # that of vLLM comes after ours

_EVERY_S = 60.0  # between two lines in the log
_REMEMBERED = 1000  # completed requests over which the error of forecasts is taken, about
COUNTERS = {
    "admitted": "Requests admitted, preempted ones again",
    "refused": "Times that the plan refused the request at the head of the queue",
    "asked": "Tokens of requests at their admissions",
    "hits": "Tokens found in the prefix cache at admissions",
    "promoted": "Requests admitted before others with smaller keys, because they had waited",
}
GAUGES = {
    "waiting": "Requests that wait",
    "forecast_error": "Mean distance of outputs from what was expected, over the mean output",
}
LOG = logging.getLogger("vllm.optsched")


class Watch:
    """Counters of one scheduler."""

    def __init__(self, engine: int = 0) -> None:
        self.engine = engine
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._told, self._written = dict(self.counts), dict(self.counts)
        self._next_s = self._next_line_s = 0.0
        self._error = self._output = 0.0
        self._queue = 0  # as told last
        self._completed = 0
        self._waiting: dict[str, float] = {}  # keys without age
        self._heap: list[tuple[float, str]] = []  # the same, some of them no longer so
        self._metrics = {name: each.labels(engine=engine) for name, each in _metrics().items()}

    def serve(self, port: int) -> None:
        """Show the metrics on a page of their own; each engine has a port, counted from this."""
        import_module("prometheus_client").start_http_server(port + self.engine)

    @property
    def forecast_error(self) -> float:
        """Mean distance of outputs from what was expected, over the mean output."""
        return self._error / max(self._output, 1.0)

    def waits(self, name: str, plain: float) -> None:
        """Note the key without age of a request that waits."""
        self._waiting[name] = plain
        heappush(self._heap, (plain, name))
        if len(self._heap) > 2 * len(self._waiting) + _EVERY_S:
            self._heap = [(plain, name) for name, plain in self._waiting.items()]
            heapify(self._heap)

    def leaves(self, name: str) -> float | None:
        """Note that a request no longer waits; return its key without age."""
        return self._waiting.pop(name, None)

    def admitted(self, request: vllm.Request, hits: int) -> None:
        """Note an admission."""
        self.counts["admitted"] += 1
        self.counts["asked"] += request.num_tokens
        self.counts["hits"] += hits
        plain, heap = self.leaves(request.request_id), self._heap
        while heap and self._waiting.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        if plain is not None and heap and heap[0][0] < plain:
            self.counts["promoted"] += 1

    def completed(self, expected: int, output: int) -> None:
        """Note what was expected of a request that is complete."""
        self._completed = min(self._completed + 1, _REMEMBERED)
        self._error += (abs(output - expected) - self._error) / self._completed
        self._output += (output - self._output) / self._completed

    def tell(self, now: float, waiting: int, running: int) -> None:
        """Bring the metrics up to date each second, or once idle; log a line each minute."""
        if now < self._next_s and (waiting or not self._queue):
            return
        self._next_s, self._queue = now + 1, waiting
        counts = dict(self.counts)
        gauges = {"waiting": waiting, "forecast_error": self.forecast_error}
        for name, metric in self._metrics.items():
            if name in counts:
                metric.inc(counts[name] - self._told[name])
            else:
                metric.set(gauges[name])
        self._told = counts
        if now < self._next_line_s or self._written == counts:
            return
        self._next_line_s, self._written = now + _EVERY_S, counts
        hits, error = 100 * counts["hits"] / max(counts["asked"], 1), 100 * self.forecast_error
        LOG.info(
            "optsched: %(waiting)d wait, %(running)d run; %(admitted)d admissions, %(refused)d "
            "refused by the plan, %(promoted)d promoted by age; %(hits).1f %% of tokens cached; "
            "outputs %(error).0f %% off what was expected",
            {**counts, "waiting": waiting, "running": running, "hits": hits, "error": error},
        )


@functools.cache
def _metrics() -> dict[str, vllm.Metric]:
    """Register the metrics once in a process; none where Prometheus' client is not installed."""
    try:
        client = import_module("prometheus_client")
    except ImportError:
        return {}
    gauge = functools.partial(client.Gauge, multiprocess_mode="mostrecent")
    return {
        name: kind(f"optsched:{name}", text, ["engine"])
        for kind, texts in ((client.Counter, COUNTERS), (gauge, GAUGES))
        for name, text in texts.items()
    }


_BYTES = 6  # of a hash


class Recorder:
    """Writes requests that are complete, and how long batches took."""

    def __init__(
        self, folder: str | Path, engine: int, size: int | None, now: Callable[[], float]
    ) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"{engine}-{now():.0f}"
        self._requests = Path(folder) / f"requests-{name}.jsonl"
        self._batches = Path(folder) / f"batches-{name}.csv"
        _add(self._batches, ",".join((*BatchContent._fields, "seconds")))
        self._salt, self._size = urandom(16), size  # of blocks that others may find, if they may
        self._flying: dict[int, tuple[BatchContent, float, list[str]]] = {}
        self._first_s: dict[str, float] = {}  # when requests that run made their first token
        self._now, self._last_s = now, 0.0  # end of the last batch

    def _hash(self, value: bytes) -> int:
        """Return what stands for a value, in this file only."""
        return int.from_bytes(blake2b(value, key=self._salt, digest_size=_BYTES).digest(), "big")

    def ended(self, request: vllm.Request, client: Hashable) -> None:
        """Write a request that is complete."""
        prompt = request.num_prompt_tokens
        line: dict[str, object] = {
            "label": str(self._hash(request.request_id.encode())),
            "arrival_s": round(request.arrival_time, 6),
            "prompt_tokens": prompt,
            "output_tokens": request.num_output_tokens,
            "last_token_s": round(self._now(), 6),
        }
        if (first := self._first_s.get(request.request_id, -inf)) >= request.arrival_time:
            line["first_token_s"] = round(first, 6)
        if client is not None:
            line["client"] = self._hash(repr(client).encode())
        if self._size is not None:
            blocks = ceil(prompt / self._size)
            ids = [self._hash(each) for each in request.block_hashes[:blocks]]
            ids += [self._hash(urandom(_BYTES)) for _ in range(blocks - len(ids))]
            line |= {"hash_ids": ids, "hash_block": self._size}
        _add(self._requests, json.dumps(line))

    def formed(self, batch: vllm.SchedulerOutput, requests: Mapping[str, vllm.Request]) -> None:
        """Take note of a batch that begins."""
        prefill = decodes = resident = squares = held = 0
        firsts = []
        for name, tokens in batch.num_scheduled_tokens.items():
            after, prompt = requests[name].num_computed_tokens, requests[name].num_prompt_tokens
            held += after
            if tokens == 1 and after > prompt:
                decodes, resident = decodes + 1, resident + after
                continue
            prefill, squares = prefill + tokens, squares + after**2 - (after - tokens) ** 2
            if after - tokens < prompt <= after:
                firsts.append(name)
        if held:
            content = BatchContent(prefill, decodes, resident, squares, held)
            self._flying[id(batch)] = content, self._now(), firsts

    def done(self, batch: vllm.SchedulerOutput, requests: Mapping[str, vllm.Request]) -> None:
        """Write a batch that has ended."""
        if flown := self._flying.pop(id(batch), None):
            (content, begun, firsts), now = flown, self._now()
            seconds = now - max(begun, self._last_s)
            _add(self._batches, ",".join(map(str, (*content, f"{seconds:.6f}"))))
            self._last_s = now
            for name in firsts:
                # After a preemption the prompt is computed again; a session has others later.
                request = requests.get(name)
                if request and self._first_s.get(name, -inf) < request.arrival_time:
                    self._first_s[name] = now

    def leaves(self, name: str) -> None:
        """Forget a request, complete or not."""
        self._first_s.pop(name, None)


def _add(path: Path, line: str) -> None:
    """Add a line, whole even if the process is killed."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


_REFRESH = 8  # an expectation is looked at again when this share more has been made: an eighth
_UNSEEN = Outlook(1, 1)
_UNKNOWN = Expected(Seen(1, 1), 1, 1)
#: What of a configuration says that a part cannot work, or all of them, and why.
_LIMITS = (
    ("diffusion_config", "all", "a diffusion model needs a scheduler of vLLM's own"),
    ("model_config.runner_type", "all", "a pooling model makes no tokens to order or plan by"),
    ("parallel_config.pipeline_parallel_size", "plan", "stages of a pipeline run several batches"),
    ("model_config.is_encoder_decoder", "plan", "what an encoder makes takes blocks, too"),
    ("kv_transfer_config", "plan", "a KV connector moves blocks"),
    ("speculative_config", "plan", "with speculative decoding a batch makes several tokens of one"),
    ("parallel_config.decode_context_parallel_size", "plan", "blocks are spread over devices"),
    ("parallel_config.prefill_context_parallel_size", "plan", "blocks are spread over devices"),
)
_HARMLESS = (None, False, 1, "generate", "draft")
_KEPT = {"FullAttentionSpec", "MLAAttentionSpec"}  # of which all tokens are kept to the end
_COMPLETE = {"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"}
_PROMOTIONS = 100  # within a patience, about; each looks at all that wait
#: What goes on without a part that has failed, and which others need it.
_WITHOUT = {
    "learning": "requests come by arrival and are admitted as by vLLM",
    "order": "requests come by arrival",
    "plan": "requests are admitted as by vLLM",
    "counting": "all goes on, but the counters stand still",
    "recording": "all goes on, but nothing more is written",
}
_NEED = {"learning": ("order", "plan")}
_OFF = "optsched.vllm.%s: the part %r failed and is off for %g s; %s"
_ORDERS = "the class only orders"
_ON = "optsched.vllm.%s %s in vLLM %s, %ssynchronous: order %s, plan %s; %r"


_OFF_S = 60.0  # for which a part that failed is off


@dataclass(slots=True)
class Known:
    """What is known of a request."""

    until: float = -1  # tokens made up to which the outlook holds
    look: Outlook = _UNSEEN
    learned: Expected = _UNKNOWN  # what is expected by what others made, since it arrived
    client: Hashable = 0  # the priority that a client has set
    first: bool = False  # it goes before all others
    expected: int = 0  # tokens of the output, when it was first looked at
    tag: float = 0.0  # its turn, or by how much later than others it comes
    blocks: Sequence[int] | IntArray = ()  # that it holds, as of when they were asked for


class Scheduler(Base):
    """What our classes add to a scheduler of vLLM, which comes after it among their bases."""

    title: str
    plans: bool
    asynchronous: type  # the scheduler of vLLM for that mode
    running_status: object
    #: What it goes by; a subclass may set its own.
    settings = Settings()

    def __new__(cls, vllm_config: vllm.Config, *args: object, **more: object) -> Self:
        """Make one for the mode that a server is in."""
        kind = cls
        if vllm_config.scheduler_config.async_scheduling and not issubclass(cls, cls.asynchronous):
            kind = type(cls.__name__, (cls, cls.asynchronous), {})
        return super().__new__(kind)

    def __init__(
        self,
        vllm_config: vllm.Config,
        kv_cache_config: vllm.KVCacheConfig,
        *args: object,
        **more: object,
    ) -> None:
        settings = self.settings_of(vllm_config)
        self._by_client = vllm_config.scheduler_config.policy == "priority"
        self.orders, self.acts = settings.orders, not settings.dry_run
        if self.orders and self.acts:
            vllm_config.scheduler_config.policy = "priority"
        super().__init__(vllm_config, kv_cache_config, *args, **more)
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        longest, sizes = self.max_model_len, [spec.block_size for spec in specs]
        self.patience = settings.patience if self.orders and self.acts else inf
        self._seats = vllm_config.scheduler_config.max_num_seqs
        self.foresight = Foresight(settings, kv_cache_config.num_blocks - 1, sizes, longest)
        self.watch = Watch(_of(vllm_config, "parallel_config.data_parallel_index") or 0)
        self.off: dict[str, str] = {}
        self._failed: list[tuple[float, list[str]]] = []  # until when parts are off, and which
        if settings.metrics_port is not None:
            self._guarded("counting", self.watch.serve, settings.metrics_port)
        self.lag = int(isinstance(self, self.asynchronous))
        odd = ", ".join(sorted({type(spec).__name__ for spec in specs} - _KEPT))
        forgets = f"layers of the kind {odd} do not keep all tokens" if odd else ""
        reasons = {
            "order": "" if self.orders else "vLLM's own is asked for",
            "plan": (_limit("plan", vllm_config) or forgets) if self.plans else _ORDERS,
        }
        self.off |= {part: reason for part, reason in reasons.items() if reason}
        said = (f"off ({self.off[part]})" if part in self.off else "on" for part in reasons)
        mode = "a" * self.lag
        LOG.info(
            _ON, self.title, __version__, import_module("vllm").__version__, mode, *said, settings
        )
        caches = vllm_config.cache_config.enable_prefix_caching
        self._recorder: Recorder | None = None
        if settings.record is not None:
            size = self.hash_block_size if caches else None
            given = settings.record, self.watch.engine, size, self.now
            self._recorder = self._guarded("recording", Recorder, *given)
        self._seen: dict[str, Known] = {}
        self._by_arrival: dict[str, vllm.Request] = {}
        self._promoted_s, self._sorted = -inf, True
        # One is made at once, so that its kernel is there when the first request comes.
        begin = self.foresight, [Row(1, 0, 1, 1)], self.lag
        self._plan: AdmissionPlan | None = self._guarded("plan", AdmissionPlan, *begin)
        self._tables: Sequence[vllm.BlockTable] = ()  # of blocks, where others may find them
        manager = self.kv_cache_manager
        if "plan" not in self.off and caches:
            self._tables = manager.coordinator.single_type_managers
        self._allocate, manager.allocate_slots = manager.allocate_slots, self._if_it_fits

    @classmethod
    def settings_of(cls, vllm_config: vllm.Config) -> Settings:
        """Return the settings of a server; raises where they, or it, will not do."""
        if reason := _limit("all", vllm_config):
            raise OptschedError(f"optsched.vllm: {reason}; start without --scheduler-cls")
        extra = vllm_config.additional_config
        given = extra.get("optsched", {}) if isinstance(extra, dict) else {}
        settings = cls.settings.updated(given)
        Foresight(settings, 1, (), 1)  # which reads clocks and histories
        return settings

    def _guarded(
        self, part: str, does: Callable[[*Given], T], *given: *Given, otherwise: T | None = None
    ) -> T | None:
        """Return what a part does, or what it is without it: once it raises, it is off."""
        if part in self.off:
            self._try_again()
        if part not in self.off:
            try:
                return does(*given)
            except Exception:
                LOG.exception(_OFF, self.title, part, _OFF_S, _WITHOUT[part])
                parts = [each for each in (part, *_NEED.get(part, ())) if each not in self.off]
                self._failed.append((monotonic() + _OFF_S, parts))
                self.off |= dict.fromkeys(parts, "it failed")
                if "order" in parts:
                    self._rank_all()
        return otherwise

    def _try_again(self) -> None:
        """Switch on again what has been off for a while since it failed."""
        while self._failed and monotonic() >= self._failed[0][0]:
            _, parts = self._failed.pop(0)
            for each in parts:
                del self.off[each]
            if "order" in parts:
                self._rank_all()

    def _rank_all(self) -> None:
        for request in self.requests.values():
            self._rank(request)
        self._sorted = False  # not now: the request peeked at must be popped

    def limit_of(self, request: vllm.Request) -> int:
        """Return the maximum number of tokens that a request may make."""
        room = self.max_model_len - request.num_prompt_tokens
        return int(min(request.max_tokens, room))

    def now(self) -> float:
        """Return the time on the clock of arrivals."""
        return time()

    def add_request(self, request: vllm.Request) -> None:
        """Let a request wait in its place."""
        if seen := self._seen.get(request.request_id):
            seen.until, seen.learned = -1, _UNKNOWN  # a session goes on with another prompt
        else:
            self._seen[request.request_id] = Known(client=request.priority)
            self._guarded("learning", self._arrives, request)
            self._rank(request)
            if self.patience < inf:
                self._by_arrival[request.request_id] = request
        super().add_request(request)

    def _arrives(self, request: vllm.Request) -> None:
        seen = self._look(request, 0)
        seen.tag = self.foresight.arrives(request, seen.learned, seen.look)

    def schedule(self, *args: object, **more: object) -> vllm.SchedulerOutput:
        """Form a batch."""
        self._plan = None
        if self._by_arrival:
            self._guarded("order", self._promote)
        if not self._sorted:
            self.waiting.remove_requests(())  # which sorts the queue anew
            self._sorted = True
        batch = super().schedule(*args, **more)
        if getattr(self, "log_stats", False):
            self._guarded("counting", self._tell)
        if self._recorder is not None:
            self._guarded("recording", self._recorder.formed, batch, self.requests)
        return batch

    def update_from_output(
        self, scheduler_output: vllm.SchedulerOutput, *args: object, **more: object
    ) -> object:
        """Take the tokens of a batch that has ended."""
        if self._recorder is not None:
            self._guarded("recording", self._recorder.done, scheduler_output, self.requests)
        return super().update_from_output(scheduler_output, *args, **more)

    def _tell(self) -> None:
        self.watch.tell(self.now(), len(self.waiting), len(self.running))

    def _promote(self) -> None:
        """Let those that have waited too long come first, as many as a batch may admit."""
        now, patience = self.now(), self.patience
        if now < self._promoted_s + patience / _PROMOTIONS:
            return
        waited = takewhile(
            lambda each: each.arrival_time < now - patience, self._by_arrival.values()
        )
        overdue = set(islice(waited, self._seats))
        for request in overdue:
            del self._by_arrival[request.request_id]
            self._seen[request.request_id].first = True
            self._put(request, -inf)
        if overdue:
            _move_up(self.waiting._heap, overdue)  # noqa: SLF001
        if len(overdue) < self._seats:
            self._promoted_s = now

    def _rank(self, request: vllm.Request) -> None:
        """Set the priority of a request; without an order all of a client's are alike."""
        if self.orders:
            key = self._guarded("order", self._key, request, otherwise=0.0)
            if self.acts:
                self._put(request, key)

    def _put(self, request: vllm.Request, key: float | None) -> None:
        """Set the priority of a request by its key; those that clients have set come first."""
        request.priority = (self._seen[request.request_id].client, key) if self._by_client else key

    def _key(self, request: vllm.Request) -> float:
        made = request.num_output_tokens
        seen = self._look(request, made)
        key = plain = seen.tag
        if not self.foresight.fair:
            prompt = request.num_prompt_tokens
            plain = self.foresight.weigh(prompt, seen.look, seen.learned, made)
            plain += self.foresight.due(request, seen.learned.seen.client)
            key = self.foresight.aging.key(plain, key)
        # In a dry run a request that comes by arrival is held against all of the order.
        known = plain if self.acts else key
        self._guarded("counting", self.watch.waits, request.request_id, known)
        return -inf if seen.first else key

    def _look(self, request: vllm.Request, made: int) -> Known:
        """Return what is known of a request; a belief is looked at anew where it made much."""
        seen = self._seen[request.request_id]
        if made > seen.until:
            if seen.learned is _UNKNOWN:
                limit = self.limit_of(request)
                seen.learned = self.foresight.expect(request, limit, seen.client)
            seen.look = self.foresight.outlook(request, made, seen.learned)
            seen.expected = seen.expected or seen.look.output
            seen.until = inf if seen.look.row == POINT else made + made // _REFRESH
        return seen

    def _preempt_request(self, request: vllm.Request, *args: object, **more: object) -> None:
        seen = self._seen[request.request_id]
        seen.until, seen.blocks = -1, ()
        # What was expected of it was too little: by its key it would be preempted again.
        seen.first = seen.first or (seen.look.learned and not self.foresight.fair)
        self._rank(request)
        super()._preempt_request(request, *args, **more)

    def _free_request(self, request: vllm.Request, *args: object, **more: object) -> object:
        if request.request_id in self._seen:
            self._guarded("learning", self._ends, request)
            del self._seen[request.request_id]
        self._by_arrival.pop(request.request_id, None)
        self._guarded("counting", self.watch.leaves, request.request_id)
        if self._recorder is not None:
            self._guarded("recording", self._recorder.leaves, request.request_id)
        return super()._free_request(request, *args, **more)

    def _ends(self, request: vllm.Request) -> None:
        made = request.num_output_tokens
        seen = self._look(request, made)  # a session may have gone on and ended at once
        complete = made > 0 and request.status.name in _COMPLETE
        self.foresight.ended(request, seen.learned, seen.expected, complete=complete)
        if complete:
            self._guarded("counting", self.watch.completed, seen.expected, made)
            if self._recorder is not None:
                client = seen.learned.seen.client
                self._guarded("recording", self._recorder.ended, request, client)

    def _if_it_fits(
        self, request: vllm.Request, *args: object, **more: Any
    ) -> vllm.KVCacheBlocks | None:
        """Allocate blocks; none for a request whose admission would lead to preemptions."""
        # A request that holds blocks already must not wait behind others.
        if request.status is self.running_status or request.num_computed_tokens:
            return self._allocate(request, *args, **more)
        if self.running:
            found = more.get("new_computed_blocks")
            found = found.blocks if found is not None else ()
            if not self._guarded("plan", self.fits, request, found, otherwise=True):
                self.watch.counts["refused"] += 1
                if self.acts:
                    return None
        blocks = self._allocate(request, *args, **more)
        if blocks is not None:
            hits = more.get("num_new_computed_tokens", 0)
            self._guarded("counting", self.watch.admitted, request, hits)
            tag = self._seen[request.request_id].tag
            self._guarded("learning", self.foresight.admitted, request, tag)
            self._guarded("plan", self._joins, request)
        return blocks

    def _joins(self, request: vllm.Request) -> None:
        if self._plan is not None:
            self._plan.joined(self._candidate, lambda: self._blocks_of(request))

    def fits(self, request: vllm.Request, found: Sequence[Sequence[vllm.Block]] = ()) -> bool:
        """Whether a waiting request is planned to run beside those that run."""
        if self._plan is None:
            rows = [self.row_of(each) for each in self.running]
            held = lambda: [self._blocks_of(each) for each in self.running]  # noqa: E731
            self._plan = AdmissionPlan(self.foresight, rows, self.lag, held, self._shares())
        hits = [block.block_id for group in found for block in group if block.ref_cnt > 0]
        self._candidate = self.row_of(request)
        return self._plan.admits(self._candidate, hits)

    def _blocks_of(self, request: vllm.Request) -> Sequence[int] | IntArray:
        """Return the blocks that a request holds, where others may find them."""
        seen = self._seen[request.request_id]
        held = [each.req_to_blocks.get(request.request_id, ()) for each in self._tables]
        if sum(map(len, held)) != len(seen.blocks):
            seen.blocks = np.array([block.block_id for blocks in held for block in blocks])
        return seen.blocks

    def _shares(self) -> bool:
        """Whether some block has several users."""
        names = [request.request_id for request in self.running]
        tables = [each.req_to_blocks for each in self._tables]
        held = sum(len(table.get(name, ())) for table in tables for name in names)
        usable, manager = self.foresight.usable, self.kv_cache_manager
        return bool(tables) and usable != held + manager.block_pool.get_num_free_blocks()

    def row_of(self, request: vllm.Request) -> Row:
        """Return what a plan sees of a request."""
        made = request.num_output_tokens + request.num_output_placeholders
        seen = self._look(request, made)
        left, tokens = max(seen.look.planned - made, 1), request.num_prompt_tokens + made
        return Row(tokens, made, seen.learned.seen.limit, left, seen.look.row)


def _move_up(heap: list[vllm.Request], sooner: Set[vllm.Request]) -> None:
    """Mend a heap in which some have come closer to the front."""
    for at, request in enumerate(heap):  # those further in front come first, and are in place
        if request in sooner:
            while at and request < heap[above := (at - 1) // 2]:
                heap[at], heap[above] = heap[above], request
                at = above


def scheduler_class(name: str, planned: bool, base: type, asynchronous: type) -> type:
    """Return one of the classes, on top of the schedulers of vLLM for both modes."""
    facts = {
        "__module__": "optsched.vllm",
        "__doc__": f"vLLM's scheduler, {'planned' if planned else 'ordered'} by optsched.",
        "title": name,
        "plans": planned,
        "asynchronous": asynchronous,
        "running_status": import_module("vllm.v1.request").RequestStatus.RUNNING,
    }
    return type(name, (Scheduler, base), facts)


def _of(config: object, path: str) -> Any:
    return reduce(lambda part, name: getattr(part, name, None), path.split("."), config)


def _limit(part: str, config: vllm.Config) -> str:
    """Return why a part cannot work with a configuration, nothing if it can."""
    found = ((_of(config, path), why) for path, what, why in _LIMITS if what == part)
    return next((why for value, why in found if value is True or value not in _HARMLESS), "")
