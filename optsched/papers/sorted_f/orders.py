"""Example 1, and the rates of Theorems 1 and EC.1: what serving the wrong type first costs."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.panels import bars
from optsched.papers.target import Outcome, Target
from optsched.policies import PriorityPolicy
from optsched.report.series import plot_series
from optsched.simulate import run
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.study import Study

SOURCE = "Wang et al. (Sorted-F)"
PRINTED, BALANCED, LONG = "", "-balanced", "-long"
REQUESTS = {
    PRINTED: "printed numbers",
    BALANCED: "worst numbers",
    LONG: "long requests",
}
RATE = "printed rate"
#: What fails, the key that serves the second type first, and the printed ratio over sqrt(M).
THEOREMS = {"1": ("mc-sf", -1, 2 / 13), "ec-1": ("mc-sf-total", 1, 2 / 3)}


def _example_1(study: Study) -> Outcome:
    instance = family("sorted-f-example-1", seed=study.seed)
    printed = {"mc-sf": 64, "sorted-f": 45}
    latency = {name: run(instance, name).total_latency for name in printed}
    claims = [number(name, paper, latency[name], within=0) for name, paper in printed.items()]
    saved = 1 - latency["sorted-f"] / latency["mc-sf"]
    claims.append(number("saved by Sorted-F", 0.297, saved, within=0.002))  # printed to 0.1 %
    table = pd.DataFrame({"policy": list(latency), "total_latency": list(latency.values())})
    return Outcome(table, claims, {"requests": len(instance), "memory": instance.memory})


def ratios(
    theorem: str, requests: str, memory: int, policies: list[str], batches: int = 3
) -> dict[str, float]:
    """Divide the total latency of policies by that of serving the second type first."""
    options = {"batches": batches} if requests else {}
    instance = family(f"sorted-f-theorem-{theorem}{requests}", memory=memory, **options)
    sign = THEOREMS[theorem][1]
    second = PriorityPolicy("second", "", lambda given: sign * given.outputs)
    reference = run(instance, second).total_latency
    return {name: run(instance, name).total_latency / reference for name in policies}


def _rate(study: Study, theorem: str) -> Outcome:
    failing, _, factor = THEOREMS[theorem]
    decades = study.choose(range(2, 7), np.arange(2, 6.01, 0.25))
    memories = [round(10 ** (decade / 2)) ** 2 for decade in decades]
    plan = {
        # M + M^1.5 requests: a million at M = 10,000.
        PRINTED: ([failing], [m for m in memories if m <= study.choose(10_000, 20_000)], 3),
        LONG: ([failing], memories, 3),
        BALANCED: ([failing, "sorted-f", "area"], memories, 3),
    }
    exact = (["sorted-f-dp"], [100, 256, 576, 1024], 2)  # n k M bits per batch
    calls = [
        {"theorem": theorem, "requests": kind, "memory": m, "policies": names, "batches": batches}
        for kind, (names, sizes, batches) in [*plan.items(), (BALANCED, exact)]
        for m in sizes
    ]
    rows = [
        (call["memory"], REQUESTS[call["requests"]], policy, ratio)
        for call, found in zip(calls, study.map(ratios, calls), strict=True)
        for policy, ratio in found.items()
    ]
    rows += [(m, RATE, failing, factor * math.sqrt(m)) for m in memories]
    table = pd.DataFrame(rows, columns=["memory", "requests", "policy", "ratio"])

    def curve(kind: str, policy: str = failing) -> pd.Series[float]:
        chosen = (table.requests == REQUESTS[kind]) & (table.policy == policy)
        return table[chosen].set_index("memory").ratio

    balanced, long = curve(BALANCED), curve(LONG)
    claims = [
        number("printed numbers: exponent of M", 0.5, _exponent(curve(PRINTED)), within=0.1),
        shape("worst numbers: least growth to the next M", _growth(balanced), at_least=1),
        # The ratio is 1 more than a multiple of M^(1/4), which lowers the fit by some 0.02.
        shape("worst numbers: exponent of M", _exponent(balanced), at_least=0.22, at_most=0.28),
        shape("long requests: exponent of M", _exponent(long), at_least=0.47, at_most=0.53),
        shape(
            "long requests: least ratio over the printed rate",
            float((long / (factor * np.sqrt(long.index.to_numpy()))).min()),
            at_least=1,
        ),
        # The paper's constant for Sorted-F, which chooses its batches exactly, is 48.
        shape(
            "sorted-f-dp: largest ratio", curve(BALANCED, "sorted-f-dp").max(), at_most=48, paper=48
        ),
    ]
    if theorem == "1":
        largest = float(curve(BALANCED, "sorted-f").max())
        claims.append(shape("sorted-f: largest ratio", largest, at_most=48, paper=48))
    settings = {"memories": memories, "batches": 3, "batches of sorted-f-dp": 2}
    return Outcome(table, claims, settings)


def _exponent(curve: pd.Series[float]) -> float:
    """Fit the exponent of the memory in the ratio."""
    return float(np.polyfit(np.log(curve.index), np.log(curve), 1)[0])


def _growth(curve: pd.Series[float]) -> float:
    return float((curve.to_numpy()[1:] / curve.to_numpy()[:-1]).min())


def _draw_rate(table: pd.DataFrame, axes: Sequence[Axes], failing: str) -> None:
    panels = (
        (table[table.policy == failing], "requests", f"{failing} over the other order"),
        (table[table.requests == REQUESTS[BALANCED]], "policy", "policy over the other order"),
    )
    log: dict[str, Any] = {"xlabel": "memory (tokens)", "xscale": "log", "yscale": "log"}
    for ax, (rows, by, ylabel) in zip(axes, panels, strict=True):
        plot_series(rows, x="memory", y="ratio", by=by, ylabel=ylabel, ax=ax, **log)


def _rate_target(theorem: str, title: str, remark: str) -> Target:
    failing = THEOREMS[theorem][0]
    return Target(
        f"sorted-f-theorem-{theorem}",
        title,
        f"{SOURCE}, Theorem {theorem.upper().replace('-', '.')}",
        partial(_rate, theorem=theorem),
        partial(_draw_rate, failing=failing),
        (1, 2),
        remark,
    )


TARGETS = (
    Target(
        "sorted-f-example-1",
        "one long prompt holds up 21 short ones under MC-SF",
        f"{SOURCE}, Example 1",
        _example_1,
        bars(x="policy", y="total_latency", ylabel="total latency (steps)"),
    ),
    _rate_target(
        "1",
        "shortest output first is worse than the other order by a factor without bound",
        "The proof's ratio takes 3 M^1.25 for 3 Y^2 / M, which is Y = M^1.125, and Y = M^1.5 "
        "elsewhere. With Y = M^1.5 the ratio tends to 4/3. The conclusion holds for other numbers "
        "of requests, with M^(1/4), and with prompts that fill the memory, with M^(1/2).",
    ),
    _rate_target(
        "ec-1",
        "smallest prompt + output first is worse than the other order by a factor without bound",
        "The proof's ratio takes M^1.75 / 2 for Y^2 / (2 M^0.5), which is Y = M^1.125, and "
        "Y = M^1.5 elsewhere. With Y = M^1.5 the ratio tends to 3. Local swap fails together with "
        "mc-sf-total; exact selection does not.",
    ),
)
