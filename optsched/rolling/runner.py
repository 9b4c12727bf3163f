"""Runs a rolling horizon: its driver decides as the function of a policy would."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from optsched._internal.loading import stopwatch
from optsched.errors import is_interrupt
from optsched.policies import DecisionPolicy
from optsched.problem.execution import Execution
from optsched.rolling.decisions import Decisions
from optsched.rolling.driver import Driver, Finisher
from optsched.simulate.runners import Runner, in_steps, of_attempts, run_decided
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.policies.decision import State
    from optsched.simulate.task import Task

AnyRun = TypeVar("AnyRun", Execution, ClockedRun)


def _rolling(task: Task, carry_out: Callable[[Task], AnyRun]) -> AnyRun:
    """Run a rolling horizon; Ctrl-C ends its planning, and the fallback decides the rest."""
    policy = task.policy
    driver = Driver(policy, task.seed, task.on_progress, sure=task.intervals != "column")

    def carried_out(decide: Callable[[State], IntArray]) -> AnyRun:
        asked = DecisionPolicy(policy.name, policy.description, decide)
        return carry_out(task._replace(policy=asked))

    began = stopwatch()
    interrupted = False
    try:
        run = carried_out(driver)
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        interrupted = True
        run = carried_out(Finisher(driver))
    decisions = Decisions(policy, driver.counts, stopwatch() - began, interrupted)
    return replace(run, decisions=decisions)


RUNNER = Runner(
    lambda task: _rolling(task, lambda asked: in_steps(asked, run_decided(asked))),
    lambda task: _rolling(task, lambda asked: of_attempts(asked, run_decided(asked))),
)
