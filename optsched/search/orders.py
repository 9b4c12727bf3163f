"""Orders of requests, on one worker and on several, and where a pause may help.

Requests that start together grow together, and fill the memory only at their end. Of outputs
:math:`o` without prompts, :math:`M / o` fit at once, but :math:`2 M / (o + 1)` can be on the way if
their starts are spread evenly. Either each start takes its memory-time :math:`A_i` out of a budget
that grows by a share of :math:`M` per step and cannot be saved up, for which all but the smallest
requests wait; or no request starts before the memory-time relaxation
(`optsched.bounds.lagrangian`), on a share of the memory, would be half done with it.

Each request in turn starts on the worker where it leaves the least room (best fit). The head is the
first that waits for a worker, among those that may run on the same workers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import copy
from optsched.admission import NEVER, admit_on_budget, empty_worker, let_wait, require_steps
from optsched.bounds.lagrangian import relax
from optsched.problem.schedule import Schedule
from optsched.search.annealing import (
    MOVE_WORK,
    STEP_WORK,
    SearchWorkers,
    add_usage,
    earliest_fit,
    occupy_before,
    temperature_after,
    uniform,
)
from optsched.search.delays import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers
    from optsched.search.annealing import Leg, RandomState, SearchRequests, Usage


_REACH_LARGE = 8  # positions among the large requests within which those lie that are moved
_BEFORE = 40  # positions before a large request among which it finds some to push away
_SMALL = 24  # small requests that make room for large ones, less one


class Orders(NamedTuple):
    """An order, what it decodes to, and the best schedule met."""

    order: IntArray
    starts: IntArray
    best: IntArray
    usage: Usage  # zeros, up to a step that no schedule reaches
    costs: FloatArray  # of the order, negative before it is decoded, and of the best schedule


@compiled
def anneal_orders(
    requests: SearchRequests, state: Orders, backfill: bool, random: RandomState, leg: Leg
) -> float:
    """Anneal on orders until the work of a leg is done; return the work."""
    prompts, outputs, arrivals, weights, memory, _ = requests
    order, starts, best, usage, costs = state
    count = len(order)
    longest = 0
    trial, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for rank in range(count):
        trial[rank], fresh[rank] = order[rank], starts[rank]
        if not backfill:
            longest = max(longest, outputs[rank])
    offline = arrivals[count - 1] == 0
    # Sums over all ranks from one on, of weights and of weighted starts.
    heavy, behind = np.empty(count + 1, dtype=np.float64), np.empty(count + 1, dtype=np.float64)
    heavy[count] = behind[count] = 0.0
    _sum_suffixes(weights, order, starts, heavy, behind)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        first, last = 0, count
        if costs[0] >= 0:
            first, last = _change(trial, random)
            if first == last:
                spent += 1.0
                continue
        # Decode from the first change on. By the prefix rule starts ascend, and only those still
        # running matter from before it.
        clock = lowest = starts[order[first - 1]] if first > 0 and not backfill else 0
        end, spent = occupy_before(
            prompts, outputs, order, starts, usage, first, clock, longest, spent
        )
        budget = math.inf
        if costs[0] >= 0:
            budget = costs[0] - temperature * math.log(1.0 - uniform(random))
        total = behind[0] - behind[first]
        rest = heavy[first]
        old_end, run_end, run_old_end, shift = end, end, end, 0
        met = count  # rank from which the old schedule, shifted, is met again
        for rank in range(first, count):
            request = trial[rank]
            prompt, output, weight = prompts[request], outputs[request], weights[request]
            begin = arrivals[request] if backfill else max(clock, arrivals[request])
            start = earliest_fit(usage, memory, prompt, output, begin, len(usage) - 2 - output)
            add_usage(usage, prompt, output, start, 1)
            fresh[request] = start
            total += weight * start
            rest -= weight
            spent += STEP_WORK * (1.1 * output + 0.6 * (start - begin)) + 6.0
            if not backfill:
                clock = start
                if rank > last:
                    now = start - starts[request]
                    if now != shift or rank == last + 1:
                        shift, run_end, run_old_end = now, end, old_end
                    same = start >= run_end and start - shift >= run_old_end
                    if same and (offline or shift == 0):
                        met = rank + 1
                        end = max(end, start + output)
                        break
                old_end = max(old_end, starts[order[rank]] + outputs[order[rank]])
            end = max(end, start + output)
            if total + rest * clock > budget:
                total = math.inf
                break
        usage[lowest : end + 1] = 0
        spent += MOVE_WORK
        if met < count:
            total += behind[met] + shift * heavy[met]
        if total > budget:
            if last < count:
                copy(order, trial, first, last + 1)
            continue
        copy(trial, order, first, min(last + 1, count))  # at first all, where last is count
        for rank in range(first, met):
            starts[order[rank]] = fresh[order[rank]]
        for rank in range(met, count):
            starts[order[rank]] += shift
        _sum_suffixes(weights, order, starts, heavy, behind)
        costs[0] = total
        if total < costs[1]:
            costs[1] = total
            copy(starts, best, 0, len(starts))
    return spent


@compiled_inside
def _change(order: IntArray, random: RandomState) -> tuple[int, int]:
    """Exchange two requests or move one; return the first and the last rank changed."""
    count = len(order)
    one = int(uniform(random) * count)
    if uniform(random) < 0.5:
        reach = 1 + count // 8
        other = one + int(uniform(random) * (2 * reach + 1)) - reach
        other = min(max(other, 0), count - 1)
    else:
        other = int(uniform(random) * count)
    if one == other:
        return one, other
    moved = order[one]
    if uniform(random) < 0.5:
        order[one], order[other] = order[other], moved
    elif one < other:
        for rank in range(one, other):
            order[rank] = order[rank + 1]
        order[other] = moved
    else:
        for rank in range(one, other, -1):
            order[rank] = order[rank - 1]
        order[other] = moved
    return min(one, other), max(one, other)


@compiled_inside
def _sum_suffixes(
    weights: FloatArray, order: IntArray, starts: IntArray, heavy: FloatArray, behind: FloatArray
) -> None:
    for rank in range(len(order) - 1, -1, -1):
        request = order[rank]
        heavy[rank] = heavy[rank + 1] + weights[request]
        behind[rank] = behind[rank + 1] + weights[request] * starts[request]


_PACES = (0.95, 0.97, 0.99)  # memory-time started per step, as a share of the memory
_SMALLEST = (0.0, 0.75, 0.9)  # shares of the requests that do not wait for the budget
_FLUID = (0.93, 0.96, 0.98, 1.0)  # shares of the memory that the relaxation may use


def start_evenly(instance: Instance) -> Schedule:
    """Return the best of some schedules that spread starts; weights and deadlines do not count."""
    found = (
        Schedule(instance, starts, "even pace")
        for starts in (*_on_budget(instance), *_after_relaxation(instance))
    )
    return min(found, key=lambda schedule: schedule.total_latency)


def _on_budget(instance: Instance) -> Iterator[IntArray]:
    prompts, outputs, arrivals = instance.prompts, instance.outputs, instance.arrivals
    count, memory = len(instance), instance.memory
    priority = np.argsort(instance.areas, kind="stable")
    sizes = instance.areas[priority]
    areas = instance.areas.astype(np.float64)
    for smallest in _SMALLEST:
        # Whole kinds are small or not; of one kind alone none is.
        free = int(np.searchsorted(sizes, sizes[int(smallest * (count - 1))], side="left"))
        for pace in _PACES:
            starts, spent = np.zeros(count, dtype=np.int64), areas / (pace * memory)
            worker = empty_worker(int(outputs.max()))
            admit_on_budget(
                prompts, outputs, arrivals, memory, priority, spent, free, starts, *worker
            )
            yield starts


def _after_relaxation(instance: Instance) -> Iterator[IntArray]:
    prompts, outputs = instance.prompts.astype(np.float64), instance.outputs.astype(np.float64)
    # Mean offset of the tokens of a request, weighted by how many are held.
    offsets = outputs * (outputs + 1) * (prompts / 2 + (2 * outputs + 1) / 6) / instance.areas
    ends = np.zeros(len(instance), dtype=np.int64)
    for share in _FLUID:
        memory = max(int(share * instance.memory), int(instance.peaks.max()))
        served = relax(instance.replace(memory=memory), np.ones(len(instance)))
        ends[served.request] = served.end  # the last piece decides
        starts = np.rint(ends / memory - offsets - 0.5).astype(np.int64)
        releases = np.maximum(instance.arrivals, starts)
        for not_before in (releases, instance.arrivals):
            yield serve(instance, releases, not_before)


def list_on_workers(
    instance: Instance,
    workers: Workers,
    key: npt.NDArray[np.float64] | IntArray,
    ratio: float,
    length: int,
    releases: IntArray | None = None,
) -> Schedule:
    """Start requests by ascending key under the window rule; `releases` may make some wait."""
    order = np.argsort(key, kind="stable")
    rank = ranks_in(order)
    from_then = instance.arrivals if releases is None else np.maximum(releases, instance.arrivals)
    arriving = rank[np.lexsort((rank, from_then))]
    places = SearchWorkers.of(instance, workers)
    sorted_places = places._replace(kind=places.kind[order])
    areas = instance.areas[order].astype(np.float64)
    least = np.minimum.accumulate(areas[::-1])[::-1].copy()
    require_steps(instance.outputs, len(workers))
    ring = 1 << int(instance.outputs.max() + 1).bit_length()
    starts, placement = np.full((2, len(instance)), -1, dtype=np.int64)
    admit = interruptible_kernel(admit_on_workers, len(instance))
    admit(
        Listed(
            instance.prompts[order],
            instance.outputs[order],
            areas,
            least,
            from_then[order],
            arriving,
        ),
        sorted_places,
        float(ratio),
        length,
        np.zeros((len(workers), ring), dtype=np.int64),
        np.zeros((2, len(workers), int(instance.outputs.max()) + 1), dtype=np.int64),
        starts,
        placement,
    )
    placed = placement[rank]
    return Schedule(instance, starts[rank], "window list", workers=workers, placement=placed)


class Listed(NamedTuple):
    """Requests by urgency."""

    prompts: IntArray
    outputs: IntArray
    areas: FloatArray
    least: FloatArray  # of the areas of each and of all after it
    releases: IntArray
    arriving: IntArray  # their numbers by release


@compiled
def admit_on_workers(
    listed: Listed,
    places: SearchWorkers,
    ratio: float,
    length: int,
    usage: IntArray,
    room: IntArray,
    starts: IntArray,
    placement: IntArray,
) -> None:
    """Start all; `usage` holds the steps ahead of each worker in rings, `room` the least left."""
    prompts, outputs, areas, least, releases, arriving = listed
    memories, kinds, allowed = places
    count, workers, ring = len(prompts), len(memories), usage.shape[1]
    waiting = np.empty(2 * count, dtype=np.int64)
    not_before = np.empty(count, dtype=np.int64)
    known, most = np.empty(workers, dtype=np.int64), np.empty(workers, dtype=np.float64)
    seen = np.empty(len(allowed), dtype=np.int64)
    released, begin, end = 0, count, count
    left = count
    clock = releases[arriving[0]]
    while left > 0:
        while released < count and releases[arriving[released]] <= clock:
            index = arriving[released]
            released += 1
            not_before[index] = clock
            begin, end = let_wait(waiting, begin, end, index)
        due = releases[arriving[released]] if released < count else NEVER
        for worker in range(workers):
            known[worker], most[worker] = 0, -1.0
        for kind in range(len(seen)):
            seen[kind] = 0
        place, open_kinds, open_workers, highest = begin, len(seen), workers, 0.0
        while place < end and open_kinds > 0:
            index = waiting[place]
            if open_workers == 0 and least[index] > highest:
                break
            place += 1
            kind = kinds[index]
            if seen[kind] >= length:
                continue
            area = areas[index]
            chosen, tightest, wait = -1, NEVER, NEVER
            if not_before[index] <= clock and (open_workers > 0 or area <= highest):
                prompt, output = prompts[index], outputs[index]
                for worker in range(workers):
                    if not allowed[kind, worker]:
                        continue
                    upto = known[worker]
                    if upto == 0:
                        room[0, worker, 0] = memories[worker]
                        room[1, worker, 0] = 0
                    while upto < output:  # so many steps of the least room are up to date
                        upto += 1
                        free = memories[worker] - upto - usage[worker, (clock + upto) & (ring - 1)]
                        if free < room[0, worker, upto - 1]:
                            room[0, worker, upto], room[1, worker, upto] = free, upto
                        else:
                            room[0, worker, upto] = room[0, worker, upto - 1]
                            room[1, worker, upto] = room[1, worker, upto - 1]
                    if upto > known[worker]:
                        known[worker] = upto
                    slack = room[0, worker, output] - prompt
                    if slack < 0:  # until its own part has shrunk enough, or that step is over
                        delay = min(-slack, room[1, worker, output])
                        wait = min(wait, delay)
                    elif slack < tightest and (most[worker] < 0 or area <= most[worker]):
                        chosen, tightest = worker, slack
                if chosen >= 0:
                    for token in range(1, output + 1):
                        usage[chosen, (clock + token) & (ring - 1)] += prompt + token
                    known[chosen] = 0
                    starts[index], placement[index] = clock, chosen
                    left -= 1
                    begin += 1
                    for other in range(place - 1, begin - 1, -1):
                        waiting[other] = waiting[other - 1]
                    continue
                if wait < NEVER:
                    not_before[index] = clock + wait
            seen[kind] += 1
            if seen[kind] == length:
                open_kinds -= 1
            head = False
            for worker in range(workers):
                if allowed[kind, worker] and most[worker] < 0:
                    head = True
                    most[worker] = ratio * area
                    open_workers -= 1
                    highest = max(highest, most[worker])
            if not_before[index] > clock and (head or area <= highest):
                due = min(due, not_before[index])
        if left == 0:
            break
        if due - clock >= ring:
            for worker in range(workers):
                for step in range(ring):
                    usage[worker, step] = 0
        else:
            for step in range(clock + 1, due + 1):
                for worker in range(workers):
                    usage[worker, step & (ring - 1)] = 0
        clock = due
