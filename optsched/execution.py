"""What a run really did: every attempt to process a request, preempted ones included.

A `Schedule` knows the start of the attempt that completed each request, which is all that latency
depends on. An `Execution` also knows the attempts that were preempted, whose tokens were made in
vain, and says so when a policy never completes all requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame, need
from optsched._internal.files import write_whole
from optsched._internal.views import draw, html, write
from optsched.errors import OptschedError, PolicyError
from optsched.forecasts import coverage, described
from optsched.instance import Instance
from optsched.premises import World
from optsched.schedule import Schedule, Violation

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.clock import Clock
    from optsched.premises import Preemption
    from optsched.schedule import ViolationKind


@dataclass(frozen=True)
class Loop:
    """Proof that a run never completes: it came back to a state that it had been in.

    Attributes
    ----------
    step
        When the state was there for the first time.
    period
        Time until it was there again; 0 s on a clock where none is admitted any more.
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
    """A run that was given up because nothing completed for long; no proof that nothing ever will.

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
    """What the runs of a policy have in common, in steps, on a clock and on a cluster."""

    instance: Instance  # the requests
    policy: str  # its name, for tables and plots
    clock: Clock | None  # how long batches take; None in steps and on a cluster
    intervals: str | None = None  # what the policy knew of the outputs; None: all that it needs
    decisions: Any = None  # of a rolling horizon, how they came about

    @property
    @abstractmethod
    def unit(self) -> str:
        """Unit of all times: "steps" or "s"."""

    @property
    @abstractmethod
    def preemptions(self) -> int:
        """How often a request was preempted."""

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """Requests that were not completed."""

    @property
    @abstractmethod
    def total_latency(self) -> float:
        """Sum of the latencies of the completed requests."""

    @property
    @abstractmethod
    def mean_latency(self) -> float:
        """Mean latency of the completed requests."""

    @property
    @abstractmethod
    def makespan(self) -> float:
        """When the run ended."""

    @property
    def fell_back(self) -> str:
        """How many plans of a rolling horizon were lost, where they were many; else empty."""
        return "" if self.decisions is None else str(self.decisions.fell_back)

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
        """What is true of the run, on which it depends what bounds say of it."""

    @abstractmethod
    def check(self) -> list[Violation]:
        """Return everything that is wrong with the run, rebuilt from what it recorded."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return all metrics in one dictionary, ready for a table or for JSON."""

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
        said = [described(self.instance, self.intervals)] if self.intervals else []
        return "".join(f" ({each})" for each in (*said, self.fell_back) if each)

    def _outcome(self, loop: Loop | None, stall: Stall | None, tokens: int) -> dict[str, Any]:
        """Return the metrics of preemptions, and why the run did not complete all requests."""
        return {
            **({} if self.coverage is None else {"coverage": self.coverage}),
            "preemptions": self.preemptions,
            "evictions": self.preemptions,
            "preempted_tokens": tokens,
            "loop": None if loop is None else loop.to_dict(),
            "stall": None if stall is None else stall.to_dict(),
        }

    def _repr_html_(self) -> str:
        return html("facts_table", self)

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the run on axes; None makes a new figure."""

    def to_html(self, path: str | Path) -> None:
        """Write numbers and plots of the run as one HTML file that needs no network.

        Parameters
        ----------
        path
            Where to write it; the file is whole or not there.
        """
        write("run_page", path, self)


@dataclass(frozen=True, eq=False, repr=False)
class Execution(Run):
    """All attempts of a run in steps: what was processed when, and what was preempted.

    Attributes
    ----------
    instance
        The requests, with their true outputs.
    policy
        Name of the policy, for tables and plots.
    requests, starts, tokens
        One entry per attempt: the request, its start step, and the tokens it had made in the end.
        The attempt is complete if these are all.
    intervals
        What the policy knew of the outputs; None if it needed no forecast.
    loop, stall
        Why the run did not complete all requests, if it did not.
    decisions
        How the decisions of a rolling horizon came about (`optsched.rolling.Decisions`); None of
        other policies.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> execution = run(Instance([0] * 4, [1, 4, 4, 4], 8), "a-min", intervals="common:1,4")
    >>> execution.preemptions, execution.preempted_tokens, execution.schedule.check()
    (2, 5, [])
    """

    clock = None
    unit = "steps"

    instance: Instance
    policy: str
    requests: IntArray
    starts: IntArray
    tokens: IntArray
    intervals: str | None = None
    loop: Loop | None = None
    stall: Stall | None = None
    decisions: Any = None

    def __repr__(self) -> str:
        lost = f", {self.fell_back}" if self.fell_back else ""
        return f"<Execution {self.policy!r}: {len(self.requests)} attempts{lost}>"

    @property
    def completed(self) -> BoolArray:
        """Whether each attempt completed its request; if not, it was preempted."""
        return np.equal(self.tokens, self.instance.outputs[self.requests])

    @property
    def preemptions(self) -> int:
        """Attempts that were preempted."""
        return int((~self.completed).sum())

    @property
    def preempted_tokens(self) -> int:
        """Tokens made in attempts that were preempted."""
        return int(self.tokens[~self.completed].sum())

    @property
    def unfinished(self) -> int:
        """Requests that were not completed."""
        return len(self.instance) - int(self.completed.sum())

    @property
    def facts(self) -> World:
        """What is true of the run, on which it depends what bounds say of it."""
        kept: Preemption = "restarted" if self.preemptions else "none"
        return World(self.instance.fingerprint, preemption=kept, unfinished=self.unfinished)

    @property
    def all_complete(self) -> bool:
        """Whether every request was completed."""
        return self.why is None

    @property
    def why(self) -> Loop | Stall | None:
        """Why the run did not complete all requests; None if it did."""
        return self.loop or self.stall

    @cached_property
    def schedule(self) -> Schedule:
        """The start of each request's last, completing attempt.

        Raises
        ------
        PolicyError
            If the run did not complete all requests.
        """
        if self.why is not None:
            done = int(self.completed.sum())
            raise PolicyError(
                f"policy {self.policy!r} completes {done} of {len(self.instance)} requests: "
                f"its run {self.why}"
            )
        starts = np.empty(len(self.instance), dtype=np.int64)
        starts[self.requests[self.completed]] = self.starts[self.completed]
        return Schedule(self.instance, starts, self.policy)

    @property
    def total_latency(self) -> int:
        """Sum of the latencies of all requests in steps."""
        return self.schedule.total_latency

    @property
    def mean_latency(self) -> float:
        """Mean latency of all requests in steps."""
        return self.schedule.mean_latency

    @property
    def makespan(self) -> int:
        """Last step at which a request completes."""
        return self.schedule.makespan

    @cached_property
    def _work(self) -> Schedule:
        """All attempts as if each were a request of its own."""
        attempts = Instance(self.instance.prompts[self.requests], self.tokens, self.instance.memory)
        return Schedule(attempts, self.starts, self.policy)

    def memory_profile(self) -> IntArray:
        """Return the tokens held at every step, those of preempted attempts included.

        Returns
        -------
        IntArray
            Entry t is the usage at step t.
        """
        return self._work.memory_profile() if len(self.requests) else np.zeros(1, dtype=np.int64)

    @property
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step."""
        return self._work.peak_memory if len(self.requests) else 0

    def check(self) -> list[Violation]:
        """Return everything that is wrong with the attempts, rebuilt from them alone.

        Returns
        -------
        list of Violation
            Empty if at every step the attempts fit the memory, none starts early, attempts of
            one request do not overlap and exactly one is complete (none where the run did not
            complete all requests).
        """
        return _wrong(self) + (self._work.check() if len(self.requests) else [])

    def metrics(self) -> dict[str, Any]:
        """Return everything that `optsched simulate` reports, ready for a table or for JSON.

        Returns
        -------
        dict
            Latencies and times to first token in steps (of the attempt that completed, and None
            where the run did not complete), throughput in output tokens per step, memory in
            tokens, preemptions (also under "evictions"), the tokens made in vain, and loop or
            stall where there is one; under intervals their coverage, the share of the requests
            whose output lies in its interval.
        """
        content: dict[str, Any] = {
            "policy": self.policy,
            "intervals": self.intervals,
            "requests": len(self.instance),
            "completed": int(self.completed.sum()),
        }
        latency = [f"{of}_latency" for of in ("total", "mean", "p50", "p90", "p99")]
        first_token = [f"{of}_ttft" for of in ("mean", "p50", "p90", "p99")]
        if self.all_complete:
            schedule = self.schedule
            first = np.percentile(schedule.first_token_latencies, [50, 90, 99]).tolist()
            content |= schedule.metrics()
            content |= dict(zip(first_token[1:], first, strict=True))
            content["throughput"] = float(self.instance.outputs.sum()) / schedule.makespan
        else:
            content |= dict.fromkeys([*latency, *first_token, "makespan", "throughput"])
        content["peak_memory"] = self.peak_memory
        return content | self._outcome(self.loop, self.stall, self.preempted_tokens)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per attempt, in the order in which they ended.

        Returns
        -------
        pandas.DataFrame
            request, label, arrival, start, end, tokens, completed.

        Examples
        --------
        >>> from optsched import Instance, run
        >>> run(Instance([1], [2], memory=3), "area").to_pandas()["end"].tolist()
        [2]
        """
        instance = self.instance
        frame = data_frame(
            {
                "request": self.requests,
                "label": [instance.label(request) for request in self.requests.tolist()],
                "arrival": instance.arrivals[self.requests],
                "start": self.starts,
                "end": self.starts + self.tokens,
                "tokens": self.tokens,
                "completed": self.completed,
            }
        )
        return frame.sort_values(["end", "request"], ignore_index=True)

    def to_log(self, path: str | Path) -> None:
        """Write one row per attempt to a CSV or Parquet file.

        Parameters
        ----------
        path
            Ends in .csv, .csv.gz or .parquet.

        Raises
        ------
        OptschedError
            If the path ends in none of these.
        """
        write_log(self.to_pandas(), path)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the requests of the completing attempts, as `Schedule.plot` does.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_schedule", self.schedule, ax)

    def __str__(self) -> str:
        known = self._known
        lost = (
            f"  preempted {self.preemptions:,} attempts, {self.preempted_tokens:,} tokens in vain, "
            f"peak {self.peak_memory:,} tokens of all attempts"
        )
        if self.why is None:
            schedule = str(self.schedule)
            if known:
                schedule = schedule.replace(":", f"{known}:", 1)
            return schedule if not self.preemptions else f"{schedule}\n{lost}"
        done = int(self.completed.sum())
        return (
            f"{self.policy}{known}: {done:,} of {len(self.instance):,} requests complete\n"
            f"  the run {self.why}\n{lost}"
        )


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


def of_schedule(schedule: Schedule, intervals: str | None = None) -> Execution:
    """Return the execution of a schedule, in which nothing is preempted."""
    instance = schedule.instance
    every = np.arange(len(instance))
    return Execution(instance, schedule.policy, every, schedule.starts, instance.outputs, intervals)


def _wrong(execution: Execution) -> list[Violation]:
    instance, requests, starts = execution.instance, execution.requests, execution.starts
    found: list[Violation] = []

    def add(kind: ViolationKind, at: np.int64, numbers: tuple[Any, Any, Any], text: str) -> None:
        request, step, usage, limit = map(int, (at, *numbers))
        label = instance.label(request)
        sentence = f"request {label} {text}"
        found.append(Violation(kind, request, label, step, usage, limit, step, sentence))

    arrivals, outputs, made = instance.arrivals, instance.outputs, execution.tokens
    for at in np.flatnonzero(starts < arrivals[requests]):
        request, step = requests[at], starts[at]
        add("arrival", request, (step, step, arrivals[request]), "starts before it arrives")
    for at in np.flatnonzero(made > outputs[requests]):
        numbers = (starts[at], made[at], outputs[requests[at]])
        add("output", requests[at], numbers, "makes more tokens than its output")
    ends = starts + made
    order = np.lexsort((starts, requests))
    same = requests[order][1:] == requests[order][:-1]
    overlap = same & (starts[order][1:] < ends[order][:-1])
    for at, before in zip(order[1:][overlap], order[:-1][overlap], strict=True):
        numbers = (starts[at], starts[at], ends[before])
        add("overlap", requests[at], numbers, "has attempts that overlap")
    times = np.bincount(requests[execution.completed], minlength=len(instance))
    limit = times != 1 if execution.all_complete else times > 1
    for request in np.flatnonzero(limit):
        add("completion", request, (0, times[request], 1), f"is completed {times[request]} times")
    return found
