"""What a scheduler inside vLLM counts: a line in vLLM's log, and metrics in Prometheus' format.

The scheduler runs in another process than vLLM's page `/metrics`. So the metrics have a page of
their own, or they are on vLLM's if the server starts with `PROMETHEUS_MULTIPROC_DIR`, in which case
Prometheus' client leaves out the series of the process (`process_*`).
"""

from __future__ import annotations

import functools
import json
import logging
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from importlib import import_module
from math import ceil
from os import urandom
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def admitted(self, request: Any, hits: int) -> None:
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
        """Bring the metrics up to date each second, and write a line each minute.

        An idle server asks for nothing more, so that an empty queue is told at once.
        """
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
def _metrics() -> dict[str, Any]:
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
        self._flying: dict[int, tuple[BatchContent, float]] = {}
        self._now, self._last_s = now, 0.0  # end of the last batch

    def _hash(self, value: bytes) -> int:
        """Return what stands for a value, in this file only."""
        return int.from_bytes(blake2b(value, key=self._salt, digest_size=_BYTES).digest(), "big")

    def ended(self, request: Any, client: Any) -> None:
        """Write a request that is complete."""
        prompt = request.num_prompt_tokens
        line: dict[str, Any] = {
            "label": str(self._hash(request.request_id.encode())),
            "arrival_s": round(request.arrival_time, 3),
            "prompt_tokens": prompt,
            "output_tokens": request.num_output_tokens,
        }
        if client is not None:
            line["client"] = self._hash(repr(client).encode())
        if self._size is not None:
            blocks = ceil(prompt / self._size)
            ids = [self._hash(each) for each in request.block_hashes[:blocks]]
            ids += [self._hash(urandom(_BYTES)) for _ in range(blocks - len(ids))]
            line |= {"hash_ids": ids, "hash_block": self._size}
        _add(self._requests, json.dumps(line))

    def formed(self, batch: Any, requests: dict[str, Any]) -> None:
        """Take note of a batch that begins."""
        prefill = decodes = resident = squares = held = 0
        for name, tokens in batch.num_scheduled_tokens.items():
            after, prompt = requests[name].num_computed_tokens, requests[name].num_prompt_tokens
            held += after
            if tokens == 1 and after > prompt:
                decodes, resident = decodes + 1, resident + after
            else:
                prefill, squares = prefill + tokens, squares + after**2 - (after - tokens) ** 2
        if held:
            content = BatchContent(prefill, decodes, resident, squares, held)
            self._flying[id(batch)] = content, self._now()

    def done(self, batch: Any) -> None:
        """Write a batch that has ended."""
        if flown := self._flying.pop(id(batch), None):
            (content, begun), now = flown, self._now()
            seconds = now - max(begun, self._last_s)
            _add(self._batches, ",".join(map(str, (*content, f"{seconds:.6f}"))))
            self._last_s = now


def _add(path: Path, line: str) -> None:
    """Add a line, whole even if the process is killed."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
