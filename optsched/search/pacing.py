"""Schedules that start requests at an even pace, for hindsight.

Requests that start together grow together, and fill the memory only at their end. Of outputs
:math:`o` without prompts, :math:`M / o` fit at once, but :math:`2 M / (o + 1)` can be on the way if
their starts are spread evenly. Either each start takes its memory-time :math:`A_i` out of a budget
that grows by a share of :math:`M` per step and cannot be saved up, for which all but the smallest
requests wait; or no request starts before the memory-time relaxation
(`optsched.bounds.relaxation`), on a share of the memory, would be half done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.admission import admit_on_budget, empty_worker
from optsched.bounds.relaxation import relax
from optsched.problem.schedule import Schedule
from optsched.search.delays import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance

_PACES = (0.95, 0.97, 0.99)  # memory-time started per step, as a share of the memory
_SMALLEST = (0.0, 0.75, 0.9)  # shares of the requests that do not wait for the budget
_FLUID = (0.93, 0.96, 0.98, 1.0)  # shares of the memory that the relaxation may use


def start_evenly(instance: Instance) -> Schedule:
    """Return the best of some schedules that spread starts; weights and deadlines do not count."""
    found = (
        Schedule(instance, starts, "even pace")
        for starts in (*_on_budget(instance), *_after_relaxation(instance))
    )
    return min(found, key=lambda schedule: schedule.total_latency)


def _on_budget(instance: Instance) -> Iterator[IntArray]:
    prompts, outputs, arrivals = instance.prompts, instance.outputs, instance.arrivals
    count, memory = len(instance), instance.memory
    priority = np.argsort(instance.areas, kind="stable")
    sizes = instance.areas[priority]
    areas = instance.areas.astype(np.float64)
    for smallest in _SMALLEST:
        # Whole kinds are small or not; of one kind alone none is.
        free = int(np.searchsorted(sizes, sizes[int(smallest * (count - 1))], side="left"))
        for pace in _PACES:
            starts, spent = np.zeros(count, dtype=np.int64), areas / (pace * memory)
            worker = empty_worker(int(outputs.max()))
            admit_on_budget(
                prompts, outputs, arrivals, memory, priority, spent, free, starts, *worker
            )
            yield starts


def _after_relaxation(instance: Instance) -> Iterator[IntArray]:
    prompts, outputs = instance.prompts.astype(np.float64), instance.outputs.astype(np.float64)
    # Mean offset of the tokens of a request, weighted by how many are held.
    offsets = outputs * (outputs + 1) * (prompts / 2 + (2 * outputs + 1) / 6) / instance.areas
    ends = np.zeros(len(instance), dtype=np.int64)
    for share in _FLUID:
        memory = max(int(share * instance.memory), int(instance.peaks.max()))
        served = relax(instance.replace(memory=memory), np.ones(len(instance)))
        ends[served.request] = served.end  # the last piece decides
        starts = np.rint(ends / memory - offsets - 0.5).astype(np.int64)
        releases = np.maximum(instance.arrivals, starts)
        for not_before in (releases, instance.arrivals):
            yield serve(instance, releases, not_before)
