"""What all back ends share: what they can do, their options, progress, and checking answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from optsched._internal.numbers import percent, proven
from optsched.errors import SolverError
from optsched.solution import Solution, Stopped

if TYPE_CHECKING:
    import threading

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel

#: By how much a solver's answer may break a row or a bound, relative to its size above 1.
FEASIBILITY = 1e-6

_DECIMALS = 6
_REPORT_EVERY = 0.05  # seconds


class Model(Protocol):
    """What a model must tell for its answers to be checked, as `LinearModel` does."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    @property
    def sense(self) -> Literal["min", "max"]:
        """Whether the objective is to be small or large."""
        ...

    def objective(self, point: npt.ArrayLike, /) -> float:
        """Evaluate the objective."""
        ...

    def violations(self, point: npt.ArrayLike, /, tolerance: float = ...) -> list[Any]:
        """List, printable, everything that makes a point infeasible."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a back end can do; whatever it cannot is refused before any work is done.

    Attributes
    ----------
    name
        What the user calls it.
    title
        Its name in print.
    linear
        Whether it solves `LinearModel`.
    events
        Whether it solves event programs.
    duals
        Whether it prices the rows of linear programs.
    starts
        Whether it begins from an answer that is known.
    interrupts
        Whether it reports progress and can be stopped without being killed.
    install
        The line that installs it.
    """

    name: str
    title: str
    linear: bool = True
    events: bool = False
    duals: bool = False
    starts: bool = True
    interrupts: bool = True
    install: str = ""


@dataclass(frozen=True)
class Options:
    """How to solve; the same for every back end.

    Attributes
    ----------
    time_limit
        Seconds of wall time; None for no limit.
    threads
        Number of threads, at least 1.
    seed
        Seed of the solver's random numbers; one thread and one seed give one answer.
    gap_limit
        Gap at which to stop, as a share of the objective; 0 goes on to the proof.
    memory_limit
        Bytes that a solver in a child process may take; None for no limit.

    Raises
    ------
    SolverError
        If a number is out of range.

    Examples
    --------
    >>> Options(time_limit=0)
    Traceback (most recent call last):
        ...
    optsched.errors.SolverError: time_limit is 0, but must be a positive number of seconds (None for
    no limit)
    """

    time_limit: float | None = None
    threads: int = 1
    seed: int = 0
    gap_limit: float = 0.0
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, bool, str], ...] = (
            (
                "time_limit",
                self.time_limit is None or (_real(self.time_limit) and self.time_limit > 0),
                "be a positive number of seconds (None for no limit)",
            ),
            ("threads", _whole(self.threads) and self.threads >= 1, "be a whole number from 1"),
            (
                "seed",
                _whole(self.seed) and 0 <= self.seed < 2**31,
                "be a whole number from 0 to 2147483647",
            ),
            (
                "gap_limit",
                _real(self.gap_limit) and 0 <= self.gap_limit < math.inf,
                "be a share of the objective from 0",
            ),
            (
                "memory_limit",
                self.memory_limit is None or (_real(self.memory_limit) and self.memory_limit > 0),
                "be a positive number of bytes (None for no limit)",
            ),
        )
        for name, good, wish in rules:
            if not good:
                raise SolverError(f"{name} is {getattr(self, name)!r}, but must {wish}")
        if self.time_limit == math.inf:
            object.__setattr__(self, "time_limit", None)


@dataclass(frozen=True)
class Progress:
    """A message from a running solver.

    Attributes
    ----------
    seconds
        Since the solve began.
    solver
        The name of the solver.
    objective, bound
        The best so far, None where there is none yet.
    values
        The answer, in messages that bring a new one.
    """

    seconds: float
    solver: str
    objective: float | None = None
    bound: float | None = None
    values: FloatArray | None = None

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
        gap = "-" if self.gap is None else percent(self.gap, 2)
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
        return time.perf_counter() - self._began

    def remaining(self, time_limit: float | None) -> float | None:
        """Return what is left of a time limit, at least a millisecond."""
        return None if time_limit is None else max(1e-3, time_limit - self.seconds)

    def report(
        self, objective: float | None, bound: float | None, values: FloatArray | None = None
    ) -> None:
        """Tell where the solver stands; all but new answers is thinned out."""
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
    bound: float | None = None
    duals: FloatArray | None = None


