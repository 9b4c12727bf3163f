"""The rolling horizon: windows of waiting requests, what plans them, and what carries plans out.

Plan and fallback are simulated on the same few draws of requests from those that have arrived so
far; both admit by the prefix rule, the plan in the order of its starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from optsched._internal.arrays import MAX_STEP, FloatArray, IntArray, require_room
from optsched._internal.aside import Budget, stopwatch
from optsched._internal.compiled import allocating, compiled
from optsched._internal.extensions import draw
from optsched._internal.numbers import duration
from optsched._internal.small_kernels import PriceSums
from optsched.admission import admit_arriving, admit_in_window, occupy
from optsched.bounds.lagrangian import averaged_starts
from optsched.errors import OptschedError, PolicyError, SolverError, is_interrupt, shown
from optsched.models.hindsight import HindsightProgram, LatencyRelaxation
from optsched.models.program import NOTHING_RUNNING, Running, Stopped
from optsched.policies import BASIC, DecisionPolicy
from optsched.policies.base import BatchPolicy, Rule, window_of
from optsched.problem.execution import Execution
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule, Usage
from optsched.search.annealing import add_all, admit_now, place_in_order, priced_cost, search_window
from optsched.search.beam import Background, Beam, slices
from optsched.simulate.runners import Runner, in_steps, of_attempts, run_decided
from optsched.simulate.seconds.execution import ClockedRun
from optsched.solvers import Options, solve_linear
from optsched.solvers.selection import BatchMethod, select_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched.models.linear import LinearModel
    from optsched.policies.decision import RollingPolicy, State
    from optsched.problem.forecasts import Forecast
    from optsched.search.annealing import Usage as Held
    from optsched.simulate.settings import Task

    Plan = tuple[IntArray, bool]


@dataclass(frozen=True, eq=False)
class Window:
    """What a model of a rolling horizon gets to see; step 0 is now."""

    prompts: IntArray
    outputs: IntArray
    memory: int
    running: Running
    prices: FloatArray
    order: IntArray
    hint: IntArray
    seconds: float
    seed: int
    rule: Rule = "prefix"
    method: str = "auto"

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def load(self) -> IntArray:
        """Tokens that the running requests hold at steps 1, 2, ... until the last has completed."""
        return self.running.load(self.running.last_step)

    @cached_property
    def price_sums(self) -> PriceSums:
        """Sums of the prices, and of step times price, over the steps up to each one from 0 on."""
        return PriceSums.of(self.prices)

    def usage(self) -> Held:
        """Return tokens held from step 0 on by those running, with room for all relevant plans."""
        longest = int(self.outputs.max(initial=1))
        require_room(self.outputs.sum(), 8, "steps of a window", "take a smaller one", PolicyError)
        usage = np.zeros(len(self.load) + int(self.outputs.sum()) + longest + 4, dtype=np.int32)
        usage[1 : len(self.load) + 1] = self.load
        return usage

    def place(self, order: IntArray, *, prefix: bool = True) -> IntArray:
        """Start requests in an order, each as soon as it fits."""
        starts = np.zeros(len(self), dtype=np.int64)
        usage = self.usage()
        place_in_order(self.prompts, self.outputs, self.memory, usage, order, prefix, starts)
        return starts

    @cached_property
    def instance(self) -> Instance:
        """The requests, as if they all arrived now."""
        return Instance(self.prompts, self.outputs, self.memory)

    @cached_property
    def schedule(self) -> Schedule:
        """What the fallback would do: a schedule of the instance of `program` to start from."""
        if self.rule == "prefix":
            starts = self.place(self.order)
        else:
            ratio, length = window_of(self.rule)
            starts = admit_in_window(self.instance, self.order, ratio, length, self.load)
        return Schedule(self.instance, starts, "fallback")

    def cost(self, starts: IntArray) -> float:
        """Return the sum of the starts and of what their memory costs at the prices."""
        return float(priced_cost(self.prompts, self.outputs, self.price_sums, starts))

    def fits(self, starts: npt.ArrayLike) -> bool:
        """Tell whether starts are whole, not in the past, and within the memory at every step."""
        given = np.asarray(starts)
        if given.shape != (len(self),) or not np.issubdtype(given.dtype, np.integer):
            return False
        if len(given) == 0:
            return True
        if given.min() < 0 or given.max() > MAX_STEP:
            return False
        added = Usage(given.astype(np.int64), self.prompts, self.outputs)
        beside = added.at(np.arange(1, len(self.load) + 1))
        held = (self.load + beside)[beside > 0]
        return max(added.peak, int(held.max(initial=0))) <= self.memory

    def program(
        self, horizon: int | None = None, kind: type[HindsightProgram] = HindsightProgram
    ) -> HindsightProgram:
        """Write the window as a hindsight program with priced memory, one output longer."""
        if horizon is None:
            horizon = self.schedule.makespan + int(self.outputs.max())
        prices = self.prices
        if self.method == "cp-sat":  # which counts in whole units
            prices = np.round(prices / _PRICE) * _PRICE
        return kind(self.instance, horizon=horizon, running=self.running, memory_prices=prices)


def prices_of_rest(areas: IntArray, before: int, memory: int) -> FloatArray:
    r"""Price memory for requests that are served after others, all of the memory at a time."""
    if not len(areas):
        return np.zeros(0)
    ends = (before + np.cumsum(np.concatenate([[0], np.sort(areas)]))) / memory
    left = np.arange(len(areas), -1, -1) / memory
    require_room(ends[-1], 40, "prices of steps", "take a larger window", PolicyError)
    prices: FloatArray = np.interp(np.arange(1, int(np.ceil(ends[-1])) + 1), ends, left)
    return prices


ARRIVALS = 64  # of each scenario
_SURE = 2.0  # standard errors beyond which the fallback is taken to be better


class Past(NamedTuple):
    """Requests that arrived so far: tokens, keys of the fallback's order, and their rate."""

    prompts: IntArray
    outputs: IntArray
    keys: FloatArray
    rate: float


