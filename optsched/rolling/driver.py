"""The rolling horizon: when a window is planned, and what of its plan is carried out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optsched._internal.aside import stopwatch
from optsched.errors import OptschedError, PolicyError, is_interrupt
from optsched.models.program import NOTHING_RUNNING, Running
from optsched.policies import DecisionPolicy
from optsched.problem.execution import Execution
from optsched.problem.instance import Instance
from optsched.rolling.decisions import Counts, Decisions
from optsched.rolling.planners import planner_of
from optsched.rolling.scenarios import Past, plan_is_worse
from optsched.rolling.window import WORK, Window, prices_of_rest
from optsched.search.annealing import add_all, admit_now
from optsched.simulate.runners import Runner, in_steps, of_attempts, run_decided
from optsched.simulate.seconds.execution import ClockedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.policies.decision import RollingPolicy, State
    from optsched.problem.forecasts import Forecast
    from optsched.simulate.settings import Task

    Plan = tuple[IntArray, bool]


_NEW = -1  # planned start of a request that no plan has seen
_LATER = np.iinfo(np.int64).max  # and of one beyond the window
_PLANNING = 0.75  # of the budget; the rest is for whatever else there is to do
_LATE = 2.0  # budgets after which a plan is of no use any more
_KNOWN = 10  # arrivals from which scenarios are drawn
_LEAST = 2  # scenarios, for a standard error


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
        self._plan = planner_of(policy.model)
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
        known = {"lower": lower, "upper": upper}
        return np.asarray(known.get(self.policy.length_estimate, (lower + upper + 1) // 2))

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
            seconds=_PLANNING * self.policy.seconds,
            work=self.policy.work or WORK,
            seed=self.seed + len(self.counts.seconds),
            rule=self.policy.order.rule,
            method=self.policy.method,
        )
        self.counts.requests.append(size)
        plan = self._solve(window, state, began)
        self._open = self.policy.seconds > 0 and (plan is None or size < len(waiting))
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
        counts, budget = self.counts, self.policy.seconds
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

    def _keys(self, *lengths: Any) -> FloatArray:
        return np.asarray(self.policy.order.key(Instance(*lengths)), dtype=np.float64)


def _finishing(driver: Driver) -> Callable[[State], IntArray]:
    """Repeat what a driver decided until Ctrl-C, and leave the rest to the fallback."""
    started, policy = iter(driver.started), replace(driver.policy, work=None, budget=0)
    rest = Driver(policy, driver.seed, driver.on_progress, sure=driver.sure)

    def decide(state: State) -> IntArray:
        if (due := next(started, None)) is None:
            due = rest(state)
            driver.counts.interrupted = len(rest.counts.seconds)
        return due

    return decide


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
