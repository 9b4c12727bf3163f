"""What simulators with a clock share: the log of batches, and who tells their durations.

A simulator is a compiled function `advance(state, coefficients, ...)` that runs batches until
something outside has to be done and returns why. Its state is a named tuple of arrays, changed in
place, with a `BatchLog` named `log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._compiled import compiled
from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import Clock
    from optsched.instance import FloatArray, IntArray

#: Why a simulator comes back: all is done, the log is full, the duration of the batch formed last
#: must be found, or a choice must be made.
DONE, FULL, TIME, CHOOSE = range(4)
_LOGGED, _FORMED = range(2)


class BatchLog(NamedTuple):
    """Batches so far, one row each.

    Attributes
    ----------
    contents
        The counts of `BatchContent`, shape (rows, 5).
    spans
        Begin and end, shape (rows, 2).
    usage
        Tokens held by everybody when the batch ends, also by requests that sit it out.
    time
        Now, and the duration of a batch that was formed.
    state
        Rows in use, and whether a batch is formed that has not ended.
    """

    contents: IntArray
    spans: FloatArray
    usage: IntArray
    time: FloatArray
    state: IntArray


def new_log() -> BatchLog:
    """Make an empty log at time zero."""
    return BatchLog(
        contents=np.zeros((1024, len(BatchContent._fields)), dtype=np.int64),
        spans=np.zeros((1024, 2)),
        usage=np.zeros(1024, dtype=np.int64),
        time=np.zeros(2),
        state=np.zeros(2, dtype=np.int64),
    )


def drive(
    advance: Callable[..., int],
    state: Any,
    clock: Clock,
    *arguments: object,
    choose: Callable[[], None] | None = None,
) -> BatchLog:
    """Run a simulator to its end.

    Parameters
    ----------
    advance
        The simulator.
    state
        Its state.
    clock
        Gives the duration of a batch.
    *arguments
        What else `advance` takes after the state and the clock's coefficients.
    choose
        Called when a choice must be made.

    Returns
    -------
    BatchLog
        All batches, without rows that are not in use.
    """
    coefficients = np.zeros(0) if clock.coefficients is None else clock.coefficients
    while (why := advance(state, coefficients, *arguments)) != DONE:
        log = state.log
        if why == FULL:
            rows = ("contents", "spans", "usage")
            larger = {name: np.concatenate([getattr(log, name)] * 2) for name in rows}
            state = state._replace(log=log._replace(**larger))
        elif why == TIME:
            log.time[1] = clock(BatchContent(*log.contents[log.state[_LOGGED] - 1].tolist()))
        else:
            assert choose is not None
            choose()
    log: BatchLog = state.log
    count = int(log.state[_LOGGED])
    return log._replace(
        contents=log.contents[:count].copy(),
        spans=log.spans[:count].copy(),
        usage=log.usage[:count].copy(),
    )


@compiled
def is_full(log: BatchLog) -> bool:
    """Tell whether no further batch can be logged."""
    return bool(log.state[_LOGGED] == len(log.spans))


@compiled
def form_batch(
    log: BatchLog,
    coefficients: FloatArray,
    prefill_tokens: int,
    decode_requests: int,
    resident_tokens: int,
    squared_prompts: int,
    held_tokens: int,
    usage: int,
) -> None:
    """Log a batch and, where the clock has coefficients, its duration."""
    row = log.state[_LOGGED]
    counts = log.contents[row]
    counts[0], counts[1], counts[2] = prefill_tokens, decode_requests, resident_tokens
    counts[3], counts[4] = squared_prompts, held_tokens
    log.usage[row] = usage
    log.spans[row, 0] = log.time[0]
    log.state[_LOGGED] = row + 1
    log.state[_FORMED] = 1
    if len(coefficients) > 0:
        duration = coefficients[0]
        for count in range(len(counts)):
            duration += coefficients[1 + count] * counts[count]
        log.time[1] = duration


@compiled
def end_batch(log: BatchLog) -> bool:
    """End the batch that was formed, if there is one, and tell whether there was."""
    if not log.state[_FORMED]:
        return False
    log.state[_FORMED] = 0
    log.time[0] += log.time[1]
    log.spans[log.state[_LOGGED] - 1, 1] = log.time[0]
    return True