def plan_is_worse(
    window: Window,
    keys: FloatArray,
    plan: IntArray,
    fallback: IntArray,
    past: Past,
    count: int,
    deadline: float,
) -> bool:
    """Return whether the fallback does better than a plan on scenarios, beyond chance."""
    if np.array_equal(plan == 0, fallback == 0) and np.array_equal(
        np.argsort(plan, kind="stable"), np.argsort(fallback, kind="stable")
    ):
        return False
    planned = _keys_of(plan, keys)
    rng = np.random.default_rng((window.seed, ARRIVALS))
    differences = np.empty(count)
    for scenario in range(count):
        if stopwatch() >= deadline:
            return False
        drawn = rng.integers(0, len(past.prompts), ARRIVALS)
        arrivals = 1 + np.cumsum(rng.exponential(1 / past.rate, ARRIVALS)).astype(np.int64)
        prompts = np.concatenate([window.prompts, past.prompts[drawn]])
        outputs = np.concatenate([window.outputs, past.outputs[drawn]])
        sums = []
        for chosen, urgency in ((plan, planned), (fallback, keys)):
            order = np.argsort(np.concatenate([urgency, past.keys[drawn]]), kind="stable")
            sums.append(
                _sum_of_starts(
                    prompts, outputs, arrivals, window.memory, window.load, chosen == 0, order
                )
            )
        differences[scenario] = sums[0] - sums[1]
    error = float(differences.std(ddof=1)) / np.sqrt(count)
    return bool(differences.mean() > _SURE * error)


def _keys_of(starts: IntArray, keys: FloatArray) -> FloatArray:
    """Return keys that order the window by its starts, comparable to later requests."""
    order = np.lexsort((keys, starts))
    raised = np.empty(len(starts))
    raised[order] = np.maximum.accumulate(keys[order])
    # Equal keys keep the plan's order: the least difference that numbers of this size can have.
    return _increasing(raised, order)


@compiled
def _increasing(keys: FloatArray, order: IntArray) -> FloatArray:
    for place in range(1, len(order)):
        if keys[order[place]] <= keys[order[place - 1]]:
            keys[order[place]] = np.nextafter(keys[order[place - 1]], np.inf)
    return keys


