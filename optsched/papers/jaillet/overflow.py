"""Benchmarks that fill the memory to a threshold: loops, alpha and beta (Fig. 7, 9, 10, 12, 13)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.estimates import Estimate
from optsched.papers.jaillet.section_7 import (
    HIGH,
    LOW,
    LOW_SLOWER,
    SETTINGS,
    SLOWER,
    Demand,
    cells_of,
    least_mean_latency,
    plot_memory,
    requests,
    serve,
)
from optsched.papers.panels import BAND, lines
from optsched.papers.target import Outcome, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.claims import Claim
    from optsched.papers.study import Study

_GRID = [round(0.01 * step, 2) for step in range(1, 41)]
_LOOPING = 0.15  # alpha of Fig. 7
_ROUNDS = 12  # plotted, of a run that repeats itself

# The paper varies one parameter and says of the other only its two values; nor how many requests.
_ALPHAS = ([0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.4], [0.02, 0.05, 0.08, *np.arange(10, 51, 5) / 100])
_BETAS = ([0.01, 0.05, 0.1, 0.2, 0.25, 0.5], [0.01, 0.02, *np.arange(5, 51, 5) / 100, 0.7, 0.9])
_STOPPED = 0.25  # seconds per request after which a run is stopped; serving takes 0.08 to 0.15


def _loops(rate: float, slower: float, seed: int) -> dict[str, Any]:
    """For each alpha of the grid say whether the greedy benchmark repeats itself, proven."""
    instance = requests(rate, seed)
    runs = {alpha: serve(instance, f"alpha-greedy:{alpha:g}", slower, seed) for alpha in _GRID}
    loops = [alpha for alpha, run in runs.items() if run.loop is not None]
    found: dict[str, Any] = {
        "loops": loops,
        "proven": all(run.loop is not None or not run.unfinished for run in runs.values()),
    }
    run = runs[_LOOPING]
    if run.loop is not None:
        since = run.makespan - _ROUNDS * run.loop.period
        ends = run.log.spans[:, 1]
        shown = ends >= since
        found["memory"] = {"time": ends[shown].tolist(), "tokens": run.log.usage[shown].tolist()}
        found["period"] = run.loop.period
        found["requests"] = len(run.loop.requests)
        found["unfinished"] = run.unfinished
    return found


def _figure_7(study: Study) -> Outcome:
    seeds = study.seeds(4, 20)
    printed = {HIGH: 0.21, LOW_SLOWER: 0.24, LOW: 0.24}
    found = study.by_seed(_loops, cells_of(list(printed)), seeds)
    looping = [run for run in found[HIGH] if "memory" in run]
    table = pd.DataFrame(looping[0]["memory"] if looping else {"time": [], "tokens": []})
    # The paper shows one run that repeats itself; one of ours has to.
    claims = [shape("50/s: seeds that loop at alpha = 0.15, proven", len(looping), at_least=1)]
    for demand, runs in found.items():
        least = [_smallest_without_loop(run["loops"]) for run in runs]
        ours = Estimate(float(np.median(least)), min(least), max(least))
        label = "smallest alpha without a loop, median and range over seeds"
        claims.append(number(f"{demand.title}: {label}", printed[demand], ours, within=0.25))
    settings = SETTINGS | {"requests": 10_000, "alpha": _LOOPING, "seeds": len(seeds)}
    settings["grid"] = 0.01
    if looping:
        settings |= {name: looping[0][name] for name in ("period", "requests", "unfinished")}
    return Outcome(table, claims, settings)


def _smallest_without_loop(loops: list[float]) -> float:
    """Return the smallest alpha of the grid from which on no run repeats itself."""
    return min(alpha for alpha in [*_GRID, _GRID[-1] + 0.01] if alpha > max(loops, default=0))


def _draw_figure_7(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    plot_memory(table, "", axes[0], f"alpha-greedy:{_LOOPING:g}, rounds before the loop is proven")


def _clearing(
    rate: float, slower: float, seed: int, count: int, alpha: float, beta: float
) -> dict[str, float]:
    instance = requests(rate, seed, count)
    policy = f"alpha-beta-clearing:{alpha:g},{beta:g}"
    run = serve(instance, policy, slower, seed, until=_STOPPED * count)
    return {
        "latency": least_mean_latency(run),
        "unfinished": run.unfinished / count,
        "cleared": run.preemptions,
    }


def _sweep(study: Study, demand: Demand, grid: Sequence[tuple[float, float]]) -> pd.DataFrame:
    """Serve under pairs of alpha and beta; one row per pair."""
    seeds, count = _size(study)
    seeds_of_runs = range(study.seed, study.seed + seeds)
    common = {"rate": demand.rate, "slower": demand.slower, "count": count}
    cells = {
        (alpha, beta): {**common, "alpha": float(alpha), "beta": float(beta)}
        for alpha, beta in grid
    }
    rows = []
    for pair, found in study.by_seed(_clearing, cells, seeds_of_runs).items():
        runs = pd.DataFrame(found)
        means = runs[["cleared", "unfinished"]].mean().tolist()
        latency = runs["latency"]
        rows.append([*pair, latency.mean(), latency.min(), latency.max(), *means])
    columns = ["alpha", "beta", "mean_latency", "low", "high", "cleared", "unfinished"]
    return pd.DataFrame(rows, columns=columns)


def _size(study: Study) -> tuple[int, int]:
    """Seeds, and requests of a run."""
    return (4, 3000) if study.quick else (8, 10_000)


def _sweep_settings(study: Study, demand: Demand) -> dict[str, Any]:
    seeds, count = _size(study)
    stop = f"{_STOPPED:g} s per request, unfinished requests count until then"
    served = {
        "demand": demand.title,
        "requests": count,
        "seeds": seeds,
        "stopped after": stop,
        "band": "least and most of all seeds",
    }
    return SETTINGS | served


def _vary_alpha(study: Study, demand: Demand, best_from: float) -> Outcome:
    alphas = study.choose(*_ALPHAS)
    table = _sweep(study, demand, [(alpha, beta) for beta in (0.1, 0.2) for alpha in alphas])
    claims: list[Claim] = []
    for beta, rows in table.groupby("beta"):
        curve = rows.set_index("alpha")["mean_latency"]
        least, where = curve.min(), alphas[int(curve.argmin())]
        best = curve[(curve.index >= best_from) & (curve.index <= 0.25)].max()
        below = curve[curve.index < 0.1].mean()
        most = f"most over alpha in [{best_from:g}, 0.25], over the least"
        mean = "mean over alpha below 0.1, over the least"
        # "Minimises" is read strictly, and as within a tenth; "degrades significantly" by half.
        claims += [
            shape(f"beta {beta:g}: best alpha", where, at_least=best_from, at_most=0.25),
            shape(f"beta {beta:g}: {most}", best / least, at_most=1.1),
            shape(f"beta {beta:g}: {mean}", below / least, at_least=1.5),
        ]
    return Outcome(table, claims, _sweep_settings(study, demand))


def _vary_beta(study: Study, demand: Demand, well_to: float) -> Outcome:
    betas = study.choose(*_BETAS)
    table = _sweep(study, demand, [(alpha, beta) for alpha in (0.1, 0.2, 0.05) for beta in betas])
    claims: list[Claim] = []
    for alpha in (0.1, 0.2):  # 0.05 is ours
        curve = table[table["alpha"] == alpha].set_index("beta")["mean_latency"]
        ratio = curve / curve.min()
        well = ratio[(ratio.index >= 0.05) & (ratio.index <= well_to)].max()
        most = f"most over beta in [0.05, {well_to:g}], over the least"
        # "Well" is within a tenth of the least, and worse by more than a twentieth.
        claims += [
            shape(f"alpha {alpha:g}: {most}", well, at_most=1.1),
            shape(f"alpha {alpha:g}: beta 0.5 over the least", ratio[0.5], at_least=1.05),
            shape(f"alpha {alpha:g}: beta 0.01 over the least", ratio[0.01], at_least=1.05),
        ]
    return Outcome(table, claims, _sweep_settings(study, demand))


def _draw_sweep(table: pd.DataFrame, axes: Sequence[Axes], varied: str, fixed: str) -> None:
    named = table.assign(line=[f"{fixed} = {value:g}" for value in table[fixed]])
    look: dict[str, Any] = {"x": varied, "xlabel": varied, "by": "line", "yscale": "log"}
    lines(y="mean_latency", ylabel="mean latency (s)", **look, **BAND)(named, axes)


_OVER_ALPHA = partial(_draw_sweep, varied="alpha", fixed="beta")
_OVER_BETA = partial(_draw_sweep, varied="beta", fixed="alpha")

_CAPPED = "Where requests are unfinished when a run is stopped, the latency shown is a lower bound."
_DRAWS = (
    " A small beta costs nothing here: requests are drawn again until the memory suffices, which "
    "takes no time, and a small beta then clears fewest. In the paper clearing takes time."
)
_AT_CAPACITY = (
    f" Batch times are longer by {SLOWER:g}, as in jaillet-fig-5: on our clock no request waits at "
    "10 requests per second, and nothing overflows."
)

TARGETS = (
    Target(
        "jaillet-fig-7",
        "alpha-protection greedy repeats itself forever",
        "Jaillet et al., Fig. 7",
        _figure_7,
        _draw_figure_7,
        remark="The smallest alpha without a loop is an extreme value of one sample of requests: "
        "a range over seeds, not a number. Section 7.1 gives 0.21 and in the next sentence "
        "treats alpha below 0.24 as looping. A loop is proven: the worker was empty twice with the "
        "same requests waiting.",
    ),
    Target(
        "jaillet-fig-9",
        "alpha-protection beta-clearing: mean latency against alpha, 50 requests per second",
        "Jaillet et al., Fig. 9",
        partial(_vary_alpha, demand=HIGH, best_from=0.15),
        _OVER_ALPHA,
        remark=_CAPPED,
    ),
    Target(
        "jaillet-fig-10",
        "alpha-protection beta-clearing: mean latency against beta, 50 requests per second",
        "Jaillet et al., Fig. 10",
        partial(_vary_beta, demand=HIGH, well_to=0.25),
        _OVER_BETA,
        remark=_CAPPED + _DRAWS,
    ),
    Target(
        "jaillet-fig-12",
        "alpha-protection beta-clearing: mean latency against alpha, 10 requests per second",
        "Jaillet et al., Fig. 12",
        partial(_vary_alpha, demand=LOW_SLOWER, best_from=0.10),
        _OVER_ALPHA,
        remark=_CAPPED + _AT_CAPACITY,
    ),
    Target(
        "jaillet-fig-13",
        "alpha-protection beta-clearing: mean latency against beta, 10 requests per second",
        "Jaillet et al., Fig. 13",
        partial(_vary_beta, demand=LOW_SLOWER, well_to=0.20),
        _OVER_BETA,
        remark=_CAPPED + _AT_CAPACITY + _DRAWS,
    ),
)
