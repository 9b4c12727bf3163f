"""Goodput: the share of requests within objectives, and the most that any scheduler reaches.

In steps a request that starts at p has its first token at p + 1 and completes at p + o, so a limit
on either is a due date; prices of memory bound how many are late. What requests that are on time
demand in windows of time, as in `capacity`, bounds it too, and on a clock alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.bounds.ascent import bound_late
from optsched.clock import UNIT, LinearClock
from optsched.errors import OptschedError
from optsched.problem.costs import schedule_cost
from optsched.problem.execution import Execution, TimedRun, Times
from optsched.problem.schedule import Schedule
from optsched.problem.work import going_on_from_a_cache
from optsched_serving.capacity.bounds import least_late
from optsched_serving.capacity.capacity import times_of
from optsched_serving.capacity.slo import Bounded, Slo, as_slos

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.experiments.side_by_side import Comparison
    from optsched.problem.instance import Instance


@dataclass(frozen=True)
class Goodput:
    """Objectives that a request must meet together."""

    slos: tuple[Slo, ...]

    @classmethod
    def of(cls, slo: str | Slo | Iterable[str | Slo], unit: str) -> Goodput:
        """Return objectives in a unit; refuse means, which are of no single request."""
        slos = as_slos(slo, unit)
        for each in slos:
            if each.share is None:
                raise OptschedError(
                    f"the objective {each} is about a mean, of which requests have no share; "
                    "write max or a percentile"
                )
        return cls(slos)

    def __str__(self) -> str:
        return " and ".join(map(str, self.slos))

    def attained(self, run: Execution | TimedRun, warm_up: float) -> float:
        """Return the share of the requests that arrive after the warm-up which meet all limits."""
        met = self._met(run)
        if isinstance(run, TimedRun):
            met = met[run.arrivals >= warm_up]
        return float(met.sum()) / max(1, len(met))

    def _met(self, run: Execution | TimedRun) -> BoolArray:
        if isinstance(run, Execution):
            first, others = run.first_token_latencies, np.maximum(run.instance.outputs - 1, 1)
            per_token = (run.latencies + run.instance.arrivals - run.first_tokens) / others
            times = Times(*(each.astype(np.float64) for each in (run.latencies, first, per_token)))
        else:
            times = times_of(run)
        met = np.ones(len(run.instance), dtype=np.bool_)
        for each in self.slos:
            met &= each.within(times) | ~each.asked(run.instance)
        return met

    def most(self, found: Comparison) -> tuple[float | None, str | None]:
        """Return the largest share that any scheduler can reach, or None and why none is known."""
        instance, clock = found.instance, found.clock
        if found.warm_up:
            return None, "requests that arrive before the warm-up do not count"
        if found.turns:
            return None, "requests arrive when others have ended, in each run at times of its own"
        if clock is None:
            # All a step later, as a request that is late in any case may be due at step 0.
            known: dict[str, Any] = {"deadlines": self._due(instance) + 1, "weights": None}
            due = instance.replace(arrivals=instance.arrivals + 1, **known)
            split = any(run.split for run in found)
            starts = [Schedule(due, each.starts + 1) for each in found.schedules]
            begun = min(starts, key=_late, default=Schedule(due, due.arrivals))
            late = int(bound_late(begun, 0.0).value if split else bound_late(begun).value)
            if not split:
                late = max(late, least_late(Bounded(instance, UNIT), self.slos))
        elif isinstance(clock, LinearClock):
            shared = instance.hash_ids is not None
            clock = going_on_from_a_cache(clock) if shared else clock
            world = Bounded(instance, clock, 0, "next-batch", shared, timed=True)
            late = least_late(world, self.slos)
        else:
            return None, "the clock is a function"
        return (len(instance) - late) / len(instance), None

    def _due(self, instance: Instance) -> IntArray:
        """Return the last step at which each request may complete."""
        outputs, arrivals = instance.outputs, instance.arrivals
        due = np.full(len(instance), int(arrivals[-1] + outputs.sum()))  # one after the other
        for each in self.slos:
            limits = {metric: math.floor(limit) for metric, limit in each.limits.items()}
            ends = [due]
            if (latency := limits.get("latency")) is not None:
                ends.append(arrivals + min(latency, due[0]))
            if (first := limits.get("ttft")) is not None:
                ends.append(arrivals + min(first, due[0]) - 1 + outputs)
            if not limits.get("tpot", 1):  # a token takes a step
                ends.append(np.where(outputs > 1, arrivals, due))
            due = np.where(each.asked(instance), np.minimum.reduce(ends), due)
        return due


def _late(schedule: Schedule) -> Fraction:
    return schedule_cost(schedule, "late-requests")
