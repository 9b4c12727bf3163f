"""Simulators with a clock as one would write them down first: slow, literal, event by event."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from optsched.clock import BatchContent


@dataclass
class Request:
    """A request and what has become of it."""

    index: int
    prompt: int
    output: int
    arrival: float
    made: int = 0
    held: int = 0  # tokens in the KV cache
    to_prefill: int = 0
    first: float | None = None
    last: float | None = None
    begun: int = -1  # batches of the first and the last token, by index
    ended: int = -1
    returns: int = 0  # times its KV cache was taken away
    lost: int = 0


@dataclass
class Outcome:
    """Times of the first and the last token, and all batches: (begin, end, content, usage)."""

    requests: list[Request]
    batches: list[tuple[float, float, BatchContent, int]] = field(default_factory=list)
    states: list[dict[int, tuple[int, int]]] = field(default_factory=list)  # tokens held, and made


def requests_of(
    prompts: Sequence[int], outputs: Sequence[int], arrivals: Sequence[float]
) -> list[Request]:
    rows = zip(prompts, outputs, arrivals, strict=True)
    return [Request(i, int(s), int(o), float(a)) for i, (s, o, a) in enumerate(rows)]


def run(
    requests: list[Request],
    clock: Callable[[BatchContent], float],
    decide: Callable[[float, bool], dict[int, int] | None],
    until: float = float("inf"),
) -> Outcome:
    """Form the batches that `decide(now, no more arrivals)` gives.

    That is, by request, the tokens to prefill, 0 for a decode. An empty answer waits for the next
    arrival.
    """
    outcome = Outcome(requests)
    now = 0.0
    while any(r.last is None for r in requests):
        last_arrival = all(r.arrival <= now for r in requests)
        if now >= until:
            break
        plan = decide(now, last_arrival)
        if not plan:
            later = [r.arrival for r in requests if r.arrival > now]
            if not later:
                break
            now = min(later)
            continue
        prefill = decodes = resident = squares = held = 0
        for index, tokens in plan.items():
            r = requests[index]
            if tokens:
                prefill += tokens
                squares += (r.held + tokens) ** 2 - r.held**2
                r.held += tokens
                r.to_prefill -= tokens
            else:
                decodes += 1
                resident += r.held
            if r.to_prefill == 0:
                r.held += 1
                r.made += 1
            held += r.held
        content = BatchContent(prefill, decodes, resident, squares, held)
        usage = sum(r.held for r in requests)
        outcome.states.append({r.index: (r.held, r.made) for r in requests if r.last is None})
        begin, now = now, now + clock(content)
        outcome.batches.append((begin, now, content, usage))
        for index in plan:
            r = requests[index]
            if r.made == 1 and r.first is None:
                r.first, r.begun = now, len(outcome.batches) - 1
            if r.made == r.output:
                r.last, r.ended = now, len(outcome.batches) - 1
                r.held = 0
    return outcome


def admission(
    requests: list[Request],
    memory: int,
    order: Sequence[int] | Callable[[list[int], float], Sequence[int]],
    ratio: float = 1,
    length: int = 1,
) -> Callable[[float, bool], dict[int, int]]:
    """Admit in an order while memory holds at every future completion, as outputs are known.

    Past one that does not fit go those among the first `length` that wait whose memory-time is at
    most a ratio times its own: (1, 1) is the prefix rule, (infinite, all) is skip. The order is
    that of all requests, or says how those that wait are ordered, and is asked again and again.
    """
    started: list[Request] = []

    def area(r: Request) -> int:
        return sum(r.prompt + u for u in range(1, r.output + 1))

    def fits(group: list[tuple[int, int]]) -> bool:
        return all(
            sum(held + ahead for held, left in group if left >= ahead) <= memory
            for ahead in {left for _, left in group}
        )

    def decide(now: float, _: bool) -> dict[int, int]:
        running = [r for r in started if r.last is None]
        group = [(r.held, r.output - r.made) for r in running]
        plan = {r.index: 0 for r in running}
        tried: list[Request] = []
        head, bound = None, 0.0
        while there := [r.index for r in requests if r.arrival <= now and r not in started]:
            listed = order(there, now) if callable(order) else [i for i in order if i in there]
            waiting = [requests[index] for index in listed]
            if waiting[0] is not head:
                head = waiting[0]
                bound = ratio * area(head)
            able = [r for r in waiting[:length] if area(r) <= bound and r not in tried]
            if not able:
                break
            r = able[0]
            tried.append(r)
            if fits([*group, (r.prompt, r.output)]):
                group.append((r.prompt, r.output))
                started.append(r)
                r.to_prefill = plan[r.index] = r.prompt
        return plan

    return decide


def engine(
    requests: list[Request],
    memory: int,
    how: str,
    requests_most: int,
    tokens_most: int,
    reserve: int = 0,
    block: int = 1,
) -> Callable[[float, bool], dict[int, int]]:
    """First come, first served without knowing outputs: "mixed", "prefill first", "chunked"."""
    running: list[Request] = []

    def room(tokens: int) -> int:
        return block * math.ceil(tokens / block)

    def promised() -> int:
        return sum(room(r.held + r.to_prefill + 1) for r in running)

    def admit(now: float, budget: int) -> dict[int, int]:
        plan: dict[int, int] = {}
        for r in sorted(requests, key=lambda r: r.index):
            if r.arrival > now or r.last is not None or r in running:
                continue
            target = r.prompt + r.made
            kept = reserve if running else 0
            if len(running) == requests_most or promised() + room(target + 1) + kept > memory:
                break
            if how == "chunked":
                if budget <= 0:
                    break
                tokens = min(target, budget)
            else:
                alone = target > tokens_most and not plan
                if target > budget and not alone:
                    break
                tokens = target
            r.to_prefill = target
            running.append(r)
            plan[r.index] = tokens
            budget -= tokens
        return plan

    def decide(now: float, _: bool) -> dict[int, int]:
        running[:] = [r for r in running if r.last is None]
        if how == "prefill first" and (plan := admit(now, tokens_most)):
            return plan
        returned = False
        while promised() > memory:
            r = running.pop()
            r.returns += 1
            r.lost += r.held
            r.held = r.to_prefill = 0
            returned = True
        plan = {r.index: 0 for r in running if r.to_prefill == 0}
        if how == "prefill first":
            return plan
        budget = tokens_most - len(plan)
        for r in running:
            if r.to_prefill and (tokens := min(r.to_prefill, max(budget, 0))):
                plan[r.index] = tokens
                budget -= tokens
        return plan if returned else plan | admit(now, budget)

    return decide


def thresholds(
    requests: list[Request],
    memory: int,
    entrance: Sequence[int],
    before: Sequence[int],
    length: Sequence[int],
    levels: Callable[[float], Sequence[int]],
) -> Callable[[float, bool], dict[int, int]]:
    """WAIT and Nested WAIT by inventories: the requests at each stage of each segment."""
    segments = range(len(before))
    order: list[int] = []  # of admission
    stages: dict[int, list[list[int]]] = {i: [[] for _ in range(length[i])] for i in segments}
    seen: set[int] = set()
    position: dict[int, tuple[int, int]] = {}
    last_plan: dict[int, int] = {}

    def settle(now: float) -> None:
        """Move the requests of the last batch to their next stage."""
        moved = sorted(last_plan, key=list(last_plan).index)
        for index in moved:
            i, k = position[index]
            stages[i][k].remove(index)
        for index in moved:
            i, k = position[index]
            if requests[index].last is not None:
                continue
            if k + 1 == length[i]:
                i, k = before.index(i), 0
            else:
                k += 1
            position[index] = (i, k)
            stages[i][k].append(index)
        last_plan.clear()
        for r in requests:
            if r.arrival <= now and r.index not in seen:
                seen.add(r.index)
                position[r.index] = (entrance[r.index], 0)
                stages[entrance[r.index]][0].append(r.index)

    def propose(level: Sequence[int], flush: bool) -> dict[int, int]:
        plan: dict[int, int] = {}
        joined: set[int] = set()
        for i in segments:
            if flush:
                joins = any(stages[i])
            else:
                parent = before[i] < 0 or before[i] in joined
                joins = parent and len(stages[i][0]) >= level[i]
            if joins:
                joined.add(i)
        old: dict[int, int] = {}
        for i in joined:
            for k, members in enumerate(stages[i]):
                chosen = members[: level[i]] if k == 0 else members
                for index in chosen:
                    if requests[index].held:
                        old[index] = 0
        room = memory - sum(r.held for r in requests) - len(old)
        new: dict[int, int] = {}
        for i in sorted(joined):
            if before[i] < 0:
                for index in stages[i][0][: level[i]]:
                    if requests[index].prompt + 1 > room:
                        break
                    room -= requests[index].prompt + 1
                    new[index] = requests[index].prompt
        # In the order of segments, stages and queues, so that queues keep their order.
        for i in sorted(joined):
            for k in reversed(range(length[i])):
                for index in stages[i][k]:
                    if index in old or index in new:
                        plan[index] = old.get(index, new.get(index, 0))
        propose.room = room  # type: ignore[attr-defined]
        return plan

    def decide(now: float, no_more: bool) -> dict[int, int]:
        settle(now)
        level = levels(now)
        anybody = any(
            any(stages[i]) if no_more else len(stages[i][0]) >= level[i] and before[i] < 0
            for i in segments
        )
        if not anybody:
            return {}
        plan = propose(level, no_more)
        while propose.room < 0 or not plan:  # type: ignore[attr-defined]
            r = requests[order.pop()]
            while r.last is not None or not r.held:
                r = requests[order.pop()]
            i, k = position[r.index]
            stages[i][k].remove(r.index)
            r.returns += 1
            r.lost += r.made
            r.made = r.held = r.to_prefill = 0
            r.first, r.begun = None, -1
            position[r.index] = (entrance[r.index], 0)
            stages[entrance[r.index]][0].insert(0, r.index)
            plan = propose(level, no_more)
        for i in segments:  # admissions in the order of segments
            for index in stages[i][0]:
                if index in plan and not requests[index].held:
                    requests[index].to_prefill = requests[index].prompt
                    order.append(index)
        last_plan.update(plan)
        return plan

    return decide
