"""vLLM v1's scheduler as one would write it down first: slow, literal, batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(eq=False)
class Request:
    """A request and what the engine has done for it."""

    index: int
    prompt: int
    output: int
    arrival: float
    priority: float = 0
    label: str = ""  # its index if it has none
    after: int = -1  # the request that it goes on from
    pause: int = 0  # steps from the end of that
    made: int = 0  # tokens of the output that have come back
    computed: int = 0  # tokens scheduled to be computed, those in flight included
    in_flight: int = 0  # tokens that batches in flight will make
    blocks: int = 0
    preempted: int = 0
    lost: int = 0
    first: int | None = None  # batches, by index
    last: int | None = None

    @property
    def known(self) -> int:
        """Tokens there are: the prompt and what has come back."""
        return self.prompt + self.made


@dataclass
class Settings:
    """vLLM's options, by its own names."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    version: str = "0.33"


@dataclass
class Batch:
    """A batch in flight: (request, tokens computed before, tokens, makes one) per request."""

    parts: list[tuple[Request, int, int, bool]]
    row: tuple[int, int, int, int, int, int]


@dataclass
class Outcome:
    """What became of the requests, and all batches."""

    requests: list[Request]
    batches: list[Batch] = field(default_factory=list)
    contents: list[BatchContent] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    engine: Scheduler | None = None
    in_flight: list[Batch] = field(default_factory=list)  # at a pause


