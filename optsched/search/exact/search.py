r"""Exact search in time order: branch and bound with the configuration-size bound.

A node fixes all starts before its clock. The cost of a schedule is, in exact integers,

.. math::

    \text{cost} = L + \sum_i \text{regret}_i(k_i) + \sum_t \pi_t (F_{p(t)} - \varphi_t)

with the bound L of a certificate, the regret of a start beyond the cheapest one, and the waste
where the total size :math:`\varphi_t` of what runs is less than could be.

All nodes of one clock are a layer. One that is too wide loses its worst nodes, and the least bound
of those lost still bounds the optimum from below; wider layers follow until none is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched.admission import admit_by_priority
from optsched.bounds.configurations import configuration_bound
from optsched.errors import CertificateError, OptschedError, ScheduleError
from optsched.models.program import Stopped
from optsched.problem.schedule import Schedule
from optsched.search.exact import growth

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.certificates.prices import ConfigurationCertificate
    from optsched.problem.instance import Instance

_WIDTHS = (100, 2000)  # of the first passes; the last one is as wide as memory and time allow
_NARROWEST = 64  # nodes that there must be memory for
_COPIES = 4  # of a node at most: in layers to come, the layer at hand, its selection, its profile
_SPARE = 4  # times its width a layer to come may hold before its worst nodes are dropped
_CHILDREN = 2**14  # nodes written down between two looks at the clock
_CHUNK = 2048  # nodes expanded between two looks at the clock
_PLANNED = 0.75  # share of the time left for which nodes are planned: times per node differ
_AGAIN = 1.2  # times the nodes of a pass that have to be left for another one like it
_BINS = 256  # of bounds, in which nodes are counted
_ENOUGH = 200  # nodes of a layer from which its share of all of them is more than chance
ALL = growth.ACTIVE | growth.PENDING | growth.JUMPS


@dataclass(frozen=True)
class ExactResult:
    """An interval around the least total latency."""

    schedule: Schedule
    lower: int  # no feasible schedule has a smaller total latency
    stopped: Stopped  # OPTIMAL if proven, else why the search ended
    nodes: int  # expanded
    seconds: float  # with the certificate if it had to be made

    @property
    def proven_optimal(self) -> bool:
        """Whether no schedule is better."""
        return self.lower >= self.schedule.total_latency


def solve_exact(
    instance: Instance,
    *,
    upper: Schedule | None = None,
    certificate: ConfigurationCertificate | None = None,
    time_limit: float | None = None,
    node_limit: int | None = None,
    memory_limit: int = 2**30,
    on_progress: Callable[[float, int, int], None] | None = None,
    stop: threading.Event | None = None,
    rules: int = ALL,
) -> ExactResult:
    """Find a schedule of least total latency, or an interval around it."""
    # The optimum is the same whatever `rules` are in force; they only save nodes.
    began = stopwatch()
    if instance.deadlines is not None:
        raise OptschedError(
            "the exact search does not support deadlines; remove them with "
            "instance.replace(deadlines=None)"
        )
    node = growth.Layer.empty(1, *_shape(instance))
    needed = _COPIES * sum(array.nbytes for array in node)
    if memory_limit < needed * _NARROWEST:
        raise OptschedError(
            f"memory_limit is {memory_limit} bytes, but the exact search needs at least "
            f"{needed * _NARROWEST} for this instance"
        )
    if upper is None:
        keys = (instance.areas, instance.outputs, instance.peaks)
        schedules = [
            Schedule(instance, admit_by_priority(instance, np.argsort(key, kind="stable")))
            for key in keys
        ]
        upper = min(schedules, key=lambda schedule: schedule.total_latency)
    elif upper.instance.fingerprint != instance.fingerprint or upper.check():
        raise ScheduleError("the schedule to improve is infeasible or of another instance")
    if certificate is None:
        half = None if time_limit is None else time_limit / 2
        certificate = configuration_bound(instance, time_limit=half).sizes
        assert certificate is not None
    elif certificate.fingerprint != instance.fingerprint:
        raise CertificateError("the certificate belongs to another instance")
    search = _LayeredSearch(instance, upper, certificate, memory_limit // needed, rules)
    search.began, search.time_limit, search.node_limit = began, time_limit, node_limit
    search.on_progress, search.token = on_progress, stop
    stopped = search.widen()
    schedule = upper
    if search.best < upper.total_latency:
        schedule = Schedule(instance, search.starts[np.argsort(search.kernel.requests)], "exact")
    seconds = stopwatch() - began
    return ExactResult(schedule, search.lower, stopped, search.nodes, seconds)


def _shape(instance: Instance) -> tuple[int, int, int]:
    """Return what decides how much memory a node takes."""
    return len(instance), int(instance.outputs.max()), instance.memory


class _LayeredSearch:
    """One search: what is known so far, and the passes that improve it."""

    def __init__(
        self,
        instance: Instance,
        upper: Schedule,
        certificate: ConfigurationCertificate,
        widest: int,
        rules: int,
    ) -> None:
        self.kernel = growth.ExactProblem.of(instance, certificate)
        self.rules, self.widest, self.shape = rules, widest, _shape(instance)
        self.began = 0.0
        self.time_limit: float | None = None
        self.node_limit: int | None = None
        self.on_progress: Callable[[float, int, int], None] | None = None
        self.token: threading.Event | None = None
        self.first_step = int(instance.arrivals[0])
        self.constant = int(instance.outputs.sum()) - int(instance.arrivals.sum())
        self.starts = upper.starts[self.kernel.requests]
        self.best = upper.total_latency
        self.lower = min(self.best, self._whole(0))
        self.nodes = 0
        self.pace = 0.0  # nodes in a second
        self.cap = math.inf  # largest bound of a node that is worth a look in this pass
        self.spread: _Spread | None = None  # of the last pass
        self.after = growth.Layer.empty(min(_CHILDREN, widest), *self.shape)

    def widen(self) -> Stopped:
        """Search with ever wider layers until the best schedule is proven or a limit is hit."""
        widths = [width for width in _WIDTHS if width < self.widest]
        try:
            for width in widths:
                if (stopped := self._end(self._pass(width))) is not None:
                    return stopped
            while True:
                before, (budget, limit) = self.nodes, self._budget()
                if (stopped := self._end(self._pass(self.widest, budget))) is not None:
                    return stopped
                if self.cap == math.inf:
                    return Stopped.MEMORY_LIMIT
                if self._budget()[0] < _AGAIN * (self.nodes - before):
                    return limit
        except KeyboardInterrupt:
            return Stopped.INTERRUPTED

    def _end(self, stopped: Stopped | None) -> Stopped | None:
        """Return why the search ends after a pass, if it does."""
        return Stopped.OPTIMAL if self.lower >= self.best else stopped

    def _budget(self) -> tuple[float, Stopped]:
        """Return how many nodes there is time for, and what would end the search."""
        nodes, limit = math.inf, Stopped.ITERATION_LIMIT
        if self.node_limit is not None:
            nodes = self.node_limit - self.nodes
        if self.time_limit is not None and self.pace > 0:
            seconds = self.time_limit - (stopwatch() - self.began)
            if seconds * self.pace < nodes:
                nodes, limit = seconds * self.pace, Stopped.TIME_LIMIT
        return _PLANNED * nodes, limit

    def _whole(self, excess: int) -> int:
        """Round a bound, given in units beyond the certificate's, up to whole latency."""
        return -((-self.kernel.total - excess) // self.kernel.unit)

    def _slack(self) -> int:
        """Return the largest bound with which a node is worth a look."""
        slack = (self.best - 1) * self.kernel.unit - self.kernel.total
        return slack if self.cap > slack else int(self.cap)

    def _pass(self, width: int, budget: float = math.inf) -> Stopped | None:
        """Grow layer by layer, keeping at most `width` nodes of each, and `budget` in all."""
        began, before = stopwatch(), self.nodes
        self.cap = math.inf
        layers, lost = _Layers(width, self.widest), self._slack() + 1
        seen = _Seen(lost)
        layers.add(self._root())
        while layers:
            layer = layers.best(self._sift(layers.first()), width)
            if budget < math.inf and len(layer.key):
                layer = self._afford(layer, layers, budget - (self.nodes - before))
            seen.add(layer)
            begin = 0
            while begin < len(layer.key):
                end, filled, missed, best = growth.grow(
                    self.kernel,
                    layer,
                    begin,
                    min(begin + _CHUNK, len(layer.key)),
                    self._slack(),
                    self.best - self.constant,
                    self.starts,
                    self.after,
                    self.rules,
                )
                self.nodes += end - begin
                begin = end
                self.best = int(best) + self.constant
                lost = min(lost, int(missed))
                layers.add(growth.Layer._make(array[:filled] for array in self.after))
                if stopped := self._stop():
                    rest = [layers.lost, layers.least(), *layer.bound[begin:].tolist()]
                    self._raise_lower(min(lost, *rest))
                    return stopped
        lost = min(lost, layers.lost)
        self._raise_lower(lost)
        self.spread = seen.below(lost)
        self.pace = (self.nodes - before) / max(stopwatch() - began, 1e-9)
        return None

    def _root(self) -> growth.Layer:
        root = growth.Layer.empty(1, *self.shape)
        root.starts[:] = -1
        for array in root[1:]:
            array[:] = 0
        root.clock[:] = self.first_step
        return root

    def _afford(self, layer: growth.Layer, layers: _Layers, budget: float) -> growth.Layer:
        """Lose the worst nodes of a layer that is larger than its share of the budget."""
        here, rest = self.spread.share(int(layer.clock[0])) if self.spread else (0, 1)
        if here < _ENOUGH or len(layer.key) <= (width := max(int(budget * here / rest), 1)):
            return layer
        layer = layers.best(layer, width)
        # As the bound of what is lost is what this pass proves, no higher one is of use.
        self.cap = min(self.cap, layers.lost - 1)
        return layer

    def _sift(self, layer: growth.Layer) -> growth.Layer:
        """Drop hopeless and dominated nodes."""
        kept = np.flatnonzero(layer.bound <= self._slack())
        # By set, cost and tokens: exact order only saves time.
        cost = layer.cost[kept] - layer.cost[kept].min(initial=0)
        tokens = layer.profile[kept].sum(axis=1, dtype=np.int64)
        order = (layer.key[kept] << 28) + (np.minimum(cost, 2**16 - 1) << 12)
        order += tokens * 2**12 // (tokens.max(initial=0) + 1)
        kept = kept[np.argsort(order)]
        kept = kept[growth.undominated(layer, kept)]
        return layer.take(kept)

    def _raise_lower(self, excess: int) -> None:
        self.lower = max(self.lower, min(self.best, self._whole(excess)))

    def _stop(self) -> Stopped | None:
        seconds = stopwatch() - self.began
        if self.on_progress is not None:
            self.on_progress(seconds, self.lower, self.best)
        if self.token is not None and self.token.is_set():
            return Stopped.INTERRUPTED
        if self.time_limit is not None and seconds >= self.time_limit:
            return Stopped.TIME_LIMIT
        if self.node_limit is not None and self.nodes >= self.node_limit:
            return Stopped.ITERATION_LIMIT
        return None


class _Spread(NamedTuple):
    """How the nodes of a pass spread over the clocks: those of which none was lost."""

    clocks: IntArray
    counts: IntArray  # nodes of less than the least bound of a node that was lost

    def share(self, clock: int) -> tuple[int, int]:
        """Return the number of nodes of the first clock from this one on, and of all from it on."""
        at = int(np.searchsorted(self.clocks, clock))
        rest = self.counts[at:]
        return (int(rest[0]), int(rest.sum())) if len(rest) else (0, 1)


class _Seen:
    """Nodes of a pass, counted by clock and bound."""

    def __init__(self, most: int) -> None:
        self.edges = np.linspace(0, max(most, 1), _BINS + 1)
        self.clocks: list[int] = []
        self.counts: list[IntArray] = []

    def add(self, layer: growth.Layer) -> None:
        """Count the nodes of a layer."""
        if len(layer.key):
            self.clocks.append(int(layer.clock[0]))
            self.counts.append(np.histogram(layer.bound, self.edges)[0])

    def below(self, bound: int) -> _Spread:
        """Return what is left of the counts below a bound."""
        bins = int(np.searchsorted(self.edges, bound))
        counts = np.array([count[:bins].sum() for count in self.counts], dtype=np.int64)
        return _Spread(np.array(self.clocks), counts)


class _Layers:
    """Nodes by their clocks, at most so many of each clock and in all; the worst are lost."""

    def __init__(self, width: int, most: int) -> None:
        self.width, self.most = width, most
        self.parts: dict[int, list[growth.Layer]] = {}
        self.sizes: dict[int, int] = {}
        self.lost = 2**62  # least bound of a node that was lost

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, nodes: growth.Layer) -> None:
        """Take nodes in; they may be overwritten afterwards."""
        order = np.argsort(nodes.clock, kind="stable")
        clocks, begins = np.unique(nodes.clock[order], return_index=True)
        for clock, index in zip(clocks.tolist(), np.split(order, begins[1:]), strict=False):
            self.parts.setdefault(clock, []).append(nodes.take(index))
            self.sizes[clock] = self.sizes.get(clock, 0) + len(index)
            if self.sizes[clock] > _SPARE * self.width:
                self._trim(clock, 2 * self.width)
        while sum(self.sizes.values()) > self.most:
            clock = max(self.sizes, key=self.sizes.__getitem__)
            self._trim(clock, self.sizes[clock] // 2)

    def first(self) -> growth.Layer:
        """Take out the nodes of the first clock."""
        clock = min(self.parts)
        del self.sizes[clock]
        return _joined(self.parts.pop(clock))

    def least(self) -> int:
        """Return the least bound of all nodes."""
        bounds = (part.bound.min() for parts in self.parts.values() for part in parts)
        return int(min(bounds, default=self.lost))

    def best(self, layer: growth.Layer, width: int) -> growth.Layer:
        """Return so many nodes of a layer; the others are lost."""
        if len(layer.bound) <= width:
            return layer
        order = np.argpartition(layer.bound, width)
        self.lost = min(self.lost, int(layer.bound[order[width]]))
        return layer.take(np.sort(order[:width]))

    def _trim(self, clock: int, width: int) -> None:
        nodes = self.best(_joined(self.parts[clock]), width)
        self.parts[clock], self.sizes[clock] = [nodes], len(nodes.bound)


def _joined(parts: list[growth.Layer]) -> growth.Layer:
    return growth.Layer._make(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
