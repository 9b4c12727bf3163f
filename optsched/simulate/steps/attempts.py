"""Runs in which requests may be preempted, on any clock: every attempt to process a request."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched.execution import Execution, Loop, Stall
from optsched.forecasts import forecast
from optsched.simulate.seconds.batches import Requests, Timer, new_log
from optsched.simulate.seconds.execution import arrival_times
from optsched.simulate.steps import overflow, preemption
from optsched.simulate.steps.decisions import run_decisions

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.policies.overflow import OverflowPolicy
    from optsched.policies.robust import IntervalPolicy
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.task import Task

_ORDERS = {
    "bound": preemption.BOUND,
    "area": preemption.AREA,
    "mean-area": preemption.MEAN_AREA,
    "random": preemption.RANDOM,
}
_OUTLIVED = {
    "ends-next": preemption.ENDS_NEXT,
    "holds-nothing": preemption.HOLDS_NOTHING,
    "restarts": preemption.RESTARTS,
    "doubles": preemption.DOUBLES,
}
_PREEMPT = {"bound": preemption.BY_BOUND, "tokens": preemption.BY_TOKENS}


@dataclass(frozen=True, eq=False)
class Attempts:
    """Everything that happened in a run."""

    requests: IntArray
    starts: IntArray
    tokens: IntArray
    running: int
    log: BatchLog
    loop: Loop | None = None
    stall: Stall | None = None


def in_steps(task: Task, attempts: Attempts) -> Execution:
    """Return the attempts of a run whose batches take one step each as its execution."""
    steps = attempts.log.spans[attempts.starts, 0].astype(np.int64)
    return Execution(
        task.instance,
        task.policy.name,
        attempts.requests,
        steps,
        attempts.tokens,
        task.intervals,
        attempts.loop,
        attempts.stall,
    )


def run_decided(task: Task) -> Attempts:
    """Run a policy that is a function."""
    known = forecast(task.instance, "exact" if task.intervals is None else task.intervals)
    attempts, running, log, given_up = run_decisions(
        task.instance, task.policy, known, task.patience, task.clock, task.until
    )
    stall = _stall(log.now[0].item(), task.patience, task.clock) if given_up else None
    return Attempts(attempts[0], attempts[1], attempts[2], running, log, stall=stall)


def run_planned(task: Task) -> Attempts:
    """Run a policy that plans with intervals of the outputs."""
    instance, clock, intervals = task.instance, task.clock, task.intervals
    assert intervals is not None
    known = forecast(instance, intervals)
    policy: IntervalPolicy = task.policy.for_forecast(known)
    timer = Timer(clock)
    rules = preemption.Rules(
        _ORDERS[policy.order],
        _OUTLIVED[policy.outlived],
        _PREEMPT[policy.preempt],
        share_of(policy.slack, instance.memory),
        task.seed,
    )
    attempts, running, log = preemption.run_planned(
        _requests(instance, clock),
        policy.planned(known),
        known.upper,
        rules,
        new_log(),
        timer.handle,
        task.until,
    )
    timer.reraise()
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished())


def run_to_threshold(task: Task) -> Attempts:
    """Run a policy that admits to a threshold and clears where the memory overflows."""
    instance, clock = task.instance, task.clock
    policy: OverflowPolicy = task.policy
    timer = Timer(clock)
    rules = overflow.Thresholds(
        share_of(1 - Fraction(str(policy.alpha)), instance.memory),
        1.0 if policy.beta is None else policy.beta,
        task.patience,
        task.seed,
    )
    attempts, running, log, outcome, since, lasted, looping = overflow.run_to_threshold(
        _requests(instance, clock), rules, new_log(), timer.handle, task.until
    )
    timer.reraise()
    loop = stall = None
    if outcome == overflow.LOOPS:
        members = tuple(looping.tolist())
        if clock.unit == "steps":  # none is admitted: the same at every step
            loop = Loop(int(since), max(1, int(lasted)), members)
        else:
            loop = Loop(since, lasted, members, clock.unit)
    elif outcome == overflow.STALLED:
        stall = _stall(since, int(lasted), clock)
    return Attempts(attempts[0], attempts[1], attempts[2], running, log.finished(), loop, stall)


def _requests(instance: Instance, clock: Clock) -> Requests:
    arrivals = arrival_times(instance, clock)
    return Requests(instance.prompts, arrivals, instance.outputs, instance.memory)


def _stall(time: float, idle: int, clock: Clock) -> Stall:
    return Stall(int(time) if clock.unit == "steps" else time, idle, clock.unit)


def share_of(share: float | Fraction, memory: int) -> int:
    """Return a share of the memory in whole tokens, rounded down from the number as written."""
    return int(Fraction(str(share)) * memory)
