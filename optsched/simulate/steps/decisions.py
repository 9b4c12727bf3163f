"""Runs of a policy that is a Python function, asked step by step."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched.clock import BatchContent
from optsched.errors import PolicyError, shown
from optsched.policies.decision import Decision, State
from optsched.problem.work import arrival_times
from optsched.simulate.seconds.batches import new_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched._internal.arrays import IntArray
    from optsched.problem.forecasts import Forecast
    from optsched.simulate.seconds.batches import BatchLog
    from optsched.simulate.task import Task


def run_decisions(task: Task, known: Forecast) -> tuple[IntArray, int, BatchLog, bool]:
    """Run a policy that decides batch by batch."""
    run, until, patience = _Run(task, known), task.until, task.patience
    given_up = False
    while not given_up and run.now < until and run.advance():
        given_up = run.step + run.idle - run.progress > patience
    running = run.unfinished()
    attempts = np.array(run.attempts + running, dtype=np.int64).reshape(-1, 3).T
    return attempts, len(running), run.log(), given_up


class _Run:
    """A worker and its queue, between two steps.

    What an attempt keeps of those before it counts as if it had been made in steps before its
    start, so that in `_running` and `_ends` every request starts with its prompt.
    """

    def __init__(self, task: Task, known: Forecast) -> None:
        self._task, self._known = task, known
        self._prompts = task.instance.prompts.tolist()
        self._outputs = task.instance.outputs.tolist()
        self._decider = task.policy.decider()
        self._preempts = task.policy.preemption != "none"
        self._keeps = task.policy.preemption in ("recomputed", "resumed")
        self._cost = Fraction(str(task.policy.resume_cost))
        self._lower = known.lower.copy()
        self._made = np.zeros(len(known), dtype=np.int64)  # and kept, before what runs
        self._kept = self._made  # as decisions see it
        self._released = 0
        self._waiting: set[int] = set()
        self._changed = False
        self._queue = np.empty(0, dtype=np.int64)  # the waiting requests, by arrival
        self._running: dict[int, int] = {}  # request: start, in the order of the starts
        self._entered: list[int] = []  # those that start in the next batch
        self._ends: dict[int, list[int]] = {}  # step: requests that might complete there
        self._held = 0
        self._clock = task.clock
        self._arrivals = arrival_times(task.instance, task.clock)
        self._since = self._arrivals.copy()
        self._queued_since = self._since[self._queue]
        self._contents: list[BatchContent] = []
        self._spans: list[tuple[float, float]] = []
        self.now = 0.0
        self.step = self.progress = 0  # batches that have ended
        self.idle = 0  # decisions that started none on an idle worker
        self.attempts: list[tuple[int, int, int]] = []

    def advance(self) -> bool:
        """Decide and run a batch; False once all requests are complete."""
        there = int(np.searchsorted(self._arrivals, self.now, side="right"))
        if there > self._released:
            self._waiting.update(range(self._released, there))
            self._released, self.progress = there, self.step + self.idle
            self._changed = True
        if not self._preempts:
            self._make_room()
        if self._waiting or self._overflows():
            start, preempt = self._decide()
            for request in preempt:
                self._stop(request)
            for request in start:
                self._start(request)
            self._make_room()
        elif not self._running:
            if self._released == len(self._arrivals):
                return False
            self.now = float(self._arrivals[self._released])
            return True
        if self._running:
            self._make_tokens()
        else:
            self._stay_idle()
        return True

    def _decide(self) -> tuple[list[int], list[int]]:
        """Ask the policy; return what it starts and preempts."""
        count = len(self._running)
        running = np.fromiter(self._running, np.int64, count)
        tokens = self.step - np.fromiter(self._running.values(), np.int64, count)
        lower = self._lower.copy()
        lower[running] = np.maximum(lower[running], tokens)
        if self._changed:
            self._kept = self._made.copy() if self._keeps else self._made
            self._queue = np.sort(np.fromiter(self._waiting, np.int64, len(self._waiting)))
            self._queued_since = self._since[self._queue]
            self._changed = False
        for array in (running, tokens, lower, self._kept, self._queue, self._queued_since):
            array.flags.writeable = False
        now = int(self.now) if self._clock.unit == "steps" else self.now
        free = self._known.memory - self._held - count
        seen = (now, self._queue, self._queued_since, running, tokens, free, self._kept, lower)
        given = self._decider(State(*seen, self._known, self._task.seed))
        if not isinstance(given, Decision):
            return self._checked("starts", given), []
        return self._checked("starts", given.start), self._checked("preempts", given.preempt)

    def _checked(self, verb: str, given: Iterable[int] | IntArray) -> list[int]:
        """Return the requests that a policy names, or refuse the first that it cannot."""
        if not hasattr(given, "__iter__"):
            raise PolicyError(
                f"policy {self._task.policy.name!r} returns {shown(given)}, but must return a list "
                "of requests to start, perhaps empty, or a Decision with such lists"
            )
        chosen: list[int] = []
        able = self._waiting if verb == "starts" else self._running
        unsaid = verb == "preempts" and not self._preempts
        for request in given:
            whole = isinstance(request, int | np.integer) and not isinstance(request, bool)
            if not whole or request not in able or request in chosen or unsaid:
                self._refuse(verb, request if whole else None, request, request in chosen)
            chosen.append(int(request))
        return chosen

    def _refuse(self, verb: str, number: int | None, named: object, again: bool) -> None:
        """Say why a request is not started, or not preempted."""
        advice = f"choose among state.{'waiting' if verb == 'starts' else 'running'}"
        if number is None:
            why = "which is no index of a request"
        elif not 0 <= number < len(self._outputs):
            why = f"but there are only the requests 0 to {len(self._outputs) - 1}"
        else:
            named = self._task.instance.label(int(number))
            if again:
                why = "which it has just " + ("started" if verb == "starts" else "preempted")
            elif number in self._running:
                why = "which already runs"
            elif number >= self._released:
                why = f"which arrives at {self._named(self._arrivals[number])} only"
            else:
                why = "which waits" if number in self._waiting else "which is complete"
            if verb == "preempts" and not self._preempts:
                why = "but does not say what is kept of it"
                advice = "pass preemption='restarted', 'recomputed' or 'resumed' to the policy"
        raise PolicyError(
            f"policy {self._task.policy.name!r} {verb} request {named} at "
            f"{self._named(self.now)}, {why}; {advice}"
        )

    def _named(self, time: float) -> str:
        return f"step {int(time)}" if self._clock.unit == "steps" else f"{time:g} s"

    def _overflows(self) -> bool:
        return self._held + len(self._running) > self._known.memory

    def _make_room(self) -> None:
        while self._overflows():
            self._stop(next(reversed(self._running)))

    def _start(self, request: int) -> None:
        made = int(self._made[request])
        self._waiting.remove(request)
        self._changed = True
        self._running[request] = start = self.step - made
        self._entered.append(request)
        self._ends.setdefault(start + self._outputs[request], []).append(request)
        self._held += self._prompts[request] + made

    def _stop(self, request: int) -> None:
        start, before = self._running.pop(request), int(self._made[request])
        made = self.step - start
        self._ends[start + self._outputs[request]].remove(request)
        self._held -= self._prompts[request] + made
        self._waiting.add(request)
        self._changed = True
        if made == before:  # it was started just now
            self._entered.remove(request)
            return
        self._lower[request] = max(self._lower[request], made)
        self._since[request] = self.now
        self.attempts.append((request, start + before, made - before))
        if self._keeps:
            self._made[request] = made

    def _stay_idle(self) -> None:
        """None was started: a step passes, or where time has no steps, until a request arrives."""
        self.idle += 1
        if self._clock.unit == "steps":
            self.now += 1
        elif self._released < len(self._arrivals):
            self.now = float(self._arrivals[self._released])

    def _make_tokens(self) -> None:
        self._pass_time()
        self.step += 1
        self._held += len(self._running)
        if self._keeps:  # no batch is in vain
            self.progress = self.step + self.idle
        for request in self._ends.pop(self.step, ()):
            start, before = self._running.pop(request), int(self._made[request])
            made = self._outputs[request]
            self._held -= self._prompts[request] + made
            self._lower[request] = made  # its completion gives the output away
            self.attempts.append((request, start + before, made - before))
            self.progress = self.step + self.idle

    def _pass_time(self) -> None:
        prefill = moved = squares = new = 0
        for request in self._entered:
            made = int(self._made[request])
            whole = self._prompts[request] + made
            if made and self._task.policy.preemption == "resumed":
                moved += math.ceil(self._cost * whole)
            elif whole:
                prefill += whole
                squares += whole * whole
                new += 1
        self._entered.clear()
        decodes, usage = len(self._running) - new, self._held + len(self._running)
        content = BatchContent(prefill + moved, decodes, self._held - prefill, squares, usage)
        begin, self.now = self.now, self.now + self._clock(content)
        self._contents.append(content)
        self._spans.append((begin, self.now))

    def unfinished(self) -> list[tuple[int, int, int]]:
        """Return the attempts that have not ended."""
        kept = self._made.tolist()
        return [
            (request, start + kept[request], self.step - start - kept[request])
            for request, start in self._running.items()
        ]

    def log(self) -> BatchLog:
        """Return all batches."""
        log = new_log()
        contents = np.array(self._contents, dtype=np.int64).reshape(-1, len(BatchContent._fields))
        log.state[0], log.now[0] = len(contents), self.now
        spans = np.array(self._spans, dtype=np.float64).reshape(-1, 2)
        return log._replace(contents=contents, spans=spans, usage=contents[:, -1].copy())
