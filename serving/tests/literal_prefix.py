"""vLLM v1's scheduler with prefix caching as one would write it down first, block by block."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import literal_vllm


@dataclass(eq=False)
class Block:
    """A block of KV cache."""

    users: int = 0
    name: Hashable = None


@dataclass(eq=False)
class Request(literal_vllm.Request):
    """A request with its tokens, those of the output included."""

    tokens: Sequence[Hashable] = ()
    held: list[Block] = field(default_factory=list)
    named: int = 0  # of its blocks, from the first on
    admissions: list[int] = field(default_factory=list)  # cached tokens of each


class Scheduler(literal_vllm.Scheduler):
    """Full blocks have names; whoever has the same tokens so far finds them, held or free."""

    free = property(lambda self: len(self.queue), lambda self, value: None)

    def __init__(self, settings: literal_vllm.Settings) -> None:
        super().__init__(settings)
        self.queue = [Block() for _ in range(self.usable())]  # free ones, the first is taken first
        self.found: dict[Hashable, list[Block]] = {}  # blocks by name, the oldest first

    def name(self, request: Request, number: int) -> Hashable:
        """All tokens up to the end of a block."""
        return tuple(request.tokens[: (number + 1) * self.settings.block_size])

    def hits(self, request: Request) -> list[Block]:
        """The blocks found, from the first on; at least one token is computed."""
        hits: list[Block] = []
        while len(hits) < (request.known - 1) // self.settings.block_size:
            blocks = self.found.get(self.name(request, len(hits)))
            if not blocks:
                break
            hits.append(blocks[0])
        return hits

    def cached(self, request: Request) -> int:
        return len(self.hits(request)) * self.settings.block_size

    def demand(self, request: Request, cached: int, tokens: int) -> int:
        hits = self.hits(request)
        idle = sum(block.users == 0 for block in hits)
        return super().demand(request, cached, tokens) - len(hits) + idle

    def reuse(self, request: Request, cached: int) -> None:
        request.admissions.append(cached)
        request.held = self.hits(request)
        request.named = request.blocks = len(request.held)
        for block in request.held:
            if block.users == 0:
                self.queue.remove(block)
            block.users += 1

    def allocate(self, request: Request, tokens: int) -> None:
        for _ in range(self.lacking(request, tokens)):
            block = self.queue.pop(0)
            if block.name is not None:
                self.found[block.name].remove(block)
                if not self.found[block.name]:
                    del self.found[block.name]
            block.name, block.users = None, 1
            request.held.append(block)
            request.blocks += 1
        self.publish(request, min(request.computed + tokens, request.known))

    def publish(self, request: Request, tokens: int) -> None:
        """Name the full blocks of the first tokens."""
        while request.named < tokens // self.settings.block_size:
            block = request.held[request.named]
            block.name = self.name(request, request.named)
            self.found.setdefault(block.name, []).append(block)
            request.named += 1

    def holding(self, request: Request) -> list[Block]:
        return request.held if request in self.running else self.hits(request)

    def release(self, request: Request) -> None:
        for block in reversed(request.held):
            block.users -= 1
            if block.users == 0:
                self.queue.insert(0 if block.name is None else len(self.queue), block)
        request.held, request.blocks, request.named = [], 0, 0

    def comes_back(self, request: Request) -> None:
        super().comes_back(request)
        if self.settings.async_scheduling and request in self.running:
            self.publish(request, request.computed - request.in_flight)

    def formed(self, *arguments) -> literal_vllm.Batch:
        batch = super().formed(*arguments)
        batch.row += (len(self.found),)
        return batch
