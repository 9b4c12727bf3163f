"""How an annealing goes on: the work that is left, and how hot it is."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from optsched.solvers.search.shared_kernels import Leg

#: Token-steps touched per second on a slow core: turns a time limit into work.
WORK_PER_SECOND = 4e8

#: Steps of a dense usage profile at most.
MAX_STEPS = 50_000_000

#: Between the seeds of annealings that belong together.
STRIDE = 1_000_003

_LATE = 1.1  # the share of time spent over that of work done, beyond which an annealing is late


class Cooling(NamedTuple):
    """Geometric cooling between two temperatures, both in units of the scale."""

    scale: float
    hot: float
    cold: float

    def at(self, share: float) -> float:
        """Return the temperature after a share of the work."""
        return self.scale * self.hot * math.pow(self.cold / self.hot, min(1.0, share))

    def leg(self, work: float, begin: float, end: float) -> Leg:
        """Return a leg of so much work from one share to another."""
        return Leg(work, self.at(begin), self.at(end))


class Budget:
    """The work of an annealing, less where the machine is too slow for it in the time."""

    def __init__(self, work: float, seconds: float = math.inf) -> None:
        self.work, self.done = work, 0.0
        self._began, self._seconds = time.perf_counter(), max(seconds, 1e-9)

    def goes_on(self) -> bool:
        """Return whether work and time are left; work for which there is no time counts as done."""
        if self.done >= self.work:
            return False
        spent = (time.perf_counter() - self._began) / self._seconds
        # An annealing that is cut before it has cooled is wasted, so it skips what is too much.
        if spent > _LATE * self.done / self.work + 0.02:
            self.done = spent * self.work
        return self.done < self.work and spent < 1

    def leg(self, cooling: Cooling, most: float = math.inf) -> Leg:
        """Return the next leg, of so much work at most."""
        work = min(most, self.work - self.done)
        end = min(self.work, self.done + most)
        return cooling.leg(work, self.done / self.work, end / self.work)
