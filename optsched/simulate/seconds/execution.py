"""A run on a clock: when the batches were, and which of them made each request's tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.imports import data_frame
from optsched._internal.numbers import number
from optsched.clock import BatchContent, Clock, LinearClock
from optsched.errors import PolicyError
from optsched.problem import work
from optsched.problem.execution import Loop, Stall, TimedRun, write_log
from optsched.problem.premises import STORAGES, Knowledge, Preemption, World
from optsched.problem.schedule import Violation, ViolationKind, violation
from optsched.simulate.seconds.batches import COLUMNS, BatchLog, EngineRequests

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched._internal.files import JSON
    from optsched.problem.instance import Instance
    from optsched.simulate.settings import Task

_HELD = BatchContent._fields.index("held_tokens")
_DECODING = BatchContent._fields.index("decode_requests")


@dataclass(frozen=True, eq=False, repr=False)
class ClockedRun(TimedRun):
    """What a policy made of an instance on a clock.

    Times are in the unit of the clock, seconds for all but the unit clock; arrays have shape (n,).

    Attributes
    ----------
    first_batch, last_batch
        Index of the batch that made each request's first and last token; -1 where none did before
        the run ended.
    log
        All batches.
    preempted
        How often each request was preempted.
    preempted_tokens_by_request
        Tokens of each request that were in the KV cache when it was preempted.
    until
        Time from which no batch was formed; infinite where all requests were served.
    statistics
        Of vLLM's scheduler, one row per batch: requests in it and their tokens, requests that run
        after it was formed and that waited before, free blocks, requests preempted, shape (b, 6);
        None for other policies.
    max_num_seqs
        Limit of requests per batch that an engine kept; None for other policies.
    asked, cached
        Tokens of each request at its admissions, and those of them that were found in a prefix
        cache; None without one.
    preemption
        As of `Execution`.

    Examples
    --------
    >>> from optsched import Instance, run
    >>> timed = run(Instance([62, 62], [2, 1], memory=64), "fcfs", clock="affine:0.01,0.001")
    >>> timed.completions
    array([0.147, 0.22 ])
    >>> timed.unfinished, round(timed.metrics()["throughput"], 2)
    (0, 13.64)
    """

    instance: Instance
    policy: str
    clock: Clock
    first_batch: IntArray
    last_batch: IntArray
    log: BatchLog
    preempted: IntArray
    preempted_tokens_by_request: IntArray
    until: float = np.inf
    intervals: str | None = None
    loop: Loop | None = None
    stall: Stall | None = None
    decisions: Any = None
    statistics: IntArray | None = None
    max_num_seqs: int | None = None
    asked: IntArray | None = None
    cached: IntArray | None = None
    preemption: Preemption = "restarted"
    knows: Knowledge | None = None

    def __repr__(self) -> str:
        lost = f", {self.fell_back}" if self.fell_back else ""
        return f"<ClockedRun {self.policy!r}: {len(self.log.spans)} batches{lost}>"

    @property
    def first_tokens(self) -> FloatArray:
        """Time at which each request had its first token; NaN where it never had, shape (n,)."""
        return self._end_of(self.first_batch)

    @property
    def completions(self) -> FloatArray:
        """Time at which each request had its last token; NaN where it is unfinished, shape (n,)."""
        return self._end_of(self.last_batch)

    def _end_of(self, batches: IntArray) -> FloatArray:
        ends = np.append(self.log.spans[:, 1], np.nan)  # index -1
        return ends[batches]

    def lasts_as_on(self, clock: LinearClock) -> bool:
        """Return whether every batch lasts at least as long as on another clock."""
        contents = (BatchContent(*row) for row in self.log.contents.tolist())
        return all(self.clock(each) >= clock(each) for each in contents)

    @property
    def facts(self) -> World:
        """Facts that decide which bounds apply to the run."""
        shared = bool(self.cached_tokens) and self.instance.hash_ids is not None
        timed, held = self.clock, self.log.contents[:, _HELD]
        if self.cached_tokens and not shared and timed.coefficients is not None:
            timed = work.going_on_from_a_cache(timed)  # as only preempted requests found their own
        coefficients = timed.coefficients
        return World(
            self.instance.fingerprint,
            clock=() if coefficients is None else tuple(coefficients.tolist()),
            step=work.step_of(self.instance, self.clock),
            storage=STORAGES[int(held.max(initial=0) > self.instance.memory)],
            preemption=self.preemption if self.preemptions else "none",
            max_num_seqs=self.max_num_seqs,
            unfinished=self.unfinished,
            cached=shared or (bool(self.cached_tokens) and coefficients is None),
        )

    @property
    def beyond(self) -> str | None:
        """Where batches leave the range that a fitted clock knows; None: nowhere."""
        clock = self.clock
        return clock.beyond(self.log.contents) if isinstance(clock, LinearClock) else None

    @property
    def cached_tokens(self) -> int:
        """Tokens that requests found in a prefix cache."""
        return 0 if self.cached is None else int(self.cached.sum())

    @property
    def hit_rate(self) -> float | None:
        """Share of the tokens of admitted requests that were found; None without a cache."""
        if self.asked is None:
            return None
        return self.cached_tokens / max(1, int(self.asked.sum()))

    @property
    def preemptions(self) -> int:
        """How often a request was preempted."""
        return int(self.preempted.sum())

    @property
    def preempted_tokens(self) -> int:
        """Tokens that preempted requests had in the KV cache."""
        return int(self.preempted_tokens_by_request.sum())

    def in_system(self, times: npt.ArrayLike) -> IntArray:
        """Count the requests that have arrived by each time and are not complete by then."""
        done = np.sort(self.completions[self.completed])
        arrived = np.searchsorted(self.arrivals, times, side="right")
        return np.asarray(arrived - np.searchsorted(done, times, side="right"), dtype=np.int64)

    @property
    def makespan(self) -> float:
        """When the last batch ended, or the run was stopped."""
        last = float(self.log.spans[-1, 1]) if len(self.log.spans) else 0.0
        ran_dry = self.why is not None
        # The batch that runs when the time is up is run to its end.
        return last if not self.unfinished or ran_dry else max(last, self.until)

    @property
    def peak_memory(self) -> int:
        """Most tokens held at the end of any batch."""
        return int(self.log.usage.max(initial=0))

    @property
    def full(self) -> bool:
        """Whether a request waited while as many as a batch may have (`max_num_seqs`) decoded."""
        if self.max_num_seqs is None:
            return False
        begins = self.log.spans[self.log.contents[:, _DECODING] >= self.max_num_seqs, 0]
        return bool((self.in_system(begins) > self.max_num_seqs).any())

    def check(self) -> list[Violation]:
        """Return what is wrong with the run, rebuilt from its batches alone.

        The list is empty if the memory suffices at every batch, batches do not overlap and last as
        long as the clock says (or longer, where ranks wait for each other), and no request has a
        token before it arrives.
        """
        found: list[Violation] = []
        log, memory = self.log, self.instance.memory

        def batch(kind: ViolationKind, row: int, usage: float, limit: float, sentence: str) -> None:
            found.append(Violation(kind, -1, "", row, usage, limit, row, sentence))

        for row in np.flatnonzero(log.usage > memory).tolist():
            held = int(log.usage[row])
            sentence = f"batch {row} ends with {held} tokens where {memory} fit"
            batch("memory", row, held, memory, sentence)
        spans = log.spans.tolist()
        for row in np.flatnonzero(log.spans[1:, 0] < log.spans[:-1, 1]).tolist():
            sentence = f"batch {row + 1} begins before batch {row} has ended"
            batch("overlap", row + 1, spans[row + 1][0], spans[row][1], sentence)
        for row, (begin, end) in enumerate(spans):
            lasts = self.clock(BatchContent(*log.contents[row].tolist()))
            if isinstance(self.clock, LinearClock) and self.clock.shared is not None:
                lasts = max(lasts, end - begin)
            if not np.isclose(end - begin, lasts, rtol=1e-6, atol=1e-12 * max(end, 1)):
                sentence = f"batch {row} lasts {end - begin:g} {self.unit}, not {lasts:g}"
                batch("duration", row, end - begin, lasts, sentence)
        served = np.append(log.spans[:, 0], np.inf)[self.first_batch]  # index -1: never
        for request in np.flatnonzero(served < self.arrivals).tolist():
            times = float(served[request]), float(self.arrivals[request])
            numbers, text = (self.first_batch[request], *times), "is served before it arrives"
            found.append(violation(self.instance, "arrival", request, numbers, text))
        return found

    def _parts(self) -> dict[str, float | None]:
        """Return what takes the time of all batches; None on a clock that is a function."""
        names = ("prefill_time", "decode_time", "constant_time", "hinge_time")
        if self.clock.coefficients is None:
            return dict.fromkeys(names)
        prefill, decodes, resident, squares, held = self.log.contents.sum(axis=0).tolist()
        mixed = int(self.log.contents[self.log.contents[:, 0] > 0, 2].sum())
        constant, *c = self.clock.coefficients.tolist()
        decoding = resident + decodes  # held by those that decode, when a batch ends
        parts = (
            c[0] * prefill + c[3] * squares + c[4] * (held - decoding),
            c[1] * decodes + c[2] * resident + c[4] * decoding + self.clock.mixed_tokens * mixed,
            constant * len(self.log.spans),
        )
        begins, ends = self.log.spans.T
        bent = self.clock.hinges or self.clock.ramps
        hinges = float((ends - begins).sum()) - sum(parts) if bent else 0.0
        return dict(zip(names, (*parts, hinges), strict=True))

    @checked(PolicyError)
    def metrics(self, warm_up: float = 0.0) -> JSON:
        """Return all metrics in one dictionary, ready for a table or for JSON.

        Requests that arrive before the warm-up is over are left out of the latencies, and tokens
        that were complete before that out of the throughput. Latency, TTFT and TPOT of completed
        requests are in the clock's unit (None where there are none), throughput in output tokens of
        completed requests and in requests per unit of time. Beside them: what takes the time of all
        batches (prefill, decode, constants, hinges; None on a clock that is a function), requests
        completed and unfinished, memory, batches, preemptions (also under "evictions") and the
        tokens they lost; missed deadlines where there are deadlines, and under intervals their
        coverage, the share of the requests whose output lies in its interval.
        """
        if not (warm_up == 0 or 0 < warm_up < self.makespan):
            raise PolicyError(
                f"warm-up is {warm_up:g} {self.clock.unit}, but the run lasts {self.makespan:g}; "
                "give less, or a longer trace"
            )
        counted = self.completed & (self.arrivals >= warm_up)
        content: JSON = {
            "policy": self.policy,
            "intervals": self.intervals,
            "clock": self.clock.name,
            "unit": self.clock.unit,
            "requests": len(self.instance),
            "completed": int(self.completed.sum()),
            "unfinished": self.unfinished,
        }
        content |= self._summaries(counted)
        done = self.completed & (np.nan_to_num(self.completions) > warm_up)
        span = self.makespan - warm_up or np.inf  # nothing was run in no time
        begins, ends = self.log.spans.T
        sizes = self.log.contents[:, BatchContent._fields.index("decode_requests")]
        content |= {
            "makespan": self.makespan,
            "throughput": float(self.instance.outputs[done].sum()) / span,
            "request_throughput": float(done.sum()) / span,
            "peak_memory": self.peak_memory,
            "batches": len(self.log.spans),
            "mean_decodes": float(sizes.mean()) if len(sizes) else 0.0,
            **self._parts(),
            "busy": float((ends - begins).sum()) / (self.makespan or np.inf),
            **self._outcome(),
        }
        if self.cached is not None:
            content |= {"cached_tokens": self.cached_tokens, "hit_rate": self.hit_rate}
        if self.deadlines is not None:
            content["missed_deadlines"] = self._missed(self.deadlines)
        return content

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per request: lengths, times, preemptions; NaN for what did not happen."""
        return self._by_request(
            prompt=self.instance.prompts,
            output=self.instance.outputs,
            arrival=self.arrivals,
            first_token=self.first_tokens,
            completion=self.completions,
            **self.times._asdict(),
            preemptions=self.preempted,
            preempted_tokens=self.preempted_tokens_by_request,
        )

    def batches(self) -> pd.DataFrame:
        """Return one row per batch: times, counts of `BatchContent`, tokens held at its end."""
        frame = data_frame(self.log.contents, columns=list(BatchContent._fields))
        frame.insert(0, "end", self.log.spans[:, 1])
        frame.insert(0, "begin", self.log.spans[:, 0])
        return frame.assign(usage=self.log.usage)

    def to_log(self, path: str | Path) -> None:
        """Write one row per request, as `Run.to_log`; in seconds with first_s and last_s."""
        frame = self.to_pandas()
        if self.unit == "s":
            frame = frame.assign(first_s=self.first_tokens, last_s=self.completions)
        write_log(frame, path)

    def to_batches(self, path: str | Path) -> None:
        """Write one row per batch of vLLM's scheduler, with the columns of `statistics`."""
        if self.statistics is None:
            raise PolicyError(f"only vllm keeps a row per batch, but {self.policy} ran")
        frame = data_frame(self.statistics, columns=list(COLUMNS[: self.statistics.shape[1]]))
        frame.insert(0, "end_s", self.log.spans[:, 1])
        frame.insert(0, "begin_s", self.log.spans[:, 0])
        write_log(frame, path)

    @property
    def _figure(self) -> tuple[str, object]:
        return "plot_clocked_usage", [self]

    def __str__(self) -> str:
        metrics = self.metrics()
        unit, memory = self.clock.unit, self.instance.memory
        per = "second" if unit == "s" else "step"
        left = f", {self.unfinished:,} unfinished" if self.unfinished else ""
        lines = [
            f"{self.policy}{self._known} on {self.clock.name}: "
            f"{len(self.instance):,} requests{left}",
            *self._lines(metrics),
            f"  output    {number(metrics['throughput'])} tokens per {per}, "
            f"{metrics['batches']:,} batches until {number(self.makespan)} {unit}",
            f"  memory    peak {self.peak_memory:,} of {memory:,} tokens",
        ]
        if self.preemptions:
            lost = f"{metrics['preempted_tokens']:,} tokens ({self.preemption})"
            lines[-1] += f"; {self.preemptions:,} preemptions, {lost}"
        if self.hit_rate is not None:
            found = f"{self.cached_tokens:,} tokens found, {self.hit_rate:.1%} of all"
            lines.append(f"  cache     {found}")
        # Of tokens that need not be computed again it says nothing.
        if not self.cached_tokens and (load := work.load_on_clock(self.instance, self.clock)):
            lines.append(f"  load      {load}")
        if self.why is not None:
            lines.append(f"  the run {self.why}")
        if self.beyond is not None:
            lines.append(f"  {self.beyond}")
        return "\n".join(lines)


