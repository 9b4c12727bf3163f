r"""Schedules that let requests wait although they would fit, and lists on several workers.

**Delays.** Large requests are released on the way from their arrival to the start that is cheapest
at prices of memory, and `area` serves them; then single releases are annealed.

**Even starts.** Of outputs :math:`o` without prompts, :math:`M / o` fit at once, but
:math:`2 M / (o + 1)` can be on the way if their starts are spread evenly. So starts take their
memory-time out of a budget, or none is before the memory-time relaxation would be half done.

**Lists.** Each request in turn starts on the worker where it leaves the least room (best fit).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched import admission
from optsched._internal.arrays import BoolArray, FloatArray, IntArray, ranks_in
from optsched._internal.aside import Budget, interruptible_kernel, stopwatch
from optsched._internal.compiled import allocating, compiled_inside
from optsched._internal.small_kernels import copy, pop, push
from optsched.bounds.lagrangian import PricedStarts, relax
from optsched.problem.costs import StartCosts
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.search.annealing import (
    MAX_STEPS,
    STEP_WORK,
    STRIDE,
    Cooling,
    Pace,
    SearchRequests,
    SearchWorkers,
    add_usage,
    earliest_fit,
    empty_usage,
    first_from,
    new_random,
    occupy_before,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from optsched.certificates.prices import Certificate
    from optsched.problem.workers import Workers
    from optsched.search.annealing import RandomState, Usage

_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the way from arrival to cheapest start
_LARGEST = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # quantiles of areas from which requests wait
_TRIALS = 50  # until regrets are computed again
_HOT, _COLD = 2.4, 0.08  # temperatures in mean outputs
_SHORT, _SHORT_SHARE = 10, 0.05  # short anneals, and the share of the work of each


def delay_large(
    instance: Instance, weights: FloatArray, certificate: Certificate, budget: Budget, seed: int = 0
) -> Schedule:
    """Find delays of large requests with which `area` does best; deadlines are not respected."""
    priced = PricedStarts(instance, certificate)
    rank = np.argsort(np.argsort(instance.areas / weights, kind="stable"))
    ahead = np.maximum(priced.cheapest - instance.arrivals, 0)
    guesses = [instance.arrivals]
    for quantile in _LARGEST:
        large = instance.areas >= np.quantile(instance.areas, quantile)
        guesses += [
            instance.arrivals + np.where(large, share * ahead, 0).astype(np.int64)
            for share in _SHARES
        ]
    found = []
    for releases in guesses:
        found.append((serve(instance, rank, releases), releases))
        if budget.over:
            break
    starts, releases = min(found, key=lambda pair: weights @ pair[0])
    first = Schedule(instance, starts, "delayed")
    if first.makespan + int(instance.outputs.sum()) > MAX_STEPS or instance.memory >= 2**31:
        return first
    now = stopwatch()

    def anneal(begin: Anneal, number: int, share: float, until: float) -> Anneal:
        run = Anneal(instance, weights, priced, rank, begin.best_releases, begin.best)
        end = now + (budget.deadline - now) * until
        part = budget._replace(work=share * budget.work, deadline=end)
        run.follow(part, seed + STRIDE * number)
        return run

    begin = Anneal(instance, weights, priced, rank, releases, starts)
    short = [
        anneal(begin, number, _SHORT_SHARE, (number + 1) * _SHORT_SHARE) for number in range(_SHORT)
    ]
    best = min(short, key=lambda run: run.cost)
    best = anneal(best, _SHORT, 1 - _SHORT * _SHORT_SHARE, 1.0)
    return Schedule(instance, best.best, "delayed")


def serve(instance: Instance, key: IntArray, releases: IntArray) -> IntArray:
    """Return the starts by the prefix rule, least key first, none before its release."""
    order = np.argsort(releases, kind="stable")
    released = Instance(
        instance.prompts[order], instance.outputs[order], instance.memory, releases[order]
    )
    starts = np.empty_like(order)
    starts[order] = admission.admit_by_priority(released, np.argsort(key[order], kind="stable"))
    return starts


class Anneal:
    """Releases, what serving by rank makes of them, and the best met."""

    def __init__(
        self,
        instance: Instance,
        weights: FloatArray,
        priced: PricedStarts,
        rank: IntArray,
        releases: IntArray,
        starts: IntArray,
    ) -> None:
        self._instance, self._priced = instance, priced
        self._requests = SearchRequests.of(instance, StartCosts.plain(weights))
        self._horizon = int((starts + instance.outputs).max())
        # Memory is never empty while a request waits, so nothing lasts longer than this.
        length = self._horizon + int(instance.outputs.sum()) + 2
        self._state = Releases(
            rank=rank,
            by_rank=np.argsort(rank),
            releases=releases.copy(),
            by_release=np.argsort(releases, kind="stable"),
            starts=starts.copy(),
            order=np.argsort(starts, kind="stable"),
            heads=releases.copy(),
            usage=empty_usage(length),
            best=starts.copy(),
            best_releases=releases.copy(),
            costs=np.array([weights @ starts, weights @ starts], dtype=np.float64),
        )
        self._scale = float(np.mean(weights)) * float(np.mean(instance.outputs))
        self._offset = float(weights @ (instance.outputs - instance.arrivals))
        self.releases, self.starts = self._state.releases, self._state.starts
        self.best_releases, self.best = self._state.best_releases, self._state.best

    @property
    def cost(self) -> float:
        """Weighted starts of the best schedule."""
        return float(self._state.costs[1])

    def follow(self, budget: Budget, seed: int) -> None:
        """Anneal until the work is done, the time is up or the token is set."""
        state, everything = self._state, np.arange(len(self._instance))
        # Those of equal keys are in the order of a fresh start, whatever was annealed before.
        state.by_release[:] = np.argsort(state.releases, kind="stable")
        state.order[:] = np.argsort(state.starts, kind="stable")
        random, cooling = new_random(seed), Cooling(self._scale, _HOT, _COLD)
        pace = Pace(budget.work, budget.deadline - stopwatch())
        while pace.goes_on() and not budget.over:
            budget.tell(self.cost + self._offset)
            regrets = self._priced.regrets(everything, state.starts)
            pace.done += anneal_releases(
                self._requests,
                state,
                self._priced.cheapest,
                np.cumsum(regrets.astype(np.float64) + 1.0),
                self._horizon,
                random,
                _TRIALS,
                pace.leg(cooling).hot,
            )


_NEVER = 1 << 60
# Work of a trial beyond its steps, and of each request from its first change on.
_TRIAL_WORK, _REQUEST_WORK = 500.0, 2.0


class Releases(NamedTuple):
    """Releases, the schedule that serving by rank makes of them, and the best one met."""

    rank: IntArray  # of each request, 0 the most urgent
    by_rank: IntArray  # the requests by rank
    releases: IntArray
    by_release: IntArray
    starts: IntArray
    order: IntArray  # the requests by start
    heads: IntArray  # step before which a request is not the most urgent one that waits
    usage: Usage  # zeros, up to a step that no schedule reaches
    best: IntArray
    best_releases: IntArray
    costs: FloatArray  # weighted starts, of the schedule and of the best


class _Trial(NamedTuple):
    """What changed releases lead to, where that differs from the known schedule."""

    admitted: IntArray  # requests in the order of their starts
    fresh: IntArray  # their starts
    tried: IntArray  # when each request was first the most urgent one, -1 if never
    not_before: IntArray
    sides: IntArray  # 1 or -1 where only one of the schedules has started a request
    waiting: IntArray  # ranks of those that wait, a heap


@compiled_inside
def _release(releases: IntArray, by_release: IntArray, request: int, release: int) -> None:
    """Change the release of a request, and its place in the order by release."""
    place = 0
    while by_release[place] != request:
        place += 1
    releases[request] = release
    while place > 0 and releases[by_release[place - 1]] > release:
        by_release[place] = by_release[place - 1]
        place -= 1
    while place < len(by_release) - 1 and releases[by_release[place + 1]] < release:
        by_release[place] = by_release[place + 1]
        place += 1
    by_release[place] = request


@compiled_inside
def _pass_known(
    order: IntArray, starts: IntArray, sides: IntArray, start: int, known: int, differ: int
) -> tuple[int, int]:
    """Pass what the known schedule starts before a step; return how many only one has started."""
    while known < len(order) and starts[order[known]] < start:
        sides[order[known]] -= 1
        differ += 1 if sides[order[known]] else -1
        known += 1
    return known, differ


@compiled_inside
def _decode(
    requests: SearchRequests, state: Releases, trial: _Trial, begin: int, settled: int, first: int
) -> tuple[int, int, float]:
    """Admit from step `begin` on, before which nothing differs from the known starts."""
    prompts, outputs, starts = requests.prompts, requests.outputs, state.starts
    rank, by_rank, order, usage = state.rank, state.by_rank, state.order, state.usage
    releases, by_release = state.releases, state.by_release
    admitted, fresh, tried, not_before, sides, waiting = trial
    memory = requests.memory
    count = len(order)
    end, spent = occupy_before(
        prompts, outputs, order, starts, usage, first, begin, outputs.max(), 0.0
    )
    size = 0
    for place in range(first, count):
        request = order[place]
        tried[request], not_before[request], sides[request] = -1, 0, 0
        if releases[request] <= begin:
            size = push(waiting, size, rank[request])
    released = first_from(releases, by_release, begin + 1)
    clock = last = begin
    differ, until, known = 0, settled, first
    number, met = 0, _NEVER
    for _ in range(first, count):
        if size == 0:
            clock = max(clock, releases[by_release[released]])
        while True:
            while released < count and releases[by_release[released]] <= clock:
                size = push(waiting, size, rank[by_release[released]])
                released += 1
            request = by_rank[waiting[0]]
            prompt, output = prompts[request], outputs[request]
            if tried[request] < 0:
                tried[request] = clock
            latest = len(usage) - 1 - output
            begun = max(clock, not_before[request])
            start = earliest_fit(usage, memory, prompt, output, begun, latest)
            not_before[request] = start
            if released == count or start < releases[by_release[released]]:
                break
            clock = releases[by_release[released]]  # a more urgent one may come
        if start > last:
            known, differ = _pass_known(order, starts, sides, start, known, differ)
            if differ == 0 and until <= start:
                met = start
                break
            last = start
        size = pop(waiting, size)
        add_usage(usage, prompt, output, start, 1)
        spent += 2 * STEP_WORK * output
        end = max(end, start + output)
        admitted[number], fresh[number] = request, start
        number += 1
        sides[request] += 1
        differ += 1 if sides[request] else -1
        if start != starts[request]:
            until = max(until, max(start, starts[request]) + output)
        clock = start
    usage[begin : end + 1] = 0
    return number, met, spent + _TRIAL_WORK + _REQUEST_WORK * (count - first)


@compiled_inside
def _draw_release(
    arrival: int, cheapest: int, start: int, longest: int, random: RandomState
) -> int:
    """Draw a release: the cheapest start, the arrival, something between, or near the start."""
    kind, share = uniform(random), uniform(random)
    if kind < 0.3:
        return cheapest
    if kind < 0.4:
        return arrival
    if kind < 0.7:
        return arrival + int(share * 1.3 * max(cheapest - arrival, 1))
    normal = math.sqrt(-2 * math.log(1.0 - share)) * math.cos(2 * math.pi * uniform(random))
    return start + int(normal * longest * 10.0 ** (-2.5 * uniform(random)))


@allocating
def anneal_releases(
    requests: SearchRequests,
    state: Releases,
    cheapest: IntArray,
    regrets: FloatArray,
    horizon: int,
    random: RandomState,
    trials: int,
    temperature: float,
) -> float:
    """Change single releases, and accept by Metropolis; return the work."""
    arrivals, weights = requests.arrivals, requests.costs.weights
    releases, by_release = state.releases, state.by_release
    starts, order, heads, costs = state.starts, state.order, state.heads, state.costs
    count, longest = len(starts), int(requests.outputs.max())
    admitted, fresh, tried, not_before, sides, waiting = np.empty((6, count), dtype=np.int64)
    trial = _Trial(admitted, fresh, tried, not_before, sides, waiting)
    work = 0.0
    for _ in range(trials):
        one = int(np.searchsorted(regrets, uniform(random) * regrets[-1], side="right"))
        arrival, old = arrivals[one], releases[one]
        new = _draw_release(arrival, cheapest[one], starts[one], longest, random)
        new = min(max(new, arrival), horizon)
        if old <= new <= heads[one]:  # it waits for others until then anyway
            work += _TRIAL_WORK
            continue
        begin = new if new < old else heads[one]
        first = first_from(starts, order, begin)
        _release(releases, by_release, one, new)
        number, met, spent = _decode(requests, state, trial, begin, max(old, new), first)
        work += spent
        change = 0.0
        for place in range(number):
            request = admitted[place]
            change += weights[request] * (fresh[place] - starts[request])
        if change > -temperature * math.log(1.0 - uniform(random)):
            _release(releases, by_release, one, old)
            continue
        for place in range(first, count):
            request = order[place]
            if heads[request] >= begin:
                heads[request] = tried[request] if tried[request] >= 0 else max(heads[request], met)
        for place in range(number):
            starts[admitted[place]] = fresh[place]
            order[first + place] = admitted[place]
        costs[0] += change
        if costs[0] < costs[1]:
            costs[1] = costs[0]
            copy(starts, state.best, 0, len(starts))
            copy(releases, state.best_releases, 0, len(starts))
    return work


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
            worker = admission.empty_worker(int(outputs.max()))
            given = prompts, outputs, arrivals, memory, priority, spent, free
            admission.admit_arriving(*given, starts, worker, np.zeros((3, count), dtype=np.int64))
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
    admission.require_steps(instance.outputs, len(workers))
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


@compiled_inside
def _look_ahead(
    usage: IntArray, room: IntArray, worker: int, memory: int, clock: int, known: int, output: int
) -> None:
    """Bring the least room of a worker up to date for so many steps, of which some are known."""
    if known == 0:
        room[0, worker, 0], room[1, worker, 0] = memory, 0
    for upto in range(known + 1, output + 1):
        free = memory - upto - usage[worker, (clock + upto) & (usage.shape[1] - 1)]
        if free < room[0, worker, upto - 1]:
            room[0, worker, upto], room[1, worker, upto] = free, upto
        else:
            room[0, worker, upto] = room[0, worker, upto - 1]
            room[1, worker, upto] = room[1, worker, upto - 1]


@compiled_inside
def _tightest(
    usage: IntArray,
    room: IntArray,
    memories: IntArray,
    allowed: BoolArray,
    known: IntArray,
    most: FloatArray,
    clock: int,
    prompt: int,
    output: int,
    area: float,
) -> tuple[int, int]:
    """Return the worker that a request fits with least to spare, or -1, and how long it waits."""
    chosen, tightest, wait = -1, admission.NEVER, admission.NEVER
    for worker in range(len(memories)):
        if not allowed[worker]:
            continue
        _look_ahead(usage, room, worker, memories[worker], clock, known[worker], output)
        known[worker] = max(known[worker], output)
        slack = room[0, worker, output] - prompt
        if slack < 0:  # until its own part has shrunk enough, or that step is over
            wait = min(wait, min(-slack, room[1, worker, output]))
        elif slack < tightest and (most[worker] < 0 or area <= most[worker]):
            chosen, tightest = worker, slack
    return chosen, wait


@compiled_inside
def _move_on(usage: IntArray, clock: int, due: int) -> None:
    """Let the rings forget the steps up to one."""
    workers, ring = usage.shape
    if due - clock >= ring:
        for worker in range(workers):
            for step in range(ring):
                usage[worker, step] = 0
        return
    for step in range(clock + 1, due + 1):
        for worker in range(workers):
            usage[worker, step & (ring - 1)] = 0


@allocating
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
    released, begin, end, left = 0, count, count, count
    clock = releases[arriving[0]]
    while left > 0:
        while released < count and releases[arriving[released]] <= clock:
            index = arriving[released]
            released += 1
            not_before[index] = clock
            begin, end = admission.let_wait(waiting, begin, end, index)
        due = releases[arriving[released]] if released < count else admission.NEVER
        known[:], most[:], seen[:] = 0, -1.0, 0
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
            if not_before[index] <= clock and (open_workers > 0 or area <= highest):
                prompt, output = prompts[index], outputs[index]
                chosen, wait = _tightest(
                    usage, room, memories, allowed[kind], known, most, clock, prompt, output, area
                )
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
                if wait < admission.NEVER:
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
        if left > 0:
            _move_on(usage, clock, due)
            clock = due
