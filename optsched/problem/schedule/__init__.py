"""The schedule: when and where each request runs, what that costs, and whether it is feasible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_SUM, as_integers
from optsched._internal.extras import data_frame
from optsched._internal.json import read_object, write_object
from optsched._internal.views import Shown, draw
from optsched.errors import InstanceError, ScheduleError, named
from optsched.problem.premises import World
from optsched.problem.schedule.latencies import Started
from optsched.problem.schedule.usage import Usage
from optsched.problem.schedule.violations import Violation as Violation
from optsched.problem.schedule.violations import ViolationKind as ViolationKind
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.problem.instance import Instance


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
    >>> Schedule.from_json(schedule.to_json(), instance) == schedule
    True
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
        object.__setattr__(self, "instance", instance)
        object.__setattr__(self, "starts", first_steps)
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "workers", made)
        object.__setattr__(self, "placement", places)

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
                label = instance.label(request)
                found.append(Violation(kind, request, label, step, step, limit, step))
        if (allowed := self.workers.eligible) is not None:
            everyone = np.arange(len(self.starts))
            for request in np.flatnonzero(~allowed[everyone, self.placement]).tolist():
                label, worker = instance.label(request), int(self.placement[request])
                said = f"request {label} runs on worker {worker}, where it is not eligible"
                step = int(self.starts[request])
                found.append(Violation("placement", request, label, step, worker, 0, step, said))
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

    def metrics(self) -> dict[str, Any]:
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

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the requests as growing bars; of several workers, the memory each uses over time."""
        return draw("plot_schedule" if len(self.workers) == 1 else "plot_workers", self, ax)

    def plot_placement(self, ax: Axes | None = None) -> Axes:
        """Plot which worker serves which request: a bar for each while it runs."""
        return draw("plot_placement", self, ax)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the schedule as JSON, without the instance, and write it to `path` if given."""
        content: dict[str, Any] = {
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
