"""How much work requests bring on a clock that is a weighted sum, and what it is made of.

A request that holds :math:`h` of :math:`M` tokens is charged :math:`h / M` of a batch's constant.
Of a clock with hinges the tangent counts on which requests bring most work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.clock import Clock, LinearClock
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance


class ClockWork(NamedTuple):
    """The work of each request on a clock, in its unit and by what takes the time, shape (n,)."""

    prefill: FloatArray
    decode: FloatArray
    constant: FloatArray

    @property
    def total(self) -> FloatArray:
        """The sum of all parts."""
        return self.prefill + self.decode + self.constant


class ClockLoad(NamedTuple):
    """The work of all requests on a clock, in its unit, by what takes the time."""

    prefill: float
    decode: float
    constant: float
    span: float  # from the first arrival to the last

    @property
    def load(self) -> float:
        """Work over the time in which it arrives; above 1 requests pile up. Infinite at once."""
        return self.work / self.span if self.span else float("inf")

    @property
    def work(self) -> float:
        """The sum of all parts."""
        return self.prefill + self.decode + self.constant

    def __str__(self) -> str:
        parts = {"prefill": self.prefill, "decode": self.decode, "constant": self.constant}
        shares = ", ".join(
            f"{name} {part / (self.work or 1):.0%}"
            for name, part in sorted(parts.items(), key=lambda part: -part[1])
        )
        if not self.span:
            return f"all at once; of the work {shares}"
        state = " (overloaded)" if self.load > 1 else ""
        return f"{self.load:.2f} of the time of arrivals{state}; of the work {shares}"


def tangents(clock: LinearClock) -> list[LinearClock]:
    """Return the clocks without hinges that touch one from below, and have no negative constant."""
    constant, token, found = clock.constant, 0.0, []
    for hinge, slope in ((0.0, 0.0), *sorted(clock.hinges)):
        last = constant < slope * hinge  # steeper ones would have a negative constant
        if last:
            constant, token = 0.0, token + constant / hinge
        else:
            constant, token = constant - slope * hinge, token + slope
        rates = clock.prefill_tokens + token, clock.decode_requests + token
        found.append(
            replace(
                clock,
                constant=constant,
                prefill_tokens=rates[0],
                decode_requests=rates[1],
                mixed_tokens=0.0,
                hinges=(),
                ramps=(),
                shared=None,
            )
        )
        if last:
            break
    return found


def going_on_from_a_cache(clock: LinearClock) -> LinearClock:
    """Return a clock on which no decoding takes longer than what may stand for it on the other.

    A preempted request that finds all but two or more of its n tokens computes those as a prompt,
    in 2 prefill + (n**2 - (n - 2)**2) squares at least. With all but one found, it decodes.
    """
    prefill, squares = clock.prefill_tokens, clock.squared_prompts
    resident = min(clock.resident_tokens, 2 * squares)
    decode = min(clock.decode_requests, 2 * prefill + 4 * squares - 2 * resident)
    decode *= 1 - 2**-40
    return replace(clock, decode_requests=decode, resident_tokens=resident, shared=None)


def work_on_clock(instance: Instance, clock: LinearClock) -> ClockWork:
    """Return the work of each request that is never preempted, leaving out hinges."""
    prompts, outputs = (
        values.astype(np.float64) for values in (instance.prompts, instance.outputs)
    )
    decodes = outputs - 1
    held = instance.areas.astype(np.float64)  # at the ends of its batches, all in all
    first = prompts + 1
    resident = decodes * prompts + decodes * outputs / 2  # before each decoding
    return ClockWork(
        clock.prefill_tokens * prompts
        + clock.squared_prompts * prompts**2
        + clock.held_tokens * first,
        clock.decode_requests * decodes
        + clock.resident_tokens * resident
        + clock.held_tokens * (held - first),
        clock.constant * held / instance.memory,
    )


def work_by_output(
    prompts: FloatArray, memory: float, clock: LinearClock
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a, b and c, shape (n,), where a request with output o brings a + b o + c o^2 work."""
    held = clock.held_tokens + clock.constant / memory
    resident = clock.resident_tokens * prompts
    return (
        clock.prefill_tokens * prompts
        + clock.squared_prompts * prompts**2
        - clock.decode_requests
        - resident,
        clock.decode_requests + resident - clock.resident_tokens / 2 + held * (prompts + 0.5),
        np.full(len(prompts), clock.resident_tokens / 2 + held / 2),
    )


def time_alone(prompts: IntArray, outputs: IntArray, clock: LinearClock) -> FloatArray:
    """Return how long each request takes with no other beside it, leaving out hinges and ramps."""
    own = work_of(prompts, outputs, np.inf, clock)
    return own + clock.constant * outputs


def work_of(prompts: IntArray, outputs: IntArray, memory: float, clock: LinearClock) -> FloatArray:
    """Return the work of each request; in steps that is its memory-time over the memory."""
    fixed, linear, square = work_by_output(prompts.astype(np.float64), memory, clock)
    return fixed + (linear + square * outputs) * outputs


def most_work(instance: Instance, clock: LinearClock) -> ClockWork:
    """Return the work on the tangent of a clock on which all requests bring most."""
    every = (work_on_clock(instance, tangent) for tangent in tangents(clock))
    return max(every, key=lambda work: float(work.total.sum()))


def load_on_clock(instance: Instance, clock: Clock) -> ClockLoad | None:
    """Return the work that the requests bring on a clock; None if it is a function."""
    if not isinstance(clock, LinearClock):
        return None
    prefill, decode, constant = (float(part.sum()) for part in most_work(instance, clock))
    span = float(times_since_first(instance, clock)[-1])
    return ClockLoad(prefill, decode, constant, span)


def step_of(instance: Instance, clock: Clock) -> float:
    """Return the length of a step of arrivals in the unit of a clock, 0 where it is not known."""
    return 1.0 if clock.unit == "steps" else instance.seconds_per_step or 0.0


def due_times(instance: Instance, clock: Clock) -> FloatArray | None:
    """Return the deadlines in the unit of a clock; None where there are none in that unit."""
    step = step_of(instance, clock)
    if instance.deadlines is None or not step:
        return None
    return instance.deadlines.astype(np.float64) * step


def times_since_first(instance: Instance, clock: Clock) -> FloatArray:
    """Return the arrivals in the unit of a clock, counted from the first one."""
    return arrival_times(instance, clock, int(instance.arrivals[0]))


def arrival_times(instance: Instance, clock: Clock, origin: int = 0) -> FloatArray:
    """Return the arrivals in the unit of a clock: steps on the unit clock, else seconds."""
    arrivals = (instance.arrivals - origin).astype(np.float64)
    if clock.unit == "steps" or not arrivals.any():
        return arrivals
    if instance.seconds_per_step is None:
        raise InstanceError(
            f"arrivals count steps, but the clock {clock.name} needs seconds; give arrivals in "
            "seconds (arrival_s), or say how long a step is (seconds_per_step)"
        )
    return arrivals * instance.seconds_per_step
