"""Writes what a server does, without texts, for `optsched compare` and `LinearClock.fit`."""

from __future__ import annotations

import json
from hashlib import blake2b
from math import ceil
from os import urandom
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

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
