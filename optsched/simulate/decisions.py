"""Runs of a policy that is a Python function, asked step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.policies.decision import State

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.intervals import Forecast
    from optsched.policies.decision import DecisionPolicy


def run_decisions(
    instance: Instance, policy: DecisionPolicy, known: Forecast, patience: int
) -> tuple[list[tuple[int, int, int]], int | None]:
    """Run a policy that decides step by step.

    Parameters
    ----------
    instance
        The requests, with their true outputs.
    policy
        Who starts.
    known
        What the policy gets to see of the requests.
    patience
        Steps without a completion or an arrival after which the run is given up.

    Returns
    -------
    tuple
        Attempts (request, start, tokens made) by end, and the step at which the run was given up,
        None if it was not.

    Raises
    ------
    PolicyError
        If the policy starts a request that does not wait; the message names it.
    """
    run = _Run(instance, known)
    while run.advance(policy):
        if run.clock - run.progress > patience:
            return run.attempts, run.clock
    return run.attempts, None


class _Run:
    """A worker and its queue, between two steps."""

    def __init__(self, instance: Instance, known: Forecast) -> None:
        self._prompts = instance.prompts.tolist()
        self._outputs = instance.outputs.tolist()
        self._instance = instance
        self._known = known
        self._lower = known.lower.copy()
        self._released = 0
        self._waiting: set[int] = set()
        self._changed = False
        self._queue = np.empty(0, dtype=np.int64)  # who waits, by arrival
        self._running: dict[int, int] = {}  # request: start, in the order of the starts
        self._ends: dict[int, list[int]] = {}  # step: requests that might complete there
        self._held = 0
        self.clock = self.progress = int(instance.arrivals[0])
        self.attempts: list[tuple[int, int, int]] = []

    def advance(self, policy: DecisionPolicy) -> bool:
        """Decide and take one step; False once all requests are complete."""
        arrivals = self._instance.arrivals
        there = int(np.searchsorted(arrivals, self.clock, side="right"))
        if there > self._released:
            self._waiting.update(range(self._released, there))
            self._released, self.progress = there, self.clock
            self._changed = True
        self._make_room()
        if self._waiting:
            for request in self._decide(policy):
                self._waiting.remove(request)
                self._changed = True
                self._running[request] = self.clock
                self._ends.setdefault(self.clock + self._outputs[request], []).append(request)
                self._held += self._prompts[request]
            self._make_room()
        elif not self._running:
            if self._released == len(arrivals):
                return False
            self.clock = int(arrivals[self._released])
            return True
        self._make_tokens()
        return True

    def _decide(self, policy: DecisionPolicy) -> list[int]:
        running = np.array(list(self._running), dtype=np.int64)
        starts = np.array(list(self._running.values()), dtype=np.int64)
        tokens = self.clock - starts
        lower = self._lower.copy()
        lower[running] = np.maximum(lower[running], tokens)
        if self._changed:
            self._queue = np.array(sorted(self._waiting), dtype=np.int64)
            self._changed = False
        for array in (running, tokens, lower, self._queue):
            array.flags.writeable = False
        free = self._instance.memory - self._held - len(running)
        state = State(self.clock, self._queue, running, tokens, free, lower, self._known)
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
                why = f"which arrives at step {self._instance.arrivals[number]} only"
            else:
                why = "which is complete"
            named = number < len(self._instance) and number >= 0
            request = self._instance.label(number) if named else number
        else:
            why = "which is no index of a request"
        raise PolicyError(
            f"policy {policy.name!r} starts request {request} at step {self.clock}, {why}; "
            "choose among state.waiting"
        )

    def _make_room(self) -> None:
        # The last started has made the fewest tokens.
        while self._held + len(self._running) > self._instance.memory:
            request, start = self._running.popitem()
            made = self.clock - start
            self._ends[start + self._outputs[request]].remove(request)
            self._held -= self._prompts[request] + made
            self._waiting.add(request)
            self._changed = True
            if made:
                self._lower[request] = max(self._lower[request], made)
                self.attempts.append((request, start, made))

    def _make_tokens(self) -> None:
        self.clock += 1
        self._held += len(self._running)
        for request in self._ends.pop(self.clock, ()):
            start = self._running.pop(request)
            made = self._outputs[request]
            self._held -= self._prompts[request] + made
            self._lower[request] = made  # its completion gives the output away
            self.attempts.append((request, start, made))
            self.progress = self.clock
