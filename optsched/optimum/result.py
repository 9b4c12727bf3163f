"""An interval around the optimum: the best schedule that was found, and a proven bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched._internal.views import draw
from optsched.errors import OptschedError
from optsched.optimum.gap import GapExplanation, explain_gap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.certificates.prices import Certificate
    from optsched.models.objectives import ScheduleObjective
    from optsched.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Hindsight:
    """The best schedule known and the best bound proven.

    Attributes
    ----------
    schedule
        The best feasible schedule found.
    objective
        What is minimised: "total-latency", "weighted-latency" or "makespan".
    cost
        Its cost, evaluated from its start steps.
    bound
        No feasible schedule costs less.
    proven_optimal
        Whether no feasible schedule costs less than this one (within the horizon, if one was
        given). Where weights or the penalty are fractions, up to 1e-9 of the cost.
    proof
        Who proved the bound: "closed-form", "lagrangian", "configuration", "branch and bound" or
        a solver.
    status
        "optimal", "time limit", "interrupted", "search ended", or what else ended the work.
    seconds
        Wall time of everything.
    horizon
        If given by the user, schedules that complete later were not considered.
    history
        (seconds, cost, bound) after each improvement; cost is None while there is no schedule.
    steps
        One line for each thing that was done, and what it gained.
    certificate
        The proof of the bound in exact integers, for "lagrangian" and "configuration".
    prices
        The best certificate of prices of memory, which explains the gap; None where there is none.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> print(solve(Instance([4] * 4, [1, 1, 6, 6], memory=13, name="four"), method="cp-sat"))
    four: total-latency 21, proven optimal (...)
      bound     21 by CP-SAT ...
    """

    schedule: Schedule
    objective: ScheduleObjective
    cost: float
    bound: float
    proven_optimal: bool
    proof: str
    status: str
    seconds: float
    horizon: int | None
    history: tuple[tuple[float, float | None, float], ...]
    steps: tuple[str, ...]
    certificate: Certificate | ConfigurationCertificate | None = None
    prices: Certificate | None = None

    @property
    def gap(self) -> float:
        """Share of the cost that the bound does not account for."""
        return max(0.0, (self.cost - self.bound) / self.cost)

    def explain(self) -> GapExplanation:
        """Take the gap to the best bound by prices of memory apart, by request and by step.

        Returns
        -------
        GapExplanation
            Of the part of the bound that prices prove, which something else may have exceeded.

        Raises
        ------
        OptschedError
            If there are no prices: for the makespan, and where there are too many steps.
        """
        if self.prices is None:
            raise OptschedError(
                "the gap cannot be explained without prices of memory, which there are not for the "
                "makespan, nor for so many steps; use longer steps"
            )
        return explain_gap(self.schedule, self.prices)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how the interval between bound and best schedule closed over time.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_history", self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data, ready for JSON; starts in the order of the instance."""
        return {
            "status": self.status,
            "objective": self.cost,
            "bound": self.bound,
            "gap": self.gap,
            "proven_optimal": self.proven_optimal,
            "seconds": self.seconds,
            "proof": self.proof,
            "horizon": self.horizon,
            "history": [list(entry) for entry in self.history],
            "steps": list(self.steps),
            "starts": self.schedule.starts.tolist(),
        }

    def __str__(self) -> str:
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        verdict = (
            f"proven optimal{within}" if self.proven_optimal else f"gap {self.gap:.2%}{within}"
        )
        return (
            f"{self.schedule.instance.name}: {self.objective} {self.cost:,.10g}, {verdict} "
            f"({self.status}, {self.seconds:.2f} s)\n"
            f"  bound     {self.bound:,.10g} by {self.proof}\n"
            + "\n".join(f"  {step}" for step in self.steps)
        )
