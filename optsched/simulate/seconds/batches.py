"""What simulators with a clock share: how long a batch takes, and the log of all batches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.clock import BatchContent

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock

_COUNTS = len(BatchContent._fields)
_Callback = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * _COUNTS)
_LOGGED = 0


class BatchLog(NamedTuple):
    """Batches so far, one row each; rows beyond those in use mean nothing."""

    contents: IntArray
    spans: FloatArray
    usage: IntArray
    now: FloatArray
    state: IntArray

    @property
    def ended(self) -> int:
        """Batches that are logged."""
        return int(self.state[_LOGGED])

    def finished(self) -> BatchLog:
        """Return the log without rows that are not in use."""
        rows = slice(self.ended)
        return self._replace(
            contents=self.contents[rows].copy(),
            spans=self.spans[rows].copy(),
            usage=self.usage[rows].copy(),
        )


class Requests(NamedTuple):
    """What a kernel knows of the requests; an output only shows whether one is complete."""

    prompts: IntArray
    arrivals: FloatArray  # ascending, in the clock's unit
    outputs: IntArray
    memory: int


def new_log() -> BatchLog:
    """Make an empty log at time zero."""
    return BatchLog(
        contents=np.zeros((1024, _COUNTS), dtype=np.int64),
        spans=np.zeros((1024, 2)),
        usage=np.zeros(1024, dtype=np.int64),
        now=np.zeros(1),
        state=np.zeros(1, dtype=np.int64),
    )


class Timer:
    """A clock as a kernel can use it: coefficients, or a pointer to a Python function."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._error: BaseException | None = None
        coefficients = clock.coefficients
        self.handle: tuple[FloatArray, Any] = (
            np.zeros(0) if coefficients is None else coefficients,
            _Callback(self._duration),
        )

    def _duration(self, *counts: int) -> float:
        try:
            return self._clock(BatchContent(*counts))
        except BaseException as error:
            self._error = error
            return float("nan")

    def reraise(self) -> None:
        """Raise the error that ended the run, if one did."""
        if self._error is not None:
            raise self._error


@compiled
def is_full(log: BatchLog) -> bool:
    """Tell whether the log must be enlarged before the next batch."""
    return bool(log.state[_LOGGED] == len(log.spans))


@compiled
def enlarged(log: BatchLog) -> BatchLog:
    """Return the log with twice as many rows."""
    rows, counts = log.contents.shape
    contents = np.zeros((2 * rows, counts), dtype=np.int64)
    spans = np.zeros((2 * rows, 2))
    usage = np.zeros(2 * rows, dtype=np.int64)
    for row in range(rows):
        for count in range(counts):
            contents[row, count] = log.contents[row, count]
        spans[row, 0], spans[row, 1] = log.spans[row, 0], log.spans[row, 1]
        usage[row] = log.usage[row]
    return BatchLog(contents, spans, usage, log.now, log.state)


@compiled
def add_batch(
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    prefill_tokens: int,
    decode_requests: int,
    resident_tokens: int,
    squared_prompts: int,
    held_tokens: int,
    usage: int,
) -> bool:
    """Run a batch: log it and let its time pass; tells whether the clock could time it."""
    row = log.state[_LOGGED]
    log.contents[row, 0] = prefill_tokens
    log.contents[row, 1] = decode_requests
    log.contents[row, 2] = resident_tokens
    log.contents[row, 3] = squared_prompts
    log.contents[row, 4] = held_tokens
    coefficients, callback = timer
    if len(coefficients) > 0:
        duration = (
            coefficients[0]
            + coefficients[1] * prefill_tokens
            + coefficients[2] * decode_requests
            + coefficients[3] * resident_tokens
            + coefficients[4] * squared_prompts
            + coefficients[5] * held_tokens
        )
    else:
        duration = callback(
            prefill_tokens, decode_requests, resident_tokens, squared_prompts, held_tokens
        )
        if np.isnan(duration):
            return False
    log.usage[row] = usage
    log.spans[row, 0] = log.now[0]
    log.now[0] += duration
    log.spans[row, 1] = log.now[0]
    log.state[_LOGGED] = row + 1
    return True
