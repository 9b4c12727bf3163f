"""Programs over starts: what runs, what is placed."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from optsched._internal.arrays import (
    NONZERO,
    as_integers,
    has_room,
    ranks_in,
    require_room,
    room_for,
)
from optsched._internal.extensions import lines_as_html
from optsched.errors import ModelError, require, shown
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.linear import LinearModel


class Size(NamedTuple):
    """How large a linear model is, known before it is written."""

    columns: int
    nonzeros: int
    rows: int

    def __str__(self) -> str:
        return f"{self.columns:,} columns, {self.nonzeros:,} nonzeros"


def require_size(size_at: Callable[[int], Size], least: int, horizon: int) -> None:
    """Refuse a program of too many steps, and say up to which horizon there is room."""
    count = sum(size_at(horizon)[1:])
    if count >= 2**31 or not has_room(count, NONZERO):
        most = min(room_for(NONZERO), 2**31 - 1)  # indices have 32 bits
        steps = range(least, horizon)
        fits = least + bisect(steps, most, key=lambda last: sum(size_at(last)[1:])) - 1
        advice = f"a horizon of up to {fits:,} fits" if fits >= least else "take fewer requests"
        raise ModelError(
            f"the program would have {count:,} rows and nonzeros over {horizon:,} steps, but there "
            f"is room for {most:,}; {advice}, or solve the instance by the method search"
        )


class Program(ABC):
    """A decision problem with linear rows; `optsched.solve` solves whatever has these methods."""

    @abstractmethod
    def to_linear(self) -> LinearModel:
        """Write the program as arrays."""

    @abstractmethod
    def read(self, values: npt.ArrayLike, /) -> Any:
        """Turn a point of the linear model into an answer in the terms of the problem."""

    @abstractmethod
    def write_point(self, answer: Any, /) -> FloatArray:
        """Turn an answer into a point of the linear model, for instance as a start."""

    def to_pyomo(self) -> Any:
        """Return the program as a Pyomo model with the names of `to_linear`."""
        return self.to_linear().to_pyomo()

    def _repr_html_(self) -> str:
        """Show what it is, and its data that differ from their defaults."""
        lines, this = [repr(self)], cast("Any", self)
        fields: Any = dataclasses.fields(this) if dataclasses.is_dataclass(self) else ()
        for each in fields:
            if (value := getattr(self, each.name)) is not each.default and value is not None:
                lines.append(f"{each.name}  {shown(value)}")
        return lines_as_html("\n".join(lines))


class Scheduled(Protocol):
    """A run, or an optimum, and the schedule that came of it."""

    @property
    def schedule(self) -> Schedule:
        """When and where each request runs."""


def workers_of(instance: Instance, workers: Any, running: Running) -> Workers:
    """Return the workers of a program: one, unless it says otherwise."""
    if workers is None:
        return Workers([instance.memory])
    several = as_workers(workers, instance)
    if len(several) > 1 and len(running.tokens):
        raise ModelError("requests that are running are those of one worker; leave them out")
    return several


def owned(found: Schedule | Scheduled, instance: Instance, workers: Workers) -> Schedule:
    """Return a schedule, or that of a run, unless it is one of something else."""
    schedule: Any = getattr(found, "schedule", found)
    wish = "a Schedule, or what has one, such as optsched.run(instance, 'area')"
    require(schedule, Schedule, "the schedule", wish, ModelError)
    if (schedule.instance, schedule.workers) != (instance, workers):
        raise ModelError(
            "the schedule belongs to another instance or other workers; make the program of its "
            "instance and workers"
        )
    return cast("Schedule", schedule)


def by_use(instance: Instance, workers: Workers) -> BoolArray:
    """Return on which workers each request may run if they are numbered by use, shape (n, G)."""
    allowed = workers.allowed(instance)
    rank = ranks_in(largest_first(instance))
    for number in range(int(workers.classes.max()) + 1):
        for place, worker in enumerate(np.flatnonzero(workers.classes == number).tolist()):
            allowed[:, worker] &= rank >= place
    return allowed


def largest_first(instance: Instance) -> IntArray:
    """Return the requests by descending memory-time."""
    return np.argsort(-instance.areas, kind="stable")


def renumbered(schedule: Schedule) -> IntArray:
    """Return the placement with workers of a class numbered by use."""
    unused: dict[int, list[int]] = {}
    for worker, number in enumerate(schedule.workers.classes.tolist()):
        unused.setdefault(number, []).append(worker)
    name: dict[int, int] = {}
    for worker in schedule.placement[largest_first(schedule.instance)].tolist():
        if worker not in name:
            name[worker] = unused[int(schedule.workers.classes[worker])].pop(0)
    return np.array([name[worker] for worker in schedule.placement.tolist()])


_EXACT = 2**61  # 64-bit sums and products stay exact below


@dataclass(frozen=True, eq=False)
class Running:
    r"""Requests that are running already and will go on to their completion.

    One that holds :math:`h` tokens now and has :math:`r` steps to go holds :math:`h + u` tokens
    :math:`u` steps from now, :math:`u = 1, \dots, r`.

    Parameters
    ----------
    tokens
        Tokens :math:`h \ge 0` that each holds now.
    remaining
        Steps :math:`r \ge 1` that each has to go.

    Examples
    --------
    >>> Running(tokens=[5, 1], remaining=[1, 3]).load(4)
    array([8, 3, 4, 0])
    """

    tokens: IntArray
    remaining: IntArray

    def __post_init__(self) -> None:
        for field in ("tokens", "remaining"):
            object.__setattr__(self, field, as_integers(field, getattr(self, field)))
        if len(self.tokens) != len(self.remaining):
            raise ModelError(
                f"the running requests have {len(self.tokens)} numbers of tokens, but "
                f"{len(self.remaining)} of remaining steps"
            )
        wrong = (self.tokens < 0) | (self.remaining < 1)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ModelError(
                f"running request {at}: {self.tokens[at]} tokens and {self.remaining[at]} steps to "
                "go, but tokens cannot be negative and one that runs has at least 1 step to go"
            )

    def load(self, steps: int) -> IntArray:
        """Return the tokens they hold in each of the next steps."""
        require_room(steps, 40, "steps of running requests", "plan fewer", ModelError)
        ends = np.minimum(self.remaining, steps)
        change = np.zeros(steps + 1, dtype=np.int64)  # of the requests active and what they held
        held = np.zeros(steps + 1, dtype=np.int64)
        change[0], held[0] = len(ends), self.tokens.sum()
        np.subtract.at(change, ends, 1)
        np.subtract.at(held, ends, self.tokens)
        return (np.cumsum(held) + np.cumsum(change) * np.arange(1, steps + 2))[:steps]

    def fit(self, memory: int, now: int) -> None:
        """Reject a `now` that is not a step, and running requests that overfill the memory."""
        if int(now) != now or now < 0:
            raise ModelError(f"now is {now}, but must be a whole number of at least 0")
        load = self.load(self.last_step)
        if load.max(initial=0) > memory:
            at = int(np.argmax(load > memory))
            raise ModelError(
                f"the running requests alone hold {load[at]} tokens at step {now + 1 + at}, "
                f"but the memory holds {memory}"
            )

    def join(self, instance: Instance, now: int) -> Instance:
        """Return an instance with running requests, as ones that start now, before its own."""
        count, due = len(self.tokens), instance.deadlines
        return Instance(
            np.concatenate([self.tokens, instance.prompts]),
            np.concatenate([self.remaining, instance.outputs]),
            instance.memory,
            np.concatenate([np.full(count, now), np.maximum(instance.arrivals, now)]),
            deadlines=None if due is None else np.concatenate([now + self.remaining, due]),
            labels=[
                *(f"running {i}" for i in range(count)),
                *(instance.label(i) for i in range(len(instance))),
            ],
            name=instance.name,
        )

    @property
    def area(self) -> int:
        """Token-steps that they will still hold."""
        r = self.remaining
        return int((self.tokens * r + r * (r + 1) // 2).sum())

    @property
    def last_step(self) -> int:
        """Steps until the last of them has completed; 0 where none is running."""
        return int(self.remaining.max(initial=0))


NOTHING_RUNNING = Running(np.zeros(0, np.int64), np.zeros(0, np.int64))


def latest_starts(
    instance: Instance,
    now: int = 0,
    running: Running = NOTHING_RUNNING,
    workers: Workers | None = None,
) -> IntArray:
    """Bound the start of every request in some optimal schedule."""
    # It holds for every objective that never falls when a completion comes later. Take, among the
    # optimal schedules, one with the least sum of starts. Write e_i = max(a_i, now).
    # No idling: let b be the last arrival, or the end of the running requests if later. Were a step
    # after b idle, all later requests could start one step earlier. So another request is active at
    # each step from b + 1 to p_i, and p_i <= b + the sum of the other outputs.
    # No room: request i could not have started at k, e_i <= k < p_i: the others hold more than
    # M - s_i - o_i tokens at some step of k + 1 .. k + o_i. Go on from that step in place of k:
    # there are at least (p_i - e_i) / o_i such steps, which cannot take more memory-time than the
    # others and the running requests have, so p_i - e_i is at most o_i times that memory-time
    # divided by M - s_i - o_i + 1, rounded down.
    # On several workers both hold for the requests of one, and M is the least memory where request
    # i may run; that others run elsewhere only helps.
    outputs, areas = instance.outputs, instance.areas
    earliest = np.maximum(instance.arrivals, now)
    busy = max(int(earliest.max()), now + running.last_step)
    no_idling = busy + outputs.sum() - outputs
    if areas.sum(dtype=np.float64) + running.area > _EXACT:
        return np.asarray(no_idling)
    others = areas.sum() - areas + running.area
    memory: Any = instance.memory
    if workers is not None:
        may_run, least = workers.allowed(instance), np.array(workers.memories)
        memory = np.where(may_run, least, np.iinfo(np.int64).max).min(axis=1)
    waits = others // (memory - instance.peaks + 1)
    no_room = earliest + outputs * np.minimum(waits, _EXACT // outputs)
    return np.asarray(np.minimum(no_idling, no_room), dtype=np.int64)


def safe_horizon(
    instance: Instance,
    now: int = 0,
    running: Running = NOTHING_RUNNING,
    workers: Workers | None = None,
) -> int:
    """Return a last step within which some optimal schedule completes (see `latest_starts`)."""
    return int((latest_starts(instance, now, running, workers) + instance.outputs).max())
