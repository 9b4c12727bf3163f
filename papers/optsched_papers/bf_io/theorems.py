"""BF-IO Theorems 1 to 3: imbalance of FCFS and BF-IO against workers and slots."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.problem.instance import Instance
from optsched.report.style import LIMIT, REFERENCE, legend_above, plot_series
from optsched.simulate import run
from optsched.simulate.cluster import BalanceRouting, Cluster
from optsched_papers.bf_io.imbalance import (
    fcfs_imbalance,
    improvement_bound,
    slot_deviation,
    slots_required,
)
from optsched_papers.claims import Claim, Estimate, beside, estimate, shape
from optsched_papers.target import Outcome, Panels, Study, grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

_LARGEST = 1000  # prompts are uniform on 1 to this
_DEVIATION = math.sqrt((_LARGEST**2 - 1) / 12)
_OUTPUT = 40  # mean of geometric outputs
_WARM_UP, _STEPS = 4 * _OUTPUT, 8 * _OUTPUT
_ROUNDS, _ROUND = 8, 2  # rounds of equal outputs, and their length, which changes nothing
#: Drift by age: constant, growth, fast growth, and a cache that keeps the last 40 tokens only.
_DRIFTS: dict[str, int | list[int]] = {"0": 0, "1": 1, "2": 2, "1, then 0": [1] * _OUTPUT + [0]}

_MAX_REQUESTS = 8192  # at once; twice as many take four times as long
_SLACK = 0.05  # of fitted exponents: what seeds change


def _run_both(workers: int, slots: int, drift: str, seed: int, rounds: bool) -> dict[str, float]:
    """Run FCFS and BF-IO on geometric outputs, or on equal ones in rounds that end together."""
    rng = np.random.default_rng(seed)
    if rounds:
        warm_up, steps, reveal = 0, _ROUNDS * _ROUND, workers * slots * 5 // 4
        outputs = np.full(workers * slots * (_ROUNDS + 2), _ROUND)
    else:  # overloaded by as little as possible
        per_step = workers * slots / _OUTPUT
        warm_up, steps = _WARM_UP, _WARM_UP + _STEPS
        reveal = int(per_step + 6 * math.sqrt(per_step) + 10)
        n = int(1.2 * (workers * slots + per_step * steps)) + 500
        outputs = rng.geometric(1 / _OUTPUT, n)
    trace = Instance(rng.integers(1, _LARGEST, len(outputs), endpoint=True), outputs, 10**9)
    options: dict[str, Any] = {"steps": steps, "drift": _DRIFTS[drift], "reveal": reveal}
    options |= {"cluster": Cluster(workers, slots), "record_loads": True}
    fcfs, bf_io = (
        run(trace, policy, **options) for policy in ("fcfs", BalanceRouting(lookahead=0))
    )
    assert bf_io.loads is not None
    gap = (bf_io.loads.max(axis=1) - bf_io.loads.min(axis=1))[warm_up:]
    return {
        "fcfs": float(fcfs.imbalance[warm_up:].mean()),
        "bf_io": float(bf_io.imbalance[warm_up:].mean()),
        "gap": float(gap.mean()),
        "least_waiting": float(min(each.waiting[warm_up:].min() for each in (fcfs, bf_io))),
    }


def _theorem(study: Study, *, drifts: Sequence[str], rounds: bool, of_prompts: bool) -> Outcome:
    """Measure on a grid of workers and slots what a theorem and its proof state."""
    workers = study.choose((4, 16, 64), (4, 8, 16, 32, 64, 128))
    slots, seeds = study.choose((16, 64), (16, 32, 64, 128)), study.seeds(3, 6, apart=1000)
    calls = grid(drift=drifts, workers=workers, slots=slots, seed=seeds, rounds=[rounds])
    calls = [call for call in calls if call["workers"] * call["slots"] <= _MAX_REQUESTS]
    table = study.table(_run_both, calls).drop(columns="rounds")
    completion = 1.0 if rounds else 1 / _OUTPUT
    deviations = {drift: slot_deviation(_DEVIATION, completion, _DRIFTS[drift]) for drift in drifts}
    cells = list(table[["drift", "workers", "slots"]].itertuples(index=False))
    table["normal"] = [fcfs_imbalance(g, b, deviations[drift]) for drift, g, b in cells]
    # Balanced to the token: as if one were left, or the ratio had no end.
    table["ratio"] = table["fcfs"] / table["bf_io"].clip(lower=1.0)
    proven = dict.fromkeys(drifts, _DEVIATION) if of_prompts else deviations
    table["bound"] = [
        improvement_bound(g, b, proven[drift], _LARGEST, completion) for drift, g, b in cells
    ]
    claims = [
        claim
        for drift in drifts
        for claim in _claims(table[table["drift"] == drift], rounds, drift if drifts[1:] else "")
    ]
    settings: dict[str, Any] = {"prompts": f"uniform, 1 to {_LARGEST}"}
    settings |= {"outputs": _ROUND if rounds else f"geometric, mean {_OUTPUT}"}
    settings |= {"workers": list(workers), "slots": list(slots), "traces": len(seeds)}
    settings |= {"steps": _ROUNDS * _ROUND if rounds else _STEPS}
    if not rounds:
        asked = {str(g): slots_required(g, _LARGEST, completion) for g in workers}
        settings["slots_that_the_proof_asks_for"] = asked
    return Outcome(table, claims, settings)


def _claims(rows: pd.DataFrame, rounds: bool, drift: str) -> list[Claim]:
    """State the theorem, the two halves of its proof, and the growth that it is quoted for."""
    where = f", drift {drift.replace(',', '')}" if drift else ""
    rows = rows.assign(
        per_worker=rows["fcfs"] / rows["workers"],
        over_normal=rows["fcfs"] / rows["normal"],
        over_bound=rows["ratio"] / rows["bound"],
        # (C1) for equal outputs; (C9) and (C22) for geometric ones.
        share=rows["bf_io"] / (rows["workers"] - 1) / _LARGEST
        if rounds
        else rows["gap"] / (_LARGEST * _OUTPUT),
    )
    kept = "BF-IO imbalance over (G - 1) s_max" if rounds else "BF-IO mean gap over s_max / p"
    of_slots, of_workers = _exponents(rows, "ratio")
    half = {"paper": 0.5, "at_least": 0.5 - _SLACK}
    fcfs_of_slots = _exponents(rows, "per_worker")[0]
    normal = estimate(rows.groupby("seed")["over_normal"].mean().tolist())
    most, least = max(_by_cell(rows, "share")), min(_by_cell(rows, "over_bound"))
    # Normal loads have sqrt(B log G) as their limit; what is left of skewness is a tenth.
    tenth = {"paper": 1.0, "at_least": 0.9, "at_most": 1.1}
    # The theorem is a bound, which Section 2.2 quotes as growth; its proof takes both sides apart.
    stated = (
        shape(f"ratio over the proven bound, least{where}", least, at_least=1.0),
        shape(f"ratio, exponent of B{where}", of_slots, **half),
        shape(f"ratio, exponent of ln G{where}", of_workers, **half),
    )
    others = (
        shape(f"FCFS, exponent of B{where}", fcfs_of_slots, **half, at_most=0.5 + _SLACK),
        shape(f"FCFS over normal loads{where}", normal, **tenth),
        shape(f"{kept}, most{where}", most, at_most=1.0),
    )
    return [*stated, *beside(others)]


def _by_cell(rows: pd.DataFrame, column: str) -> list[Estimate]:
    """Estimate a column's mean over seeds for each number of workers and slots."""
    return [estimate(cell.tolist()) for _, cell in rows.groupby(["workers", "slots"])[column]]


