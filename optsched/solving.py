"""The best schedule in hindsight: the best that was found, and a bound that was proven."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched.errors import InfeasibleError, OptschedError, nearest
from optsched.gap import GapExplanation, explain_gap
from optsched.models import EventProgram, HindsightProgram, latest_starts
from optsched.models.hindsight import LATENESS, schedule_cost
from optsched.policies import BASIC, PriorityPolicy
from optsched.simulate import run
from optsched.solvers import Options, Progress, solve_events, solve_linear
from optsched.solvers.bounds import OBJECTIVES, Bound, bound
from optsched.solvers.configuration import ConfigurationBound, configuration_bound
from optsched.solvers.exact import solve_exact
from optsched.solvers.lagrangian import PricedStarts, weights_of
from optsched.solvers.search import WORK_PER_SECOND, search

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from optsched.certificate import Certificate
    from optsched.configuration_certificate import ConfigurationCertificate
    from optsched.instance import Instance, IntArray
    from optsched.models.hindsight import Lateness, ScheduleObjective
    from optsched.schedule import Schedule
    from optsched.solution import Solution

Method = Literal["auto", "highs", "cp-sat", "search", "exact"]
METHODS: tuple[Method, ...] = ("auto", "highs", "cp-sat", "search", "exact")

_EVENTS_MOST = 12  # requests up to which the event program is the faster one
_EXACT_MOST = 24  # requests up to which branch and bound is worth the time
_LARGE_GAP = 0.04  # above which a gap is the bound's fault, as large requests do not pack
_LINEAR_MOST = 20_000_000  # nonzeros up to which a time-indexed program is built
_ROUNDING = 1e-9  # by which costs may differ, relatively, that are sums of fractions


@dataclass(frozen=True, eq=False)
class Hindsight:
    """The best schedule known and the best bound proven.

    Attributes
    ----------
    schedule
        The best feasible schedule found.
    objective
        What is minimised: "total-latency", "weighted-latency" or "makespan".
    cost
        Its cost, evaluated from its start steps.
    bound
        No feasible schedule costs less.
    proven_optimal
        Whether no feasible schedule costs less than this one (within the horizon, if one was
        given). Where weights or the penalty are fractions, up to 1e-9 of the cost.
    proof
        Who proved the bound: "closed-form", "lagrangian", "configuration", "branch and bound" or
        a solver.
    status
        "optimal", "time limit", "interrupted", "search ended", or what else ended the work.
    seconds
        Wall time of everything.
    horizon
        If given by the user, schedules that complete later were not considered.
    history
        (seconds, cost, bound) after each improvement; cost is None while there is no schedule.
    steps
        One line for each thing that was done, and what it gained.
    certificate
        The proof of the bound in exact integers, for "lagrangian" and "configuration".

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> print(solve(Instance([4] * 4, [1, 1, 6, 6], memory=13, name="four"), method="cp-sat"))
    four: total-latency 21, proven optimal (...)
      bound     21 by CP-SAT ...
    """

    schedule: Schedule
    objective: ScheduleObjective
    cost: float
    bound: float
    proven_optimal: bool
    proof: str
    status: str
    seconds: float
    horizon: int | None
    history: tuple[tuple[float, float | None, float], ...]
    steps: tuple[str, ...]
    certificate: Certificate | ConfigurationCertificate | None = None

    @property
    def gap(self) -> float:
        """Share of the cost that the bound does not account for."""
        return max(0.0, (self.cost - self.bound) / self.cost)

    def explain(self) -> GapExplanation:
        """Take the gap to the certified bound apart, by request and by step.

        Returns
        -------
        GapExplanation
            Of the certified part of the bound, which a solver may have exceeded.
        """
        certificate = bound(self.schedule.instance, "lagrangian").certificate
        assert certificate is not None
        return explain_gap(self.schedule, certificate)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how the interval between bound and best schedule closed over time.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        from optsched.report.plots import plot_history

        return plot_history(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data, ready for JSON; starts in the order of the instance."""
        return {
            "status": self.status,
            "objective": self.cost,
            "bound": self.bound,
            "gap": self.gap,
            "proven_optimal": self.proven_optimal,
            "seconds": self.seconds,
            "proof": self.proof,
            "horizon": self.horizon,
            "history": [list(entry) for entry in self.history],
            "steps": list(self.steps),
            "starts": self.schedule.starts.tolist(),
        }

    def __str__(self) -> str:
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        verdict = (
            f"proven optimal{within}" if self.proven_optimal else f"gap {self.gap:.2%}{within}"
        )
        return (
            f"{self.schedule.instance.name}: {self.objective} {self.cost:,.10g}, {verdict} "
            f"({self.status}, {self.seconds:.2f} s)\n"
            f"  bound     {self.bound:,.10g} by {self.proof}\n"
            + "\n".join(f"  {step}" for step in self.steps)
        )


