"""What all runs share, and why one may never end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame, need
from optsched._internal.files import write_whole
from optsched._internal.numbers import number
from optsched._internal.views import draw, html, write
from optsched.errors import OptschedError, PolicyError
from optsched.problem.forecasts import coverage, described
from optsched.problem.premises import TOLD

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge, World
    from optsched.problem.schedule import Schedule, Violation


@dataclass(frozen=True)
class Loop:
    """Proof that a run never completes: it came back to a state that it had been in.

    Attributes
    ----------
    step, period
        When it was first in that state, and the time until it was there again; 0 s on a clock where
        none is admitted any more.
    requests
        Requests that are processed in vain in each period, ascending; they never complete.
    unit
        Of the times: "steps" or "s".
    """

    step: float
    period: float
    requests: tuple[int, ...]
    unit: str = "steps"

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as plain data, ready for JSON."""
        return {"step": self.step, "period": self.period, "requests": list(self.requests)}

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.requests[:5]))
        more = f" and {len(self.requests) - 5} more" if len(self.requests) > 5 else ""
        if self.unit == "steps":
            start = f"step {self.step:,}"
            every = "every step" if self.period == 1 else f"every {self.period:,} steps"
        else:
            start, every = f"{self.step:,.6g} {self.unit}", f"every {self.period:,.6g} {self.unit}"
        return f"repeats itself from {start} on, {every}, with requests {shown}{more}"


@dataclass(frozen=True)
class Stall:
    """A run given up because nothing completed for long, which proves nothing about later.

    Attributes
    ----------
    step
        When the run was given up.
    idle_steps
        Steps, or batches on a clock, without a completion until then.
    unit
        Of the time: "steps" or "s".
    """

    step: float
    idle_steps: int
    unit: str = "steps"

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data, ready for JSON."""
        return {"step": self.step, "idle_steps": self.idle_steps}

    def __str__(self) -> str:
        if self.unit == "steps":
            when, idle = f"step {self.step:,}", f"{self.idle_steps:,} steps"
        else:
            when, idle = f"{self.step:,.6g} {self.unit}", f"{self.idle_steps:,} batches"
        return f"was given up at {when} after {idle} without a completion"


class Run(ABC):
    """What all runs share, in steps, on a clock, on several workers and on a cluster.

    Attributes
    ----------
    instance, policy, clock
        The requests with their true outputs, the name of the policy, and how long batches take;
        None in steps and on a cluster.
    intervals
        What the policy knew of the outputs; None: everything it needs.
    loop, stall
        Why the run did not complete all requests, if it did not and was not stopped.
    knows
        What it was told of an output before the request ended: "outputs", a "forecast" or
        "nothing"; None where `run` did not make the run.
    decisions
        How a rolling horizon decided (`optsched.rolling.Decisions`); None for other policies.
    """

    instance: Instance
    policy: str
    clock: Clock | None
    intervals: str | None = None
    loop: Loop | None = None
    stall: Stall | None = None
    decisions: Any = None
    knows: Knowledge | None = None

    @property
    def unit(self) -> str:
        """Unit of all times: "steps" or "s"."""
        return "steps" if self.clock is None else self.clock.unit

    @property
    @abstractmethod
    def completed(self) -> BoolArray:
        """Whether each request was completed, shape (n,); of an `Execution` each attempt."""

    @property
    @abstractmethod
    def latencies(self) -> FloatArray | IntArray:
        """Time from arrival to the last token; NaN where unfinished, shape (n,)."""

    @property
    @abstractmethod
    def preemptions(self) -> int:
        """How often a request was preempted."""

    @property
    @abstractmethod
    def makespan(self) -> float:
        """When the run ended."""

    @property
    def unfinished(self) -> int:
        """Requests that were not completed."""
        return len(self.instance) - int(self.completed.sum())

    @property
    def total_latency(self) -> float:
        """Sum of the latencies of the completed requests."""
        return float(self.latencies[self.completed].sum())

    @property
    def mean_latency(self) -> float:
        """Mean latency of the completed requests; NaN if there are none."""
        done = len(self.instance) - self.unfinished
        return self.total_latency / done if done else float("nan")

    @property
    def why(self) -> Loop | Stall | None:
        """Why the run did not complete all requests; None if it did, or was stopped."""
        return self.loop or self.stall

    @property
    def fell_back(self) -> str:
        """How many plans of a rolling horizon were lost, where they were many; else empty."""
        return "" if self.decisions is None else str(self.decisions.fell_back)

    @property
    def split(self) -> bool:
        """Whether it is in steps and requests went on after preemption, without a single start."""
        return False

    @property
    def schedule(self) -> Schedule:
        """The start of each request's completing attempt, where batches take one step each."""
        raise PolicyError(
            f"the run of policy {self.policy!r} counts in {self.unit}, so it has no schedule of "
            "start steps; look at its completions, or run it without a clock or cluster"
        )

    @property
    @abstractmethod
    def facts(self) -> World:
        """Facts that decide which bounds apply to the run."""

    @abstractmethod
    def check(self) -> list[Violation]:
        """Return everything that is wrong with the run, rebuilt from what it recorded."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return all metrics in one dictionary, ready for a table or for JSON."""

    @property
    def headline(self) -> str:
        """What came of it, in a sentence."""
        done, count = len(self.instance) - self.unfinished, len(self.instance)
        told = f", told {TOLD[self.knows]}," if self.knows else ""
        found = f"{self.policy}{told} completes {done:,} of {count:,} requests"
        if self.why is not None:
            return f"{found}: its run {self.why}."
        mean, unit = f"{number(self.mean_latency)} {self.unit}", self.unit
        ends = f"the last after {number(float(self.makespan))} {unit}"
        return f"{found}, with a mean latency of {mean}, {ends}." if done else f"{found}."

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain data, ready for JSON."""
        return self.metrics() | ({"plans": self.fell_back} if self.fell_back else {})

    @property
    def coverage(self) -> float | None:
        """Share of the requests whose output lies in its interval; None where there are none."""
        return None if self.intervals is None else coverage(self.instance, self.intervals)

    @property
    def _known(self) -> str:
        """In brackets: what the policy knew, how often that was wrong, and plans that were lost."""
        said = [f"told {TOLD[self.knows]}"] if self.knows else []
        if self.intervals and self.knows != "outputs":
            said = [described(self.instance, self.intervals)]
        return "".join(f" ({each})" for each in (*said, self.fell_back) if each)

    def _outcome(self, tokens: int) -> dict[str, Any]:
        """Return the metrics of preemptions, and why the run did not complete all requests."""
        return {
            **({} if self.coverage is None else {"coverage": self.coverage}),
            "knows": self.knows,
            "preemptions": self.preemptions,
            "evictions": self.preemptions,
            "preempted_tokens": tokens,
            "loop": None if self.loop is None else self.loop.to_dict(),
            "stall": None if self.stall is None else self.stall.to_dict(),
        }

    def _repr_html_(self) -> str:
        return html("facts_table", self)

    def _by_request(self, **columns: Any) -> pd.DataFrame:
        """Return a table with a row per request."""
        every = range(len(self.instance))
        labels = [self.instance.label(request) for request in every]
        return data_frame({"request": np.array(every), "label": labels, **columns})

    @abstractmethod
    def to_pandas(self) -> pd.DataFrame:
        """Return one row per request; of an `Execution` one per attempt."""

    def to_log(self, path: str | Path) -> None:
        """Write the rows of `to_pandas` to a file whose name ends in .csv, .csv.gz or .parquet."""
        write_log(self.to_pandas(), path)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the run: in steps its requests, on a clock its memory, on a cluster its power."""
        return draw(*self._figure, ax)

    @property
    @abstractmethod
    def _figure(self) -> tuple[str, Any]:
        """Name of its plot in `optsched.report`, and what that draws."""

    def to_html(self, path: str | Path) -> None:
        """Write numbers and plots of the run as one HTML file that needs no network."""
        write("run_page", path, self)


