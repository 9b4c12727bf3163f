"""Runs of a rolling horizon, and how its decisions came about."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from optsched.errors import is_interrupt
from optsched.execution import Execution
from optsched.policies.decision import DecisionPolicy
from optsched.rolling.decisions import Decisions
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.policies.decision import State
    from optsched.simulate.task import Task

AnyRun = TypeVar("AnyRun", Execution, ClockedRun)


def run_rolling(task: Task, carry_out: Callable[[Task], AnyRun]) -> AnyRun:
    """Run a rolling horizon; Ctrl-C ends its planning, and the fallback decides the rest."""
    from optsched.rolling.driver import Driver, Finisher

    policy = task.policy
    driver = Driver(policy, task.seed, task.on_progress)

    def carried_out(decide: Callable[[State], IntArray]) -> AnyRun:
        asked = DecisionPolicy(policy.name, policy.description, decide)
        return carry_out(task._replace(policy=asked))

    began = time.perf_counter()
    interrupted = False
    try:
        run = carried_out(driver)
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        interrupted = True
        run = carried_out(Finisher(driver))
    decisions = Decisions(policy, driver.counts, time.perf_counter() - began, interrupted)
    return replace(run, decisions=decisions)


def raise_if_interrupted(run: Execution | ClockedRun) -> None:
    """Raise KeyboardInterrupt where Ctrl-C struck a rolling horizon that finished all the same."""
    if run.decisions is not None and run.decisions.interrupted:
        raise KeyboardInterrupt
