r"""Search for better schedules: annealing on orders, then large-neighbourhood search on starts.

**Orders.** A schedule that no prefix-rule order improves is made by one: decode the order with the
admission rule and anneal on swaps and moves of single requests. Only what lies behind the first
changed position is decoded anew, and decoding ends as soon as the cost is too high. Good where
large requests must be packed (docs/research.md); used offline only.

**Starts.** Take a few requests out that start near each other, and put them back in random order,
each at the earliest step that is feasible, not before the first of them had started, now and then
with a delay: an optimal schedule may need one that no order decodes to. Accept by Metropolis.

Work is counted in token-steps touched, so a run depends on the seed and on the work allowed, not
on the clock; a time limit only cuts it off.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched._compiled import compiled
from optsched.errors import OptschedError
from optsched.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.instance import FloatArray, Instance, IntArray

    Usage = npt.NDArray[np.int32]
    RandomState = npt.NDArray[np.uint64]

#: Token-steps touched per second on a slow core: turns a time limit into work.
WORK_PER_SECOND = 4e8

_CHUNK = 2e7  # work between two looks at the clock
_MOST = 6  # requests taken out at once
_REACH = 15  # positions by start within which they lie
_FEW = 400  # up to so many requests, orders are annealed first
_MOVE_COST = 150.0  # work of a move beyond its token-steps
_LONGEST = 50_000_000  # steps of a dense usage profile


@dataclass(frozen=True)
class Search:
    """What a search found, and how it got there.

    Attributes
    ----------
    schedule
        The best schedule.
    history
        (seconds, objective) after each chunk of work that improved it.
    interrupted
        Whether Ctrl-C ended it.
    """

    schedule: Schedule
    history: tuple[tuple[float, float], ...]
    interrupted: bool = False


def search(
    start: Schedule,
    weights: FloatArray,
    *,
    work: float,
    seed: int = 0,
    deadline: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
) -> Search:
    """Improve a feasible schedule; interrupted, it keeps the best.

    Parameters
    ----------
    start
        A feasible schedule.
    weights
        Cost of a step of latency of each request, shape (n,).
    work
        Token-steps to touch, about `WORK_PER_SECOND` per second.
    seed
        Same seed, work and start: same schedule.
    deadline
        When to stop at the latest, on the clock of `time.perf_counter`.
    on_progress
        Called with the best objective after each chunk of work; may raise StopIteration.

    Returns
    -------
    Search
        Never worse than the start. Deadlines of requests are not respected.

    Raises
    ------
    OptschedError
        If the schedule is too long to keep the usage of every step.

    Examples
    --------
    >>> from optsched import family, run
    >>> start = run(family("uniform", n=10, seed=1), "fcfs")
    >>> found = search(start, np.ones(10), work=1e7)
    >>> found.schedule.total_latency < start.total_latency, found.schedule.check()
    (True, [])
    """
    instance = start.instance
    if start.makespan > _LONGEST:
        raise OptschedError(
            f"a search would keep the usage of {start.makespan} steps (at most {_LONGEST}); "
            "use longer steps"
        )
    run = _Run(start, weights, seed, deadline, on_progress)
    interrupted = False
    try:
        if len(instance) <= _FEW and not instance.arrivals.any():
            run.anneal_orders(work / 2)
            run.move_starts(work / 2)
        else:
            run.move_starts(work)
    except KeyboardInterrupt:
        interrupted = True
    except StopIteration:
        pass
    return Search(Schedule(instance, run.best, "search"), tuple(run.history), interrupted)


class _Run:
    """The state of a search."""

    def __init__(
        self,
        start: Schedule,
        weights: FloatArray,
        seed: int,
        deadline: float,
        on_progress: Callable[[float], None] | None,
    ) -> None:
        self._instance: Instance = start.instance
        self._weights = weights
        self._random = np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._deadline, self._on_progress = deadline, on_progress
        self._began = time.perf_counter()
        self._offset = float(weights @ (self._instance.outputs - self._instance.arrivals))
        self._scale = float(np.mean(weights)) * float(np.mean(self._instance.outputs))
        self.best = start.starts.copy()
        self.cost = float(weights @ self.best)
        self.history = [(0.0, self.cost + self._offset)]

    def _keep(self, starts: IntArray, cost: float) -> None:
        """Keep a better schedule; stop when time is up."""
        if cost < self.cost:
            self.best, self.cost = starts.copy(), float(cost)
            self.history.append((time.perf_counter() - self._began, self.cost + self._offset))
        if self._on_progress is not None:
            self._on_progress(self.cost + self._offset)
        if time.perf_counter() >= self._deadline:
            raise StopIteration

    def anneal_orders(self, work: float) -> None:
        """Anneal on orders, decoded by the prefix rule."""
        instance = self._instance
        count = len(instance)
        order = np.argsort(self.best, kind="stable")
        starts = np.zeros(count, dtype=np.int64)
        best = self.best.copy()
        usage = np.zeros(int(instance.outputs.sum()) + 2, dtype=np.int32)
        costs = np.array([-1.0, math.inf])  # of the current order, of the best
        done = 0.0
        while done < work:
            hot, cold = (self._temperature(4.0, 0.04, share / work) for share in _next(done, work))
            done += _anneal_orders(
                instance.prompts,
                instance.outputs,
                self._weights,
                instance.memory,
                order,
                starts,
                best,
                usage,
                costs,
                self._random,
                min(_CHUNK, work - done),
                hot,
                cold,
            )
            self._keep(best, costs[1])

    def move_starts(self, work: float) -> None:
        """Take requests out and put them back."""
        instance = self._instance
        starts, best = self.best.copy(), self.best.copy()
        order = np.argsort(starts, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        longest = int(instance.outputs.max())
        last = int((starts + instance.outputs).max())
        profile = Schedule(instance, starts).memory_profile()
        usage = np.zeros(last + 4 * longest + 2, dtype=np.int32)
        usage[: len(profile)] = profile
        costs = np.array([self.cost, self.cost])
        delay = longest if len(instance) <= _FEW else 0
        done = 0.0
        while done < work:
            hot, cold = (self._temperature(0.15, 0.01, share / work) for share in _next(done, work))
            done += _move_starts(
                instance.prompts,
                instance.outputs,
                instance.arrivals,
                self._weights,
                instance.memory,
                starts,
                order,
                position,
                usage,
                best,
                costs,
                self._random,
                min(_CHUNK, work - done),
                hot,
                cold,
                delay,
            )
            self._keep(best, costs[1])

    def _temperature(self, first: float, last: float, share: float) -> float:
        """Cool geometrically, in units of the mean output times the mean weight."""
        return self._scale * first * math.pow(last / first, min(1.0, share))


def _next(done: float, work: float) -> tuple[float, float]:
    return done, min(work, done + _CHUNK)


@compiled
def _uniform(random: RandomState) -> float:
    """Draw from [0, 1) by xorshift64*: a state of its own makes runs repeatable."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled
