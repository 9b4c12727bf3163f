r"""Exact search of few requests: part by part on several workers, and by growth on one.

**Parts.** The least cost is the least :math:`\sum_g \mathrm{OPT}(S_g)` over partitions of the
requests. Every subset has a lower bound, from smaller parts and from what sizes charge its requests
and pay a worker; it is put in its best order only as far as is asked.

**Growth.** Step by step every partial schedule is kept, unless its bound is no better than the best
schedule, another one has started the same requests, costs no more and holds no more at any step, or
one of its requests could have started a step earlier: the first token had no room then, or memory
becomes full while the request runs, up to its last token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, compiled_inside
from optsched.bounds.configurations import charges_of_starts
from optsched.errors import CertificateError, OptschedError
from optsched.models.program import Stopped
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.certificates.prices import ConfigurationCertificate
    from optsched.problem.instance import Instance


_EXHAUSTED = -1  # work that is left where a search was given up


class Few(NamedTuple):
    """Few requests by ascending memory-time, and one worker."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    areas: IntArray
    twin: IntArray  # the last request before that agrees in everything, or -1
    memory: int


@allocating
def bound_parts(few: Few, lower: IntArray) -> None:
    """Bound the sum of starts of every subset from below, given bounds that may be zero."""
    # Of k requests that have completed the memory-time had room, and the k shortest outputs are
    # over; and a request costs at least its arrival on top of what the others cost without it.
    outputs, arrivals, areas = few.outputs, few.arrivals, few.areas
    count, memory = len(outputs), few.memory
    ascending = np.empty(count, dtype=np.int64)
    for part in range(1, len(lower)):
        best, size, longest = lower[part], 0, 0
        for request in range(count):
            if part >> request & 1:
                output = outputs[request]
                longest += output
                place = size
                while place > 0 and ascending[place - 1] > output:
                    ascending[place] = ascending[place - 1]
                    place -= 1
                ascending[place] = output
                size += 1
        total, held, size = 0, 0, 0
        for request in range(count):
            if part >> request & 1:
                held += areas[request]
                total += max(-(-held // memory), ascending[size])
                size += 1
                best = max(best, lower[part ^ (1 << request)] + arrivals[request])
        lower[part] = max(best, total - longest)


@compiled_inside
def _fits(usage: IntArray, clock: int, prompt: int, output: int, memory: int) -> bool:
    for token in range(1, output + 1):  # noqa: SIM110
        if usage[clock + token] + prompt + token > memory:
            return False
    return True


@compiled_inside
def _next_clock(
    few: Few,
    members: IntArray,
    starts: IntArray,
    due: IntArray,
    usage: IntArray,
    clock: int,
    full: int,
    last: int,
) -> tuple[int, int]:
    """Return the next step at which a request can start, and the last step of full memory."""
    # -1 where there is none up to the last one, or where a request has run that could have started
    # a step earlier, memory not having been full since.
    prompts, outputs, arrivals, memory = few.prompts, few.outputs, few.arrivals, few.memory
    while clock < last:
        clock += 1
        if usage[clock] == memory:
            full = clock
        for index in range(len(members)):
            request = members[index]
            if starts[request] >= 0 and due[request] == clock and full <= starts[request]:
                return -1, full
        for index in range(len(members)):
            request = members[index]
            if starts[request] < 0 and arrivals[request] <= clock:
                prompt, output = prompts[request], outputs[request]
                if _fits(usage, clock, prompt, output, memory):
                    return clock, full
    return -1, full


@compiled_inside
def _least_rest(
    few: Few, members: IntArray, starts: IntArray, usage: IntArray, clock: int, alone: int
) -> int:
    """Bound the sum of starts of what waits from below; `alone` is such a bound from step 0."""
    early, total, longest, count = 0, 0, 0, 0
    room, needed, step, together = 0, 0, clock, True
    for index in range(len(members)):
        request = members[index]
        if starts[request] < 0:
            count += 1
            early += max(clock, few.arrivals[request])
            together = together and few.arrivals[request] == 0
            needed += few.areas[request]
            longest += few.outputs[request]
            while room < needed:
                step += 1
                room += few.memory - (usage[step] if step < len(usage) else 0)
            total += step
    if together:  # all is as from step 0 on
        alone += count * clock
    return max(max(alone, early), total - longest)


@allocating
def order_part(
    few: Few, part: int, lower: IntArray, least: int, best: IntArray, work: int
) -> tuple[int, int]:
    """Find the least sum of starts of a subset below `least`, and the starts; return it."""
    # `least` comes back where there is none. Beside it stands the work left, negative if the search
    # was given up. Requests start in the order of time, all that fit or fewer at each step; a node
    # is dropped if its bound is no better than the best, or if one of its requests could have
    # started a step earlier with all else as it is (see **Growth**).
    prompts, outputs, arrivals, memory = few.prompts, few.outputs, few.arrivals, few.memory
    starts, due = np.empty(len(prompts), dtype=np.int64), np.empty(len(prompts), dtype=np.int64)
    members = np.empty(len(prompts), dtype=np.int64)
    waiting, last, longest, clock = 0, 0, 0, 2**62
    for request in range(len(prompts)):
        starts[request], due[request] = -1, 0
        if part >> request & 1:
            members[waiting] = request
            waiting += 1
            last += outputs[request]
            longest = max(longest, outputs[request])
            clock = min(clock, arrivals[request])
    members = members[:waiting]
    size = waiting
    reach = last
    for index in range(size):
        last = max(last, arrivals[members[index]] + reach)
    usage = np.empty(last + longest + 2, dtype=np.int64)
    for step in range(len(usage)):
        usage[step] = 0
    # Search in depth. A node starts a request, or moves the clock on (-1); it knows what may
    # come next, and before.
    moved = np.empty((4, last + size + 2), dtype=np.int64)
    depth, cost, full, left = 0, 0, -1, part
    moved[0, 0], moved[1, 0] = -2, 0
    while depth >= 0:
        index = moved[1, depth]
        moved[1, depth] = index + 1
        # Start one more request at the clock.
        if index < size:
            request = members[index]
            prompt, output, twin = prompts[request], outputs[request], few.twin[request]
            if starts[request] >= 0 or arrivals[request] > clock:
                continue
            if twin >= 0 and left >> twin & 1:
                continue
            work -= output
            if not _fits(usage, clock, prompt, output, memory):
                continue
            early = arrivals[request] < clock and usage[clock] + prompt < memory
            if early and output == 1:
                continue
            if waiting == 1:
                if cost + clock < least:
                    least = cost + clock
                    for other in range(size):
                        best[members[other]] = starts[members[other]]
                    best[request] = clock
                moved[1, depth] = size + 1  # no later start is better
                continue
            for token in range(1, output + 1):
                usage[clock + token] += prompt + token
            starts[request], due[request] = clock, clock + output - 1 if early else 0
            cost += clock
            left ^= 1 << request
            waiting -= 1
            depth += 1
            moved[0, depth], moved[1, depth] = request, index + 1
        # Move the clock on.
        elif index == size:
            if cost + waiting * (clock + 1) >= least:
                continue
            then, filled = _next_clock(few, members, starts, due, usage, clock, full, last)
            work -= 10 * (max(then, clock) - clock) + 10
            if work < 0:
                return least, _EXHAUSTED
            if then < 0:
                continue
            rest = _least_rest(few, members, starts, usage, then, lower[left])
            work -= 10 * size
            if cost + rest < least:
                depth += 1
                moved[0, depth], moved[1, depth] = -1, 0
                moved[2, depth], moved[3, depth] = clock, full
                clock, full = then, filled
        # Go back to the node before.
        else:
            request = moved[0, depth]
            if request == -1:
                clock, full = moved[2, depth], moved[3, depth]
            elif request >= 0:
                for token in range(1, outputs[request] + 1):
                    usage[starts[request] + token] -= prompts[request] + token
                cost -= starts[request]
                starts[request] = -1
                left ^= 1 << request
                waiting += 1
            depth -= 1
    return least, max(work, 0)


MOST = 20  # requests whose subsets are tabulated
_BEYOND = 2  # requests more than a worker's share, up to which parts are put in order first
_MANY = 8000  # parts of one size that are too many for that
_WORK = 200_000_000  # of one order between two looks at the clock
_MORE = 4  # times as much when it was not enough


@dataclass(frozen=True)
class PartsResult:
    """An interval around the least total latency on several workers."""

    schedule: Schedule
    lower: int  # no schedule on these workers has a smaller total latency
    stopped: Stopped
    ordered: int  # parts whose best order was asked for
    seconds: float


class _GivenUp(Exception):  # noqa: N818  # no error: how the search is left
    """The search is given up."""


def solve_parts(
    upper: Schedule,
    certificate: ConfigurationCertificate,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] | None = None,
) -> PartsResult:
    """Find a schedule of least total latency on several workers, or an interval around it."""
    began = stopwatch()
    instance, workers = upper.instance, upper.workers
    if len(instance) > MOST or instance.deadlines is not None or not workers.equal:
        raise OptschedError(
            f"{instance.name} has {len(instance)} requests, or deadlines, or workers that differ; "
            f"parts of at most {MOST} without deadlines on equal workers can be tabulated"
        )
    if certificate.fingerprint != workers.fingerprint(instance):
        raise CertificateError("the certificate belongs to another instance or other workers")
    search = _Search(upper, certificate, stop, on_progress)
    stopped = search.go()
    seconds = stopwatch() - began
    return PartsResult(search.schedule(), search.lowest, stopped, search.ordered, seconds)


class _Search:
    """What is known of all parts, and the best partition."""

    def __init__(
        self,
        upper: Schedule,
        certificate: ConfigurationCertificate,
        stop: Callable[[], bool],
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.upper, self.stop, self.on_progress = upper, stop, on_progress
        instance = upper.instance.replace(memory=upper.workers.memories[0])
        self.order = np.argsort(instance.areas, kind="stable")
        self.few = _few(instance, self.order)
        count = len(self.order)
        self.workers = min(len(upper.workers), count)
        self.constant = int((instance.outputs - instance.arrivals).sum())
        self.least = upper.total_latency - self.constant
        self.best: tuple[int, ...] = ()
        self.size = np.zeros(2**count, dtype=np.int8)
        self.charge = np.zeros(2**count, dtype=np.int64)
        self.lower = np.zeros(2**count, dtype=np.int64)  # of the sum of starts
        self.known = np.zeros(2**count, dtype=np.bool_)  # whether that is the optimum
        self.known[0] = True
        self.starts: dict[int, IntArray] = {}
        self.rest: dict[tuple[int, int], int] = {}  # bounds of requests on so many workers
        costs, group, self.unit = charges_of_starts(certificate, instance, upper.workers)
        charges = costs.min(axis=1)[group]
        for request, place in enumerate(self.order.tolist()):
            less, more = slice(1 << request), slice(1 << request, 2 << request)
            output, arrival = int(instance.outputs[place]), int(instance.arrivals[place])
            charge = int(charges[place]) - self.unit * (output - arrival)
            self.charge[more] = self.charge[less] + charge
            self.size[more] = self.size[less] + 1
        total = int(certificate.value * self.unit) - self.unit * self.constant
        self.worth = (int(self.charge[-1]) - total) // len(upper.workers)  # of one worker
        self.lowest = min(math.ceil(certificate.value), upper.total_latency)
        self.ordered = 0

    def go(self) -> Stopped:
        """Search until the best partition is proven or the search is given up."""
        try:
            self._tabulate()
            self.lists = self._candidates()
            everyone = len(self.lower) - 1
            for least, parts in self._better(everyone, self.workers, self.least):
                self.least, self.best = least, parts
        except _GivenUp:
            return Stopped.INTERRUPTED
        self.lowest = self.least + self.constant
        return Stopped.OPTIMAL

    def schedule(self) -> Schedule:
        """Return the best schedule."""
        if not self.best:
            return self.upper
        starts, placement = np.zeros((2, len(self.order)), dtype=np.int64)
        for worker, part in enumerate(self.best):
            members = np.flatnonzero(part >> np.arange(len(self.order)) & 1)
            starts[self.order[members]] = self.starts[part][members]
            placement[self.order[members]] = worker
        upper = self.upper
        return Schedule(upper.instance, starts, "exact", workers=upper.workers, placement=placement)

    def _tabulate(self) -> None:
        """Bound all parts, size by size; those of a worker's share at most are put in order."""
        count, room = len(self.order), self._room()
        bound_parts(self.few, self.lower)
        for size in range(1, count + 1):
            parts = np.flatnonzero(self.size == size)
            for request, arrival in enumerate(self.few.arrivals.tolist()):
                mine = parts[parts >> request & 1 == 1]
                before = self.lower[mine ^ 1 << request] + arrival
                self.lower[mine] = np.maximum(self.lower[mine], before)
            worth = parts[self.unit * self.lower[parts] - self.charge[parts] <= room]
            if self.workers * size < count + self.workers * _BEYOND and len(worth) <= _MANY:
                most = (room + self.charge[worth]) // self.unit + 1
                for part, least in zip(worth.tolist(), most.tolist(), strict=True):
                    self._order(part, least)

    def _room(self) -> int:
        """Return how much more than its charges a part may cost in a better schedule."""
        total = int(self.charge[-1]) - self.workers * self.worth
        return (self.least - 1) * self.unit - total - self.worth

    def _candidates(self) -> list[IntArray]:
        """List the parts that a better schedule may have, by their largest request."""
        parts = np.flatnonzero(self.unit * self.lower - self.charge <= self._room())
        largest = np.searchsorted(1 << np.arange(len(self.order)), parts, side="right") - 1
        return [parts[largest == request] for request in range(len(self.order))]

    def _order(self, part: int, least: int) -> None:
        """Find the optimum of a part if it is below `least`, or raise its bound to that."""
        work, best = _WORK, np.full(len(self.order), -1)
        self.ordered += 1
        while True:
            if self.stop():
                raise _GivenUp
            found, left = order_part(self.few, part, self.lower, least, best, work)
            if left >= 0:
                break
            work *= _MORE
        if found < least:
            self.starts[part], self.known[part] = best, True
        self.lower[part] = max(int(self.lower[part]), int(found))

    def _least_rests(self, parts: IntArray, workers: int) -> IntArray:
        """Bound what each set of requests costs on so many workers."""
        paid = -((workers * self.worth - self.charge[parts]) // self.unit)
        alone = self.lower[parts] if workers == 1 else 0
        return np.asarray(np.maximum(alone, paid), dtype=np.int64)

    def _better(self, left: int, workers: int, least: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Find ever better partitions of what is left, of costs below `least`."""
        if left == 0:
            yield 0, ()
            return
        if workers == 1:
            if not self.known[left] and self.lower[left] < least:
                self._order(left, least)
            if self.known[left] and self.lower[left] < least:
                yield int(self.lower[left]), (left,)
            return
        parts = self.lists[left.bit_length() - 1]
        parts = parts[(parts & ~left) == 0]
        bounds = self._least_rests(left ^ parts, workers - 1)
        sums = self.lower[parts] + bounds
        order = np.argsort(sums, kind="stable")
        top = workers == self.workers
        for index in order[: np.searchsorted(sums[order], least)].tolist():
            part, key = int(parts[index]), (left ^ int(parts[index]), workers - 1)
            if top:
                self._raise(int(sums[index]))
            rest = max(int(bounds[index]), self.rest.get(key, 0))
            if self.lower[part] + rest < least and not self.known[part]:
                self._order(part, least - rest)
            if self.lower[part] + rest >= least:
                continue
            mine = int(self.lower[part])
            for others, chosen in self._better(*key, least - mine):
                least = mine + others
                yield least, (part, *chosen)
            self.rest[key] = max(rest, least - mine)

    def _raise(self, lowest: int) -> None:
        """Note that no partition that is left costs less than this."""
        self.lowest = max(self.lowest, min(lowest, self.least) + self.constant)
        if self.on_progress is not None:
            self.on_progress(self.lowest, self.least + self.constant)


def _few(instance: Instance, order: IntArray) -> Few:
    rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals])[order]
    twin = np.full(len(order), -1)
    last: dict[tuple[int, ...], int] = {}
    for request, row in enumerate(map(tuple, rows.tolist())):
        twin[request] = last.get(row, -1)
        last[row] = request
    prompts, outputs, arrivals = rows.T.copy()
    return Few(prompts, outputs, arrivals, instance.areas[order], twin, instance.memory)


_MOST_GROWN = 12  # requests whose sets are tabulated
_LEADERS = 4  # of each set of requests, with which the others are compared
_NEVER = np.iinfo(np.int64).max


class _Nodes(NamedTuple):
    """Partial schedules of one clock, one per row: all that starts before it is decided."""

    started: IntArray  # (nodes,): a set of requests, as bits
    cost: IntArray  # sum of the starts
    held: IntArray  # tokens at the clock
    due: IntArray  # step by which memory must have been full
    starts: IntArray  # (nodes, n)
    ahead: IntArray  # (nodes, longest output): tokens held at the steps after the clock

    def take(self, index: IntArray | BoolArray) -> _Nodes:
        return _Nodes._make(array[index] for array in self)

    def join(self, other: _Nodes) -> _Nodes:
        return _Nodes._make(map(np.concatenate, zip(self, other, strict=True)))


def solve_few(
    instance: Instance,
    upper: Schedule,
    work: float = np.inf,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """Return a schedule of least total latency, `upper` if none is better."""
    # None if there is more work than this, counted in steps ahead of partial schedules, or if
    # `stop` says so between two steps.
    if len(instance) > _MOST_GROWN or instance.deadlines is not None:
        raise OptschedError(
            f"{instance.name} has {len(instance)} requests, or deadlines; at most {_MOST_GROWN} "
            "without deadlines can be enumerated"
        )
    search = _Enumeration(instance, upper)
    while len(search.nodes.cost):
        work -= search.nodes.ahead.size
        if work < 0 or stop():
            return None
        search.start()
        search.complete()
        search.move_on()
        search.sift()
    return search.best


class _Enumeration:
    """The partial schedules at a clock, and the best schedule so far."""

    def __init__(self, instance: Instance, upper: Schedule) -> None:
        self.instance, self.best = instance, upper
        self.least = int(upper.starts.sum())
        count, longest = len(instance), int(instance.outputs.max())
        self.clock = int(instance.arrivals[0])
        none, starts, ahead = (np.zeros(shape, np.int64) for shape in (1, (1, count), (1, longest)))
        self.nodes = _Nodes(none, none, none, np.full(1, _NEVER), starts, ahead)
        # Of the requests that wait, by the set that has started: how many, areas, outputs.
        waits = ~np.arange(2**count)[:, None] >> np.arange(count) & 1
        self.waiting = waits.sum(axis=1)
        self.areas = np.cumsum(np.sort(waits * instance.areas, axis=1), axis=1)
        self.outputs = np.sort(waits * instance.outputs, axis=1)
        self.longest = self.outputs.sum(axis=1)

    def start(self) -> None:
        """Let every request start, or wait, wherever it can do either."""
        memory, clock = self.instance.memory, self.clock
        for request in range(len(self.instance)):
            prompt, output, arrival = (
                int(array[request])
                for array in (self.instance.prompts, self.instance.outputs, self.instance.arrivals)
            )
            if arrival > clock:
                break
            tokens = prompt + np.arange(1, output + 1)
            fits = (self.nodes.ahead[:, :output] + tokens <= memory).all(axis=1)
            fits &= self.nodes.started >> request & 1 == 0
            early = (arrival < clock) & (self.nodes.held + prompt < memory)
            if output == 1:
                fits &= ~early
            more = self.nodes.take(fits)
            due = np.where(early[fits], clock + output - 1, _NEVER)
            more.starts[:, request] = clock
            more.ahead[:, :output] += tokens
            self.nodes = self.nodes.join(
                more._replace(
                    started=more.started | 1 << request,
                    cost=more.cost + clock,
                    due=np.minimum(more.due, due),
                )
            )

    def complete(self) -> None:
        """Take out the nodes that have started all requests, and keep the best."""
        done = self.waiting[self.nodes.started] == 0
        if done.any():
            found = self.nodes.take(done)
            place = int(np.argmin(found.cost))
            if found.cost[place] < self.least:
                self.least = int(found.cost[place])
                self.best = Schedule(self.instance, found.starts[place], "exact")
            self.nodes = self.nodes.take(~done)

    def move_on(self) -> None:
        """Go to the next step."""
        self.clock += 1
        held, due = self.nodes.ahead[:, 0].copy(), self.nodes.due
        due[held == self.instance.memory] = _NEVER
        self.nodes.ahead[:, :-1] = self.nodes.ahead[:, 1:]
        self.nodes.ahead[:, -1] = 0
        self.nodes = self.nodes._replace(held=held).take(due > self.clock)

    def sift(self) -> None:
        """Drop what cannot become better than the best, or than another."""
        cheap = self.nodes.cost + self.waiting[self.nodes.started] * self.clock < self.least
        self.nodes = self.nodes.take(cheap)
        self.nodes = self.nodes.take(self._bounds() < self.least)
        nodes = self.nodes = self.nodes.take(np.lexsort((self.nodes.cost, self.nodes.started)))
        first = np.flatnonzero(np.diff(nodes.started, prepend=-1))
        leader = np.repeat(first, np.diff(first, append=len(nodes.cost)))
        rank = np.arange(len(nodes.cost)) - leader
        needless = np.zeros(len(nodes.cost), dtype=bool)
        for place in range(_LEADERS):
            index = np.flatnonzero((rank > place) & ~needless)
            less = nodes.ahead[leader[index] + place] <= nodes.ahead[index]
            needless[index] = less.all(axis=1)
        self.nodes = nodes.take(~needless)

    def _bounds(self) -> IntArray:
        """Return the least sum of starts that each node can lead to."""
        nodes, memory = self.nodes, self.instance.memory
        free = np.cumsum(memory - nodes.ahead, axis=1)
        longest = free.shape[1]
        steps = np.zeros(len(nodes.cost), dtype=np.int64)
        for place in range(len(self.instance)):
            area = self.areas[nodes.started, place]
            end = 1 + (free < area[:, None]).sum(axis=1)
            end += np.where(end > longest, -(-(area - free[:, -1]) // memory) - 1, 0)
            # Those that have started come first, as areas of zero.
            steps += np.where(area > 0, np.maximum(end, self.outputs[nodes.started, place]), 0)
        waiting = self.waiting[nodes.started] * self.clock - self.longest[nodes.started]
        bounds: IntArray = nodes.cost + waiting + steps
        return bounds
