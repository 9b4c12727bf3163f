"""What is known of the number of workers: at least, at most, and what each plan needs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched._internal.numbers import proven
from optsched._internal.views import draw, html, text, write
from optsched.clock.work import load_on_clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched.certificates.capacity import CapacityCertificate
    from optsched.certificates.fleet import FleetCertificate
    from optsched.instance import Instance
    from optsched.sizing.lower import AtLeast, Bounded
    from optsched.sizing.slo import Slo
    from optsched.sizing.upper import Plan


@dataclass(frozen=True, eq=False, repr=False)
class Capacity:
    """How many workers the requests need for the objectives.

    Attributes
    ----------
    instance
        The requests; of several instances that which the proof is about.
    proof
        What is proven: `workers`, of which no scheduler needs fewer, the certificate, and `why`;
        None where no number of workers meets the objectives, or no bound is known on the clock.
    plans
        The fewest workers of each policy with each router, in the order asked for.
    impossible
        Requests that miss a limit even alone on an idle worker.
    possible
        Whether any number of workers can meet the objectives.
    world
        The requests, batches and engines that the proof is about.
    loads
        The same where the requests arrive so many times as fast.
    cost
        Cost of a worker per hour, where it is known.
    kinds
        The same for each other kind of workers alone.
    fleet
        What proves the least cost per hour of any fleet of all kinds.
    mixes
        Fleets of several kinds that cost less than those of one, or that was asked for.

    Examples
    --------
    >>> from optsched import Instance, capacity
    >>> found = capacity(Instance([5] * 6, [4] * 6, memory=18), "latency:max<=5", ["fcfs"])
    >>> found.at_least, found.at_most, found.plans[0].router
    (2, 3, 'least-tokens')
    """

    instance: Instance
    slos: tuple[Slo, ...]
    proof: AtLeast | None
    plans: tuple[Plan, ...]
    impossible: tuple[int, ...]
    possible: bool
    world: Bounded
    seconds: float
    cost: float | None = None
    interrupted: bool = False
    loads: dict[float, Capacity] = field(default_factory=dict)
    kinds: tuple[Capacity, ...] = ()
    fleet: FleetCertificate | None = None
    mixes: tuple[Plan, ...] = ()

    @property
    def unit(self) -> str:
        """Unit of all times: "steps" or "s"."""
        return self.world.clock.unit if self._is_linear else "s"

    @property
    def _is_linear(self) -> bool:
        """Whether the clock has coefficients; of a function nothing is known."""
        return self.proof is not None or not self.possible

    @property
    def at_least(self) -> int | None:
        """Workers that anyone needs; None where no number is enough."""
        if not self.possible:
            return None
        return 1 if self.proof is None else self.proof.workers

    @property
    def at_most(self) -> int | None:
        """The fewest workers that any plan needs; None without one."""
        return min((plan.workers for plan in self.plans if plan.workers), default=None)

    @property
    def certificate(self) -> CapacityCertificate | None:
        """What proves `at_least`; None where nothing needs to be proven."""
        return None if self.proof is None else self.proof.certificate

    @property
    def estimate(self) -> float | None:
        """Workers whose work keeps up with the mean rate of arrivals: an estimate, no bound.

        That is the stability condition of Nie, Si and Zhou (arXiv 2605.04595) with the time of a
        batch that fills the memory. None where all arrive at once, and on functions as clocks.
        """
        load = math.inf
        if not self.world.timed:
            load = self.instance.load
        elif self._is_linear and (work := load_on_clock(self.instance, self.world.clock)):
            load = work.load
        return load if math.isfinite(load) else None

    @property
    def answer(self) -> list[str]:
        """The answer in sentences."""
        asked = " and ".join(map(str, self.slos))
        found = []
        if self.impossible:
            labels = [self.instance.label(request) for request in self.impossible[:5]]
            more = f" and {len(self.impossible) - 5:,} more" if len(self.impossible) > 5 else ""
            are = "is" if len(self.impossible) == 1 else "are"
            found.append(
                f"{len(self.impossible):,} request{'s' * (are == 'are')} {are} late even alone on "
                f"an idle worker: {', '.join(labels)}{more}."
            )
        if not self.possible:
            return [f"No number of workers meets {asked}.", *found, *self._costs]
        if self.proof is None:
            found.append("No bound is known on a clock that is a function.")
        elif self.proof.certificate is None:
            found.append("Nothing proves that more than one worker is needed.")
        else:
            of_kind = f" with {self.instance.memory:,} tokens" * bool(self.kinds)
            found.append(
                f"{self.at_least:,} workers{of_kind} are needed by anyone: {self.proof.why}."
            )
        if self.estimate is not None:
            found.append(
                f"Estimate, no bound: on average the work of {self.estimate:,.2f} workers arrives."
            )
        enough = [plan for plan in self.plans if plan.workers and plan.workers == self.at_most]
        if enough:
            count = enough[0].workers
            found.append(
                f"{enough[0].router} with {enough[0].policy} meets {asked} with {count:,} "
                f"worker{'s' * (count != 1)}."
            )
        for plan in self.plans:
            about = f"{plan.router} with {plan.policy}"
            if plan.workers is None and plan.attempts:
                most = max(plan.attempts)
                found.append(f"{about} does not meet it even with {most:,} workers.")
            elif short := ", ".join(map(str, plan.relapses)):
                found.append(f"{about} falls short again with {short} workers.")
        for load, each in self.loads.items():
            most = f", at most {each.at_most:,}" if each.at_most else ""
            found.append(f"Arriving {load:g} times as fast: at least {each.at_least:,}{most}.")
        return found + self._costs

    @property
    def price(self) -> tuple[float, float]:
        """Cost per hour with this kind of workers alone: proven to be needed, and enough."""
        each = self.cost or 0.0
        least = math.inf if self.at_least is None else round(each * self.at_least, 9)
        return least, math.inf if self.at_most is None else round(each * self.at_most, 9)

    def named(self, fleet: Sequence[int]) -> str:
        """Return a fleet in words, by the memories of its kinds."""
        kinds = (self, *self.kinds)
        parts = (f"{n:,} x {k.instance.memory:,}" for n, k in zip(fleet, kinds, strict=True) if n)
        return " + ".join(parts)

    @property
    def _costs(self) -> list[str]:
        """What kinds of workers cost, in sentences."""
        found, every = [], (self, *self.kinds) if self.kinds else ()
        for each in every:
            low, high = each.price
            costs = "no number is enough" if low == math.inf else f"at least {proven(low)}"
            costs += f", at most {proven(high, up=True)}" * (high < math.inf)
            on = f" on {each.world.clock.name}" * each.world.timed
            found.append(
                f"Only workers with {each.instance.memory:,} tokens{on}: {costs} per hour."
            )
        for each in every:
            if each.price[1] < min(other.price[0] for other in every if other is not each):
                found.append(
                    f"Of one kind alone, {each.instance.memory:,} tokens are proven cheapest."
                )
        for mix in self.mixes:
            verb = "meet" if mix.met else "do not meet"
            found.append(
                f"{self.named(mix.workers)} {verb} it under {mix.router} with {mix.policy} for "
                f"{proven(round(mix.cost or 0.0, 9), up=True)} per hour."
            )
        if self.fleet is not None:
            least = proven(round(float(self.fleet.cost), 9))
            found.append(f"No fleet of all kinds costs less than {least} per hour.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        proof = self.certificate
        content: dict[str, Any] = {
            "answer": self.answer,
            "objectives": [str(slo) for slo in self.slos],
            "unit": self.unit,
            "requests": len(self.instance),
            "at_least": self.at_least,
            "why": None if self.proof is None else self.proof.why,
            "premises": None if proof is None else proof.premises.to_dict(),
            "certificate": None if proof is None else json.loads(proof.to_json()),
            "at_most": self.at_most,
            "estimate": self.estimate,
            "plans": [plan.to_dict() for plan in self.plans],
            "possible": self.possible,
            "impossible": list(self.impossible),
            "seconds": self.seconds,
        }
        if self.kinds:
            fleet = self.fleet
            content["kinds"] = [
                {"memory": each.instance.memory, "cost": each.cost} | each.to_dict()
                for each in self.kinds
            ]
            content["mixes"] = [mix.to_dict() for mix in self.mixes]
            content["fleet"] = None if fleet is None else json.loads(fleet.to_json())
        if self.loads:
            content["loads"] = [
                {
                    "load": load,
                    "at_least": each.at_least,
                    "at_most": each.at_most,
                    "plans": [plan.to_dict() for plan in each.plans],
                }
                for load, each in self.loads.items()
            ]
        return content

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot what the plans attain with each number of workers, and what is proven impossible."""
        return draw("plot_attainment", self, ax)

    def plot_growth(self, ax: Axes | None = None) -> Axes:
        """Plot the workers needed against the load, for a result with several loads."""
        return draw("plot_growth", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the answer, the table and the plots as one HTML file that needs no network."""
        write("capacity_page", path, self)

    def _repr_html_(self) -> str:
        return html("capacity_table", self)

    def __repr__(self) -> str:
        most = "" if self.at_most is None else f", at most {self.at_most}"
        return f"<Capacity: at least {self.at_least}{most} workers>"

    def __str__(self) -> str:
        about = "\n".join(
            line for line in str(self.instance).splitlines() if not line.startswith("  load")
        )
        any_plan = self.mixes or any(each.plans for each in (self, *self.kinds))
        table = text("capacity_table", self).strip("\n") + "\n\n" if any_plan else ""
        return f"{about}\n\n{table}" + "\n".join(self.answer)
