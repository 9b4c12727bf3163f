r"""Exact search in time order: branch and bound with the configuration-size bound.

A node fixes all starts before its clock. It may start any set of requests that fits at the clock;
then the clock moves on. The cost of a schedule is, in exact integers,

.. math::

    \text{cost} = L + \sum_i \text{regret}_i(k_i) + \sum_t \pi_t (F_{p(t)} - \varphi_t)

with the bound L of a certificate, the regret of a start beyond the cheapest one, and the waste
where the total size :math:`\varphi_t` of what runs is less than could be. So L, the regret of what
has started, the least regret from the clock on of what has not, and waste are a bound of a node.
Waste is counted up to the clock, and ahead of it as far as the running requests leave too little
room: what starts later is young then, and the largest total size of young requests in so many
tokens is tabulated. After the last price starts only cost more, so that the search ends by itself:
no horizon is assumed.

All nodes of one clock are a layer. Of nodes that have started the same requests those are dropped
that cost no less and hold no fewer tokens at any later step than another. A layer that is too wide
loses its worst nodes, and the least bound of those lost still bounds the optimum from below. The
search is repeated with wider layers until none is lost, so it improves both sides all the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.admission import admit_by_priority
from optsched.errors import CertificateError, OptschedError, ScheduleError
from optsched.schedule import Schedule
from optsched.solution import Stopped
from optsched.solvers.bounds.configurations import configuration_bound
from optsched.solvers.exact.kernels import Layer, Search, grow, undominated

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.instance import Instance

_NARROWEST, _SPARE = 64, 4
_WIDER, _MUCH_WIDER = 8, 64  # after a pass that found a better schedule, and after one that did not
_SIFTED = 4096  # wider layers are searched for needless nodes at every _REST-th step only:
_REST = 4  # comparing nodes takes most of the time
_CHUNK = 2048  # nodes between two looks at the clock


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
) -> ExactResult:
    """Find a schedule of least total latency, or an interval around it."""
    began = time.perf_counter()
    if instance.deadlines is not None:
        raise OptschedError(
            "the exact search does not support deadlines; remove them with "
            "instance.replace(deadlines=None)"
        )
    slots, longest = len(instance), int(instance.outputs.max())
    needed = (_SPARE + 2) * (4 * slots + 4 * longest + 32)  # for each node of a full layer
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
        certificate = configuration_bound(instance, time_limit=half).certificate
    elif certificate.fingerprint != instance.fingerprint:
        raise CertificateError("the certificate belongs to another instance")
    search = _LayeredSearch(instance, upper, certificate, began, time_limit, node_limit)
    search.on_progress, search.token = on_progress, stop
    stopped = search.widen(memory_limit // needed)
    schedule = upper
    if search.best < upper.total_latency:
        schedule = Schedule(instance, search.starts[np.argsort(search.kernel.requests)], "exact")
    seconds = time.perf_counter() - began
    return ExactResult(schedule, search.lower, stopped, search.nodes, seconds)


class _LayeredSearch:
    """One search: what is known so far, and the passes that improve it."""

    def __init__(
        self,
        instance: Instance,
        upper: Schedule,
        certificate: ConfigurationCertificate,
        began: float,
        time_limit: float | None,
        node_limit: int | None,
    ) -> None:
        self.kernel = Search.of(instance, certificate)
        self.began, self.time_limit, self.node_limit = began, time_limit, node_limit
        self.on_progress: Callable[[float, int, int], None] | None = None
        self.token: threading.Event | None = None
        self.longest = int(instance.outputs.max())
        self.first_step = int(instance.arrivals[0])
        self.constant = int(instance.outputs.sum()) - int(instance.arrivals.sum())
        self.starts = upper.starts[self.kernel.requests]
        self.best = upper.total_latency
        self.lower = min(self.best, self._whole(0))
        self.nodes = 0

    def widen(self, widest: int) -> Stopped:
        """Search with ever wider layers until the best schedule is proven or a limit is hit."""
        width = _NARROWEST
        try:
            while self.lower < self.best:
                before = self.best
                stopped = self._pass(width)
                if self.lower >= self.best:
                    break
                if stopped is not None:
                    return stopped
                if width == widest:
                    return Stopped.MEMORY_LIMIT
                wider = _WIDER if self.best < before else _MUCH_WIDER
                width = min(width * wider, widest)
        except KeyboardInterrupt:
            return Stopped.INTERRUPTED
        return Stopped.OPTIMAL

    def _whole(self, excess: int) -> int:
        """Round a bound, given in units beyond the certificate's, up to whole latency."""
        return -((-self.kernel.total - excess) // self.kernel.unit)

    def _slack(self) -> int:
        """Return the largest bound with which a node can still lead to a better schedule."""
        return (self.best - 1) * self.kernel.unit - self.kernel.total

    def _pass(self, width: int) -> Stopped | None:
        """Grow layer by layer, keeping at most `width` nodes of each."""
        slots = len(self.starts)
        layer = Layer.empty(1, slots, self.longest)
        layer.starts[:] = -1
        for array in layer[1:]:
            array[:] = 0
        after = Layer.empty(_SPARE * width, slots, self.longest)
        clock = self.first_step
        lost = self._slack() + 1
        while len(layer.key):
            filled = 0
            for begin in range(0, len(layer.key), _CHUNK):
                end = min(begin + _CHUNK, len(layer.key))
                filled, missed, best = grow(
                    self.kernel,
                    layer,
                    begin,
                    end,
                    clock,
                    self._slack(),
                    self.best - self.constant,
                    self.starts,
                    after,
                    filled,
                )
                self.nodes += end - begin
                self.best = int(best) + self.constant
                lost = min(lost, int(missed))
                if stopped := self._stop():
                    rest = [lost, *layer.bound[end:].tolist(), *after.bound[:filled].tolist()]
                    self._raise_lower(min(rest))
                    return stopped
            clock += 1
            sift = filled <= _SIFTED or filled > width or clock % _REST == 0
            layer, dropped = self._select(
                Layer._make(array[:filled] for array in after), width, sift
            )
            lost = min(lost, dropped)
        self._raise_lower(lost)
        return None

    def _select(self, grown: Layer, width: int, sift: bool) -> tuple[Layer, int]:
        """Drop needless and hopeless nodes, then the worst until the layer is narrow enough."""
        kept = np.flatnonzero(grown.bound <= self._slack())
        if sift:
            order = kept[np.lexsort((grown.cost[kept], grown.key[kept]))]
            kept = np.sort(order[undominated(grown, order)])
        kept = kept[np.argsort(grown.bound[kept], kind="stable")]
        lost = int(grown.bound[kept[width]]) if len(kept) > width else self._slack() + 1
        return grown.take(kept[:width]), lost

    def _raise_lower(self, excess: int) -> None:
        self.lower = max(self.lower, min(self.best, self._whole(excess)))

    def _stop(self) -> Stopped | None:
        seconds = time.perf_counter() - self.began
        if self.on_progress is not None:
            self.on_progress(seconds, self.lower, self.best)
        if self.token is not None and self.token.is_set():
            return Stopped.INTERRUPTED
        if self.time_limit is not None and seconds >= self.time_limit:
            return Stopped.TIME_LIMIT
        if self.node_limit is not None and self.nodes >= self.node_limit:
            return Stopped.ITERATION_LIMIT
        return None
