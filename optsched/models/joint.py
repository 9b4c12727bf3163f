r"""Several workers as decision models: time-indexed rows, and events.

Workers that can be exchanged are numbered by use: the largest request goes to the first of its
class, and another one of the class is used only after those before it. Both models keep one
schedule of each set that differ only in the names of such workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy import sparse

from optsched._internal.arrays import ranks_in
from optsched._internal.room import require_room
from optsched.errors import require_known
from optsched.models.hindsight import usage_rows
from optsched.models.linear.model import (
    Family,
    LinearModel,
    ModelError,
    Rows,
    Variables,
    whole_numbers,
)
from optsched.models.objectives import (
    SCHEDULE_OBJECTIVES,
    ScheduleObjective,
    schedule_cost,
)
from optsched.models.program import Program, Size, require_size
from optsched.schedule import Schedule
from optsched.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.instance import Instance
    from optsched.schedule import Violation
    from optsched.workers import Workers


_START = 96  # bytes of a start in events, as a domain of CP-SAT takes them


def latest_joint_starts(instance: Instance, workers: Workers) -> IntArray:
    """Bound the start of every request in some optimal joint schedule.

    The two arguments of `optsched.models.running.latest_starts` hold for the requests of one
    worker; that there are fewer of them only helps.
    """
    outputs, areas = instance.outputs, instance.areas
    no_idling = int(instance.arrivals[-1]) + outputs.sum() - outputs
    memories = np.where(workers.allowed(instance), np.array(workers.memories), np.iinfo(int).max)
    waits = (areas.sum() - areas) // (memories.min(axis=1) - instance.peaks + 1)
    # Where the wait is more than the steps that are not idle, so is its product with an output.
    waits = np.minimum(waits, no_idling)
    no_room = instance.arrivals + outputs * waits
    return np.asarray(np.minimum(no_idling, no_room), dtype=np.int64)


def all_starts(instance: Instance, latest: IntArray) -> tuple[IntArray, ...]:
    """List the starts of each request from its arrival to the latest."""
    count, advice = (latest - instance.arrivals + 1).clip(0).sum(), "use longer steps"
    require_room(count, _START, "starts in events", advice, ModelError)
    pairs = zip(instance.arrivals.tolist(), latest.tolist(), strict=True)
    return tuple(np.arange(first, last + 1) for first, last in pairs)


def by_use(instance: Instance, workers: Workers) -> BoolArray:
    """Return on which workers each request may run if they are numbered by use, shape (n, G)."""
    allowed = workers.allowed(instance)
    rank = ranks_in(largest_first(instance))
    for number in range(int(workers.classes.max()) + 1):
        for place, worker in enumerate(np.flatnonzero(workers.classes == number).tolist()):
            allowed[:, worker] &= rank >= place
    return allowed


def largest_first(instance: Instance) -> IntArray:
    """Return the requests by descending memory-time."""
    return np.argsort(-instance.areas, kind="stable")


def renumbered(joint: Schedule) -> IntArray:
    """Return the placement with workers of a class numbered by use."""
    unused: dict[int, list[int]] = {}
    for worker, number in enumerate(joint.workers.classes.tolist()):
        unused.setdefault(number, []).append(worker)
    name: dict[int, int] = {}
    for worker in joint.placement[largest_first(joint.instance)].tolist():
        if worker not in name:
            name[worker] = unused[int(joint.workers.classes[worker])].pop(0)
    return np.array([name[worker] for worker in joint.placement.tolist()])


@dataclass(frozen=True, eq=False, repr=False)
class JointProgram(Program):
    r"""When and where to start each request on several workers so that the cost is least.

    :math:`x_{i,g,k} = 1` if request :math:`i` starts at step :math:`k` on worker :math:`g`, one of
    those on which it may run, from :math:`a_i` to :math:`T - o_i`.

    .. math::

        \min \quad & \sum_i \sum_g \sum_k w_i (k + o_i - a_i) \, x_{i,g,k} \\
        \text{s.t.} \quad & \sum_g \sum_k x_{i,g,k} = 1 && \forall i \quad \text{once} \\
        & \sum_i \sum_{k = t - o_i}^{t - 1} (s_i + t - k) \, x_{i,g,k} \le M_g
            && \forall g, t \quad \text{memory}

    For the makespan, binary :math:`y_t` says that some request completes at step :math:`t` or
    later, as in `HindsightProgram`. Of workers that can be exchanged the :math:`j`-th has no
    columns for the :math:`j - 1` largest requests.

    Parameters
    ----------
    instance
        The requests.
    workers
        A number of workers with the memory of the instance, their memories, or `Workers`.
    horizon
        Last step :math:`T`; None takes one within which some optimal schedule completes.
    objective
        "total-latency", "weighted-latency" or "makespan".

    Raises
    ------
    ModelError
        If the objective is unknown, or a request cannot complete by the horizon or its deadline.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import JointProgram
    >>> program = JointProgram(Instance([1, 5], [1, 2], memory=7), workers=2, horizon=3)
    >>> model = program.to_linear()
    >>> model.column_names()
    ['start[0,0,0]', 'start[0,0,1]', 'start[0,0,2]', 'start[0,1,0]', 'start[0,1,1]',
    'start[0,1,2]', 'start[1,0,0]', 'start[1,0,1]']
    >>> from optsched import solve
    >>> solve(program).answer.total_latency
    3
    """

    instance: Instance
    workers: Workers
    horizon: int = None  # type: ignore[assignment]  # filled in __post_init__
    objective: ScheduleObjective = "total-latency"

    def __init__(
        self,
        instance: Instance,
        workers: int | str | Sequence[int] | Workers,
        horizon: int | None = None,
        objective: ScheduleObjective = "total-latency",
    ) -> None:
        require_known("objective", objective, SCHEDULE_OBJECTIVES)
        several = as_workers(workers, instance)
        if horizon is None:
            horizon = int((latest_joint_starts(instance, several) + instance.outputs).max())
        for name, value in (
            ("instance", instance),
            ("workers", several),
            ("horizon", horizon),
            ("objective", objective),
        ):
            object.__setattr__(self, name, value)
        stuck = self._latest < instance.arrivals
        if stuck.any():
            label = instance.label(int(np.argmax(stuck)))
            raise ModelError(
                f"request {label} cannot complete by step {horizon} or its deadline; raise it"
            )

    def __repr__(self) -> str:
        return (
            f"<JointProgram of {self.instance.name!r}: {self.objective}, {len(self.workers)} "
            f"workers, horizon {self.horizon}, {self.size_at(self.horizon)}>"
        )

    @property
    def _latest(self) -> IntArray:
        return self._latest_by(self.horizon)

    def _latest_by(self, horizon: int) -> IntArray:
        ends: Any = horizon
        if self.instance.deadlines is not None:
            ends = np.minimum(self.instance.deadlines, ends)
        return np.asarray(ends - self.instance.outputs, dtype=np.int64)

    @cached_property
    def _pairs(self) -> tuple[IntArray, IntArray]:
        """List the request and the worker of each block of columns."""
        request, worker = np.nonzero(by_use(self.instance, self.workers))
        return request, worker

    @cached_property
    def _columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """Lay out the columns: pair and step of each, and where each pair begins."""
        request, _ = self._pairs
        earliest = self.instance.arrivals[request]
        counts = self._latest[request] - earliest + 1
        begin = np.concatenate([[0], np.cumsum(counts)])
        pair = np.repeat(np.arange(len(request)), counts)
        return pair, np.arange(begin[-1]) - np.repeat(begin[:-1] - earliest, counts), begin

    @property
    def nonzeros(self) -> int:
        """Nonzeros that `to_linear` will write."""
        return self.size_at(self.horizon).nonzeros

    def size_at(self, horizon: int) -> Size:
        """Count columns and nonzeros up to a horizon, exactly also where 64 bits do not do."""
        request, _ = self._pairs
        counts = self._latest_by(horizon) - self.instance.arrivals + 1
        columns = counts[request].clip(0).astype(object)
        steps = horizon if self.objective == "makespan" else 0
        start = int((columns * (self.instance.outputs[request].astype(object) + 1)).sum())
        order, workers = max(steps - 1, 0), len(self.workers)
        rows = len(self.instance) + workers * horizon + order
        return Size(int(columns.sum()) + steps, start + workers * steps + 2 * order, rows)

    @cached_property
    def _family(self) -> Family:
        request, worker = self._pairs
        pair, step, _ = self._columns
        return Family.of("start", request=request[pair], worker=worker[pair], step=step)

    def to_linear(self) -> LinearModel:
        """Write the program as arrays.

        Returns
        -------
        LinearModel
            Columns ``start[request,worker,step]`` and for the makespan ``busy[step]``; rows
            ``once[request]``, ``memory[worker,step]`` and for the makespan ``order[step]``.

        Raises
        ------
        ModelError
            If there is no room for its nonzeros; it says for which horizon there is.
        """
        least = int((self.instance.arrivals + self.instance.outputs).max())
        require_size(self.size_at, least, self.horizon)
        instance = self.instance
        request, worker = self._pairs
        pair, step, begin = self._columns
        who, count = request[pair], len(step)
        weights = np.ones(len(instance))
        if self.objective == "weighted-latency" and instance.weights is not None:
            weights = np.array(instance.weights)
        cost = weights[who] * (step + instance.outputs[who] - instance.arrivals[who])
        if self.objective == "makespan":
            cost = np.zeros(count)
        start = Variables(self._family, cost, upper=1, integer=True)
        ones = sparse.csr_array(
            (np.ones(count), (who, np.arange(count))), shape=(len(instance), count)
        )
        once = Rows(Family.of("once", request=range(len(instance))), {"start": ones}, 1, 1)
        steps = np.arange(1, self.horizon + 1)
        blocks = []
        for number in range(len(self.workers)):
            mine = np.flatnonzero(worker == number)
            rows = usage_rows(
                instance.prompts[request[mine]],
                instance.outputs[request[mine]],
                instance.arrivals[request[mine]],
                self._latest[request[mine]],
                begin[mine],
                steps,
            )
            blocks.append(sparse.csr_array(rows, shape=(len(steps), count)))
        usage = sparse.vstack(blocks, format="csr")
        names = np.repeat(np.arange(len(self.workers)), len(steps))
        family = Family.of("memory", worker=names, step=np.tile(steps, len(self.workers)))
        limits = np.repeat(np.array(self.workers.memories, dtype=np.float64), len(steps))
        if self.objective != "makespan":
            memory = Rows(family, {"start": usage}, upper=limits)
            return LinearModel.build(self.objective, [start], [once, memory])
        return self._with_makespan(start, once, family, usage)

    def _with_makespan(
        self, start: Variables, once: Rows, family: Family, usage: Any
    ) -> LinearModel:
        steps = np.arange(1, self.horizon + 1)
        certain = steps <= int((self.instance.arrivals + self.instance.outputs).max())
        busy = Variables(
            Family.of("busy", step=steps), cost=1.0, lower=certain, upper=1, integer=True
        )
        each = sparse.eye_array(len(steps), format="csr")
        while_busy = sparse.vstack([-float(m) * each for m in self.workers.memories], format="csr")
        return LinearModel.build(
            self.objective,
            [start, busy],
            [
                once,
                Rows(family, {"start": usage, "busy": while_busy}, upper=0),
                Rows(Family.of("order", step=steps[:-1]), {"busy": each[:-1] - each[1:]}, lower=0),
            ],
        )

    def cost(self, joint: Schedule) -> float:
        """Evaluate a joint schedule under the objective, from its start steps alone."""
        return schedule_cost(joint, self.objective)

    def read(self, values: npt.ArrayLike, /) -> Schedule:
        """Turn a point of the linear model into a joint schedule.

        Parameters
        ----------
        values
            One value per column, whole up to rounding.

        Returns
        -------
        Schedule
            Start and worker of each request.

        Raises
        ------
        ModelError
            If the point has another length, is fractional, or does not start each request once.
        """
        point = np.asarray(values, dtype=np.float64)
        request, worker = self._pairs
        pair, step, _ = self._columns
        total = len(step) + (self.horizon if self.objective == "makespan" else 0)
        if point.shape != (total,):
            raise ModelError(
                f"the point has shape {point.shape}, but the program has {total} columns"
            )
        chosen = np.flatnonzero(whole_numbers(point[: len(step)], self._family))
        who = request[pair[chosen]]
        if not np.array_equal(np.sort(who), np.arange(len(self.instance))):
            raise ModelError("the point does not start each request once")
        order = np.argsort(who)
        places = worker[pair[chosen]][order]
        starts = step[chosen][order]
        return Schedule(
            self.instance, starts, self.objective, workers=self.workers, placement=places
        )

    def write_point(self, joint: Schedule, /) -> FloatArray:
        """Turn a joint schedule into a point of the linear model.

        Parameters
        ----------
        joint
            A joint schedule of the instance on the workers; those of a class are renumbered.

        Returns
        -------
        FloatArray
            One value per column of `to_linear`.

        Raises
        ------
        ModelError
            If it belongs to something else or starts a request at a step without a column.
        """
        _check_owner(joint, self.instance, self.workers)
        request, worker = self._pairs
        _, step, begin = self._columns
        block = {
            pair: at for at, pair in enumerate(zip(request.tolist(), worker.tolist(), strict=True))
        }
        point = np.zeros(len(step))
        placement = renumbered(joint).tolist()
        for number, (place, start) in enumerate(zip(placement, joint.starts.tolist(), strict=True)):
            at = block.get((number, place))
            earliest = int(self.instance.arrivals[number])
            if at is None or not earliest <= start <= self._latest[number]:
                raise ModelError(
                    f"request {self.instance.label(number)} starts at step {start} on worker "
                    f"{place}, where the program has no column"
                )
            point[begin[at] + start - earliest] = 1
        if self.objective != "makespan":
            return point
        steps = np.arange(1, self.horizon + 1)
        return np.concatenate([point, (steps <= joint.makespan).astype(np.float64)])


@dataclass(frozen=True, eq=False, repr=False)
class JointEvents:
    """When and where to start each request so that the memory suffices at every completion.

    As `EventProgram`, with a worker for each request; a point is the starts, then the workers.

    Parameters
    ----------
    instance
        The requests. Deadlines are hard.
    workers
        The workers.
    objective
        "total-latency", "weighted-latency" or "makespan".
    kept
        The starts of each request that an optimum may have, ascending; None takes all up to
        `latest_joint_starts`. Others are for the caller to prove.
    """

    instance: Instance
    workers: Workers
    objective: ScheduleObjective = "total-latency"
    kept: tuple[IntArray, ...] = None  # type: ignore[assignment]  # filled in __post_init__

    def __post_init__(self) -> None:
        require_known("objective", self.objective, SCHEDULE_OBJECTIVES)
        instance = self.instance
        latest = latest_joint_starts(instance, self.workers)
        if instance.deadlines is not None:
            latest = np.minimum(latest, instance.deadlines - instance.outputs)
        kept = cast("tuple[IntArray, ...] | None", self.kept)
        if kept is None:
            kept = all_starts(instance, latest)
        for request, starts in enumerate(kept):
            if not len(starts):
                raise ModelError(
                    f"request {instance.label(request)} has no start left; check its deadline"
                )
        object.__setattr__(self, "kept", kept)

    @property
    def weights(self) -> FloatArray:
        """Weights of the completions, shape (n,); not for the makespan."""
        weights = self.instance.weights
        if self.objective == "total-latency" or weights is None:
            return np.ones(len(self.instance))
        return weights

    @cached_property
    def equals(self) -> tuple[IntArray, ...]:
        """Requests that agree in everything that counts, ascending, two or more at a time."""
        groups: dict[Any, list[int]] = {}
        allowed = self.workers.allowed(self.instance)
        for request in range(len(self.instance)):
            key = (
                int(self.instance.prompts[request]),
                int(self.instance.outputs[request]),
                int(self.instance.arrivals[request]),
                float(self.weights[request]),
                allowed[request].tobytes(),
                self.kept[request].tobytes(),
            )
            groups.setdefault(key, []).append(request)
        return tuple(np.array(group) for group in groups.values() if len(group) > 1)

    def cost(self, joint: Schedule) -> float:
        """Evaluate a joint schedule under the objective, from its start steps alone."""
        return schedule_cost(joint, self.objective)

    def violations(self, joint: Schedule) -> list[Violation]:
        """List what makes a joint schedule infeasible."""
        return joint.check()

    def read(self, point: npt.ArrayLike) -> Schedule:
        """Turn starts and workers into a joint schedule."""
        starts, placement = np.asarray(point, dtype=np.float64).reshape(2, -1)
        return Schedule(
            self.instance, starts, self.objective, workers=self.workers, placement=placement
        )

    def write_point(self, joint: Schedule) -> FloatArray:
        """Turn a joint schedule into starts and workers, equal ones in order."""
        _check_owner(joint, self.instance, self.workers)
        starts, placement = joint.starts.copy(), joint.placement.copy()
        for group in self.equals:
            order = group[np.argsort(starts[group], kind="stable")]
            starts[group], placement[group] = starts[order], placement[order]
        ordered = Schedule(self.instance, starts, workers=self.workers, placement=placement)
        return np.concatenate([starts, renumbered(ordered)]).astype(np.float64)


def _check_owner(joint: Schedule, instance: Instance, workers: Workers) -> None:
    if joint.instance != instance or joint.workers != workers:
        raise ModelError("the schedule belongs to another instance or other workers")