def _add(usage: Usage, prompt: int, output: int, start: int, sign: int) -> None:
    held = prompt - start
    for step in range(start + 1, start + output + 1):
        usage[step] += sign * (held + step)


@compiled
def _earliest(usage: Usage, memory: int, prompt: int, output: int, start: int, latest: int) -> int:
    """Find the first feasible start from `start` to `latest`, or -1 (see simulate.unit)."""
    shift = prompt - memory
    seen = start
    while start <= latest:
        jump = start
        for step in range(max(seen, start) + 1, start + output + 1):
            jump = max(jump, min(usage[step] + shift + step, step))
        if jump == start:
            return start
        seen = start + output
        start = jump
    return -1


@compiled
def _anneal_orders(
    prompts: IntArray,
    outputs: IntArray,
    weights: FloatArray,
    memory: int,
    order: IntArray,
    starts: IntArray,
    best: IntArray,
    usage: Usage,
    costs: FloatArray,
    random: RandomState,
    work: float,
    hot: float,
    cold: float,
) -> float:
    count = len(order)
    trial = order.copy()
    trial_starts = starts.copy()
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        first, last = 0, -1
        if costs[0] >= 0:
            one = int(_uniform(random) * count)
            if _uniform(random) < 0.5:
                reach = 1 + count // 8
                other = one + int(_uniform(random) * (2 * reach + 1)) - reach
                other = min(max(other, 0), count - 1)
            else:
                other = int(_uniform(random) * count)
            if one == other:
                spent += 1.0
                continue
            first, last = min(one, other), max(one, other)
            moved = trial[one]
            if _uniform(random) < 0.5:
                trial[one], trial[other] = trial[other], moved
            elif one < other:
                trial[one:other] = trial[one + 1 : other + 1].copy()
                trial[other] = moved
            else:
                trial[other + 1 : one + 1] = trial[other:one].copy()
                trial[other] = moved
            if (
                prompts[trial[first]] == prompts[order[first]]
                and outputs[trial[first]] == outputs[order[first]]
                and weights[trial[first]] == weights[order[first]]
                and last == first + 1
            ):
                trial[first : last + 1] = order[first : last + 1]
                spent += 1.0
                continue
        # Decode from the first change on; only those still running matter from before it.
        clock = starts[order[first - 1]] if first > 0 else 0
        total = 0.0
        end = clock
        for rank in range(first):
            request = order[rank]
            total += weights[request] * starts[request]
            over = starts[request] + outputs[request]
            if over > clock:
                held = prompts[request] - starts[request]
                for step in range(clock + 1, over + 1):
                    usage[step] += held + step
                spent += over - clock
                end = max(end, over)
        budget = math.inf
        if costs[0] >= 0:
            budget = costs[0] - temperature * math.log(1.0 - _uniform(random))
        lowest = clock
        for rank in range(first, count):
            request = trial[rank]
            prompt, output = prompts[request], outputs[request]
            clock = _earliest(usage, memory, prompt, output, clock, len(usage) - 2 - output)
            _add(usage, prompt, output, clock, 1)
            trial_starts[request] = clock
            end = max(end, clock + output)
            total += weights[request] * clock
            spent += 2.0 * output + 10.0
            if total > budget:
                break
        usage[lowest : end + 1] = 0
        spent += _MOVE_COST
        if total > budget:
            trial[first : last + 1] = order[first : last + 1]
            continue
        order[first : last + 1] = trial[first : last + 1]
        for rank in range(first, count):
            starts[order[rank]] = trial_starts[order[rank]]
        costs[0] = total
        if total < costs[1]:
            costs[1] = total
            best[:] = starts
    return spent