def conclude(
    model: Model, answer: Answer, seconds: float, others: list[FloatArray] | None = None
) -> Solution:
    """Check what a solver says and make a `Solution` of it."""
    status, bound = answer.status, answer.bound
    said = [answer.raw_status] if answer.raw_status else []
    if status in (Stopped.INFEASIBLE, Stopped.INFEASIBLE_OR_UNBOUNDED, Stopped.UNBOUNDED):
        bound = None
    best: FloatArray | None = None
    objective: float | None = None
    sign = 1 if model.sense == "min" else -1
    for position, values in enumerate([answer.values, *(others or [])]):
        if values is None:
            continue
        clean, breach = _clean(model, values)
        if clean is None:
            if position == 0:
                status = Stopped.ERROR
                said.append(f"its answer is infeasible: {breach}")
            continue
        cost = model.objective(clean)
        if objective is None or sign * cost < sign * objective:
            best, objective = clean + 0.0, cost  # no negative zeros
    if best is not None and status in (Stopped.INFEASIBLE, Stopped.INFEASIBLE_OR_UNBOUNDED):
        status = Stopped.ERROR
        said.append("it denies that there is an answer, but one is known")
    solution = Solution(
        status=status,
        solver=answer.solver,
        seconds=seconds,
        values=best,
        objective=objective,
        bound=bound,
        sense=model.sense,
        step=objective_step(model),
        duals=answer.duals,
        raw_status="; ".join(said),
        model=model.name,
    )
    if solution.bound is not None and objective is not None:
        excess = sign * (solution.bound - objective)
        if excess > 10 * FEASIBILITY * max(1.0, abs(objective)):
            said.append(f"its bound {solution.bound:.12g} is beyond the answer {objective:.12g}")
            solution = replace(
                solution, status=Stopped.ERROR, bound=None, raw_status="; ".join(said)
            )
    unproven = solution.bound is not None and not solution.proven_optimal
    if solution.status is Stopped.OPTIMAL and unproven:
        solution = replace(solution, status=Stopped.GAP_LIMIT)
    return solution


def check_start(model: Model, start: npt.ArrayLike | None) -> FloatArray | None:
    """Reject a start that is infeasible."""
    if start is None:
        return None
    clean, breach = _clean(model, np.asarray(start, dtype=np.float64))
    if clean is None:
        raise SolverError(
            f"{model.name}: the start is infeasible: {breach}; correct it or solve without a start"
        )
    return clean


def objective_step(model: Model) -> float | None:
    """Find a number of which the objective is a whole multiple at every answer."""
    step = getattr(model, "step", None)
    if step is not None or not hasattr(model, "cost"):
        return None if step is None else float(step)
    linear: LinearModel = model  # type: ignore[assignment]
    costly = linear.cost != 0
    if not linear.integer[costly].all():
        return None
    scaled = whole_multiple(np.append(linear.cost[costly], linear.offset))
    if scaled is None:
        return None
    numbers, scale = scaled
    divisor = int(np.gcd.reduce(numbers))
    return divisor / scale if divisor else None


def whole_multiple(numbers: FloatArray) -> tuple[npt.NDArray[np.int64], int] | None:
    """Scale decimal fractions to whole numbers."""
    for decimals in range(_DECIMALS + 1):
        scaled = numbers * 10**decimals
        whole = np.rint(scaled)
        if np.abs(whole).max(initial=0) >= 2**53:
            return None
        if (np.abs(scaled - whole) <= 1e-12 * np.maximum(1, np.abs(scaled))).all():
            return whole.astype(np.int64), 10**decimals
    return None


def _clean(model: Model, values: FloatArray) -> tuple[FloatArray | None, str]:
    """Round what must be whole; give the reason if the answer is infeasible then."""
    integer = getattr(model, "integer", None)
    rounded = np.rint(values) if integer is None else np.where(integer, np.rint(values), values)
    if integer is not None and np.abs(rounded - values).max(initial=0) > 0.01:
        rounded = values
    breaches = model.violations(rounded, FEASIBILITY)
    if breaches and integer is not None:  # rounding may cost what continuous columns had to spare
        rounded, breaches = values, model.violations(values, FEASIBILITY)
    return (rounded, "") if not breaches else (None, str(breaches[0]))


def _whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _real(number: object) -> bool:
    return isinstance(number, int | float | np.number) and not isinstance(number, bool)
