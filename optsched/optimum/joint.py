"""The best joint schedule of several workers: the stages, and the interval that they share.

The interval is that of one worker with all memory, the pool, whose bounds hold; schedules are joint
ones, which the pool takes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from optsched.certificates.configurations import ConfigurationCertificate
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError
from optsched.models.objectives import schedule_cost
from optsched.optimum.programs import WATCHED
from optsched.optimum.result import JointOptimum, Optimum
from optsched.optimum.stages.plan import go_through
from optsched.optimum.state import State
from optsched.schedule import Schedule
from optsched.solvers.bounds.joint import Pools, of_pool

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.models.objectives import ScheduleObjective
    from optsched.optimum.params import SolveParams
    from optsched.workers import Workers

USED = ("threads", "seed", "memory_limit", "start", *WATCHED)


@dataclass
class JointState(State):
    """What is known of several workers: `instance` and `best` are those of the pool."""

    requests: Instance = None  # type: ignore[assignment]  # as passed
    workers: Workers = None  # type: ignore[assignment]
    joint: Schedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nested = len(Pools.of(self.requests, self.workers).members) > 1

    def offer_joint(self, joint: Schedule) -> None:
        """Keep a joint schedule if it is feasible and better."""
        cost = schedule_cost(joint, self.objective)
        if cost >= self.cost or joint.check():
            return
        with self.lock:
            if not self.closed:
                self.joint, self.best, self.cost = joint, joint.pooled(), cost

    def result(self) -> JointOptimum:
        """Return what was found, with proofs for the workers."""
        return _joined(super().result(), self.requests, self.workers, self.joint)


def solve_jointly(
    instance: Instance,
    workers: Workers,
    objective: ScheduleObjective,
    method: str,
    time_limit: float | None,
    params: SolveParams,
) -> JointOptimum:
    """Go through the stages for several workers."""
    from optsched.optimum.stages.joint import STAGES, load_lists

    if method == "exact" and not (workers.equal and objective == "total-latency"):
        raise OptschedError(
            "exact minimises total latency on equal workers; use highs, cp-sat or search"
        )
    state = JointState(
        instance.replace(memory=workers.total),
        objective,
        method,
        params.options(time_limit),
        params,
        requests=instance,
        workers=workers,
    )
    if (start := params.start) is not None:
        if not isinstance(start, Schedule) or (start.instance, start.workers) != (
            instance,
            workers,
        ):
            raise OptschedError(
                f"start is {start!r}, but must be a Schedule of the instance and the workers"
            )
        state.offer_joint(start)
        if state.joint is None:
            raise OptschedError(f"the start is infeasible: {start.check()[0]}; correct it")
    go_through(state, STAGES, load_lists)
    return state.result()


def proven_joint_horizon(
    instance: Instance, workers: Workers, objective: ScheduleObjective = "total-latency"
) -> int:
    """Return a step within which some optimal joint schedule completes."""
    from optsched.optimum.stages.joint import run_lists
    from optsched.optimum.stages.joint_exact import latest_starts

    pool = instance.replace(memory=workers.total)
    state = JointState(pool, objective, requests=instance, workers=workers)
    run_lists(state)
    return int((latest_starts(state) + instance.outputs).max())


def on_one(found: Optimum, workers: Workers) -> JointOptimum:
    """Return an optimum of one worker as one of workers."""
    schedule = found.schedule
    instance = schedule.instance
    joint = Schedule(instance, schedule.starts, schedule.policy, workers=workers)
    return _joined(found, instance, workers, joint)


def _joined(
    found: Optimum, instance: Instance, workers: Workers, joint: Schedule | None
) -> JointOptimum:
    values = {each.name: getattr(found, each.name) for each in fields(Optimum)}
    proof = found.certificate
    if isinstance(proof, Certificate):
        proof = of_pool(proof, instance, workers)
    elif isinstance(proof, ConfigurationCertificate):
        proof = replace(proof, fingerprint=workers.fingerprint(instance))
    return JointOptimum(**values | {"answer": joint, "certificate": proof})
