"""What is asked of `solve`, what it knows, and what it returns."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arguments import as_count, checked
from optsched._internal.arrays import MAX_STEP, FloatArray, IntArray
from optsched._internal.aside import Budget, Token, stopwatch
from optsched._internal.numbers import number, proven, round_down, small_percent
from optsched._internal.views import draw, write
from optsched._version import __version__
from optsched.bounds.ascent import Bound
from optsched.bounds.bound import of_pool
from optsched.bounds.lagrangian import PricedStarts
from optsched.certificates.prices import Certificate, SawtoothCertificate
from optsched.errors import InfeasibleError, ModelError, OptschedError, SolverError
from optsched.models.hindsight import HindsightProgram, check_lateness
from optsched.models.program import Solution, Stopped, latest_starts, next_cost
from optsched.optimum.gap import GapExplanation, explain_gap
from optsched.problem.costs import StartCosts, cost_unit, schedule_cost, weights_of
from optsched.problem.workers import Workers
from optsched.solvers.backends.base import OnProgress, Options, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched.certificates.prices import ConfigurationCertificate, MakespanCertificate
    from optsched.models.linear import LinearModel
    from optsched.problem.costs import Lateness, ScheduleObjective
    from optsched.problem.instance import Instance
    from optsched.problem.premises import World
    from optsched.problem.schedule import Schedule


# Requests up to which the event program is the faster one, up to which an exact stage gets to the
# end, and up to which it gets far (benchmarks/research.md has figures).
EVENTS, SMALLEST, SMALL = 12, 30, 50
EVENTS_TIGHT = 40  # requests, for the makespan and where none may be late
EVENTS_FIRST = 100  # the same, before a search that goes on from there
# Requests from which a beam gains on what the search finds, and up to which it does; with arrivals
# also so many per second, of a minute at most.
BEAM_LEAST, BEAM_MOST, BEAM_ARRIVALS = 150, 30_000, 3_500


class Effort(NamedTuple):
    """Limits, in work and not in seconds, of the stages that prove most small instances."""

    search: float  # work
    phases: int  # of the configuration bound
    iterations: int
    nodes: int  # of branch and bound


@checked(SolverError)
@dataclass(frozen=True, eq=False, repr=False)
class SolveParams:
    """What `solve` can be asked for beyond problem, time limit, objective and method.

    A parameter that does not apply to the problem is refused.

    Parameters
    ----------
    threads, seed
        Number of threads, and seed of all random numbers.
    work
        Instances, with the method "search": units of work in place of time, each of some 1.6
        billion looks at the memory of a step. The same work, seed and threads give the same answer
        however fast the machine is, where time is not short. None: what there is time for; without
        a limit, 60 units.
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
    in_child
        Whether to solve a program in a child process, which ends with the time limit whatever the
        solver is doing, and whose death costs no more than the proof.
    on_progress
        Called with a `Progress` now and then, and for each better answer; for an instance, and that
        of a program, from another thread.
    stop
        Set it, from `on_progress` or from another thread, to end the solve as Ctrl-C does: with
        the best that is known.

    Examples
    --------
    >>> SolveParams(threads=2, seed=5)
    SolveParams(threads=2, seed=5)
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
    in_child: bool = False
    on_progress: OnProgress | None = None
    stop: threading.Event | None = None

    def __post_init__(self) -> None:
        self.options(None)
        if self.horizon is not None:
            as_count("horizon", self.horizon, most=MAX_STEP, error=SolverError)
        check_lateness(self.lateness, self.penalty, OptschedError)
        if self.lateness == "forbidden" and self.penalty:
            raise OptschedError(
                f"penalty is {self.penalty:g}, but no deadline may be missed; pass a lateness, "
                "such as per-request, or leave the penalty out"
            )
        if self.work is not None and not 0 < self.work < math.inf:
            raise SolverError(f"work is {self.work!r}, but must be a positive number")
        if not 0 < self.epsilon < math.inf:
            raise SolverError(f"epsilon is {self.epsilon!r}, but must be a positive number")
        for name, good, wish in (
            ("on_progress", callable(self.on_progress), "be a function of one Progress"),
            ("stop", hasattr(self.stop, "is_set"), "be a threading.Event"),
        ):
            if (value := getattr(self, name)) is not None and not good:
                raise OptschedError(f"{name} is {value!r}, but must {wish}")

    def __repr__(self) -> str:
        given = [(each, getattr(self, each.name)) for each in fields(self)]
        changed = [f"{each.name}={value!r}" for each, value in given if value != each.default]
        return f"SolveParams({', '.join(changed)})"

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
        for each in fields(self):
            value, default = getattr(self, each.name), each.default
            plain = isinstance(default, int | float | str) and value == default
            if each.name not in used and value is not default and not plain:
                raise OptschedError(
                    f"{each.name} is {value!r}, but does not apply to {problem}; leave it out"
                )


