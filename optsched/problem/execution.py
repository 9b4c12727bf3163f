"""What all runs share; `Execution`: every attempt in steps, preempted ones included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.files import write_whole
from optsched._internal.imports import data_frame, need
from optsched._internal.numbers import number
from optsched._internal.views import draw, html, write
from optsched.clock import UNIT
from optsched.errors import OptschedError, PolicyError
from optsched.problem.forecasts import coverage, described
from optsched.problem.instance import Instance
from optsched.problem.premises import TOLD, Knowledge, Preemption, World
from optsched.problem.schedule import (
    STATISTICS,
    Schedule,
    Started,
    Violation,
    statistics_of,
    violation,
)
from optsched.problem.work import arrival_times, due_times

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.files import JSON
    from optsched.clock import Clock
    from optsched.problem.schedule import ViolationKind


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

    def to_dict(self) -> dict[str, object]:
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

    def to_dict(self) -> JSON:
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
    def beyond(self) -> str | None:
        """Where batches leave the range that a fitted clock knows; None: nowhere."""
        return None

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
    def preempted_tokens(self) -> int:
        """Tokens that requests had when they were preempted."""

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
    def metrics(self) -> JSON:
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

    def to_dict(self) -> JSON:
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

    @property
    def losses(self) -> dict[str, int]:
        """The metrics of preemptions; `evictions` is their older name."""
        count, tokens = self.preemptions, self.preempted_tokens
        return {"preemptions": count, "evictions": count, "preempted_tokens": tokens}

    def _outcome(self) -> JSON:
        """Return the metrics of preemptions, and why the run did not complete all requests."""
        return {
            **({} if self.coverage is None else {"coverage": self.coverage}),
            "knows": self.knows,
            **self.losses,
            "loop": None if self.loop is None else self.loop.to_dict(),
            "stall": None if self.stall is None else self.stall.to_dict(),
        }

    def _repr_html_(self) -> str:
        return html("facts_table", self)

    def _by_request(self, **columns: object) -> pd.DataFrame:
        every, clients = range(len(self.instance)), self.instance.clients
        labels = [self.instance.label(request) for request in every]
        known = {} if clients is None else {"client": clients}
        return data_frame({"request": np.array(every), "label": labels, **known, **columns})

    def by_client(self) -> list[JSON]:
        """Return requests, completed ones, mean and percentiles of latency of each client.

        Empty where clients are not known, or the run did not end (`why`).
        """
        clients = self.instance.clients
        found: list[JSON] = []
        if clients is None or self.why is not None:
            return found
        latencies = np.asarray(self.latencies, dtype=np.float64)
        for client in np.unique(clients).tolist():
            times = latencies[clients == client]
            known = statistics_of(times[~np.isnan(times)], "_latency")
            done = int((~np.isnan(times)).sum())
            found.append({"client": client, "requests": len(times), "completed": done, **known})
        return found

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
    def _figure(self) -> tuple[str, object]:
        """Name of its plot in `optsched.report`, and what that draws."""

    def to_html(self, path: str | Path) -> None:
        """Write numbers and plots of the run as one HTML file that needs no network."""
        write("run_page", path, self)


class Times(NamedTuple):
    """What requests waited, shape (n,): NaN where unfinished, and TPOT for single tokens, too."""

    latency: FloatArray
    ttft: FloatArray
    tpot: FloatArray


class TimedRun(Run):
    """What runs share that know when each request had its tokens."""

    @cached_property
    def arrivals(self) -> FloatArray:
        """Time of each request's arrival, shape (n,)."""
        if self.clock is None:
            return self.instance.arrivals.astype(np.float64)
        return arrival_times(self.instance, self.clock)

    @property
    def deadlines(self) -> FloatArray | None:
        """Time of each request's deadline, shape (n,); None where there are none."""
        return due_times(self.instance, UNIT if self.clock is None else self.clock)

    @property
    @abstractmethod
    def completions(self) -> FloatArray:
        """Time at which each request had its last token; NaN where it is unfinished, shape (n,)."""

    @property
    @abstractmethod
    def first_tokens(self) -> FloatArray:
        """Time at which each request had its first token; NaN where it never had, shape (n,)."""

    @property
    def first_token_latencies(self) -> FloatArray:
        """Time from arrival to the first token (TTFT), shape (n,)."""
        return self.first_tokens - self.arrivals

    @property
    def times_per_token(self) -> FloatArray:
        """Mean time between tokens after the first (TPOT); NaN for single tokens, shape (n,)."""
        others = np.where(self.instance.outputs > 1, self.instance.outputs - 1, np.nan)
        return (self.completions - self.first_tokens) / others

    @property
    def completed(self) -> BoolArray:
        """Whether each request was completed, shape (n,)."""
        return ~np.isnan(self.completions)

    @property
    def latencies(self) -> FloatArray:
        """Time from arrival to the last token; NaN where unfinished, shape (n,)."""
        return self.completions - self.arrivals

    def _summaries(self, counted: BoolArray) -> dict[str, float | None]:
        """Return mean and percentiles of latency, TTFT and TPOT, None where nothing is counted."""
        found: dict[str, float | None] = {}
        for name, times in self.times._asdict().items():
            found |= statistics_of(times[counted & ~np.isnan(times)], f"_{name}")
        return found

    @property
    def times(self) -> Times:
        """What each request waited, in the unit of the clock."""
        return Times(self.latencies, self.first_token_latencies, self.times_per_token)

    def _lines(self, metrics: JSON) -> list[str]:
        """Return latency, TTFT and TPOT, a line each."""
        lines = []
        for name in Times._fields:
            title = name if name == "latency" else name.upper()
            numbers = [metrics[f"{each}_{name}"] for each in STATISTICS]
            shown = "none"
            if numbers[0] is not None:
                each = map(number, numbers)
                said = ", ".join(map(" ".join, zip(STATISTICS, each, strict=True)))
                shown = f"{said} {self.unit}"
            lines.append(f"  {title:<9} {shown}")
        return lines

    def _missed(self, deadlines: FloatArray) -> int:
        """Count the requests that are not complete in time."""
        return len(deadlines) - int((self.completions <= deadlines).sum())


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