@allocating
def _sum_of_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    load: IntArray,
    now: IntArray,
    order: IntArray,
) -> int:
    """Start some of the first requests now and admit all the others; give the sum of starts."""
    longest = max(outputs.max(), len(load))
    usage = np.zeros(4 * longest + 64, dtype=np.int64)
    window = np.zeros(2, dtype=np.int64)
    usage[1 : len(load) + 1] = load
    window[1] = len(load)
    here = len(now)
    place = np.empty(len(prompts), dtype=np.int64)
    rest = 0
    for request in range(len(prompts)):
        if request < here and now[request]:
            occupy(usage, window, prompts[request], outputs[request], 0)
            place[request] = -1
        else:
            place[request] = rest
            rest += 1
    s, o, a = np.empty((3, rest), dtype=np.int64)
    priority = np.empty(rest, dtype=np.int64)
    count = 0
    for request in order:
        at = place[request]
        if at >= 0:
            s[at], o[at] = prompts[request], outputs[request]
            a[at] = arrivals[request - here] if request >= here else 0
            priority[count] = at
            count += 1
    starts = np.zeros(rest, dtype=np.int64)
    worker, scratch = (usage, window), np.zeros((3, rest), dtype=np.int64)
    admit_arriving(s, o, a, memory, priority, np.empty(0), rest, starts, worker, scratch)
    total: int = starts.sum()
    return total


# Of the beam: the share of the memory its prices are for, starts for each slice, and its width.
_SHARE, _STARTS, _WIDTH = 0.93, 0.5, 10
_PRICE = 2.0**-16  # unit of prices for a solver that knows whole numbers only
_COMPLETE = (Stopped.OPTIMAL, Stopped.WITHIN_TOLERANCE)  # whatever prices add up to in doubles
_ITERATIONS = 15  # steps of the subgradient method that a budget of some milliseconds allows


def by_hindsight(window: Window) -> Plan:
    """Plan by the hindsight program, searched or by a solver."""
    if window.method != "auto":
        return by_program(window)
    return search_window(
        window.prompts,
        window.outputs,
        window.memory,
        window.usage(),
        window.price_sums,
        window.order,
        window.hint,
        seconds=window.seconds,
        seed=window.seed,
    )


def by_beam(window: Window) -> Plan:
    """Plan by a narrow beam at the prices of the window and of all behind it."""
    deadline = stopwatch() + window.seconds
    plans = [window.place(window.order), window.place(window.order, prefix=False)]
    best = min(plans, key=window.cost)
    if len(window) < 2 or (not best.any() and not window.prices.any()):
        return best, False  # nothing to exchange, or all start now and waiting saves nothing
    if window.load.max(initial=0) > window.memory:
        return best, True  # forecasts were too short: until a preemption a beam has no room
    share = max(int(_SHARE * window.memory), int(window.instance.peaks.max()))
    own = prices_of_rest(window.instance.areas, window.running.area, share)
    prices = np.zeros(max(len(own), len(window.prices)))
    prices[: len(own)] += own
    prices[: len(window.prices)] += window.prices
    load = np.zeros(len(window.load) + 1, dtype=np.int32)
    load[1:] = window.load
    beam = Beam(
        window.instance,
        np.ones(len(window)),
        prices,
        np.ones(len(window), dtype=bool),
        Background(best, load),
        slices(best, _STARTS),
        _WIDTH,
    )
    found, _ = beam.follow(Budget(deadline=deadline), math.inf)
    if found is None:
        return best, True
    return min((best, found), key=window.cost), False


def by_program(window: Window) -> Plan:
    """Plan by the hindsight program, by a solver: within its horizon no plan is better."""
    began = stopwatch()
    found, _ = by_hindsight(replace(window, method="auto", seconds=window.seconds / 10))
    if not found.any() and not window.prices.any():
        return found, False  # all start now, and waiting saves nothing
    program = window.program(int((found + window.outputs).max() + window.outputs.max()))
    start = program.write_point(Schedule(program.instance, found))
    values, cut = _solved(window, program.to_linear(), began, start)
    return program.read(values).starts, cut


def _solved(
    window: Window, model: LinearModel, began: float, start: FloatArray | None = None
) -> tuple[FloatArray, bool]:
    """Solve a model in what is left of the time of a window, and say whether that was short."""
    solver = "highs" if window.method == "auto" else window.method
    left = max(window.seconds - (stopwatch() - began), 1e-3)
    solution = solve_linear(model, solver, Options(left, seed=window.seed), start=start)
    if solution.status is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.values is None:
        raise SolverError(f"{solution.solver} found no plan for a window in time")
    return solution.values, solution.status not in _COMPLETE


