r"""Dynamic programming over states.

A state is a set of running requests, with the steps that each has left, and the number :math:`r` of
requests that are still to start. A step costs :math:`r`, and a start of request i pays its
multiplier :math:`\lambda_i`. A schedule is a path from the empty set to :math:`r = 0`. Paths may
start a request again when it has completed, and leave out others; so for any multipliers the
cheapest path, plus :math:`\sum_i \lambda_i`, is a bound (state-space relaxation: Christofides,
Mingozzi and Toth, 1981). Subgradient steps raise it: a request that the path starts twice pays
less, one that it leaves out pays more.

States through which no path is cheaper than the best schedule go. Then one more request is tracked:
states say whether it has started, and no path starts it twice or leaves it out (successive
sublimation: Ibaraki and Nakamura, 1994; Tanaka, Fujikuma and Araki, 2009). When all are tracked,
paths are schedules; mostly the bound meets the best schedule long before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.compiled import compiled, compiled_inside
from optsched.bounds.configurations import charges_of_starts
from optsched.errors import OptschedError
from optsched.models.program import Stopped
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers
from optsched.search.exact.search import ExactResult

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.prices import ConfigurationCertificate
    from optsched.problem.instance import Instance

    Int32Array = npt.NDArray[np.int32]

#: More than every path costs, in units of a graph.
FAR = 2**30
#: In place of a request, where none is to be tracked.
NONE = -1
_PER_SET = 6  # blocks and children for which there is room, per set


class States(NamedTuple):
    """States with as many requests to start; later ones have smaller numbers."""

    later: Int32Array  # the next state in which nothing has started, -1 if none
    pause: Int32Array  # steps until then
    begin: Int32Array  # of the starts of each state, and their number
    request: Int32Array  # what is started
    target: Int32Array  # where that leads, among states with one request fewer to start
    delay: Int32Array  # steps until then

    @classmethod
    def empty(cls, states: int, starts: int) -> States:
        """Reserve memory, which is taken when it is written."""
        sizes = states, states, states + 1, starts, starts, starts
        return cls(*(np.empty(size, dtype=np.int32) for size in sizes))

    def cut(self, starts: int) -> States:
        """Return the arrays without what was reserved beyond so many starts."""
        return States(*self[:3], *(array[:starts].copy() for array in self[3:]))


class Sets(NamedTuple):
    """A trie of running sets: requests with the steps that each has left."""

    parent: Int32Array  # the set without its last request
    last: npt.NDArray[np.int16]  # the last request, -1 of the empty set
    left: Int32Array  # steps left of it
    rows: Int32Array  # first entry in `blocks`; there is one for each request after the last
    blocks: Int32Array  # first entry in `children`, -1 if there is none with this request
    children: Int32Array  # by steps left of the request; -1 if it does not fit

    @classmethod
    def empty(cls, most: int) -> Sets:
        """Reserve memory, which is taken when it is written."""
        sizes = most, most, most, _PER_SET * most, _PER_SET * most
        parent, *others = (np.empty(size, dtype=np.int32) for size in sizes)
        return cls(parent, np.empty(most, dtype=np.int16), *others)


@compiled
def enumerate_sets(
    outputs: IntArray, peaks: IntArray, limit: int, sets: Sets, ahead: IntArray, stack: IntArray
) -> int:
    """List the sets that fit to their ends in lexicographic order; return -1 if they are many.

    `ahead` and `stack` are zeros, shapes (2, n + 2, longest output + 1) and (3, n + 1).
    """
    parent, last, left, rows, blocks, children = sets
    count, longest = len(outputs), ahead.shape[2] - 1
    # Of the requests chosen so far, by their number and by steps ahead; with the step at the worst
    # completion before. And how many end then.
    held, worst, ending = ahead[0], ahead[1], ahead[0, count + 1]
    # The request to be added next, and the steps left of it when it was added before.
    node, request, steps = stack[0], stack[1], stack[2]
    parent[0], last[0], left[0], rows[0] = 0, -1, 0, 0
    request[0] = count - 1
    blocks[:count] = -1
    total, rows_used, used = 1, count, 0
    depth = 0
    while depth >= 0:
        here, chosen = node[depth], request[depth]
        if chosen <= last[here]:
            ending[left[here]] -= 1
            depth -= 1
            continue
        # It needs room at its completion, and at those of others before it.
        output, peak = outputs[chosen], peaks[chosen]
        step = max(steps[depth], peak + held[depth, 1] - limit) + 1
        while step <= output and (
            held[depth, step] + peak > limit or worst[depth, step] + peak - step > limit
        ):
            step += 1
        if step > output:
            request[depth] -= 1
            steps[depth] = 0
            continue
        steps[depth] = step
        place = rows[here] + chosen - last[here] - 1
        following = count - 1 - chosen
        full = used + output > len(children) or rows_used + following > len(blocks)
        if full or total == len(parent):
            return -1
        if blocks[place] < 0:
            blocks[place] = used
            children[used : used + output] = -1
            used += output
        children[blocks[place] + step - 1] = total
        parent[total], last[total], left[total], rows[total] = here, chosen, step, rows_used
        blocks[rows_used : rows_used + following] = -1
        rows_used += following
        depth += 1
        node[depth], request[depth], steps[depth] = total, count - 1, 0
        ending[step] += 1
        total += 1
        most = 0
        for later in range(1, longest + 1 if following else 0):
            tokens = held[depth - 1, later] + (peak - step + later if later <= step else 0)
            held[depth, later], worst[depth, later] = tokens, most
            if ending[later]:
                most = max(most, tokens + later)
    return total


@compiled_inside
def _child(sets: Sets, number: int, request: int, left: int) -> int:
    block = sets.blocks[sets.rows[number] + request - sets.last[number] - 1]
    return -1 if block < 0 else sets.children[block + left - 1]


@compiled
def link_sets(outputs: IntArray, sets: Sets, states: States, fresh: Int32Array) -> int:
    """Find what follows on each set; return the number of starts, -1 if there is no room.

    `fresh` gets the last request that starts just now.
    """
    later, _, begin, request, target, _ = states
    later[0], fresh[0], begin[0] = 0, -1, 0
    starts = 0
    for number in range(len(later)):
        if starts + len(outputs) > len(request):
            return -1
        last = sets.last[number]
        if number > 0:
            parent, left = sets.parent[number], sets.left[number]
            after = later[parent]
            later[number] = after if left == 1 else _child(sets, after, last, left - 1)
            fresh[number] = last if left == outputs[last] else fresh[parent]
            # What starts at the same step does so in order.
            if fresh[number] != last:
                for start in range(begin[parent], begin[parent + 1]):
                    if request[start] < last:
                        found = _child(sets, target[start], last, left)
                        if found >= 0:
                            request[starts], target[starts] = request[start], found
                            starts += 1
        for other in range(last + 1, len(outputs)):
            found = _child(sets, number, other, outputs[other])
            if found >= 0:
                request[starts], target[starts] = other, found
                starts += 1
        begin[number + 1] = starts
    later[0] = -1
    return starts


@compiled
def pass_over(states: States, fewer: States, number: Int32Array, steps: Int32Array) -> None:
    """Leave out states in which nothing can start.

    `number` gets the first state from each on that stays, and `steps` those until then.
    """
    later, _, begin, request, target, _ = states
    new_later, new_pause, new_begin, new_request, new_target, new_delay = fewer
    stay = 0
    for state in range(len(later)):
        if begin[state + 1] > begin[state]:
            number[state], steps[state] = stay, 0
            after = later[state]
            new_later[stay] = number[after] if after >= 0 else -1
            new_pause[stay] = steps[after] + 1 if after >= 0 else 0
            new_begin[stay] = begin[state]
            stay += 1
        else:
            after = later[state]
            number[state], steps[state] = number[after], steps[after] + 1
    new_begin[stay] = begin[len(later)]
    for start in range(len(request)):
        new_request[start] = request[start]
        new_target[start], new_delay[start] = number[target[start]], steps[target[start]]


@compiled
def cost_to_go(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    below: Int32Array,
    costs: Int32Array,
) -> None:
    """Find the least cost from each state to the end; a step costs `wait`, less a unit below."""
    later, pause, begin, request, target, delay = states
    for state in range(len(later)):
        best = costs[later[state]] + wait * pause[state] if later[state] >= 0 else FAR
        for start in range(begin[state], begin[state + 1]):
            cost = below[target[start]] + (wait - unit) * delay[start]
            best = min(best, cost - multipliers[request[start]])
        costs[state] = min(best, FAR)


@compiled
def follow(
    states: States,
    multipliers: Int32Array,
    wait: int,
    below: Int32Array,
    costs: Int32Array,
    state: int,
) -> tuple[int, int]:
    """Return the steps that pass on a cheapest path until a start, and its number."""
    later, pause, begin, request, target, delay = states
    steps = 0
    while True:
        for start in range(begin[state], begin[state + 1]):
            cost = below[target[start]] + wait * delay[start] - multipliers[request[start]]
            if cost == costs[state]:
                return steps, start
        steps += pause[state]
        state = later[state]


@compiled
def cost_to_come(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    to_go: Int32Array,
    slack: int,
    tracked: int,
    costs: Int32Array,
    below: Int32Array,
) -> None:
    """Find the least cost from the root to the states here, and by a start below."""
    # Columns: before and after the start of the tracked request. Hopeless states become FAR.
    later, pause, begin, request, target, delay = states
    for state in range(len(later) - 1, -1, -1):
        for started in range(2):
            cost = costs[state, started]
            if cost + to_go[state] > slack:
                costs[state, started] = FAR
                continue
            after = later[state]
            if after >= 0:
                costs[after, started] = min(costs[after, started], cost + wait * pause[state])
            for start in range(begin[state], begin[state + 1]):
                if request[start] != tracked or started == 0:
                    then = 1 if request[start] == tracked else started
                    least = cost - multipliers[request[start]] + (wait - unit) * delay[start]
                    below[target[start], then] = min(below[target[start], then], least)


@compiled
def restricted(
    states: States,
    multipliers: Int32Array,
    wait: int,
    unit: int,
    to_go: tuple[Int32Array, Int32Array],
    slack: int,
    tracked: int,
    places: IntArray,
    costs: Int32Array,
    index: tuple[Int32Array, Int32Array],
    fewer: States,
) -> int:
    """Write down the states and starts that are left, by their new numbers; count the starts."""
    later, pause, begin, request, target, delay = states
    new_later, new_pause, new_begin, new_request, new_target, new_delay = fewer
    go_here, go_below = to_go
    here, below = index
    starts = 0
    for number in range(len(places)):
        state, started, cost = places[number] // 2, places[number] % 2, costs[number]
        after = later[state]
        hopeful = after >= 0 and cost + wait * pause[state] + go_here[after] <= slack
        new_later[number] = here[after, started] if hopeful else -1
        new_pause[number] = pause[state]
        new_begin[number] = starts
        for start in range(begin[state], begin[state + 1]):
            if request[start] != tracked or started == 0:
                then = 1 if request[start] == tracked else started
                found = below[target[start], then]
                least = cost - multipliers[request[start]] + (wait - unit) * delay[start]
                if found >= 0 and least + go_below[target[start]] <= slack:
                    new_request[starts], new_target[starts] = request[start], found
                    new_delay[starts] = delay[start]
                    starts += 1
    new_begin[len(places)] = starts
    return starts


_UNIT = 64  # of a step of latency, for multipliers
_LARGEST = 2**28  # cost of a path, in units
_SET_BYTES = 60  # of a running set with what follows on it; few of them are states
_STATE_BYTES = 60  # of a state with its starts, while the next graph is made of it
_SETS_PER_SECOND = 2e6  # of the time limit: the first bound by so many takes about half of it
_STARTS = 3  # for which there is room, per set
_ROUNDS = 8  # of ascent on each graph but the first, which is the largest by far
_IDLE = 4  # rounds without gain after which steps are halved
_MOMENTUM = 0.6
_FORGOTTEN = 0.2  # of how often paths started a request, with each round
_FAST = 0.1  # share of the gap that a climb closes after which no request is tracked yet
_MOST = 2**28  # sets, so that what belongs to them can be numbered


def solve_by_states(
    instance: Instance,
    upper: Schedule,
    certificate: ConfigurationCertificate | None,
    *,
    time_limit: float = math.inf,
    memory_limit: int = 2**30,
    on_progress: Callable[[float, int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> ExactResult:
    """Find a schedule of least total latency, or an interval around it; sizes shorten the way."""
    began = stopwatch()
    if instance.arrivals[-1] > instance.arrivals[0] or instance.deadlines is not None:
        raise OptschedError(
            "running sets are searched only where all requests arrive together, without deadlines"
        )
    ascent = _SetAscent(instance, upper, certificate)
    most = min(memory_limit / _SET_BYTES, time_limit * _SETS_PER_SECOND, _MOST)

    def stopped() -> Stopped | None:
        seconds = stopwatch() - began
        if on_progress is not None:
            on_progress(seconds, ascent.lower, ascent.best)
        if stop is not None and stop.is_set():
            return Stopped.INTERRUPTED
        return Stopped.TIME_LIMIT if seconds >= time_limit else None

    requests = ascent.outputs, ascent.peaks, instance.memory
    graph = Graph.whole(*requests, ascent.unit, max(int(most), len(instance) + 1))
    nodes = graph.size
    before, first = ascent.lower, True
    while (reason := ascent.climb(graph, 1 if first else _ROUNDS, stopped)) is None:
        # While the bound still rises fast, it is raised further on fewer states.
        fast = first or ascent.lower - before > _FAST * (ascent.best - before)
        before = ascent.lower
        tracked = NONE if fast else ascent.track()
        fewer = graph.restricted(ascent.multipliers, ascent.slack, tracked, memory_limit)
        if fewer is None and not first:
            reason = Stopped.MEMORY_LIMIT
            break
        graph, first = fewer or graph, False
        nodes += graph.size
    return ExactResult(ascent.schedule, ascent.lower, reason, nodes, stopwatch() - began)


class Graph:
    """States by the number of requests to start, with their costs to the end."""

    def __init__(self, levels: list[States], root: int, unit: int) -> None:
        self.levels, self.root, self.unit = levels, root, unit
        # To the end; each level has its own, also where all are the same states.
        self.costs = [np.zeros(len(level.later), dtype=np.int32) for level in levels]
        self.size = sum(len(level.later) for level in levels[1:])

    @classmethod
    def whole(cls, outputs: IntArray, peaks: IntArray, limit: int, unit: int, most: int) -> Graph:
        """List all running sets."""
        sets = Sets.empty(most)
        ahead = np.zeros((2, len(outputs) + 2, int(outputs.max()) + 1), dtype=np.int64)
        stack = np.zeros((3, len(outputs) + 1), dtype=np.int64)
        count = enumerate_sets(outputs, peaks, limit, sets, ahead, stack)
        states = States.empty(max(count, 0), _STARTS * max(count, 0) + len(outputs) ** 2)
        scratch = np.empty((2, max(count, 0)), dtype=np.int32)
        starts = link_sets(outputs, sets, states, scratch[0]) if count > 0 else -1
        if starts < 0:
            raise OptschedError(f"more than {most:,} sets of requests can run together")
        del sets
        fewer = States.empty(int(np.count_nonzero(np.diff(states.begin))), starts)
        pass_over(states.cut(starts), fewer, *scratch)
        return cls([fewer] * (len(outputs) + 1), 0, unit)

    def bound(self, multipliers: Int32Array) -> int:
        """Return the cost of the cheapest path, with the sum of the multipliers."""
        for number, states in enumerate(self.levels[1:], 1):
            below, costs = self.costs[number - 1 : number + 1]
            cost_to_go(states, multipliers, number * self.unit, self.unit, below, costs)
        return int(self.costs[-1][self.root]) + int(multipliers.sum(dtype=np.int64))

    def path(self, multipliers: Int32Array) -> list[tuple[int, int]]:
        """Return the starts of the cheapest path: requests, each with its step."""
        starts: list[tuple[int, int]] = []
        state, step = self.root, 0
        for number in range(len(self.levels) - 1, 0, -1):
            states, wait = self.levels[number], (number - 1) * self.unit
            below, costs = self.costs[number - 1 : number + 1]
            waited, start = follow(states, multipliers, wait, below, costs, state)
            starts.append((int(states.request[start]), step + waited))
            step += waited + int(states.delay[start])
            state = int(states.target[start])
        return starts

    def restricted(
        self, multipliers: Int32Array, slack: int, tracked: int, memory_limit: float
    ) -> Graph | None:
        """Drop states that no path within `slack` visits, and track; None if memory is short."""
        slack = min(slack - int(multipliers.sum(dtype=np.int64)), FAR // 2)
        kept: list[tuple[IntArray, Int32Array]] = []  # states, twice the number, and cost to come
        costs = self._far(-1)
        costs[self.root, 0] = 0
        for number in range(len(self.levels) - 1, -1, -1):
            below = self._far(max(number - 1, 0))
            if number > 0:
                cost_to_come(
                    self.levels[number],
                    multipliers,
                    number * self.unit,
                    self.unit,
                    self.costs[number],
                    slack,
                    tracked,
                    costs,
                    below,
                )
            elif tracked != NONE:
                costs[:, 0] = FAR  # it has to start
            places = np.flatnonzero(costs < FAR)
            kept.insert(0, (places, costs.ravel()[places]))
            costs = below
        if sum(len(places) for places, _ in kept) * _STATE_BYTES > memory_limit:
            return None
        levels = [States.empty(len(kept[0][0]), 0)]
        levels[0].later[:], levels[0].begin[:] = -1, 0  # nor pauses, which are not looked at
        index = self._index(0, kept[0][0])
        for number in range(1, len(self.levels)):
            places, costs = kept[number]
            below, index = index, self._index(number, places)
            states = self.levels[number]
            fewer = States.empty(len(places), int(np.diff(states.begin)[places // 2].sum()))
            starts = restricted(
                states,
                multipliers,
                number * self.unit,
                self.unit,
                (self.costs[number], self.costs[number - 1]),
                slack,
                tracked,
                places,
                costs,
                (index, below),
                fewer,
            )
            levels.append(fewer.cut(starts))
        return Graph(levels, 0, self.unit)

    def _far(self, level: int) -> Int32Array:
        return np.full((len(self.levels[level].later), 2), FAR, dtype=np.int32)

    def _index(self, level: int, places: IntArray) -> Int32Array:
        index = np.full((len(self.levels[level].later), 2), -1, dtype=np.int32)
        index.ravel()[places] = np.arange(len(places))
        return index


class _SetAscent:
    """The best multipliers, bound and schedule so far."""

    def __init__(
        self, instance: Instance, upper: Schedule, certificate: ConfigurationCertificate | None
    ) -> None:
        count, longest = len(instance), int(instance.outputs.max())
        self.unit = min(_UNIT, _LARGEST // (2 * count**2 * longest))
        if self.unit == 0:
            raise OptschedError(f"outputs of {longest:,} tokens are too long for 32-bit integers")
        self.most = self.unit * count * longest  # that a multiplier can be of use
        # Beside large prompts few others fit, so that the trie is small and enumerated fast.
        self.order = np.argsort(-instance.prompts, kind="stable")
        self.outputs = instance.outputs[self.order]
        self.peaks = instance.peaks[self.order]
        paid = np.zeros(count)
        if certificate is not None:
            workers = Workers([instance.memory])
            charges, group, unit = charges_of_starts(certificate, instance, workers)
            paid = charges.min(axis=1)[group] / unit - instance.outputs
        self.multipliers = self._rounded(paid[self.order] * self.unit)
        self.instance, self.schedule = instance, upper
        self.constant = int(instance.outputs.sum())  # what latencies are beyond the sum of starts
        self.first = int(instance.arrivals[0])
        self.lower = 0
        self.violated = np.zeros(count)  # how far paths were from one start of each request
        self.tracked = np.zeros(count, dtype=np.bool_)

    @property
    def best(self) -> int:
        """Return the cost of the best schedule."""
        return self.schedule.total_latency

    @property
    def slack(self) -> int:
        """Return the cost of the paths that are of interest, in units."""
        return (self.best - self.constant - 1) * self.unit

    def track(self) -> int:
        """Choose the request that paths violate most to be tracked."""
        chosen = int(np.argmax(np.where(self.tracked, -1.0, self.violated)))
        self.tracked[chosen] = True
        return chosen

    def climb(
        self, graph: Graph, rounds: int, stopped: Callable[[], Stopped | None]
    ) -> Stopped | None:
        """Raise the bound of a graph by subgradient steps; return why the search ends, if so."""
        best, length, idle = -math.inf, 1.0, 0
        at = last = self.multipliers
        direction = np.zeros(len(self.order))
        for _ in range(rounds):
            bound, last = graph.bound(at), at
            if bound > self.slack:
                self.lower = self.best
                return Stopped.OPTIMAL
            path = graph.path(at)
            slope = 1 - np.bincount([request for request, _ in path], minlength=len(self.order))
            if not slope.any():  # a schedule, and no path is cheaper
                self._take(path)
                return Stopped.OPTIMAL
            self.violated = (1 - _FORGOTTEN) * self.violated + np.abs(slope)
            idle += 1
            if bound > best:
                best, self.multipliers, idle = bound, at, 0
                self.lower = max(self.lower, self.constant - (-bound // self.unit))
            elif idle == _IDLE:
                at, length, idle = self.multipliers, length / 2, 0
                direction[:] = 0
            if (reason := stopped()) is not None:
                return reason
            direction = slope + _MOMENTUM * direction
            step = length * (self.slack + self.unit - bound) / (direction @ direction)
            at = self._rounded(at + step * direction)
        if last is not self.multipliers:
            graph.bound(self.multipliers)
        return None

    def _rounded(self, multipliers: FloatArray) -> Int32Array:
        return np.rint(np.clip(multipliers, -self.most, self.most)).astype(np.int32)

    def _take(self, path: list[tuple[int, int]]) -> None:
        starts = np.empty(len(path), dtype=np.int64)
        for request, step in path:
            starts[self.order[request]] = self.first + step
        self.schedule = Schedule(self.instance, starts, "exact")
        self.lower = self.best
