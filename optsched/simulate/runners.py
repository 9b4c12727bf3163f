"""What runs a policy of each kind, in steps and on a clock: the one registry of runners."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from optsched.simulate.rolling import run_rolling
from optsched.simulate.seconds.run import (
    batches_on_clock,
    of_attempts,
    order_on_clock,
    serve_engine,
    serve_in_queues,
)
from optsched.simulate.steps.attempts import in_steps, run_decided, run_planned, run_to_threshold
from optsched.simulate.steps.rules import admit_chosen, admit_in_order_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.execution import Execution
    from optsched.simulate.seconds.execution import ClockedRun
    from optsched.simulate.steps.attempts import Attempts
    from optsched.simulate.task import Task


class Runner(NamedTuple):
    """How policies of a kind are run: in steps, None where batches must take time; on a clock."""

    in_steps: Callable[[Task], Execution] | None
    on_clock: Callable[[Task], ClockedRun]


def _of_attempts(attempts: Callable[[Task], Attempts]) -> Runner:
    """Return the runner of policies that may preempt requests, given what finds their attempts."""
    return Runner(
        lambda task: in_steps(task, attempts(task)),
        lambda task: of_attempts(task, attempts(task)),
    )


#: By the kind that a policy declares in `Policy.needs`.
RUNNERS: dict[str, Runner] = {
    "order": Runner(admit_in_order_of, order_on_clock),
    "batch": Runner(admit_chosen, batches_on_clock),
    "plan": _of_attempts(run_planned),
    "threshold": _of_attempts(run_to_threshold),
    "decision": _of_attempts(run_decided),
    "engine": Runner(None, serve_engine),
    "wait": Runner(None, serve_in_queues),
    "rolling": Runner(
        lambda task: run_rolling(task, lambda asked: in_steps(asked, run_decided(asked))),
        lambda task: run_rolling(task, lambda asked: of_attempts(asked, run_decided(asked))),
    ),
}
