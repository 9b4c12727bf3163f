r"""Search for better joint schedules: requests are taken out of two workers and put back.

A move picks a request, the worker that serves it and another one; takes it out with some that start
near it on either; and puts each back, in random order, at the earlier of the first feasible starts
on the two, not before the first of them had started. It is accepted by Metropolis on the weighted
sum of starts, as in `search`, and work is counted alike. Half of the moves begin at a large
request.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import Token
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import copy
from optsched.errors import OptschedError
from optsched.schedule import Schedule
from optsched.solvers.search.annealing import (
    MAX_STEPS,
    MAX_TAKEN,
    MOVE_WORK,
    REACH,
    STRIDE,
    Budget,
    Cooling,
    Requests,
    add_usage,
    earliest_fit,
    new_random,
    temperature_after,
    uniform,
)
from optsched.solvers.search.joint_list import Places

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.annealing import Leg, RandomState

_CHUNK = 2e7  # work between two looks at the clock
_LARGE = 0.8  # quantile of memory-time from which requests are large
_FEW = 400  # requests up to which some are put back with a delay
_CELLS = 400_000_000  # of the usage of all workers
_OFFLINE, _ARRIVING = (0.15, 0.01), (0.3, 0.02)  # temperatures in mean outputs


class JointMoves(NamedTuple):
    """A joint schedule, and the best one met."""

    starts: IntArray
    placement: IntArray
    served: npt.NDArray[np.int32]  # the requests of each worker by start, shape (G, room)
    counts: IntArray  # (G,)
    usage: npt.NDArray[np.int32]  # (G, T)
    large: IntArray
    best: IntArray
    best_placement: IntArray
    costs: FloatArray  # of the schedule and of the best one


def search_jointly(
    start: Schedule,
    weights: FloatArray,
    *,
    work: float,
    seed: int = 0,
    threads: int = 1,
    deadline: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
    stop: threading.Event | None = None,
) -> Schedule:
    """Improve a feasible joint schedule; never worse than the start."""
    if start.makespan > MAX_STEPS or start.makespan * len(start.workers) > _CELLS:
        raise OptschedError(
            f"a search would keep the usage of {len(start.workers)} workers at {start.makespan:,} "
            "steps, which is too much; use longer steps"
        )
    runs = [_Run(start, weights, seed + STRIDE * index) for index in range(threads)]
    ended = Token(stop)
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        others = [pool.submit(run.anneal, work, deadline, None, ended) for run in runs[1:]]
        try:
            runs[0].anneal(work, deadline, on_progress, ended)
            for other in others:
                other.result()
        finally:
            ended.set()
    best = min(runs, key=lambda run: float(run.state.costs[1])).state
    placement = best.best_placement
    return Schedule(start.instance, best.best, "search", workers=start.workers, placement=placement)


class _Run:
    """The state of a search."""

    def __init__(self, start: Schedule, weights: FloatArray, seed: int) -> None:
        instance, workers = start.instance, start.workers
        self._requests = Requests.of(instance, weights)
        self._places, self._random = Places.of(instance, workers), new_random(seed)
        self._scale = float(weights.mean()) * float(instance.outputs.mean())
        self._offset = float(weights @ (instance.outputs - instance.arrivals))
        longest, few = int(instance.outputs.max()), len(instance) <= _FEW
        self._delay = longest if few else 0
        self._temperatures = _ARRIVING if instance.arrivals.any() else _OFFLINE
        counts = np.bincount(start.placement, minlength=len(workers))
        room = min(len(instance), 2 * int(counts.max()) + 64)
        served = np.zeros((len(workers), room), dtype=np.int32)
        usage = np.zeros((len(workers), start.makespan + 4 * longest + 2), dtype=np.int32)
        for worker in range(len(workers)):
            requests = start.requests_on(worker)
            order = np.argsort(start.starts[requests], kind="stable")
            served[worker, : len(requests)] = requests[order]
            if len(requests):
                profile = start.on(worker).memory_profile()
                usage[worker, : len(profile)] = profile
        areas = instance.areas
        cost = float(weights @ start.starts)
        self.state = JointMoves(
            start.starts.copy(),
            start.placement.copy(),
            served,
            counts,
            usage,
            np.flatnonzero(areas >= np.quantile(areas, _LARGE)),
            start.starts.copy(),
            start.placement.copy(),
            np.array([cost, cost]),
        )

    def anneal(
        self,
        work: float,
        deadline: float,
        on_progress: Callable[[float], None] | None,
        stop: threading.Event,
    ) -> None:
        """Move until the work is done or time is up."""
        budget = Budget(work, deadline - time.perf_counter())
        cooling = Cooling(self._scale, *self._temperatures)
        going = work > 0 and len(self.state.starts) > 1
        while going:
            leg = budget.leg(cooling, _CHUNK)
            budget.done += move_jointly(
                self._requests, self._places, self.state, self._delay, self._random, leg
            )
            if on_progress is not None:
                on_progress(float(self.state.costs[1]) + self._offset)
            going = budget.goes_on() and not stop.is_set()


@compiled
def _place_of(served: npt.NDArray[np.int32], count: int, starts: IntArray, request: int) -> int:
    """Return where a request stands in the order of its worker."""
    low, high, start = 0, count, starts[request]
    while low < high:
        middle = (low + high) // 2
        if starts[served[middle]] < start:
            low = middle + 1
        else:
            high = middle
    while served[low] != request:
        low += 1
    return low


@compiled
def _place_for(served: npt.NDArray[np.int32], count: int, starts: IntArray, start: int) -> int:
    """Return the first place in the order of a worker of a start that is not earlier."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if starts[served[middle]] < start:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _take_near(
    state: JointMoves, request: int, other: int, wanted: int, taken: IntArray, random: RandomState
) -> int:
    """Take requests that start near one on its worker or another; return how many, with it."""
    starts, placement, served, counts = state.starts, state.placement, state.served, state.counts
    taken[0], number = request, 1
    for _ in range(wanted - 1):
        worker = placement[request] if uniform(random) < 0.5 else other
        count = counts[worker]
        if count == 0:
            continue
        centre = _place_for(served[worker], count, starts, starts[request])
        place = centre + int(uniform(random) * (2 * REACH + 1)) - REACH
        near = served[worker, min(max(place, 0), count - 1)]
        fresh = True
        for rank in range(number):
            fresh = fresh and taken[rank] != near
        if fresh:
            taken[number] = near
            number += 1
    for rank in range(number - 1, 0, -1):
        swap = int(uniform(random) * (rank + 1))
        taken[rank], taken[swap] = taken[swap], taken[rank]
    return number


