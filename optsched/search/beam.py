"""A beam over time that starts large requests where memory is worth it.

At prices of memory a schedule costs the bound plus the regrets of its starts plus what the memory
it leaves idle is worth (`optsched.bounds.lagrangian`). So a node that has decided what
starts before a step is judged by the latencies of what has started, the price of the memory that
it will still hold, and the least cost of every other request from that step on.

Small requests are background: they hold memory from their arrival on, or where the known schedule
starts them. In each slice of time a node adds sets of the requests that gain most, and the cheapest
children are kept, one for each set that has started.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.loading import stopwatch
from optsched._internal.start_prices import PriceSums
from optsched.errors import OptschedError
from optsched.search.annealing import empty_usage
from optsched.search.beam_costs import Large, tabulate
from optsched.search.beam_kernels import (
    CHILDREN,
    MAX_STARTS,
    Active,
    Children,
    Log,
    Nodes,
    add_chosen,
    sweep,
)

if TYPE_CHECKING:
    import threading

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Schedule
    from optsched.search.annealing import Usage

_CHUNK = 1e7  # work between two looks at the clock
_TABLE = 4_000_000  # entries of a table of least costs at most
_ROOM = 0.5  # share of the memory that requests may take that start as they arrive
_LATE = 0.1  # of the time for a run, by which it may end later, at the width of 1


class Watch(NamedTuple):
    """What ends a search before its work is done."""

    deadline: float = math.inf
    stop: threading.Event | None = None

    @property
    def over(self) -> bool:
        """Whether to end."""
        late = stopwatch() >= self.deadline
        return late or (self.stop is not None and self.stop.is_set())


class Background(NamedTuple):
    """Where small requests start, and what they hold."""

    starts: IntArray  # of all requests of the instance; only those of small ones count
    usage: Usage  # tokens held at steps 0, 1, ...


def background_of(schedule: Schedule, quantile: float) -> tuple[BoolArray, Background]:
    """Tell which requests are small, and let them start as they arrive or as in a schedule."""
    # With arrivals fewer are small where they would take much of the memory as they arrive; all of
    # them offline start where the schedule does.
    instance = schedule.instance
    small = instance.areas < np.quantile(instance.areas, quantile)
    if instance.arrivals.any():
        usage = _held(instance, small, instance.arrivals)
        if usage.max(initial=0) <= _ROOM * instance.memory:
            return small, Background(instance.arrivals, usage)
    return small, Background(schedule.starts, _held(instance, small, schedule.starts))


def _held(instance: Instance, chosen: BoolArray, starts: IntArray) -> Usage:
    """Return the tokens that some requests hold at each step from 0 on."""
    usage = empty_usage(int((starts + instance.outputs)[chosen].max(initial=0)) + 2)
    add_chosen(instance.prompts, instance.outputs, starts, chosen, usage)
    return usage


def slices(starts: IntArray, each: float) -> IntArray:
    """Return where slices begin, with so many of some starts in each, and where the last ends."""
    # Half of them are spread evenly over time, and half over the starts.
    number, last = max(1, int(len(starts) / each)), int(starts.max()) + 1
    steps = np.arange(last)
    passed = 0.5 * steps / last + 0.5 * np.searchsorted(np.sort(starts), steps) / len(starts)
    begins = np.searchsorted(passed, np.arange(number) / number)
    return np.unique(np.append(begins[begins < last], [0, last]))


class Beam:
    """A beam of some width from the first slice on."""

    def __init__(
        self,
        instance: Instance,
        weights: FloatArray,
        prices: FloatArray,
        large: BoolArray,
        background: Background,
        begins: IntArray,
        width: int,
    ) -> None:
        if (most := int(background.usage.max(initial=0))) > instance.memory:
            raise OptschedError(
                f"the background of a beam holds {most} tokens at step "
                f"{int(background.usage.argmax())}, but the memory is {instance.memory}; start its "
                "requests later, or take fewer as small"
            )
        outputs, arrivals = instance.outputs[large], instance.arrivals[large]
        count = len(outputs)
        # Slices of the mean length go on until nothing is priced and all have arrived.
        self._slices = len(begins) - 1
        mean = -(-int(begins[-1]) // self._slices)
        end = max(len(prices), int(arrivals[-1]) + 1, int(begins[-1])) + 2 * mean
        begins = np.concatenate([begins, np.arange(begins[-1] + mean, end, mean)])
        self._rows = max(1, min(len(begins) - 1, _TABLE // count, 1 + math.isqrt(len(begins))))
        keys = np.random.default_rng(0).integers(1, 2**63, count).astype(np.uint64)
        sums = PriceSums.of(prices)
        self.large = Large(
            instance.prompts[large].copy(),
            outputs.copy(),
            arrivals.copy(),
            weights[large].copy(),
            instance.memory,
            background.usage,
            sums.total,
            sums.moment,
            np.empty((self._rows + 1, count), dtype=np.float32),
            begins,
            keys,
        )
        self._make_nodes(width, count, int(np.diff(begins).max()) + int(outputs.max()) + 1)

    def _make_nodes(self, width: int, count: int, reach: int) -> None:
        background = self.large.background[:reach]
        self.nodes = Nodes(
            usage=np.zeros((2, width, 2 * reach), dtype=np.int32),
            started=np.zeros((2, width, count), dtype=np.uint8),
            earliest=np.zeros((2, width, count), dtype=np.int32),
            costs=np.zeros((2, width)),
            values=np.zeros((2, width)),
            hashes=np.zeros((2, width), dtype=np.uint64),
            tails=np.full((2, width), -1),
        )
        self.nodes.usage[0, 0, : len(background)] = background
        self.counts = np.array([0, count, 0, 1, 0, 0, 0, reach])
        most = width * CHILDREN
        self._children = Children(
            values=np.empty(most),
            costs=np.empty(most),
            hashes=np.empty(most, dtype=np.uint64),
            parents=np.empty(most, dtype=np.int64),
            counts=np.empty(most, dtype=np.int64),
            requests=np.empty((most, MAX_STARTS), dtype=np.int64),
            starts=np.empty((most, MAX_STARTS), dtype=np.int64),
            heap=np.empty(most, dtype=np.int64),
        )
        self.active = Active(np.empty(count, dtype=np.int64), np.empty(count), np.arange(count))
        self.log = Log(*(np.empty(64 * width * MAX_STARTS, dtype=np.int64) for _ in range(3)))
        self._width = width
        chunks = -(-(len(self.large.begins) - 1) // self._rows)
        self._corners = np.empty((chunks, count))  # least costs from the end of each chunk on

    def prepare(self, watch: Watch) -> None:
        """Find the least costs of starts from the end of each chunk of slices on."""
        large = self.large
        begun = np.maximum(large.begins[-1], large.arrivals)
        best = large.weights * (begun + large.outputs - large.arrivals)
        for chunk in range(len(self._corners) - 1, -1, -1):
            if watch.over:
                break
            self._corners[chunk] = best
            tabulate(large, self.active.waiting, chunk, best)

    def follow(self, watch: Watch, most: float) -> tuple[IntArray | None, float]:
        """Go to the end; return the starts of large requests, if there was time, and the work."""
        self.prepare(watch)
        counts, work, began = self.counts, float(self._rows * self._corners.size), stopwatch()
        end = watch._replace(deadline=watch.deadline + _LATE * (watch.deadline - began))
        while not counts[5]:
            work += self.load_chunk()
            self._keep_pace(began, watch.deadline)
            until = (int(counts[2]) // self._rows + 1) * self._rows
            work += self.step(until, end, most - work)
            if work >= most or end.over:
                return None, work
        return self.starts(0), work

    def _keep_pace(self, began: float, deadline: float) -> None:
        """Go on with less width where the deadline would come before the end, after it with 1."""
        # The first slices take longer than others, and after half of them half the work is done.
        now, done = stopwatch(), int(self.counts[2])
        left, needed = deadline - now, (now - began) * max(0, self._slices - done) / max(done, 1)
        if left <= 0:
            self._width = 1
        elif needed > left and done >= self._slices / 2:
            self._width = max(1, int(self._width * left / needed))

    def load_chunk(self) -> int:
        """Tabulate the least costs for the chunk of slices that begins; return the work."""
        chunk = int(self.counts[2]) // self._rows
        if chunk < len(self._corners):
            active, waiting = int(self.counts[0]), int(self.counts[1])
            ahead = np.append(self.active.requests[:active], self.active.waiting[:waiting])
            tabulate(self.large, ahead, chunk, self._corners[chunk].copy())
        return self.large.later.size

    def step(self, until: int, watch: Watch, most: float) -> float:
        """Go on to a slice, at most to the end of the chunk; return the work."""
        counts, width, work = self.counts, self._width, 0.0
        while counts[2] < until and not counts[5] and work < most and not watch.over:
            if counts[4] + width * MAX_STARTS > len(self.log.starts):
                self.log = Log(*(np.append(each, np.empty_like(each)) for each in self.log))
            work += sweep(
                self.large,
                self.nodes,
                self._children,
                self.active,
                self.log,
                counts,
                width,
                until,
                _CHUNK,
            )
        return work

    def starts(self, node: int) -> IntArray:
        """Return the starts of the large requests in a node, -1 where it has not started one."""
        starts = np.full(len(self.large.prompts), -1)
        at = self.nodes.tails[self.counts[2] % 2, node]
        while at >= 0:
            starts[self.log.requests[at]] = self.log.starts[at]
            at = self.log.before[at]
        return starts
