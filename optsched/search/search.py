"""Search for better schedules: annealing on orders, then large-neighbourhood search on starts.

By the prefix rule only a window of an order is decoded again: from the first changed position until
the old schedule is met again, at most shifted in time, or the cost is sure to be too high. Work is
counted in token-steps touched, so that a run depends on the seed and on the work allowed.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from optsched._internal.aside import Budget, Token, stopwatch
from optsched._internal.compiled import allocating, compiled_inside
from optsched._internal.small_kernels import PriceSums, copy
from optsched.errors import OptschedError
from optsched.problem.costs import StartCosts, cost_of_start
from optsched.problem.schedule import Schedule
from optsched.search.annealing import (
    MAX_STEPS,
    MOVE_WORK,
    STEP_WORK,
    STRIDE,
    Cooling,
    Moves,
    Pace,
    SearchRequests,
    SearchWorkers,
    add_usage,
    earliest_fit,
    empty_usage,
    move_starts,
    new_random,
    occupy_before,
    temperature_after,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.search.annealing import Leg, RandomState, Usage

Kind = Literal["prefix", "backfill", "placed", "starts"]
Plan = tuple[tuple[Kind, float], ...]

_CHUNK = 2e7  # work between two looks at the clock
_FEW = 400  # up to so many requests orders are annealed, and starts delayed
FEW_PLACED = 100  # and on several workers, where all behind a change are placed anew
_CROWDED = 3.0  # so few requests fit on average that packing them is what matters
_LARGE, _SHARE_OF_LARGE = 0.8, 0.8  # the largest fifth move by themselves if they hold as much
_MOVES_OF_LARGE = 0.45
_LATE = 0.05  # of the cost of being late, where latency costs less
_CELLS = 400_000_000  # steps of all workers at most
_SHARE_OF_SEVERAL = 0.5  # of the moves on several workers that begin with a large request
# Temperatures in mean outputs, first and last: of orders, of starts, of starts with arrivals.
_ORDERS, _STARTS, _STARTS_ARRIVALS = (2.0, 0.2), (0.15, 0.01), (0.3, 0.02)


@dataclass(frozen=True)
class Search:
    """What a search found, and how it got there."""

    schedule: Schedule
    history: tuple[tuple[float, float], ...]  # (seconds, objective) after each improvement
    interrupted: bool = False  # whether Ctrl-C ended it


def search(
    start: Schedule,
    costs: StartCosts,
    budget: Budget,
    seed: int = 0,
    threads: int = 1,
    plan: str | None = None,
    latest: IntArray | None = None,
) -> Search:
    """Improve a feasible schedule, within latest starts that it keeps; Ctrl-C leaves the best."""
    most = min(MAX_STEPS, _CELLS // len(start.workers))
    if start.makespan > most:
        raise OptschedError(
            f"a search would keep the usage of {start.makespan} steps (at most {most}); "
            "use longer steps"
        )
    ended = Token(budget.stop)
    apart = budget._replace(stop=ended, report=None)
    if latest is not None and len(start.workers) == 1:
        plan = "starts"
    names = _choose(start) if plan is None else [plan]
    plans = [PLANS[name] for name in names]
    told = apart._replace(report=budget.report)
    requests = SearchRequests.of(start.instance, costs, latest)
    runs = [
        _SearchRun(start, requests, seed + STRIDE * i, apart if i else told) for i in range(threads)
    ]
    interrupted = False
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        try:
            others = [
                pool.submit(run.follow, plans[i % len(plans)])
                for i, run in enumerate(runs[1:], start=1)
            ]
            runs[0].follow(plans[0])
            for other in others:
                other.result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            ended.set()
    best = min(runs, key=lambda run: run.cost)  # the first of equal ones
    return Search(best.schedule, _merge(runs), interrupted)


#: Searches by name: what each does, with its share of the work.
PLANS: dict[str, Plan] = {
    "orders": (("prefix", 0.9), ("starts", 0.1)),
    "backfill": (("backfill", 0.9), ("starts", 0.1)),
    "placed": (("placed", 0.9), ("starts", 0.1)),
    "starts": (("starts", 1.0),),
}


def _choose(start: Schedule) -> list[str]:
    """Return the searches that suit the problem, best first (figures: benchmarks/research.md)."""
    instance = start.instance
    together = instance.memory * int(instance.outputs.sum()) / int(instance.areas.sum())
    if len(start.workers) > 1:
        return ["placed", "starts"] if len(instance) <= FEW_PLACED else ["starts"]
    if len(instance) > _FEW:
        return ["starts"]
    if together < _CROWDED or instance.arrivals.any():
        return ["orders", "starts", "backfill"]
    return ["starts", "backfill", "orders"]


def _merge(runs: list[_SearchRun]) -> tuple[tuple[float, float], ...]:
    """Merge the histories of all runs: each entry is the best of all at its time."""
    merged: list[tuple[float, float]] = []
    for entry in sorted(entry for run in runs for entry in run.history):
        if not merged or entry[1] < merged[-1][1]:
            merged.append(entry)
    return tuple(merged)


class _SearchRun:
    def __init__(
        self, start: Schedule, requests: SearchRequests, seed: int, budget: Budget
    ) -> None:
        instance, costs = start.instance, requests.costs
        self._instance, self._requests = instance, requests
        self._workers, self._placement = start.workers, start.placement
        self._random = new_random(seed)
        self._budget, self._began = budget, stopwatch()
        self._offset = float(costs.weights @ (instance.outputs - instance.arrivals))
        self._scale = float(np.mean(costs.weights)) * float(np.mean(instance.outputs))
        self._scale = max(self._scale, _LATE * float(np.mean(costs.jumps)))
        self.best = start.starts.copy()
        self.cost = costs.total(self.best)
        self.history = [(0.0, self.cost + self._offset)]

    def follow(self, plan: Plan) -> None:
        """Do what a plan says, until it is done or time is up."""
        left = 1.0
        for kind, share in plan:
            seconds = (self._budget.deadline - stopwatch()) * share / left
            pace = Pace(share * self._budget.work, seconds)
            left -= share
            going = (
                self._move_starts(pace, kind == "placed")
                if kind in ("starts", "placed")
                else self._anneal_orders(pace, kind == "backfill")
            )
            if not going:
                return

    def _anneal(
        self,
        pace: Pace,
        temperatures: tuple[float, float],
        kernel: Callable[[Leg], float],
        state: Orders | Moves,
    ) -> bool:
        """Call a kernel leg by leg; return whether the plan goes on."""
        cooling = Cooling(self._scale, *temperatures)
        going = pace.work > 0
        while going:
            pace.done += kernel(pace.leg(cooling, _CHUNK))
            if self._keep(state):
                return False
            going = pace.goes_on()
        return True

    @property
    def schedule(self) -> Schedule:
        """The best schedule."""
        return Schedule(
            self._instance, self.best, "search", workers=self._workers, placement=self._placement
        )

    def _keep(self, state: Orders | Moves) -> bool:
        """Keep a better schedule, and return whether to stop."""
        if state.costs[1] < self.cost:
            self.best, self.cost = state.best.copy(), float(state.costs[1])
            if isinstance(state, Moves):
                self._placement = state.best_placement.copy()
            self.history.append((stopwatch() - self._began, self.cost + self._offset))
        self._budget.tell(self.cost + self._offset)
        return self._budget.over

    def _anneal_orders(self, pace: Pace, backfill: bool) -> bool:
        """Anneal on orders, decoded by the prefix rule or each at its earliest feasible start."""
        instance = self._instance
        state = Orders(
            order=np.argsort(self.best, kind="stable"),
            starts=np.zeros(len(instance), dtype=np.int64),
            best=self.best.copy(),
            usage=empty_usage(int(instance.arrivals[-1] + instance.outputs.sum()) + 2),
            costs=np.array([-1.0, math.inf]),
        )

        def kernel(leg: Leg) -> float:
            return anneal_orders(self._requests, state, backfill, self._random, leg)

        return self._anneal(pace, _ORDERS, kernel, state)

    def _move_starts(self, pace: Pace, in_order: bool) -> bool:
        """Take requests out and put them back: some, or all behind a change of their order."""
        instance, schedule = self._instance, self.schedule
        longest, several = int(instance.outputs.max()), len(self._workers) > 1
        steps = schedule.makespan + 4 * longest + 2
        usage = empty_usage(len(self._workers) * steps)
        for worker in np.unique(self._placement).tolist():
            profile = schedule.on(worker).memory_profile()
            usage[worker * steps :][: len(profile)] = profile
        large = self._large()
        share = _SHARE_OF_SEVERAL if several else _MOVES_OF_LARGE if len(large) else 0.0
        delay = longest if len(instance) <= _FEW else 0
        arriving = share and instance.arrivals.any()
        state = Moves.of(self.best, self._placement, usage, len(self._workers), self.cost, large)
        places = SearchWorkers.of(instance, self._workers)
        free = PriceSums(np.zeros(1), np.zeros(1))
        order = np.argsort(self.best, kind="stable")

        def kernel(leg: Leg) -> float:
            if in_order:
                return place_orders(self._requests, places, order, state, self._random, leg)
            return move_starts(self._requests, places, free, state, share, delay, self._random, leg)

        temperatures = _STARTS_ARRIVALS if arriving else _STARTS
        temperatures = _ORDERS if in_order else temperatures
        return self._anneal(pace, temperatures, kernel, state)

    def _large(self) -> IntArray:
        """Return the large requests, on one worker only where they hold most of the memory."""
        areas = self._instance.areas
        large = np.flatnonzero(areas >= np.quantile(areas, _LARGE))
        few = areas[large].sum() < _SHARE_OF_LARGE * areas.sum()
        return large[:0] if few and len(self._workers) == 1 else large


class Orders(NamedTuple):
    """An order, what it decodes to, and the best schedule met."""

    order: IntArray
    starts: IntArray
    best: IntArray
    usage: Usage  # zeros, up to a step that no schedule reaches
    costs: FloatArray  # of the order, negative before it is decoded, and of the best schedule


@allocating
def anneal_orders(
    requests: SearchRequests, state: Orders, backfill: bool, random: RandomState, leg: Leg
) -> float:
    """Anneal on orders until the work of a leg is done; return the work."""
    prompts, outputs, _, costs, _, _ = requests
    order, starts, best, usage, met = state
    count = len(order)
    longest = 0
    trial, fresh = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for rank in range(count):
        trial[rank], fresh[rank] = order[rank], starts[rank]
        if not backfill:
            longest = max(longest, outputs[rank])
    # Sums over all ranks from one on, of weights and of weighted starts.
    heavy, behind = np.empty(count + 1, dtype=np.float64), np.empty(count + 1, dtype=np.float64)
    heavy[count] = behind[count] = 0.0
    _sum_suffixes(costs, order, starts, heavy, behind)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        first, last = 0, count
        if met[0] >= 0:
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
        if met[0] >= 0:
            budget = met[0] - temperature * math.log(1.0 - uniform(random))
        spared = behind[0] - behind[first]
        changed = first, last, clock, end
        total, end, joined, shift, spent = _decode(
            requests, state, trial, fresh, backfill, changed, heavy, spared, budget, spent
        )
        usage[lowest : end + 1] = 0
        spent += MOVE_WORK
        if joined < count:
            total += behind[joined] + shift * heavy[joined]
        if total > budget:
            if last < count:
                copy(order, trial, first, last + 1)
            continue
        copy(trial, order, first, min(last + 1, count))  # at first all, where last is count
        for rank in range(first, joined):
            starts[order[rank]] = fresh[order[rank]]
        for rank in range(joined, count):
            starts[order[rank]] += shift
        _sum_suffixes(costs, order, starts, heavy, behind)
        met[0] = total
        if total < met[1]:
            met[1] = total
            copy(starts, best, 0, len(starts))
    return spent


@compiled_inside
def _decode(
    requests: SearchRequests,
    state: Orders,
    order: IntArray,
    fresh: IntArray,
    backfill: bool,
    changed: tuple[int, int, int, int],
    heavy: FloatArray,
    total: float,
    budget: float,
    spent: float,
) -> tuple[float, int, int, int, float]:
    """Start in order from the first change on; return cost, last step, rank met, shift and work."""
    prompts, outputs, arrivals, costs, memory, _ = requests
    before, starts, _, usage, _ = state
    first, last, clock, end = changed
    count, rest, offline = len(order), heavy[first], arrivals[-1] == 0 and not costs.soft
    old_end, run_end, run_old_end, shift = end, end, end, 0
    for rank in range(first, count):
        request = order[rank]
        prompt, output = prompts[request], outputs[request]
        begin = arrivals[request] if backfill else max(clock, arrivals[request])
        start = earliest_fit(usage, memory, prompt, output, begin, len(usage) - 2 - output)
        add_usage(usage, prompt, output, start, 1)
        fresh[request] = start
        total += cost_of_start(costs, request, start)
        rest -= costs.weights[request]
        spent += STEP_WORK * (1.1 * output + 0.6 * (start - begin)) + 6.0
        if not backfill:
            clock = start
            if rank > last:
                now = start - starts[request]
                if now != shift or rank == last + 1:
                    shift, run_end, run_old_end = now, end, old_end
                same = start >= run_end and start - shift >= run_old_end
                if same and (offline or shift == 0):
                    return total, max(end, start + output), rank + 1, shift, spent
            old_end = max(old_end, starts[before[rank]] + outputs[before[rank]])
        end = max(end, start + output)
        if total + rest * clock > budget:
            return math.inf, end, count, shift, spent
    return total, end, count, shift, spent


@allocating
def place_orders(
    requests: SearchRequests,
    places: SearchWorkers,
    order: IntArray,
    state: Moves,
    random: RandomState,
    leg: Leg,
) -> float:
    """Anneal on orders, in which each starts as soon as any worker has room; return the work."""
    prompts, outputs, _, costs, _, _ = requests
    count, steps = len(order), len(state.usage) // len(places.memories)
    starts, placement, usage, met = state.starts, state.placement, state.usage, state.costs
    trial, new = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    copy(order, trial, 0, count)
    spent = 0.0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        first, last = _change(trial, random)
        spent += MOVE_WORK
        if first == last:
            continue
        before = after = 0.0
        for rank in range(first, count):
            request = order[rank]
            before += cost_of_start(costs, request, starts[request])
            old = placement[request] * steps + starts[request]
            add_usage(usage, prompts[request], outputs[request], old, -1)
            spent += STEP_WORK * outputs[request]
        budget = before - temperature * math.log(1.0 - uniform(random))
        placed = first
        while placed < count and after <= budget:
            request = trial[placed]
            at, spent = _place(requests, places, request, usage, random, spent)
            if at < 0:
                break
            new[placed] = at
            after += cost_of_start(costs, request, at % steps)
            add_usage(usage, prompts[request], outputs[request], at, 1)
            placed += 1
        if placed < count or after > budget:
            for rank in range(first, placed):
                request = trial[rank]
                add_usage(usage, prompts[request], outputs[request], new[rank], -1)
            for rank in range(first, count):
                request = order[rank]
                old = placement[request] * steps + starts[request]
                add_usage(usage, prompts[request], outputs[request], old, 1)
            copy(order, trial, first, last + 1)
            continue
        copy(trial, order, first, last + 1)
        for rank in range(first, count):
            placement[order[rank]], starts[order[rank]] = divmod(new[rank], steps)
        met[0] += after - before
        if met[0] < met[1]:
            met[1] = met[0]
            copy(starts, state.best, 0, count)
            copy(placement, state.best_placement, 0, count)
    return spent


@compiled_inside
def _place(
    requests: SearchRequests,
    places: SearchWorkers,
    request: int,
    usage: Usage,
    random: RandomState,
    spent: float,
) -> tuple[int, float]:
    """Return where in the usage a request starts first, on any of the workers, and the work."""
    memories, kinds, allowed = places
    output, arrival = requests.outputs[request], requests.arrivals[request]
    workers = len(memories)
    steps = len(usage) // workers
    latest, found = min(steps - 2 - output, requests.latest[request]), -1
    turn = int(uniform(random) * workers)  # of equal ones any may be the first
    for number in range(turn, turn + workers):
        worker = number % workers
        if allowed[kinds[request], worker]:
            begin = worker * steps + arrival
            at = earliest_fit(
                usage,
                memories[worker],
                requests.prompts[request],
                output,
                begin,
                worker * steps + latest,
            )
            end = latest if at < 0 else at - worker * steps
            spent += STEP_WORK * (output + max(end - arrival, 0))
            if at >= 0:
                found, latest = at, end - 1
    return found, spent


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
    costs: StartCosts, order: IntArray, starts: IntArray, heavy: FloatArray, behind: FloatArray
) -> None:
    for rank in range(len(order) - 1, -1, -1):
        request = order[rank]
        heavy[rank] = heavy[rank + 1] + costs.weights[request]
        behind[rank] = behind[rank + 1] + cost_of_start(costs, request, starts[request])
