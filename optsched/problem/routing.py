"""What a router sees, and routers that are functions: vLLM's own, and one by predicted costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from optsched.clock import BatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock

Number = TypeVar("Number")


class Load(NamedTuple, Generic[Number]):
    """What is on workers when a request arrives, one number per worker."""

    waiting: Number  # requests that were sent to the worker and do not run
    running: Number  # requests in its batch, until that ends
    held: Number  # tokens in its KV cache, those of the batch in progress included
    waiting_prompts: Number  # prompt tokens of the requests that wait
    work: Number  # memory-time that its requests have still to take, which needs their outputs
    made: Number  # output tokens that it has made for all requests until now


@dataclass(frozen=True, slots=True, eq=False)
class RouterState:
    """What a router of your own may look at when a request arrives.

    Attributes
    ----------
    time
        When it arrives, in steps, or on a clock in seconds.
    request, prompt
        Index of the request, and its prompt tokens.
    workers
        The workers that can hold it, ascending; the answer is one of them.
    memories, waiting, running, held, waiting_prompts, work, made
        Memory and `Load` of all workers, shape (workers,) each. Of a router with an age: as they
        were at the last report, and what was sent since.
    in_flight
        Requests on each worker that are not complete now, shape (workers,).
    output
        Its output tokens; None where the router reads "nothing".
    clocks
        Clock of each worker.
    """

    time: float
    request: int
    prompt: int
    workers: IntArray
    memories: IntArray
    waiting: IntArray
    running: IntArray
    held: IntArray
    waiting_prompts: IntArray
    work: IntArray
    made: IntArray
    in_flight: IntArray
    output: int | None
    clocks: tuple[Clock, ...]


def vllm_dp(state: RouterState) -> int:
    r"""Send a request where vLLM 0.32 and 0.33 send it, with one API server.

    The score of an engine is :math:`\max(I, W + R) + 6 W \max(0, u - 1/2)` for the requests
    :math:`I` in flight now, and :math:`W` waiting and :math:`R` running ones and the share
    :math:`u` of the KV cache in use when the engines last reported, and :math:`W` counts what was
    sent since. Of equal ones the first counts, from an engine on that is the next with each
    request (`DPLBAsyncMPClient.get_core_engine_for_request`).
    """
    usage = state.held / state.memories
    scores = np.maximum(state.in_flight, state.waiting + state.running)
    return _first_least(state, scores + state.waiting * 6.0 * np.maximum(0.0, usage - 0.5))


def by_cost(state: RouterState) -> int:
    r"""Send a request where all latencies together are predicted to grow least.

    On a worker with :math:`N` requests in flight, :math:`H` tokens held and :math:`P` prompt tokens
    waiting, and memory :math:`M`, a request with prompt :math:`s` and output :math:`o` costs

    .. math:: w + T(P + s, N + 1, H) + o \, T(0, N + 1, H')
        + N \min(o, \bar o) \, (T(0, N + 1, H') - T(0, N, H + P)).

    :math:`T(x, n, h)` is the time of a batch that prefills :math:`x` tokens and decodes for
    :math:`n` requests with :math:`h` tokens, and :math:`H' = H + P + s + o / 2`. The first two
    terms are its TTFT, the third is the rest of its latency, and the last how much longer it makes
    the batches of the others while both are there; that its prefill stalls them once is left out.
    It waits for memory :math:`w = T(0, N + 1, H') \, \bar o \max(0, H + P + s - M) / (H + P)`:
    in a batch one of :math:`\bar o` tokens held becomes free. Outputs have the mean
    :math:`\bar o`, learned as tokens made per completed request, and :math:`o = \bar o` where it
    is not told.
    """
    completed = max(1, state.request - int(state.in_flight.sum()))
    mean = max(1.0, float(state.made.sum()) / completed)
    output = mean if state.output is None else state.output
    costs = np.full(len(state.memories), np.inf)
    counts = zip(state.in_flight, state.held, state.waiting_prompts, state.memories, strict=True)
    told = [tuple(map(int, each)) for each in counts]
    for worker in state.workers.tolist():
        time, (others, held, waiting, memory) = _timer(state.clocks[worker]), told[worker]
        need = held + waiting + state.prompt
        batch = time(0, others + 1, need + output / 2)
        short = mean * max(0, need - memory) / max(1, held + waiting)
        costs[worker] = (short + output) * batch + time(need - held, others + 1, held)
        if others:
            slower = batch - time(0, others, held + waiting)
            costs[worker] += others * min(output, mean) * slower
    return _first_least(state, costs)


def _timer(clock: Clock) -> Callable[[float, float, float], float]:
    """Return the time of a batch by the tokens that it prefills, its decodes and their tokens."""

    def time(prefill: float, decodes: float, held: float) -> float:
        return clock(BatchContent(prefill, decodes, held, prefill**2, prefill + decodes + held))

    return time


def _first_least(state: RouterState, scores: FloatArray) -> int:
    """Return the worker with the least score, of equal ones the first from one in turn on."""
    turn = np.searchsorted(state.workers, state.request % len(state.memories))
    line: IntArray = np.roll(state.workers, -turn)
    return int(line[np.argmin(scores[line])])
