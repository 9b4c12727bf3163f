"""An interval around the optimum: the best schedule that was found, and a proven bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import number, percent, proven
from optsched._internal.views import draw, write
from optsched.certificates.sawtooth import SawtoothCertificate
from optsched.errors import OptschedError
from optsched.models.solution import Solution
from optsched.optimum.gap import GapExplanation, explain_gap

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.certificates.prices import Certificate
    from optsched.models.objectives import ScheduleObjective
    from optsched.problem.premises import World
    from optsched.problem.schedule import Schedule


@dataclass(frozen=True, eq=False, repr=False)
class Optimum(Solution):
    """The best schedule of an instance that is known, and the best bound proven.

    A `Solution` whose `answer` is a schedule, on one worker or several. `status` is "optimal",
    "time limit", "interrupted", "search ended", or what else ended the work; `objective` and
    `bound` are always there.

    Attributes
    ----------
    minimised
        What `objective` is: "total-latency", "weighted-latency" or "makespan".
    proof
        What proves the bound: "closed-form", "lagrangian", "sawtooth", "configuration", "branch and
        bound" or a solver.
    horizon
        If given by the user, schedules that complete later were not considered.
    history
        (seconds, objective, bound) after each improvement; None while there is no schedule.
    steps
        One line for each thing that was done, and what it gained.
    certificate
        The proof of the bound in exact integers, for "lagrangian", "sawtooth" and "configuration".
    price_certificate
        The best bound by prices of memory alone; None where there is none.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> print(solve(Instance([4] * 4, [1, 1, 6, 6], memory=13, name="four"), method="cp-sat"))
    four: total-latency 21, proven optimal (...)
      bound     21 by CP-SAT ...
    """

    objective: float = math.inf
    bound: float = -math.inf
    minimised: ScheduleObjective = "total-latency"
    proof: str = ""
    horizon: int | None = None
    history: tuple[tuple[float, float | None, float], ...] = ()
    steps: tuple[str, ...] = ()
    certificate: Certificate | SawtoothCertificate | ConfigurationCertificate | None = None
    price_certificate: Certificate | None = None

    @property
    def gap(self) -> float:
        """Share of the objective that the bound does not account for."""
        return super().gap or 0.0

    @property
    def premises(self) -> World:
        """Of which runs the bound holds."""
        due = self.schedule.instance.deadlines is not None
        return replace(
            self.schedule.facts,
            preemption="restarted",
            restricted=self.horizon is not None or due,
            objective=self.minimised,
        )

    @property
    def schedule(self) -> Schedule:
        """The best feasible schedule found: the answer."""
        schedule: Schedule = self.answer
        return schedule

    @property
    def prices(self) -> FloatArray | None:
        """Price of a token at steps 1, 2, ...; None where the bound knows no prices."""
        if self.price_certificate is None:
            return None
        certificate = self.price_certificate
        return np.array(certificate.prices, dtype=np.float64) / certificate.denominator

    def explain(self) -> GapExplanation:
        """Take the gap to the best bound by prices, and charges, of memory apart.

        There are no prices for the makespan, and where there are too many steps: an error.
        """
        if self.price_certificate is None:
            raise OptschedError(
                "the gap cannot be explained without prices of memory, which there are not for the "
                "makespan, nor for so many steps; use longer steps"
            )
        if isinstance(self.certificate, SawtoothCertificate):
            return explain_gap(self.schedule, self.certificate)
        return explain_gap(self.schedule, self.price_certificate)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how the interval between bound and best schedule closed over time."""
        return draw("plot_history", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the interval over time, and where the gap comes from, as one HTML file."""
        write("optimum_page", path, self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON; starts in the order of the instance."""
        names = ("status", "objective", "bound", "gap", "proven_optimal", "seconds", "proof")
        content = {name: getattr(self, name) for name in (*names, "horizon")} | {
            "history": [list(entry) for entry in self.history],
            "steps": list(self.steps),
            "starts": self.schedule.starts.tolist(),
        }
        if len(self.schedule.workers) > 1:
            content["workers"] = list(self.schedule.workers.memories)
            content["placement"] = self.schedule.placement.tolist()
        return content

    def __repr__(self) -> str:
        return (
            f"<Optimum of {self.model!r}: {self.minimised} {number(self.objective, 10)}, "
            f"bound {proven(self.bound, digits=10)}, {self.status}>"
        )

    def __str__(self) -> str:
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        verdict = "proven optimal" if self.proven_optimal else f"gap {percent(self.gap, 2)}"
        return (
            f"{self.model}: {self.minimised} {number(self.objective, 10)}, {verdict}{within} "
            f"({self.status}, {self.seconds:.2f} s)\n"
            f"  bound     {proven(self.bound, digits=10)} by {self.proof}\n"
            + "\n".join(f"  {step}" for step in self.steps)
        )
