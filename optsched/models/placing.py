"""Workers that can be exchanged, numbered by use: the largest request is on the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched.errors import ModelError, require
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.models.running import Running
    from optsched.problem.instance import Instance


class Scheduled(Protocol):
    """A run, or an optimum, and the schedule that came of it."""

    @property
    def schedule(self) -> Schedule:
        """When and where each request runs."""


def workers_of(instance: Instance, workers: Any, running: Running) -> Workers:
    """Return the workers of a program: one, unless it says otherwise."""
    if workers is None:
        return Workers([instance.memory])
    several = as_workers(workers, instance)
    if len(several) > 1 and len(running.tokens):
        raise ModelError("requests that are running are those of one worker; leave them out")
    return several


def owned(found: Schedule | Scheduled, instance: Instance, workers: Workers) -> Schedule:
    """Return a schedule, or that of a run, unless it is one of something else."""
    schedule: Any = getattr(found, "schedule", found)
    wish = "a Schedule, or what has one, such as optsched.run(instance, 'area')"
    require(schedule, Schedule, "the schedule", wish, ModelError)
    if (schedule.instance, schedule.workers) != (instance, workers):
        raise ModelError(
            "the schedule belongs to another instance or other workers; make the program of its "
            "instance and workers"
        )
    return cast("Schedule", schedule)


def by_use(instance: Instance, workers: Workers) -> BoolArray:
    """Return on which workers each request may run if they are numbered by use, shape (n, G)."""
    allowed = workers.allowed(instance)
    rank = ranks_in(largest_first(instance))
    for number in range(int(workers.classes.max()) + 1):
        for place, worker in enumerate(np.flatnonzero(workers.classes == number).tolist()):
            allowed[:, worker] &= rank >= place
    return allowed


def largest_first(instance: Instance) -> IntArray:
    """Return the requests by descending memory-time."""
    return np.argsort(-instance.areas, kind="stable")


def renumbered(schedule: Schedule) -> IntArray:
    """Return the placement with workers of a class numbered by use."""
    unused: dict[int, list[int]] = {}
    for worker, number in enumerate(schedule.workers.classes.tolist()):
        unused.setdefault(number, []).append(worker)
    name: dict[int, int] = {}
    for worker in schedule.placement[largest_first(schedule.instance)].tolist():
        if worker not in name:
            name[worker] = unused[int(schedule.workers.classes[worker])].pop(0)
    return np.array([name[worker] for worker in schedule.placement.tolist()])