def by_relaxation(window: Window) -> Plan:
    """Plan in the order of Sorted-LP: expected starts of the relaxation."""
    if window.method == "auto":
        expected = averaged_starts(window.instance, _ITERATIONS)
        return window.place(np.argsort(expected, kind="stable")), False
    began, relaxation = stopwatch(), window.program(kind=LatencyRelaxation)
    values, cut = _solved(window, relaxation.to_linear(), began)
    expected = cast("FloatArray", relaxation.read(values))
    return window.place(np.argsort(expected, kind="stable")), cut


def by_batches(window: Window) -> Plan:
    """Plan in the order of batches of least F until all are in one."""
    began, cut = stopwatch(), False
    batches: list[IntArray] = []
    if window.method == "auto":  # by local swap
        policy: BatchPolicy = BASIC["sorted-f"]  # type: ignore[assignment]
        selector = policy.batches(window.instance)
        selector.release(np.arange(len(window)))
        while sum(map(len, batches)) < len(window):
            batches.append(selector.next_batch())
    else:
        waiting = np.arange(len(window))
        while len(waiting):
            left = max(window.seconds - (stopwatch() - began), 1e-3)
            method = cast("BatchMethod", window.method)
            batch = select_batch(window.instance.take(waiting), method, time_limit=left)
            batches.append(waiting[batch.requests])
            waiting, cut = np.delete(waiting, batch.requests), cut or batch.factor != 1
    return window.place(np.concatenate(batches)), cut


