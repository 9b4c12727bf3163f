"""Benchmarks that fill the memory to a threshold: loops, alpha and beta (Fig. 7, 9, 10, 12, 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.jaillet.section_7 import (
    HIGH,
    LOW,
    LOW_SLOWER,
    SETTINGS,
    SLOWER,
    Demand,
    least_mean_latency,
    plot_memory,
    requests,
    serve,
)
from optsched.papers.target import Outcome, Target
from optsched.report.series import plot_series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        since = run.end - _ROUNDS * run.loop.period
        ends = run.log.spans[:, 1]
        shown = ends >= since
        found["memory"] = {"time": ends[shown].tolist(), "tokens": run.log.usage[shown].tolist()}
        found["period"] = run.loop.period
        found["requests"] = len(run.loop.requests)
        found["unfinished"] = run.unfinished
    return found


def _figure_7(study: Study) -> Outcome:
    seeds = study.choose(4, 20)
    demands = {HIGH: 0.21, LOW_SLOWER: 0.24, LOW: 0.24}
    cells = [
        {"rate": rate, "slower": slower, "seed": study.seed + seed}
        for rate, slower in demands
        for seed in range(seeds)
    ]
    found = study.map(_loops, cells)
    high = found[:seeds]
    looping = [run for run in high if "memory" in run]
    table = pd.DataFrame(looping[0]["memory"] if looping else {"time": [], "tokens": []})
    # The paper shows one run that repeats itself; one of ours has to.
    claims = [shape("50/s: seeds that loop at alpha = 0.15, proven", len(looping), at_least=1)]
    for place, (demand, printed) in enumerate(demands.items()):
        runs = found[place * seeds : (place + 1) * seeds]
        least = [_smallest_without_loop(run["loops"]) for run in runs]
        claims.append(
            number(
                f"{demand.title}: smallest alpha without a loop, median and range over seeds",
                printed,
                float(np.median(least)),
                within=0.25,
                low=min(least),
                high=max(least),
            )
        )
    settings = SETTINGS | {"requests": 10_000, "alpha": _LOOPING, "seeds": seeds, "grid": 0.01}
    if looping:
        settings |= {name: looping[0][name] for name in ("period", "requests", "unfinished")}
    return Outcome(table, claims, settings)


def _smallest_without_loop(loops: list[float]) -> float:
    """Give the smallest alpha of the grid from which on no run repeats itself."""
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
        "cleared": int(run.evictions.sum()),
    }


def _sweep(study: Study, demand: Demand, grid: Sequence[tuple[float, float]]) -> pd.DataFrame:
    """Serve under pairs of alpha and beta; one row per pair."""
    seeds, count = _size(study)
    cells = [
        {
            "rate": demand.rate,
            "slower": demand.slower,
            "seed": study.seed + seed,
            "count": count,
            "alpha": float(alpha),
            "beta": float(beta),
        }
        for alpha, beta in grid
        for seed in range(seeds)
    ]
    found = study.map(_clearing, cells)
    rows = []
    for place, (alpha, beta) in enumerate(grid):
        runs = pd.DataFrame(found[place * seeds : (place + 1) * seeds])
        means = runs[["cleared", "unfinished"]].mean().tolist()
        latency = runs["latency"]
        rows.append([alpha, beta, latency.mean(), latency.min(), latency.max(), *means])
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


def _vary_alpha(demand: Demand, best_from: float) -> Callable[[Study], Outcome]:
    def compute(study: Study) -> Outcome:
        alphas = study.choose(*_ALPHAS)
        table = _sweep(study, demand, [(alpha, beta) for beta in (0.1, 0.2) for alpha in alphas])
        claims: list[Claim] = []
        for beta, rows in table.groupby("beta"):
            curve = rows.set_index("alpha")["mean_latency"]
            least, where = curve.min(), alphas[int(curve.argmin())]
            best = curve[(curve.index >= best_from) & (curve.index <= 0.25)].max()
            # "Minimises" is read strictly, and as within a tenth; "degrades significantly" by half.
            claims += [
                shape(f"beta {beta:g}: best alpha", where, at_least=best_from, at_most=0.25),
                shape(
                    f"beta {beta:g}: most over alpha in [{best_from:g}, 0.25], over the least",
                    best / least,
                    at_most=1.1,
                ),
                shape(
                    f"beta {beta:g}: mean over alpha below 0.1, over the least",
                    curve[curve.index < 0.1].mean() / least,
                    at_least=1.5,
                ),
            ]
        return Outcome(table, claims, _sweep_settings(study, demand))

    return compute


def _vary_beta(demand: Demand, well_to: float) -> Callable[[Study], Outcome]:
    def compute(study: Study) -> Outcome:
        betas = study.choose(*_BETAS)
        grid = [(alpha, beta) for alpha in (0.1, 0.2, 0.05) for beta in betas]
        table = _sweep(study, demand, grid)
        claims: list[Claim] = []
        for alpha in (0.1, 0.2):  # 0.05 is ours
            curve = table[table["alpha"] == alpha].set_index("beta")["mean_latency"]
            ratio = curve / curve.min()
            well = ratio[(ratio.index >= 0.05) & (ratio.index <= well_to)].max()
            # "Well" is within a tenth of the least, and worse by more than a twentieth.
            claims += [
                shape(
                    f"alpha {alpha:g}: most over beta in [0.05, {well_to:g}], over the least",
                    well,
                    at_most=1.1,
                ),
                shape(f"alpha {alpha:g}: beta 0.5 over the least", ratio[0.5], at_least=1.05),
                shape(f"alpha {alpha:g}: beta 0.01 over the least", ratio[0.01], at_least=1.05),
            ]
        return Outcome(table, claims, _sweep_settings(study, demand))

    return compute


def _draw_sweep(varied: str, fixed: str) -> Callable[[pd.DataFrame, Sequence[Axes]], None]:
    def draw(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
        plot_series(
            table.assign(line=[f"{fixed} = {value:g}" for value in table[fixed]]),
            x=varied,
            y="mean_latency",
            by="line",
            low="low",
            high="high",
            xlabel=varied,
            ylabel="mean latency (s)",
            yscale="log",
            ax=axes[0],
        )

    return draw


_CAPPED = "Where requests are unfinished when a run is stopped, the latency shown is a lower bound."
_DRAWS = (
    " A small beta costs nothing here: requests are drawn again until the memory suffices, which "
    "takes no time, and a small beta then clears fewest. In the paper clearing takes time."
)
_AT_CAPACITY = (
    f" Batch times are longer by {SLOWER:g}, as in jaillet-fig-5: on our clock nobody waits at 10 "
    "requests per second, and nothing overflows."
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
        _vary_alpha(HIGH, 0.15),
        _draw_sweep("alpha", "beta"),
        remark=_CAPPED,
    ),
    Target(
        "jaillet-fig-10",
        "alpha-protection beta-clearing: mean latency against beta, 50 requests per second",
        "Jaillet et al., Fig. 10",
        _vary_beta(HIGH, 0.25),
        _draw_sweep("beta", "alpha"),
        remark=_CAPPED + _DRAWS,
    ),
    Target(
        "jaillet-fig-12",
        "alpha-protection beta-clearing: mean latency against alpha, 10 requests per second",
        "Jaillet et al., Fig. 12",
        _vary_alpha(LOW_SLOWER, 0.10),
        _draw_sweep("alpha", "beta"),
        remark=_CAPPED + _AT_CAPACITY,
    ),
    Target(
        "jaillet-fig-13",
        "alpha-protection beta-clearing: mean latency against beta, 10 requests per second",
        "Jaillet et al., Fig. 13",
        _vary_beta(LOW_SLOWER, 0.20),
        _draw_sweep("beta", "alpha"),
        remark=_CAPPED + _AT_CAPACITY + _DRAWS,
    ),
)
