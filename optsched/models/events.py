"""The event form of the hindsight program, whose size does not depend on the horizon."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import as_integers
from optsched._internal.extensions import Shown
from optsched.errors import ModelError, require_known
from optsched.models.hindsight import SCHEDULE_OBJECTIVES, schedule_cost
from optsched.models.program import (
    NOTHING_RUNNING,
    Running,
    latest_starts,
    owned,
    renumbered,
    workers_of,
)
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.hindsight import ScheduleObjective
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Violation
    from optsched.problem.workers import Workers


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class EventProgram(Shown):
    r"""When to start each request so that the memory suffices at every completion.

    Whole numbers :math:`p_i` from `earliest` to `latest`, :math:`c_i = p_i + o_i`:

    .. math::

        \min \quad & \sum_i w_i c_i + c_0 \quad \text{or} \quad \max_i c_i && \text{(1)} \\
        \text{s.t.} \quad & \sum_{j :\, p_j < c_i \le c_j} (s_j + c_i - p_j) \le M
            && \forall i && \text{(2)} \\
        & p_i \le p_j && \text{for equal } i \text{ before } j && \text{(3)}

    (2) suffices because the tokens held only grow from one completion to the next; the sum includes
    :math:`j = i`. (3) orders requests that agree in everything that counts, which loses no schedule
    up to renaming. It is not linear: a constraint solver takes it as it stands.

    In (2) a request that is running already, with :math:`h` tokens and :math:`r` steps to go, is
    one of :math:`h` prompt and :math:`r` output tokens that starts at `now`; it has no part in (1).

    On several workers each request has a worker as well, and (2) counts the requests of one worker.
    A point is the starts, then the workers.

    Parameters
    ----------
    instance
        The requests. Deadlines are hard.
    objective
        "total-latency", "weighted-latency" or "makespan".
    latest
        Last start of each request, shape (n,). None takes `latest_starts`, with which some optimal
        schedule is kept, and the deadlines; other values are for the caller to prove.
    now
        Step before which nothing can start.
    running
        Requests that are running at step `now` already, on one worker.
    workers
        A number of workers with the memory of the instance, their memories, or `Workers`; None is
        one worker.
    kept
        The starts of each request that an optimum may have, ascending; None takes all up to
        `latest`. That others can be left out is for the caller to prove.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import EventProgram
    >>> program = EventProgram(Instance([63, 1, 1], [1, 2, 2], memory=64))
    >>> print(program)
    total-latency by events: 3 starts within steps 0..4, 3 completions, 1 group of equals
    >>> program.equals
    (array([1, 2]),)
    >>> program.read([2, 0, 0]).total_latency
    7
    """

    instance: Instance
    objective: ScheduleObjective = "total-latency"
    latest: IntArray = None  # type: ignore[assignment]  # filled in __post_init__
    now: int = 0
    running: Running = NOTHING_RUNNING
    workers: Workers = None  # type: ignore[assignment]  # filled in __post_init__
    kept: tuple[IntArray, ...] | None = None

    def __post_init__(self) -> None:
        require_known("objective", self.objective, SCHEDULE_OBJECTIVES)
        instance, latest = self.instance, self.latest
        object.__setattr__(self, "workers", workers_of(instance, self.workers, self.running))
        self.running.fit(self.workers.total, self.now)
        if cast("IntArray | None", latest) is None:
            latest = latest_starts(instance, self.now, self.running, self.workers)
            if self.kept is not None:
                latest = np.array([starts.max(initial=-1) for starts in self.kept])
        if instance.deadlines is not None:
            latest = np.minimum(latest, instance.deadlines - instance.outputs)
        latest = as_integers("latest", latest)
        if len(latest) != len(instance):
            raise ModelError(f"latest has {len(latest)} entries for {len(instance)} requests")
        object.__setattr__(self, "latest", latest)
        if (latest < self.earliest).any():
            request = int(np.argmax(latest < self.earliest))
            there = instance.arrivals[request] >= self.now
            verb = "arrives at" if there else "cannot start before"
            raise ModelError(
                f"request {instance.label(request)} {verb} step {self.earliest[request]}, but "
                f"would have to start by step {latest[request]}; check its deadline"
            )
        if self.kept is not None:
            pairs = zip(self.kept, latest.tolist(), strict=True)
            object.__setattr__(self, "kept", tuple(starts[starts <= end] for starts, end in pairs))

    def __repr__(self) -> str:
        return f"<EventProgram of {self.instance.name!r}: {self.objective}>"

    def __str__(self) -> str:
        count, groups = len(self.instance), len(self.equals)
        completions = count + len(self.running.tokens)
        return (
            f"{self.objective} by events: {count:,} starts within steps "
            f"{self.earliest.min()}..{self.latest.max()}, {completions:,} completions, "
            f"{groups:,} group{'' if groups == 1 else 's'} of equals"
        )

    @property
    def earliest(self) -> IntArray:
        """First start of each request: its arrival, or `now` if that is later, shape (n,)."""
        return np.maximum(self.instance.arrivals, self.now)

    @property
    def weights(self) -> FloatArray:
        """Weights :math:`w_i` of the completions in (1), shape (n,); not for the makespan."""
        weights = self.instance.weights
        if self.objective == "total-latency" or weights is None:
            return np.ones(len(self.instance))
        return weights

    @property
    def offset(self) -> float:
        """Constant :math:`c_0` of (1): 0 for the makespan, else minus the weighted arrivals."""
        if self.objective == "makespan":
            return 0.0
        return -float(self.weights @ self.instance.arrivals)

    @cached_property
    def equals(self) -> tuple[IntArray, ...]:
        """Requests that agree in everything that counts, ascending, two or more at a time."""
        instance, groups = self.instance, defaultdict(list)
        numbers = instance.prompts, instance.outputs, self.earliest, self.latest, self.weights
        allowed = self.workers.allowed(instance)
        for request, values in enumerate(zip(*(each.tolist() for each in numbers), strict=True)):
            kept = None if self.kept is None else self.kept[request].tobytes()
            groups[values, allowed[request].tobytes(), kept].append(request)
        return tuple(np.array(group) for group in groups.values() if len(group) > 1)

    def cost(self, schedule: Schedule) -> float:
        """Evaluate a schedule under the objective, from its start steps alone."""
        return float(schedule_cost(schedule, self.objective))

    def violations(self, schedule: Schedule) -> list[Violation]:
        """List what makes a schedule infeasible beside the running requests, which come first."""
        if self.now == 0 and not len(self.running.tokens):
            return schedule.check()
        count = len(self.running.tokens)
        starts = np.concatenate([np.full(count, self.now), schedule.starts])
        placement = np.concatenate([np.zeros(count, dtype=np.int64), schedule.placement])
        everyone = self.running.join(self.instance, self.now)
        return Schedule(everyone, starts, workers=self.workers, placement=placement).check()

    def read(self, point: npt.ArrayLike) -> Schedule:
        """Turn start steps, and then workers where there are several, into a schedule."""
        several = len(self.workers) > 1
        rows = np.asarray(point).reshape(2 if several else 1, -1)
        return Schedule(
            self.instance,
            rows[0],
            self.objective,
            workers=self.workers,
            placement=rows[1] if several else None,
        )

    def write_point(self, schedule: Schedule) -> IntArray:
        """Turn a schedule of the instance into a point that obeys the order (3)."""
        schedule = owned(schedule, self.instance, self.workers)
        starts, placement = schedule.starts.copy(), schedule.placement.copy()
        for group in self.equals:
            order = group[np.argsort(starts[group], kind="stable")]
            starts[group], placement[group] = starts[order], placement[order]
        if len(self.workers) == 1:
            return starts
        ordered = Schedule(self.instance, starts, workers=self.workers, placement=placement)
        return np.concatenate([starts, renumbered(ordered)])
