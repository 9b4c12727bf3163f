"""The joint schedule: when and on which worker each request runs, and whether that is feasible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import as_integers
from optsched._internal.json import read_object, write_object
from optsched._internal.views import draw
from optsched.errors import InstanceError, ScheduleError
from optsched.schedule import Schedule, Started, Violation
from optsched.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance


@checked(ScheduleError)
@dataclass(frozen=True, eq=False, repr=False, init=False)
class JointSchedule(Started):
    """Start step and worker of all requests of an instance; every metric follows from them alone.

    It may be infeasible; `check` lists why.

    Parameters
    ----------
    instance
        The requests.
    workers
        A number of workers with the memory of the instance, their memories, or `Workers`.
    starts
        Start step of each request, shape (n,), in the order of the instance.
    placement
        Worker of each request, counted from 0, shape (n,).
    policy
        What made it, for tables and plots.

    Raises
    ------
    ScheduleError
        If there are not exactly one whole start and one worker for each request.
    InstanceError
        If there is no worker, or a request may run on none.

    Examples
    --------
    >>> from optsched import Instance, JointSchedule
    >>> instance = Instance(prompts=[63, 1, 1], outputs=[1, 2, 2], memory=64)
    >>> joint = JointSchedule(instance, 2, starts=[0, 0, 0], placement=[0, 1, 1])
    >>> joint.total_latency, joint.makespan, joint.check()
    (5, 2, [])
    >>> joint.on(1).starts
    array([0, 0])
    """

    instance: Instance
    workers: Workers
    starts: IntArray
    placement: IntArray
    policy: str

    def __init__(
        self,
        instance: Instance,
        workers: int | str | Sequence[int] | Workers,
        starts: npt.ArrayLike,
        placement: npt.ArrayLike,
        policy: str = "schedule",
    ) -> None:
        made = as_workers(workers, instance)
        try:
            places = as_integers("placement", placement)
        except InstanceError as error:
            raise ScheduleError(str(error)) from None
        if len(places) != len(instance):
            raise ScheduleError(
                f"the schedule has {len(places)} placements for {len(instance)} requests"
            )
        if (absent := (places < 0) | (places >= len(made))).any():
            request = int(np.argmax(absent))
            raise ScheduleError(
                f"request {instance.label(request)} is placed on worker {places[request]}, but "
                f"workers are numbered from 0 to {len(made) - 1}"
            )
        object.__setattr__(self, "instance", instance)
        object.__setattr__(self, "workers", made)
        object.__setattr__(self, "starts", Schedule(instance, starts).starts)
        object.__setattr__(self, "placement", places)
        object.__setattr__(self, "policy", policy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointSchedule):
            return NotImplemented
        return (self.instance, self.workers, self.policy) == (
            other.instance,
            other.workers,
            other.policy,
        ) and all(
            np.array_equal(mine, its)
            for mine, its in ((self.starts, other.starts), (self.placement, other.placement))
        )

    def __hash__(self) -> int:
        return hash((self.instance, self.starts.tobytes(), self.placement.tobytes()))

    def __repr__(self) -> str:
        count = len(self.starts)
        return f"<JointSchedule {self.policy!r}: {count} requests on {len(self.workers)} workers>"

    def __str__(self) -> str:
        violations = self.check()
        verdict = "feasible" if not violations else f"infeasible, {len(violations)} violations"
        latency = self.latency_percentiles()
        served = np.bincount(self.placement, minlength=len(self.workers))
        return (
            f"{self.policy}: {len(self.starts):,} requests on {len(self.workers):,} workers, "
            f"{verdict}\n"
            f"  latency   total {self.total_latency:,}, mean {self.mean_latency:,.1f}, "
            f"p50 {latency['p50']:,.0f}, p90 {latency['p90']:,.0f}, "
            f"p99 {latency['p99']:,.0f} steps\n"
            f"  makespan  {self.makespan:,} steps\n"
            f"  workers   {served.min():,} to {served.max():,} requests each, "
            f"{self.utilisation.min():.1%} to {self.utilisation.max():.1%} of memory used on "
            "average"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    @cached_property
    def _pool(self) -> Schedule:
        everything = self.instance.replace(memory=self.workers.total)
        return Schedule(everything, self.starts, self.policy)

    def pooled(self) -> Schedule:
        """Return the starts as a schedule of one worker with the memory of all.

        Returns
        -------
        Schedule
            Feasible if this one is; bounds and gaps of the pool apply to it.
        """
        return self._pool

    def requests_on(self, worker: int) -> IntArray:
        """Return the requests that a worker serves.

        Parameters
        ----------
        worker
            Its number, counted from 0.

        Returns
        -------
        IntArray
            Their indices, ascending; none where it is idle.
        """
        return np.flatnonzero(self.placement == worker)

    def on(self, worker: int) -> Schedule:
        """Return the schedule of one worker.

        Parameters
        ----------
        worker
            Its number, counted from 0.

        Returns
        -------
        Schedule
            Its requests, with their labels, and its memory.

        Raises
        ------
        ScheduleError
            If it serves no request.
        InstanceError
            If a request does not fit on it.
        """
        requests = self.requests_on(worker)
        if not len(requests):
            raise ScheduleError(f"worker {worker} of {len(self.workers)} serves no request")
        own = self.instance.take(requests).replace(memory=self.workers.memories[worker])
        return Schedule(own, self.starts[requests], self.policy)

    @property
    def utilisation(self) -> FloatArray:
        """Tokens held on average until the makespan, as a share of each memory, shape (G,)."""
        held = np.bincount(self.placement, self.instance.areas, minlength=len(self.workers))
        shares: FloatArray = held / (np.array(self.workers.memories, dtype=float) * self.makespan)
        return shares

    def check(self) -> list[Violation]:
        """List everything that makes the schedule infeasible, from starts and placement alone.

        Returns
        -------
        list of Violation
            Empty exactly if it is feasible; early starts, missed deadlines, placements where a
            request may not run, then runs of overfull steps, worker by worker.

        Examples
        --------
        >>> from optsched import Instance
        >>> instance = Instance([4, 4], [2, 2], memory=9)
        >>> for violation in JointSchedule(instance, 2, [0, 0], [1, 1]).check():
        ...     print(violation)
        worker 1, steps 1..2: 10 tokens at the first of them where 9 fit, request 1 being the last
        one started
        """
        found = [reason for reason in self.pooled().check() if reason.kind != "memory"]
        if (allowed := self.workers.eligible) is not None:
            everyone = np.arange(len(self.starts))
            for request in np.flatnonzero(~allowed[everyone, self.placement]).tolist():
                label, worker = self.instance.label(request), int(self.placement[request])
                said = f"request {label} runs on worker {worker}, where it is not eligible"
                step = int(self.starts[request])
                found.append(Violation("placement", request, label, step, worker, 0, step, said))
        for worker, memory in enumerate(self.workers.memories):
            requests = self.requests_on(worker)
            if not len(requests):
                continue
            part = Schedule(self.instance.take(requests), self.starts[requests])
            for reason in part.overfull(memory):
                request, said = int(requests[reason.request]), f"worker {worker}, {reason}"
                found.append(replace(reason, request=request, message=said))
        return found

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the pooled schedule, with what each worker serves.

        Returns
        -------
        dict
            As `Schedule.metrics`, with "requests" and "utilisation" of each worker.
        """
        served = np.bincount(self.placement, minlength=len(self.workers)).tolist()
        apiece = {"requests": served, "utilisation": self.utilisation.tolist()}
        return self.pooled().metrics() | apiece

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the memory that each worker uses over time.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_workers", self, ax)

    def plot_placement(self, ax: Axes | None = None) -> Axes:
        """Plot which worker serves which request: a bar for each while it runs.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_placement", self, ax)

    def to_json(self, path: str | Path | None = None) -> str:
        """Write starts, placement and workers as JSON, without the instance.

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
        >>> joint = JointSchedule(Instance([1, 1], [2, 2], memory=8), 2, [0, 0], [0, 1])
        >>> JointSchedule.from_json(joint.to_json(), joint.instance) == joint
        True
        """
        content: dict[str, Any] = {
            "format": "optsched-joint-schedule",
            "policy": self.policy,
            "workers": list(self.workers.memories),
            "starts": self.starts.tolist(),
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
    ) -> JointSchedule:
        """Read a joint schedule of an instance from a JSON file or from JSON text.

        Parameters
        ----------
        source
            A path, or the text itself (it starts with a brace). The keys "starts" and "placement"
            are needed.
        instance
            The requests that are scheduled.
        workers
            The workers; None takes those of the file.

        Returns
        -------
        JointSchedule
            The schedule, which may be infeasible.

        Raises
        ------
        ScheduleError
            If starts, placement or workers are missing or no whole numbers.

        Examples
        --------
        >>> from optsched import Instance
        >>> instance = Instance([1], [2], memory=8)
        >>> JointSchedule.from_json('{"starts": [4], "placement": [1]}', instance, 2).makespan
        6
        """
        content, where = read_object(source, ScheduleError, "the keys 'starts' and 'placement'")
        if workers is None and "workers" in content:
            workers = Workers(content["workers"], content.get("eligible"))
        for key in ("starts", "placement"):
            if key not in content:
                raise ScheduleError(f"{where} holds no JSON object with the key {key!r}")
        if workers is None:
            raise ScheduleError(f"{where} says nothing of workers; pass them")
        several, known = as_workers(workers, instance), content.get("workers")
        if isinstance(known, list) and len(known) != len(several):
            raise ScheduleError(
                f"{where} has {len(known)} workers, but there are {len(several)}; pass the same"
            )
        name = str(content.get("policy", "schedule"))
        return cls(instance, several, content["starts"], content["placement"], name)
