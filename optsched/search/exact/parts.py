r"""Exact search of few requests: part by part on several workers, and of one part on one.

**Parts.** The least cost is the least :math:`\sum_g \mathrm{OPT}(S_g)` over partitions of the
requests into at most :math:`G` parts. Every subset has a lower bound, raised only where it matters,
all in integers:

- optima of small parts come first, and bound larger ones: a request costs at least its output more;
- prices and sizes of the configuration bound charge each request :math:`c_i`, and a worker is worth
  :math:`v`, so that :math:`\mathrm{OPT}(S) \ge \sum_{i \in S} c_i - v`. A part whose bound
  exceeds this by as much as the best schedule exceeds the bound of all, is in no better schedule;
- parts are chosen in depth: the next one holds the largest request that is left. A part is put in
  its best order only as far as is asked: is its optimum below what the best schedule leaves it?

**An order** of a part, or of few requests on one worker, is searched in depth: requests start in
the order of time, all that fit or fewer at each step. A node is dropped

- if its bound is no better than the best schedule: of the waiting requests, k complete only once
  the k smallest areas, and no request before its output, found room beside what runs;
- if a waiting request agrees in everything with one that it lets start before it;
- if one of its requests could have started a step earlier, all else as it is. At a start
  :math:`k` after the arrival the first token had no room at step :math:`k`, or memory becomes
  full, to the last token, while the request runs.

The first two rules leave one optimum, and no optimum breaks the third.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import stopwatch
from optsched._internal.compiled import compiled, compiled_inside
from optsched.bounds.configurations import charges_of_starts
from optsched.errors import CertificateError, OptschedError
from optsched.models.program import Stopped
from optsched.problem.schedule import Schedule
from optsched.search.exact.search import ExactResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import IntArray
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


@compiled
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
    """Tell whether a request can start at the clock."""
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


@compiled_inside
def _hold(usage: IntArray, prompt: int, output: int, start: int, sign: int) -> None:
    """Add what a request holds, or with the sign -1 take it away."""
    for token in range(1, output + 1):
        usage[start + token] += sign * (prompt + token)


@compiled_inside
def _members(few: Few, part: int) -> tuple[IntArray, IntArray, IntArray, IntArray, int, int]:
    """List the requests of a part; return room for a schedule, the first clock and the last."""
    members, starts, due = np.empty((3, len(few.outputs)), dtype=np.int64)
    size, longest, reach, clock, late = 0, 0, 0, 2**62, 0
    for request in range(len(few.outputs)):
        if part >> request & 1:
            members[size], starts[request] = request, -1
            size += 1
            reach += few.outputs[request]
            longest = max(longest, few.outputs[request])
            clock, late = min(clock, few.arrivals[request]), max(late, few.arrivals[request])
    usage = np.empty(late + reach + longest + 2, dtype=np.int64)
    for step in range(len(usage)):
        usage[step] = 0
    return members[:size], starts, due, usage, clock, late + reach


# What is known of a node of the search in depth: the request that it starts, or -1 where it moves
# the clock on; which member is tried next; the clock, the last step of full memory, the cost, what
# waits as bits and its number.
_REQUEST, _NEXT, _CLOCK, _FULL, _COST, _LEFT, _WAITING = range(7)


@compiled_inside
def _put(
    node: IntArray,
    request: int,
    after: int,
    clock: int,
    full: int,
    cost: int,
    left: int,
    waits: int,
) -> None:
    node[_REQUEST], node[_NEXT], node[_CLOCK], node[_FULL] = request, after, clock, full
    node[_COST], node[_LEFT], node[_WAITING] = cost, left, waits


@compiled
def order_part(
    few: Few, part: int, lower: IntArray, least: int, best: IntArray, work: int
) -> tuple[int, int]:
    """Find the least sum of starts of a subset below `least`, and the starts; return it.

    `least` comes back where there is none. Beside it stands the work left, negative if the search
    was given up.
    """
    prompts, outputs, arrivals, memory = few.prompts, few.outputs, few.arrivals, few.memory
    members, starts, due, usage, clock, last = _members(few, part)
    size = len(members)
    nodes = np.empty((last + size + 2, 7), dtype=np.int64)
    _put(nodes[0], -1, 0, clock, -1, 0, part, size)
    depth = 0
    while depth >= 0:
        node = nodes[depth]
        index, clock, full = node[_NEXT], node[_CLOCK], node[_FULL]
        cost, left, waiting = node[_COST], node[_LEFT], node[_WAITING]
        node[_NEXT] = index + 1
        # Start one more request at the clock.
        if index < size:
            request = members[index]
            prompt, output, twin = prompts[request], outputs[request], few.twin[request]
            comes_later = twin >= 0 and left >> twin & 1
            if starts[request] >= 0 or arrivals[request] > clock or comes_later:
                continue
            work -= output
            early = arrivals[request] < clock and usage[clock] + prompt < memory
            if not _fits(usage, clock, prompt, output, memory) or (early and output == 1):
                continue
            starts[request], due[request] = clock, clock + output - 1 if early else 0
            if waiting > 1:
                _hold(usage, prompt, output, clock, 1)
                rest = left ^ (1 << request)
                depth += 1
                _put(nodes[depth], request, index + 1, clock, full, cost + clock, rest, waiting - 1)
                continue
            if cost + clock < least:
                least = cost + clock
                for other in members:
                    best[other] = starts[other]
            starts[request] = -1
            node[_NEXT] = size + 1  # no later start is better
        # Move the clock on.
        elif index == size:
            if cost + waiting * (clock + 1) >= least:
                continue
            then, full = _next_clock(few, members, starts, due, usage, clock, full, last)
            work -= 10 * (max(then, clock) - clock) + 10
            if work < 0:
                return least, _EXHAUSTED
            if then < 0:
                continue
            work -= 10 * size
            if cost + _least_rest(few, members, starts, usage, then, lower[left]) < least:
                depth += 1
                _put(nodes[depth], -1, 0, then, full, cost, left, waiting)
        # Go back to the node before.
        else:
            request = node[_REQUEST]
            if request >= 0:
                _hold(usage, prompts[request], outputs[request], clock, -1)
                starts[request] = -1
            depth -= 1
    return least, max(work, 0)


MOST = 20  # requests whose subsets are tabulated
_BEYOND = 2  # requests more than a worker's share, up to which parts are put in order first
_MANY = 8000  # parts of one size that are too many for that
_WORK = 200_000_000  # of one order between two looks at the clock
_MORE = 4  # times as much when it was not enough


def _least_below(
    few: Few,
    part: int,
    lower: IntArray,
    least: int,
    stop: Callable[[], bool],
    most: float = math.inf,
) -> tuple[int, IntArray] | None:
    """Call `order_part` with ever more work; None where `stop` says so or it takes too much."""
    work, best = min(_WORK, most), np.full(len(few.outputs), -1)
    while not stop():
        found, left = order_part(few, part, lower, least, best, int(work))
        if left >= 0:
            return int(found), best
        if work == most:
            break
        work = min(_MORE * work, most)
    return None


class _GivenUp(Exception):  # noqa: N818  # no error: how the search is left
    """The search is given up."""


def solve_parts(
    upper: Schedule,
    certificate: ConfigurationCertificate,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ExactResult:
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
    return ExactResult(search.schedule(), search.lowest, stopped, search.ordered, seconds)


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
        self.ordered += 1
        if (ordered := _least_below(self.few, part, self.lower, least, self.stop)) is None:
            raise _GivenUp
        found, best = ordered
        if found < least:
            self.starts[part], self.known[part] = best, True
        self.lower[part] = max(int(self.lower[part]), found)

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


_MOST_FEW = 12


def solve_few(
    instance: Instance,
    upper: Schedule,
    work: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> Schedule | None:
    """Return a schedule of least total latency on one worker, `upper` if none is better.

    None if that takes more work (`order_part`), or `stop` says so between two looks at it.
    """
    if len(instance) > _MOST_FEW or instance.deadlines is not None:
        raise OptschedError(
            f"{instance.name} has {len(instance)} requests, or deadlines; at most {_MOST_FEW} "
            "without deadlines can be enumerated"
        )
    order = np.argsort(instance.areas, kind="stable")
    few, lower = _few(instance, order), np.zeros(2 ** len(order), dtype=np.int64)
    bound_parts(few, lower)
    least = int(upper.starts.sum())
    if (found := _least_below(few, len(lower) - 1, lower, least, stop, work)) is None:
        return None
    return upper if found[0] == least else Schedule(instance, found[1][ranks_in(order)], "exact")
