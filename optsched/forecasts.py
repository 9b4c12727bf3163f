"""What a policy may know of the outputs: an interval for each request (Robust Section 2).

A `Forecast` is all that a policy sees under uncertainty. Its arrays are copies without a way back
to the instance, so that no policy can look an output up; the simulator alone holds the outputs and
reveals each by the completion of its request.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import MAX_TOKENS, as_integers
from optsched.errors import InstanceError, OptschedError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance

Interval = tuple["npt.ArrayLike", "npt.ArrayLike"]


@dataclass(frozen=True, eq=False, init=False)
class Forecast:
    r"""Requests as a policy sees them: the output is only known to lie in an interval.

    Parameters
    ----------
    prompts, arrivals
        As in `Instance`, shape (n,).
    lower, upper
        Bounds :math:`1 \le \ell_i \le o_i \le u_i` of the outputs, shape (n,). What cannot run is
        no output: an upper bound above :math:`M - s_i` is lowered to it.
    memory
        Tokens that the worker holds at most.
    weights
        As in `Instance`.
    labels
        The user's own names of the requests.

    Raises
    ------
    InstanceError
        If a lower bound is below 1, above the upper bound or too large for the memory; it names
        the first request at fault.

    Examples
    --------
    >>> forecast = Forecast([3, 1], [0, 0], lower=[1, 2], upper=[9, 4], memory=8)
    >>> forecast.upper
    array([5, 4])
    """

    prompts: IntArray
    arrivals: IntArray
    lower: IntArray
    upper: IntArray
    memory: int
    weights: FloatArray | None
    labels: tuple[str, ...] | None

    def __init__(
        self,
        prompts: npt.ArrayLike,
        arrivals: npt.ArrayLike,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        memory: int,
        weights: npt.ArrayLike | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> None:
        low, high = as_integers("lower", lower), as_integers("upper", upper)
        copies = {"prompts": as_integers("prompts", prompts)}
        copies["arrivals"] = as_integers("arrivals", arrivals)
        room = memory - copies["prompts"]
        rules = (
            (low < 1, "is not at least 1"),
            (low > high, "has its lower bound above its upper bound"),
            (low > room, f"cannot run: with its prompt it needs more than the memory of {memory}"),
        )
        for broken, reason in rules:
            if broken.any():
                request = int(np.argmax(broken))
                name = str(request) if labels is None else labels[request]
                raise InstanceError(
                    f"request {name}: the interval [{low[request]}, {high[request]}] {reason}",
                    request=request,
                    value=int(low[request]),
                )
        copies |= {"lower": low, "upper": as_integers("upper", np.minimum(high, room))}
        for field, values in copies.items():
            object.__setattr__(self, field, values)
        object.__setattr__(self, "memory", int(memory))
        own = None
        if weights is not None:
            own = np.array(weights, dtype=np.float64)
            own.flags.writeable = False
        object.__setattr__(self, "weights", own)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.prompts)

    def label(self, request: int) -> str:
        """Return the label of a request, or its index."""
        return self.labels[request] if self.labels is not None else str(request)


def forecast(instance: Instance, intervals: str) -> Forecast:
    """Make the forecast of an instance that a policy gets to see.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    intervals
        "exact": the outputs themselves. "common:L,U": [L, U] for all (Robust Experiment 1).
        "classes:W": the class of width W that holds the output, [1, W], [W+1, 2W], ...
        (Experiment 2). "relative:X": the whole numbers in [(1 - X) o, (1 + X) o] (Experiment 3;
        its middle gives the output away to a policy that looks there). "column": the instance's
        own output_lower and output_upper; where one is missing, 1 or what fits.

    Returns
    -------
    Forecast
        Copies only: nothing in it leads back to the instance.

    Raises
    ------
    InstanceError
        If an output lies outside its interval; it names the first such request.
    OptschedError
        If there is no such maker or its numbers are invalid.

    Examples
    --------
    >>> from optsched import Instance
    >>> instance = Instance([1, 1], [40, 130], memory=500)
    >>> known = forecast(instance, "classes:100")
    >>> known.lower, known.upper
    (array([  1, 101]), array([100, 200]))
    >>> forecast(instance, "common:1,100")
    Traceback (most recent call last):
        ...
    optsched.errors.InstanceError: request 1: the output 130 is outside its interval [1, 100]
    """
    lower, upper = _bounds(instance, intervals)
    outputs = instance.outputs
    outside = (outputs < lower) | (outputs > upper)
    if outside.any() and (lower <= upper).all():
        request = int(np.argmax(outside))
        raise InstanceError(
            f"request {instance.label(request)}: the output {outputs[request]} is outside its "
            f"interval [{lower[request]}, {upper[request]}]",
            request=request,
            value=int(outputs[request]),
        )
    return Forecast(
        instance.prompts,
        instance.arrivals,
        lower,
        upper,
        instance.memory,
        instance.weights,
        instance.labels,
    )


def check_intervals(intervals: str) -> None:
    """Refuse the name of a maker that cannot be, before any work is done."""
    _maker(intervals)


def _bounds(instance: Instance, intervals: str) -> tuple[IntArray, IntArray]:
    lower, upper = _maker(intervals)(instance)
    count = len(instance)
    return (
        np.broadcast_to(np.asarray(lower, dtype=np.int64), count),
        np.broadcast_to(np.asarray(upper, dtype=np.int64), count),
    )


def _maker(intervals: str) -> Callable[[Instance], Interval]:
    name, _, rest = intervals.partition(":")
    if name not in MAKERS:
        raise OptschedError(f"unknown intervals {intervals!r}: {nearest(name, MAKERS)}")
    numbers, form, make = MAKERS[name]
    parts = rest.split(",") if rest else []
    try:
        values = [Fraction(part) for part in parts]
    except (ValueError, ZeroDivisionError):
        values = []
    if len(values) != numbers or len(parts) != numbers:
        raise OptschedError(f"intervals {intervals!r} should read {form}")
    return make(intervals, *values)


def _exact(_: str) -> Callable[[Instance], Interval]:
    return lambda instance: (instance.outputs, instance.outputs)


def _common(text: str, lower: Fraction, upper: Fraction) -> Callable[[Instance], Interval]:
    if lower.denominator != 1 or upper.denominator != 1 or not 1 <= lower <= upper <= MAX_TOKENS:
        raise OptschedError(
            f"intervals {text!r}: the bounds must be whole numbers with 1 <= L <= U"
        )
    return lambda instance: (int(lower), int(upper))


def _classes(text: str, width: Fraction) -> Callable[[Instance], Interval]:
    if width.denominator != 1 or not 1 <= width <= MAX_TOKENS:
        raise OptschedError(f"intervals {text!r}: the width of a class is a whole number from 1 on")

    def make(instance: Instance) -> Interval:
        below = (instance.outputs - 1) // int(width) * int(width)
        return below + 1, below + int(width)

    return make


def _relative(text: str, error: Fraction) -> Callable[[Instance], Interval]:
    if not 0 <= error < 1 or error.denominator > MAX_TOKENS:
        raise OptschedError(f"intervals {text!r}: the relative error must be in [0, 1)")

    def make(instance: Instance) -> Interval:
        # In whole numbers: 0.7 of 10 is 3 from below, not 3.0000000000000004.
        share, whole = error.numerator, error.denominator
        outputs = instance.outputs
        return outputs - outputs * share // whole, outputs + outputs * share // whole

    return make


def _column(_: str) -> Callable[[Instance], Interval]:
    def make(instance: Instance) -> Interval:
        lower, upper = instance.output_lower, instance.output_upper
        if lower is None and upper is None:
            raise OptschedError(
                "the intervals are to come from the trace's columns, but it has neither "
                "output_lower nor output_upper"
            )
        return 1 if lower is None else lower, MAX_TOKENS if upper is None else upper

    return make


#: Makers by name: how many numbers they take, how to write them, and what makes the intervals.
MAKERS: dict[str, tuple[int, str, Callable[..., Callable[[Instance], Interval]]]] = {
    "exact": (0, "exact", _exact),
    "common": (2, "common:L,U with two whole numbers, such as common:1,1000", _common),
    "classes": (1, "classes:W with a whole number, such as classes:100", _classes),
    "relative": (1, "relative:X with a number in [0, 1), such as relative:0.5", _relative),
    "column": (0, "column", _column),
}