def solve(
    instance: Instance,
    objective: ScheduleObjective = "total-latency",
    method: Method = "auto",
    time_limit: float = 60.0,
    *,
    horizon: int | None = None,
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
    threads: int = 1,
    seed: int = 0,
    memory_limit: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Hindsight:
    """Find the best schedule in hindsight and prove how good it is.

    Whatever happens - time out, Ctrl-C, a solver that crashes - the best schedule and the best
    proven bound so far are returned.

    Parameters
    ----------
    instance
        The requests. Deadlines, if there are any, are hard unless `lateness` says otherwise.
    objective
        "total-latency", "weighted-latency" or "makespan".
    method
        "highs": the time-indexed program. "cp-sat": the event program, or the time-indexed one
        for more requests. "exact": the configuration bound, then branch and bound. "search": no
        proof beyond the bound, any size. "auto": search, then what suits size and gap.
    time_limit
        Seconds for everything.
    horizon
        Consider only schedules that complete by this step. None considers all: the steps that
        have to be modelled are then proven, not guessed.
    lateness, penalty
        With "per-step" or "per-request" a deadline may be missed at this price.
    threads, seed
        For the solvers.
    memory_limit
        Bytes a solver's process may take.
    on_progress
        Called with what is known, now and then.

    Returns
    -------
    Hindsight
        Schedule, bound, and how they came about.

    Raises
    ------
    InfeasibleError
        If it is proven that no schedule meets the deadlines or the horizon.
    OptschedError
        If an argument makes no sense, or no schedule was found in time.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> result = solve(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> result.cost, result.proven_optimal
    (45.0, True)
    """
    for name, value, known in (
        ("objective", objective, OBJECTIVES),
        ("method", method, METHODS),
        ("lateness", lateness, LATENESS),
    ):
        if value not in known:
            raise OptschedError(f"unknown {name} {value!r}: {nearest(str(value), known)}")
    if not penalty >= 0:
        raise OptschedError(f"penalty is {penalty}, but cannot be negative")
    Options(time_limit, threads, seed, memory_limit=memory_limit)  # refuses what makes no sense
    plain = objective != "makespan" and instance.deadlines is None and horizon is None
    if method in ("search", "exact") and not plain:
        raise OptschedError(
            f"{method} minimises latency without deadlines or a horizon; use highs or cp-sat"
        )
    if method == "exact" and objective != "total-latency":
        raise OptschedError(f"exact minimises total latency, not {objective}; use highs or cp-sat")
    task = _Task(instance, objective, lateness, penalty, horizon, time_limit, on_progress)
    options = {"threads": threads, "seed": seed, "memory_limit": memory_limit}
    try:
        task.begin()
        if not task.proven and plain and method in ("auto", "search", "exact"):
            task.search(seed, share=1.0 if method == "search" else 0.1)
        if not task.proven and plain and (method == "exact" or (method == "auto" and task.large)):
            task.price_configurations()
        # Where sizes gained on prices, a time-indexed program would not get as far.
        priced = task.sizes is not None
        if not task.proven and priced and (method == "exact" or len(instance) <= _EXACT_MOST):
            task.branch_and_bound(memory_limit)
        if not task.proven and not priced and method in ("auto", "highs", "cp-sat"):
            task.solve_exactly(method, options)
        if not task.proven and plain and method == "auto":
            task.search(seed + 1, share=1.0)
    except KeyboardInterrupt:
        task.status = "interrupted"
    return task.result()


def proven_horizon(instance: Instance, objective: ScheduleObjective = "total-latency") -> int:
    """Find a step within which some optimal schedule completes, from a schedule and a bound.

    Parameters
    ----------
    instance
        The requests.
    objective
        What is minimised.

    Returns
    -------
    int
        Usually much smaller than `optsched.models.safe_horizon`, which needs no schedule.

    Examples
    --------
    >>> from optsched import Instance
    >>> proven_horizon(Instance([63, 1, 1], [1, 2, 2], memory=64))
    3
    """
    task = _Task(instance, objective, "forbidden", 0.0, None, math.inf, None)
    task.begin()
    return int((task.latest_starts() + instance.outputs).max())


@dataclass
class _Task:
    """What is known so far."""

    instance: Instance
    objective: ScheduleObjective
    lateness: Lateness
    penalty: float
    horizon: int | None
    time_limit: float
    on_progress: Callable[[Progress], object] | None
    status: str = ""
    best: Schedule | None = None
    cost: float = math.inf
    bound: Bound | ConfigurationBound = field(
        default_factory=lambda: Bound(-math.inf, "nothing", 0.0)
    )
    history: list[tuple[float, float | None, float]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    certificate: Certificate | None = None  # of the first bound: what it proves of starts
    sizes: ConfigurationCertificate | None = None  # of the configuration bound
    began: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        return self.time_limit - self.elapsed

    @property
    def whole(self) -> bool:
        """Whether every schedule costs a whole number."""
        numbers: list[float] = []
        if self.objective == "weighted-latency" and self.instance.weights is not None:
            numbers += self.instance.weights.tolist()
        if self.instance.deadlines is not None and self.lateness != "forbidden":
            numbers.append(self.penalty)
        return all(float(number).is_integer() for number in numbers)

    @property
    def lowest(self) -> float:
        """The bound, moved to the next cost that a schedule can have."""
        value = self.bound.value
        return float(math.ceil(value)) if self.whole and math.isfinite(value) else value

    @property
    def proven(self) -> bool:
        return self.lowest >= self.cost * (1 if self.whole else 1 - _ROUNDING)

    def offer(self, schedule: Schedule) -> None:
        """Keep a schedule if it is feasible and better."""
        cost = schedule_cost(schedule, self.objective, self.lateness, self.penalty)
        soft = self.lateness != "forbidden"
        if cost >= self.cost or (self.horizon is not None and schedule.makespan > self.horizon):
            return
        if [v for v in schedule.check() if not (soft and v.kind == "deadline")]:
            return
        self.best, self.cost = schedule, cost

    def raise_bound(self, proven: Bound | ConfigurationBound) -> None:
        """Keep a bound if it is better."""
        if proven.value > self.bound.value:
            self.bound = proven

    def note(self, step: str) -> None:
        """Record where things stand after a step."""
        cost = self.cost if self.best is not None else None
        self.history.append((self.elapsed, cost, self.lowest))
        self.steps.append(f"{self.elapsed:7.2f} s  {step}")
        if self.on_progress is not None:
            self.on_progress(Progress(self.elapsed, step.split(":")[0], cost, self.lowest))

    def begin(self) -> None:
        """Take what milliseconds give: the policies, and the bound at the relaxation's prices."""
        instance = self.instance
        first = bound(instance, objective=self.objective)
        self.certificate = first.certificate
        self.raise_bound(first)
        policies = [*BASIC.values()]
        if self.objective == "weighted-latency":
            weights = weights_of(instance, self.objective)
            policies.append(PriorityPolicy("area-weighted", "", lambda i: i.areas / weights))
        if self.objective == "makespan":
            policies.append(PriorityPolicy("largest", "", lambda i: -i.areas))
            policies.append(PriorityPolicy("longest", "", lambda i: -i.outputs))
        if instance.deadlines is not None:
            due = instance.deadlines
            policies.append(PriorityPolicy("earliest-deadline", "", lambda _: due))
            policies.append(PriorityPolicy("least-slack", "", lambda i: due - i.outputs))
        for policy in policies:
            self.offer(run(instance, policy))
        found = f"{self.cost:,.10g} ({self.best.policy})" if self.best is not None else "none"
        self.note(f"policies: {found}; bound {self.lowest:,.10g} ({self.bound.method})")

    def search(self, seed: int, share: float) -> None:
        """Improve the best schedule, for a share of the time that is left."""
        assert self.best is not None
        seconds = self.left * share
        if share < 1 and len(self.instance) <= 50:
            seconds = min(seconds, 0.3)  # small enough to be solved exactly
        if seconds <= 0:
            return
        before, began = self.cost, self.elapsed

        def improved(cost: float) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(self.elapsed, "search", cost, self.lowest))
            if cost <= self.lowest:
                raise StopIteration

        try:
            found = search(
                self.best,
                weights_of(self.instance, self.objective),
                work=seconds * WORK_PER_SECOND,
                seed=seed,
                deadline=self.began + self.time_limit,
                on_progress=improved,
            )
        except OptschedError as error:
            self.status = "too long to be searched"
            self.note(f"search: left out, {error}")
            return
        self.offer(found.schedule)
        self.history += [(began + at, cost, self.lowest) for at, cost in found.history[1:]]
        self.note(f"search: {self.cost:,.10g}, gained {before - self.cost:,.10g}")
        self.status = "time limit" if self.left <= 0 else "search ended"
        if found.interrupted:
            raise KeyboardInterrupt

    @property
    def large(self) -> bool:
        """Whether the gap suggests that large requests leave memory empty."""
        if self.objective != "total-latency":
            return False
        return (self.cost - self.lowest) / self.cost >= _LARGE_GAP

    def branch_and_bound(self, memory_limit: int | None) -> None:
        """Search in time order; stopped early it still narrows the interval."""
        if self.left <= 0:
            return

        def report(_: float, lower: int, upper: int) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(self.elapsed, "branch and bound", upper, lower))

        try:
            found = solve_exact(
                self.instance,
                upper=self.best,
                certificate=self.sizes,
                time_limit=0.9 * self.left,  # its last layer takes a while to put away
                memory_limit=2**30 if memory_limit is None else memory_limit,
                on_progress=report,
            )
        except OptschedError as error:
            self.note(f"branch and bound: left out, {error}")
            return
        self.offer(found.schedule)
        self.raise_bound(Bound(float(found.lower), "branch and bound", found.seconds))
        self.status = str(found.stopped)
        self.note(
            f"branch and bound: {found.stopped}, {self.cost:,.10g}, bound {self.lowest:,.10g}, "
            f"{found.nodes:,} nodes"
        )
        if found.stopped == "interrupted":
            raise KeyboardInterrupt

    def price_configurations(self) -> None:
        """Raise the bound where large requests leave memory empty that nothing could use."""
        if self.left <= 0:
            return
        before = self.lowest

        def report(_: float, value: float) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(self.elapsed, "configurations", self.cost, value))

        try:
            found = configuration_bound(self.instance, time_limit=self.left / 2, on_progress=report)
        except OptschedError as error:
            self.note(f"configurations: left out, {error}")
            return
        self.sizes = found.certificate
        self.raise_bound(found)
        self.note(f"configurations: bound {self.lowest:,.10g}, gained {self.lowest - before:,.10g}")

    def solve_exactly(self, method: Method, options: dict[str, Any]) -> None:
        """Hand the program to a solver, without the starts that are proven to be too dear."""
        few = len(self.instance) <= _EVENTS_MOST
        hard = self.lateness == "forbidden" or self.instance.deadlines is None
        if self.left <= 0:
            self.status = "time limit"
            return
        latest = self.latest_starts()
        events = hard and method != "highs" and few
        program = None if events else self._program(latest)
        if program is not None and program.nonzeros > _LINEAR_MOST:
            if method == "auto":
                self.status = "too large to be solved exactly"
                return
            if method == "highs" or not hard:
                raise OptschedError(
                    f"the time-indexed program would have {program.nonzeros:,} nonzeros (at most "
                    f"{_LINEAR_MOST:,}); use the method search, or fewer requests"
                )
            events = True
        if events:
            solution, read = self._events(latest, options)
        else:
            assert program is not None
            solver = "cp-sat" if method == "cp-sat" else "highs"
            solution, read = self._linear(program, solver, options)
        if solution.values is not None:
            self.offer(read(solution.values))
        elif solution.stopped == "infeasible" and self.best is None:
            raise InfeasibleError(self._infeasible())
        if solution.bound is not None:
            # Starts that were left out cost more than the best known before.
            self.raise_bound(Bound(solution.bound, solution.solver, solution.seconds))
        self.status = str(solution.stopped)
        words = f" ({solution.words})" if solution.words and solution.stopped == "error" else ""
        self.note(
            f"{solution.solver}, {'events' if events else 'time-indexed'}: "
            f"{solution.stopped}{words}, {self.cost:,.10g}, bound {self.lowest:,.10g}"
        )
        if solution.stopped == "interrupted":
            raise KeyboardInterrupt

    def latest_starts(self) -> IntArray:
        """Bound the start of every request in some schedule that is optimal."""
        instance = self.instance
        latest = latest_starts(instance)
        if self.horizon is not None:
            latest = np.minimum(latest, self.horizon - instance.outputs)
        if instance.deadlines is not None and self.lateness == "forbidden":
            latest = np.minimum(latest, instance.deadlines - instance.outputs)
        if (latest < instance.arrivals).any():
            raise InfeasibleError(self._infeasible())
        if self.best is None:
            return latest
        if self.objective == "makespan":
            return np.minimum(latest, int(self.cost) - instance.outputs)
        if self.certificate is not None:
            return np.minimum(latest, PricedStarts(instance, self.certificate).latest(self.cost))
        return latest

    def _program(self, latest: IntArray) -> HindsightProgram:
        end = int((latest + self.instance.outputs).max())
        return HindsightProgram(
            self.instance, end, self.objective, lateness=self.lateness, penalty=self.penalty
        )

    def _linear(
        self, program: HindsightProgram, solver: str, options: dict[str, Any]
    ) -> tuple[Solution, Callable[[Any], Schedule]]:
        model = program.lower()
        if self.certificate is not None and self.best is not None:
            priced = PricedStarts(self.instance, self.certificate)
            starts = model.variables[0].keys
            regrets = priced.regrets(starts[:, 0], starts[:, 1])
            dear = np.flatnonzero(regrets > priced.room(self.cost))
            model = model.fix(dear, np.zeros(len(dear)))
        solution = solve_linear(
            model,
            solver,
            start=None if self.best is None else program.write_point(self.best),
            time_limit=max(self.left, 1e-3),
            on_progress=self.on_progress,
            in_child=True,
            **options,
        )
        return solution, program.read

    def _events(
        self, latest: IntArray, options: dict[str, Any]
    ) -> tuple[Solution, Callable[[Any], Schedule]]:
        program = EventProgram(self.instance, self.objective, latest)
        solution = solve_events(
            program,
            start=None if self.best is None else program.write_point(self.best),
            bound=self.lowest,
            time_limit=max(self.left, 1e-3),
            on_progress=self.on_progress,
            in_child=True,
            **options,
        )
        return solution, program.read

    def _infeasible(self) -> str:
        limit = f" by step {self.horizon}" if self.horizon is not None else ""
        due = " within their deadlines" if self.instance.deadlines is not None else ""
        return (
            f"{self.instance.name}: not all requests can complete{limit}{due}; "
            "optsched.explain_infeasibility names those in conflict"
        )

    def result(self) -> Hindsight:
        if self.best is None:
            raise OptschedError(
                f"no schedule was found in {self.elapsed:.1f} s ({self.status}); allow more time"
            )
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        return Hindsight(
            schedule=self.best,
            objective=self.objective,
            cost=self.cost,
            bound=min(self.lowest, self.cost),
            proven_optimal=self.proven,
            proof=self.bound.method,
            status=f"optimal{within}" if self.proven else self.status or "time limit",
            seconds=self.elapsed,
            horizon=self.horizon,
            history=tuple(self.history),
            steps=tuple(self.steps),
            certificate=self.bound.certificate,
        )