PLANS: dict[str, Callable[[Window], Plan]] = {
    "beam": by_beam,
    "hindsight": by_hindsight,
    "hindsight-exact": by_program,
    "relax-lp": by_relaxation,
    "batch": by_batches,
}


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """How the decisions of one run came about: `Execution.decisions` of a rolling horizon."""

    policy: RollingPolicy
    counts: Counts
    seconds: float
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"<Decisions of {self.policy.name!r}: {len(self)}, {self.fallbacks} by the fallback>"

    def __len__(self) -> int:
        """Return the number of reviews at which it was decided what starts next."""
        return len(self.counts.seconds) + self.counts.interrupted

    @property
    def fallbacks(self) -> int:
        """Decisions of the fallback, for whatever reason."""
        return len(self) - self.counts.planned

    @property
    def fell_back(self) -> str:
        """Say how many plans failed or came too late; nothing where none did."""
        if not (lost := self.counts.failed + self.counts.late):
            return ""
        return f"{lost:,} of {len(self):,} plans fell back on {self.policy.order.name}"

    @property
    def over_budget(self) -> int:
        """Decisions that took more than twice the budget."""
        return int((np.array(self.counts.seconds) > 2 * self.policy.budget).sum())

    def to_dict(self) -> dict[str, Any]:
        """Return settings and counts as plain data; seconds are None where nothing was decided."""
        policy, counts = self.policy, self.counts
        seconds = np.array(counts.seconds)
        some = len(seconds) > 0
        settings = ("window", "horizon", "replan_interval", "budget")
        counted = ("planned", "failed", "late", "overruled", "without_budget", "cut")
        return {
            "model": policy.model if isinstance(policy.model, str) else "own",
            "method": policy.method,
            **{name: getattr(policy, name) for name in settings},
            "length_estimate": policy.length_estimate,
            "scenarios": policy.scenarios,
            "fallback": policy.order.name,
            "decisions": len(self),
            "fallbacks": self.fallbacks,
            "fell_back": counts.failed + counts.late,
            **{name: getattr(counts, name) for name in counted},
            "interrupted": self.interrupted,
            "after_interruption": counts.interrupted,
            "over_budget": self.over_budget,
            "reasons": dict(counts.reasons),
            "median_seconds": float(np.median(seconds)) if some else None,
            "p99_seconds": float(np.quantile(seconds, 0.99)) if some else None,
            "max_seconds": float(seconds.max()) if some else None,
            "seconds": self.seconds,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the share of decisions that took at most so long, and the budget."""
        return draw("plot_decision_times", self, ax)

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [
            f"{facts['decisions']:,} decisions on windows of up to {facts['window']} requests: "
            f"{facts['planned']:,} planned by {facts['model']}"
            f"{'' if facts['method'] == 'auto' else ' with ' + facts['method']}, "
            f"{facts['fallbacks']:,} by the "
            f"fallback {facts['fallback']}"
        ]
        if facts["budget"] == 0:
            lines.append("  the budget is zero, so nothing was planned")
        elif facts["fallbacks"]:
            lines.append(
                f"  of these {facts['failed']:,} because no plan was found, {facts['late']:,} "
                f"because it came too late, {facts['overruled']:,} because the fallback was better "
                "in possible scenarios"
            )
        if self.interrupted:
            lines.append(
                f"  interrupted: no more planning; the fallback made the last "
                f"{facts['after_interruption']:,} decisions"
            )
        lines += [f"  {count:,} times: {reason}" for reason, count in facts["reasons"].items()]
        if facts["median_seconds"] is not None:
            lines.append(
                f"  a decision took {duration(facts['median_seconds'])} in the median, "
                f"{duration(facts['max_seconds'])} at most; {facts['over_budget']:,} took more "
                f"than twice the budget of {duration(facts['budget'])}"
            )
        if facts["cut"]:
            lines.append(
                f"  the budget cut {facts['cut']:,} searches short: another run may differ"
            )
        return "\n".join(lines)


_NEW = -1  # planned start of a request that no plan has seen
_LATER = np.iinfo(np.int64).max  # and of one beyond the window
_PLANNING = 0.75  # of the budget; the rest is for whatever else there is to do
_LATE = 2.0  # budgets after which a plan is of no use any more
_KNOWN = 10  # arrivals from which scenarios are drawn
_LEAST = 2  # scenarios, for a standard error


@dataclass
class Counts:
    """How decisions came about."""

    seconds: list[float] = field(default_factory=list)
    planned: int = 0
    failed: int = 0
    late: int = 0
    overruled: int = 0
    without_budget: int = 0
    interrupted: int = 0
    cut: int = 0
    requests: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)


class Driver:
    """Decides what starts now, for `optsched.policies.DecisionPolicy`; it lasts for one run."""

    def __init__(
        self,
        policy: RollingPolicy,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        sure: bool = True,
    ) -> None:
        self.sure = sure  # of the bounds of outputs: no output lies outside its interval
        self.policy, self.seed, self.on_progress = policy, seed, on_progress
        self.counts = Counts()
        self.started: list[IntArray] = []  # by each call
        self._plan = PLANS[policy.model] if isinstance(policy.model, str) else _own(policy.model)
        self._starts = np.zeros(0, dtype=np.int64)  # planned step of each request
        self._step = self._reviewed = 0  # calls so far; a batch lies between two while some wait
        self._exact = False  # whether all outputs are known
        self._open = False  # whether a new plan may be better as soon as a request has started
        self._moved = False  # whether one has
        self._ends: IntArray = np.zeros(0, dtype=np.int64)  # step until which each is planned
        self._expected = 0  # running requests that were to be left by now
        self._seen = 0
        self._origin, self._first = 0.0, 0  # clock of the first call, and how many had come by then
        self._clock: float | None = None  # of the last call, if requests went on waiting
        self._elapsed, self._batches = 0.0, 0

    def __call__(self, state: State) -> IntArray:
        """Return the waiting requests to start now."""
        if not len(self._starts):
            self._begin(state.forecast)
            self._origin, self._first = state.clock, len(state.waiting)
        self._step += 1
        if self._clock is not None:
            self._elapsed += state.clock - self._clock
            self._batches += 1
        self._seen = max(self._seen, int(state.waiting[-1]) + 1)
        if self._needs_review(state):
            began = stopwatch()
            self._reviewed, self._moved = self._step, False
            planned = self._review(state, began)
            self.counts.seconds.append(stopwatch() - began)
            self.counts.planned += planned
            if self.on_progress is not None:
                self.on_progress(self._seen - len(state.waiting), len(state.forecast))
        due = state.waiting[self._starts[state.waiting] <= self._step]
        due = due[self._starts[due] != _NEW]
        self._starts[due] = _NEW
        self._moved = self._moved or len(due) > 0
        if not self._exact:
            self._ends[due] = self._step + self._planned(state, due)
            going = np.concatenate([state.running, due])
            self._expected = int((self._ends[going] > self._step + 1).sum())
        self._clock = state.clock if len(due) < len(state.waiting) else None
        self.started.append(np.asarray(due))
        return self.started[-1]

    def _begin(self, forecast: Forecast) -> None:
        count, horizon = len(forecast), self.policy.horizon
        if horizon is not None and horizon < (longest := int(forecast.upper.max())):
            request = int(forecast.upper.argmax())
            raise PolicyError(
                f"a window of {horizon} steps is shorter than one output: request "
                f"{forecast.label(request)} may make {longest} tokens; plan at least as many steps"
            )
        self._starts = np.full(count, _NEW)
        self._ends = np.zeros(count, dtype=np.int64)
        self._exact = self.sure and bool((forecast.lower == forecast.upper).all())

    def _needs_review(self, state: State) -> bool:
        if not len(state.running) and not (self._starts[state.waiting] == self._step).any():
            return True  # none may be left waiting for an idle worker
        if self._step < self._reviewed + self.policy.replan_interval:
            return False
        if (self._starts[state.waiting] == _NEW).any() or (self._open and self._moved):
            return True
        if self._exact:
            return False
        left = len(state.running)
        return left != self._expected or bool((self._ends[state.running] <= self._step).any())

    def _planned(self, state: State, requests: IntArray, least: IntArray | int = 1) -> IntArray:
        """Read outputs off their intervals, given what they are at least."""
        lower = np.maximum(state.lower[requests], least)
        upper = np.maximum(state.forecast.upper[requests], lower)
        if self.policy.length_estimate == "lower":
            return np.asarray(lower)
        return np.asarray(
            upper if self.policy.length_estimate == "upper" else (lower + upper + 1) // 2
        )

    def _review(self, state: State, began: float) -> bool:
        """Set the starts of waiting requests; return whether by a plan, not by the fallback."""
        waiting = state.waiting
        forecast = state.forecast
        outputs = self._planned(state, waiting)
        known = Instance(
            forecast.prompts[waiting],
            outputs,
            forecast.memory,
            forecast.arrivals[waiting],
            weights=None if forecast.weights is None else forecast.weights[waiting],
        )
        running = NOTHING_RUNNING
        if len(state.running):
            remaining = self._planned(state, state.running, state.tokens + 1) - state.tokens
            running = Running(forecast.prompts[state.running] + state.tokens, remaining)
            self._ends[state.running] = self._step + remaining
        ordered = self.policy.order.order(known)
        size = self._size(known, ordered, running)
        members = np.sort(ordered[:size])
        hint = self._starts[waiting[members]]
        window = Window(
            prompts=known.prompts[members],
            outputs=outputs[members],
            memory=forecast.memory,
            running=running,
            prices=prices_of_rest(
                known.areas[ordered[size:]],
                int(known.areas[members].sum()) + running.area,
                forecast.memory,
            ),
            order=np.searchsorted(members, ordered[:size]),
            hint=np.where((hint == _NEW) | (hint == _LATER), -1, hint - self._step),
            seconds=_PLANNING * self.policy.budget,
            seed=self.seed + len(self.counts.seconds),
            rule=self.policy.order.rule,
            method=self.policy.method,
        )
        self.counts.requests.append(size)
        plan = self._solve(window, state, began)
        self._open = self.policy.budget > 0 and (plan is None or size < len(waiting))
        planned = plan is not None
        if plan is None:  # then the fallback orders all waiting requests
            plan = self._all(known, running, ordered)
            members, size = np.arange(len(waiting)), len(known)
        elif not len(state.running):
            plan = plan - plan.min()  # waiting for nothing
        self._starts[waiting] = _LATER
        self._starts[waiting[members]] = self._step + plan
        if size < len(known) and not plan.any():  # then the next ones may start as well
            self._starts[waiting[_next(known, window, ordered[size:])]] = self._step
        return planned

    def _size(self, known: Instance, ordered: IntArray, running: Running) -> int:
        size = min(self.policy.window, len(ordered))
        if self.policy.horizon is None:
            return size
        room = known.memory * self.policy.horizon - running.area
        held = np.cumsum(known.areas[ordered[:size]])
        return max(1, int(np.searchsorted(held, room, side="right")))

    def _solve(self, window: Window, state: State, began: float) -> IntArray | None:
        """Plan a window; None leaves it to the fallback."""
        counts, budget = self.counts, self.policy.budget
        if budget == 0:
            counts.without_budget += 1
            return None
        try:
            plan, cut = self._plan(window)
            if not window.fits(plan):
                raise PolicyError("the plan overfills the memory or starts requests in the past")
        except OptschedError as error:
            counts.failed += 1
            counts.reasons[str(error)] = counts.reasons.get(str(error), 0) + 1
            return None
        counts.cut += cut
        if stopwatch() - began > _LATE * budget:
            counts.late += 1
            return None
        if (past := self._past(state)) is not None:
            keys = self._keys(window.prompts, window.outputs, window.memory)
            fallback = window.schedule.starts
            scenarios, end = self.policy.scenarios, began + budget
            if plan_is_worse(window, keys, plan, fallback, past, scenarios, end):
                counts.overruled += 1
                return None
        return plan

    def _past(self, state: State) -> Past | None:
        """Return what has arrived so far; None where that is too little, or all came at once."""
        forecast, seen = state.forecast, self._seen
        passed, came = state.clock - self._origin, seen - self._first
        if self.policy.scenarios < _LEAST or came < _KNOWN or passed <= 0 or not self._elapsed:
            return None
        everyone = np.arange(seen)
        prompts, outputs = forecast.prompts[everyone], self._planned(state, everyone)
        per_batch = self._elapsed / self._batches  # in units of the clock
        keys = self._keys(prompts, outputs, forecast.memory)
        return Past(prompts, outputs, keys, came / float(passed) * per_batch)

    def _all(self, known: Instance, running: Running, ordered: IntArray) -> IntArray:
        lengths, nothing = (known.prompts, known.outputs, known.memory), np.zeros(0)
        rule = self.policy.order.rule
        window = Window(*lengths, running, nothing, ordered, ordered, 0.0, 0, rule)
        return window.schedule.starts

    def _keys(self, prompts: IntArray, outputs: IntArray, memory: int) -> FloatArray:
        return np.asarray(
            self.policy.order.key(Instance(prompts, outputs, memory)), dtype=np.float64
        )


def _finishing(driver: Driver) -> Callable[[State], IntArray]:
    """Repeat what a driver decided until Ctrl-C, and leave the rest to the fallback."""
    started, policy = iter(driver.started), replace(driver.policy, budget=0)
    rest = Driver(policy, driver.seed, driver.on_progress, sure=driver.sure)

    def decide(state: State) -> IntArray:
        if (due := next(started, None)) is None:
            due = rest(state)
            driver.counts.interrupted = len(rest.counts.seconds)
        return due

    return decide


def _own(model: Callable[[Window], object]) -> Callable[[Window], tuple[IntArray, bool]]:
    def plan(window: Window) -> tuple[IntArray, bool]:
        made = model(window)
        starts = np.asarray(getattr(made, "starts", made))
        if starts.shape != (len(window),) or starts.dtype.kind not in "iu":
            wish = f"a Schedule, or a whole start for each of the {len(window)} requests"
            raise PolicyError(f"the plan is {shown(made)}, but must be {wish}")
        return starts, False

    return plan


def _next(known: Instance, window: Window, rest: IntArray) -> IntArray:
    """Return which of the rest can start now, in order, beside a window that starts now."""
    steps = max(len(window.load), int(known.outputs.max()))
    usage = np.zeros(steps + 2, dtype=np.int32)
    usage[1 : len(window.load) + 1] = window.load
    add_all(window.prompts, window.outputs, usage, np.zeros(len(window), dtype=np.int64), 1)
    return admit_now(known.prompts, known.outputs, known.memory, usage, rest, 1.0, 1)


AnyRun = TypeVar("AnyRun", Execution, ClockedRun)


def _rolling(task: Task, carry_out: Callable[[Task], AnyRun]) -> AnyRun:
    """Run a rolling horizon; Ctrl-C ends its planning, and the fallback decides the rest."""
    policy = task.policy
    seed, sure = task.settings.seed, task.settings.intervals != "column"
    driver = Driver(policy, seed, task.on_progress, sure=sure)

    def carried_out(decide: Callable[[State], IntArray]) -> AnyRun:
        asked = DecisionPolicy(policy.name, policy.description, decide)
        return carry_out(task._replace(policy=asked))

    began = stopwatch()
    interrupted = False
    try:
        run = carried_out(driver)
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        interrupted = True
        run = carried_out(_finishing(driver))
    decisions = Decisions(policy, driver.counts, stopwatch() - began, interrupted)
    return replace(run, decisions=decisions)


RUNNER = Runner(
    lambda task: _rolling(task, lambda asked: in_steps(asked, run_decided(asked))),
    lambda task: _rolling(task, lambda asked: of_attempts(asked, run_decided(asked))),
)
