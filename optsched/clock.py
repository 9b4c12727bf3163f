r"""Clocks: how long a batch takes, from what is in it.

Every built-in clock is a weighted sum of the same five counts, so that a compiled simulator can
evaluate any of them:

.. math::

    \tau = c_0 + c_1 P + c_2 D + c_3 R + c_4 Q + c_5 H

with prefill tokens :math:`P`, decoding requests :math:`D`, their resident tokens :math:`R`, squared
prompts :math:`Q` and tokens held :math:`H`; `BatchContent` says what each of them counts.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched.errors import ClockError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray


class BatchContent(NamedTuple):
    """What a batch is made of, as far as its duration depends on it.

    Attributes
    ----------
    prefill_tokens
        Prompt tokens that are prefilled in the batch; of a prompt in chunks, those of this chunk.
    decode_requests
        Requests that were prefilled earlier and make one token each in the batch.
    resident_tokens
        Tokens that the decoding requests hold in the KV cache before the batch: prompt and the
        tokens made so far. Prompts prefilled in the batch do not count.
    squared_prompts
        Sum of the squares of the prompts that are prefilled; of a prompt in chunks, the square of
        what is prefilled after the chunk less that before it, so that chunks add up to the prompt.
    held_tokens
        Tokens that all requests of the batch hold in the KV cache when it ends, the tokens made in
        it included. Requests that sit out the batch do not count.
    """

    prefill_tokens: float
    decode_requests: float
    resident_tokens: float
    squared_prompts: float
    held_tokens: float


#: The least batches there are: one prompt token prefilled, and one request's second token.
_LEAST_PREFILL = BatchContent(1, 0, 0, 1, 1)
_LEAST_DECODE = BatchContent(0, 1, 1, 0, 2)
_MAX = 1e12  # beyond it sums of many batches would leave the numbers there are


@dataclass(frozen=True)
class LinearClock:
    """A clock that is a weighted sum of the counts of `BatchContent`.

    Parameters
    ----------
    name
        What to call it.
    constant
        Time of a batch whatever is in it.
    prefill_tokens, decode_requests, resident_tokens, squared_prompts, held_tokens
        Time per unit of the count of that name.
    unit
        Unit of the time: "s" or "steps".

    Raises
    ------
    ClockError
        If a coefficient is negative or not finite, or a batch could take no time.

    Examples
    --------
    >>> clock = LinearClock("mine", constant=0.01, prefill_tokens=0.0001)
    >>> clock(BatchContent(200, 3, 90, 40000, 293))
    0.03
    >>> print(clock)
    mine: 0.01 + 0.0001 prefill_tokens s
    """

    name: str
    constant: float = 0.0
    prefill_tokens: float = 0.0
    decode_requests: float = 0.0
    resident_tokens: float = 0.0
    squared_prompts: float = 0.0
    held_tokens: float = 0.0
    unit: str = "s"

    def __post_init__(self) -> None:
        for field in ("constant", *BatchContent._fields):
            value = getattr(self, field)
            if not isinstance(value, int | float | np.number) or not 0 <= value <= _MAX:
                raise ClockError(
                    f"clock {self.name}: the coefficient {field} is {value!r}, but must be a "
                    f"number from 0 to {_MAX:.0e}, so that no batch takes less than no time"
                )
            object.__setattr__(self, field, float(value))
        for least, what in ((_LEAST_PREFILL, "prefills"), (_LEAST_DECODE, "decodes")):
            if not self._seconds(least) > 0:
                raise ClockError(
                    f"clock {self.name}: a batch that only {what} would take no time; give a "
                    "constant above 0"
                )

    @property
    def coefficients(self) -> FloatArray:
        """The constant and the five coefficients in the order of `BatchContent`, shape (6,)."""
        fields = ("constant", *BatchContent._fields)
        return np.array([getattr(self, field) for field in fields], dtype=np.float64)

    def __call__(self, batch: BatchContent) -> float:
        """Return the time that a batch takes."""
        return _positive(self, self._seconds(batch), batch)

    def _seconds(self, batch: BatchContent) -> float:
        time: float = self.constant
        for field, count in zip(batch._fields, batch, strict=True):
            time += getattr(self, field) * count
        return time

    def __str__(self) -> str:
        terms = [f"{self.constant:g}"] if self.constant else []
        for field in BatchContent._fields:
            if coefficient := getattr(self, field):
                terms.append(f"{coefficient:g} {field}")
        return f"{self.name}: {' + '.join(terms)} {self.unit}"


@dataclass(frozen=True)
class FunctionClock:
    """A clock that is a function of one's own; slower, since it runs once per batch in Python.

    Parameters
    ----------
    function
        Gives the time of a batch from its `BatchContent`.
    name
        What to call it.
    unit
        Unit of the time: "s" or "steps".

    Examples
    --------
    >>> clock = FunctionClock(lambda batch: 0.01 + 1e-4 * max(batch.prefill_tokens, 64))
    >>> clock(BatchContent(10, 3, 90, 100, 103))
    0.0164
    """

    function: Callable[[BatchContent], float]
    name: str = "function"
    unit: str = "s"

    @property
    def coefficients(self) -> None:
        """None: the clock is no weighted sum."""
        return None

    def __call__(self, batch: BatchContent) -> float:
        """Return the time that a batch takes."""
        return _positive(self, self.function(batch), batch)

    def __str__(self) -> str:
        return f"{self.name}: a function of the batch, {self.unit}"


Clock = LinearClock | FunctionClock

#: The clock of hindsight programs and bounds: every batch takes one step.
UNIT = LinearClock("unit", constant=1, unit="steps")


def affine(d0: float, d1: float) -> LinearClock:
    r"""Make the clock of Fluid Eq. (1)."""
    return LinearClock(f"affine:{d0!r},{d1!r}", constant=d0, held_tokens=d1)


def get_clock(clock: str | Clock | Callable[[BatchContent], float]) -> Clock:
    """Look a clock up by name, or take one as it is.

    Parameters
    ----------
    clock
        "unit"; "affine:D0,D1" with seconds per batch and per token held; the name of a profiled
        model and its GPUs; a clock; or a function of a `BatchContent`.

    Returns
    -------
    LinearClock or FunctionClock
        The clock.

    Raises
    ------
    ClockError
        If there is no such clock, or a batch would take no time or a negative one.

    Examples
    --------
    >>> get_clock("affine:0.01,0.0001")(BatchContent(200, 3, 90, 40000, 293))
    0.0393
    >>> print(get_clock("llama-2-7b-a100"))
    llama-2-7b-a100: 0.00851366 + 6.02369e-05 prefill_tokens + 5.77148e-05 decode_requests
    + 2.71606e-07 resident_tokens + 6.36658e-09 squared_prompts s
    """
    if isinstance(clock, LinearClock | FunctionClock):
        return clock
    if callable(clock):
        return FunctionClock(clock, getattr(clock, "__name__", type(clock).__name__))
    if not isinstance(clock, str):
        raise ClockError(
            f"{clock!r} is not a clock; pass a name, a clock or a function of the batch"
        )
    kind, colon, numbers = clock.partition(":")
    if kind == "affine":
        return _parse_affine(clock, numbers)
    known = {"unit": UNIT} | _profiled()
    if colon or clock not in known:
        raise ClockError(f"unknown clock {clock!r}: {nearest(kind, [*known, 'affine:D0,D1'])}")
    return known[clock]


def _parse_affine(text: str, numbers: str) -> LinearClock:
    try:
        d0, d1 = (float(number) for number in numbers.split(","))
    except ValueError:
        raise ClockError(
            f"clock {text!r}: write affine:D0,D1 with two numbers, seconds per batch and seconds "
            "per token held, such as affine:0.0085,2.7e-7"
        ) from None
    return affine(d0, d1)


@functools.cache
def _profiled() -> dict[str, LinearClock]:
    text = resources.files("optsched").joinpath("data/batch_time.json").read_text("utf-8")
    fields = ("constant", *BatchContent._fields[:4])
    clocks: dict[str, dict[str, Any]] = json.loads(text)["clocks"]
    return {
        name: LinearClock(name, **{field: entry[field] for field in fields})
        for name, entry in clocks.items()
    }


def _positive(clock: Clock, time: Any, batch: BatchContent) -> float:
    try:
        good = 0 < time < math.inf
    except (TypeError, ValueError):
        good = False
    if not good:
        counts = ", ".join(f"{count:g} {field}" for field, count in batch._asdict().items())
        raise ClockError(
            f"clock {clock.name}: a batch with {counts} takes {time!r} {clock.unit}, but must take "
            "a finite time above 0; correct the clock"
        )
    return float(time)
