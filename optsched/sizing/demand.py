r"""What requests demand of all workers inside a window of time, whoever schedules them.

Charge each batch's seconds to its requests as the bounds on a clock do (`LeastWork`, `Share`): what
a batch charges is at most what it lasts, so that :math:`G` workers serve charges of at most
:math:`G (e - b)` in a window :math:`[b, e]`. A request that arrives at :math:`a` and is due at
:math:`d` is at each moment no further along its own batches than if it ran alone since :math:`a`,
and no further back than where it would still be in time alone: the batches in between must run
inside the window (docs/bounds.md has the proof). In steps, a batch takes one.

Weights on several windows count together. Where some requests may miss their limits, those of them
with the largest weighted demand are left out, which is the best that any scheduler can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.clock import UNIT
from optsched.clock.work import arrival_times
from optsched.sizing.slo import ROUNDING
from optsched.solvers.bounds.on_clock import PARTS, Share, least_work, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.clock import LinearClock
    from optsched.instance import Instance
    from optsched.premises import Storage
    from optsched.sizing.slo import Slo

_SAFE = 2.0**-40  # relative allowance for roundings
_LESS = 1 - _SAFE


class Charging(NamedTuple):
    """How the constant of batches is charged, in sixteenths: by number, by time, else by memory."""

    by_requests: int = 0
    by_time: int = 0  # to those that must decode in time, so that their batches are short


class Demand:
    """The demand of requests that must meet objectives together."""

    def __init__(
        self,
        instance: Instance,
        clock: LinearClock,
        goals: Sequence[Slo],
        charging: Charging,
        max_num_seqs: int = 0,
        storage: Storage = "at-once",
    ) -> None:
        work = least_work(instance, clock)
        self.constant, self.growth, self.decode = work.constant, work.growth, work.decode
        self.arrivals = arrival_times(instance, clock)
        self.first, self.own = work.first + work.constant, work.own
        ttft, tpot, due = (np.full(len(instance), np.inf) for _ in range(3))
        for goal in goals:
            asked = goal.asked(instance)
            for metric, values in (("ttft", ttft), ("tpot", tpot), ("latency", due)):
                limit = goal.limits.get(metric, np.inf) * (1 + ROUNDING)
                values[asked] = np.minimum(values[asked], limit)
        decodes = work.decodes
        paced = np.where(decodes > 0, tpot * np.maximum(decodes, 1), 0.0)
        due = np.minimum(due, ttft + paced)
        if whole := clock is UNIT:  # then all times are whole steps
            ttft, due = np.floor(ttft), np.floor(due)
        alone = self.own - self.first
        self.impossible: BoolArray = (
            (self.first * _LESS > ttft)
            | (self.own * _LESS > due)
            | ((alone * _LESS > paced) & (decodes > 0))
        )
        # Without a last date only the first token has one.
        self.decodes = np.where(np.isinf(due), 0.0, decodes)
        self.own = np.where(np.isinf(due), self.first, self.own)
        self.due = np.where(np.isinf(due), ttft, due)
        self.ttft = np.minimum(ttft, self.due)
        self.asked = np.isfinite(self.due) & ~self.impossible
        self.allowed = sum(goal.misses(int(goal.asked(instance).sum())) for goal in goals)
        self.allowed -= int(self.impossible.sum())
        self.share = self._share(instance, charging, max_num_seqs, storage)
        left = np.where(self.decodes > 0, self.due - self.first, np.inf)
        pace = np.minimum(tpot, left / np.maximum(self.decodes, 1))
        self.timed = self._timed(instance, clock, pace) * (charging.by_time / PARTS)
        span = float(self.arrivals[-1]) + float(self.own.max())
        self.slack = 0.0 if whole else _SAFE * span
        self.longest = float(self.due[self.asked].max(initial=0.0))

    def _share(
        self, instance: Instance, charging: Charging, max_num_seqs: int, storage: Storage
    ) -> Share:
        found = share_of(instance, max_num_seqs, charging.by_requests, storage)
        if not charging.by_time:
            return found
        part = charging.by_requests / PARTS
        memory = (1 - part) * (instance.prompts + float(storage == "at-once")) / instance.memory
        kept = (1 - part - charging.by_time / PARTS) / (1 - part) if part < 1 else 1.0
        return found._replace(first=found.first - memory * (1 - kept), growth=found.growth * kept)

    def _timed(self, instance: Instance, clock: LinearClock, pace: FloatArray) -> FloatArray:
        """Return what requests are charged of constants because their batches must be short."""
        ratio = np.zeros(len(pace))
        fast = (pace > self.constant) & np.isfinite(pace) & (self.decodes > 0)
        ratio[fast] = self.constant / (pace[fast] - self.constant)
        least, held = self.decode + self.growth, instance.prompts + 1.0
        decoded = clock.decode_requests + clock.resident_tokens * held
        again = clock.prefill_tokens * held + clock.squared_prompts * held**2
        dear = (again >= decoded + 2 * ratio * least * (1 + _SAFE)) & (
            clock.prefill_tokens >= clock.resident_tokens
        )
        return np.where(dear, ratio * least * self.decodes, 0.0)

    def within(self, begin: float, end: float) -> tuple[slice, FloatArray]:
        """Return requests that may demand something in a window, and what each of them does."""
        low = int(np.searchsorted(self.arrivals, begin - self.longest))
        high = int(np.searchsorted(self.arrivals, end))
        some = slice(low, high)
        arrivals, first, own = self.arrivals[some], self.first[some], self.own[some]
        due, decodes = arrivals + self.due[some], self.decodes[some]
        done = np.maximum(0.0, begin - arrivals + self.slack)  # along its own batches, at most
        done[arrivals >= begin] = 0.0
        reached = own - np.maximum(0.0, due - end) - self.slack  # at least
        reached[due + self.slack <= end] = np.inf
        late = np.ceil(self._decodes(done, some))
        early = np.where(np.isinf(reached), decodes, np.floor(self._decodes(reached, some)))
        found = np.maximum(0.0, self._charges(early, some) - self._charges(late, some))
        must = (reached >= first) | (arrivals + self.ttft[some] + self.slack <= end)
        left = first - done
        shared = self.share.first[some]
        tail = np.where(done > 0, self._tail(left, shared), self._prefill(some))
        found += np.where(must & (left > 0), tail, 0.0)
        whole = (done == 0) & np.isinf(reached)
        found += np.where(whole, self.timed[some], 0.0)
        return some, np.where(self.asked[some], found, 0.0)

    def _decodes(self, progress: FloatArray, some: slice) -> FloatArray:
        """Return how many decodings fit into so much of a request's own time, as a real number."""
        beyond = np.clip(progress - self.first[some], 0.0, self.own[some])
        linear = self.constant + self.decode[some] + self.growth / 2
        root = linear + np.sqrt(linear**2 + 2 * self.growth * beyond)
        return np.minimum(2 * beyond / root, self.decodes[some])

    def _charges(self, count: FloatArray, some: slice) -> FloatArray:
        """Return the charges of the first so many decodings."""
        each = self.decode[some] + self.constant * self.share.first[some]
        grown = self.growth + self.constant * self.share.growth
        return each * count + grown * count * (count + 1) / 2

    def _prefill(self, some: slice) -> FloatArray:
        """Return the charge of the batches that make the first token."""
        return self.first[some] - self.constant * (1 - self.share.first[some])

    def _tail(self, left: FloatArray, shared: FloatArray) -> FloatArray:
        """Return the least charge of the last so many seconds before a first token, in chunks."""
        constant = np.minimum(left, self.constant)
        return shared * constant + np.maximum(0.0, left - constant)
