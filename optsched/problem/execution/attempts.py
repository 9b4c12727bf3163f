"""What a run in steps really did: every attempt to process a request, preempted ones included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame
from optsched.errors import PolicyError
from optsched.problem.execution.base import Run
from optsched.problem.instance import Instance
from optsched.problem.premises import World
from optsched.problem.schedule import Schedule, Violation
from optsched.problem.schedule.latencies import Started

if TYPE_CHECKING:
    import pandas as pd

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.problem.execution.base import Loop, Stall
    from optsched.problem.premises import Knowledge, Preemption
    from optsched.problem.schedule import ViolationKind


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
    def first_token_latencies(self) -> IntArray:
        """Time to the first token that was kept of each request in steps, shape (n,)."""
        kept = np.ones_like(self.completed) if self.split else self.completed
        return self._of_each(kept, self.starts) + 1 - self.instance.arrivals

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

    def metrics(self) -> dict[str, Any]:
        """Return everything that `optsched simulate` reports, ready for a table or for JSON.

        Latencies and times to first token in steps (of the attempt that completed; None where the
        run did not complete), throughput in output tokens per step, memory in tokens, preemptions
        (also under "evictions"), the tokens that those had made, and loop or stall where there is
        one; under intervals their coverage, the share of the requests whose output lies in its
        interval.
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
            first = np.percentile(self.first_token_latencies, [50, 90, 99]).tolist()
            content |= self.summary()
            content |= dict(zip(first_token[1:], first, strict=True))
            content["throughput"] = float(self.instance.outputs.sum()) / self.makespan
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

    def add(kind: ViolationKind, at: np.int64, numbers: tuple[Any, Any, Any], text: str) -> None:
        request, step, usage, limit = map(int, (at, *numbers))
        label = instance.label(request)
        sentence = f"request {label} {text}"
        found.append(Violation(kind, request, label, step, usage, limit, step, sentence))

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
