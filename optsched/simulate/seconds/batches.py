"""What simulators with a clock share: how long a batch takes, and the log of all batches."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock

_COUNTS = len(BatchContent._fields)
_Callback = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * _COUNTS)
_LOGGED = 0

#: Of a worker: the number of its next batch; requests that run and the tokens they hold; and of
#: those that start in that batch: how many have prompts, their tokens, and the squares of these.
BATCH = ("batch", "active", "tokens", "entered", "prefill", "squares")

#: What vLLM's scheduler says of each batch; the last only where blocks can be found again.
COLUMNS = (
    *("requests", "tokens", "running", "waiting", "free_blocks", "preempted"),
    "cached_blocks",
)


class BatchLog(NamedTuple):
    """Batches so far, one row each; rows beyond those in use mean nothing."""

    contents: IntArray
    spans: FloatArray
    usage: IntArray
    now: FloatArray
    state: IntArray

    def finished(self) -> BatchLog:
        """Return the log without rows that are not in use."""
        rows = slice(self.state[_LOGGED])
        contents, spans, usage = self.contents[rows], self.spans[rows], self.usage[rows]
        return BatchLog(contents.copy(), spans.copy(), usage.copy(), self.now, self.state)

    def doubled(self) -> BatchLog:
        """Return the log with twice as many rows."""
        log = (self.contents, self.spans, self.usage)
        contents, spans, usage = (np.concatenate([rows, np.zeros_like(rows)]) for rows in log)
        return BatchLog(contents, spans, usage, self.now, self.state)


class Requests(NamedTuple):
    """What a kernel knows of the requests; an output only shows whether one is complete."""

    prompts: IntArray
    arrivals: FloatArray  # ascending, in the clock's unit
    outputs: IntArray
    memory: int


class Progress(NamedTuple):
    """How far an engine is with each request when the batch in progress ends, as routers see it."""

    held: IntArray  # tokens
    made: IntArray
    in_flight: IntArray  # tokens made, too
    last: IntArray  # the batch that made the last token, or -1
    queue: IntArray
    absent: int  # what `queue` has for those that do not wait


def new_log() -> BatchLog:
    """Make an empty log at time zero."""
    return BatchLog(
        contents=np.zeros((1024, _COUNTS), dtype=np.int64),
        spans=np.zeros((1024, 2)),
        usage=np.zeros(1024, dtype=np.int64),
        now=np.zeros(1),
        state=np.zeros(1, dtype=np.int64),
    )


@contextmanager
def called_back(kind: Any, function: Callable[..., Any], failed: float) -> Iterator[Any]:
    """Return a function as kernels call it: they get `failed` where it raises, which waits."""
    errors: list[BaseException] = []

    def call(*arguments: int) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            errors.append(error)
            return failed

    yield kind(call)
    if errors:
        raise errors[0]


@contextmanager
def timing(clock: Clock) -> Iterator[tuple[FloatArray, Any]]:
    """Turn a clock into what kernels can use: coefficients, or a pointer to a Python function."""

    def duration(*counts: int) -> float:
        return clock(BatchContent(*counts))

    if clock.coefficients is None:
        weights = np.zeros(0)
    else:
        weights = np.concatenate([clock.coefficients, np.ravel(clock.hinges)])
    with called_back(_Callback, duration, float("nan")) as callback:
        yield weights, callback


@compiled
def with_room(log: BatchLog) -> BatchLog:
    """Return the log, with twice as many rows where all are in use."""
    rows, counts = log.contents.shape
    if log.state[_LOGGED] < rows:
        return log
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
    content: tuple[int, int, int, int, int],
    usage: int,
) -> bool:
    """Run a batch: log it and let its time pass; tells whether the clock could time it."""
    row = log.state[_LOGGED]
    prefill, decodes, resident, squares, held = content
    log.contents[row, 0], log.contents[row, 1], log.contents[row, 2] = prefill, decodes, resident
    log.contents[row, 3], log.contents[row, 4] = squares, held
    c, callback = timer
    if len(c) > 0:
        duration = c[0] + c[1] * prefill + c[2] * decodes + c[3] * resident
        duration = duration + c[4] * squares + c[5] * held
        for at in range(_COUNTS + 1, len(c), 2):  # hinges: batch tokens, seconds per token beyond
            duration += c[at + 1] * max(prefill + decodes - c[at], 0.0)
    else:
        duration = callback(prefill, decodes, resident, squares, held)
        if np.isnan(duration):
            return False
    log.usage[row] = usage
    log.spans[row, 0] = log.now[0]
    log.now[0] += duration
    log.spans[row, 1] = log.now[0]
    log.state[_LOGGED] = row + 1
    return True


@compiled
def start(worker: Any, prompt: int) -> None:
    """Let a request start in the next batch of a worker."""
    worker.active += 1
    worker.tokens += prompt
    worker.entered += prompt > 0  # without a prompt its first token is as good as a decode
    worker.prefill += prompt
    worker.squares += prompt * prompt


@compiled
def next_batch(worker: Any) -> tuple[int, int, int, int, int]:
    """Let each request of a worker make a token; return the content of that batch."""
    decodes, resident = worker.active - worker.entered, worker.tokens - worker.prefill
    worker.tokens += worker.active
    content = (worker.prefill, decodes, resident, worker.squares, worker.tokens)
    worker.entered = worker.prefill = worker.squares = 0
    worker.batch += 1
    return content
