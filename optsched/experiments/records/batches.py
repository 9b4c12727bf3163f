"""Schedules on a clock whose starts count batches: from these numbers alone all times follow.

A request is in every batch of its worker from its start on until it has all its tokens. A batch
begins when the one before has ended and all that start in it have arrived. So what such a schedule
costs is verified without a simulator, and its memory by `Schedule.check`, batches being steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched.errors import ScheduleError
from optsched.problem.schedule import Schedule
from optsched.problem.work import arrival_times

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance
    from optsched.simulate.replicas.result import RoutedRun
    from optsched.simulate.seconds.execution import ClockedRun

_ROUNDING = 1e-9  # relative, of times that are added up in another order


def in_batches(run: ClockedRun | RoutedRun) -> Schedule:
    """Return the starts of a run in batches; no request may be stopped, or prefilled in chunks.

    Examples
    --------
    >>> import optsched
    >>> timed = optsched.Instance([62, 62], [2, 1], memory=64)
    >>> in_batches(optsched.run(timed, "fcfs", clock="affine:0.01,0.001")).starts
    array([0, 2])
    """
    untimed, made = run.instance.replace(arrivals=None, deadlines=None), cast("Any", run)
    if getattr(run.clock, "coefficients", None) is None:
        raise ScheduleError(f"the run of {run.policy} is on no clock that is a weighted sum")
    several = {"workers": made.workers, "placement": made.placement} if hasattr(run, "runs") else {}
    starts = np.zeros(len(untimed), dtype=np.int64)
    for worker, each in enumerate(getattr(run, "runs", (run,))):
        if each is not None:
            own = made.requests_on(worker) if several else slice(None)
            starts[own] = each.last_batch - each.instance.outputs + 1
    plan = Schedule(untimed, starts, run.policy, **several)
    late = latency_on(made.clock, plan, run.instance) > run.total_latency * (1 + _ROUNDING)
    if run.unfinished or run.preemptions or plan.check() or late:
        raise ScheduleError(
            f"the run of {run.policy} leaves requests unfinished, stops them, or takes prompts in "
            "chunks, which starts cannot say; take the run of an order, such as work"
        )
    return plan


def latency_on(clock: LinearClock, plan: Schedule, instance: Instance) -> float:
    """Return the total latency of starts in batches, in the unit of the clock."""
    arrivals, total = arrival_times(instance, clock), []
    for worker in np.unique(plan.placement).tolist():
        requests = plan.requests_on(worker)
        ends = _ends(clock, plan.on(worker), arrivals[requests])
        total += (ends[plan.completions[requests] - 1] - arrivals[requests]).tolist()
    return math.fsum(total)


def _ends(clock: LinearClock, plan: Schedule, arrivals: FloatArray) -> FloatArray:
    """Return when the batches of a worker end."""
    starts, prompts, batches = plan.starts, plan.instance.prompts, plan.makespan

    def count(at: IntArray, what: IntArray | None = None) -> FloatArray:
        return np.bincount(at, what, batches + 1)[:batches].astype(np.float64)

    held = plan.memory_profile()[1:].astype(np.float64)  # when each batch ends
    active = np.cumsum(count(starts) - count(plan.completions))
    prefilled, decodes = count(starts, prompts), active - count(starts[prompts > 0])
    resident = held - active - prefilled
    contents = [prefilled, decodes, resident, count(starts, prompts * prompts), held]
    lasts = clock.coefficients @ np.array([np.ones(batches), *contents])
    for tokens, slope in clock.hinges:
        lasts += slope * np.maximum(prefilled + decodes - tokens, 0)
    lasts[active == 0] = 0.0  # there is no such batch
    ready = np.zeros(batches)
    np.maximum.at(ready, starts, arrivals)
    passed = np.cumsum(lasts)
    ends: FloatArray = passed + np.maximum.accumulate(ready - (passed - lasts))
    return ends