def _exponents(rows: pd.DataFrame, column: str) -> tuple[Estimate, Estimate]:
    """Fit B^a (ln G)^b by least squares of logarithms, once per seed."""
    found = []
    for _, each in rows.groupby("seed"):
        logs = [np.log(each["slots"]), np.log(np.log(each["workers"])), np.ones(len(each))]
        found.append(np.linalg.lstsq(np.stack(logs, axis=1), np.log(each[column]), rcond=None)[0])
    of_slots, of_workers, _ = np.transpose(found).tolist()
    return estimate(of_slots), estimate(of_workers)


def _draw(table: pd.DataFrame, axes: Panels) -> None:
    """Draw FCFS against slots, then for each drift the ratio against the root of B ln G."""
    first = table["drift"].iloc[0]
    means = table.groupby(["drift", "workers", "slots"], sort=False).agg(
        fcfs=("fcfs", "mean"),
        normal=("normal", "mean"),
        ratio=("ratio", "mean"),
        low=("ratio", "min"),
        high=("ratio", "max"),
    )
    means = means.reset_index()
    means["name"] = [f"G = {workers}" for workers in means["workers"]]
    means["per_worker"] = means["fcfs"] / means["workers"]
    means["root"] = np.sqrt(means["slots"] * np.log(means["workers"]))
    log: dict[str, Any] = {"by": "name", "xscale": "log", "yscale": "log"}
    at_first = means[means["drift"] == first]
    labels: dict[str, Any] = {
        "xlabel": "slots per worker B",
        "ylabel": "FCFS imbalance per worker (tokens)",
    }
    plot_series(at_first, x="slots", y="per_worker", ax=axes[0], **log, **labels)
    for _, rows in at_first.groupby("workers"):
        axes[0].plot(rows["slots"], rows["normal"] / rows["workers"], color=LIMIT, linewidth=0.8)
    axes[0].plot([], [], color=LIMIT, linewidth=0.8, label="normal loads")
    legend_above(axes[0])
    drifts = list(dict.fromkeys(table["drift"]))
    for ax, drift in zip(axes[1:], drifts, strict=True):
        rows = means[means["drift"] == drift]
        what = f", drift {drift}" if drifts[1:] else ""
        labels = {"xlabel": "root of B ln G", "ylabel": f"imbalance, FCFS over BF-IO{what}"}
        plot_series(rows, x="root", y="ratio", low="low", high="high", ax=ax, **log, **labels)
        reach = np.array([rows["root"].min(), rows["root"].max()])
        ax.plot(reach, reach, label="slope 1", **REFERENCE)
        legend_above(ax)
