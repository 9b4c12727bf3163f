r"""Where the gap between a schedule and a bound comes from.

At the prices of a certificate it is the *order regret* of starts that are not the cheapest, and the
*waste* of memory that lies idle while it is worth something:

.. math::

    \sum_i (c_i - a_i) - L(\pi) =
    \sum_i \bigl[ \mathrm{cost}_i(p_i) - \min_k \mathrm{cost}_i(k) \bigr]
    + \sum_t \pi_t (M - m_t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.imports import data_frame
from optsched._internal.numbers import proven
from optsched._internal.views import draw
from optsched.bounds.ascent import charged_by, completions_within, regrets_of
from optsched.bounds.lagrangian import PricedStarts, held_by
from optsched.certificates.prices import Certificate, SawtoothCertificate
from optsched.errors import OptschedError
from optsched.problem.costs import schedule_cost
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched._internal.files import JSON
    from optsched.problem.costs import Lateness
    from optsched.problem.execution import Execution


@dataclass(frozen=True, eq=False)
class GapExplanation:
    """The gap of a schedule, taken apart.

    Attributes
    ----------
    bound
        What the certificate proves.
    gap
        What the schedule costs minus the certified bound, in `unit`: "steps", with what lateness
        costs "steps and penalties", or "late requests".
    regrets
        Contribution of each request's start to the gap, shape (n,).
    waste
        Contribution of each step's idle memory, entry t - 1 for step t.
    idle
        The same over all steps by why it lies idle: "growth" of running requests until the next
        completion, beyond what the certificate counts; "irregular" completions, at distances other
        than those it counts on; and "unused", where more could run.

    Examples
    --------
    >>> from optsched import Instance, bound, explain_gap, run
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64, name="example 1")
    >>> print(explain_gap(run(instance, "mc-sf"), bound(instance, "lagrangian").certificate))
    by prices, which prove 43.0, the gap of mc-sf is 21.0 steps
    order regret makes up 21.0 (100.0%), wasted memory 0.0 (0.0%)
    the start of request 1 (prompt 1, output 2) at step 1 carries 4.8% of it
    """

    schedule: Schedule
    bound: float
    gap: float
    regrets: FloatArray
    waste: FloatArray
    idle: dict[str, float]
    unit: str = "steps"

    @property
    def order_regret(self) -> float:
        """Part of the gap that comes from starts."""
        return float(self.regrets.sum())

    @property
    def wasted_memory(self) -> float:
        """Part of the gap that comes from memory lying idle."""
        return float(self.waste.sum())

    def rows(self, most: int | None = None) -> list[JSON]:
        """Return facts of each request, the one that carries most first, as plain data."""
        instance = self.schedule.instance
        columns = {
            "request": [instance.label(i) for i in range(len(instance))],
            "prompt": instance.prompts.tolist(),
            "output": instance.outputs.tolist(),
            "arrival": instance.arrivals.tolist(),
            "start": self.schedule.starts.tolist(),
            "regret": self.regrets.tolist(),
            "share": (self.regrets / self.gap if self.gap else 0.0 * self.regrets).tolist(),
        }
        order = np.argsort(-self.regrets, kind="stable")[:most].tolist()
        return [{name: values[at] for name, values in columns.items()} for at in order]

    def to_pandas(self) -> pd.DataFrame:
        """Return `rows` as a table, by request."""
        return data_frame(self.rows()).set_index("request")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how the gap adds up over the steps, by its two causes."""
        return draw("plot_gap", self, ax)

    def __str__(self) -> str:
        if self.gap <= 0:
            return f"{self.schedule.policy} has no gap: it is optimal"
        request = int(np.argmax(self.regrets))
        instance = self.schedule.instance
        bound, gap = proven(self.bound, decimals=1), proven(self.gap, up=True, decimals=1)
        lines = [
            f"by prices, which prove {bound}, the gap of {self.schedule.policy} is {gap} "
            f"{self.unit}",
            f"order regret makes up {self.order_regret:,.1f} ({self.order_regret / self.gap:.1%}), "
            f"wasted memory {self.wasted_memory:,.1f} ({self.wasted_memory / self.gap:.1%})",
        ]
        if self.wasted_memory > 0:
            shares = {kind: each / self.wasted_memory for kind, each in self.idle.items()}
            uneven = f"{shares['irregular']:.1%} is lost to completions at uneven distances, "
            lines.append(
                f"of the wasted memory {shares['growth']:.1%} is kept free to grow, "
                f"{uneven if shares['irregular'] > 0 else ''}{shares['unused']:.1%} is not used"
            )
        if self.regrets[request] > 0:
            lines.append(
                f"the start of request {instance.label(request)} (prompt "
                f"{instance.prompts[request]}, output {instance.outputs[request]}) at step "
                f"{self.schedule.starts[request]} carries {self.regrets[request] / self.gap:.1%} "
                "of it"
            )
        return "\n".join(lines)


