"""Jaillet Fig. 5 and 7 to 13: the experiments of Section 7 on chats that arrive over time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from optsched.clock import LinearClock, get_clock
from optsched.report.style import BLUE, count_axis, legend_above, memory_limit
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import (
    Claim,
    Estimate,
    at_least,
    at_most,
    beside,
    estimate,
    number,
    readings,
    shape,
)
from optsched_papers.target import BAND, Outcome, Panels, Study, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.problem.instance import Instance
    from optsched.simulate.seconds.execution import ClockedRun

REQUESTS = 10_000
CLOCK = "llama-2-70b-2xa100"

# In the paper MC-SF is close to capacity at 10 requests per second. On our clock the worker serves
# some 14 per second and no request waits. This factor was chosen once, on a resampled public trace,
# so that the mean latency of MC-SF at 10 per second grows about as the paper says. Everything else
# follows, the slopes at 50 per second and the 200 seconds of Section 8.2 among it.
SLOWER = 1.6


class Demand(NamedTuple):
    """Arrivals per second, and the factor by which batches take longer than on our clock."""

    rate: float
    slower: float = 1.0

    @property
    def name(self) -> str:
        """As the begin of a label."""
        return f"{self.rate:g}/s" + (f", batch times x {self.slower:g}" * (self.slower != 1))

    @property
    def title(self) -> str:
        """As a heading."""
        return self.name.replace("/s", " requests per second")


HIGH, LOW = Demand(50), Demand(10)
HIGH_SLOWER, LOW_SLOWER = Demand(50, SLOWER), Demand(10, SLOWER)

BENCHMARKS = (
    "alpha-greedy:0.3",
    "alpha-greedy:0.25",
    "alpha-beta-clearing:0.2,0.2",
    "alpha-beta-clearing:0.2,0.1",
    "alpha-beta-clearing:0.1,0.2",
    "alpha-beta-clearing:0.1,0.1",
)

SETTINGS: dict[str, Any] = {
    "family": "chat-words: prompts lognormal below 500, outputs gamma below 600, independent, with "
    "the printed means and medians (the paper's sample of LMSYS-Chat-1M is not public)",
    "memory": 16_492,
    "clock": CLOCK,
}


def requests(rate: float, seed: int, count: int = REQUESTS) -> Instance:
    """Draw requests that arrive as a Poisson process, in microseconds."""
    return family("chat-words", n=count, seed=seed, rate=rate, seconds_per_step=1e-6)


def clock(slower: float) -> LinearClock:
    """Return the clock, with batches that take longer by a factor."""
    found = cast("LinearClock", get_clock(CLOCK))
    names = ("constant", "prefill_tokens", "decode_requests", "resident_tokens", "squared_prompts")
    changed = {name: slower * getattr(found, name) for name in names}
    return replace(found, name=f"{CLOCK} x {slower:g}", **changed)


def serve(
    instance: Instance, policy: str, slower: float, seed: int = 0, until: float = np.inf
) -> ClockedRun:
    """Run a policy on the clock."""
    return run(instance, policy, clock=clock(slower), seed=seed, until=until)


def over_seeds(values: npt.ArrayLike) -> Estimate:
    """Estimate a mean over those seeds that have a value; NaN if none has."""
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return estimate(known.tolist()) if len(known) else Estimate(np.nan, None, None)


# Figures 5, 8 and 11: mean latency, and memory over time

_POLICIES = ("mc-sf", "area", *BENCHMARKS)
_BEST_AT_LOW_DEMAND = BENCHMARKS[2:4]  # alpha = 0.2 with either beta, Section 7.2
_DEMANDS = (HIGH_SLOWER, LOW_SLOWER, HIGH)
_BINS = 400


def _mean_latencies(
    rate: float, slower: float, seed: int, counts: list[int]
) -> dict[str, list[float | None]]:
    """Serve the first so many requests alone, under each policy; None where some never complete."""
    instance = requests(rate, seed, counts[-1])
    firsts = [instance.take(range(n)) for n in counts]
    found = {}
    for policy in _POLICIES:
        runs = [serve(few, policy, slower, seed) for few in firsts]
        found[policy] = [None if run.unfinished else run.mean_latency for run in runs]
    return found


def _figure_5(study: Study) -> Outcome:
    counts = study.choose([*range(2000, 10_001, 2000)], [*range(1000, 10_001, 1000)])
    seeds = study.seeds(3, 20)
    cells = {demand: {**demand._asdict(), "counts": counts} for demand in _DEMANDS}
    rows, fits = [], {}
    for demand, runs in study.by_seed(_mean_latencies, cells, seeds).items():
        for policy in _POLICIES:
            means = np.array([run[policy] for run in runs], dtype=np.float64)  # NaN: a loop
            fits[demand, policy] = _Fits(means, counts)
            for at, count in enumerate(counts):
                mean, loop = over_seeds(means[:, at]), int(np.isnan(means[:, at]).sum())
                rows.append([demand.title, policy, count, *mean, loop])
    columns = ["demand", "policy", "requests", "mean_latency", "low", "high", "runs_that_loop"]
    settings = SETTINGS | {"requests": counts, "seeds": len(seeds)}
    claims = [*_claims_of_high_demand(fits), *_claims_of_low_demand(fits)]
    claims += [_below_benchmarks(rows), *beside(_claims_of_ours(fits))]
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


def _slope_ratio(fits: dict[tuple[Demand, str], _Fits], demand: Demand) -> Claim:
    """Claim that the best benchmark's latency grows three times as fast as MC-SF's."""
    ratio = over_seeds(_best_benchmark(fits, demand).slopes / fits[demand, "mc-sf"].slopes)
    # "Around 1/2" and "approximately 1/6" leave 2.5 to 3.5 when each is rounded; 2.5 to 3.2 is what
    # was fixed before this was written, from a resampled public trace.
    limits = {"at_least": 2.5, "at_most": 3.2, "paper": 3}
    return shape(f"{demand.name}: best benchmark's slope over MC-SF's", ratio, **limits)


def _claims_of_high_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    """Claim the left panel; its slopes are printed ten times as large as 200 s at 10,000 allow."""
    ours, best = fits[HIGH_SLOWER, "mc-sf"], _best_benchmark(fits, HIGH_SLOWER)
    straight = min(float(np.nanmean(fits[HIGH_SLOWER, policy].explained)) for policy in _POLICIES)
    name, last = HIGH_SLOWER.name, over_seeds(ours.last)
    claims = [
        _slope_ratio(fits, HIGH_SLOWER),
        shape(f"{name}: least R2 of a straight line", straight, at_least=0.98),
        number(f"{name}: mean latency of MC-SF, 10,000 requests (s)", 200, last, "level"),
    ]
    for policy, fit, printed in (("MC-SF", ours, 1 / 6), ("the best benchmark", best, 1 / 2)):
        slope, label = over_seeds(fit.slopes), f"{name}: slope of {policy} (s)"
        read = {f"{label}, as printed": printed, f"{label}, a tenth of it": printed / 10}
        claims += readings(
            label, [number(each, paper, slope, "slope") for each, paper in read.items()]
        )
    return claims


def _claims_of_low_demand(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    ours, best = fits[LOW_SLOWER, "mc-sf"], _best_benchmark(fits, LOW_SLOWER)
    slope, other = over_seeds(ours.slopes), over_seeds(best.slopes)
    ratio, name = other.mean / slope.mean, LOW_SLOWER.name
    named = [over_seeds(fits[LOW_SLOWER, policy].slopes).mean for policy in _BEST_AT_LOW_DEMAND]
    fitted = number(f"{name}: slope of MC-SF (s), to which 1.6 is fitted", 1 / 800, slope, "slope")
    return [
        *beside(fitted),
        number(f"{name}: slope of the best benchmark (s)", 1 / 100, other, "slope"),
        at_least(f"{name}: the second over the first", ratio, 8),
        # "Best" is read as within a tenth of it.
        shape(
            f"{name}: slope with alpha 0.2, said to be best, over the best benchmark's",
            max(named) / other.mean,
            at_most=1.1,
            paper=1,
        ),
    ]


def _below_benchmarks(rows: list[list[Any]]) -> Claim:
    """Claim that MC-SF has the least latency at every number of requests."""
    table = pd.DataFrame([row[:4] for row in rows], columns=["demand", "policy", "n", "latency"])
    slower = table[table["demand"].isin([HIGH_SLOWER.title, LOW_SLOWER.title])]
    by = slower.pivot(index=["demand", "n"], columns="policy", values="latency")
    most = (by["mc-sf"] / by[list(BENCHMARKS)].min(axis=1)).max()
    label = "batch times x 1.6: latency of MC-SF over the best benchmark's, the most"
    return shape(label, float(most), at_most=1)


def _claims_of_ours(fits: dict[tuple[Demand, str], _Fits]) -> list[Claim]:
    """Claim what our own clock shows, and memory-time first in place of shortest first."""
    claims = [_slope_ratio(fits, HIGH)]
    for demand in (HIGH_SLOWER, HIGH):
        saving = over_seeds(fits[demand, "area"].last / fits[demand, "mc-sf"].last)
        label = f"{demand.name}: mean latency of area over MC-SF's"
        claims.append(shape(label, saving, at_most=0.85))
    return claims


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
        "peak": float(usage.max() / memory),
        "nearly_full": float(lasts @ (usage[while_coming] >= 0.9 * memory) / last),
    }


def _memory(study: Study, demands: list[list[float]]) -> Outcome:
    """Say how full the memory is at some rates, with factors on the times of batches."""
    seeds = study.seeds(3, 20)
    cells = {demand: demand._asdict() for demand in (Demand(*each) for each in demands)}
    found = study.by_seed(_memory_over_time, cells, seeds)
    parts = [
        pd.DataFrame({"demand": demand.title, "time": runs[0]["times"], "tokens": runs[0]["most"]})
        for demand, runs in found.items()
    ]
    claims = []
    for demand, runs in found.items():
        label = f"{demand.name}: most tokens held over M, all seeds"
        # MC-SF checks the limit itself; so what is not trivial is that it comes close: above 90 %
        # of it in more than half of the time.
        ours = over_seeds([run["nearly_full"] for run in runs])
        own = [
            at_most(label, max(run["peak"] for run in runs), 1),
            shape(f"{demand.name}: share of time above 0.9 M", ours, at_least=0.5),
        ]
        claims += beside(own) if demand == LOW else own  # where no request waits
    settings = {"policy": "mc-sf", "seeds": len(seeds), "plotted": "first seed"}
    settings = SETTINGS | {"requests": 10_000} | settings
    return Outcome(pd.concat(parts, ignore_index=True), claims, settings)


def _draw_memory(table: pd.DataFrame, axes: Panels) -> None:
    for ax, (title, rows) in zip(axes, table.groupby("demand", sort=False), strict=True):
        plot_memory(rows, str(title), ax)


def plot_memory(rows: pd.DataFrame, title: str, ax: Axes, policy: str = "mc-sf") -> None:
    """Plot `tokens` over `time` under the limit."""
    ax.step(rows["time"], rows["tokens"], where="pre", color=BLUE, linewidth=1.1, label=policy)
    memory_limit(ax, SETTINGS["memory"])
    ax.set(xlabel="time (s)", ylabel="tokens held")
    count_axis(ax.xaxis, ax.yaxis)
    ax.set_ylim(0, None)
    legend_above(ax, title)


# Figures 7, 9, 10, 12 and 13: benchmarks that fill the memory to a threshold

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
    found: dict[str, Any] = {"loops": [alpha for alpha, run in runs.items() if run.loop]}
    run = runs[_LOOPING]
    if run.loop is not None:
        ends = run.log.spans[:, 1]
        shown = ends >= run.makespan - _ROUNDS * run.loop.period
        found["memory"] = {"time": ends[shown].tolist(), "tokens": run.log.usage[shown].tolist()}
        found["period"], found["unfinished"] = run.loop.period, run.unfinished
        found["requests"] = len(run.loop.requests)
    return found


def _figure_7(study: Study) -> Outcome:
    seeds = study.seeds(4, 20)
    printed = {HIGH: 0.21, LOW_SLOWER: 0.24, LOW: 0.24}
    found = study.by_seed(_loops, {demand: demand._asdict() for demand in printed}, seeds)
    looping = [run for run in found[HIGH] if "memory" in run]
    table = pd.DataFrame(looping[0]["memory"] if looping else {"time": [], "tokens": []})
    # The paper shows one run that repeats itself; one of ours has to.
    claims = [shape("50/s: seeds that loop at alpha = 0.15, proven", len(looping), at_least=1)]
    claims += [
        shape(
            f"50/s: seeds that do not loop at alpha = {alpha:g}",
            sum(alpha not in run["loops"] for run in found[HIGH]),
            at_least=1,
        )
        for alpha in (0.25, 0.3)
    ]
    for demand, runs in found.items():
        # The smallest alpha of the grid from which on no run repeats itself.
        tried = [*_GRID, _GRID[-1] + 0.01]
        least = [min(a for a in tried if a > max(run["loops"], default=0)) for run in runs]
        ours = Estimate(float(np.median(least)), min(least), max(least))
        label = f"smallest alpha without a loop, {printed[demand]} in the paper, median over seeds"
        # One extreme of a sample decides nothing.
        claims += beside(number(f"{demand.name}: {label}", printed[demand], ours, "level"))
    settings = SETTINGS | {"requests": 10_000, "alpha": _LOOPING, "seeds": len(seeds), "grid": 0.01}
    if looping:
        settings |= {name: looping[0][name] for name in ("period", "requests", "unfinished")}
    return Outcome(table, claims, settings)


def _draw_figure_7(table: pd.DataFrame, axes: Panels) -> None:
    plot_memory(table, "", axes[0], f"alpha-greedy:{_LOOPING:g}, rounds before the loop is proven")


def _clearing(
    rate: float, slower: float, seed: int, count: int, alpha: float, beta: float
) -> dict[str, float]:
    """Serve until the end, or until the run is stopped: the latency is then a lower bound."""
    policy = f"alpha-beta-clearing:{alpha:g},{beta:g}"
    run = serve(requests(rate, seed, count), policy, slower, seed, until=_STOPPED * count)
    latencies: FloatArray = np.where(run.completed, run.latencies, run.makespan - run.arrivals)
    return {
        "latency": float(latencies.mean()),
        "unfinished": run.unfinished / count,
        "cleared": run.preemptions,
    }


def _sweep(
    study: Study, demand: Demand, pairs: Sequence[tuple[float, float]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Serve under pairs of alpha and beta; return one row per pair, and the settings."""
    seeds, count = study.seeds(4, 8), study.choose(3000, 10_000)
    common = {**demand._asdict(), "count": count}
    cells = {
        (alpha, beta): {**common, "alpha": float(alpha), "beta": float(beta)}
        for alpha, beta in pairs
    }
    rows = []
    for pair, found in study.by_seed(_clearing, cells, seeds).items():
        runs = pd.DataFrame(found)
        latency, means = runs["latency"], runs[["cleared", "unfinished"]].mean()
        rows.append([*pair, latency.mean(), latency.min(), latency.max(), *means])
    columns = ["alpha", "beta", "mean_latency", "low", "high", "cleared", "unfinished"]
    settings: dict[str, Any] = {"demand": demand.title, "requests": count, "seeds": len(seeds)}
    settings |= {
        "stopped after": f"{_STOPPED:g} s per request, unfinished requests count until then"
    }
    settings |= {"band": "least and most of all seeds"}
    return pd.DataFrame(rows, columns=columns), SETTINGS | settings


