"""The schedule: when each request starts, what that costs, and whether it is feasible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_SUM, as_integers
from optsched._internal.json import read_object, write_object
from optsched._internal.room import require_room
from optsched._internal.views import draw
from optsched.errors import InstanceError, ScheduleError
from optsched.premises import World

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.instance import Instance


ViolationKind = Literal[
    "memory",
    "arrival",
    "deadline",
    "placement",
    "output",
    "overlap",
    "completion",
    "duration",
    "slots",
]


@dataclass(frozen=True)
class Violation:
    """One reason why a schedule or a run is infeasible.

    Attributes
    ----------
    kind
        "memory": more tokens are held than fit. "arrival": a request starts before it is there.
        "deadline": a request completes too late. "placement": it runs on a worker where it may
        not. Of runs also "output": an attempt makes more
        tokens than the output has; "overlap": attempts of a request, or batches, overlap;
        "completion": a request is completed more than once, or never; "duration": a batch lasts
        longer or shorter than the clock says; "slots": a worker runs too many requests.
    request
        Index of the request at fault, -1 if it is a batch or a worker; for "memory" the one
        started last among those that hold tokens at `step`.
    label
        The user's name of that request.
    step
        For "memory" the first of consecutive overfull steps, else the start or the completion; on
        a clock the batch.
    usage
        Tokens held at `step`; for the other kinds the offending number itself.
    limit
        What `usage` was allowed to be.
    last_step
        For "memory" the last of the consecutive overfull steps, else `step`.
    message
        What a run or a joint schedule says of it; empty for a schedule.
    """

    kind: ViolationKind
    request: int
    label: str
    step: int
    usage: float
    limit: float
    last_step: int
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return self.message
        if self.kind == "arrival":
            return f"request {self.label} starts at step {self.step} but arrives at {self.limit}"
        if self.kind == "deadline":
            return f"request {self.label} completes at step {self.step}, due at {self.limit}"
        return (
            f"steps {self.step}..{self.last_step}: {self.usage} tokens at the first of them where "
            f"{self.limit} fit, request {self.label} being the last one started"
        )


class Started:
    """Start steps of all requests of an instance, on one worker or several, and their latencies."""

    instance: Instance
    starts: IntArray

    @property
    def completions(self) -> IntArray:
        """Step :math:`c_i = p_i + o_i` at which each request makes its last token, shape (n,)."""
        return self.starts + self.instance.outputs

    @property
    def latencies(self) -> IntArray:
        """End-to-end latency :math:`c_i - a_i` of each request in steps, shape (n,)."""
        return self.completions - self.instance.arrivals

    @property
    def first_token_latencies(self) -> IntArray:
        """Time to first token :math:`p_i + 1 - a_i` of each request in steps, shape (n,)."""
        return self.starts + 1 - self.instance.arrivals

    @property
    def total_latency(self) -> int:
        """Sum of the latencies (the papers' TEL) in steps."""
        return int(self.latencies.sum())

    @property
    def weighted_latency(self) -> float:
        """Sum of weight times latency in steps; the total latency where there are no weights."""
        weights = self.instance.weights
        return float(self.total_latency if weights is None else weights @ self.latencies)

    @property
    def mean_latency(self) -> float:
        """Mean latency (the papers' AEL) in steps."""
        return self.total_latency / len(self.starts)

    @property
    def makespan(self) -> int:
        """Last completion step."""
        return int(self.completions.max())

    def latency_percentiles(self) -> dict[str, float]:
        """Return the median, the 90th and the 99th percentile of the latency in steps.

        Returns
        -------
        dict
            Keys "p50", "p90", "p99"; linear interpolation between order statistics.

        Examples
        --------
        >>> from optsched import Instance
        >>> Schedule(Instance([1, 1], [2, 2], memory=9), [0, 2]).latency_percentiles()["p50"]
        3.0
        """
        values = np.percentile(self.latencies, [50, 90, 99])
        return dict(zip(("p50", "p90", "p99"), values.tolist(), strict=True))


@checked(ScheduleError)
@dataclass(frozen=True, eq=False, repr=False, init=False)
class Schedule(Started):
    """Start steps of all requests of an instance; every metric follows from them alone.

    A schedule may be infeasible; `check` lists why.

    Parameters
    ----------
    instance
        The requests.
    starts
        Start step of each request, shape (n,), in the order of the instance.
    policy
        The name of the policy or solver, for tables and plots.

    Raises
    ------
    ScheduleError
        If there is not exactly one whole number for each request.

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> instance = Instance(prompts=[63, 1, 1], outputs=[1, 2, 2], memory=64)
    >>> schedule = Schedule(instance, starts=[2, 0, 0])
    >>> schedule.completions, schedule.total_latency
    (array([3, 2, 2]), 7)
    >>> Schedule(instance, starts=[0, 0, 1]).check()[0].usage
    66
    """

    instance: Instance
    starts: IntArray
    policy: str

    def __init__(self, instance: Instance, starts: npt.ArrayLike, policy: str = "schedule") -> None:
        try:
            integers = as_integers("starts", starts)
        except InstanceError as error:
            raise ScheduleError(str(error)) from None
        if len(integers) != len(instance):
            raise ScheduleError(
                f"the schedule has {len(integers)} starts for {len(instance)} requests"
            )
        last = MAX_SUM // len(integers)
        if (beyond := (integers > last) | (integers < -last)).any():
            request = int(np.argmax(beyond))
            raise ScheduleError(
                f"request {request} starts at step {integers[request]}, but with {len(integers):,} "
                f"requests latencies add up to a number only for starts up to {last}"
            )
        object.__setattr__(self, "instance", instance)
        object.__setattr__(self, "starts", integers)
        object.__setattr__(self, "policy", policy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.instance == other.instance
            and self.policy == other.policy
            and np.array_equal(self.starts, other.starts)
        )

    def __hash__(self) -> int:
        return hash((self.instance, self.starts.tobytes()))

    def __repr__(self) -> str:
        return f"<Schedule {self.policy!r}: {len(self.starts)} requests>"

    def __str__(self) -> str:
        violations = self.check()
        verdict = "feasible" if not violations else f"infeasible, {len(violations)} violations"
        latency = self.latency_percentiles()
        return (
            f"{self.policy}: {len(self.starts):,} requests, {verdict}\n"
            f"  latency   total {self.total_latency:,}, mean {self.mean_latency:,.1f}, "
            f"p50 {latency['p50']:,.0f}, p90 {latency['p90']:,.0f}, "
            f"p99 {latency['p99']:,.0f} steps\n"
            f"  makespan  {self.makespan:,} steps\n"
            f"  memory    peak {self.peak_memory:,} of {self.instance.memory:,} tokens, "
            f"{self.utilisation:.1%} used on average"
        )

    @cached_property
    def _pieces(self) -> tuple[IntArray, IntArray, IntArray]:
        """Break usage into linear pieces: their first steps, tokens there, requests active."""
        begins, ends = self.starts + 1, self.completions + 1
        steps = np.concatenate([begins, ends])
        active = np.concatenate([np.ones_like(begins), -np.ones_like(ends)])
        offset = self.instance.prompts - self.starts  # usage of a request at step t is offset + t
        offsets = np.concatenate([offset, -offset])
        order = np.argsort(steps, kind="stable")
        first, index = np.unique(steps[order], return_index=True)
        last = np.append(index[1:], len(order)) - 1
        active = np.cumsum(active[order])[last]
        return first, np.cumsum(offsets[order])[last] + active * first, active

    def memory_profile(self) -> IntArray:
        """Return the tokens held at every step from 0 to the makespan.

        Returns
        -------
        IntArray
            Shape (makespan + 1,); entry t is the usage at step t, entry 0 is always 0.

        Examples
        --------
        >>> from optsched import Instance
        >>> Schedule(Instance([3, 1], [2, 2], memory=9), [0, 1]).memory_profile()
        array([0, 4, 7, 3])
        """
        first, tokens, active = self._pieces
        if first[0] < 1:
            raise ScheduleError(f"a request starts at step {first[0] - 1}, before time zero")
        advice = "use longer steps, or read peak_memory and plot, which need none"
        require_room(first[-1], 40, "steps of a schedule", advice, ScheduleError)
        lengths = np.diff(first)
        inside = np.arange(first[-1] - first[0]) - np.repeat(first[:-1] - first[0], lengths)
        usage = np.repeat(tokens[:-1], lengths) + np.repeat(active[:-1], lengths) * inside
        return np.concatenate([np.zeros(first[0], dtype=np.int64), usage])

    @property
    def facts(self) -> World:
        """What is true of it, on which it depends what bounds say of it."""
        return World(self.instance.fingerprint)

    @property
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step."""
        first, tokens, active = self._pieces
        return int((tokens[:-1] + active[:-1] * (np.diff(first) - 1)).max())

    @property
    def utilisation(self) -> float:
        """Tokens held on average over steps 1 to the makespan, as a share of the memory."""
        return float(self.instance.areas.sum()) / (self.instance.memory * self.makespan)

    def check(self) -> list[Violation]:
        """List everything that makes the schedule infeasible.

        Uses nothing of the code that makes schedules: usage is rebuilt from the start steps.

        Returns
        -------
        list of Violation
            Empty exactly if the schedule is feasible; early starts first, then missed deadlines,
            then runs of overfull steps.

        Examples
        --------
        >>> from optsched import Instance
        >>> instance = Instance([4, 4], [2, 2], memory=9, arrivals=[0, 1])
        >>> for violation in Schedule(instance, [0, 0]).check():
        ...     print(violation)
        request 1 starts at step 0 but arrives at 1
        steps 1..2: 10 tokens at the first of them where 9 fit, request 1 being the last one started
        """
        instance, found = self.instance, []
        early = self.starts < instance.arrivals
        rules: list[tuple[ViolationKind, BoolArray, IntArray, IntArray]] = [
            ("arrival", early, self.starts, instance.arrivals)
        ]
        if (due := instance.deadlines) is not None:
            rules.append(("deadline", self.completions > due, self.completions, due))
        for kind, broken, steps, limits in rules:
            for request in np.flatnonzero(broken).tolist():
                step, limit, label = (
                    int(steps[request]),
                    int(limits[request]),
                    instance.label(request),
                )
                found.append(Violation(kind, request, label, step, step, limit, step))
        return found + self.overfull(instance.memory)

    def overfull(self, limit: int) -> list[Violation]:
        """List the runs of steps at which more tokens are held than a limit.

        Parameters
        ----------
        limit
            Tokens that fit; `check` takes the memory.

        Returns
        -------
        list of Violation
            Of the kind "memory", one for each run of consecutive steps.

        Examples
        --------
        >>> from optsched import Instance
        >>> print(Schedule(Instance([4], [2], memory=9), [0]).overfull(5)[0])
        steps 2..2: 6 tokens at the first of them where 5 fit, request 0 being the last one started
        """
        first, tokens, active = self._pieces
        lengths = np.diff(first)
        tokens, active = tokens[:-1], active[:-1]
        over = np.flatnonzero(tokens + active * (lengths - 1) > limit)
        if not len(over):
            return []
        # Within a piece usage only grows: the overfull steps are its end, from `entry` on.
        entry = first[over] + np.maximum(0, (limit - tokens[over]) // active[over] + 1)
        leave = first[over] + lengths[over] - 1
        new_run = np.ones(len(over), dtype=bool)
        new_run[1:] = entry[1:] > leave[:-1] + 1
        begin = np.flatnonzero(new_run)
        end = np.append(begin[1:], len(over)) - 1
        by_start = np.argsort(self.starts, kind="stable")
        found = []
        for run_begin, run_end in zip(begin.tolist(), end.tolist(), strict=True):
            step = int(entry[run_begin])
            piece = over[run_begin]
            usage = int(tokens[piece] + active[piece] * (step - first[piece]))
            # Walk back from the last request started before this step to one still active.
            rank = int(np.searchsorted(self.starts[by_start], step)) - 1
            while self.completions[by_start[rank]] < step:
                rank -= 1
            request = int(by_start[rank])
            label = self.instance.label(request)
            last = int(leave[run_end])
            found.append(Violation("memory", request, label, step, usage, limit, last))
        return found

    def metrics(self) -> dict[str, Any]:
        """Return all metrics in one dictionary, for a table or for JSON.

        Returns
        -------
        dict
            Latencies in steps, memory in tokens, utilisation as a share; weighted latency and
            missed deadlines where the instance has weights and deadlines.

        Examples
        --------
        >>> from optsched import Instance
        >>> Schedule(Instance([1], [2], memory=9), [0]).metrics()["makespan"]
        2
        """
        metrics = {
            "total_latency": self.total_latency,
            "mean_latency": self.mean_latency,
            **{f"{key}_latency": value for key, value in self.latency_percentiles().items()},
            "mean_ttft": float(self.first_token_latencies.mean()),
            "makespan": self.makespan,
            "peak_memory": self.peak_memory,
            "utilisation": self.utilisation,
        }
        if self.instance.weights is not None:
            metrics["weighted_latency"] = self.weighted_latency
        if self.instance.deadlines is not None:
            late = self.completions > self.instance.deadlines
            metrics["missed_deadlines"] = int(late.sum())
        return metrics

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the requests as bars that grow from their prompts to prompts plus outputs.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_schedule", self, ax)

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the schedule as JSON, without the instance.

        Parameters
        ----------
        path
            Where to write it; None only returns the text.

        Returns
        -------
        str
            The JSON text, from which `from_json` makes an equal schedule.

        Examples
        --------
        >>> from optsched import Instance
        >>> schedule = Schedule(Instance([1], [2], memory=8), [0], policy="by hand")
        >>> from optsched import Instance
        >>> Schedule.from_json(schedule.to_json(), schedule.instance) == schedule
        True
        """
        content = {
            "format": "optsched-schedule",
            "policy": self.policy,
            "starts": self.starts.tolist(),
        }
        return write_object(content, path)

    @classmethod
    def from_json(cls, source: str | Path, instance: Instance) -> Schedule:
        """Read a schedule of an instance from a JSON file or from JSON text.

        Parameters
        ----------
        source
            A path, or the text itself (it starts with a brace). Only the key "starts" is needed.
        instance
            The requests that are scheduled.

        Returns
        -------
        Schedule
            The schedule, which may be infeasible.

        Raises
        ------
        ScheduleError
            If there is no list of starts, one whole number for each request.

        Examples
        --------
        >>> from optsched import Instance
        >>> Schedule.from_json('{"starts": [4]}', Instance([1], [2], memory=8)).makespan
        6
        """
        content, where = read_object(source, ScheduleError, "the key 'starts'")
        if "starts" not in content:
            raise ScheduleError(f"{where} holds no JSON object with the key 'starts'")
        return cls(instance, content["starts"], str(content.get("policy", "schedule")))
