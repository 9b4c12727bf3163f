"""How `optsched.solve` works: what a caller may set beyond problem, time and method."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from optsched._internal.arguments import as_count, checked
from optsched._internal.arrays import MAX_STEP, MAX_WEIGHT
from optsched.errors import OptschedError, SolverError, require_known
from optsched.models.objectives import LATENESS, PENALTY
from optsched.solvers.backends.base import Options

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from optsched.models.objectives import Lateness
    from optsched.solvers.backends.base import OnProgress


class Effort(NamedTuple):
    """Limits, in work and not in seconds, of the stages that prove most small instances."""

    search: float  # work
    phases: int  # of the configuration bound
    iterations: int
    nodes: int  # of branch and bound


class _Brief:
    """Prints those of its fields that are set."""

    def __repr__(self) -> str:
        given = [(each, getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        changed = [f"{each.name}={value!r}" for each, value in given if value != each.default]
        return f"{type(self).__name__}({', '.join(changed)})"


@dataclass(frozen=True, repr=False)
class Tuning(_Brief):
    """When the stages for an `Instance` are worth their time (docs/research.md has figures)."""

    events: int = 12  # requests up to which the event program is the faster one
    smallest: int = 30  # requests up to which an exact stage gets to the end
    small: int = 50  # requests up to which it gets far
    enumerated: int = 6  # requests of which all schedules are enumerated, in milliseconds
    enumeration: float = 2e7  # tokens ahead that may take, about a second
    exact: int = 24  # requests up to which branch and bound is worth the time
    large_gap: float = 0.04  # above which large requests do not pack, and the bound is too low
    nonzeros: int = 20_000_000  # up to which a time-indexed program is built
    nonzeros_per_second: int = 200_000  # of time left, up to which "auto" builds it
    priced: int = 1000  # requests up to which prices are improved offline
    prices_offline: float = 0.05  # shares of the time left
    prices_arrivals: float = 0.15
    charges: float = 0.05  # at first, and again before the last search
    charges_beam: float = 0.6  # before the last search, where a beam leaves it little to find
    delays: float = 0.4
    delays_few: float = 0.2
    few: int = 400  # requests that are better searched than delayed
    beam: float = 2.2  # where runs are faster than work is counted
    beam_least: int = 150  # requests from which a beam gains on what the search finds
    beam_most: int = 30_000  # and up to which it does,
    beam_arrivals: int = 3_500  # with arrivals also so many per second, of a minute at most
    after_beam: float = 0.15  # for the search from what it found, which may cost more than the best
    before_beam: float = 0.05  # share of each stage that a beam makes up for
    # Each takes several times as long as the one before: little is lost where it is not enough.
    efforts: tuple[Effort, ...] = (
        Effort(search=4e5, phases=1, iterations=0, nodes=1_500),
        Effort(search=4e6, phases=4, iterations=50, nodes=80_000),
        Effort(search=2e7, phases=8, iterations=200, nodes=300_000),
    )
    running: float = 2e4  # times the cube of the requests: work of a search before running sets
    first_prices: float = 2e5  # work that takes milliseconds and gives most of what prices can
    tables: int = 2_000_000  # output tokens x requests x memory up to which sizes take milliseconds
    tiny: int = 8  # requests up to which all efforts are worth it
    hopeless: float = 0.1  # gap above which more requests are left to stages that take their time

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "efforts" and not 0 <= value < math.inf:
                raise OptschedError(f"tuning: {each.name} is {value!r}, but must be from 0")


@checked(SolverError)
@dataclass(frozen=True, eq=False, repr=False)
class SolveParams(_Brief):
    """What `solve` can be asked for beyond problem, time limit, objective and method.

    A parameter that does not apply to the problem is refused.

    Parameters
    ----------
    threads
        Number of threads.
    seed
        Seed of all random numbers.
    work
        Instances, with the method "search": seconds' worth of work on a slow core, in place of
        time. The same work, seed and threads give the same answer however fast the machine is,
        where time is not short. None: what there is time for; without a limit, a minute's work.
    memory_limit
        Bytes that an exact search, or a solver in a child process, may take; None for no limit.
    gap_limit
        Gap at which to stop, as a share of the objective; 0 goes on to the proof. Programs only.
    start
        An answer to begin from, in the terms of the problem: a `Schedule` for an instance, a point
        for a `LinearModel`.
    bound
        A proven lower bound on the objective of an `EventProgram`.
    horizon
        Instances: consider only schedules that complete by this step. None considers all: the
        steps that have to be modelled are then proven, not guessed.
    lateness, penalty
        Instances: with "per-step" or "per-request" a deadline may be missed at this price, which
        must then be positive.
    epsilon
        Relative error that the method "scaled-dp" may make.
    solver
        Solver of the programs of the method "mip".
    in_child
        Whether to solve a program in a child process, which ends with the time limit whatever the
        solver is doing, and whose death costs no more than the proof.
    on_progress
        Called with a `Progress` now and then, and for each better answer; for an instance from
        another thread.
    stop
        Set it, from `on_progress` or from another thread, to end the solve as Ctrl-C does: with
        the best that is known.
    tuning
        Thresholds of the stages for an instance.

    Examples
    --------
    >>> SolveParams(threads=2, seed=5)
    SolveParams(threads=2, seed=5)
    >>> SolveParams(threads=0)
    Traceback (most recent call last):
        ...
    optsched.errors.SolverError: threads is 0, but must be a whole number from 1 to 2147483647
    """

    threads: int = 1
    seed: int = 0
    work: float | None = None
    memory_limit: int | None = None
    gap_limit: float = 0.0
    start: Any = None
    bound: float | None = None
    horizon: int | None = None
    lateness: Lateness = "forbidden"
    penalty: float = 0.0
    epsilon: float = 0.1
    solver: str = "highs"
    in_child: bool = False
    on_progress: OnProgress | None = None
    stop: threading.Event | None = None
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        self.options(None)
        if self.horizon is not None:
            as_count("horizon", self.horizon, most=MAX_STEP, error=SolverError)
        require_known("lateness", self.lateness, LATENESS, OptschedError)
        if self.penalty and not 1 / MAX_WEIGHT <= self.penalty <= MAX_WEIGHT:
            raise OptschedError(f"penalty is {self.penalty}, but {PENALTY}")
        if self.lateness == "forbidden" and self.penalty:
            raise OptschedError(
                f"penalty is {self.penalty:g}, but no deadline may be missed; pass a lateness, "
                "such as per-request, or leave the penalty out"
            )
        if self.lateness != "forbidden" and not self.penalty:
            raise OptschedError(
                f"lateness is {self.lateness!r} without a penalty, which would drop the deadlines; "
                "pass a penalty, such as 10"
            )
        if self.work is not None and not 0 < self.work < math.inf:
            raise SolverError(f"work is {self.work!r}, but must be a positive number")
        if not 0 < self.epsilon < math.inf:
            raise SolverError(f"epsilon is {self.epsilon!r}, but must be a positive number")
        for name, good, wish in (
            ("on_progress", callable(self.on_progress), "be a function of one Progress"),
            ("stop", hasattr(self.stop, "is_set"), "be a threading.Event"),
            ("tuning", isinstance(self.tuning, Tuning), "be a Tuning"),
        ):
            if (value := getattr(self, name)) is not None and not good:
                raise OptschedError(f"{name} is {value!r}, but must {wish}")

    def options(self, time_limit: float | None) -> Options:
        """Return what a back end is asked for."""
        return Options(time_limit, self.threads, self.seed, self.gap_limit, self.memory_limit)

    def check_method(self, method: str) -> None:
        """Refuse to limit the work of a method that goes by time."""
        if self.work is not None and method != "search":
            raise OptschedError(
                f"work is {self.work:g}, but the method {method!r} goes by time; pass the method "
                "search, or leave work out"
            )

    def check_used(self, used: Iterable[str], problem: str) -> None:
        """Reject parameters that are set but that a kind of problem has no use for."""
        plain = SolveParams()
        for name in (each.name for each in fields(self)):
            value, default = getattr(self, name), getattr(plain, name)
            unset = value is default or (
                isinstance(default, int | float | str) and value == default
            )
            if name not in used and not unset and name != "tuning":
                raise OptschedError(
                    f"{name} is {value!r}, but does not apply to {problem}; leave it out"
                )
