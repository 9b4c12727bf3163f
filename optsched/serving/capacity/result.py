"""What is known of the number of workers: at least, at most, and what each plan needs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched._internal.numbers import number
from optsched._internal.views import draw, html, text, write
from optsched.problem.work import load_on_clock

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched.certificates.capacity import CapacityCertificate
    from optsched.problem.instance import Instance
    from optsched.serving.capacity.lower import AtLeast, Bounded
    from optsched.serving.capacity.slo import Slo
    from optsched.serving.capacity.upper import Plan


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

    Examples
    --------
    >>> from optsched import Instance, capacity
    >>> found = capacity(Instance([5] * 6, [4] * 6, memory=18), "latency:max<=5steps", ["fcfs"])
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
        late = []
        if self.impossible:
            labels = [self.instance.label(request) for request in self.impossible[:5]]
            more = f" and {len(self.impossible) - 5:,} more" if len(self.impossible) > 5 else ""
            are = "is" if len(self.impossible) == 1 else "are"
            late.append(
                f"{len(self.impossible):,} request{'s' * (are == 'are')} {are} late even alone on "
                f"an idle worker: {', '.join(labels)}{more}."
            )
        short = [self._short(plan) for plan in self.plans if plan.workers is None]
        if not self.possible:
            return [f"No number of workers meets {asked}.", *late, *short]
        found, (blind, told) = [], self.best
        if blind is not None:
            found.append(
                f"Of the plans that can be deployed, {blind} needs the fewest workers for {asked}: "
                f"{blind.workers:,}{self._costs(blind.workers)}."
            )
        elif told is not None:
            found.append(f"Every plan that meets {asked} is told all outputs, as no server is.")
        if told is not None:
            costs = self._costs(told.workers)
            found.append(f"Told all outputs, {told} needs {told.workers:,}{costs}.")
        if self.proof is None:
            found.append("No bound is known on a clock that is a function.")
        elif self.proof.workers == 1:
            found.append("Nothing proves that more than one worker is needed.")
        else:
            costs = self._costs(self.at_least)
            found.append(f"Any scheduler needs {self.at_least:,}{costs}: {self.proof.why}.")
        if self.estimate is not None:
            found.append(
                f"Estimate, no bound: on average the work of {self.estimate:,.2f} workers arrives."
            )
        found += late
        for plan in self.plans:
            if plan.workers and (relapses := ", ".join(map(str, plan.relapses))):
                found.append(f"{plan} falls short again with {relapses} workers.")
        for load, each in self.loads.items():
            most = [f"at least {each.at_least:,}"]
            for best, knowing in zip(each.best, ("", " told all outputs"), strict=True):
                if best is not None and (entry := f"at most {best.workers:,}") not in most:
                    most.append(entry + knowing)
            found.append(f"Arriving {load:g} times as fast: {', '.join(most)}.")
        return found + short

    def _costs(self, workers: int | None) -> str:
        """Say what workers cost, where it is known."""
        return f" ({number((self.cost or 0.0) * (workers or 0))} per hour)" * bool(self.cost)

    @property
    def best(self) -> tuple[Plan | None, Plan | None]:
        """The plan with the fewest workers that is not told the outputs, and that which is."""
        met = sorted((plan for plan in self.plans if plan.workers), key=lambda p: p.workers or 0)
        blind = next((plan for plan in met if plan.knows != "outputs"), None)
        return blind, next((plan for plan in met if plan.knows == "outputs"), None)

    def _short(self, plan: Plan) -> str:
        """Say how far a plan comes that has no number of workers."""
        about = str(plan)
        if plan.attempts:
            tried = [*plan.attempts]
            span = f"{tried[0]:,}" + f" to {tried[-1]:,}" * (len(tried) > 1)
            about += f" does not meet it with {span} worker{'s' * (tried[-1] > 1)}"
        else:
            about += " does not meet it even where each request is alone on an idle worker"
        if plan.reached is not None:
            about += f": it attains {plan.reached.attained:.2%}"
        least = " and ".join(map(str, plan.least(self.slos)))
        return f"{about}; the least limit that it meets so is {least}." if least else f"{about}."

    @property
    def price(self) -> tuple[float, float]:
        """Cost per hour: of the workers that are proven to be needed, and of those that suffice.

        Those that suffice may be of a plan that is told the outputs.
        """
        each = self.cost or 0.0
        least = math.inf if self.at_least is None else round(each * self.at_least, 9)
        return least, math.inf if self.at_most is None else round(each * self.at_most, 9)

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
            "plans": [plan.to_dict(self.slos) for plan in self.plans],
            "possible": self.possible,
            "impossible": list(self.impossible),
            "seconds": self.seconds,
        }
        if self.loads:
            content["loads"] = [
                {
                    "load": load,
                    "at_least": each.at_least,
                    "at_most": each.at_most,
                    "plans": [plan.to_dict(self.slos) for plan in each.plans],
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
        table = text("capacity_table", self).strip("\n") + "\n\n" if self.plans else ""
        return f"{about}\n\n{table}" + "\n".join(self.answer)