class TimedRun(Run):
    """What runs share that know when each request had its tokens."""

    @property
    @abstractmethod
    def arrivals(self) -> FloatArray:
        """Time of each request's arrival, shape (n,)."""

    @property
    @abstractmethod
    def completions(self) -> FloatArray:
        """Time at which each request had its last token; NaN where it is unfinished, shape (n,)."""

    @property
    @abstractmethod
    def first_token_latencies(self) -> FloatArray:
        """Time from arrival to the first token (TTFT), shape (n,)."""

    @property
    @abstractmethod
    def times_per_token(self) -> FloatArray:
        """Mean time between tokens after the first (TPOT); NaN for single tokens, shape (n,)."""

    @property
    def latencies(self) -> FloatArray:
        """Time from arrival to the last token; NaN where unfinished, shape (n,)."""
        return self.completions - self.arrivals

    def _summaries(self, counted: BoolArray) -> dict[str, float | None]:
        """Return mean and percentiles of latency, TTFT and TPOT, None where nothing is counted."""
        found: dict[str, float | None] = {}
        for name, times in self._times.items():
            values = times[counted]
            values = values[~np.isnan(values)]
            numbers: list[float | None] = [None] * len(_PARTS)
            if len(values):
                numbers = [float(values.mean()), *np.percentile(values, [50, 90, 99]).tolist()]
            found |= {f"{part}_{name}": n for part, n in zip(_PARTS, numbers, strict=True)}
        return found

    @property
    def _times(self) -> dict[str, FloatArray]:
        return {
            "latency": self.latencies,
            "ttft": self.first_token_latencies,
            "tpot": self.times_per_token,
        }

    def _lines(self, metrics: dict[str, Any]) -> list[str]:
        """Return latency, TTFT and TPOT, a line each."""
        lines = []
        for title, name in (("latency", "latency"), ("TTFT", "ttft"), ("TPOT", "tpot")):
            numbers = [metrics[f"{part}_{name}"] for part in _PARTS]
            shown = "none"
            if numbers[0] is not None:
                each = zip(_PARTS, numbers, strict=True)
                shown = (
                    ", ".join(f"{part} {number(value)}" for part, value in each) + f" {self.unit}"
                )
            lines.append(f"  {title:<9} {shown}")
        return lines

    def _missed(self, deadlines: FloatArray) -> int:
        """Count the requests that are not complete in time."""
        return len(deadlines) - int((self.completions <= deadlines).sum())


_PARTS = ("mean", "p50", "p90", "p99")


def check_log_name(path: str | Path) -> None:
    """Refuse a log whose name ends in neither .csv, .csv.gz nor .parquet."""
    if not str(path).endswith((".csv", ".csv.gz", ".parquet")):
        raise OptschedError(f"cannot write {path}: a log ends in .csv, .csv.gz or .parquet")


def write_log(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table to a CSV or Parquet file, by its name; its index is left out."""
    check_log_name(path)
    content = BytesIO()
    if str(path).endswith(".parquet"):
        need("pyarrow", f"writing {path}")
        frame.to_parquet(content, index=False)
    else:
        zipped = str(path).endswith(".gz")
        frame.to_csv(content, index=False, compression="gzip" if zipped else None)
    write_whole(path, content.getvalue())
