"""Schedules: when requests start and where, their metrics, and what they violate."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_SUM, as_integers, require_room
from optsched._internal.files import read_object, write_object
from optsched._internal.imports import data_frame
from optsched._internal.numbers import exact_dot
from optsched._internal.views import Shown, draw
from optsched.errors import InstanceError, ScheduleError, named
from optsched.problem.premises import World
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched._internal.files import JSON
    from optsched.problem.instance import Instance


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
        not. Of runs also "output": an attempt makes more tokens than the output has; "overlap":
        attempts of a request, or batches, overlap; "completion": a request is completed more than
        once, or never; "duration": a batch lasts longer or shorter than the clock says; "slots": a
        worker runs too many requests.
    request, label
        Index and label of the request at fault, -1 if it is a batch or a worker; for "memory" the
        one started last among those that hold tokens at `step`.
    step, last_step
        For "memory" the first and last of consecutive overfull steps, else the start or the
        completion; on a clock the batch.
    usage, limit
        Tokens held at `step`, or the offending number itself, and its limit.
    message
        What a run, or a schedule of several workers, says of it; else empty.
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


def violation(
    instance: Instance,
    kind: ViolationKind,
    request: int | np.integer,
    numbers: Iterable[float],
    text: str = "",
) -> Violation:
    """Return what is wrong with a request at a step: numbers are the step, usage and limit."""
    step, usage, limit = numbers
    label = instance.label(int(request))
    said = text and f"request {label} {text}"
    return Violation(kind, int(request), label, int(step), usage, limit, int(step), said)


class Usage:
    """Tokens that some requests hold together, as pieces of steps over which they only grow."""

    def __init__(self, starts: IntArray, prompts: IntArray, outputs: IntArray) -> None:
        self.starts, self.completions = starts, starts + outputs
        begins, ends = starts + 1, self.completions + 1
        steps = np.concatenate([begins, ends])
        active = np.concatenate([np.ones_like(begins), -np.ones_like(ends)])
        offset = prompts - starts  # a request that is active at step t holds offset + t
        offsets = np.concatenate([offset, -offset])
        order = np.argsort(steps, kind="stable")
        self.first, index = np.unique(steps[order], return_index=True)
        last = np.append(index[1:], len(order)) - 1
        active = np.cumsum(active[order])[last]
        self.tokens = (np.cumsum(offsets[order])[last] + active * self.first)[:-1]
        self.active, self.lengths = active[:-1], np.diff(self.first)

    @property
    def peak(self) -> int:
        """Largest number of tokens held at any step."""
        return int((self.tokens + self.active * (self.lengths - 1)).max())

    def at(self, steps: IntArray) -> IntArray:
        """Return the tokens held at some steps."""
        piece = np.searchsorted(self.first, steps, side="right")
        tokens, active = (np.concatenate([[0], part, [0]]) for part in (self.tokens, self.active))
        held: IntArray = tokens[piece] + active[piece] * (steps - np.append(0, self.first)[piece])
        return held

    def profile(self) -> IntArray:
        """Return the tokens held at every step from 0 to the last completion."""
        first, lengths = self.first, self.lengths
        if first[0] < 1:
            raise ScheduleError(f"a request starts at step {first[0] - 1}, before time zero")
        advice = "use longer steps, or read peak_memory and plot, which need none"
        require_room(first[-1], 40, "steps of a schedule", advice, ScheduleError)
        inside = np.arange(first[-1] - first[0]) - np.repeat(first[:-1] - first[0], lengths)
        usage = np.repeat(self.tokens, lengths) + np.repeat(self.active, lengths) * inside
        return np.concatenate([np.zeros(first[0], dtype=np.int64), usage])

    def overfull(self, limit: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs of overfull steps: first, last, tokens at the first, last one to start."""
        first, tokens, active = self.first, self.tokens, self.active
        over = np.flatnonzero(tokens + active * (self.lengths - 1) > limit)
        if not len(over):
            return
        # Within a piece usage only grows: the overfull steps are its end, from `entry` on.
        entry = first[over] + np.maximum(0, (limit - tokens[over]) // active[over] + 1)
        leave = first[over] + self.lengths[over] - 1
        new_run = np.ones(len(over), dtype=bool)
        new_run[1:] = entry[1:] > leave[:-1] + 1
        begin = np.flatnonzero(new_run)
        end = np.append(begin[1:], len(over)) - 1
        by_start = np.argsort(self.starts, kind="stable")
        starts = self.starts[by_start]
        for run_begin, run_end in zip(begin.tolist(), end.tolist(), strict=True):
            step, piece = int(entry[run_begin]), over[run_begin]
            usage = int(tokens[piece] + active[piece] * (step - first[piece]))
            # Walk back from the last request started before this step to one still active.
            rank = int(np.searchsorted(starts, step)) - 1
            while self.completions[by_start[rank]] < step:
                rank -= 1
            yield step, int(leave[run_end]), usage, int(by_start[rank])


#: What is said of the latencies of requests: their mean, and percentiles, interpolated.
STATISTICS = ("mean", "p50", "p90", "p99")


def statistics_of(values: FloatArray | IntArray, suffix: str = "") -> dict[str, float | None]:
    """Return the statistics of numbers, by names with a suffix; None where there are none."""
    found: list[float | None] = [None] * len(STATISTICS)
    if len(values):
        found = [float(values.mean()), *np.percentile(values, [50, 90, 99]).tolist()]
    return {f"{each}{suffix}": value for each, value in zip(STATISTICS, found, strict=True)}


class Started:
    """Requests of an instance with their start steps."""

    instance: Instance
    starts: IntArray

    @property
    @abstractmethod
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step."""

    @property
    @abstractmethod
    def utilisation(self) -> float:
        """Tokens held on average over steps 1 to the makespan, as a share of all memory."""

    @property
    def completions(self) -> IntArray:
        """Step :math:`c_i = p_i + o_i` at which each request makes its last token, shape (n,)."""
        return self.starts + self.instance.outputs

    @property
    def latencies(self) -> IntArray:
        """End-to-end latency :math:`c_i - a_i` of each request in steps, shape (n,)."""
        return self.completions - self.instance.arrivals

    @property
    def first_tokens(self) -> IntArray:
        """Step :math:`p_i + 1` at which each request makes its first token, shape (n,)."""
        return self.starts + 1

    @property
    def first_token_latencies(self) -> IntArray:
        """Time to first token :math:`p_i + 1 - a_i` of each request in steps, shape (n,)."""
        return self.first_tokens - self.instance.arrivals

    @property
    def total_latency(self) -> int:
        """Sum of the latencies (the papers' TEL) in steps."""
        return int(self.latencies.sum())

    @property
    def weighted_latency(self) -> float:
        """Sum of weight times latency in steps; the total latency where there are no weights."""
        weights = self.instance.weights
        return float(self.total_latency if weights is None else exact_dot(weights, self.latencies))

    @property
    def mean_latency(self) -> float:
        """Mean latency (the papers' AEL) in steps."""
        return self.total_latency / len(self.instance)

    @property
    def makespan(self) -> int:
        """Last completion step."""
        return int(self.completions.max())

    def latency_percentiles(self) -> dict[str, float]:
        """Return the percentiles "p50", "p90" and "p99" of the latency in steps, interpolated."""
        numbers = np.percentile(self.latencies, [50, 90, 99]).tolist()
        return dict(zip(STATISTICS[1:], numbers, strict=True))

    def summary(self) -> JSON:
        """Return latencies, memory and missed deadlines, ready for a table or for JSON."""
        found: JSON = {
            "total_latency": self.total_latency,
            **statistics_of(self.latencies, "_latency"),
            "mean_latency": self.mean_latency,  # of whole numbers, exactly
            "mean_ttft": float(self.first_token_latencies.mean()),
            "makespan": self.makespan,
            "peak_memory": self.peak_memory,
            "utilisation": self.utilisation,
        }
        if self.instance.weights is not None:
            found["weighted_latency"] = self.weighted_latency
        if self.instance.deadlines is not None:
            found["missed_deadlines"] = int((self.completions > self.instance.deadlines).sum())
        return found


@checked(ScheduleError)
@dataclass(frozen=True, eq=False, repr=False, init=False)
class Schedule(Started, Shown):
    """When and where each request of an instance starts; every metric follows from that alone.

    A schedule may be infeasible; `check` lists why.

    Parameters
    ----------
    instance
        The requests.
    starts
        Start step of each request, shape (n,), in the order of the instance.
    policy
        The name of the policy or solver, for tables and plots.
    workers
        A number of workers with the memory of the instance, their memories, or `Workers`; None is
        one worker.
    placement
        Worker of each request, counted from 0, shape (n,); not needed on one worker.

    Raises
    ------
    ScheduleError, InstanceError
        If there are not exactly one whole start and one worker for each request, or a request may
        run on no worker.

    Examples
    --------
    >>> from optsched import Instance, Schedule
    >>> instance = Instance(prompts=[63, 1, 1], outputs=[1, 2, 2], memory=64)
    >>> schedule = Schedule(instance, starts=[2, 0, 0])
    >>> schedule.completions, schedule.total_latency, schedule.memory_profile()
    (array([3, 2, 2]), 7, array([ 0,  4,  6, 64]))
    >>> Schedule(instance, starts=[0, 0, 1]).check()[0].usage
    66
    >>> several = Schedule(instance, starts=[0, 0, 0], workers=2, placement=[0, 1, 1])
    >>> several.total_latency, several.makespan, several.check()
    (5, 2, [])
    """

    instance: Instance
    starts: IntArray
    policy: str
    workers: Workers
    placement: IntArray

    def __init__(
        self,
        instance: Instance,
        starts: npt.ArrayLike,
        policy: str = "schedule",
        *,
        workers: int | str | Sequence[int] | Workers | None = None,
        placement: npt.ArrayLike | None = None,
    ) -> None:
        made = Workers([instance.memory]) if workers is None else as_workers(workers, instance)
        if placement is None:
            if len(made) > 1:
                raise ScheduleError(
                    f"placement is missing; pass the worker of each request, from 0 to "
                    f"{len(made) - 1}"
                )
            placement = np.zeros(len(instance), dtype=np.int64)
        first_steps = _one_each("starts", starts, instance)
        places = _one_each("placement", placement, instance)
        last = MAX_SUM // len(first_steps)
        if (beyond := (first_steps > last) | (first_steps < -last)).any():
            request = int(np.argmax(beyond))
            raise ScheduleError(
                f"request {request} starts at step {first_steps[request]}, but with "
                f"{len(instance):,} requests latencies add up to a number only for starts up to "
                f"{last}"
            )
        if (absent := (places < 0) | (places >= len(made))).any():
            request = int(np.argmax(absent))
            raise ScheduleError(
                f"request {instance.label(request)} is placed on worker {places[request]}, but "
                f"workers are numbered from 0 to {len(made) - 1}"
            )
        vars(self).update(instance=instance, starts=first_steps, policy=policy)
        vars(self).update(workers=made, placement=places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            (self.instance, self.policy, self.workers)
            == (other.instance, other.policy, other.workers)
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.placement, other.placement)
        )

    def __hash__(self) -> int:
        return hash((self.instance, self.starts.tobytes(), self.placement.tobytes()))

    def __repr__(self) -> str:
        return f"<Schedule {self.policy!r}: {len(self.starts)} requests{self._where}>"

    def __str__(self) -> str:
        violations = self.check()
        verdict = "feasible" if not violations else f"infeasible, {len(violations)} violations"
        latency = self.latency_percentiles()
        if len(self.workers) == 1:
            memory = (
                f"memory    peak {self.peak_memory:,} of {self.workers.total:,} tokens, "
                f"{self.utilisation:.1%} used on average"
            )
        else:
            served, shares = self._served, self._utilisations
            memory = (
                f"workers   {served.min():,} to {served.max():,} requests each, "
                f"{shares.min():.1%} to {shares.max():.1%} of memory used on average"
            )
        return (
            f"{self.policy}: {len(self.starts):,} requests{self._where}, {verdict}\n"
            f"  latency   total {self.total_latency:,}, mean {self.mean_latency:,.1f}, "
            f"p50 {latency['p50']:,.0f}, p90 {latency['p90']:,.0f}, "
            f"p99 {latency['p99']:,.0f} steps\n"
            f"  makespan  {self.makespan:,} steps\n"
            f"  {memory}"
        )

    @property
    def _where(self) -> str:
        return f" on {len(self.workers):,} workers" if len(self.workers) > 1 else ""

    def requests_on(self, worker: int) -> IntArray:
        """Return the requests of a worker, counted from 0, ascending."""
        return np.flatnonzero(self.placement == worker)

    def on(self, worker: int) -> Schedule:
        """Return the schedule of one worker, counted from 0; an error if it serves no request."""
        requests = self.requests_on(worker)
        if not len(requests):
            raise ScheduleError(f"worker {worker} of {len(self.workers)} serves no request")
        own = self.instance.take(requests).replace(memory=self.workers.memories[worker])
        return Schedule(own, self.starts[requests], self.policy)

    def pooled(self) -> Schedule:
        """Return the starts on one worker with the memory of all; its bounds apply here, too."""
        if len(self.workers) == 1 and self.workers.total == self.instance.memory:
            return self
        everything = self.workers.pool(self.instance)
        return Schedule(everything, self.starts, self.policy)

    @cached_property
    def _usage(self) -> Usage:
        """Tokens held on all workers together."""
        return Usage(self.starts, self.instance.prompts, self.instance.outputs)

    def memory_profile(self) -> IntArray:
        """Return the tokens held at every step from 0 to the makespan, on all workers together."""
        return self._usage.profile()

    @property
    def facts(self) -> World:
        """Facts that decide which bounds apply to it."""
        if self.workers == Workers([self.instance.memory]):
            return World(self.instance.fingerprint)
        return World(self.workers.fingerprint(self.instance), workers=len(self.workers))

    @property
    def peak_memory(self) -> int:
        """Largest number of tokens held at any step, on all workers together."""
        return self._usage.peak

    @property
    def utilisation(self) -> float:
        """Tokens held on average over steps 1 to the makespan, as a share of all memory."""
        return float(self.instance.areas.sum()) / (self.workers.total * self.makespan)

    @property
    def _served(self) -> IntArray:
        return np.bincount(self.placement, minlength=len(self.workers))

    @property
    def _utilisations(self) -> FloatArray:
        """As `utilisation`, of each worker, shape (G,)."""
        held = np.bincount(self.placement, self.instance.areas, minlength=len(self.workers))
        shares: FloatArray = held / (np.array(self.workers.memories, dtype=float) * self.makespan)
        return shares

    def check(self) -> list[Violation]:
        """List everything that makes the schedule infeasible, by starts and placement alone.

        Early starts come first, then missed deadlines, placements where a request may not run, and
        runs of overfull steps, worker by worker.
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
                step, limit = int(steps[request]), int(limits[request])
                found.append(violation(instance, kind, request, (step, step, limit)))
        if (allowed := self.workers.eligible) is not None:
            everyone = np.arange(len(self.starts))
            for request in np.flatnonzero(~allowed[everyone, self.placement]).tolist():
                worker, step = int(self.placement[request]), int(self.starts[request])
                said = f"runs on worker {worker}, where it is not eligible"
                found.append(violation(instance, "placement", request, (step, worker, 0), said))
        for worker in range(len(self.workers)):
            found += self._overfull(worker)
        return found

    def _overfull(self, worker: int) -> list[Violation]:
        """List the runs of steps at which more tokens are held than fit on a worker."""
        requests, limit = self.requests_on(worker), self.workers.memories[worker]
        if not len(requests):
            return []
        several, found = len(self.workers) > 1, []
        parts = (self.starts, self.instance.prompts, self.instance.outputs)
        usage = Usage(*(part[requests] for part in parts)) if several else self._usage
        for first, last, held, member in usage.overfull(limit):
            request = int(requests[member])
            label = self.instance.label(request)
            reason = Violation("memory", request, label, first, held, limit, last)
            said = f"worker {worker}, {reason}" if several else ""
            found.append(replace(reason, message=said))
        return found

    def metrics(self) -> JSON:
        """Return all metrics in one dictionary, for a table or for JSON.

        Latencies are in steps, memory in tokens, utilisation is a share; with weighted latency and
        missed deadlines where the instance has weights and deadlines. On several workers "requests"
        and "utilisation" are lists with a number for each.
        """
        metrics = self.summary()
        if len(self.workers) > 1:
            metrics["requests"] = self._served.tolist()
            metrics["utilisation"] = self._utilisations.tolist()
        return metrics

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per request: request, label, worker, arrival, start, end, latency."""
        requests = range(len(self.starts))
        return data_frame(
            {
                "request": requests,
                "label": self.instance.labels or [str(request) for request in requests],
                "worker": self.placement,
                "arrival": self.instance.arrivals,
                "start": self.starts,
                "end": self.completions,
                "latency": self.latencies,
            }
        )

    def plot(self, ax: Axes | None = None, **how: object) -> Axes:
        """Plot the requests as growing bars; of several workers, the memory each uses over time.

        With `by="client"`, and `labels=True` for the labels of requests, it is a Gantt chart.
        """
        growing = len(self.workers) == 1 or how
        return draw("plot_schedule" if growing else "plot_workers", self, ax, **how)

    def plot_placement(self, ax: Axes | None = None) -> Axes:
        """Plot which worker serves which request: a bar for each while it runs."""
        return draw("plot_placement", self, ax)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the schedule as JSON, without the instance, and write it to `path` if given."""
        content: dict[str, object] = {
            "format": "optsched-schedule",
            "policy": self.policy,
            "starts": self.starts.tolist(),
        }
        if self.workers != Workers([self.instance.memory]):
            content |= {
                "format": "optsched-joint-schedule",
                "workers": list(self.workers.memories),
                "starts": content.pop("starts"),
                "placement": self.placement.tolist(),
            }
            if self.workers.eligible is not None:
                content["eligible"] = self.workers.eligible.tolist()
        return write_object(content, path)

    @classmethod
    def from_json(
        cls,
        source: str | Path,
        instance: Instance,
        workers: int | str | Sequence[int] | Workers | None = None,
    ) -> Schedule:
        """Read a schedule of an instance from a JSON file or from JSON text.

        Only "starts" is needed, and "placement" on several workers, which may be those of the file.
        """
        content, where = read_object(source, ScheduleError, "the key 'starts'")
        with named(where):
            known, placement = content.get("workers"), content.get("placement")
            if workers is None and placement is not None:
                if known is None:
                    raise ScheduleError(f"{where} says nothing of workers; pass them")
                workers = Workers(known, content.get("eligible"))
            several = None if workers is None else as_workers(workers, instance)
            needed = ["starts"] if several is None or len(several) == 1 else ["starts", "placement"]
            for key in needed:
                if key not in content:
                    raise ScheduleError(f"{where} holds no JSON object with the key {key!r}")
            if several is not None and isinstance(known, list) and len(known) != len(several):
                raise ScheduleError(
                    f"{where} has {len(known)} workers, but there are {len(several)}; pass the same"
                )
            name = str(content.get("policy", "schedule"))
            return cls(instance, content["starts"], name, workers=several, placement=placement)


def _one_each(field: str, values: npt.ArrayLike, instance: Instance) -> IntArray:
    """Return whole numbers, one for each request."""
    try:
        integers = as_integers(field, values)
    except InstanceError as error:
        raise ScheduleError(str(error)) from None
    if len(integers) != len(instance):
        plural = f"{field.removesuffix('s')}s"
        raise ScheduleError(
            f"the schedule has {len(integers)} {plural} for {len(instance)} requests"
        )
    return integers
