"""Runs in which requests may be sent back, on any clock: every attempt to process a request."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched.execution import Loop, Stall
from optsched.forecasts import forecast
from optsched.policies.decision import DecisionPolicy
from optsched.policies.overflow import OverflowPolicy
from optsched.simulate.seconds.batches import Timer, new_log
from optsched.simulate.seconds.execution import arrival_times
from optsched.simulate.steps import overflow
from optsched.simulate.steps import preemption as eviction
from optsched.simulate.steps.decisions import run_decisions

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.policies.robust import IntervalPolicy
    from optsched.simulate.seconds.batches import BatchLog

_ORDERS = {
    "bound": eviction.BOUND,
    "area": eviction.AREA,
    "mean-area": eviction.MEAN_AREA,
    "random": eviction.RANDOM,
}
_OUTLIVED = {
    "ends-next": eviction.ENDS_NEXT,
    "holds-nothing": eviction.HOLDS_NOTHING,
    "restarts": eviction.RESTARTS,
    "doubles": eviction.DOUBLES,
}
_CANCEL = {"bound": eviction.BY_BOUND, "tokens": eviction.BY_TOKENS}


@dataclass(frozen=True, eq=False)
class Attempts:
    """Everything that happened in a run.

    Attributes
    ----------
    requests, starts, tokens
        One entry per attempt, in the order in which they ended: the request, the batches that had
        ended before, and the tokens made.
    running
        How many of the last attempts had not ended when the run was stopped.
    log
        All batches.
    loop, stall
        Why the run did not complete all requests, if it was not stopped.
    """

    requests: IntArray
    starts: IntArray
    tokens: IntArray
    running: int
    log: BatchLog
    loop: Loop | None = None
    stall: Stall | None = None


def run_attempts(
    instance: Instance,
    policy: IntervalPolicy | OverflowPolicy | DecisionPolicy,
    clock: Clock,
    *,
    intervals: str | None,
    patience: int | None,
    seed: int,
    until: float = np.inf,
) -> Attempts:
    """Run a policy that may send requests back.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        Who decides.
    clock
        How long batches take.
    intervals
        What the policy may know of the outputs.
    patience
        Batches without a completion or an arrival after which a run is given up; None: a hundred
        times the largest output, at least 10,000.
    seed
        Of all randomness in the policy.
    until
        Form no batch at or after this time.

    Returns
    -------
    Attempts
        All that happened.
    """
    if patience is None:
        patience = max(10_000, 100 * int(instance.outputs.max()))
    if isinstance(policy, OverflowPolicy):
        return _to_threshold(instance, policy, clock, patience, seed, until)
    if isinstance(policy, DecisionPolicy):
        known = forecast(instance, "exact" if intervals is None else intervals)
        attempts, running, log, given_up = run_decisions(
            instance, policy, known, patience, clock, until
        )
        stall = _stall(log.now[0].item(), patience, clock) if given_up else None
        return Attempts(attempts[0], attempts[1], attempts[2], running, log, stall=stall)
    assert intervals is not None
    return _planned(instance, policy, clock, intervals, seed, until)


def _planned(
    instance: Instance,
    policy: IntervalPolicy,
    clock: Clock,
    intervals: str,
    seed: int,
    until: float,
) -> Attempts:
    known = forecast(instance, intervals)
    policy = policy.for_forecast(known)
    timer = Timer(clock)
    attempts, running, log = eviction.run_planned(
        instance.prompts,
        arrival_times(instance, clock),
        instance.outputs,
        instance.memory,
        policy.planned(known),
        known.upper,
        _ORDERS[policy.order],
        _OUTLIVED[policy.outlived],
        _CANCEL[policy.cancel],
        share_of(policy.slack, instance.memory),
        seed,
        new_log(),
        timer.handle,
        until,
    )
    timer.reraise()
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished())


def _to_threshold(
    instance: Instance,
    policy: OverflowPolicy,
    clock: Clock,
    patience: int,
    seed: int,
    until: float,
) -> Attempts:
    timer = Timer(clock)
    attempts, running, log, outcome, since, lasted, looping = overflow.run_to_threshold(
        instance.prompts,
        arrival_times(instance, clock),
        instance.outputs,
        instance.memory,
        share_of(1 - Fraction(str(policy.alpha)), instance.memory),
        1.0 if policy.beta is None else policy.beta,
        patience,
        seed,
        new_log(),
        timer.handle,
        until,
    )
    timer.reraise()
    loop = stall = None
    if outcome == overflow.LOOPS:
        members = tuple(looping.tolist())
        if clock.unit == "steps":  # nobody is admitted: the same at every step
            loop = Loop(int(since), max(1, int(lasted)), members)
        else:
            loop = Loop(since, lasted, members, clock.unit)
    elif outcome == overflow.STALLED:
        stall = _stall(since, int(lasted), clock)
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished(), loop, stall)


def _stall(time: float, idle: int, clock: Clock) -> Stall:
    return Stall(int(time) if clock.unit == "steps" else time, idle, clock.unit)


def share_of(share: float | Fraction, memory: int) -> int:
    """Give a share of the memory in whole tokens, rounded down from the number as it is written.

    Parameters
    ----------
    share
        In [0, 1].
    memory
        Tokens.

    Returns
    -------
    int
        Tokens.

    Examples
    --------
    >>> share_of(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return int(Fraction(str(share)) * memory)
