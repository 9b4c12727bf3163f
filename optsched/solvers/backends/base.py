"""What all back ends share: what they can do, their options, progress, and checking answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from optsched._internal.arguments import as_count
from optsched._internal.aside import stopwatch
from optsched._internal.numbers import in_units, proven, round_down, small_percent
from optsched.errors import SolverError, shown
from optsched.models.linear import LinearModel
from optsched.models.program import Solution, Stopped, next_cost
from optsched.problem.costs import cost_unit, schedule_cost
from optsched.solvers.backends import words

if TYPE_CHECKING:
    import threading

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.hindsight import EventProgram
    from optsched.problem.schedule import Violation

#: By how much a solver's answer may break a row or a bound, relative to its size above 1.
FEASIBILITY = 1e-6
_ROUNDING = 1e-9  # relative, of bounds that solvers compute in floating point

_DECIMALS = 6
_FEW, _SUM = 2**40, 2**62  # units from which on decimal fractions are easier, and at most
_REPORT_EVERY = 0.05  # seconds
_NAMED = 3  # rows and columns that an infeasible point breaks


@dataclass(frozen=True)
class Capabilities:
    """What a back end can do; anything else is refused before any work is done."""

    name: str  # what the user calls it
    title: str  # in print
    events: bool = False  # whether it solves event programs
    starts: bool = True  # whether it begins from an answer that is known
    interrupts: bool = True  # whether it reports progress and stops without being killed
    install: str = ""  # the line that installs it


@dataclass(frozen=True)
class Options:
    """How to solve; the same for every back end."""

    time_limit: float | None = None  # seconds of wall time; None for no limit
    threads: int = 1
    seed: int = 0  # one thread and one seed give one answer
    gap_limit: float = 0.0  # as a share of the objective; 0 goes on to the proof
    memory_limit: int | None = None  # bytes of a solver in a child process; None for no limit

    def __post_init__(self) -> None:
        seconds, size, share = self.time_limit, self.memory_limit, self.gap_limit
        for name, good, wish in (
            ("time_limit", _positive(seconds), "a positive number of seconds"),
            (
                "gap_limit",
                _real(share) and 0 <= share < math.inf,
                "a share of the objective from 0",
            ),
            ("memory_limit", _positive(size), "a positive number of bytes (None for no limit)"),
        ):
            if not good:
                raise SolverError(f"{name} is {getattr(self, name)!r}, but must be {wish}")
        if self.time_limit == math.inf:
            object.__setattr__(self, "time_limit", None)
        for name, least in (("threads", 1), ("seed", 0)):
            count = as_count(name, getattr(self, name), least, 2**31 - 1, error=SolverError)
            object.__setattr__(self, name, count)


@dataclass(frozen=True)
class Progress:
    """A message from a running solver."""

    seconds: float  # since the solve began
    solver: str
    objective: float | None = None  # None where there is none yet, as the bound
    bound: float | None = None
    values: FloatArray | None = None  # in messages that bring a new answer

    @property
    def gap(self) -> float | None:
        """Distance of objective and bound as a share of the objective."""
        if self.objective is None or self.bound is None:
            return None
        distance = abs(self.objective - self.bound)
        return distance / abs(self.objective) if self.objective else math.inf if distance else 0.0

    def __str__(self) -> str:
        objective = "-" if self.objective is None else f"{self.objective:.6g}"
        bound = "-"
        if self.bound is not None:  # above the objective where that is maximised
            above = self.objective is not None and self.bound > self.objective
            bound = proven(self.bound, up=above)
        gap = "-" if self.gap is None else small_percent(self.gap)
        return (
            f"{self.seconds:8.1f} s  objective {objective:>10}  bound {bound:>10}  "
            f"gap {gap:>8}  {self.solver}"
        )


OnProgress = Callable[[Progress], object]


class Reporter:
    """The channel between a running solver and its caller."""

    def __init__(
        self, solver: str, send: Callable[[Progress], None], stop: threading.Event, began: float
    ) -> None:
        self._solver, self._send, self._stop, self._began = solver, send, stop, began
        self._last = -math.inf

    @property
    def stopping(self) -> bool:
        """Whether the solver was asked to stop."""
        return self._stop.is_set()

    @property
    def seconds(self) -> float:
        """Wall time since the solve began."""
        return stopwatch() - self._began

    def remaining(self, time_limit: float | None) -> float | None:
        """Return what is left of a time limit, at least a millisecond."""
        return None if time_limit is None else max(1e-3, time_limit - self.seconds)

    def report(
        self, objective: float | None, bound: float | None, values: FloatArray | None = None
    ) -> None:
        """Tell where the solver stands; messages without a new answer are throttled."""
        now = self.seconds
        if values is None and now - self._last < _REPORT_EVERY:
            return
        self._last = now
        objective, bound = (
            None if number is None or abs(number) >= 1e20 else float(number)
            for number in (objective, bound)
        )
        self._send(Progress(now, self._solver, objective, bound, values))


@dataclass(frozen=True)
class Answer:
    """What a back end found, before anything of it is checked."""

    status: Stopped
    solver: str
    raw_status: str
    values: FloatArray | None = None
    bound: float | Fraction | None = None  # a fraction is exact, a float as good as its solver
    duals: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class EventModel:
    """An event program in the terms in which answers are checked."""

    program: EventProgram
    bound: float | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.program.objective} by events"

    @property
    def sense(self) -> Literal["min"]:
        """All objectives are to be small."""
        return "min"

    @property
    def unit(self) -> Fraction:
        """What the objective is a whole multiple of."""
        program = self.program
        return cost_unit(program.instance, program.objective, program.lateness, program.penalty)

    def exact_objective(self, point: npt.ArrayLike, /) -> Fraction:
        """Evaluate the objective at start steps."""
        program = self.program
        how = program.objective, program.lateness, program.penalty
        return schedule_cost(program.read(point), *how)

    def violations(self, point: npt.ArrayLike, /, tolerance: float = 0.0) -> list[Violation]:
        """List what makes start steps infeasible; they are whole, so nothing is forgiven."""
        return self.program.violations(self.program.read(point))


def solved_alone(model: LinearModel) -> Answer | None:
    """Answer what leaves nothing to solve, at which solvers err: no entries, no room."""
    low, high = _whole_bounds(model.col_lower, model.col_upper, model.integer)
    whole = bool(model.integer.all() and (model.matrix.data == np.rint(model.matrix.data)).all())
    lower, upper = _whole_bounds(model.row_lower, model.row_upper, whole)
    blank = np.diff(model.matrix.indptr) == 0
    # A row that rounding alone makes empty is for the solver's tolerance.
    room = FEASIBILITY * np.maximum(1, np.minimum(abs(lower), abs(upper)))
    denied = (lower > upper + room) | (blank & ((lower > room) | (upper < -room)))
    for word, name_of, wrong in (
        ("column", model.column_name, low > high),
        ("row", model.row_name, denied),
    ):
        if wrong.any():
            reason = f"nothing lies within the bounds of {word} {name_of(int(wrong.argmax()))}"
            return Answer(Stopped.INFEASIBLE, "optsched", reason)
    if model.matrix.nnz:
        return None
    cost = model.cost if model.sense == "min" else -model.cost
    point = np.where(cost > 0, low, np.where(cost < 0, high, np.clip(0.0, low, high)))
    if not np.isfinite(point).all():
        return Answer(Stopped.UNBOUNDED, "optsched", "a column without an end gains")
    duals = None if model.integer.any() else np.zeros(len(model.row_lower))
    bound = model.exact_objective(point)
    return Answer(Stopped.OPTIMAL, "optsched", "no entries", point, bound, duals)


def _whole_bounds(
    lower: FloatArray, upper: FloatArray, whole: BoolArray | bool
) -> tuple[FloatArray, FloatArray]:
    return np.where(whole, np.ceil(lower), lower), np.where(whole, np.floor(upper), upper)


def conclude(
    model: LinearModel | EventModel,
    answer: Answer,
    seconds: float,
    others: list[FloatArray] | None = None,
) -> Solution:
    """Check what a solver says and make a `Solution` of it."""
    status, bound = answer.status, answer.bound
    said = [answer.raw_status] if answer.raw_status else []
    if status in words.DENIALS:
        bound = None
    sign = 1 if model.sense == "min" else -1
    best, objective, breach = _best(model, [answer.values, *(others or [])], sign)
    if breach is not None:
        status = Stopped.ERROR
        said.append(f"its answer is infeasible: {breach}")
    if best is not None and status in words.INFEASIBLE:
        status = Stopped.ERROR
        said.append("it denies that there is an answer, but one is known")
    if status is Stopped.INFEASIBLE and isinstance(model, LinearModel):
        said.append("optsched.explain_infeasibility names rows in conflict")
    unit, floor = model.unit, None
    if bound is not None and math.isfinite(bound):
        floor = next_cost(_proven(model, bound), unit, model.sense)
        if objective is not None and sign * (floor - objective) > 0:
            # The answer of a program with continuous columns may break rows by a rounding error.
            if sign * (bound - objective) > _slack(model, float(bound)):
                status = Stopped.ERROR
                numbers = f"{float(bound):.12g} is beyond the answer {float(objective):.12g}"
                said.append(f"its bound {numbers}")
                floor = None
            else:
                floor = objective
    distance = None if floor is None or objective is None else objective - floor
    solution = Solution(
        status=status,
        solver=answer.solver,
        seconds=seconds,
        values=best,
        objective=None if objective is None else float(objective),
        bound=None if floor is None else sign * round_down(sign * floor),
        sense=model.sense,
        step=None if unit is None else float(unit),
        distance=distance,
        duals=answer.duals,
        raw_status="; ".join(said),
        model=model.name,
    )
    proven = claimed = solution.proven_optimal
    if claimed and isinstance(model, LinearModel) and best is not None:
        proven = model.holds(best)  # an answer that breaks a row by rounding proves nothing
    if (claimed or status is Stopped.OPTIMAL) and not proven:
        return replace(solution, status=Stopped.WITHIN_TOLERANCE)
    return solution


def _best(
    model: LinearModel | EventModel, answers: list[FloatArray | None], sign: int
) -> tuple[FloatArray | None, Fraction | None, str | None]:
    """Return the best feasible answer and its cost, and what the first breaks, if anything."""
    best: FloatArray | None = None
    objective: Fraction | None = None
    breach: str | None = None
    for position, values in enumerate(answers):
        if values is None:
            continue
        clean, broken = feasible(model, values)
        if clean is None:
            breach = broken if position == 0 else breach
            continue
        cost = model.exact_objective(clean)
        if objective is None or sign * cost < sign * objective:
            best, objective = clean + 0.0, cost  # no negative zeros
    return best, objective, breach


def _slack(model: LinearModel | EventModel, bound: float) -> Fraction:
    """Return by how much a bound in floating point may be wrong."""
    largest = np.abs(model.cost).max(initial=0) if isinstance(model, LinearModel) else 1.0
    tolerance = max(FEASIBILITY * min(1.0, largest), 2**-44 * largest)
    return Fraction(max(tolerance, _ROUNDING * abs(bound)))


def _proven(model: LinearModel | EventModel, bound: float | Fraction) -> Fraction:
    """Return what a bound proves if a solver that computes in floating point found it."""
    if isinstance(bound, Fraction):
        return bound
    sign = 1 if model.sense == "min" else -1
    return Fraction(bound) - sign * _slack(model, bound)


def check_start(model: LinearModel | EventModel, start: npt.ArrayLike | None) -> FloatArray | None:
    """Reject a start that is infeasible."""
    if start is None:
        return None
    if isinstance(model, LinearModel) and np.shape(start) != model.cost.shape:
        raise SolverError(
            f"{model.name}: the start is {shown(start)}, but must be a number for each of "
            f"{len(model.cost)} columns; write_point of a program makes them of a schedule"
        )
    clean, breach = feasible(model, np.asarray(start, dtype=np.float64))
    if clean is None:
        raise SolverError(
            f"{model.name}: the start is infeasible: {breach}; correct it or solve without a start"
        )
    return clean


class Whole(NamedTuple):
    """Numbers as whole multiples of a unit, and by how much the worst of them is off."""

    multiples: IntArray
    unit: Fraction
    error: Fraction


def whole_multiple(numbers: FloatArray, total: float) -> Whole | None:
    """Write numbers in units, decimal ones where exact ones have many bits; None for too many."""
    distinct, where = np.unique(numbers, return_inverse=True)
    unit, exact = in_units(distinct)
    if max(map(abs, exact), default=0) >= _FEW:
        for decimals in range(_DECIMALS + 1):
            scaled = distinct * 10**decimals
            if np.abs(scaled).max() >= 2**53 or total * 10**decimals >= _SUM:
                break
            if (np.abs(scaled - np.rint(scaled)) <= 1e-12 * np.abs(scaled)).all():
                whole, step = np.rint(scaled).astype(np.int64), Fraction(1, 10**decimals)
                pairs = zip(exact, whole.tolist(), strict=True)
                error = max(abs(unit * number - step * near) for number, near in pairs)
                return Whole(whole[where], step, error)
    if max(total, np.abs(distinct).max(initial=0)) / unit >= _SUM:
        return None
    return Whole(np.array(exact, dtype=np.int64)[where], unit, Fraction(0))


def feasible(model: LinearModel | EventModel, values: FloatArray) -> tuple[FloatArray | None, str]:
    """Round what must be whole; say why if a point is infeasible then."""
    integer = model.integer if isinstance(model, LinearModel) else True
    rounded = np.where(integer, np.rint(values), values)
    breaches = model.violations(rounded, FEASIBILITY)
    # Rounding may cost what continuous columns had to spare, and must not hide a fraction.
    mixed = isinstance(model, LinearModel) and not model.integer.all()
    if (mixed and breaches) or np.abs(rounded - values).max(initial=0) > 0.01:
        rounded, breaches = values, model.violations(values, FEASIBILITY)
    if not breaches:
        return rounded, ""
    more = f"; and {len(breaches) - _NAMED:,} more" if len(breaches) > _NAMED else ""
    return None, "; ".join(map(str, breaches[:_NAMED])) + more


def _real(number: object) -> bool:
    return isinstance(number, int | float | np.number) and not isinstance(number, bool)


def _positive(number: float | None) -> bool:
    return number is None or (_real(number) and number > 0)
