"""Policies that are a fixed priority of each request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from optsched.bounds.on_clock import PARTS, best_share
from optsched.clock import LinearClock
from optsched.errors import PolicyError
from optsched.policies.base import PriorityPolicy
from optsched.problem.work import work_on_clock

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.clock import Clock
    from optsched.problem.instance import Instance

_SMITH = "Smith's rule for the relaxation behind the closed-form bound"

PRIORITIES = tuple(
    PriorityPolicy(
        name,
        description,
        attrgetter(key),
        source=source,
        reads="nothing" if key == "arrivals" else "outputs",
    )
    for name, description, key, source in (
        ("fcfs", "first come, first served", "arrivals", "the order of arrival"),
        ("mc-sf", "shortest output first", "outputs", "Jaillet Alg. 1"),
        ("mc-sf-total", "smallest prompt + output first", "peaks", "Sorted-F Section 2.1"),
        ("area", "smallest memory-time first", "areas", _SMITH),
    )
)


@dataclass(frozen=True)
class WorkPolicy(PriorityPolicy):
    """Least work on the clock first: own seconds, and the share of batches that proves most."""

    weighted: bool = False  # least work over weight first
    max_num_seqs: int = 0  # 0 without a limit

    def parsed(self, parameters: str) -> WorkPolicy:
        """Return the order for weights, for a limit of requests per batch, or for both."""
        first, _, second = parameters.partition(",")
        weighted = first == "weighted"
        limit = second if weighted else parameters
        if not (limit.isascii() and limit.isdigit() and int(limit)) and (limit or not weighted):
            raise PolicyError(
                f"policy 'work:{parameters}' should read work:weighted, work:B or work:weighted,B "
                "with the most requests B of a batch, such as work:256"
            )
        return replace(
            self,
            name=f"{self.name}:{parameters}",
            weighted=weighted,
            max_num_seqs=int(limit or 0),
        )

    def keys(self, instance: Instance, clock: Clock) -> FloatArray:
        """Return the work of each request, or the work over its weight."""
        if not isinstance(clock, LinearClock):
            raise PolicyError(
                f"policy {self.name!r} needs a clock that is a weighted sum of what is in a batch, "
                f"but {clock.name} is a function; use area, or pass a LinearClock"
            )
        weights = np.ones(len(instance))
        if self.weighted and instance.weights is not None:
            weights = instance.weights
        share = best_share(instance, clock, weights, max_num_seqs=self.max_num_seqs)
        parts = work_on_clock(instance, clock)
        part = share.by_requests / PARTS
        shared = (1 - part) * instance.areas / instance.memory
        if part:
            shared += part * instance.outputs / share.max_num_seqs
        work: FloatArray = parts.prefill + parts.decode + clock.constant * shared
        return work / weights


WORK = WorkPolicy(
    "work",
    "smallest work on the clock first",
    attrgetter("areas"),
    source="Smith's rule for the bound on a clock",
)