def _vary_alpha(study: Study, demand: list[float], best_from: float) -> Outcome:
    alphas = study.choose(*_ALPHAS)
    pairs = [(alpha, beta) for beta in (0.1, 0.2) for alpha in alphas]
    table, settings = _sweep(study, Demand(*demand), pairs)
    claims = []
    for beta, rows in table.groupby("beta"):
        curve = rows.set_index("alpha")["mean_latency"]
        least, where = curve.min(), alphas[int(curve.argmin())]
        best = curve[(curve.index >= best_from) & (curve.index <= 0.25)].max()
        below = curve[curve.index < 0.1].mean()
        most = f"most over alpha in [{best_from:g}, 0.25], over the least"
        mean = "mean over alpha below 0.1, over the least"
        # "Minimises" is read strictly, and as within a tenth; "degrades significantly" by half.
        best_alpha = shape(f"beta {beta:g}: best alpha", where, at_least=best_from, at_most=0.25)
        within = shape(f"beta {beta:g}: {most}", best / least, at_most=1.1)
        statement = f"beta {beta:g}: {best_from:g} to 0.25 is best, or within a tenth"
        claims += readings(statement, best_alpha, within)
        claims.append(shape(f"beta {beta:g}: {mean}", below / least, at_least=1.5))
    return Outcome(table, claims, settings)