class Scheduler:
    """Waiting and running requests, and the blocks that they hold."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.free = self.usable()
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def usable(self) -> int:
        return self.settings.num_gpu_blocks - 1  # one is the null block

    def reserve(self) -> int:
        """Blocks that an admission leaves free."""
        settings = self.settings
        return int(settings.watermark * settings.num_gpu_blocks) if self.running else 0

    def key(self, request: Request) -> tuple[float, float, str]:
        return request.priority, request.arrival, request.label or str(request.index)

    def sort(self) -> None:
        if self.settings.policy == "priority":
            self.waiting.sort(key=self.key)

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self.sort()

    def put_back(self, request: Request) -> None:
        self.waiting.insert(0, request)
        self.sort()

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_size)

    def lacking(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks for so many more tokens."""
        return max(0, self.blocks_for(request.computed + tokens) - request.blocks)

    def allocate(self, request: Request, tokens: int) -> None:
        more = self.lacking(request, tokens)
        self.free -= more
        request.blocks += more

    def release(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks = 0

    def victim(self) -> Request:
        if self.settings.policy == "priority":
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return self.running[-1]

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.release(request)
        request.preempted += 1
        request.lost += request.computed
        request.computed = 0
        request.in_flight = 0
        self.put_back(request)

    def given_back(self, tokens: int) -> int:
        """Tokens of the budget that are free again when a request leaves the batch."""
        return tokens

    def moves_up(self, victim: int, place: int, chosen: bool) -> bool:
        """Whether a request moves up when the victim leaves, whose last token may be in flight."""
        return victim < place

    def ends_in_flight(self, request: Request) -> bool:
        """Whether the last token of a request is in flight."""
        return request.in_flight > 0 and request.made + request.in_flight >= request.output

    def whole(self, request: Request, tokens: int) -> int:
        """Tokens for which there must be blocks before a request is admitted."""
        return request.known if self.settings.scheduler_reserve_full_isl else tokens

    def cached(self, request: Request) -> int:
        """Tokens of a waiting request that need not be computed."""
        return 0

    def demand(self, request: Request, cached: int, tokens: int) -> int:
        """Free blocks that an admission takes, or must find."""
        return self.blocks_for(self.whole(request, cached + tokens))

    def reuse(self, request: Request, cached: int) -> None:
        """Let a request that is admitted hold the blocks of its cached tokens."""

    def holding(self, request: Request) -> Sequence[object]:
        """Blocks that a request holds, or would find, as far as others may hold them, too."""
        return ()

    def may_admit(self, preempted: int) -> bool:
        return not preempted

    def is_planned(self, request: Request) -> bool:
        """Whether a request may join those that run, as far as a plan says."""
        return True

    def schedule(self) -> Batch:
        waited = len(self.waiting)
        left = self.settings.max_num_batched_tokens
        chosen: dict[Request, int] = {}
        preempted = 0
        place = 0
        while place < len(self.running) and left > 0:
            request = self.running[place]
            if self.ends_in_flight(request):
                place += 1
                continue
            tokens = min(request.known + request.in_flight - request.computed, left)
            while request in self.running and self.lacking(request, tokens) > self.free:
                victim = self.victim()
                place -= self.moves_up(self.running.index(victim), place, victim in chosen)
                if victim in chosen:
                    left += self.given_back(chosen.pop(victim))
                self.preempt(victim)
                preempted += 1
            if request not in self.running and self.settings.version == "0.32":
                break
            if request in self.running:
                self.allocate(request, tokens)
                chosen[request] = tokens
                left -= tokens
                place += 1
        while self.may_admit(preempted) and self.waiting and left > 0:
            if len(self.running) == self.settings.max_num_seqs:
                break
            request = self.waiting[0]
            cached = self.cached(request)
            tokens = min(request.known - cached, left)
            if self.demand(request, cached, tokens) + self.reserve() > self.free:
                break
            if not self.is_planned(request):
                break
            self.waiting.pop(0)
            self.running.append(request)
            self.reuse(request, cached)
            request.computed = cached
            self.allocate(request, tokens)
            chosen[request] = tokens
            left -= tokens
        return self.formed(chosen, waited, preempted)

    def formed(self, chosen: dict[Request, int], waited: int, preempted: int) -> Batch:
        """Return the batch, whose tokens count as computed from now on."""
        parts = []
        for request, tokens in chosen.items():
            before = request.computed
            request.computed += tokens
            makes = request.computed == request.known + request.in_flight
            request.in_flight += makes
            parts.append((request, before, tokens, makes))
        tokens = sum(chosen.values())
        row = (len(parts), tokens, len(self.running), waited, self.free, preempted)
        return Batch(parts, row)

    def comes_back(self, request: Request) -> None:
        """A token of a batch that has ended."""
        request.made += 1
        request.in_flight = max(0, request.in_flight - 1)  # 0 if it was preempted meanwhile

    def update(self, batch: Batch, number: int) -> None:
        for request, _, _, makes in batch.parts:
            if not makes:
                continue
            before = request.made
            self.comes_back(request)
            if (before, request.made) == (0, 1):
                request.first = number
            if request.made == request.output and before < request.made:
                request.last = number
                self.release(request)
                (self.running if request in self.running else self.waiting).remove(request)


@dataclass
class Foresight:
    """Bounds of the outputs, and a key for a prompt, the tokens to come and the request."""

    lower: Sequence[int]
    upper: Sequence[int]
    key: Callable[[int, int, Request], float] | None
    plan: bool
    chances: Sequence[Sequence[Fraction]] | None = None  # of the outputs 1, 2, ..., by request
    deviations: float = 1.0


def with_foresight(known: Foresight, base: type[Scheduler] = Scheduler) -> type[Scheduler]:
    """Return the scheduler that orders by expected outputs, or plans with them."""

    class Foreseeing(base):
        def left(self, request: Request) -> int:
            """Tokens to come: the mean of the outputs that are still possible, rounded up."""
            made = request.made + request.in_flight
            if known.chances is not None:
                outputs = possible(request, made)
                whole = sum(outputs.values())
                mean = sum(o * chance for o, chance in outputs.items()) / whole if whole else 0
                return max(1, math.ceil(mean - made))
            low, high = (max(b[request.index], made + 1) for b in (known.lower, known.upper))
            return math.ceil((low + high) / 2) - made

        def rank(self, request: Request) -> None:
            if known.key is not None:
                whole = request.prompt + request.made
                request.priority = known.key(whole, self.left(request), request)

        def add(self, request: Request) -> None:
            self.rank(request)
            super().add(request)

        def put_back(self, request: Request) -> None:
            self.rank(request)
            super().put_back(request)

        def is_planned(self, request: Request) -> bool:
            group = [*self.running, request]
            if len(group) == 1 or not known.plan:
                return True
            lag = int(self.settings.async_scheduling)
            if known.chances is not None:
                batches = steps_ahead(max(known.upper))
                return all(self.is_likely(group, ahead, lag) for ahead in batches)
            for ahead in {self.left(r) + lag for r in group}:
                there, more = set(), 0
                for r in group:
                    if self.left(r) + lag >= ahead:
                        stored = r.known + r.in_flight + min(ahead, self.left(r)) - 1
                        held = self.holding(r)
                        there |= set(map(id, held))
                        more += self.blocks_for(stored) - len(held)
                if len(there) + more > self.usable():
                    return False
            return True

        def is_likely(self, group: list[Request], ahead: int, lag: int) -> bool:
            """Whether the blocks fit so many batches ahead, in the mean and with a margin."""
            mean, variance = Fraction(0), Fraction(0)
            for r in group:
                made = r.made + r.in_flight
                outputs, then = possible(r, made), made + max(0, ahead - lag - 1)
                whole = sum(outputs.values())
                runs = sum(chance for o, chance in outputs.items() if o > then)
                runs = Fraction(runs, whole) if whole else Fraction(0)
                if then <= max(made, known.lower[r.index] - 1):
                    runs = Fraction(1)
                tokens = min(ahead, max(1, known.upper[r.index] - made))
                blocks = self.blocks_for(r.prompt + made + tokens - 1)
                mean += blocks * runs
                variance += blocks**2 * runs * (1 - runs)
            margin = known.deviations * float(variance) ** 0.5
            return float(mean) + margin <= self.usable() + 1e-6

    def possible(request: Request, made: int) -> dict[int, Fraction]:
        """Return the outputs that a request may have, with their chances, not scaled."""
        low = max(made + 1, known.lower[request.index])
        chances = enumerate(known.chances[request.index], 1)
        return {o: chance for o, chance in chances if low <= o <= known.upper[request.index]}

    return Foreseeing


def steps_ahead(longest: int) -> list[int]:
    """Batches ahead at which a plan by beliefs looks; blocks are kept for one more."""
    found = [*range(1, 9)]
    while found[-1] < longest + 1:
        found.append(found[-1] + found[-1] // 4)
    return found


def content_of(batch: Batch) -> BatchContent:
    """Return what is in a batch, as clocks count it."""
    prefill = decodes = resident = squares = held = 0
    for request, before, tokens, makes in batch.parts:
        if tokens > 1 or before < request.prompt:
            prefill += tokens
            squares += (before + tokens) ** 2 - before**2
        else:
            decodes += 1
            resident += before + 1
        held += before + tokens + makes
    return BatchContent(prefill, decodes, resident, squares, held)


def run(
    requests: Sequence[Request],
    settings: Settings,
    clock: Callable[[BatchContent], float],
    until: float = float("inf"),
    scheduler: type[Scheduler] = Scheduler,
    pause: float = float("inf"),
    step: float = 1e-6,
) -> Outcome:
    """Serve requests; batches follow each other, and two are in flight if asynchronous.

    At a pause nothing is formed any more, and what is in flight then stays there. A turn comes at
    the first step after its pause, counted from the first step after the end of the one before it.
    """
    engine = scheduler(settings)
    outcome = Outcome(list(requests), engine=engine)
    until = min(until, pause)
    coming = sorted((r for r in requests if r.after < 0), key=lambda r: r.arrival)
    depth = 2 if settings.async_scheduling else 1
    flying: list[tuple[int, Batch, float]] = []
    now = free_from = 0.0
    while any(r.last is None for r in requests):
        while coming and coming[0].arrival <= now:
            engine.add(coming.pop(0))
        if len(flying) < depth and (engine.waiting or engine.running) and now < until:
            batch = engine.schedule()
            if batch.parts:
                content = content_of(batch)
                begin = max(now, free_from)
                free_from = begin + clock(content)
                flying.append((len(outcome.batches), batch, free_from))
                outcome.batches.append(batch)
                outcome.contents.append(content)
                outcome.spans.append((begin, free_from))
                continue
            if batch.row[-1] and not flying:
                continue  # all were preempted: the queue goes on
        if flying and flying[0][-1] > pause:
            outcome.in_flight = [batch for _, batch, _ in flying]
            break
        if flying:
            number, batch, end = flying.pop(0)
            now = max(now, end)
            engine.update(batch, number)
            for r in requests:
                if r.after >= 0 and requests[r.after].last == number:
                    r.arrival = max(r.arrival, (math.ceil(end / step) + r.pause) * step)
                    coming.append(r)
            coming.sort(key=lambda r: (r.arrival, r.index))
        elif coming and now < until:
            now = coming[0].arrival
        else:
            break
    return outcome
