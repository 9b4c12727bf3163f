"""When requests arrive at an engine: at times that are known, or when another one has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import pop_by_key, precedes, push_by_key
from optsched.errors import InstanceError
from optsched.problem.work import arrival_times, step_of

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.instance import Instance

_PASSED, _CALLED, _COME = range(3)  # requests passed by, those in the heap, those that came


class Arrivals(NamedTuple):
    """Requests that are still to come; only times where none follows another."""

    times: FloatArray
    firsts: IntArray  # those that go on from no other, in the order in which they come
    followers: IntArray  # all by the one they go on from
    begins: IntArray  # where those of each request begin
    pauses: IntArray  # in steps
    step: float
    called: IntArray  # heap of those whose time has become known
    counters: IntArray

    @classmethod
    def of(cls, instance: Instance, clock: Clock, turns: IntArray) -> Arrivals:
        """Return those of an instance, on a clock; of two at once that of the lesser turn comes."""
        times, step = arrival_times(instance, clock), step_of(instance, clock)
        if (follows := instance.follows) is None:
            return cls.at(times)
        if not step:
            raise InstanceError(
                f"pauses count steps, but the clock {clock.name} needs seconds; say how long a "
                "step is (seconds_per_step)"
            )
        order = np.lexsort((turns, instance.arrivals))
        firsts = order[follows[order] < 0]
        followers = np.argsort(follows, kind="stable")
        begins = np.searchsorted(follows[followers], np.arange(len(follows) + 1))
        pauses = np.zeros_like(follows) if instance.pauses is None else instance.pauses.copy()
        rest = np.zeros_like(follows), np.zeros(3, dtype=np.int64)
        return cls(times, firsts, followers, begins, pauses, step, *rest)

    @classmethod
    def at(cls, times: FloatArray) -> Arrivals:
        """Return arrivals at known times."""
        none = np.zeros(0, dtype=np.int64)
        return cls(times, *(none,) * 4, 1.0, none, np.zeros(3, dtype=np.int64))


@compiled
def next_arrival(arrivals: Arrivals, turns: IntArray) -> int:
    """Return the request that comes next; of those that come at once the one of the least turn."""
    times, firsts, counters = arrivals.times, arrivals.firsts, arrivals.counters
    first = counters[_PASSED]
    if len(firsts) > 0:
        first = firsts[first] if first < len(firsts) else ZERO + len(times)
    if counters[_CALLED] > 0:
        called = arrivals.called[0]
        if first == len(times) or precedes(times, turns, called, first):
            return int(called)
    return int(first)


@compiled
def pass_by(arrivals: Arrivals, turns: IntArray, index: int) -> None:
    """Pass by the request that comes next; where the order was not known it gets its turn now."""
    counters = arrivals.counters
    if counters[_CALLED] == 0 or index != arrivals.called[0]:
        counters[_PASSED] += 1
    else:
        counters[_CALLED] = pop_by_key(arrivals.called, counters[_CALLED], arrivals.times, turns)
    if len(arrivals.firsts) > 0:
        turns[index] = counters[_COME]
        counters[_COME] += 1


@compiled
def call_followers(
    arrivals: Arrivals, turns: IntArray, levels: IntArray, index: int, end: float
) -> None:
    """Let those that go on from a request come after their pauses; levels are their arrivals."""
    counters, step = arrivals.counters, arrivals.step
    for at in range(arrivals.begins[index], arrivals.begins[index + 1]):
        turn = arrivals.followers[at]
        come = ZERO + int(np.ceil(end / step)) + arrivals.pauses[turn]
        levels[turn] = max(levels[turn], come)
        arrivals.times[turn] = levels[turn] * step
        counters[_CALLED] = push_by_key(
            arrivals.called, counters[_CALLED], turn, arrivals.times, turns
        )