@dataclass(frozen=True, eq=False, repr=False)
class Execution(Started, Run):
    """All attempts of a run in steps: what was processed when, and what was preempted.

    Attributes
    ----------
    requests, starts, tokens
        One entry per attempt, in the order in which they ended: the request, its start step, and
        the tokens it had made in the end. The attempt is complete if these, with those
        kept from earlier attempts, are all.
    preemption
        What became of preempted requests, as of `DecisionPolicy`: "restarted", "recomputed" or
        "resumed".

    Examples
    --------
    >>> from optsched import Instance, run
    >>> execution = run(Instance([0] * 4, [1, 4, 4, 4], 8), "a-min", intervals="common:1,4")
    >>> execution.preemptions, execution.preempted_tokens, execution.schedule.check()
    (2, 5, [])
    """

    clock = None

    instance: Instance
    policy: str
    requests: IntArray
    starts: IntArray
    tokens: IntArray
    intervals: str | None = None
    loop: Loop | None = None
    stall: Stall | None = None
    decisions: Any = None
    preemption: Preemption = "restarted"
    knows: Knowledge | None = None

    def __repr__(self) -> str:
        lost = f", {self.fell_back}" if self.fell_back else ""
        return f"<Execution {self.policy!r}: {len(self.requests)} attempts{lost}>"

    @cached_property
    def before(self) -> IntArray:
        """Tokens that each attempt kept of those before it."""
        return kept_before(self.requests, self.tokens, self.preemption)

    @property
    def completed(self) -> BoolArray:
        """Whether each attempt completed its request; if not, it was preempted."""
        made = self.before + self.tokens
        return np.asarray(made == self.instance.outputs[self.requests])

    @property
    def preemptions(self) -> int:
        """Attempts that were preempted."""
        return int((~self.completed).sum())

    @property
    def preempted_tokens(self) -> int:
        """Tokens that requests had made when they were preempted."""
        return int((self.before + self.tokens)[~self.completed].sum())

    @property
    def split(self) -> bool:
        """Whether requests went on after they were preempted, so that they have no single start."""
        return self.preemption != "restarted" and self.preemptions > 0

    @property
    def facts(self) -> World:
        """Facts that decide which bounds apply to the run."""
        kept: Preemption = self.preemption if self.preemptions else "none"
        return World(self.instance.fingerprint, preemption=kept, unfinished=self.unfinished)

    @property
    def all_complete(self) -> bool:
        """Whether every request was completed."""
        return self.why is None

    @cached_property
    def schedule(self) -> Schedule:
        """The start of each request's completing attempt; an error where there is none."""
        if self.split:
            raise PolicyError(
                f"policy {self.policy!r} lets preempted requests go on, so that no schedule has "
                "their starts; leave it out, or look at the completions of its run alone"
            )
        return Schedule(self.instance, self._of_each(self.completed, self.starts), self.policy)

    def _of_each(self, which: BoolArray, values: IntArray) -> IntArray:
        """Return the value of one attempt of each request, the first of some."""
        if self.why is not None:
            done = int(self.completed.sum())
            raise PolicyError(
                f"policy {self.policy!r} completes {done} of {len(self.instance)} requests: "
                f"its run {self.why}"
            )
        found = np.empty(len(self.instance), dtype=np.int64)
        found[self.requests[which][::-1]] = values[which][::-1]
        return found

    @cached_property
    def completions(self) -> IntArray:
        """Step at which each request makes its last token, shape (n,)."""
        return self._of_each(self.completed, self.starts + self.tokens)

    @property
    def first_tokens(self) -> IntArray:
        """Step of the first token of each request that was kept, shape (n,)."""
        kept = np.ones_like(self.completed) if self.split else self.completed
        return self._of_each(kept, self.starts) + 1

    @cached_property
    def _work(self) -> Schedule:
        """All attempts as if each were a request of its own."""
        held = self.instance.prompts[self.requests] + self.before
        attempts = Instance(held, self.tokens, self.instance.memory)
        return Schedule(attempts, self.starts, self.policy)

    @property
    def utilisation(self) -> float:
        """Tokens held on average by the attempts that count, as a share of the memory."""
        return float(self.instance.areas.sum()) / (self.instance.memory * self.makespan)

    def memory_profile(self) -> IntArray:
        """Return the tokens held at every step from 0, those of preempted attempts included."""
        return self._work.memory_profile() if len(self.requests) else np.zeros(1, dtype=np.int64)

    @property
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step."""
        return self._work.peak_memory if len(self.requests) else 0

    def check(self) -> list[Violation]:
        """Return everything that is wrong with the attempts, rebuilt from them alone.

        The list is empty if the attempts fit the memory at every step, none starts early, attempts
        of one request do not overlap, and exactly one is complete (none where the run did not
        complete).
        """
        overfull = self._work.check() if len(self.requests) else []
        requests = [int(self.requests[each.request]) for each in overfull]
        return _wrong(self) + [
            replace(each, request=request, label=self.instance.label(request))
            for each, request in zip(overfull, requests, strict=True)
        ]

    def metrics(self) -> JSON:
        """Return everything that `optsched simulate` reports, ready for a table or for JSON.

        Latencies and times to first token in steps (of the attempt that completed; None where the
        run did not complete), throughput in output tokens per step, memory in tokens, preemptions
        (also under "evictions"), the tokens that those had made, and loop or stall where there is
        one; under intervals their coverage, the share of the requests whose output lies in its
        interval.
        """
        content: JSON = {
            "policy": self.policy,
            "intervals": self.intervals,
            "requests": len(self.instance),
            "completed": int(self.completed.sum()),
        }
        if self.all_complete:
            content |= self.summary() | statistics_of(self.first_token_latencies, "_ttft")
            content["throughput"] = float(self.instance.outputs.sum()) / self.makespan
        else:
            none = np.zeros(0)
            content |= {"total_latency": None, **statistics_of(none, "_latency")}
            content |= {**statistics_of(none, "_ttft"), "makespan": None, "throughput": None}
        return content | {"peak_memory": self.peak_memory} | self._outcome()

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per attempt: request, label, arrival, start, end, tokens, completed."""
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

    @property
    def _figure(self) -> tuple[str, object]:
        if not self.split:
            return "plot_schedule", self.schedule
        order = np.argsort(self.starts, kind="stable")  # an attempt is there when it starts
        attempts = self._work.instance.take(order).replace(arrivals=self.starts[order])
        return "plot_schedule", Schedule(attempts, self.starts[order], self.policy)

    def __str__(self) -> str:
        known = self._known
        lost = (
            f"  preempted {self.preemptions:,} attempts, {self.preempted_tokens:,} tokens "
            f"({self.preemption}), peak {self.peak_memory:,} tokens of all attempts"
        )
        if self.why is None and not self.split:
            schedule = str(self.schedule)
            if known:
                schedule = schedule.replace(":", f"{known}:", 1)
            return schedule if not self.preemptions else f"{schedule}\n{lost}"
        said = f"  the run {self.why}"
        if self.why is None:
            said = (
                f"  latency   total {self.total_latency:,}, mean {self.mean_latency:,.1f} steps\n"
                f"  makespan  {self.makespan:,} steps"
            )
        done = int(self.completed.sum())
        return (
            f"{self.policy}{known}: {done:,} of {len(self.instance):,} requests complete\n"
            f"{said}\n{lost}"
        )


