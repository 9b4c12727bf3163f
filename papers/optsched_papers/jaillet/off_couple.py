"""Jaillet Algorithm 3, Off-Couple, and all optimal schedules of a tiny state, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

Starts: TypeAlias = "tuple[int, ...]"
NEVER = 10**9  # the start of what has not started


@dataclass(frozen=True)
class State:
    """Requests of equal prompts, some of which have started before now."""

    # A request that starts at step p holds prompt + u tokens at step p + u, u = 1 .. its output.

    prompt: int
    outputs: tuple[int, ...]
    arrivals: tuple[int, ...]
    memory: int
    now: int
    starts: Starts  # NEVER where it is open

    def held(self, step: int, starts: Starts) -> int:
        """Return the tokens held at a step."""
        ages = [(step - start, o) for start, o in zip(starts, self.outputs, strict=True)]
        return sum(self.prompt + age for age, output in ages if 1 <= age <= output)

    def excess(self, starts: Starts) -> int:
        """Return the most tokens above the memory, at completions: usage rises up to them."""
        both = zip(starts, self.outputs, strict=True)
        ends = {start + output for start, output in both if start < NEVER}
        return max(self.held(end, starts) for end in ends) - self.memory

    def ended(self, starts: Starts, step: int) -> frozenset[int]:
        """Return the requests that have completed by a step."""
        ends = [start + output for start, output in zip(starts, self.outputs, strict=True)]
        return frozenset(i for i, end in enumerate(ends) if end <= step)

    def running(self, starts: Starts, step: int) -> dict[int, int]:
        """Return what runs before the decisions of a step, with its starts."""
        ended = self.ended(starts, step)
        return {i: start for i, start in enumerate(starts) if start < step and i not in ended}

    def latency(self, starts: Starts) -> int:
        """Return the total latency of a schedule."""
        return sum(starts) + sum(self.outputs) - sum(self.arrivals)

    def admit(self, starts: Starts, step: int, candidates: set[int]) -> Starts:
        """Start the most candidates that fit, Eq. (2): the shortest, up to one that does not."""
        for i in sorted(candidates, key=lambda i: (self.outputs[i], i)):
            more = _with(starts, i, step)
            if self.excess(more) > 0:
                break
            starts = more
        return starts

    def algorithm_2(self) -> Starts:
        """Return the starts after the decision of Algorithm 2 now."""
        both = enumerate(zip(self.arrivals, self.starts, strict=True))
        return self.admit(
            self.starts, self.now, {i for i, (a, p) in both if a <= self.now and p == NEVER}
        )

    @cached_property
    def online(self) -> Starts:
        """The schedule of Algorithm 2 from now on."""
        state = self
        while NEVER in state.starts:
            state = replace(state, starts=state.algorithm_2(), now=state.now + 1)
        return state.starts

    def begun(self, starts: Starts) -> frozenset[int]:
        """Return what a schedule starts now."""
        return frozenset(i for i, start in enumerate(starts) if start == self.now)


def _with(starts: Starts, request: int, step: int) -> Starts:
    return (*starts[:request], step, *starts[request + 1 :])


def optimal_schedules(state: State) -> list[Starts]:
    """Return every schedule of least total latency that goes on from a state."""
    # Their delays sum up to no more steps than under Algorithm 2. Every such way is tried, one
    # request after the other, the longest first.
    open_ones = [i for i, start in enumerate(state.starts) if start == NEVER]
    order = sorted(open_ones, key=lambda i: (-state.outputs[i], i))
    earliest = [max(arrival, state.now) for arrival in state.arrivals]
    late = sum(state.online[i] - earliest[i] for i in order)
    last = max(state.online) + late + max(state.outputs)
    load = [state.held(step, state.starts) for step in range(last + 1)]
    found: list[Starts] = []

    def go_on(starts: Starts, depth: int, spent: int, load: list[int]) -> None:
        nonlocal late
        if depth == len(order):
            if spent < late:
                late = spent
                found.clear()
            found.append(starts)
            return
        i = order[depth]
        delay = 0
        while spent + delay <= late:
            start = earliest[i] + delay
            more = load.copy()
            for age in range(1, state.outputs[i] + 1):
                more[start + age] += state.prompt + age
                if more[start + age] > state.memory:
                    break
            else:
                go_on(_with(starts, i, start), depth + 1, spent + delay, more)
            delay += 1

    go_on(state.starts, 0, 0, load)
    return found


@dataclass(frozen=True)
class Coupled:
    """Off-Couple beside the offline schedule that it follows."""

    state: State
    offline: Starts
    starts: Starts  # of Off-Couple; NEVER where it does not start a request
    until: int  # when the offline schedule has completed what ran and what Algorithm 2 started

    @property
    def missing(self) -> frozenset[int]:
        """What the offline schedule has completed by then and Off-Couple has not."""
        ended = self.state.ended
        return ended(self.offline, self.until) - ended(self.starts, self.until)

    @property
    def more_held(self) -> int:
        """By how many tokens Off-Couple holds more then, in the step and once it is over."""
        held, running = self.state.held, self.state.running
        in_step = held(self.until, self.starts) - held(self.until, self.offline)
        ours, theirs = (
            sum(self.state.prompt + self.until - start for start in of.values())
            for of in (running(self.starts, self.until), running(self.offline, self.until))
        )
        return min(in_step, ours - theirs)

    @property
    def same(self) -> bool:
        """Whether the same requests run then, and have begun at the same steps."""
        ours, theirs = (
            (self.state.running(starts, self.until), self.state.ended(starts, self.until))
            for starts in (self.starts, self.offline)
        )
        return ours == theirs


# Where one request runs at a time, Lemma 5.4 holds beside every offline schedule: Algorithm 2
# starts P now; what the offline schedule starts before P, each once the one before has ended, is
# then free to start for Off-Couple, which never idles while one is. Its last busy period begins now
# or at the start of one of these. From there on it runs what the offline schedule runs from there
# on, with P at most in the first case, and ends no later: by t-hat, when P ends offline. Both have
# then completed the same requests, and none runs.


def off_couple(state: State, offline: Starts) -> Coupled:
    """Start now what Algorithm 2 starts, then what the offline schedule has started, as it fits."""
    # Once the offline schedule has completed what ran and what was started now, its decisions are
    # repeated. What it started before, and Off-Couple did not, is never started.
    starts = state.algorithm_2()
    until = max(offline[i] + state.outputs[i] for i, start in enumerate(starts) if start < NEVER)
    for step in range(state.now + 1, until):
        both = enumerate(zip(offline, starts, strict=True))
        late = {i for i, (theirs, ours) in both if theirs <= step and ours == NEVER}
        starts = state.admit(starts, step, late)
    repeated = tuple(
        theirs if ours == NEVER and theirs >= until else ours
        for theirs, ours in zip(offline, starts, strict=True)
    )
    return Coupled(state, offline, repeated, until)
