"""Running a policy on a clock: its batches take time, and requests arrive at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.policies import OrderPolicy
from optsched.policies.base import BatchPolicy, PriorityPolicy
from optsched.policies.rolling import RollingPolicy
from optsched.policies.serving import EnginePolicy
from optsched.policies.wait import WaitingPolicy
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.admission import run_batches, run_by_priority
from optsched.simulate.seconds.execution import ClockedRun, arrival_times
from optsched.simulate.seconds.waiting import serve_waiting
from optsched.simulate.steps.attempts import run_attempts

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate.steps.attempts import Attempts

_BATCHING = {
    "mixed": serving.MIXED,
    "prefill-first": serving.PREFILL_FIRST,
    "chunked": serving.CHUNKED,
}


def execute_on_clock(
    instance: Instance,
    policy: Policy,
    clock: Clock,
    *,
    intervals: str | None,
    patience: int | None,
    seed: int,
    until: float,
) -> ClockedRun:
    """Run a policy on an instance with batches that take time.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        The policy, under its rule of admission.
    clock
        How long batches take.
    intervals, patience, seed
        As for `execute`.
    until
        Form no batch at or after this time.

    Returns
    -------
    ClockedRun
        All batches, and which of them made each request's tokens.

    Raises
    ------
    PolicyError
        If the policy has no such rule on a clock.
    InstanceError
        If the clock counts seconds and the length of the instance's steps is not known.
    """
    if isinstance(policy, EnginePolicy):
        return _serve(instance, policy, clock, until)
    if isinstance(policy, WaitingPolicy):
        return _wait(instance, policy, clock, until)
    if isinstance(policy, OrderPolicy):
        return _admit(instance, policy, clock, until, intervals)
    if isinstance(policy, RollingPolicy):
        from optsched.rolling.driver import driven

        policy = driven(policy, seed)
    attempts = run_attempts(
        instance,
        policy,
        clock,
        intervals=intervals,
        patience=patience,
        seed=seed,
        until=until,
    )
    return _from_attempts(instance, policy.name, clock, attempts, until, intervals)


def _from_attempts(
    instance: Instance,
    policy: str,
    clock: Clock,
    attempts: Attempts,
    until: float,
    intervals: str | None,
) -> ClockedRun:
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
        policy,
        clock,
        first_batch=first,
        last_batch=last,
        log=attempts.log,
        evictions=np.bincount(back, minlength=count),
        lost_tokens=np.bincount(back, held, minlength=count).astype(np.int64),
        until=until,
        intervals=intervals,
        loop=attempts.loop,
        stall=attempts.stall,
    )


def _admit(
    instance: Instance, policy: OrderPolicy, clock: Clock, until: float, intervals: str | None
) -> ClockedRun:
    if policy.rule == "backfill" or (policy.rule == "skip" and isinstance(policy, BatchPolicy)):
        raise PolicyError(
            f"policy {policy.name!r}: on a clock the rule {policy.rule!r} is not offered, as it "
            "would plan all waiting requests anew before every batch; use prefix, or skip with a "
            "fixed order"
        )
    arguments = (
        instance.prompts,
        instance.outputs,
        arrival_times(instance, clock),
        instance.memory,
    )
    if isinstance(policy, PriorityPolicy):
        skip = policy.rule == "skip"
        order = policy.order(instance)
        starts, log = run_by_priority(*arguments, order, clock, skip=skip, until=until)
    else:
        starts, log = run_batches(*arguments, policy.selector(instance), clock, until=until)
    # The batch after `starts` others makes the first token, and each one after it another.
    last = starts + instance.outputs - 1
    nothing = np.zeros(len(instance), dtype=np.int64)
    return ClockedRun(
        instance,
        policy.name,
        clock,
        first_batch=_if_run(starts, starts, len(log.spans)),
        last_batch=_if_run(last, starts, len(log.spans)),
        log=log,
        evictions=nothing,
        lost_tokens=nothing,
        until=until,
        intervals=intervals,
    )


def _if_run(batches: IntArray, starts: IntArray, count: int) -> IntArray:
    return np.where((starts >= 0) & (batches < count), batches, -1)


def _serve(instance: Instance, policy: EnginePolicy, clock: Clock, until: float) -> ClockedRun:
    engine, log = serving.serve(
        instance.prompts,
        instance.outputs,
        arrival_times(instance, clock),
        instance.memory,
        clock,
        _BATCHING[policy.batching],
        requests_most=policy.requests_most,
        tokens_most=policy.tokens_most,
        until=until,
    )
    return ClockedRun(
        instance,
        policy.name,
        clock,
        first_batch=engine.first,
        last_batch=engine.last,
        log=log,
        evictions=engine.preempted,
        lost_tokens=engine.recomputed,
        until=until,
    )


def _wait(instance: Instance, policy: WaitingPolicy, clock: Clock, until: float) -> ClockedRun:
    times = arrival_times(instance, clock)
    halls = policy.halls(instance, clock, times)
    hall, log = serve_waiting(
        instance.prompts,
        instance.outputs,
        times,
        instance.memory,
        clock,
        **halls._asdict(),
        until=until,
    )
    return ClockedRun(
        instance,
        policy.name,
        clock,
        first_batch=hall.first,
        last_batch=hall.last,
        log=log,
        evictions=hall.evicted,
        lost_tokens=hall.wasted,
        until=until,
    )
