"""What annealings share: budgets and temperatures, and kernels on memory and orders by start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ONE, compiled
from optsched._internal.loading import stopwatch
from optsched._internal.room import require_room

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance

    Usage = npt.NDArray[np.int32]
    RandomState = npt.NDArray[np.uint64]

#: Work per second on a slow core: turns a time limit into work.
WORK_PER_SECOND = 4e8

#: Steps of a dense usage profile at most.
MAX_STEPS = 50_000_000

#: Between the seeds of annealings that belong together.
STRIDE = 1_000_003

_LATE = 1.1  # the share of time spent over that of work done, beyond which an annealing is late

# Work of a token-step, of which eight are touched at once, and of a move beyond them.
STEP_WORK, MOVE_WORK = 0.25, 150.0


class Requests(NamedTuple):
    """The requests of an instance."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    weights: FloatArray
    memory: int

    @classmethod
    def of(cls, instance: Instance, weights: FloatArray) -> Requests:
        """Collect what the kernels need."""
        arrays = instance.prompts, instance.outputs, instance.arrivals
        return cls(*arrays, weights, instance.memory)


class Leg(NamedTuple):
    """Work to do, and the temperatures at its beginning and its end."""

    work: float
    hot: float
    cold: float


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
        self._began, self._seconds = stopwatch(), max(seconds, 1e-9)

    def goes_on(self) -> bool:
        """Return whether work and time are left; work for which there is no time counts as done."""
        if self.done >= self.work:
            return False
        spent = (stopwatch() - self._began) / self._seconds
        # An annealing that is cut before it has cooled is wasted, so it skips what is too much.
        if spent > _LATE * self.done / self.work + 0.02:
            self.done = spent * self.work
        return self.done < self.work and spent < 1

    def leg(self, cooling: Cooling, most: float = math.inf) -> Leg:
        """Return the next leg, of so much work at most."""
        work = min(most, self.work - self.done)
        end = min(self.work, self.done + most)
        return cooling.leg(work, self.done / self.work, end / self.work)


def empty_usage(steps: int) -> Usage:
    """Return a usage of so many steps, all zero."""
    require_room(steps, 8, "steps of a search", "use longer steps")
    return np.zeros(steps, dtype=np.int32)


def new_random(seed: int) -> RandomState:
    """Return the random state of a seed."""
    return np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@compiled
def temperature_after(leg: Leg, spent: float) -> float:
    """Return the temperature after some of the work."""
    return float(leg.hot * (leg.cold / leg.hot) ** (spent / leg.work))


@compiled
def uniform(random: RandomState) -> float:
    """Draw from [0, 1) by xorshift64*: a state of its own makes runs repeatable."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled
def add_usage(usage: Usage, prompt: int, output: int, start: int, sign: int) -> None:
    """Add the memory of a request to the usage, or with the sign -1 remove it."""
    # In 32 bits, as the usage is, eight steps are one instruction.
    held = usage[start + 1 : start + output + 1]
    first, times = np.int32(prompt + 1), np.int32(sign)
    for at in range(len(held)):
        held[at] += np.int32(times * np.int32(first + np.int32(at)))


@compiled
def earliest_fit(
    usage: Usage, memory: int, prompt: int, output: int, start: int, latest: int
) -> int:
    """Return the first feasible start from `start` to `latest` (`optsched.admission`).

    If there is none, return -1 - k, where k is a step after `latest` before which it cannot start.
    """
    shift = np.int32(prompt - memory)
    seen = start
    while start <= latest:
        first = max(seen, start) + 1
        held = usage[first : start + output + 1]
        jump, begin = np.int32(start), np.int32(first)
        for at in range(len(held)):
            step = np.int32(begin + np.int32(at))
            fits = np.int32(np.int32(held[at] + shift) + step)
            jump = max(jump, min(fits, step))
        if jump == start:
            return start
        seen = start + output
        start = int(jump)
    return -1 - start


@compiled
def first_from(values: IntArray, order: IntArray, least: int) -> int:
    """Return the first place in an order by value whose value is at least so large."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if values[order[middle]] < least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def occupy_before(
    prompts: IntArray,
    outputs: IntArray,
    order: IntArray,
    starts: IntArray,
    usage: Usage,
    place: int,
    clock: int,
    longest: int,
    spent: float,
) -> tuple[int, float]:
    """Add what requests before a place hold after the clock; return the last step, and the work."""
    end = clock
    for rank in range(place - 1, -1, -1):
        request = order[rank]
        start = starts[request]
        if longest and start + longest <= clock:
            break
        over = start + outputs[request]
        if over > clock:
            begin = max(clock, start)
            add_usage(usage, prompts[request] + begin - start, over - begin, begin, ONE)
            spent += STEP_WORK * (over - begin)
            end = max(end, over)
    return end, spent
