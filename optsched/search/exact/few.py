"""Exact search for a few requests, in arrays: nothing has to be compiled for it.

Step by step every partial schedule is kept that may become an optimum: which requests have
started, what they will hold, and the sum of their starts. One is dropped

- if its bound is no better than the best schedule: of the waiting requests, k complete only once
  the k smallest areas, and no request before its output, found room beside what runs;
- if another one has started the same requests, costs no more and holds no more at any step;
- if one of its requests could have started a step earlier, all else as it is. At a start
  :math:`k` after the arrival the first token had no room at step :math:`k`, or memory becomes
  full, to the last token, while the request runs.

The first two rules leave one optimum, and no optimum breaks the third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.errors import OptschedError
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.problem.instance import Instance

_MOST = 12  # requests whose sets are tabulated
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
    if len(instance) > _MOST or instance.deadlines is not None:
        raise OptschedError(
            f"{instance.name} has {len(instance)} requests, or deadlines; at most {_MOST} without "
            "deadlines can be enumerated"
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