@dataclass(frozen=True, eq=False, repr=False)
class Optimum(Solution):
    """The best schedule of an instance that is known, and the best bound proven.

    A `Solution` whose `answer` is a schedule, on one worker or several. `status` is "optimal",
    "time limit", "interrupted", "search ended", or what else ended the work; `objective` and
    `bound` are always there.

    Attributes
    ----------
    minimised
        What `objective` is: "total-latency", "weighted-latency", "makespan" or "late-requests".
    lateness
        What is added to it, as of `SolveParams`.
    proof
        What proves the bound: "closed-form", "lagrangian", "sawtooth", "configuration", "branch and
        bound" or a solver.
    horizon
        If given by the user, schedules that complete later were not considered.
    history
        (seconds, objective, bound) after each improvement; None while there is no schedule.
    steps
        One line for each thing that was done, and what it gained.
    certificate
        The proof of the bound in exact integers, for "lagrangian", "sawtooth", "configuration" and
        "sizes".
    price_certificate
        The best bound by prices of memory alone; None where there is none.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> print(solve(Instance([4] * 4, [1, 1, 6, 6], memory=13, name="four"), method="cp-sat"))
    four: total-latency 21, proven optimal (...)
      bound     21 by CP-SAT ...
    """

    objective: float = math.inf
    bound: float = -math.inf
    minimised: ScheduleObjective = "total-latency"
    lateness: Lateness = "forbidden"
    proof: str = ""
    horizon: int | None = None
    history: tuple[tuple[float, float | None, float], ...] = ()
    steps: tuple[str, ...] = ()
    certificate: (
        Certificate | SawtoothCertificate | ConfigurationCertificate | MakespanCertificate | None
    ) = None
    price_certificate: Certificate | None = None

    @property
    def gap(self) -> float:
        """Share of the objective that the bound does not account for."""
        return super().gap or 0.0

    @property
    def unit(self) -> str:
        """What the objective counts: "steps", "steps and penalties" or "late requests"."""
        if self.minimised == "late-requests":
            return "late requests"
        return "steps" if self.lateness == "forbidden" else "steps and penalties"

    @property
    def premises(self) -> World:
        """Of which runs the bound holds."""
        due = self.schedule.instance.deadlines is not None
        return replace(
            self.schedule.facts,
            preemption="restarted",
            restricted=self.horizon is not None or due,
            objective=self.minimised,
        )

    @property
    def schedule(self) -> Schedule:
        """The best feasible schedule found: the answer."""
        schedule: Schedule = self.answer
        return schedule

    @property
    def prices(self) -> FloatArray | None:
        """Price of a token at steps 1, 2, ...; None where the bound knows no prices."""
        if self.price_certificate is None:
            return None
        certificate = self.price_certificate
        return np.array(certificate.prices, dtype=np.float64) / certificate.denominator

    def explain(self) -> GapExplanation:
        """Take the gap to the best bound by prices, and charges, of memory apart.

        There are no prices for the makespan, and where there are too many steps: an error.
        """
        if self.price_certificate is None:
            raise OptschedError(
                "the gap cannot be explained without prices of memory: there are none for the "
                "makespan, and for other objectives only where there are fewer steps"
            )
        if isinstance(self.certificate, SawtoothCertificate):
            return explain_gap(self.schedule, self.certificate)
        return explain_gap(self.schedule, self.price_certificate)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how the interval between bound and best schedule closed over time."""
        return draw("plot_history", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the interval over time, and where the gap comes from, as one HTML file."""
        write("optimum_page", path, self)

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data, ready for JSON; starts in the order of the instance."""
        names = ("status", "objective", "bound", "gap", "proven_optimal", "seconds", "proof")
        content = {name: getattr(self, name) for name in (*names, "horizon")} | {
            "history": [list(entry) for entry in self.history],
            "steps": list(self.steps),
            "starts": self.schedule.starts.tolist(),
        }
        if len(self.schedule.workers) > 1:
            content["workers"] = list(self.schedule.workers.memories)
            content["placement"] = self.schedule.placement.tolist()
        return content

    def __repr__(self) -> str:
        return (
            f"<Optimum of {self.model!r}: {self.minimised} {number(self.objective, 10)}, "
            f"bound {proven(self.bound, digits=10)}, {self.status}>"
        )

    def __str__(self) -> str:
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        late = f" and lateness {self.lateness}" if self.lateness != "forbidden" else ""
        verdict = "proven optimal" if self.proven_optimal else f"gap {small_percent(self.gap)}"
        return (
            f"{self.model}: {self.minimised}{late} {number(self.objective, 10)}, {verdict}{within} "
            f"({self.status}, {self.seconds:.2f} s)\n"
            f"  bound     {proven(self.bound, digits=10)} by {self.proof}\n"
            + "\n".join(f"  {step}" for step in self.steps)
        )


def keeps(model: LinearModel, schedule: Schedule) -> bool:
    """Return whether a schedule keeps all rows of the model of a program, without rounding."""
    assert isinstance(model.program, HindsightProgram)
    try:
        point = model.program.write_point(schedule)
    except ModelError:  # it starts where there is no column
        return False
    return not model.violations(point) and model.holds(point)


#: Status where a program has more coefficients than is allowed.
TOO_LARGE = "too large to be solved exactly"

_WORK = 60.0  # units, where neither time nor work is limited


@dataclass
class SolveState:
    """What is asked, what is known so far, and a token that ends the work when it is set."""

    instance: Instance
    objective: ScheduleObjective
    method: str = "auto"
    options: Options = field(default_factory=Options)
    params: SolveParams = field(default_factory=SolveParams)
    workers: Workers = None  # type: ignore[assignment]  # one, unless it says so
    rows: LinearModel | None = None  # of a program of the user's, which schedules have to keep
    status: str = ""
    best: Schedule | None = None
    cost: float = math.inf
    exact: Fraction | None = None  # what the best schedule costs, without rounding
    floor: Fraction = Fraction(0)  # what `bound` proves, moved to a cost that schedules can have
    unit: Fraction = field(init=False)  # of which every schedule's cost is a whole multiple
    bound: Bound = field(default_factory=lambda: Bound(-math.inf, "nothing", 0.0))
    history: list[tuple[float, float | None, float]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    pool: Instance = field(init=False)  # one worker with all memory, for which `prices` are
    prices: Certificate | None = None  # the best prices, and what they prove
    sizes: ConfigurationCertificate | None = None  # of the configuration bound
    stop: threading.Event = field(default_factory=threading.Event)
    ended: Token = field(init=False)  # set where `stop` is, and where the answer is given
    worked: float = 0.0  # seconds' worth of work that stages were given
    closed: bool = False  # what a stage finds later than this comes too late
    lock: threading.RLock = field(default_factory=threading.RLock)
    began: float = field(default_factory=stopwatch)

    def __post_init__(self) -> None:
        self.stop = self.params.stop or self.stop
        self.ended = Token(self.stop)
        self.workers = self.workers or Workers([self.instance.memory])
        self.pool = self.workers.pool(self.instance)
        limits = self.params.lateness, self.params.penalty
        self.unit = cost_unit(self.instance, self.objective, *limits)

    # What is asked.

    @property
    def alone(self) -> bool:
        """Whether there is one worker."""
        return len(self.workers) == 1

    @property
    def plain(self) -> bool:
        """Whether it is latency that is minimised, without deadlines or a horizon."""
        free = self.instance.deadlines is None and self.params.horizon is None
        return free and self.objective != "makespan"

    @property
    def hard(self) -> bool:
        """Whether no deadline may be missed."""
        return not self.costs.soft

    @property
    def timely(self) -> bool:
        """Whether it is latency that is minimised, and no request may be late."""
        return self.hard and not self.plain and self.objective != "makespan"

    @property
    def events(self) -> int:
        """Requests up to which the event program is solved: where prices say little, more."""
        return EVENTS if self.plain or not self.hard else EVENTS_TIGHT

    @property
    def due(self) -> IntArray | None:
        """Latest start of each request, shape (n,), where deadlines or a horizon limit it."""
        instance, horizon = self.instance, self.params.horizon
        latest = np.full(len(instance), MAX_STEP if horizon is None else horizon)
        if instance.deadlines is not None and self.hard:
            latest = np.minimum(latest, instance.deadlines)
        return None if latest.min() == MAX_STEP else latest - instance.outputs

    @property
    def beamed(self) -> bool:
        """Whether a beam is worth its time."""
        most = float(BEAM_MOST)
        if self.instance.arrivals.any():
            seconds = self.work if self.by_work else self.time_limit
            most = max(most, BEAM_ARRIVALS * min(seconds, _WORK))
        suits = self.alone and self.plain and self.method in ("auto", "search")
        return suits and BEAM_LEAST <= len(self.instance) <= most

    @property
    def weights(self) -> FloatArray:
        """Cost of a step of latency of each request, shape (n,)."""
        late = self.objective == "late-requests"
        return weights_of(self.instance, "weighted-latency" if late else self.objective)

    @property
    def asked(self) -> tuple[str, Lateness, float]:
        """The objective, and what lateness costs."""
        return self.objective, self.params.lateness, self.params.penalty

    @cached_property
    def costs(self) -> StartCosts:
        """What starts cost, but for the makespan."""
        return StartCosts.of(self.instance, *self.asked)

    @property
    def steered(self) -> StartCosts:
        """What a search minimises: where late requests count, their latency breaks ties."""
        if self.objective != "late-requests" or self.best is None:
            return self.costs
        latency = self.weights @ self.best.latencies
        return self.costs._replace(weights=float(self.unit) / (2 * latency) * self.weights)

    @property
    def top(self) -> SolveState:
        """What the user asked for, for which this may be solved."""
        return self

    def wants(self, work: Callable[..., None]) -> bool:
        """Return whether a stage is worth its time."""
        return True

    # When to stop.

    @property
    def time_limit(self) -> float:
        """Seconds for everything."""
        return math.inf if self.options.time_limit is None else self.options.time_limit

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning, without those in which kernels were loaded."""
        return stopwatch() - self.began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.time_limit - self.elapsed

    @property
    def work(self) -> float:
        """Seconds' worth of work of all stages, where they go by work."""
        return _WORK if self.params.work is None else self.params.work

    @property
    def by_work(self) -> bool:
        """Whether searches go by work alone."""
        return self.params.work is not None or math.isinf(self.time_limit)

    @property
    def searching(self) -> float:
        """Seconds that a search reckons with, which would never end by itself."""
        return max(self.work - self.worked, 0.0) if self.by_work else self.left

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be done: it is proven, the token is set or time was up."""
        ended = self.ended.is_set() or self.status == Stopped.WITHIN_TOLERANCE
        return self.proven or self.near or ended

    @property
    def near(self) -> bool:
        """Whether the gap is small enough, of a program for which that can be asked."""
        return 0 < self.options.gap_limit >= self.gap

    @property
    def over(self) -> bool:
        """Whether no stage is to begin: nothing more is to be done, or time is up."""
        return self.finished or self.left <= 0

    def share(self, share: float) -> float:
        """Take the seconds of a stage; few, where the instance is small enough for exact ones."""
        seconds = self._share(share)
        self.worked += seconds
        return seconds

    def _share(self, share: float) -> float:
        requests = len(self.instance)
        if requests > SMALL:
            return self.searching * share
        # A better schedule leaves a time-indexed program fewer starts; a small one needs none.
        most = 0.3 if requests <= SMALLEST else 2.0
        if requests <= self.events and (self.timely or self.objective != "total-latency"):
            most = 0.05  # the event program comes next, whatever the gap
        return min((self.work if self.by_work else self.time_limit) * share, most)

    def budget(
        self, work: float, deadline: float, report: Callable[[float], None] | None = None
    ) -> Budget:
        """Return the budget of a stage, which ends where all ends."""
        return Budget(work, deadline, self.ended, report)

    def until(self, seconds: float) -> float:
        """Return when a stage has to end: with its work if that is small or there is no limit."""
        end = self.began + self.time_limit
        by_work = len(self.instance) <= SMALL or self.by_work
        return end if by_work else min(stopwatch() + seconds, end)

    # What is known.

    @property
    def lowest(self) -> float:
        """The bound, moved to the next cost that a schedule can have, and rounded down."""
        return round_down(self.floor)

    @property
    def proven(self) -> bool:
        """Whether the best schedule is proven to be optimal: without rounding or tolerance."""
        return self.exact is not None and self.floor >= self.exact

    @property
    def gap(self) -> float:
        """Share of the best cost that the bound does not account for."""
        return (self.cost - self.lowest) / self.cost if self.best is not None else math.inf

    def latest_starts(self) -> IntArray:
        """Bound the start of every request in some schedule that is optimal."""
        instance, horizon = self.instance, self.params.horizon
        latest = latest_starts(instance, workers=self.workers)
        if horizon is not None:
            latest = np.minimum(latest, horizon - instance.outputs)
        if instance.deadlines is not None and self.hard:
            latest = np.minimum(latest, instance.deadlines - instance.outputs)
        if (latest < instance.arrivals).any():
            raise InfeasibleError(self.infeasible())
        if self.exact is None:
            return latest
        if self.objective == "makespan":
            end = min(int(self.exact), int((latest + instance.outputs).max()))
            return np.minimum(latest, end - instance.outputs)
        if self.prices is not None:
            return np.minimum(latest, PricedStarts(self.pool, self.prices).latest(self.exact))
        return latest

    def infeasible(self) -> str:
        """Return the sentence for a problem without any schedule."""
        horizon = self.params.horizon
        limit = f" by step {horizon}" if horizon is not None else ""
        due = " within their deadlines" if self.instance.deadlines is not None else ""
        return (
            f"{self.instance.name}: not all requests can complete{limit}{due}; "
            "optsched.explain_infeasibility names those in conflict"
        )

    # What stages report.

    def offer(self, schedule: Schedule) -> None:
        """Keep a schedule if it is feasible and better."""
        params = self.params
        cost = schedule_cost(schedule, self.objective, params.lateness, params.penalty)
        late = params.horizon is not None and schedule.makespan > params.horizon
        if late or (self.exact is not None and cost >= self.exact):
            tie = self.objective == "late-requests" and cost == self.exact
            if not tie or self._latency(schedule) >= self._latency(self.best):
                return
        if [v for v in schedule.check() if self.hard or v.kind != "deadline"]:
            return
        if self.rows is not None and not keeps(self.rows, schedule):
            return
        with self.lock:
            if not self.closed:
                self.best, self.cost, self.exact = schedule, float(cost), cost

    def _latency(self, schedule: Schedule | None) -> float:
        return math.inf if schedule is None else float(self.weights @ schedule.latencies)

    def raise_bound(self, proven: Bound, exact: Fraction | None = None) -> None:
        """Keep a bound if it is better; `exact` is its value without rounding."""
        if exact is None:
            exact = Fraction(proven.value) if (sure := proven.certificate) is None else sure.value
        with self.lock:
            if (exact > self.floor or proven.value > self.bound.value) and not self.closed:
                self.bound, self.floor = proven, max(self.floor, next_cost(exact, self.unit))

    def gain(self, stage: str, found: Bound) -> None:
        """Keep the bound of a stage, and note what it gained."""
        before = self.lowest
        self.raise_bound(found)
        if found.interrupted and not self.proven:
            self.interrupt()
        gained = self.lowest - before
        self.note(f"{stage}: bound {proven(self.lowest, digits=10)}, gained {gained:,.10g}")

    def report(self, stage: str, cost: float | None, bound: float) -> None:
        """Pass on where a stage stands."""
        if self.params.on_progress is not None and not self.closed:
            self.params.on_progress(Progress(self.elapsed, stage, cost, bound))

    def note(self, step: str) -> None:
        """Record where things stand after a step."""
        if self.closed:
            return
        cost = self.cost if self.best is not None else None
        self.history.append((self.elapsed, cost, self.lowest))
        self.steps.append(f"{self.elapsed:7.2f} s  {step}")
        self.report(step.split(":")[0], cost, self.lowest)

    def interrupt(self) -> None:
        """End the work as Ctrl-C does, unless it has ended."""
        with self.lock:
            if not self.closed:
                self.stop.set()

    def close(self) -> None:
        """Take nothing more from a stage that has not ended in time."""
        with self.lock:
            self.closed = True
            self.ended.set()
        if self.left <= 0 and not self.proven:
            self.status = "time limit"

    def result(self) -> Optimum:
        """Return what was found, and how."""
        interrupted = self.stop.is_set()
        ended = "search ended" if self.left > 0 else "time limit"
        status = "interrupted" if interrupted else self.status or ended
        if self.best is None or self.exact is None:
            advice = "allow more time"
            if status in (TOO_LARGE, "search ended"):  # more time changes nothing
                advice = (
                    "no policy meets all deadlines or the horizon; solve by highs or cp-sat, put a "
                    "price on lateness, or take fewer requests"
                )
            raise OptschedError(
                f"no schedule was found in {self.elapsed:.1f} s ({status}); {advice}"
            )
        horizon, proof = self.params.horizon, self.bound.certificate
        if not self.alone and isinstance(proof, Certificate) and not proof.pools:
            proof = of_pool(proof, self.instance, self.workers)
        within = f" within horizon {horizon}" if horizon is not None else ""
        return Optimum(
            status=f"optimal{within}" if self.proven else status,
            solver=f"optsched {__version__}",
            seconds=self.elapsed,
            values=self.best.starts.astype(np.float64),
            objective=self.cost,
            bound=min(self.lowest, self.cost),
            step=float(self.unit),
            distance=max(self.exact - self.floor, Fraction(0)),
            model=self.instance.name,
            answer=self.best,
            minimised=self.objective,
            lateness="forbidden" if self.hard else self.params.lateness,
            proof=self.bound.method,
            horizon=horizon,
            history=tuple(self.history),
            steps=tuple(self.steps),
            certificate=proof,
            price_certificate=self.prices,
        )
