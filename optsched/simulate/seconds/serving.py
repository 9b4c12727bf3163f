"""Serving engines that know no outputs: first come, first served, with limits on batches.

Three ways to form a batch from requests in the decode phase and waiting prompts:

- mixed: all decodes, and whole prompts beside them;
- prefill first (as vLLM does): whole prompts alone while any can be admitted, else all decodes;
- chunked (as Sarathi does): all decodes, and prompt tokens up to the token limit, so that a long
  prompt is spread over several batches.

A prompt is admitted when it fits beside the tokens held now. As outputs are unknown the memory may
run out: then the request admitted last gives up its KV cache and waits again; the tokens it has
made are kept as part of its prompt, which is prefilled again (vLLM's recomputation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched._internal.min_tree import ABSENT, leftmost_below, new_tree, put
from optsched.simulate.seconds.batches import BatchLog, Timer, add_batch, enlarged, is_full, new_log

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock

MIXED, PREFILL_FIRST, CHUNKED = range(3)
_RELEASED, _RUNNING, _USAGE = range(3)
_NEVER = -1


class Engine(NamedTuple):
    """State of an engine between two batches; per-request arrays have shape (n,)."""

    arrivals: FloatArray
    prompts: IntArray
    outputs: IntArray
    waiting: IntArray  # tree over requests
    running: IntArray  # requests by admission, the last one latest
    held: IntArray  # tokens in the KV cache
    made: IntArray  # output tokens
    target: IntArray  # tokens to prefill before the next token is made
    chunk: IntArray  # tokens to prefill in the batch that is formed; -1 for a decode
    first: IntArray  # batch in which the first token was made
    last: IntArray  # batch in which the last token was made
    preempted: IntArray  # how often
    recomputed: IntArray  # tokens that were in the KV cache before and are prefilled again
    counters: IntArray


class Limits(NamedTuple):
    """Of memory in tokens, of requests admitted at a time, and of tokens of a batch."""

    memory: int
    max_num_seqs: int
    max_num_batched_tokens: int


def serve(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: FloatArray,
    clock: Clock,
    how: int,
    limits: Limits,
    until: float = np.inf,
) -> tuple[Engine, BatchLog]:
    """Serve requests in order of arrival; return the state at the end, and the batches."""
    count = len(prompts)

    def filled(value: int) -> IntArray:
        return np.full(count, value, dtype=np.int64)

    engine = Engine(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        waiting=new_tree(count),
        running=filled(0),
        held=filled(0),
        made=filled(0),
        target=prompts.copy(),
        chunk=filled(0),
        first=filled(_NEVER),
        last=filled(_NEVER),
        preempted=filled(0),
        recomputed=filled(0),
        counters=np.zeros(_USAGE + 1, dtype=np.int64),
    )
    timer = Timer(clock)
    log = _run(engine, new_log(), timer.handle, how, limits, until)
    timer.reraise()
    return engine, log.finished()


@compiled
def _run(
    engine: Engine,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    how: int,
    limits: Limits,
    until: float,
) -> BatchLog:
    counters, arrivals, waiting = engine.counters, engine.arrivals, engine.waiting
    while True:
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= log.now[0]:
            put(waiting, released, ZERO)
            released += 1
        counters[_RELEASED] = released
        if counters[_RUNNING] == 0 and waiting[1] == ABSENT:
            if released == len(arrivals):
                return log
            log.now[0] = arrivals[released]
            continue
        if log.now[0] >= until:
            return log
        _choose(engine, how, limits)
        row = log.state[0]
        if is_full(log):
            log = enlarged(log)
        if not _add_batch(engine, log, timer):
            return log
        _progress(engine, row)


@compiled
def _choose(engine: Engine, how: int, limits: Limits) -> None:
    """Decide what each running request does in the next batch, and what is admitted to it."""
    counters, chunk = engine.counters, engine.chunk
    if how == PREFILL_FIRST:
        for position in range(counters[_RUNNING]):
            chunk[engine.running[position]] = 0
        if _admit(engine, limits, limits.max_num_batched_tokens, how == CHUNKED) > 0:
            return
    preempted = _make_room(engine, limits.memory)
    left = limits.max_num_batched_tokens
    for position in range(counters[_RUNNING]):
        request = engine.running[position]
        if engine.held[request] >= engine.target[request]:
            chunk[request] = -1
            left -= 1
    if how == PREFILL_FIRST:
        return
    for position in range(counters[_RUNNING]):
        request = engine.running[position]
        if engine.held[request] < engine.target[request]:
            chunk[request] = max(0, min(left, engine.target[request] - engine.held[request]))
            left -= chunk[request]
    if not preempted:
        _admit(engine, limits, left, how == CHUNKED)


@compiled
def _promised(engine: Engine) -> int:
    """Tokens held when the next batch ends if none is admitted; whole prompts count already."""
    total = 0
    for position in range(engine.counters[_RUNNING]):
        request = engine.running[position]
        total += max(engine.held[request], engine.target[request]) + 1
    return total


@compiled
def _make_room(engine: Engine, memory: int) -> bool:
    """Preempt requests, the latest first, until all others can make a token."""
    promised = _promised(engine)
    before = engine.counters[_RUNNING]
    while promised > memory:
        engine.counters[_RUNNING] -= 1
        request = engine.running[engine.counters[_RUNNING]]
        promised -= max(engine.held[request], engine.target[request]) + 1
        engine.counters[_USAGE] -= engine.held[request]
        engine.recomputed[request] += engine.held[request]
        engine.preempted[request] += 1
        engine.held[request] = 0
        engine.target[request] = engine.prompts[request] + engine.made[request]
        put(engine.waiting, request, ZERO)
    return bool(engine.counters[_RUNNING] < before)


@compiled
def _admit(engine: Engine, limits: Limits, tokens: int, in_chunks: bool) -> int:
    """Admit waiting requests in order of arrival while they fit; return how many."""
    counters = engine.counters
    promised = _promised(engine)
    admitted = 0
    while counters[_RUNNING] < limits.max_num_seqs:
        request = leftmost_below(engine.waiting, ABSENT)
        if request < 0:
            break
        target = engine.target[request]
        if promised + target + 1 > limits.memory:
            break
        if in_chunks:
            if tokens <= 0:
                break
        elif target > tokens and (admitted > 0 or target <= limits.max_num_batched_tokens):
            break
        put(engine.waiting, request, ABSENT)
        engine.running[counters[_RUNNING]] = request
        counters[_RUNNING] += 1
        chunk = min(target, tokens) if in_chunks else target
        engine.chunk[request] = chunk if target > 0 else -1
        tokens -= chunk
        promised += target + 1
        admitted += 1
    return admitted


@compiled
def _add_batch(engine: Engine, log: BatchLog, timer: tuple[FloatArray, Any]) -> bool:
    prefill = decodes = resident = squares = held = ZERO
    sitting_out = engine.counters[_USAGE]
    for position in range(engine.counters[_RUNNING]):
        request = engine.running[position]
        before, chunk = engine.held[request], engine.chunk[request]
        if chunk < 0:
            decodes += 1
            resident += before
            held += before + 1
            sitting_out -= before
        elif chunk > 0:
            after = before + chunk
            prefill += chunk
            squares += after * after - before * before
            held += after + (after == engine.target[request])
            sitting_out -= before
    return add_batch(log, timer, prefill, decodes, resident, squares, held, sitting_out + held)


@compiled
def _progress(engine: Engine, row: int) -> None:
    """Let the batch have had its effect; requests that are complete leave."""
    kept = 0
    for position in range(engine.counters[_RUNNING]):
        request = engine.running[position]
        chunk = engine.chunk[request]
        gained = max(chunk, 0)
        if chunk < 0 or (chunk > 0 and engine.held[request] + chunk == engine.target[request]):
            gained += 1
            engine.made[request] += 1
            engine.target[request] = 0  # nothing left to prefill
            if engine.made[request] == 1:
                engine.first[request] = row
        engine.held[request] += gained
        engine.counters[_USAGE] += gained
        if engine.made[request] == engine.outputs[request]:
            engine.last[request] = row
            engine.counters[_USAGE] -= engine.held[request]
        else:
            engine.running[kept] = request
            kept += 1
    engine.counters[_RUNNING] = kept
