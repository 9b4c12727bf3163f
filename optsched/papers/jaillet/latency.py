"""Mean latency against the number of requests, and memory over time (Fig. 5, 8, 11)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.jaillet.section_7 import (
    BENCHMARKS,
    HIGH,
    LOW,
    LOW_SLOWER,
    SETTINGS,
    Demand,
    cells_of,
    over_seeds,
    plot_memory,
    requests,
    serve,
)
from optsched.papers.panels import BAND, panels
from optsched.papers.target import Outcome, Target
from optsched.report.style import TEXT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.claims import Claim
    from optsched.papers.study import Study

_POLICIES = ("mc-sf", "area", *BENCHMARKS)
_BINS = 400


def _mean_latencies(
    rate: float, slower: float, seed: int, counts: list[int]
) -> dict[str, list[float | None]]:
    """Serve the first so many requests alone, under each policy; None where some never complete."""
    instance = requests(rate, seed, counts[-1])
    found = {}
    for policy in _POLICIES:
        runs = [serve(instance.take(range(n)), policy, slower, seed) for n in counts]
        found[policy] = [None if run.unfinished else run.mean_latency for run in runs]
    return found


def _figure_5(study: Study) -> Outcome:
    counts = study.choose([*range(2000, 10_001, 2000)], [*range(1000, 10_001, 1000)])
    seeds = study.seeds(3, 20)
    demands = cells_of([HIGH, LOW_SLOWER, LOW])
    cells = {demand: {**cell, "counts": counts} for demand, cell in demands.items()}
    rows, fits = [], {}
    for demand, runs in study.by_seed(_mean_latencies, cells, seeds).items():
        for policy in _POLICIES:
            means = np.array([run[policy] for run in runs], dtype=np.float64)  # NaN: a loop
            fits[demand, policy] = _Fits(means, counts)
            for at, count in enumerate(counts):
                estimate = over_seeds(means[:, at])
                rows.append(
                    [demand.title, policy, count, *estimate, int(np.isnan(means[:, at]).sum())]
                )
    columns = ["demand", "policy", "requests", "mean_latency", "low", "high", "runs_that_loop"]
    settings = SETTINGS | {"requests": counts, "seeds": len(seeds)}
    claims = [*_claims_of_high_demand(fits), *_claims_of_low_demand(fits)]
    return Outcome(pd.DataFrame(rows, columns=columns), claims, settings)


class _Fits:
    """Straight lines through mean latencies against requests, one per seed."""

    def __init__(self, means: np.ndarray, counts: list[int]) -> None:
        self.last = means[:, -1]
        lines = np.polyfit(counts, means.T, 1)
        self.slopes = np.where(np.isnan(means).any(axis=1), np.nan, lines[0])
        fitted = np.outer(lines[0], counts) + lines[1][:, None]
        residual = ((means - fitted) ** 2).sum(axis=1)
        self.explained = 1 - residual / ((means.T - means.mean(axis=1)) ** 2).sum(axis=0)


def _best_benchmark(fits: dict[tuple[Demand, str], _Fits], demand: Demand) -> _Fits:
    """Return the benchmark whose latency grows slowest in the mean over seeds."""
    known = [fits[demand, policy] for policy in BENCHMARKS]
    return min(known, key=lambda each: float(np.nan_to_num(each.slopes, nan=np.inf).mean()))


def _claims_of_high_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    ours, best, area = fits[HIGH, "mc-sf"], _best_benchmark(fits, HIGH), fits[HIGH, "area"]
    ratio = over_seeds(best.slopes / ours.slopes)
    straight = min(float(np.nanmean(fits[HIGH, policy].explained)) for policy in _POLICIES)
    saving = over_seeds(area.last / ours.last)
    slope, other = over_seeds(ours.slopes), over_seeds(best.slopes)
    # "Around 1/2" and "approximately 1/6" leave 2.5 to 3.5 when each is rounded; 2.5 to 3.2 is what
    # was fixed before this was written, from a resampled public trace.
    three = {"at_least": 2.5, "at_most": 3.2, "paper": 3}
    return [
        shape("50/s: best benchmark's slope over MC-SF's", ratio, **three),
        shape("50/s: least R2 of a straight line", straight, at_least=0.98),
        shape("50/s: mean latency of area over MC-SF's", saving, at_most=0.85),
        number("50/s: slope of MC-SF (s)", 1 / 6, slope, within=0.25),
        number("50/s: slope of the best benchmark (s)", 1 / 2, other, within=0.25),
    ]


def _claims_of_low_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    claims: list[Claim] = []
    for demand, name in ((LOW_SLOWER, "10/s, batch times x 1.6"), (LOW, "10/s")):
        ours, best = fits[demand, "mc-sf"], _best_benchmark(fits, demand)
        slope, other = over_seeds(ours.slopes), over_seeds(best.slopes)
        claims += [
            number(f"{name}: slope of MC-SF (s)", 1 / 800, slope, within=0.25),
            number(f"{name}: slope of the best benchmark (s)", 1 / 100, other, within=0.25),
        ]
        if demand is LOW_SLOWER:
            ratio = other.mean / slope.mean
            claims.append(shape(f"{name}: the second over the first", ratio, at_least=8, paper=8))
    return claims


def _draw_figure_5(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    look: dict[str, Any] = {"x": "requests", "y": "mean_latency", "by": "policy"}
    look |= {"ylabel": "mean latency (s)", "from_zero": True, "legend": False}
    panels("demand", "requests", **look, **BAND)(table, axes)
    for ax, title in zip(axes, table["demand"].unique(), strict=True):
        ax.set_title(title, fontsize=TEXT_SIZE + 1)
    # In the last panel the lines lie on top of each other, far above the legend.
    axes[-1].legend(frameon=False, fontsize=TEXT_SIZE - 1, loc="lower left", handlelength=3)


def _memory_over_time(rate: float, slower: float, seed: int) -> dict[str, Any]:
    """Serve by MC-SF: tokens held when batches end, the most in each of many intervals."""
    instance = requests(rate, seed)
    run = serve(instance, "mc-sf", slower, seed)
    begins, ends = run.log.spans.T
    usage, memory, last = run.log.usage, instance.memory, run.arrivals[-1]
    times = np.linspace(0, run.makespan, _BINS + 1)[1:]
    bins = np.minimum((ends / run.makespan * _BINS).astype(np.int64), _BINS - 1)
    most = np.zeros(_BINS, dtype=np.int64)
    np.maximum.at(most, bins, usage)
    while_coming = ends <= last
    lasts = (ends - begins)[while_coming]
    return {
        "times": times.tolist(),
        "most": most.tolist(),
        "above": int((usage > memory).sum()),
        "peak": float(usage.max() / memory),
        "nearly_full": float(lasts @ (usage[while_coming] >= 0.9 * memory) / last),
    }


def _memory(study: Study, demands: Sequence[Demand], *, near_limit: bool) -> Outcome:
    seeds = study.seeds(3, 20)
    found = study.by_seed(_memory_over_time, cells_of(demands), seeds)
    parts = [
        pd.DataFrame({"demand": demand.title, "time": runs[0]["times"], "tokens": runs[0]["most"]})
        for demand, runs in found.items()
    ]
    most, time = "{}: most tokens held over M, all seeds", "{}: share of time above 0.9 M"
    claims = [
        shape(most.format(demand.title), max(run["peak"] for run in runs), at_most=1, paper=1)
        for demand, runs in found.items()
    ]
    # "Close to the limit for most of the time": above 90 % of it in more than half of the time.
    claims += [
        shape(
            time.format(demand.title),
            over_seeds([run["nearly_full"] for run in runs]),
            at_least=0.5,
        )
        for demand, runs in found.items()
        if near_limit
    ]
    settings = {"policy": "mc-sf", "seeds": len(seeds), "plotted": "first seed"}
    settings = SETTINGS | {"requests": 10_000} | settings
    return Outcome(pd.concat(parts, ignore_index=True), claims, settings)


def _draw_memory(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    for ax, (title, rows) in zip(axes, table.groupby("demand", sort=False), strict=True):
        plot_memory(rows, str(title), ax)


_OUR_CLOCK = (
    "Absolute times depend on the clock, here a fit to profiled operator times. The printed slopes "
    "of the two panels exclude each other: first come, first served at capacity mu has slope "
    "(1/mu - 1/lambda)/2, so 1/2 at 50/s is a capacity of 1/s, where 10/s could not have 1/100. "
    "On our clock the worker serves some 14/s, so none waits at 10/s; batch times x 1.6 bring it "
    "to capacity."
)

TARGETS = (
    Target(
        "jaillet-fig-5",
        "mean latency of MC-SF and six benchmarks against the number of requests",
        "Jaillet et al., Fig. 5",
        _figure_5,
        _draw_figure_5,
        (1, 3),
        _OUR_CLOCK + " `area` is not in the paper.",
    ),
    Target(
        "jaillet-fig-8",
        "memory of MC-SF over time at 50 requests per second",
        "Jaillet et al., Fig. 8",
        partial(_memory, demands=[HIGH], near_limit=False),
        _draw_memory,
    ),
    Target(
        "jaillet-fig-11",
        "memory of MC-SF over time at 10 requests per second",
        "Jaillet et al., Fig. 11",
        partial(_memory, demands=[LOW_SLOWER, LOW], near_limit=True),
        _draw_memory,
        (1, 2),
        _OUR_CLOCK,
    ),
)