def unpreempted(
    instance: Instance, policy: str, starts: IntArray, intervals: str | None = None
) -> Execution:
    """Return the execution in which each request runs once, from its start."""
    return Execution(
        instance, policy, np.arange(len(instance)), starts, instance.outputs, intervals
    )


def kept_before(requests: IntArray, tokens: IntArray, preemption: Preemption) -> IntArray:
    """Return the tokens that each attempt kept of the earlier ones of its request."""
    before = np.zeros_like(tokens)
    if preemption == "restarted":
        return before
    order = np.argsort(requests, kind="stable")
    sums = np.cumsum(tokens[order]) - tokens[order]
    first = np.searchsorted(requests[order], requests[order])
    before[order] = sums - sums[first]
    return before


def _wrong(execution: Execution) -> list[Violation]:
    instance, requests, starts = execution.instance, execution.requests, execution.starts
    found: list[Violation] = []

    def add(
        kind: ViolationKind, at: np.int64, numbers: tuple[int | np.int64, ...], text: str
    ) -> None:
        found.append(violation(instance, kind, at, map(int, numbers), text))

    arrivals, outputs = instance.arrivals, instance.outputs
    made = execution.before + execution.tokens
    for at in np.flatnonzero(starts < arrivals[requests]):
        request, step = requests[at], starts[at]
        add("arrival", request, (step, step, arrivals[request]), "starts before it arrives")
    for at in np.flatnonzero(made > outputs[requests]):
        numbers = (starts[at], made[at], outputs[requests[at]])
        add("output", requests[at], numbers, "makes more tokens than its output")
    ends = starts + execution.tokens
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