@checked(OptschedError)
def explain_gap(
    schedule: Schedule | Execution, certificate: Certificate | SawtoothCertificate
) -> GapExplanation:
    """Explain the gap between a schedule and a certified bound; `GapExplanation` has an example.

    Parameters
    ----------
    schedule
        A feasible schedule, or a complete run in steps; several workers count as their pool.
    certificate
        A certificate of a bound on what schedules of its instance cost, by prices with or without
        charges.
    """
    given = schedule if isinstance(schedule, Schedule) else schedule.schedule
    schedule, charged = given.pooled(), isinstance(certificate, SawtoothCertificate)
    fingerprint = schedule.instance.fingerprint
    if charged and len(given.workers) > 1:
        fingerprint = given.workers.fingerprint(given.instance)
    if certificate.fingerprint != fingerprint:
        raise OptschedError("the certificate belongs to another instance than the schedule")
    if broken := [v for v in schedule.check() if v.kind != "deadline"]:
        raise OptschedError(f"the schedule is infeasible: {broken[0]}")
    unit = certificate.denominator
    if isinstance(certificate, SawtoothCertificate):
        regrets = regrets_of(given, certificate)
    else:
        priced = PricedStarts(schedule.instance, certificate, schedule.starts)
        regrets = priced.regrets(np.arange(len(schedule.instance)), schedule.starts)
    idle = _idle(given, certificate)
    lateness: Lateness = "forbidden"
    penalty = 0.0
    if isinstance(certificate, Certificate):
        lateness, penalty = certificate.lateness, certificate.penalty
    cost = float(schedule_cost(schedule, certificate.objective, lateness, penalty))
    bound, waste = float(certificate.value), np.sum(list(idle.values()), axis=0)
    kinds = {kind: float(each.sum()) for kind, each in idle.items()}
    measure = "steps" if lateness == "forbidden" else "steps and penalties"
    if certificate.objective == "late-requests":
        measure = "late requests"
    return GapExplanation(schedule, bound, cost - bound, regrets / unit, waste, kinds, measure)


def _idle(
    schedule: Schedule, certificate: Certificate | SawtoothCertificate
) -> dict[str, FloatArray]:
    """Return what idle memory contributes at each step, by the estimates of docs/bounds.md."""
    prices = np.array(certificate.prices) / certificate.denominator
    size, owed = 1, np.zeros(len(prices))
    if isinstance(certificate, SawtoothCertificate):
        size = certificate.size
        owed = size * np.array(certificate.charges) / certificate.denominator
    steps, largest = np.arange(1, len(prices) + 1), max(schedule.workers.memories)
    growth, irregular, unused = np.zeros((3, len(prices)))
    for worker, memory in enumerate(schedule.workers.memories):
        requests = schedule.requests_on(worker)
        starts, prompts = schedule.starts[requests], schedule.instance.prompts[requests]
        outputs = schedule.instance.outputs[requests]
        ends = np.sort(starts + outputs)
        following = np.append(ends, 0)[at := np.searchsorted(ends, steps)]
        ahead = np.where(at < len(ends), following - steps, 0)
        left = np.where(at < len(ends), np.maximum(owed - prices * ahead, 0.0), 0.0)
        running = np.searchsorted(np.sort(starts), steps) - at
        held = held_by(prompts, outputs, starts, len(prices))
        counted = charged_by(prompts, outputs, starts, size, len(prices)) * (owed.any() / size)
        growth += prices * ahead * (running - counted)
        irregular += counted * np.maximum(prices * ahead - owed, 0.0) - largest / size * left
        unused += prices * (memory - held - running * ahead) + (largest / size - counted) * left
    reach = np.divide(owed, prices, out=np.zeros(len(prices)), where=prices > 0)
    count, distance = completions_within(schedule.completions, reach)
    irregular += largest / size * (owed * count - prices * distance)
    return {"growth": growth, "irregular": irregular, "unused": unused}