def _vary_beta(study: Study, demand: list[float], well_to: float) -> Outcome:
    betas = study.choose(*_BETAS)
    pairs = [(alpha, beta) for alpha in (0.1, 0.2, 0.05) for beta in betas]
    table, settings = _sweep(study, Demand(*demand), pairs)
    claims = []
    for alpha in (0.1, 0.2):  # 0.05 is ours
        curve = table[table["alpha"] == alpha].set_index("beta")["mean_latency"]
        ratio = curve / curve.min()
        well = ratio[(ratio.index >= 0.05) & (ratio.index <= well_to)].max()
        most = f"most over beta in [0.05, {well_to:g}], over the least"
        # "Well" is within a tenth of the least, and worse by more than a twentieth.
        claims += [
            shape(f"alpha {alpha:g}: {most}", well, at_most=1.1),
            shape(f"alpha {alpha:g}: beta 0.5 is worse, over the least", ratio[0.5], at_least=1.05),
            shape(
                f"alpha {alpha:g}: beta 0.01 is worse, over the least", ratio[0.01], at_least=1.05
            ),
        ]
    return Outcome(table, claims, settings)


def _draw_sweep(table: pd.DataFrame, axes: Panels, varied: str, fixed: str) -> None:
    named = table.assign(line=[f"{fixed} = {value:g}" for value in table[fixed]])
    look: dict[str, Any] = {"x": varied, "xlabel": varied, "by": "line", "yscale": "log"}
    lines(named, axes, y="mean_latency", ylabel="mean latency (s)", **look, **BAND)