@compiled
def _move_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: FloatArray,
    memory: int,
    starts: IntArray,
    order: IntArray,
    position: IntArray,
    usage: Usage,
    best: IntArray,
    costs: FloatArray,
    random: RandomState,
    work: float,
    hot: float,
    cold: float,
    delay: int,
) -> float:
    count = len(order)
    taken = np.empty(_MOST, dtype=np.int64)
    old = np.empty(_MOST, dtype=np.int64)
    new = np.empty(_MOST, dtype=np.int64)
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < work:
        temperature = hot * (cold / hot) ** (spent / work)
        centre = int(_uniform(random) * count)
        low, high = max(0, centre - _REACH), min(count - 1, centre + _REACH)
        wanted = min(1 + int(_uniform(random) * _MOST), high - low + 1)
        number = 0
        while number < wanted:
            request = order[low + int(_uniform(random) * (high - low + 1))]
            fresh = True
            for rank in range(number):
                fresh = fresh and taken[rank] != request
            if fresh:
                taken[number] = request
                number += 1
        before = 0.0
        earliest = starts[taken[0]]
        for rank in range(number):
            request = taken[rank]
            old[rank] = starts[request]
            earliest = min(earliest, old[rank])
            before += weights[request] * old[rank]
            _add(usage, prompts[request], outputs[request], old[rank], -1)
            spent += outputs[request]
        # Drawn in random order already. Put them back; `rest` is the least the others can add.
        rest = 0.0
        for rank in range(number):
            rest += weights[taken[rank]] * max(earliest, arrivals[taken[rank]])
        budget = before - temperature * math.log(1.0 - _uniform(random))
        after = 0.0
        placed = 0
        for rank in range(number):
            request = taken[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            begin = max(earliest, arrivals[request])
            rest -= weight * begin
            if delay and _uniform(random) < 0.5:
                begin += int(_uniform(random) * (delay + 1))
            latest = min(int((budget - after - rest) / weight), len(usage) - 2 - output)
            start = _earliest(usage, memory, prompt, output, begin, latest)
            spent += output
            if start < 0:
                break
            new[rank] = start
            after += weight * start
            _add(usage, prompt, output, start, 1)
            placed += 1
        spent += _MOVE_COST
        if placed < number or after > budget:
            for rank in range(placed):
                request = taken[rank]
                _add(usage, prompts[request], outputs[request], new[rank], -1)
            for rank in range(number):
                request = taken[rank]
                _add(usage, prompts[request], outputs[request], old[rank], 1)
            continue
        if after > before and at_best:
            best[:] = starts
            at_best = False
        costs[0] += after - before
        for rank in range(number):
            request = taken[rank]
            starts[request] = new[rank]
            place = position[request]
            while place > 0 and starts[order[place - 1]] > new[rank]:
                order[place] = order[place - 1]
                position[order[place]] = place
                place -= 1
            while place < count - 1 and starts[order[place + 1]] < new[rank]:
                order[place] = order[place + 1]
                position[order[place]] = place
                place += 1
            order[place] = request
            position[request] = place
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            at_best = True
    if at_best:
        best[:] = starts
    return spent
