"""What the stages of `optsched.solve` share: the problem, what is known of it, and when to stop."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.aside import Token
from optsched._internal.exact import round_down
from optsched._internal.loading import stopwatch
from optsched._version import __version__
from optsched.bounds.lagrangian import PricedStarts, weights_of
from optsched.bounds.one_worker import Bound
from optsched.bounds.pools import of_pool
from optsched.certificates.prices import Certificate
from optsched.errors import InfeasibleError, OptschedError
from optsched.models.objectives import cost_unit, schedule_cost
from optsched.models.running import latest_starts
from optsched.models.solution import Stopped, next_cost
from optsched.optimum.params import SolveParams
from optsched.optimum.result import Optimum
from optsched.problem.workers import Workers
from optsched.solvers.backends.base import Options, Progress

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.bounds.configurations import ConfigurationBound
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.models.objectives import ScheduleObjective
    from optsched.optimum.params import Tuning
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Schedule

#: Status where a program has more coefficients than `Tuning` allows.
TOO_LARGE = "too large to be solved exactly"

_WORK = 60.0  # seconds' worth, where neither time nor work is limited


@dataclass
class State:
    """What is asked, what is known so far, and a token that ends the work when it is set."""

    instance: Instance
    objective: ScheduleObjective
    method: str = "auto"
    options: Options = field(default_factory=Options)
    params: SolveParams = field(default_factory=SolveParams)
    workers: Workers = None  # type: ignore[assignment]  # one, unless it says so
    status: str = ""
    best: Schedule | None = None
    cost: float = math.inf
    exact: Fraction | None = None  # what the best schedule costs, without rounding
    floor: Fraction = Fraction(0)  # what `bound` proves, moved to a cost that schedules can have
    unit: Fraction = field(init=False)  # of which every schedule's cost is a whole multiple
    bound: Bound | ConfigurationBound = field(
        default_factory=lambda: Bound(-math.inf, "nothing", 0.0)
    )
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
    def tuning(self) -> Tuning:
        """When stages are worth their time."""
        return self.params.tuning

    @property
    def plain(self) -> bool:
        """Whether it is latency that is minimised, without deadlines or a horizon."""
        free = self.instance.deadlines is None and self.params.horizon is None
        return free and self.objective != "makespan"

    @property
    def hard(self) -> bool:
        """Whether no deadline may be missed."""
        return self.params.lateness == "forbidden" or self.instance.deadlines is None

    @property
    def beamed(self) -> bool:
        """Whether a beam is worth its time."""
        tuning, most = self.tuning, float(self.tuning.beam_most)
        if self.instance.arrivals.any():
            seconds = self.work if self.by_work else self.time_limit
            most = max(most, tuning.beam_arrivals * min(seconds, _WORK))
        suits = self.plain and self.method in ("auto", "search")
        return suits and tuning.beam_least <= len(self.instance) <= most

    @property
    def weights(self) -> FloatArray:
        """Cost of a step of latency of each request, shape (n,)."""
        return weights_of(self.instance, self.objective)

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
        return self.proven or self.ended.is_set() or self.status == Stopped.WITHIN_TOLERANCE

    def share(self, share: float) -> float:
        """Take the seconds of a stage; few, where the instance is small enough for exact ones."""
        seconds = self._share(share)
        self.worked += seconds
        return seconds

    def _share(self, share: float) -> float:
        requests, tuning = len(self.instance), self.tuning
        if requests > tuning.small:
            return self.searching * share
        # A better schedule leaves a time-indexed program fewer starts; a small one needs none.
        most = 0.3 if requests <= tuning.smallest else 2.0
        if requests <= tuning.events and self.objective != "total-latency":
            most = 0.05  # the event program comes next, whatever the gap
        return min((self.work if self.by_work else self.time_limit) * share, most)

    def until(self, seconds: float) -> float:
        """Return when a stage has to end: with its work if that is small or there is no limit."""
        end = self.began + self.time_limit
        by_work = len(self.instance) <= self.tuning.small or self.by_work
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
        if instance.deadlines is not None and self.params.lateness == "forbidden":
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
            return
        soft = params.lateness != "forbidden"
        if [v for v in schedule.check() if not (soft and v.kind == "deadline")]:
            return
        with self.lock:
            if not self.closed:
                self.best, self.cost, self.exact = schedule, float(cost), cost

    def raise_bound(
        self, proven: Bound | ConfigurationBound, exact: Fraction | None = None
    ) -> None:
        """Keep a bound if it is better; `exact` is its value without rounding."""
        if exact is None:
            exact = Fraction(proven.value) if (sure := proven.certificate) is None else sure.value
        with self.lock:
            if (exact > self.floor or proven.value > self.bound.value) and not self.closed:
                self.bound, self.floor = proven, max(self.floor, next_cost(exact, self.unit))

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
        status = "interrupted" if interrupted else self.status or "time limit"
        if self.best is None or self.exact is None:
            advice = "allow more time"
            if status == TOO_LARGE:  # more time changes nothing
                advice = (
                    "no policy meets all deadlines or the horizon; solve by highs or cp-sat, put a "
                    "price on lateness, or take fewer requests"
                )
            raise OptschedError(
                f"no schedule was found in {self.elapsed:.1f} s ({status}); {advice}"
            )
        horizon, proof = self.params.horizon, self.bound.certificate
        if len(self.workers) > 1 and isinstance(proof, Certificate) and not proof.pools:
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
            proof=self.bound.method,
            horizon=horizon,
            history=tuple(self.history),
            steps=tuple(self.steps),
            certificate=proof,
            price_certificate=self.prices,
        )
