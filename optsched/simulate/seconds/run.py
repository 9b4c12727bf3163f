"""Runs on a clock, by kind of policy: batches take time, and requests arrive at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.admission import run_batches, run_by_priority
from optsched.simulate.seconds.execution import ClockedRun, arrival_times
from optsched.simulate.seconds.waiting import serve_waiting

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.steps.attempts import Attempts
    from optsched.simulate.task import Task

_BATCHING = {
    "mixed": serving.MIXED,
    "prefill-first": serving.PREFILL_FIRST,
    "chunked": serving.CHUNKED,
}


def of_attempts(task: Task, attempts: Attempts) -> ClockedRun:
    """Return the run in which these attempts were made."""
    instance = task.instance
    count = len(instance)
    first, last = np.full(count, -1), np.full(count, -1)
    first[attempts.requests] = attempts.starts  # of the last attempt
    done = attempts.tokens == instance.outputs[attempts.requests]
    last[attempts.requests[done]] = (attempts.starts + attempts.tokens - 1)[done]
    gone = ~done
    gone[len(gone) - attempts.running :] = False
    back = attempts.requests[gone]
    held = instance.prompts[back] + attempts.tokens[gone]
    waits_again = np.bincount(attempts.requests[~gone], minlength=count) == 0
    first[waits_again] = -1
    return ClockedRun(
        instance,
        task.policy.name,
        task.clock,
        first_batch=first,
        last_batch=last,
        log=attempts.log,
        preempted=np.bincount(back, minlength=count),
        preempted_tokens_by_request=np.bincount(back, held, minlength=count).astype(np.int64),
        until=task.until,
        intervals=task.intervals,
        loop=attempts.loop,
        stall=attempts.stall,
    )


def order_on_clock(task: Task) -> ClockedRun:
    """Run an order of requests under its rule, prefix or skip."""
    _check_rule(task, "prefix", "skip")
    instance, policy = task.instance, task.policy
    starts, log = run_by_priority(
        instance.prompts,
        instance.outputs,
        arrival_times(instance, task.clock),
        instance.memory,
        policy.order(instance),
        task.clock,
        skip=policy.rule == "skip",
        until=task.until,
    )
    return _of_starts(task, starts, log)


def batches_on_clock(task: Task) -> ClockedRun:
    """Run a choice of batches under the prefix rule."""
    _check_rule(task, "prefix")
    instance = task.instance
    starts, log = run_batches(
        instance.prompts,
        instance.outputs,
        arrival_times(instance, task.clock),
        instance.memory,
        task.policy.selector(instance),
        task.clock,
        until=task.until,
    )
    return _of_starts(task, starts, log)


def _check_rule(task: Task, *offered: str) -> None:
    if task.policy.rule not in offered:
        raise PolicyError(
            f"policy {task.policy.name!r}: on a clock the rule {task.policy.rule!r} is not "
            "offered, as it would plan all waiting requests again before every batch; use prefix, "
            "or skip with a fixed order"
        )


def _of_starts(task: Task, starts: IntArray, log: BatchLog) -> ClockedRun:
    """Return the run in which so many batches had ended when each request was admitted."""
    instance = task.instance
    # The batch after `starts` others makes the first token, and each one after it another.
    last = starts + instance.outputs - 1
    nothing = np.zeros(len(instance), dtype=np.int64)
    return ClockedRun(
        instance,
        task.policy.name,
        task.clock,
        first_batch=_if_run(starts, starts, len(log.spans)),
        last_batch=_if_run(last, starts, len(log.spans)),
        log=log,
        preempted=nothing,
        preempted_tokens_by_request=nothing,
        until=task.until,
        intervals=task.intervals,
    )


def _if_run(batches: IntArray, starts: IntArray, count: int) -> IntArray:
    return np.where((starts >= 0) & (batches < count), batches, -1)


def serve_engine(task: Task) -> ClockedRun:
    """Run a serving engine."""
    instance, policy = task.instance, task.policy
    engine, log = serving.serve(
        instance.prompts,
        instance.outputs,
        arrival_times(instance, task.clock),
        task.clock,
        _BATCHING[policy.batching],
        serving.Limits(instance.memory, policy.max_num_seqs, policy.max_num_batched_tokens),
        task.until,
    )
    return ClockedRun(
        instance,
        policy.name,
        task.clock,
        first_batch=engine.first,
        last_batch=engine.last,
        log=log,
        preempted=engine.preempted,
        preempted_tokens_by_request=engine.recomputed,
        until=task.until,
    )


def serve_in_queues(task: Task) -> ClockedRun:
    """Run a policy that takes requests in when enough of them wait."""
    instance = task.instance
    times = arrival_times(instance, task.clock)
    queues = task.policy.queues(instance, task.clock, times)
    state, log = serve_waiting(
        instance.prompts,
        instance.outputs,
        times,
        instance.memory,
        task.clock,
        queues,
        until=task.until,
    )
    return ClockedRun(
        instance,
        task.policy.name,
        task.clock,
        first_batch=state.first,
        last_batch=state.last,
        log=log,
        preempted=state.preempted,
        preempted_tokens_by_request=state.lost,
        until=task.until,
    )
