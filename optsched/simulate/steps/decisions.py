"""Runs of a policy that is a Python function, asked step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.clock import BatchContent
from optsched.clock.work import arrival_times
from optsched.errors import PolicyError
from optsched.policies.decision import State
from optsched.simulate.seconds.batches import new_log

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.forecasts import Forecast
    from optsched.instance import Instance
    from optsched.policies.decision import DecisionPolicy
    from optsched.simulate.seconds.batches import BatchLog


def run_decisions(
    instance: Instance,
    policy: DecisionPolicy,
    known: Forecast,
    patience: int,
    clock: Clock,
    until: float,
) -> tuple[IntArray, int, BatchLog, bool]:
    """Run a policy that decides batch by batch."""
    run = _Run(instance, known, clock)
    given_up = False
    while not given_up and run.now < until and run.advance(policy):
        given_up = run.step + run.idle - run.progress > patience
    running = run.unfinished()
    attempts = np.array(run.attempts + running, dtype=np.int64).reshape(-1, 3).T
    return attempts, len(running), run.log(), given_up


class _Run:
    """A worker and its queue, between two steps."""

    def __init__(self, instance: Instance, known: Forecast, clock: Clock) -> None:
        self._prompts = instance.prompts.tolist()
        self._outputs = instance.outputs.tolist()
        self._instance = instance
        self._known = known
        self._lower = known.lower.copy()
        self._released = 0
        self._waiting: set[int] = set()
        self._changed = False
        self._queue = np.empty(0, dtype=np.int64)  # the waiting requests, by arrival
        self._running: dict[int, int] = {}  # request: start, in the order of the starts
        self._ends: dict[int, list[int]] = {}  # step: requests that might complete there
        self._held = 0
        self._clock = clock
        self._arrivals = arrival_times(instance, clock)
        self._contents: list[BatchContent] = []
        self._spans: list[tuple[float, float]] = []
        self.now = 0.0
        self.step = self.progress = 0  # batches that have ended
        self.idle = 0  # decisions that started none on an idle worker
        self.attempts: list[tuple[int, int, int]] = []

    def advance(self, policy: DecisionPolicy) -> bool:
        """Decide and run a batch; False once all requests are complete."""
        there = int(np.searchsorted(self._arrivals, self.now, side="right"))
        if there > self._released:
            self._waiting.update(range(self._released, there))
            self._released, self.progress = there, self.step + self.idle
            self._changed = True
        self._make_room()
        if self._waiting:
            for request in self._decide(policy):
                self._waiting.remove(request)
                self._changed = True
                self._running[request] = self.step
                self._ends.setdefault(self.step + self._outputs[request], []).append(request)
                self._held += self._prompts[request]
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

    def _decide(self, policy: DecisionPolicy) -> list[int]:
        running = np.array(list(self._running), dtype=np.int64)
        starts = np.array(list(self._running.values()), dtype=np.int64)
        tokens = self.step - starts
        lower = self._lower.copy()
        lower[running] = np.maximum(lower[running], tokens)
        if self._changed:
            self._queue = np.array(sorted(self._waiting), dtype=np.int64)
            self._changed = False
        for array in (running, tokens, lower, self._queue):
            array.flags.writeable = False
        free = self._instance.memory - self._held - len(running)
        now = int(self.now) if self._clock.unit == "steps" else self.now
        state = State(now, self._queue, running, tokens, free, lower, self._known)
        chosen: list[int] = []
        for request in policy.decide(state):
            self._check(policy, request, chosen)
            chosen.append(int(request))
        return chosen

    def _check(self, policy: DecisionPolicy, request: object, chosen: list[int]) -> None:
        if isinstance(request, int | np.integer) and not isinstance(request, bool):
            number = int(request)
            if number in self._waiting and number not in chosen:
                return
            if number in chosen:
                why = "which it has just started"
            elif number in self._running:
                why = "which already runs"
            elif not 0 <= number < len(self._instance):
                why = f"but there are only the requests 0 to {len(self._instance) - 1}"
            elif number >= self._released:
                why = f"which arrives at {self._named(self._arrivals[number])} only"
            else:
                why = "which is complete"
            named = number < len(self._instance) and number >= 0
            request = self._instance.label(number) if named else number
        else:
            why = "which is no index of a request"
        raise PolicyError(
            f"policy {policy.name!r} starts request {request} at {self._named(self.now)}, {why}; "
            "choose among state.waiting"
        )

    def _named(self, time: float) -> str:
        return f"step {int(time)}" if self._clock.unit == "steps" else f"{time:g} s"

    def _make_room(self) -> None:
        # The last started has made the fewest tokens.
        while self._held + len(self._running) > self._instance.memory:
            request, start = self._running.popitem()
            made = self.step - start
            self._ends[start + self._outputs[request]].remove(request)
            self._held -= self._prompts[request] + made
            self._waiting.add(request)
            self._changed = True
            if made:
                self._lower[request] = max(self._lower[request], made)
                self.attempts.append((request, start, made))

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
        for request in self._ends.pop(self.step, ()):
            start = self._running.pop(request)
            made = self._outputs[request]
            self._held -= self._prompts[request] + made
            self._lower[request] = made  # its completion gives the output away
            self.attempts.append((request, start, made))
            self.progress = self.step + self.idle

    def _pass_time(self) -> None:
        new = [
            prompt
            for request, start in self._running.items()
            if start == self.step and (prompt := self._prompts[request])
        ]
        decodes, usage = len(self._running) - len(new), self._held + len(self._running)
        squares = sum(prompt * prompt for prompt in new)
        content = BatchContent(sum(new), decodes, self._held - sum(new), squares, usage)
        begin, self.now = self.now, self.now + self._clock(content)
        self._contents.append(content)
        self._spans.append((begin, self.now))

    def unfinished(self) -> list[tuple[int, int, int]]:
        """Return the attempts that have not ended."""
        return [(request, start, self.step - start) for request, start in self._running.items()]

    def log(self) -> BatchLog:
        """Return all batches."""
        log = new_log()
        contents = np.array(self._contents, dtype=np.int64).reshape(-1, len(BatchContent._fields))
        log.state[0], log.now[0] = len(contents), self.now
        spans = np.array(self._spans, dtype=np.float64).reshape(-1, 2)
        return log._replace(contents=contents, spans=spans, usage=contents[:, -1].copy())
