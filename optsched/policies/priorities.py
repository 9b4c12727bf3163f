"""Policies that are a fixed priority of each request."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from optsched.clock import LinearClock
from optsched.clock_work import work_on_clock
from optsched.errors import PolicyError
from optsched.policies.base import PriorityPolicy

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.clock import Clock
    from optsched.instance import Instance

_SMITH = "Smith's rule for the relaxation behind the closed-form bound"

PRIORITIES = tuple(
    PriorityPolicy(name, description, attrgetter(key), source=source)
    for name, description, key, source in (
        ("fcfs", "first come, first served", "arrivals", "the order of arrival"),
        ("mc-sf", "shortest output first", "outputs", "Jaillet Alg. 1"),
        ("mc-sf-total", "smallest prompt + output first", "peaks", "Sorted-F Section 2.1"),
        ("area", "smallest memory-time first", "areas", _SMITH),
    )
)


class WorkPolicy(PriorityPolicy):
    """Least work on the clock first: its own seconds, and its share of the batches it is in.

    In steps all work is memory-time, and the order is that of `area`.
    """

    def keys(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return the work of each request."""
        if not isinstance(clock, LinearClock):
            raise PolicyError(
                f"policy {self.name!r} needs a clock that is a weighted sum of what is in a batch, "
                f"but {clock.name} is a function; use area, or pass a LinearClock"
            )
        return work_on_clock(instance, clock).total


WORK = WorkPolicy(
    "work",
    "smallest work on the clock first",
    attrgetter("areas"),
    source="Smith's rule for the bound on a clock",
)
