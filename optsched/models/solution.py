"""What a solver gives back: why it stopped, whether there is an answer, and what was proven."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from optsched._internal.arrays import frozen
from optsched._internal.numbers import percent, proven
from optsched._internal.views import Shown
from optsched.errors import InfeasibleError, SolverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray


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
    model
        Name of the model.
    answer
        The answer in the terms of the problem; `values` where the problem is an array.

    Examples
    --------
    >>> solution = Solution(Stopped.OPTIMAL, "HiGHS 1.14.0", 0.2, np.ones(2), 22.0, 22.0, step=1)
    >>> print(solution)
    model: optimal after 0.20 s (HiGHS 1.14.0)
      objective 22
      bound     22, proven optimal
    >>> Solution(Stopped.INFEASIBLE, "HiGHS", 0.1).require()
    Traceback (most recent call last):
        ...
    optsched.errors.InfeasibleError: model: infeasible after 0.10 s (HiGHS), without an answer
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
        verdict = "" if self.gap is None else f", gap {percent(self.gap, 2)}"
        if self.proven_optimal:
            verdict = ", proven optimal"
        lines = [
            f"{self.model}: {self.status} after {self.seconds:.2f} s ({self.solver})",
            f"  objective {_number(self.objective, 'none: there is no answer')}",
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

    def with_answer(self, read: Callable[[FloatArray], Any]) -> Self:
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


def _number(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:,.12g}"
