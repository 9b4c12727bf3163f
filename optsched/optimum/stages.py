"""The stages of `optsched.solve`: each improves the best schedule or the bound, and says so."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._version import __version__
from optsched.errors import InfeasibleError, OptschedError, SolverError
from optsched.models import EventProgram, HindsightProgram, latest_starts
from optsched.models.objectives import schedule_cost
from optsched.optimum.result import Optimum
from optsched.policies import BASIC, PriorityPolicy
from optsched.simulate import run
from optsched.solvers.backends.base import Options, Progress
from optsched.solvers.backends.driver import solve_events, solve_linear
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.bound import Bound, bound
from optsched.solvers.bounds.configurations import ConfigurationBound, configuration_bound
from optsched.solvers.bounds.lagrangian import PricedStarts, weights_of
from optsched.solvers.exact.search import solve_exact
from optsched.solvers.search.annealing import WORK_PER_SECOND
from optsched.solvers.search.delays import delay_large
from optsched.solvers.search.search import search

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.certificates.prices import Certificate
    from optsched.instance import Instance
    from optsched.models.objectives import Lateness, ScheduleObjective
    from optsched.schedule import Schedule
    from optsched.solution import Solution

_EVENTS_MOST = 12  # requests up to which the event program is the faster one
_SMALLEST, _SMALL = 30, 50  # requests up to which an exact stage gets to the end, or far
_LARGE_GAP = 0.04  # above which a gap is the bound's fault, as large requests do not pack
_LINEAR_MOST = 20_000_000  # nonzeros up to which a time-indexed program is built
_ROUNDING = 1e-9  # by which costs may differ, relatively, that are sums of fractions
_PRICES_MOST = 1000  # requests up to which prices are improved offline
_PRICES_OFFLINE, _PRICES_ARRIVALS, _DELAYS = 0.05, 0.15, 0.4  # shares of the time left
_DELAYS_FEW, _FEW = 0.2, 400  # so few requests are better searched


class Effort(NamedTuple):
    """How far the stages go that prove most small instances, in work and not in seconds."""

    search: float  # work
    phases: int  # of the configuration bound
    iterations: int
    nodes: int  # of branch and bound

    @property
    def ascent(self) -> dict[str, int]:
        """What the configuration bound is asked for."""
        return {"phases": self.phases, "iterations": self.iterations}


#: Each takes several times as long as the one before: little is lost where it is not enough.
_EFFORTS = (
    Effort(search=4e5, phases=1, iterations=0, nodes=1_500),
    Effort(search=4e6, phases=4, iterations=50, nodes=80_000),
    Effort(search=2e7, phases=8, iterations=200, nodes=300_000),
)
_FIRST_PRICES = 2e5  # work that takes milliseconds and gives most of what prices can
_TABLES = 2_000_000  # output tokens x requests x memory up to which sizes take milliseconds
_TINY = 8  # requests up to which all efforts are worth it, and the event program takes tenths
_VARIED = 0.45  # of a second if they vary as much in memory-time (standard deviation over mean)
_HOPELESS = 0.1  # gap above which more requests are left to the stages that take their time


@dataclass
class Task:
    """What is known so far."""

    instance: Instance
    objective: ScheduleObjective
    lateness: Lateness
    penalty: float
    horizon: int | None
    time_limit: float
    threads: int
    on_progress: Callable[[Progress], object] | None
    status: str = ""
    best: Schedule | None = None
    cost: float = math.inf
    bound: Bound | ConfigurationBound = field(
        default_factory=lambda: Bound(-math.inf, "nothing", 0.0)
    )
    history: list[tuple[float, float | None, float]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    certificate: Certificate | None = None  # the best prices: what they prove of starts
    sizes: ConfigurationCertificate | None = None  # of the configuration bound
    began: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.time_limit - self.elapsed

    def share(self, share: float) -> float:
        """Give the seconds of a stage; few, where the instance is small enough for exact ones."""
        seconds, requests = self.left * share, len(self.instance)
        if requests <= _SMALL:
            # A better schedule leaves a time-indexed program fewer starts; a small one needs none.
            most = 0.3 if requests <= _SMALLEST else 2.0
            if requests <= _EVENTS_MOST and self.objective != "total-latency":
                most = 0.05  # the event program comes next, whatever the gap
            return min(seconds, most)
        return seconds

    def until(self, seconds: float) -> float:
        """Give the moment so many seconds from now, or the end of all."""
        now = time.perf_counter()
        return min(now + seconds, self.began + self.time_limit)

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
        """Whether the best schedule is proven to be optimal."""
        return self.lowest >= self.cost * (1 if self.whole else 1 - _ROUNDING)

    @property
    def distance(self) -> float:
        """Share of the best cost that the bound does not account for."""
        return (self.cost - self.lowest) / self.cost if self.best is not None else math.inf

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
            self.offer(run(instance, policy).schedule)
        found = f"{self.cost:,.10g} ({self.best.policy})" if self.best is not None else "none"
        self.note(f"policies: {found}; bound {self.lowest:,.10g} ({self.bound.method})")

    def prove_small(self, method: str, seed: int, options: Options) -> None:
        """Close the interval of a small instance by branch and bound, with growing effort."""
        instance = self.instance
        cells = len(instance) * int(instance.outputs.sum()) * instance.memory
        if self.certificate is None or cells > _TABLES:
            return
        tiny = len(instance) <= _TINY
        varied = instance.areas.std() >= _VARIED * instance.areas.mean()
        self.improve_prices(_FIRST_PRICES)
        for effort in _EFFORTS:
            if effort is not _EFFORTS[0] and not tiny and self.distance > _HOPELESS:
                break
            if effort is _EFFORTS[-1] and tiny and varied and method == "auto":
                try:
                    self.solve_exactly("cp-sat", options, share=0.2)
                except SolverError as error:  # branch and bound needs no solver
                    self.note(f"events: left out, {error}")
            self.search(seed, work=effort.search, threads=1)
            if not self.proven:
                self.price_configurations(seed, effort)
            self.branch_and_bound(options.memory_limit, effort.nodes)
        self.sizes = None  # stronger ones are made where they pay

    def improve_prices(self, work: float | None = None) -> None:
        """Raise the bound by better prices: with arrivals it pays, offline a little."""
        if self.certificate is None or self.best is None or self.left <= 0 or self.proven:
            return
        before, arrivals = self.lowest, bool(self.instance.arrivals.any())
        if not arrivals and len(self.instance) > _PRICES_MOST:
            return  # the relaxation's prices are as good (docs/research.md)
        seconds = self.share(_PRICES_ARRIVALS if arrivals else _PRICES_OFFLINE)
        found = improve_prices(
            self.best,
            self.certificate,
            work=seconds * WORK_PER_SECOND if work is None else work,
            deadline=self.until(1.5 * seconds),
            on_progress=lambda value: self.report("prices", value),
        )
        self.certificate = found.certificate
        self.raise_bound(found)
        self.note(f"prices: bound {self.lowest:,.10g}, gained {self.lowest - before:,.10g}")
        if found.interrupted:
            raise KeyboardInterrupt

    def delay_large(self, seed: int) -> None:
        """Let large requests wait where arrivals make that pay."""
        if self.certificate is None or not self.instance.arrivals.any():
            return
        if self.left <= 0 or self.proven:
            return
        few = len(self.instance) <= _FEW
        before, seconds = self.cost, self.share(_DELAYS_FEW if few else _DELAYS)
        weights = weights_of(self.instance, self.objective)
        found = delay_large(
            self.instance,
            weights,
            self.certificate,
            work=seconds * WORK_PER_SECOND,
            seed=seed,
            deadline=self.until(1.5 * seconds),
            on_progress=lambda _: self.report("delays", self.lowest),
        )
        self.offer(found)
        self.note(f"delays: {self.cost:,.10g}, gained {before - self.cost:,.10g}")

    def report(self, stage: str, bound: float) -> None:
        """Tell what is known so far."""
        if self.on_progress is not None:
            self.on_progress(Progress(self.elapsed, stage, self.cost, max(bound, self.lowest)))

    def search(
        self, seed: int, share: float = 1.0, threads: int | None = None, work: float = math.inf
    ) -> None:
        """Improve the best schedule, for a share of the time that is left and no more work."""
        assert self.best is not None
        if self.proven:
            return
        seconds = self.left if share == 1 else self.share(share)
        if seconds <= 0:
            return
        before, began = self.cost, self.elapsed
        stop = threading.Event()

        def improved(cost: float) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(self.elapsed, "search", cost, self.lowest))
            if cost <= self.lowest:
                stop.set()

        try:
            found = search(
                self.best,
                weights_of(self.instance, self.objective),
                work=min(work, seconds * WORK_PER_SECOND),
                seed=seed,
                threads=self.threads if threads is None else threads,
                deadline=self.began + self.time_limit,
                on_progress=improved,
                stop=stop,
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
        if self.objective != "total-latency" or self.best is None:
            return False
        priced = self.lowest if self.certificate is None else float(self.certificate.value)
        return (self.cost - priced) / self.cost >= _LARGE_GAP

    def branch_and_bound(self, memory_limit: int | None, nodes: int | None = None) -> None:
        """Search in time order; stopped early it still narrows the interval."""
        if self.left <= 0 or self.proven or self.sizes is None:
            return

        def report(_: float, lower: int, upper: int) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(self.elapsed, "branch and bound", upper, lower))

        try:
            found = solve_exact(
                self.instance,
                upper=self.best,
                certificate=self.sizes,
                # Its last layer takes a while to put away; other stages follow limited nodes.
                time_limit=(0.9 if nodes is None else 0.3) * self.left,
                node_limit=nodes,
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

    def price_configurations(self, seed: int, effort: Effort | None = None) -> None:
        """Raise the bound where large requests leave memory empty that nothing could use.

        With more than one thread the others search meanwhile, unless an effort is given.
        """
        if self.left <= 0:
            return
        before, share = self.lowest, 0.5
        stop = threading.Event()

        def watch(_: float, value: float) -> None:
            self.report("configurations", value)
            if stop.is_set():
                raise KeyboardInterrupt  # ends the ascent, which keeps its best

        price = partial(
            configuration_bound,
            self.instance,
            time_limit=share * self.left,
            start=self.certificate,
            on_progress=watch,
            **({} if effort is None else effort.ascent),
        )
        try:
            if self.threads > 1 and effort is None:
                with ThreadPoolExecutor(1) as pool:
                    future = pool.submit(price)
                    try:
                        self.search(seed, share, self.threads - 1)
                    except KeyboardInterrupt:
                        stop.set()
                        raise
                    finally:
                        if self.proven:
                            stop.set()
                    found = future.result()
            else:
                found = price()
        except OptschedError as error:
            self.note(f"configurations: left out, {error}")
            return
        self.sizes = found.certificate
        self.raise_bound(found)
        self.note(f"configurations: bound {self.lowest:,.10g}, gained {self.lowest - before:,.10g}")
        if found.interrupted and not self.proven:
            raise KeyboardInterrupt

    def solve_exactly(self, method: str, options: Options, share: float = 1.0) -> None:
        """Hand the program to a solver, without the starts that are proven to be too dear."""
        if self.proven:
            return
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
            solution, read = self._events(latest, options, share)
        else:
            assert program is not None
            solver = "cp-sat" if method == "cp-sat" else "highs"
            solution, read = self._linear(program, solver, options)
        if solution.values is not None:
            self.offer(read(solution.values))
        elif solution.status == "infeasible" and self.best is None:
            raise InfeasibleError(self._infeasible())
        if solution.bound is not None:
            # Starts that were left out cost more than the best known before.
            self.raise_bound(Bound(solution.bound, solution.solver, solution.seconds))
        self.status = str(solution.status)
        said = solution.raw_status if solution.status == "error" else ""
        words = f" ({said})" if said else ""
        self.note(
            f"{solution.solver}, {'events' if events else 'time-indexed'}: "
            f"{solution.status}{words}, {self.cost:,.10g}, bound {self.lowest:,.10g}"
        )
        if solution.status == "interrupted":
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
        self, program: HindsightProgram, solver: str, options: Options
    ) -> tuple[Solution, Callable[[Any], Schedule]]:
        model = program.to_linear()
        if self.certificate is not None and self.best is not None:
            priced = PricedStarts(self.instance, self.certificate)
            starts = model.variables[0].keys
            regrets = priced.regrets(starts[:, 0], starts[:, 1])
            dear = np.flatnonzero(regrets > priced.room(self.cost))
            model = model.fix(dear, np.zeros(len(dear)))
        solution = solve_linear(
            model,
            solver,
            replace(options, time_limit=max(self.left, 1e-3)),
            start=None if self.best is None else program.write_point(self.best),
            on_progress=self.on_progress,
            in_child=True,
        )
        return solution, program.read

    def _events(
        self, latest: IntArray, options: Options, share: float
    ) -> tuple[Solution, Callable[[Any], Schedule]]:
        program = EventProgram(self.instance, self.objective, latest)
        solution = solve_events(
            program,
            options=replace(options, time_limit=max(share * self.left, 1e-3)),
            start=None if self.best is None else program.write_point(self.best),
            bound=self.lowest,
            on_progress=self.on_progress,
            in_child=True,
        )
        return solution, program.read

    def _infeasible(self) -> str:
        limit = f" by step {self.horizon}" if self.horizon is not None else ""
        due = " within their deadlines" if self.instance.deadlines is not None else ""
        return (
            f"{self.instance.name}: not all requests can complete{limit}{due}; "
            "optsched.explain_infeasibility names those in conflict"
        )

    def result(self) -> Optimum:
        """Return what was found, and how."""
        if self.best is None:
            raise OptschedError(
                f"no schedule was found in {self.elapsed:.1f} s ({self.status}); allow more time"
            )
        within = f" within horizon {self.horizon}" if self.horizon is not None else ""
        return Optimum(
            status=f"optimal{within}" if self.proven else self.status or "time limit",
            solver=f"optsched {__version__}",
            seconds=self.elapsed,
            values=self.best.starts.astype(np.float64),
            objective=self.cost,
            bound=min(self.lowest, self.cost),
            step=1.0 if self.whole else None,
            model=self.instance.name,
            answer=self.best,
            minimised=self.objective,
            proof=self.bound.method,
            horizon=self.horizon,
            history=tuple(self.history),
            steps=tuple(self.steps),
            certificate=self.bound.certificate,
            price_certificate=self.certificate,
        )
