"""What a policy may know of the outputs: an interval for each request (Robust Section 2).

A `Forecast` is all that a policy sees under uncertainty. Its arrays are copies without a way back
to the instance, so that no policy can look an output up; the simulator alone holds the outputs and
reveals each by the completion of its request.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import MAX_TOKENS, as_floats, as_integers, frozen
from optsched.errors import InstanceError, OptschedError, nearest

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance


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
        sizes = as_integers("prompts", prompts)
        room = memory - sizes
        for broken, reason in (
            (low < 1, "is not at least 1"),
            (low > high, "has its lower bound above its upper bound"),
            (low > room, f"cannot run: with its prompt it needs more than the memory of {memory}"),
        ):
            if broken.any():
                request = int(np.argmax(broken))
                name = str(request) if labels is None else labels[request]
                raise InstanceError(
                    f"request {name}: the interval [{low[request]}, {high[request]}] {reason}",
                    request=request,
                    value=int(low[request]),
                )
        fields = (
            sizes,
            as_integers("arrivals", arrivals),
            low,
            frozen(np.minimum(high, room)),
            int(memory),
            None if weights is None else frozen(as_floats("weights", weights)),
            labels,
        )
        for field, value in zip(dataclasses.fields(self), fields, strict=True):
            object.__setattr__(self, field.name, value)

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
    _parsed(intervals)


def _bounds(instance: Instance, intervals: str) -> tuple[IntArray, IntArray]:
    name, numbers = _parsed(intervals)
    outputs = instance.outputs
    lower: npt.ArrayLike | None
    upper: npt.ArrayLike | None
    if name == "exact":
        lower = upper = outputs
    elif name == "common":
        lower, upper = map(int, numbers)
    elif name == "classes":
        width = int(numbers[0])
        below = (outputs - 1) // width * width
        lower, upper = below + 1, below + width
    elif name == "relative":
        # In whole numbers: 0.7 of 10 is 3 from below, not 3.0000000000000004.
        share, whole = numbers[0].numerator, numbers[0].denominator
        lower, upper = outputs - outputs * share // whole, outputs + outputs * share // whole
    else:
        lower, upper = instance.output_lower, instance.output_upper
        if lower is None and upper is None:
            raise OptschedError(
                "the intervals are to come from the trace's columns, but it has neither "
                "output_lower nor output_upper"
            )
    return (
        np.broadcast_to(np.asarray(1 if lower is None else lower), len(outputs)),
        np.broadcast_to(np.asarray(MAX_TOKENS if upper is None else upper), len(outputs)),
    )


def _parsed(intervals: str) -> tuple[str, list[Fraction]]:
    """Return the name of a maker and its numbers."""
    name, _, rest = intervals.partition(":")
    if name not in _FORMS:
        raise OptschedError(f"unknown intervals {intervals!r}: {nearest(name, _FORMS)}")
    count, form = _FORMS[name]
    parts = rest.split(",") if rest else []
    try:
        numbers = [Fraction(part) for part in parts]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if len(parts) != count or len(numbers) != count:
        raise OptschedError(f"intervals {intervals!r} should read {form}")
    whole = all(number.denominator == 1 for number in numbers)
    wish = ""
    if name == "common" and not (whole and 1 <= numbers[0] <= numbers[1] <= MAX_TOKENS):
        wish = "the bounds must be whole numbers with 1 <= L <= U"
    elif name == "classes" and not (whole and 1 <= numbers[0] <= MAX_TOKENS):
        wish = "the width of a class is a whole number from 1 on"
    elif name == "relative" and not (0 <= numbers[0] < 1 and numbers[0].denominator <= MAX_TOKENS):
        wish = "the relative error must be in [0, 1)"
    if wish:
        raise OptschedError(f"intervals {intervals!r}: {wish}")
    return name, numbers


#: How many numbers the makers take, and how to write them.
_FORMS = {
    "exact": (0, "exact"),
    "common": (2, "common:L,U with two whole numbers, such as common:1,1000"),
    "classes": (1, "classes:W with a whole number, such as classes:100"),
    "relative": (1, "relative:X with a number in [0, 1), such as relative:0.5"),
    "column": (0, "column"),
}