@compiled
def _relocate(
    state: JointMoves, taken: IntArray, number: int, new: IntArray, where: IntArray
) -> None:
    """Give requests their new starts and workers, in the orders too."""
    starts, placement, served, counts = state.starts, state.placement, state.served, state.counts
    for rank in range(number):
        request = taken[rank]
        worker = placement[request]
        row = served[worker]
        counts[worker] -= 1
        for place in range(_place_of(row, counts[worker] + 1, starts, request), counts[worker]):
            row[place] = row[place + 1]
    for rank in range(number):
        request, worker = taken[rank], where[rank]
        row = served[worker]
        target = _place_for(row, counts[worker], starts, new[rank])
        for place in range(counts[worker], target, -1):
            row[place] = row[place - 1]
        row[target] = request
        counts[worker] += 1
        starts[request], placement[request] = new[rank], worker


@compiled
def move_jointly(
    requests: Requests,
    places: Places,
    state: JointMoves,
    delay: int,
    random: RandomState,
    leg: Leg,
) -> float:
    """Take requests out and put them back until the work of a leg is done; return the work."""
    prompts, outputs, arrivals, weights, _ = requests
    memories, kinds, allowed = places
    starts, placement, large, usage = state.starts, state.placement, state.large, state.usage
    costs, workers, horizon = state.costs, len(memories), state.usage.shape[1]
    taken, new = np.empty(MAX_TAKEN, dtype=np.int64), np.empty(MAX_TAKEN, dtype=np.int64)
    where, begin = np.empty(MAX_TAKEN, dtype=np.int64), np.empty(MAX_TAKEN, dtype=np.int64)
    at_best = costs[0] == costs[1]
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        if uniform(random) < 0.5:
            request = large[int(uniform(random) * len(large))]
        else:
            request = int(uniform(random) * len(starts))
        one = placement[request]
        other = int(uniform(random) * workers) if uniform(random) < 0.7 else one
        wanted = 1 + int(uniform(random) * MAX_TAKEN)
        number = _take_near(state, request, other, wanted, taken, random)
        earliest = starts[taken[0]]
        before, rest = 0.0, 0.0
        for rank in range(number):
            request = taken[rank]
            earliest = min(earliest, starts[request])
            before += weights[request] * starts[request]
            add_usage(
                usage[placement[request]], prompts[request], outputs[request], starts[request], -1
            )
            spent += outputs[request]
        for rank in range(number):
            request = taken[rank]
            begin[rank] = max(earliest, arrivals[request])
            if delay and uniform(random) < 0.5:
                begin[rank] += int(uniform(random) * (delay + 1))
            rest += weights[request] * begin[rank]
        budget = before - temperature * math.log(1.0 - uniform(random))
        after, placed = 0.0, ZERO
        for rank in range(number):
            request = taken[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            rest -= weight * begin[rank]
            latest = min(int((budget - after - rest) / weight), horizon - 2 - output)
            found, chosen = -1, one
            if allowed[kinds[request], one]:
                found = earliest_fit(usage[one], memories[one], prompt, output, begin[rank], latest)
            if other != one and allowed[kinds[request], other]:
                last = latest if found < 0 else found - 1
                if last >= begin[rank]:
                    at = earliest_fit(
                        usage[other], memories[other], prompt, output, begin[rank], last
                    )
                    if at >= 0:
                        found, chosen = at, other
            spent += 2 * output + (latest if found < 0 else found) - begin[rank]
            if found < 0:
                break
            new[rank], where[rank] = found, chosen
            after += weight * found
            add_usage(usage[chosen], prompt, output, found, 1)
            placed += 1
        spent += MOVE_WORK
        full = state.counts[one] + number > state.served.shape[1]
        full = full or state.counts[other] + number > state.served.shape[1]
        if placed < number or after > budget or full:
            for rank in range(placed):
                request = taken[rank]
                add_usage(usage[where[rank]], prompts[request], outputs[request], new[rank], -1)
            for rank in range(number):
                request = taken[rank]
                row, start = usage[placement[request]], starts[request]
                add_usage(row, prompts[request], outputs[request], start, 1)
            continue
        if after > before and at_best:
            copy(starts, state.best, 0, len(starts))
            copy(placement, state.best_placement, 0, len(starts))
            at_best = False
        costs[0] += after - before
        _relocate(state, taken, number, new, where)
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            at_best = True
    if at_best:
        copy(starts, state.best, 0, len(starts))
        copy(placement, state.best_placement, 0, len(starts))
    return spent
