"""Fluid Fig. 16-18: the memory of Nested WAIT against the number of segments."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.clock import get_clock
from optsched.errors import InfeasibleError
from optsched.models.fluid.equilibrium import equilibrium
from optsched.models.fluid.nested import NestedWaitThresholds
from optsched.problem.request_types import RequestTypes
from optsched.report.style import plot_stack
from optsched_papers.claims import Claim, beside, shape
from optsched_papers.target import Outcome, Panels, Study, grid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched._internal.arrays import IntArray
    from optsched.models.fluid.nested import NestedWaitPlan

PROMPT, LONGEST = 62, 500
BINS = (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)  # arrivals per 50 output tokens, Section 6.2
#: One iteration per unit of time: the paper's third term has T + 1 iterations in the time T.
CLOCK = "affine:1,0"
_PARTS = ("full_batch", "queues", "rare_queues")
_PANEL = ["delta", "iterations"]


def chats(rate: float) -> RequestTypes:
    """Return the 500 output lengths of Section 7.2, even within the bins of Section 6.2."""
    weights = np.repeat(BINS, LONGEST // len(BINS)).astype(np.float64)
    lengths = np.arange(1, LONGEST + 1)
    return RequestTypes(np.full(LONGEST, PROMPT), lengths, rate * weights / weights.sum())


def printed_batch(borders: IntArray, thresholds: IntArray) -> float:
    r"""Return the closed form below (14), :math:`\sum_i n_i (l + i \Delta L / 2) \Delta L`."""
    width = LONGEST / len(borders)
    middle = PROMPT + np.arange(1, len(borders) + 1) * width / 2
    return float((thresholds * middle * width).sum())


def least_plan(
    types: RequestTypes, segments: int, margins: Sequence[float], **chance: Any
) -> NestedWaitPlan:
    """Return the thresholds of least memory bound over some margins; segments are equally wide."""
    return _least(_strict(types, segments, margins), **chance)


def _strict(
    types: RequestTypes, segments: int, margins: Sequence[float]
) -> list[tuple[NestedWaitThresholds, IntArray]]:
    """Return the least thresholds at each margin that keeps some, with their program."""
    borders = np.rint(np.linspace(0, LONGEST, segments + 1)[1:]).astype(np.int64)
    program = NestedWaitThresholds(types, get_clock(CLOCK), borders)
    found = []
    for margin in margins:
        tried = replace(program, margin=margin)
        try:
            found.append((tried, tried.least_fixed_point()))
        except InfeasibleError:  # the widest margins may keep nothing
            continue
    return found


@cache
def _of_chats(
    rate: float, segments: int, margins: tuple[float, ...]
) -> list[tuple[NestedWaitThresholds, IntArray]]:
    """Return the same for chats; Fig. 18 has those of Fig. 16."""
    return _strict(chats(rate), segments, margins)


def _least(strict: list[tuple[NestedWaitThresholds, IntArray]], **chance: Any) -> NestedWaitPlan:
    """Return the plan of least memory bound; one without a bound is left out."""
    plans = []
    for program, thresholds in strict:
        try:
            plans.append(program.plan(thresholds, **chance))
        except InfeasibleError:
            continue
    return min(plans, key=lambda plan: plan.memory_bound)


def _memory(
    rate: float, segments: int, margins: list[float], panels: list[list[float]]
) -> list[dict[str, Any]]:
    """Plan for each panel; what differs between them does not change the thresholds."""
    strict = _of_chats(rate, segments, tuple(margins))
    rows = []
    for delta, iterations in panels:
        plan = _least(strict, delta=delta, iterations=int(iterations))
        row = {
            "delta": delta,
            "iterations": int(iterations),
            "full_batch": plan.memory,
            "queues": plan.queue_memory,
            "rare_queues": plan.rare_memory,
            "margin": plan.program.margin,
            "first_threshold": int(plan.thresholds[0]),
            "printed_batch": printed_batch(plan.program.last_stages, plan.thresholds),
        }
        rows.append(row)
    return rows


def _compute(study: Study, rate: float, panels: list[list[float]]) -> Outcome:
    """Plan at a rate, for panels with a delta and a T each."""
    segments = study.choose(
        (1, 2, 5, 10, 20, 50, 100, 500),
        (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 100, 250, 500),
    )
    margins = study.choose([0.002, 0.01, 0.03, 0.1, 0.2], np.geomspace(0.002, 0.4, 30).tolist())
    calls = grid(rate=[rate], segments=segments, margins=[margins], panels=[panels])
    table = study.table(_memory, calls).drop(columns=["rate", "margins", "panels"])
    # Panel by panel, in the order of the figure.
    table = pd.concat([rows for _, rows in _panels(table)], ignore_index=True)
    table = table[[*_PANEL, *table.columns.difference(_PANEL, sort=False)]]
    claims = [claim for panel, rows in _panels(table) for claim in _claims(rows, *panel)]
    settings: dict[str, Any] = {"prompt": PROMPT}
    settings |= {"outputs": f"1 to {LONGEST}, even within bins of 50 with arrivals {BINS}"}
    settings |= {"rate": rate, "clock": CLOCK, "margins": margins}
    settings |= {"fluid_memory": equilibrium(chats(rate), CLOCK).memory}
    settings |= {"load_on_llama-2-7b-a100": equilibrium(chats(rate), "llama-2-7b-a100").load}
    return Outcome(table, claims, settings)


def _panels(table: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    return table.groupby(_PANEL, sort=False)


def _claims(rows: pd.DataFrame, delta: float, iterations: int) -> list[Claim]:
    segments, full = rows["segments"].to_numpy(), rows["full_batch"].to_numpy()
    total = rows[list(_PARTS)].sum(axis=1).to_numpy()
    over = total / total.min()
    ten = int(np.flatnonzero(segments == 10)[0])
    others = rows[list(_PARTS[1:])].max(axis=1).to_numpy()
    # U: both ends are a tenth above the least at the least, and it is at a moderate number, which
    # we read as 3 to 50. "Sufficient": a tenth above the least. "Primarily driven": half of the sum
    # where segments are few, and the largest term everywhere. It cannot be half of the sum with one
    # stage per segment: the second term, with (l + l'_{j-1}) n_j, then has the same summands.
    found: dict[str, tuple[float, dict[str, float]]] = {
        "segments of least memory": (segments[total.argmin()], {"at_least": 3, "at_most": 50}),
        "memory of 1 segment over the least": (over[0], {"at_least": 1.1}),
        f"memory of {segments[-1]} segments over the least": (over[-1], {"at_least": 1.1}),
        "memory of 10 segments over the least": (over[ten], {"at_most": 1.1}),
        "first term's share, 10 segments": (full[ten] / total[ten], {"at_least": 0.5}),
        "first term over the largest other, least over segments": (
            (full[1:] / others[1:]).min(),  # with one segment there are no others
            {"at_least": 1.0},
        ),
    }
    where = f"delta = {delta:g}, T = {iterations}"
    claims = [shape(f"{label}, {where}", ours, **limits) for label, (ours, limits) in found.items()]
    label = f"first term's share, least over segments, {where}"
    return claims + beside(shape(label, (full / total).min(), at_least=0.5))


def _draw(table: pd.DataFrame, axes: Panels) -> None:
    for ax, (panel, rows) in zip(axes, _panels(table), strict=True):
        labels: dict[str, Any] = {
            "xlabel": "segments  ($\\delta$ = {:g}, T = {:,})".format(*panel),
            "ylabel": "million tokens that suffice",
        }
        in_millions = rows.assign(**{part: rows[part] / 1e6 for part in _PARTS})
        plot_stack(in_millions, x="segments", parts=_PARTS, ax=ax, **labels)
        ax.tick_params(axis="x", labelsize=7 if len(rows) > 10 else 9)