def requests_of(instance: Instance, clock: Clock) -> EngineRequests:
    """Return what kernels know of the requests."""
    arrivals = work.arrival_times(instance, clock)
    return EngineRequests(instance.prompts, arrivals, instance.outputs, instance.memory)


def clocked_run(
    task: Task, log: BatchLog, batches: tuple[IntArray, IntArray], lost: tuple[IntArray, IntArray]
) -> ClockedRun:
    """Return the run of first and last batches, preemptions and the tokens that these cost."""
    named = task.instance, task.policy.name, task.clock
    until, intervals = task.settings.until, task.settings.intervals
    return ClockedRun(*named, *batches, log, *lost, until=until, intervals=intervals)


def admitted_run(task: Task, starts: IntArray, log: BatchLog) -> ClockedRun:
    """Return the run in which requests start in these batches, and then run to their ends."""
    # The batch after `starts` others makes the first token, and each one after it another.
    last, ran = starts + task.instance.outputs - 1, len(log.spans)
    first = np.where(starts < ran, starts, -1)
    last = np.where((starts >= 0) & (last < ran), last, -1)
    return clocked_run(task, log, (first, last), (np.zeros_like(starts), np.zeros_like(starts)))


def served_run(task: Task, served: Records, log: BatchLog, lost: str) -> ClockedRun:
    """Return the run of an engine; `lost` names what it notes of tokens that a preemption costs."""
    fields = ("first", "last", "preempted", lost)
    first, last, preempted, tokens = (served[field].copy() for field in fields)
    return replace(
        clocked_run(task, log, (first, last), (preempted, tokens)),
        intervals=None,
        max_num_seqs=getattr(task.policy, "max_num_seqs", None),
        preemption="recomputed" if lost == "recomputed" else "restarted",
    )
