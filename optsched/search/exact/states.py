r"""Exact search without arrivals: a relaxation over running sets, made exact request by request.

A state is a set of running requests, with the steps that each has left, and the number :math:`r` of
requests that are still to start. A step costs :math:`r`, as all of these start a step later, and a
start of request i pays its multiplier :math:`\lambda_i`. A schedule is a path from the empty set to
:math:`r = 0`, and costs what its path does plus :math:`\sum_i \lambda_i`. Paths may start a request
again when it has completed, and leave out others; so for any multipliers the cheapest path is a
bound (state-space relaxation: Christofides, Mingozzi and Toth, 1981), which sees what sizes of
configurations cannot: that a state follows from the one before. Subgradient steps raise it: a
request that the path starts twice pays less, one that it leaves out pays more.

States through which no path is cheaper than the best schedule go. Then one more request is tracked:
states say whether it has started, and no path starts it twice or leaves it out. With the bound, the
states that are left shrink faster than tracking multiplies them (successive sublimation: Ibaraki
and Nakamura, 1994; Tanaka, Fujikuma and Araki, 2009). When all requests are tracked, paths are
schedules; mostly the bound meets the best schedule, or the path is a schedule, long before.

Without arrivals the clock is no part of a state. An optimum is never idle while something waits, so
that time does not pass at the empty set. Costs and multipliers are integers: bounds are exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.loading import stopwatch
from optsched.bounds.configurations import charges_of_starts
from optsched.errors import OptschedError
from optsched.models.solution import Stopped
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers
from optsched.search.exact.search import ExactResult
from optsched.search.exact.states_kernels import (
    FAR,
    NONE,
    Sets,
    States,
    cost_to_come,
    cost_to_go,
    enumerate_sets,
    follow,
    link_sets,
    pass_over,
    restricted,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.problem.instance import Instance
    from optsched.search.exact.states_kernels import Int32Array

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
    certificate: ConfigurationCertificate,
    *,
    time_limit: float = math.inf,
    memory_limit: int = 2**30,
    on_progress: Callable[[float, int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> ExactResult:
    """Find a schedule of least total latency, or an interval around it."""
    began = stopwatch()
    if instance.arrivals[-1] > instance.arrivals[0] or instance.deadlines is not None:
        raise OptschedError(
            "running sets are searched only where all requests arrive together, without deadlines"
        )
    ascent = _Ascent(instance, upper, certificate)
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
        count = enumerate_sets(outputs, peaks, limit, sets)
        states = States.empty(max(count, 0), _STARTS * max(count, 0) + len(outputs) ** 2)
        starts = link_sets(outputs, sets, states) if count > 0 else -1
        if starts < 0:
            raise OptschedError(f"more than {most:,} sets of requests can run together")
        del sets
        fewer = States.empty(int(np.count_nonzero(np.diff(states.begin))), starts)
        pass_over(states.cut(starts), fewer)
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
        """Leave out what no path of at most `slack` visits, and tell whether a request has started.

        Return None where what is left takes more memory.
        """
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


class _Ascent:
    """The best multipliers, bound and schedule so far."""

    def __init__(
        self, instance: Instance, upper: Schedule, certificate: ConfigurationCertificate
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
        charges, group, unit = charges_of_starts(certificate, instance, Workers([instance.memory]))
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
