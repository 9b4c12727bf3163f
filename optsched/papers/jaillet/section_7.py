"""What the experiments of Section 7 have in common: requests, clock, policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from optsched.clock import LinearClock, get_clock
from optsched.papers.estimates import Estimate, estimate
from optsched.report.style import BLUE, count_axis, legend_above, memory_limit
from optsched.simulate import run
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.instance import Instance
    from optsched.simulate.seconds.execution import ClockedRun

REQUESTS = 10_000
CLOCK = "llama-2-70b-2xa100"

# In the paper MC-SF is close to capacity at 10 requests per second. On our clock the worker serves
# some 14 per second and no request waits. This factor was chosen once, on a resampled public trace,
# so that the mean latency of MC-SF grows about as the paper says; everything else follows.
SLOWER = 1.6


class Demand(NamedTuple):
    """Arrivals per second, and the factor by which batches take longer than on our clock."""

    rate: float
    slower: float = 1.0

    @property
    def title(self) -> str:
        """As a heading."""
        clock = f", batch times x {self.slower:g}" if self.slower != 1 else ""
        return f"{self.rate:g} requests per second{clock}"


HIGH, LOW, LOW_SLOWER = Demand(50), Demand(10), Demand(10, SLOWER)

BENCHMARKS = (
    "alpha-greedy:0.3",
    "alpha-greedy:0.25",
    "alpha-beta-clearing:0.2,0.2",
    "alpha-beta-clearing:0.2,0.1",
    "alpha-beta-clearing:0.1,0.2",
    "alpha-beta-clearing:0.1,0.1",
)

SETTINGS: dict[str, Any] = {
    "family": "chat: prompts lognormal below 500, outputs gamma below 600, independent, with the "
    "printed means and medians (the paper's sample of LMSYS-Chat-1M is not public)",
    "memory": 16_492,
    "clock": CLOCK,
}


def requests(rate: float, seed: int, count: int = REQUESTS) -> Instance:
    """Draw requests that arrive as a Poisson process, in microseconds."""
    return family("chat", n=count, seed=seed, rate=rate, seconds_per_step=1e-6)


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


def least_mean_latency(run: ClockedRun) -> float:
    """Mean latency, where unfinished requests count until the run was stopped: a lower bound."""
    latencies: FloatArray = np.where(run.completed, run.latencies, run.makespan - run.arrivals)
    return float(latencies.mean())


def over_seeds(values: npt.ArrayLike) -> Estimate:
    """Estimate a mean over those seeds that have a value; NaN if none has."""
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return estimate(known.tolist()) if len(known) else Estimate(np.nan, None, None)


def cells_of(demands: Sequence[Demand]) -> dict[Demand, dict[str, Any]]:
    """Return a cell for each demand."""
    return {demand: {"rate": demand.rate, "slower": demand.slower} for demand in demands}


def plot_memory(rows: pd.DataFrame, title: str, ax: Axes, policy: str = "mc-sf") -> None:
    """Plot `tokens` over `time` under the limit."""
    ax.step(rows["time"], rows["tokens"], where="pre", color=BLUE, linewidth=1.1, label=policy)
    memory_limit(ax, SETTINGS["memory"])
    ax.set(xlabel="time (s)", ylabel="tokens held")
    count_axis(ax.xaxis, ax.yaxis)
    ax.set_ylim(0, None)
    legend_above(ax, title)
