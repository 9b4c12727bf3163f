"""What a run in steps really did: every attempt to process a request, preempted ones included."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame
from optsched.errors import PolicyError
from optsched.execution.base import Run
from optsched.instance import Instance
from optsched.premises import World
from optsched.schedule import Schedule, Violation

if TYPE_CHECKING:
    import pandas as pd

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.execution.base import Loop, Stall
    from optsched.premises import Preemption
    from optsched.schedule import ViolationKind


@dataclass(frozen=True, eq=False, repr=False)
class Execution(Run):
    """All attempts of a run in steps: what was processed when, and what was preempted.

    Attributes
    ----------
    requests, starts, tokens
        One entry per attempt, in the order in which they ended: the request, its start step, and
        the tokens it had made in the end. The attempt is complete if these are all.

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
    def facts(self) -> World:
        """Facts that decide which bounds apply to the run."""
        kept: Preemption = "restarted" if self.preemptions else "none"
        return World(self.instance.fingerprint, preemption=kept, unfinished=self.unfinished)

    @property
    def all_complete(self) -> bool:
        """Whether every request was completed."""
        return self.why is None

    @cached_property
    def schedule(self) -> Schedule:
        """The start of each request's completing attempt; an error if the run did not complete."""
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
    def latencies(self) -> IntArray:
        """Latency of each request in steps, shape (n,)."""
        return self.schedule.latencies

    @property
    def total_latency(self) -> int:
        """Sum of the latencies of all requests in steps."""
        return self.schedule.total_latency

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
        return _wrong(self) + (self._work.check() if len(self.requests) else [])

    def metrics(self) -> dict[str, Any]:
        """Return everything that `optsched simulate` reports, ready for a table or for JSON.

        Latencies and times to first token in steps (of the attempt that completed; None where the
        run did not complete), throughput in output tokens per step, memory in tokens, preemptions
        (also under "evictions"), the tokens they lost, and loop or stall where there is one; under
        intervals their coverage, the share of the requests whose output lies in its interval.
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
        return content | self._outcome(self.preempted_tokens)

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
    def _figure(self) -> tuple[str, Any]:
        return "plot_schedule", self.schedule

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


def unpreempted(
    instance: Instance, policy: str, starts: IntArray, intervals: str | None = None
) -> Execution:
    """Return the execution in which each request runs once, from its start."""
    return Execution(
        instance, policy, np.arange(len(instance)), starts, instance.outputs, intervals
    )


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
