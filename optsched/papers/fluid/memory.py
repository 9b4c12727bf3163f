"""Fluid Fig. 16-18: the memory of Nested WAIT against the number of segments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.clock import get_clock
from optsched.errors import InfeasibleError
from optsched.models.fluid.equilibrium import equilibrium
from optsched.models.fluid.nested import NestedWaitThresholds
from optsched.papers.claims import Claim, shape
from optsched.papers.target import Outcome, Target
from optsched.report.series import plot_stack
from optsched.workloads.request_types import RequestTypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import IntArray
    from optsched.models.fluid.nested import NestedWaitPlan
    from optsched.papers.study import Study

PROMPT, LONGEST = 62, 500
BINS = (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)  # arrivals per 50 output tokens, Section 6.2
#: One iteration per unit of time: the paper's third term has T + 1 iterations in the time T.
CLOCK = "affine:1,0"
PARTS = ("full_batch", "queues", "rare_queues")


def chats(rate: float) -> RequestTypes:
    """Return the 500 output lengths of Section 7.2, even within the bins of Section 6.2."""
    weights = np.repeat(BINS, LONGEST // len(BINS)).astype(np.float64)
    lengths = np.arange(1, LONGEST + 1)
    return RequestTypes(np.full(LONGEST, PROMPT), lengths, rate * weights / weights.sum())


def equal_borders(segments: int) -> IntArray:
    """Return the last stage of each of so many segments of about equal width."""
    return np.rint(np.linspace(0, LONGEST, segments + 1)[1:]).astype(np.int64)


def printed_batch(borders: IntArray, thresholds: IntArray) -> float:
    r"""Return the closed form below (14), :math:`\sum_i n_i (l + i \Delta L / 2) \Delta L`."""
    width = LONGEST / len(borders)
    middle = PROMPT + np.arange(1, len(borders) + 1) * width / 2
    return float((thresholds * middle * width).sum())


def least_plan(
    types: RequestTypes, segments: int, margins: Sequence[float], **chance: Any
) -> NestedWaitPlan:
    """Return the thresholds of least memory bound over some margins."""
    program = NestedWaitThresholds(types, get_clock(CLOCK), equal_borders(segments))
    plans = []
    for margin in margins:
        tried = replace(program, margin=margin)
        try:
            plans.append(tried.plan(tried.least_fixed_point(), **chance))
        except InfeasibleError:  # the widest margins may keep nothing
            continue
    return min(plans, key=lambda plan: plan.memory_bound)


def _memory(
    rate: float, delta: float, iterations: int, segments: int, margins: list[float]
) -> dict[str, Any]:
    plan = least_plan(chats(rate), segments, margins, delta=delta, iterations=iterations)
    return {
        "segments": segments,
        "full_batch": plan.memory,
        "queues": plan.queue_memory,
        "rare_queues": plan.rare_memory,
        "margin": plan.program.margin,
        "first_threshold": int(plan.thresholds[0]),
        "printed_batch": printed_batch(plan.program.last_stages, plan.thresholds),
    }


def _compute(study: Study) -> Outcome:
    rate, panels = _PANELS[study.target]
    numbers = study.choose(
        (1, 2, 5, 10, 20, 50, 100, 500),
        (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100, 250, 500),
    )
    margins = study.choose((0.002, 0.01, 0.03, 0.1, 0.2), np.geomspace(0.002, 0.4, 30).tolist())
    cells = [
        {
            "rate": rate,
            "delta": delta,
            "iterations": iterations,
            "segments": segments,
            "margins": list(margins),
        }
        for delta, iterations in panels
        for segments in numbers
    ]
    table = study.table(_memory, cells).drop(columns=["rate", "margins"])
    claims = [claim for panel in panels for claim in _claims(_of(table, panel), panel)]
    settings = {
        "prompt": PROMPT,
        "outputs": f"1 to {LONGEST}, even within bins of 50 with arrivals {BINS}",
        "rate": rate,
        "clock": CLOCK,
        "margins": list(margins),
        "fluid_memory": equilibrium(chats(rate), CLOCK).memory,
        "load_on_llama-2-7b-a100": equilibrium(chats(rate), "llama-2-7b-a100").load,
    }
    return Outcome(table, claims, settings)


def _of(table: pd.DataFrame, panel: tuple[float, int]) -> pd.DataFrame:
    delta, iterations = panel
    return table[(table["delta"] == delta) & (table["iterations"] == iterations)]


def _claims(rows: pd.DataFrame, panel: tuple[float, int]) -> list[Claim]:
    total = rows[list(PARTS)].sum(axis=1).to_numpy()
    segments = rows["segments"].to_numpy()
    least = int(np.argmin(total))
    delta, iterations = panel
    where = f"delta = {delta:g}, T = {iterations}"
    ten = int(np.flatnonzero(segments == 10)[0])
    full = rows["full_batch"].to_numpy()
    # U: both ends are a tenth above the least at the least, and it is at a moderate number, which
    # we read as 3 to 50. "Primarily driven": half of it. "Sufficient": a tenth above the least.
    return [
        shape(f"segments of least memory, {where}", int(segments[least]), at_least=3, at_most=50),
        shape(
            f"memory of 1 segment over the least, {where}", total[0] / total[least], at_least=1.1
        ),
        shape(
            f"memory of {segments[-1]} segments over the least, {where}",
            total[-1] / total[least],
            at_least=1.1,
        ),
        shape(
            f"memory of 10 segments over the least, {where}", total[ten] / total[least], at_most=1.1
        ),
        shape(f"first term's share, 10 segments, {where}", full[ten] / total[ten], at_least=0.5),
        shape(
            f"first term's share, least over segments, {where}",
            float((full / total).min()),
            at_least=0.5,
        ),
    ]


def _draw(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    panels = list(dict.fromkeys(zip(table["delta"], table["iterations"], strict=True)))
    for panel, ax in zip(panels, axes, strict=True):
        delta, iterations = panel
        rows = _of(table, panel)
        in_millions = rows.assign(**{part: rows[part] / 1e6 for part in PARTS})
        plot_stack(
            in_millions,
            x="segments",
            parts=PARTS,
            xlabel=f"segments  ($\\delta$ = {delta:g}, T = {iterations:,})",
            ylabel="million tokens that suffice",
            ax=ax,
        )
        ax.tick_params(axis="x", labelsize=7 if len(rows) > 10 else 9)


_PANELS = {
    "fluid-fig-16": (50.0, ((0.1, 200), (1e-5, 200))),
    "fluid-fig-17": (500.0, ((0.1, 200), (1e-5, 200))),
    "fluid-fig-18": (50.0, ((1e-3, 20), (1e-3, 2000))),
}
_REMARK = (
    "Read as one iteration per unit of time, which the paper's ln((L - 1)(T + 1) / delta) implies: "
    "so the first threshold is one above the total rate. 500 per second are far beyond what one "
    "A100 can serve. The first term is the sum over stages, not the closed form below (14); the "
    "thresholds, which are not stated, are those of least memory. Lengths follow the bins of "
    "Section 6.2. The first term makes up most of the memory around the least, not where segments "
    "are many."
)
_TITLES = {
    "fluid-fig-16": "memory against segments at 50 per second, by confidence",
    "fluid-fig-17": "memory against segments at 500 per second, by confidence",
    "fluid-fig-18": "memory against segments at 50 per second, by horizon",
}

TARGETS = tuple(
    Target(
        name,
        title,
        f"Ao et al. (Fluid), Fig. {name[-2:]}",
        _compute,
        _draw,
        panels=(1, 2),
        remark=_REMARK,
    )
    for name, title in _TITLES.items()
)
