"""Mean latency against the number of requests, and memory over time (Fig. 5, 8, 11)."""

from __future__ import annotations

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
    as_claimed,
    over_seeds,
    plot_memory,
    requests,
    serve,
)
from optsched.papers.target import Outcome, Target
from optsched.report.series import plot_series
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
    seeds = study.choose(3, 20)
    demands = (HIGH, LOW_SLOWER, LOW)
    cells = [
        {"rate": rate, "slower": slower, "seed": study.seed + seed, "counts": counts}
        for rate, slower in demands
        for seed in range(seeds)
    ]
    found = study.map(_mean_latencies, cells)
    rows, fits = [], {}
    for place, demand in enumerate(demands):
        runs = found[place * seeds : (place + 1) * seeds]
        for policy in _POLICIES:
            means = np.array([run[policy] for run in runs], dtype=np.float64)  # NaN: a loop
            fits[demand, policy] = _Fits(means, counts)
            for at, count in enumerate(counts):
                estimate = over_seeds(means[:, at])
                rows.append(
                    [demand.title, policy, count, *estimate, int(np.isnan(means[:, at]).sum())]
                )
    columns = ["demand", "policy", "requests", "mean_latency", "low", "high", "runs_that_loop"]
    settings = SETTINGS | {"requests": counts, "seeds": seeds}
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
    """Give the benchmark whose latency grows slowest in the mean over seeds."""
    known = [fits[demand, policy] for policy in BENCHMARKS]
    return min(known, key=lambda each: float(np.nan_to_num(each.slopes, nan=np.inf).mean()))


def _claims_of_high_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    ours, best, area = fits[HIGH, "mc-sf"], _best_benchmark(fits, HIGH), fits[HIGH, "area"]
    ratio = as_claimed(best.slopes / ours.slopes)
    straight = min(float(np.nanmean(fits[HIGH, policy].explained)) for policy in _POLICIES)
    saving = as_claimed(area.last / ours.last)
    # "Around 1/2" and "approximately 1/6" leave 2.5 to 3.5 when each is rounded; 2.5 to 3.2 is what
    # was fixed before this was written, from a resampled public trace.
    return [
        shape(
            "50/s: best benchmark's slope over MC-SF's", at_least=2.5, at_most=3.2, paper=3, **ratio
        ),
        shape("50/s: least R2 of a straight line", straight, at_least=0.98),
        shape("50/s: mean latency of area over MC-SF's", at_most=0.85, **saving),
        number("50/s: slope of MC-SF (s)", 1 / 6, within=0.25, **as_claimed(ours.slopes)),
        number(
            "50/s: slope of the best benchmark (s)", 1 / 2, within=0.25, **as_claimed(best.slopes)
        ),
    ]


def _claims_of_low_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    claims: list[Claim] = []
    for demand, name in ((LOW_SLOWER, "10/s, batch times x 1.6"), (LOW, "10/s")):
        ours, best = fits[demand, "mc-sf"], _best_benchmark(fits, demand)
        slope, other = as_claimed(ours.slopes), as_claimed(best.slopes)
        claims += [
            number(f"{name}: slope of MC-SF (s)", 1 / 800, within=0.25, **slope),
            number(f"{name}: slope of the best benchmark (s)", 1 / 100, within=0.25, **other),
        ]
        if demand is LOW_SLOWER:
            ratio = other["ours"] / slope["ours"]
            claims.append(shape(f"{name}: the second over the first", ratio, at_least=8, paper=8))
    return claims


def _draw_figure_5(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    for ax, (title, rows) in zip(axes, table.groupby("demand", sort=False), strict=True):
        plot_series(
            rows, x="requests", y="mean_latency", by="policy", low="low", high="high",
            xlabel="requests", ylabel="mean latency (s)", legend=False, ax=ax,
        )  # fmt: skip
        ax.set_ylim(0, None)
        ax.set_title(str(title), fontsize=TEXT_SIZE + 1)
    # In the last panel the lines lie on top of each other, far above the legend.
    axes[-1].legend(frameon=False, fontsize=TEXT_SIZE - 1, loc="lower left", handlelength=3)


def _memory_over_time(rate: float, slower: float, seed: int) -> dict[str, Any]:
    """Serve by MC-SF: tokens held when batches end, the most in each of many intervals."""
    instance = requests(rate, seed)
    run = serve(instance, "mc-sf", slower, seed)
    begins, ends = run.log.spans.T
    usage, memory, last = run.log.usage, instance.memory, run.arrivals[-1]
    times = np.linspace(0, run.end, _BINS + 1)[1:]
    bins = np.minimum((ends / run.end * _BINS).astype(np.int64), _BINS - 1)
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


def _memory(
    study: Study, demands: Sequence[Demand]
) -> tuple[pd.DataFrame, list[list[Any]], dict[str, Any]]:
    seeds = study.choose(3, 20)
    cells = [
        {"rate": rate, "slower": slower, "seed": study.seed + seed}
        for rate, slower in demands
        for seed in range(seeds)
    ]
    found = study.map(_memory_over_time, cells)
    groups = [found[place * seeds : (place + 1) * seeds] for place in range(len(demands))]
    parts = [
        pd.DataFrame({"demand": demand.title, "time": runs[0]["times"], "tokens": runs[0]["most"]})
        for demand, runs in zip(demands, groups, strict=True)
    ]
    settings = SETTINGS | {
        "requests": 10_000,
        "policy": "mc-sf",
        "seeds": seeds,
        "plotted": "first seed",
    }
    return pd.concat(parts, ignore_index=True), groups, settings


def _limit_claims(groups: list[list[Any]], demands: Sequence[Demand]) -> list[Claim]:
    return [
        shape(
            f"{demand.title}: most tokens held over M, all seeds",
            max(run["peak"] for run in runs),
            at_most=1,
            paper=1,
        )
        for demand, runs in zip(demands, groups, strict=True)
    ]


def _figure_8(study: Study) -> Outcome:
    table, groups, settings = _memory(study, [HIGH])
    return Outcome(table, _limit_claims(groups, [HIGH]), settings)


def _figure_11(study: Study) -> Outcome:
    demands = [LOW_SLOWER, LOW]
    table, groups, settings = _memory(study, demands)
    claims = _limit_claims(groups, demands)
    for demand, runs in zip(demands, groups, strict=True):
        full = as_claimed([run["nearly_full"] for run in runs])
        # "Close to the limit for most of the time": above 90 % of it in more than half of the time.
        claims.append(shape(f"{demand.title}: share of time above 0.9 M", at_least=0.5, **full))
    return Outcome(table, claims, settings)


def _draw_memory(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    for ax, (title, rows) in zip(axes, table.groupby("demand", sort=False), strict=True):
        plot_memory(rows, str(title), ax)


_OUR_CLOCK = (
    "Absolute times depend on the clock, here a fit to profiled operator times. The printed slopes "
    "of the two panels exclude each other: first come, first served at capacity mu has slope "
    "(1/mu - 1/lambda)/2, so 1/2 at 50/s is a capacity of 1/s, at which 10/s could not have 1/100. "
    "On our clock the worker serves some 14/s, so nobody waits at 10/s; batch times x 1.6 bring it "
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
        _figure_8,
        _draw_memory,
    ),
    Target(
        "jaillet-fig-11",
        "memory of MC-SF over time at 10 requests per second",
        "Jaillet et al., Fig. 11",
        _figure_11,
        _draw_memory,
        (1, 2),
        _OUR_CLOCK,
    ),
)
