r"""What all programs share: running requests, horizons, answers and conflicts.

Request :math:`i` starts from :math:`e_i = a_i` on and completes by :math:`f_i`, its deadline or the
horizon. Two requests that can each run alone conflict exactly if :math:`f_j - o_j - e_i < D_{ij}`
and :math:`f_i - o_i - e_j < D_{ji}`, where
:math:`D_{ij} = \min\{o_i, \max\{o_i - o_j,\, 2 o_i + s_i + s_j - M\}\}` is the least
:math:`p_j - p_i` with which :math:`i` may complete first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, cast

import numpy as np

from optsched._internal.arrays import (
    NONZERO,
    as_integers,
    frozen,
    has_room,
    ranks_in,
    require_room,
    room_for,
)
from optsched._internal.numbers import proven, small_percent
from optsched._internal.views import Shown, lines_as_html
from optsched.errors import InfeasibleError, ModelError, SolverError, require, shown
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule, Usage
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.in_pyomo import Native
    from optsched.models.linear import LinearModel


class Size(NamedTuple):
    """How large a linear model is, known before it is written."""

    columns: int
    nonzeros: int
    rows: int

    def __str__(self) -> str:
        return f"{self.columns:,} columns, {self.nonzeros:,} nonzeros"


def require_size(size_at: Callable[[int], Size], least: int, horizon: int) -> None:
    """Refuse a program of too many steps, and say up to which horizon there is room."""
    count = sum(size_at(horizon)[1:])
    if count >= 2**31 or not has_room(count, NONZERO):
        most = min(room_for(NONZERO), 2**31 - 1)  # indices have 32 bits
        steps = range(least, horizon)
        fits = least + bisect(steps, most, key=lambda last: sum(size_at(last)[1:])) - 1
        advice = f"a horizon of up to {fits:,} fits" if fits >= least else "take fewer requests"
        raise ModelError(
            f"the program would have {count:,} rows and nonzeros over {horizon:,} steps, but there "
            f"is room for {most:,}; {advice}, or solve the instance by the method search"
        )


class Program(ABC):
    """A decision problem with linear rows; `optsched.solve` solves whatever has these methods."""

    @abstractmethod
    def to_linear(self) -> LinearModel:
        """Write the program as arrays."""

    @abstractmethod
    def read(self, values: npt.ArrayLike, /) -> Any:
        """Turn a point of the linear model into an answer in the terms of the problem."""

    @abstractmethod
    def write_point(self, answer: Any, /) -> FloatArray:
        """Turn an answer into a point of the linear model, for instance as a start."""

    def to_pyomo(self) -> Native:
        """Return the program as a Pyomo model with the names of `to_linear`."""
        return self.to_linear().to_pyomo()

    def _repr_html_(self) -> str:
        """Show what it is, and its data that differ from their defaults."""
        lines = [repr(self)]
        data: tuple[Field[object], ...] = fields(self) if is_dataclass(self) else ()
        for each in data:
            if (value := getattr(self, each.name)) is not each.default and value is not None:
                lines.append(f"{each.name}  {shown(value)}")
        return lines_as_html("\n".join(lines))


class Scheduled(Protocol):
    """A run, or an optimum, and the schedule that came of it."""

    @property
    def schedule(self) -> Schedule:
        """When and where each request runs."""


def workers_of(instance: Instance, workers: Workers | None, running: Running) -> Workers:
    """Return the workers of a program: one, unless it says otherwise."""
    if workers is None:
        return Workers([instance.memory])
    several = as_workers(workers, instance)
    if len(several) > 1 and len(running.tokens):
        raise ModelError("requests that are running are those of one worker; leave them out")
    return several


def owned(found: Schedule | Scheduled, instance: Instance, workers: Workers) -> Schedule:
    """Return a schedule, or that of a run, unless it is one of something else."""
    schedule = cast("Schedule", getattr(found, "schedule", found))
    wish = "a Schedule, or what has one, such as optsched.run(instance, 'area')"
    require(schedule, Schedule, "the schedule", wish, ModelError)
    if (schedule.instance, schedule.workers) != (instance, workers):
        raise ModelError(
            "the schedule belongs to another instance or other workers; make the program of its "
            "instance and workers"
        )
    return schedule


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


def renumbered(schedule: Schedule) -> IntArray:
    """Return the placement with workers of a class numbered by use."""
    unused: dict[int, list[int]] = {}
    for worker, number in enumerate(schedule.workers.classes.tolist()):
        unused.setdefault(number, []).append(worker)
    name: dict[int, int] = {}
    for worker in schedule.placement[largest_first(schedule.instance)].tolist():
        if worker not in name:
            name[worker] = unused[int(schedule.workers.classes[worker])].pop(0)
    return np.array([name[worker] for worker in schedule.placement.tolist()])


_EXACT = 2**61  # 64-bit sums and products stay exact below


@dataclass(frozen=True, eq=False)
class Running:
    r"""Requests that are running already and will go on to their completion.

    One that holds :math:`h` tokens now and has :math:`r` steps to go holds :math:`h + u` tokens
    :math:`u` steps from now, :math:`u = 1, \dots, r`.

    Parameters
    ----------
    tokens
        Tokens :math:`h \ge 0` that each holds now.
    remaining
        Steps :math:`r \ge 1` that each has to go.

    Examples
    --------
    >>> Running(tokens=[5, 1], remaining=[1, 3]).load(4)
    array([8, 3, 4, 0])
    """

    tokens: IntArray
    remaining: IntArray

    def __post_init__(self) -> None:
        for field in ("tokens", "remaining"):
            object.__setattr__(self, field, as_integers(field, getattr(self, field)))
        if len(self.tokens) != len(self.remaining):
            raise ModelError(
                f"the running requests have {len(self.tokens)} numbers of tokens, but "
                f"{len(self.remaining)} of remaining steps"
            )
        wrong = (self.tokens < 0) | (self.remaining < 1)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ModelError(
                f"running request {at}: {self.tokens[at]} tokens and {self.remaining[at]} steps to "
                "go, but tokens cannot be negative and one that runs has at least 1 step to go"
            )

    def load(self, steps: int) -> IntArray:
        """Return the tokens they hold in each of the next steps."""
        require_room(steps, 40, "steps of running requests", "plan fewer", ModelError)
        if not len(self.tokens):
            return np.zeros(steps, dtype=np.int64)
        usage = Usage(np.zeros_like(self.tokens), self.tokens, self.remaining)
        return usage.at(np.arange(1, steps + 1))

    def fit(self, memory: int, now: int) -> None:
        """Reject a `now` that is not a step, and running requests that overfill the memory."""
        if int(now) != now or now < 0:
            raise ModelError(f"now is {now}, but must be a whole number of at least 0")
        load = self.load(self.last_step)
        if load.max(initial=0) > memory:
            at = int(np.argmax(load > memory))
            raise ModelError(
                f"the running requests alone hold {load[at]} tokens at step {now + 1 + at}, "
                f"but the memory holds {memory}"
            )

    def join(self, instance: Instance, now: int) -> Instance:
        """Return an instance with running requests, as ones that start now, before its own."""
        count, due = len(self.tokens), instance.deadlines
        return Instance(
            np.concatenate([self.tokens, instance.prompts]),
            np.concatenate([self.remaining, instance.outputs]),
            instance.memory,
            np.concatenate([np.full(count, now), np.maximum(instance.arrivals, now)]),
            deadlines=None if due is None else np.concatenate([now + self.remaining, due]),
            labels=[
                *(f"running {i}" for i in range(count)),
                *(instance.label(i) for i in range(len(instance))),
            ],
            name=instance.name,
        )

    @property
    def area(self) -> int:
        """Token-steps that they will still hold."""
        r = self.remaining
        return int((self.tokens * r + r * (r + 1) // 2).sum())

    @property
    def last_step(self) -> int:
        """Steps until the last of them has completed; 0 where none is running."""
        return int(self.remaining.max(initial=0))


NOTHING_RUNNING = Running(np.zeros(0, np.int64), np.zeros(0, np.int64))


def latest_starts(
    instance: Instance,
    now: int = 0,
    running: Running = NOTHING_RUNNING,
    workers: Workers | None = None,
) -> IntArray:
    """Bound the start of every request in some optimal schedule."""
    # It holds for every objective that never falls when a completion comes later. Take, among the
    # optimal schedules, one with the least sum of starts. Write e_i = max(a_i, now).
    # No idling: let b be the last arrival, or the end of the running requests if later. Were a step
    # after b idle, all later requests could start one step earlier. So another request is active at
    # each step from b + 1 to p_i, and p_i <= b + the sum of the other outputs.
    # No room: request i could not have started at k, e_i <= k < p_i: the others hold more than
    # M - s_i - o_i tokens at some step of k + 1 .. k + o_i. Go on from that step in place of k:
    # there are at least (p_i - e_i) / o_i such steps, which cannot take more memory-time than the
    # others and the running requests have, so p_i - e_i is at most o_i times that memory-time
    # divided by M - s_i - o_i + 1, rounded down.
    # On several workers both hold for the requests of one, and M is the least memory where request
    # i may run; that others run elsewhere only helps.
    outputs, areas = instance.outputs, instance.areas
    earliest = np.maximum(instance.arrivals, now)
    busy = max(int(earliest.max()), now + running.last_step)
    no_idling = busy + outputs.sum() - outputs
    if areas.sum(dtype=np.float64) + running.area > _EXACT:
        return np.asarray(no_idling)
    others = areas.sum() - areas + running.area
    memory = np.array(instance.memory)
    if workers is not None:
        may_run, least = workers.allowed(instance), np.array(workers.memories)
        memory = np.where(may_run, least, np.iinfo(np.int64).max).min(axis=1)
    waits = others // (memory - instance.peaks + 1)
    no_room = earliest + outputs * np.minimum(waits, _EXACT // outputs)
    return np.asarray(np.minimum(no_idling, no_room), dtype=np.int64)


def safe_horizon(
    instance: Instance,
    now: int = 0,
    running: Running = NOTHING_RUNNING,
    workers: Workers | None = None,
) -> int:
    """Return a last step within which some optimal schedule completes (see `latest_starts`)."""
    return int((latest_starts(instance, now, running, workers) + instance.outputs).max())


class Stopped(StrEnum):
    """Why a solver stopped; whether it left an answer is another question."""

    OPTIMAL = "optimal"
    WITHIN_TOLERANCE = "optimal within the solver's tolerance"
    GAP_LIMIT = "gap limit"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    INFEASIBLE_OR_UNBOUNDED = "infeasible or unbounded"
    TIME_LIMIT = "time limit"
    ITERATION_LIMIT = "iteration limit"
    MEMORY_LIMIT = "memory limit"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    UNKNOWN = "unknown"


_ALL_STOPPED = frozenset(Stopped)


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Shown):
    """An answer and a bound, each of which may be missing; what is missing is None.

    Parameters
    ----------
    status
        Why the solver stopped: one of `Stopped`; for an instance also what else ended the work.
    solver
        Its name and version.
    seconds
        Wall time, with the hand-over of the model.
    values
        The point of the best answer: one value per column, or per request for an event program.
    objective
        What the answer costs, evaluated again.
    bound
        No answer is better than this: moved to the next value that the objective can take, and
        rounded to a double on the safe side.
    sense
        Whether the objective is minimised ("min") or maximised ("max").
    step
        Every answer's objective is a whole multiple of it, if that is known: 1 where all costs and
        all columns that cost are whole.
    distance
        Objective minus bound without rounding; None where they are exact as they stand.
    duals
        For linear programs the price of each row: how the objective changes per unit of its bound.
    raw_status
        The solver's own status, and what else is to be said about how it ended.
    answer
        The answer in the terms of the problem; `values` where the problem is an array.

    Examples
    --------
    >>> solution = Solution(Stopped.OPTIMAL, "HiGHS 1.14.0", 0.2, np.ones(2), 22.0, 22.0, step=1)
    >>> print(solution)
    model: optimal after 0.20 s (HiGHS 1.14.0)
      objective 22
      bound     22, proven optimal
    """

    status: str
    solver: str
    seconds: float
    values: FloatArray | None = None
    objective: float | None = None
    bound: float | None = None
    sense: Literal["min", "max"] = "min"
    step: float | None = None
    distance: Fraction | None = None
    duals: FloatArray | None = None
    raw_status: str = ""
    model: str = "model"
    answer: Any = None

    def __post_init__(self) -> None:
        if self.status in _ALL_STOPPED:
            object.__setattr__(self, "status", Stopped(self.status))
        for name in ("values", "duals"):
            if (array := getattr(self, name)) is not None:
                object.__setattr__(self, name, frozen(np.asarray(array, dtype=np.float64)))
        if self.answer is None:
            object.__setattr__(self, "answer", self.values)
        if not self.has_answer:
            object.__setattr__(self, "objective", None)
        for name in ("objective", "bound"):
            number = getattr(self, name)
            missing = number is None or not math.isfinite(number)
            object.__setattr__(self, name, None if missing else float(number))
        if self.bound is not None and self.distance is None:
            exact = next_cost(Fraction(self.bound), self._step, self.sense)
            object.__setattr__(self, "bound", float(exact))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Solution):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
            if field.name != "answer"
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside

    def __repr__(self) -> str:
        return f"<Solution of {self.model!r}: {self.status}, objective {self.objective}>"

    def __str__(self) -> str:
        above = self.sense == "max"
        bound = "none" if self.bound is None else proven(self.bound, up=above, digits=12)
        verdict = "" if self.gap is None else f", gap {small_percent(self.gap)}"
        if self.proven_optimal:
            verdict = ", proven optimal"
        missing = "none: there is no answer"
        lines = [
            f"{self.model}: {self.status} after {self.seconds:.2f} s ({self.solver})",
            f"  objective {missing if self.objective is None else f'{self.objective:,.12g}'}",
            f"  bound     {bound}{verdict}",
        ]
        if self.raw_status and self.raw_status.casefold() != str(self.status):
            lines.append(f"  solver    {self.raw_status}")
        return "\n".join(lines)

    @property
    def has_answer(self) -> bool:
        """Whether there is a feasible answer, proven optimal or not."""
        return self.answer is not None

    @property
    def gap(self) -> float | None:
        """Distance of objective and bound as a share of the objective; None if one is missing."""
        if (room := self._room) is None or self.objective is None:
            return None
        if room <= 0:
            return 0.0
        return float(room / abs(Fraction(self.objective))) if self.objective else math.inf

    @property
    def proven_optimal(self) -> bool:
        """Whether the bound leaves no room for a better answer, whatever the solver claims.

        It leaves none if it reaches the objective, or is nearer to it than any two values that the
        objective can take, without rounding and without any tolerance.
        """
        if (room := self._room) is None or self.status is Stopped.WITHIN_TOLERANCE:
            return False
        return room <= 0 or (self._step is not None and room < self._step)

    def with_answer(self, read: Callable[[FloatArray], object]) -> Self:
        """Return the solution with its point read in the terms of the problem."""
        return self if self.values is None else replace(self, answer=read(self.values))

    @property
    def _step(self) -> Fraction | None:
        return None if self.step is None else Fraction(self.step)

    @property
    def _room(self) -> Fraction | None:
        """How much better than the answer the bound would let another one be."""
        if self.objective is None or self.bound is None:
            return None
        distance = self.distance
        if distance is None:
            distance = Fraction(self.objective) - Fraction(self.bound)
        return distance * (1 if self.sense == "min" else -1)

    def require(self, *, optimal: bool = False) -> Self:
        """Return the solution itself if it has an answer, or a proven one if that is asked.

        Otherwise an `InfeasibleError` says that there is none, a `SolverError` that none was found
        or that the proof is missing.
        """
        said = str(self).splitlines()[0]
        if not self.has_answer:
            infeasible = self.status is Stopped.INFEASIBLE
            advice = self.raw_status or ("" if infeasible else "allow more time")
            why = f"{said}, without an answer{advice and f'; {advice}'}"
            raise (InfeasibleError if infeasible else SolverError)(why)
        if optimal and not self.proven_optimal:
            advice = "allow more time"
            if self.status is Stopped.WITHIN_TOLERANCE:
                advice = "take its gap for an answer, or whole numbers below 2**53"
            raise SolverError(f"{said}: the answer is not proven optimal; {advice}")
        return self


def next_cost(
    bound: Fraction, step: Fraction | None, sense: Literal["min", "max"] = "min"
) -> Fraction:
    """Move a bound to the next value that the objective can take."""
    if step is None:
        return bound
    return step * (math.ceil(bound / step) if sense == "min" else math.floor(bound / step))


#: How a conflict is proven: by the arithmetic of one, two or many requests, or by a search.
Proof = Literal["window", "pair", "memory-time", "search"]

_LISTED = 12  # requests that a sentence names
_FEW = 3  # requests of which a conflict has no fewer if arithmetic finds no pair and no single one


@dataclass(frozen=True)
class Conflict:
    """Requests that cannot all complete in time, and the steps whose memory they would overfill.

    Attributes
    ----------
    requests, indices
        Their labels, and their indices in the instance, ascending.
    running
        Indices of the running requests that leave them too little memory, ascending.
    steps
        Steps at which the limit of memory is needed for the conflict: without it elsewhere they
        conflict all the same. Empty where time alone is too short.
    proof
        How the conflict is proven: by the arithmetic of one "window", of a "pair" or of
        "memory-time", or by the "search" of a solver.
    irreducible
        Whether it vanishes without any one of the requests, running ones included.
    smallest
        Whether it is proven that no conflict has fewer requests: it is for up to three, running
        ones included.
    tight
        Whether it vanishes with endless memory at any one of the steps.
    reason
        The contradiction.

    Examples
    --------
    >>> from optsched import Instance, explain_infeasibility
    >>> instance = Instance([4, 4, 1], [2, 2, 2], 9, deadlines=[3, 3, 9], labels=["a", "b", "c"])
    >>> conflict = explain_infeasibility(instance)
    >>> conflict.requests, conflict.steps
    (('a', 'b'), (range(2, 3),))
    """

    requests: tuple[str, ...]
    indices: tuple[int, ...]
    steps: tuple[range, ...]
    proof: Proof
    irreducible: bool
    smallest: bool
    tight: bool
    reason: str
    running: tuple[int, ...] = ()

    def __str__(self) -> str:
        count = len(self.requests)
        everyone = {1: "", 2: "both "}.get(count, "all ")
        subject = f"{_listed(self.requests)} cannot {everyone}complete in time"
        if self.running:
            subject += f" beside running {_listed([str(number) for number in self.running])}"
        if self.proof == "window":
            return f"{subject}: {self.reason}"
        claim = "; without any one of them the others can" if self.irreducible else ""
        if self.smallest:
            claim = "; no smaller set of requests conflicts"
        elif not self.irreducible:
            claim = "; a part of them may conflict already, which more time would tell"
        return f"{subject}: {self.reason}{claim}"


@dataclass(frozen=True)
class RowConflict:
    """Rows of a linear model that no point satisfies together.

    Attributes
    ----------
    rows
        Their names, those of small families first.
    irreducible
        Whether a point satisfies all others without any one of them.
    solver
        The solvers that were asked, with their versions.

    Examples
    --------
    >>> from optsched import HindsightProgram, Instance, explain_infeasibility
    >>> model = HindsightProgram(Instance([1, 1], [2, 2], memory=4), horizon=4).to_linear()
    >>> early = model.with_rows("early", {"start": model.columns_of("start") > 0}, upper=0)
    >>> print(explain_infeasibility(early))
    rows early, once[0] and memory[2] cannot all hold; without any one of them the others can (...)
    """

    rows: tuple[str, ...]
    irreducible: bool
    solver: str

    def __str__(self) -> str:
        if not self.rows:
            return f"no point lies within the bounds of all columns ({self.solver})"
        claim = "a part of them may conflict already, which more time would tell"
        if self.irreducible:
            claim = "without any one of them the others can"
        verb = {1: "cannot", 2: "cannot both"}.get(len(self.rows), "cannot all")
        return f"{_listed(self.rows, 'row')} {verb} hold; {claim} ({self.solver})"


@dataclass(frozen=True, eq=False)
class Windows:
    """Requests, running ones first, that have to run between arrival and deadline."""

    instance: Instance
    horizon: int | None
    now: int
    running: int

    @classmethod
    def beside(
        cls, instance: Instance, horizon: int | None, now: int, running: Running = NOTHING_RUNNING
    ) -> Windows:
        """Return the windows of requests that are due by a horizon, beside running ones."""
        running.fit(instance.memory, now)
        if horizon is not None:
            if int(horizon) != horizon or horizon < 1:
                raise ModelError(f"horizon is {horizon}, but must be a whole number of at least 1")
            due = np.full(len(instance), horizon, dtype=np.int64)
            if instance.deadlines is not None:
                due = np.minimum(due, instance.deadlines)
            instance = instance.replace(deadlines=due)
        return cls(running.join(instance, now), horizon, now, len(running.tokens))

    @property
    def due(self) -> IntArray:
        """Step by which each request has to complete, shape (n,)."""
        return np.asarray(self.instance.deadlines)

    @property
    def latest(self) -> IntArray:
        """Last start of each request, shape (n,)."""
        return np.asarray(self.due - self.instance.outputs)

    def clashing_pair(self) -> list[int] | None:
        """Find two requests that cannot both complete in time, where each can alone."""
        instance, latest = self.instance, self.latest
        prompts, outputs, earliest = instance.prompts, instance.outputs, instance.arrivals

        def apart(first: int | IntArray, second: int | IntArray) -> IntArray:
            """Return the least distance of starts with which the first may complete first."""
            together = prompts[first] + prompts[second] - instance.memory
            overlap = np.maximum(outputs[first] - outputs[second], 2 * outputs[first] + together)
            distance: IntArray = np.minimum(outputs[first], overlap)
            return distance

        for one in range(len(instance) - 1):
            others = np.arange(one + 1, len(instance))
            clash = latest[others] - earliest[one] < apart(one, others)
            clash &= latest[one] - earliest[others] < apart(others, one)
            if clash.any():
                return [one, int(others[np.argmax(clash)])]
        return None

    def overload(self, requests: IntArray) -> IntArray | None:
        """Find requests that hold more memory-time than there is within their windows."""
        instance = self.instance
        order = requests[np.argsort(-instance.arrivals[requests], kind="stable")]
        for end in np.unique(self.due[order]):
            inside = order[self.due[order] <= end]
            offered = (1 + 1e-12) * instance.memory * (end - instance.arrivals[inside])
            over = np.cumsum(instance.areas[inside], dtype=np.float64) > offered
            if over.any():
                first = int(np.argmax(over))
                among = inside[: first + 1]
                heavy: IntArray = among[np.argsort(-instance.areas[among], kind="stable")]
                held = np.cumsum(instance.areas[heavy], dtype=np.float64)
                return heavy[: int(np.argmax(held > offered[first])) + 1]
        return None

    def describe(
        self, requests: Sequence[int], steps: tuple[range, ...], *, irreducible: bool, tight: bool
    ) -> Conflict:
        """Put a conflict into words."""
        instance, members = self.instance, np.sort(requests)
        first, new = int(members[0]), members[members >= self.running]
        begin, end = int(instance.arrivals[members].min()), int(self.due[members].max())
        held = sum(instance.areas[members].tolist())
        offered = instance.memory * (end - begin)
        # Conflicts of one and of two are found first, whatever the others do.
        smallest = len(members) <= _FEW
        proof: Proof = "pair" if len(members) == 2 else "search"
        if len(members) == 1:
            proof = "window"
            limit = "its deadline" if end != self.horizon else "the horizon"
            verb = "cannot start before" if 0 < begin == self.now else "arrives at"
            reason = (
                f"it {verb} step {begin} and makes {instance.outputs[first]} tokens, so it "
                f"completes at step {begin + instance.outputs[first]} at the earliest, but "
                f"{limit} is step {end}"
            )
        elif held > offered:
            proof = "memory-time"
            reason = (
                f"they hold {held:,} token-steps, all of them within "
                f"{_steps([range(begin + 1, end + 1)])}, "
                f"where the memory of {instance.memory:,} tokens offers {offered:,}"
            )
        else:
            starts = "its start" if len(new) == 1 else "their starts"
            one_of = "" if sum(map(len, steps)) == 1 else "one of the "
            reason = (
                f"whatever {starts}, they hold more than the memory of {instance.memory:,} tokens "
                f"at {one_of}{_steps(steps)}"
            )
        return Conflict(
            requests=tuple(instance.label(request) for request in new.tolist()),
            indices=tuple((new - self.running).tolist()),
            running=tuple(members[members < self.running].tolist()),
            steps=steps,
            proof=proof,
            irreducible=irreducible or smallest,
            smallest=smallest,
            tight=tight,
            reason=reason,
        )


def _steps(ranges: Sequence[range]) -> str:
    parts = [
        str(part.start) if len(part) == 1 else f"{part.start}..{part.stop - 1}" for part in ranges
    ]
    return f"step{'' if sum(map(len, ranges)) == 1 else 's'} {', '.join(parts)}"


def _listed(labels: Sequence[str], noun: str = "request") -> str:
    words, count = list(labels[:_LISTED]), len(labels)
    if count > _LISTED:
        words.append(f"{count - _LISTED:,} more")
    if len(words) > 1:
        words = [f"{', '.join(words[:-1])} and {words[-1]}"]
    return f"{noun}{'' if count == 1 else 's'} {words[0]}"
