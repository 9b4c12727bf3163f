"""The hindsight program, its relaxation, and its event form."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self, cast, get_args

import numpy as np
import scipy

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_WEIGHT, as_floats, as_integers, prefix_sums, ranks_in
from optsched._internal.numbers import exact_dot, in_units
from optsched._internal.small_kernels import PriceSums
from optsched._internal.views import Shown
from optsched.errors import InstanceError, ModelError, OptschedError, require_known
from optsched.models.linear import (
    Family,
    LinearModel,
    Rows,
    Variables,
    as_point,
    of_program,
    whole_numbers,
)
from optsched.models.program import (
    NOTHING_RUNNING,
    Program,
    Running,
    Size,
    Stopped,
    by_use,
    latest_starts,
    owned,
    renumbered,
    require_size,
    safe_horizon,
    workers_of,
)
from optsched.problem.costs import (
    SCHEDULE_OBJECTIVES,
    Lateness,
    ScheduleObjective,
    StartCosts,
    check_due,
    cost_unit,
    schedule_cost,
)
from optsched.problem.schedule import Schedule, Usage, Violation

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.program import Scheduled, Solution
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

LATENESS: tuple[Lateness, ...] = get_args(Lateness)


def check_lateness(lateness: str, penalty: float, error: type[OptschedError]) -> None:
    """Reject an unknown lateness, one without a penalty, and a penalty out of range."""
    require_known("lateness", lateness, LATENESS, error)
    if penalty and not 1 / MAX_WEIGHT <= penalty <= MAX_WEIGHT:
        raise error(
            f"penalty is {penalty}, but must be 0 or a number from "
            f"{1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
        )
    if lateness != "forbidden" and not penalty:
        raise error(
            f"lateness is {lateness!r} without a penalty, which would drop the deadlines; pass a "
            "penalty, such as 10"
        )


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class HindsightProgram(Program):
    r"""OPT-IP: when to start each request so that the memory suffices and the cost is least.

    Requests that agree in prompt, output, arrival and all that matters form a group :math:`g`
    of :math:`n_g`; :math:`x_{g,k}` of them start at step :math:`k`, from
    :math:`e_g = \max(a_g, now)` to :math:`l_g = T - o_g`, or :math:`d_g - o_g` if that is less and
    lateness forbidden. With the papers' groups of one, :math:`x_{i,k}` is binary (Eq. 7).

    .. math::

        \min \quad & \sum_g \sum_{k = e_g}^{l_g} w_g (k + o_g - a_g) \, x_{g,k}
            && \text{(4)} \\
        \text{s.t.} \quad & \sum_{k = e_g}^{l_g} x_{g,k} = n_g
            && \forall g \quad \text{(5), once} \\
        & \sum_g \sum_{k = \max(e_g, t - o_g)}^{\min(l_g, t - 1)} (s_g + t - k) \, x_{g,k}
            \le M - m_t && now < t \le T \quad \text{(6), memory} \\
        & x_{g,k} \in \{0, \dots, n_g\} && \text{(7), start}

    :math:`m_t` are the tokens of requests that are running already, :math:`w_g = 1` for the total
    latency. A penalty for lateness adds :math:`\max(0, k + o_g - d_g)` or
    :math:`[k + o_g > d_g]` times it to the cost of :math:`x_{g,k}`. Prices :math:`\pi_t` of memory
    for requests that are not in the program add :math:`\sum_{u=1}^{o_g} (s_g + u) \, \pi_{k+u}`,
    rounded to six decimals.

    On several workers every request is a group of its own, and :math:`x_{i,w,k} = 1` if request
    :math:`i` starts at step :math:`k` on worker :math:`w`, one of those where it may run; (5) sums
    over these workers too, and (6) holds on each with its memory :math:`M_w`. Of workers that can
    be exchanged the :math:`j`-th has no columns for the :math:`j - 1` largest requests.

    For the makespan, binary :math:`y_t` says that some request completes at step :math:`t` or
    later. The objective is :math:`now + \sum_t y_t`, the right-hand side of (6) becomes
    :math:`(M - m_t) \, y_t`, and :math:`y_t \ge y_{t+1}` (order). Its relaxation is at least the
    total memory-time over :math:`M`, which the textbook form
    :math:`z \ge \sum_k (k + o_i) x_{i,k}` is not.

    **Horizon.** The optimum is that over schedules that complete by step :math:`T`, and over all
    schedules if `horizon_is_safe`; otherwise a solver says "optimal within horizon T", unless it
    proves more.

    Parameters
    ----------
    instance
        The requests.
    horizon
        Last step :math:`T`; None takes `safe_horizon`.
    objective
        "total-latency", "weighted-latency" or "makespan".
    lateness
        Where the instance has deadlines: "forbidden", or a penalty "per-step" that a request is
        late, or "per-request" that is late.
    penalty
        Cost of each; above zero where lateness is not forbidden.
    now
        Step before which nothing can start.
    running
        Requests that are running at step `now` already, on one worker.
    aggregate
        Whether equal requests share their columns; without, and on several workers, each group is
        one request.
    memory_prices
        Price of a token at steps now + 1, now + 2, ..., not negative; later steps are free.
    workers
        A number of workers with the memory of the instance, their memories, or `Workers`; None is
        one worker.
    start
        A schedule from which `optsched.solve` begins; without one the method "auto" begins from the
        best that policies do.

    Raises
    ------
    ModelError
        If a choice is unknown, a lateness has no penalty, the running requests do not fit, or a
        request cannot complete by the horizon or its deadline.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import HindsightProgram
    >>> instance = Instance(prompts=[63, 1, 1], outputs=[1, 2, 2], memory=64)
    >>> program = HindsightProgram(instance, horizon=4)
    >>> model = program.to_linear()
    >>> print(model)
    total-latency: min over 7 columns (7 integer), 6 rows, 17 nonzeros
      column  start[request,step]        7  integer, 0..2
      row     once[request]              2  7 nonzeros
      row     memory[step]               4  10 nonzeros
    >>> point = program.write_point(Schedule(instance, [2, 0, 0]))
    >>> model.violations(point), model.objective(point), program.read(point).starts
    ([], 7.0, array([2, 0, 0]))
    """

    instance: Instance
    horizon: int = None  # type: ignore[assignment]  # filled in __post_init__
    objective: ScheduleObjective = "total-latency"
    lateness: Lateness = "forbidden"
    penalty: float = 0.0
    now: int = 0
    running: Running = NOTHING_RUNNING
    aggregate: bool = True
    memory_prices: FloatArray | None = None
    workers: Workers = None  # type: ignore[assignment]  # filled in __post_init__
    start: Schedule | None = None

    def __post_init__(self) -> None:
        require_known("objective", self.objective, SCHEDULE_OBJECTIVES)
        check_lateness(self.lateness, self.penalty, ModelError)
        check_due(self.instance, self.objective, self.lateness, ModelError)
        if self.memory_prices is not None:
            try:
                prices = as_floats("memory_prices", self.memory_prices).copy()
            except InstanceError:
                prices = np.array([-1.0])
            if not ((prices >= 0) & (prices <= MAX_WEIGHT)).all():
                raise ModelError(
                    f"prices of memory must be one number from 0 to {MAX_WEIGHT:g} for each step, "
                    "without gaps"
                )
            object.__setattr__(self, "memory_prices", prices)
        object.__setattr__(self, "workers", workers_of(self.instance, self.workers, self.running))
        if cast("int | None", self.horizon) is None:
            object.__setattr__(self, "horizon", self._safe_horizon)
        for field, least in (("now", 0), ("horizon", self.now + 1)):
            value = getattr(self, field)
            if int(value) != value or value < least:
                raise ModelError(
                    f"{field} is {value}, but must be a whole number of at least {least}"
                )
            object.__setattr__(self, field, int(value))
        self.running.fit(self.workers.total, self.now)
        stuck = self._latest < self._earliest
        if stuck.any():
            request = int(np.argmax(stuck))
            label, output = self.instance.label(request), int(self.instance.outputs[request])
            end = int(self._latest[request]) + output
            advice = "raise the horizon" if end == self.horizon else "allow it to miss its deadline"
            raise ModelError(
                f"request {label} cannot complete by step {end}: it starts at step "
                f"{self._earliest[request]} at the earliest and makes {output} tokens; {advice}"
            )

    def __repr__(self) -> str:
        workers = f"{len(self.workers)} workers, " if len(self.workers) > 1 else ""
        return (
            f"<{type(self).__name__} of {self.instance.name!r}: {self.objective}, {workers}"
            f"steps {self.now}..{self.horizon}, {self.size_at(self.horizon)}>"
        )

    def within(self, schedule: Schedule | Scheduled) -> Self:
        """Return the program up to the last completion of a schedule, or of a run, as its start.

        The optimum is then that within this horizon, and at most what the schedule costs.
        """
        start = owned(schedule, self.instance, self.workers)
        return dataclasses.replace(self, horizon=start.makespan, start=start)

    @property
    def horizon_is_safe(self) -> bool:
        """Whether some schedule that completes by the horizon is optimal; unknown with prices."""
        return self.memory_prices is None and self.horizon >= self._safe_horizon

    @property
    def soft(self) -> bool:
        """Whether deadlines may be missed, at a price."""
        return self.lateness != "forbidden" or self.objective == "late-requests"

    @property
    def _safe_horizon(self) -> int:
        return safe_horizon(self.instance, self.now, self.running, self.workers)

    @property
    def _earliest(self) -> IntArray:
        return np.maximum(self.instance.arrivals, self.now)

    @property
    def _latest(self) -> IntArray:
        return self._latest_by(self.horizon)

    def _latest_by(self, horizon: int) -> IntArray:
        ends = np.array(horizon)
        if self.instance.deadlines is not None and not self.soft:
            ends = np.minimum(self.instance.deadlines, ends)
        return np.asarray(ends - self.instance.outputs, dtype=np.int64)

    @property
    def nonzeros(self) -> int:
        """Nonzeros that `to_linear` will write."""
        return self.size_at(self.horizon).nonzeros

    def size_at(self, horizon: int) -> Size:
        """Count columns and nonzeros up to a horizon, exactly even beyond 64 bits."""
        first, _ = self._groups
        group, _ = self._pairs
        outputs = self.instance.outputs[first[group]].astype(object)
        columns = (self._latest_by(horizon) - self._earliest + 1)[first[group]].clip(0)
        start, steps = int((columns.astype(object) * (outputs + 1)).sum()), horizon - self.now
        count, rows = int(columns.astype(object).sum()), len(first) + len(self.workers) * steps
        if self.objective != "makespan":
            return Size(count, start, rows)
        load = self.running.load(min(self.running.last_step, steps))
        busy = len(self.workers) * steps - int(np.count_nonzero(load == self.workers.total))
        return Size(count + steps, start + busy + 2 * steps - 2, rows + steps - 1)

    @cached_property
    def _groups(self) -> tuple[IntArray, IntArray]:
        """Find the first request of each group, and the group of each request."""
        instance = self.instance
        if not self.aggregate or len(self.workers) > 1:
            return np.arange(len(instance)), np.arange(len(instance))
        columns: list[npt.NDArray[np.number]] = [
            instance.prompts,
            instance.outputs,
            instance.arrivals,
        ]
        weighted = self.objective in ("weighted-latency", "late-requests")
        if weighted and instance.weights is not None:
            columns.append(instance.weights)
        if instance.deadlines is not None:
            columns.append(instance.deadlines)
        _, first, group = np.unique(
            np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
        )
        order = np.argsort(first)  # groups in the order of their first requests
        return first[order], ranks_in(order)[group.reshape(-1)]

    @cached_property
    def _pairs(self) -> tuple[IntArray, IntArray]:
        """List the group and the worker of each block of columns."""
        if len(self.workers) == 1:
            groups = np.arange(len(self._groups[0]))
            return groups, np.zeros_like(groups)
        request, worker = np.nonzero(by_use(self.instance, self.workers))
        return request, worker

    @cached_property
    def _columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """Lay out the start columns: pair and step of each, and where each pair begins."""
        first, _ = self._groups
        request = first[self._pairs[0]]
        earliest, latest = self._earliest[request], self._latest[request]
        counts = latest - earliest + 1
        begin = prefix_sums(counts)
        pair = np.repeat(np.arange(len(request)), counts)
        return pair, np.arange(begin[-1]) - np.repeat(begin[:-1] - earliest, counts), begin

    @cached_property
    def _group_begins(self) -> IntArray:
        """Where the columns of each group begin, and where they all end."""
        groups = np.arange(len(self._groups[0]) + 1)
        return self._columns[2][np.searchsorted(self._pairs[0], groups)]

    @cached_property
    def _start_family(self) -> Family:
        first, _ = self._groups
        group, worker = self._pairs
        pair, step, _ = self._columns
        request = first[group[pair]]
        if len(self.workers) == 1:
            return Family.of("start", request=request, step=step)
        return Family.of("start", request=request, worker=worker[pair], step=step)

    def to_linear(self) -> LinearModel:
        """Return the program as arrays.

        Columns are ``start[request,step]``, where a group bears the number of its first request,
        and for the makespan ``busy[step]``; rows ``once[request]``, ``memory[step]`` and for the
        makespan ``order[step]``. On several workers ``start[request,worker,step]`` and
        ``memory[worker,step]``.
        """
        least = int((self._earliest + self.instance.outputs).max())
        require_size(self.size_at, least, self.horizon)
        first, members = self._groups
        group, _ = self._pairs
        pair, step, _ = self._columns
        size = np.bincount(members)
        of = group[pair]
        costs = self._costs(first[of], step)
        start = Variables(self._start_family, costs, upper=size[of], integer=True)
        one_each = (np.ones(len(step)), np.arange(len(step)), self._group_begins)
        apiece = scipy.sparse.csr_array(one_each, shape=(len(first), len(step)))
        once = Rows(Family.of("once", request=first), {"start": apiece}, size, size)
        memory = self._memory_rows()
        if self.objective != "makespan":
            model = LinearModel.build(self.objective, [start], [once, memory])
        else:
            model = self._with_makespan(start, once, memory)
        return of_program(model, self)

    def has_more(self, model: LinearModel) -> bool:
        """Return whether a model of the program has rows that were added."""
        return len(model.rows) > (3 if self.objective == "makespan" else 2)

    def latest_under(self, model: LinearModel) -> IntArray | None:
        """Return last starts that no added row excludes, shape (n,); None where all are free."""
        first, members = self._groups
        keys = model.variables[0].keys
        request, *_, step = keys[~model.excluded[: len(keys)]].T
        latest = np.full(len(members), -1)
        np.maximum.at(latest, request, step)
        latest = latest[first[members]]
        return None if (latest == self._latest).all() else latest

    def _memory_rows(self) -> Rows:
        first, _ = self._groups
        group, worker = self._pairs
        pair, start, _ = self._columns
        steps, count = np.arange(self.now + 1, self.horizon + 1), len(self.workers)
        request, height = first[group[pair]], len(steps)
        # Column by column (Eq. 6): the steps after its start, one token more in each.
        top = start - self.now
        lengths = np.minimum(self.instance.outputs[request], height - top)
        begins = prefix_sums(lengths)
        row = np.arange(begins[-1]) + np.repeat(top - begins[:-1], lengths)
        tokens = row + np.repeat(self.instance.prompts[request] + 1 - top, lengths)
        row += np.repeat(worker[pair] * height, lengths)
        columns = (tokens.astype(np.float64), row.astype(np.int32), begins)
        held = scipy.sparse.csc_array(columns, shape=(count * height, len(start))).tocsr()
        memories = np.asarray(self.workers.memories)
        free = (memories[:, np.newaxis] - self.running.load(height)).ravel()
        family = Family.of("memory", step=steps)
        if count > 1:
            numbers = np.repeat(np.arange(count), height)
            family = Family.of("memory", worker=numbers, step=np.tile(steps, count))
        return Rows(family, {"start": held}, upper=free)

    def _with_makespan(self, start: Variables, once: Rows, memory: Rows) -> LinearModel:
        steps = np.arange(self.now + 1, self.horizon + 1)
        # Nothing is over before the last arrival has been served.
        certain = steps <= int((self._earliest + self.instance.outputs).max())
        busy = Variables(
            Family.of("busy", step=steps), cost=1.0, lower=certain, upper=1, integer=True
        )
        free = np.asarray(memory.upper, dtype=np.float64).reshape(-1, len(steps))
        while_busy = [scipy.sparse.diags_array(-each).tocsr() for each in free]
        usage = {**memory.blocks, "busy": scipy.sparse.vstack(while_busy, format="csr")}
        each = scipy.sparse.eye_array(len(steps), format="csr")
        return LinearModel.build(
            self.objective,
            [start, busy],
            [
                once,
                dataclasses.replace(memory, blocks=usage, upper=0),
                Rows(Family.of("order", step=steps[:-1]), {"busy": each[:-1] - each[1:]}, lower=0),
            ],
            offset=self.now,
        )

    def _costs(self, request: IntArray, step: IntArray) -> FloatArray:
        instance = self.instance
        completion = step + instance.outputs[request]
        cost = (completion - instance.arrivals[request]).astype(np.float64)
        costs = StartCosts.of(instance, self.objective, self.lateness, self.penalty)
        cost *= 0.0 if self.objective == "makespan" else costs.weights[request]
        if costs.soft:
            cost += costs.of_lateness(request, step)
        if self.memory_prices is not None:
            cost += self._paid(self.memory_prices, request, step)
        return cost

    def _paid(self, prices: FloatArray, request: IntArray, step: IntArray) -> FloatArray:
        """Return what the memory of a request costs when it starts at a step."""
        # Differences of sums of doubles would lose small prices beside large ones.
        instance, (unit, whole) = self.instance, in_units(prices)
        steps = np.clip(step - self.now, 0, len(prices))
        ends = np.minimum(steps + instance.outputs[request], len(prices))
        total, moment = PriceSums.of(np.array(whole, dtype=object))
        paid = (instance.prompts[request] - steps) * (total[ends] - total[steps])
        paid = (paid + moment[ends] - moment[steps]) * unit.numerator / unit.denominator
        rounded: FloatArray = np.round(paid.astype(np.float64), 6)  # which CP-SAT can represent
        return rounded

    def cost(self, schedule: Schedule) -> float:
        """Evaluate a schedule under the objective of the program, from its start steps alone."""
        cost = schedule_cost(schedule, self.objective, self.lateness, self.penalty)
        if self.memory_prices is None:
            return float(cost)
        usage = Usage(schedule.starts, self.instance.prompts, self.instance.outputs)
        held = usage.at(self.now + 1 + np.arange(len(self.memory_prices)))
        return float(cost + exact_dot(self.memory_prices, held))

    @property
    def whole(self) -> bool:
        """Whether the arrays of `to_linear` hold all costs without rounding."""
        parts = cost_unit(self.instance, self.objective, self.lateness, self.penalty).denominator
        most, limit = self._costs(np.arange(len(self.instance)), self._latest).max(), 2**53
        if (prices := self.memory_prices) is not None:
            parts = max(parts, in_units(prices)[0].denominator)
            most += prices @ np.arange(1, len(prices) + 1) * self.instance.memory
            limit = 2**33 if parts <= 2**6 else 0  # so that six decimals hold them
        return bool(most * parts < limit)

    def judged(self, found: Solution) -> Solution:
        """Return a solution of `to_linear` with what it proves where costs had to be rounded."""
        if self.whole:
            return found
        if (bound := found.bound) is not None:
            priced = self.memory_prices is not None
            bound -= 2**-50 * abs(bound) + 1e-6 * priced * len(self.instance)
        status, objective, answer = found.status, found.objective, found.answer
        if found.values is not None and isinstance(answer := self.read(found.values), Schedule):
            objective = self.cost(answer)
        if status is Stopped.OPTIMAL:
            status = Stopped.WITHIN_TOLERANCE
        changes = {"status": status, "objective": objective, "bound": bound, "answer": answer}
        return dataclasses.replace(found, **changes, step=None, distance=None)

    def read(self, values: npt.ArrayLike, /) -> Schedule:
        """Turn a point, whole up to rounding, into a schedule; equal requests start in order.

        Columns that were added to those of the program are passed over.
        """
        first, members = self._groups
        _, worker = self._pairs
        pair, step, _ = self._columns
        counts = whole_numbers(self._start_values(values), self._start_family)
        started = np.add.reduceat(counts, self._group_begins[:-1])
        size = np.bincount(members)
        if not (np.array_equal(started, size) and (counts >= 0).all()):
            at = int(np.argmax(started != size))
            raise ModelError(
                f"the point starts request {self.instance.label(int(first[at]))} and its equals "
                f"{started[at]} times, but there are {size[at]} of them"
            )
        starts, placement = np.empty((2, len(members)), dtype=np.int64)
        order = np.argsort(members, kind="stable")
        starts[order], placement[order] = np.repeat(step, counts), np.repeat(worker[pair], counts)
        return Schedule(
            self.instance, starts, self.objective, workers=self.workers, placement=placement
        )

    def write_point(self, schedule: Schedule | Scheduled, /) -> FloatArray:
        """Turn a schedule into a point of the linear model, for instance to start a solver from.

        It may overfill the memory; workers that can be exchanged are renumbered.
        """
        schedule = owned(schedule, self.instance, self.workers)
        starts, several = schedule.starts, len(self.workers) > 1
        _, members = self._groups
        group, worker = self._pairs
        _, step, begin = self._columns
        pairs = np.full((len(members), len(self.workers)), -1)
        pairs[group, worker] = np.arange(len(group))
        placement = renumbered(schedule) if several else schedule.placement
        pair = pairs[members, placement]
        outside = (starts < self._earliest) | (starts > self._latest) | (pair < 0)
        if outside.any():
            request = int(np.argmax(outside))
            where = f" on worker {placement[request]}" if several else ""
            earliest, latest = self._earliest[request], self._latest[request]
            lets = f"lets it start at steps {earliest} to {latest}"
            raise ModelError(
                f"request {self.instance.label(request)} starts at step {starts[request]}{where}, "
                f"but the program {lets if pair[request] >= 0 else 'keeps it from that worker'}"
            )
        column = begin[pair] + starts - self._earliest
        point = np.bincount(column, minlength=len(step)).astype(np.float64)
        if self.objective != "makespan":
            return point
        steps = np.arange(self.now + 1, self.horizon + 1)
        return np.concatenate([point, (steps <= schedule.makespan).astype(np.float64)])

    def _start_values(self, values: npt.ArrayLike) -> FloatArray:
        starts = len(self._columns[1])
        busy = self.horizon - self.now if self.objective == "makespan" else 0
        return as_point(values, starts + busy)[:starts]


@checked()
@dataclass(frozen=True, eq=False, repr=False)
class LatencyRelaxation(HindsightProgram):
    r"""Relax-LP (8)-(11): the `HindsightProgram` with :math:`x_{g,k} \ge 0` in place of (7).

    Its optimum bounds the cost of every schedule that completes by the horizon from below.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import LatencyRelaxation
    >>> relaxation = LatencyRelaxation(Instance([1, 1], [1, 1], memory=3), horizon=2)
    >>> print(relaxation.to_linear())
    total-latency relaxed: min over 2 columns (0 integer), 3 rows, 4 nonzeros
      column  start[request,step]        2  continuous, 0..inf
      row     once[request]              1  2 nonzeros
      row     memory[step]               2  2 nonzeros
    >>> relaxation.read([1.5, 0.5])
    array([0.25, 0.25])
    """

    def to_linear(self) -> LinearModel:
        """Return the relaxation as arrays, with the families of `HindsightProgram.to_linear`."""
        model = super().to_linear()
        upper = model.col_upper.copy()
        upper[model.columns_of("start")] = np.inf  # implied by (9)
        return dataclasses.replace(model.relax(), col_upper=upper, name=f"{model.name} relaxed")

    def read(self, values: npt.ArrayLike, /) -> FloatArray:  # type: ignore[override]  # no schedule
        r"""Return the mean start of each request, :math:`\sum_k k \, x_{g,k} / n_g`, shape (n,)."""
        _, members = self._groups
        _, step, begin = self._columns
        sums = np.add.reduceat(self._start_values(values) * step, begin[:-1])
        return np.asarray((sums / np.bincount(members))[members])

    def prices(self, row_duals: npt.ArrayLike) -> FloatArray:
        """Turn the duals of the rows into prices of memory at steps 1 to `horizon`, not negative.

        However rough the duals, they give a proven bound (`optsched.certificates.prices`).
        """
        first, _ = self._groups
        duals = np.asarray(row_duals, dtype=np.float64)[len(first) :][: self.horizon - self.now]
        return np.concatenate([np.zeros(self.now), np.maximum(-duals, 0)])


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

    A penalty for lateness adds :math:`\max(0, c_i - d_i)` or :math:`[c_i > d_i]` times it to (1);
    late requests alone are the sum of :math:`w_i [c_i > d_i]`.

    On several workers each request has a worker as well, and (2) counts the requests of one worker.
    A point is the starts, then the workers.

    Parameters
    ----------
    instance
        The requests. Deadlines are hard where no lateness is allowed.
    latest
        Last start of each request, shape (n,). None takes `latest_starts`, with which some optimal
        schedule is kept, and the deadlines; other values are for the caller to prove.
    objective, now, running, workers
        As of `HindsightProgram`.
    kept
        The starts of each request that an optimum may have, ascending; None takes all up to
        `latest`. That others can be left out is for the caller to prove.
    lateness, penalty
        As of `HindsightProgram`.

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
    lateness: Lateness = "forbidden"
    penalty: float = 0.0

    def __post_init__(self) -> None:
        require_known("objective", self.objective, SCHEDULE_OBJECTIVES)
        check_lateness(self.lateness, self.penalty, ModelError)
        check_due(self.instance, self.objective, self.lateness, ModelError)
        instance, latest = self.instance, self.latest
        object.__setattr__(self, "workers", workers_of(instance, self.workers, self.running))
        self.running.fit(self.workers.total, self.now)
        if cast("IntArray | None", latest) is None:
            latest = latest_starts(instance, self.now, self.running, self.workers)
            if self.kept is not None:
                latest = np.array([starts.max(initial=-1) for starts in self.kept])
        if instance.deadlines is not None and not self.costs.soft:
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
        return self.costs.weights

    @cached_property
    def costs(self) -> StartCosts:
        """What starts cost, but for the makespan."""
        return StartCosts.of(self.instance, self.objective, self.lateness, self.penalty)

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
        start = self.earliest, self.latest, self.costs.steepest, self.costs.due
        numbers = instance.prompts, instance.outputs, *start
        allowed = self.workers.allowed(instance)
        for request, values in enumerate(zip(*(each.tolist() for each in numbers), strict=True)):
            kept = None if self.kept is None else self.kept[request].tobytes()
            groups[values, allowed[request].tobytes(), kept].append(request)
        return tuple(np.array(group) for group in groups.values() if len(group) > 1)

    def cost(self, schedule: Schedule) -> float:
        """Evaluate a schedule under the objective, from its start steps alone."""
        return float(schedule_cost(schedule, self.objective, self.lateness, self.penalty))

    def violations(self, schedule: Schedule) -> list[Violation]:
        """List what makes a schedule infeasible beside the running requests, which come first."""
        soft = {"deadline"} if self.costs.soft else set()
        if self.now == 0 and not len(self.running.tokens):
            return [each for each in schedule.check() if each.kind not in soft]
        count = len(self.running.tokens)
        starts = np.concatenate([np.full(count, self.now), schedule.starts])
        placement = np.concatenate([np.zeros(count, dtype=np.int64), schedule.placement])
        everyone = self.running.join(self.instance, self.now)
        found = Schedule(everyone, starts, workers=self.workers, placement=placement).check()
        return [each for each in found if each.kind not in soft]

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
