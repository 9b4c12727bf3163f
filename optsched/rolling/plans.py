"""Windows of waiting requests, and what plans them.

Plan and fallback are simulated on the same few draws of requests from those that have arrived so
far, at the rate at which they came. Both admit by the prefix rule, the fallback in its order, the
plan in the order of its starts, where each arrival goes before the first that is less urgent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from optsched._internal.arrays import MAX_STEP, ranks_in, require_room
from optsched._internal.aside import Budget, stopwatch
from optsched._internal.compiled import compiled
from optsched._internal.small_kernels import PriceSums
from optsched.admission import NEVER, admit_arriving, admit_window, empty_worker, new_queue, occupy
from optsched.bounds.lagrangian import averaged_starts
from optsched.errors import PolicyError, SolverError
from optsched.models.hindsight import HindsightProgram, LatencyRelaxation
from optsched.models.solution import Stopped
from optsched.policies import BASIC
from optsched.policies.base import window_of
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule, Usage
from optsched.search.beam import Background, Beam, slices
from optsched.search.sliding import place_in_order, priced_cost, search_window
from optsched.solvers.backends.base import Options
from optsched.solvers.backends.driver import solve_linear
from optsched.solvers.selection import select_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.linear import LinearModel
    from optsched.models.program import Running
    from optsched.policies.base import BatchPolicy, Rule
    from optsched.search.annealing import Usage as Held
    from optsched.solvers.selection import BatchMethod

    Plan = tuple[IntArray, bool]


@dataclass(frozen=True, eq=False)
class Window:
    """What a model of a rolling horizon gets to see; step 0 is now."""

    prompts: IntArray
    outputs: IntArray
    memory: int
    running: Running
    prices: FloatArray
    order: IntArray
    hint: IntArray
    seconds: float
    seed: int
    rule: Rule = "prefix"
    method: str = "auto"

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def load(self) -> IntArray:
        """Tokens that the running requests hold at steps 1, 2, ... until the last has completed."""
        return self.running.load(self.running.last_step)

    @cached_property
    def price_sums(self) -> PriceSums:
        """Sums of the prices, and of step times price, over the steps up to each one from 0 on."""
        return PriceSums.of(self.prices)

    def usage(self) -> Held:
        """Return tokens held from step 0 on by those running, with room for all relevant plans."""
        longest = int(self.outputs.max(initial=1))
        require_room(self.outputs.sum(), 8, "steps of a window", "take a smaller one", PolicyError)
        usage = np.zeros(len(self.load) + int(self.outputs.sum()) + longest + 4, dtype=np.int32)
        usage[1 : len(self.load) + 1] = self.load
        return usage

    def place(self, order: IntArray, *, prefix: bool = True) -> IntArray:
        """Start requests in an order, each as soon as it fits."""
        starts = np.zeros(len(self), dtype=np.int64)
        usage = self.usage()
        place_in_order(self.prompts, self.outputs, self.memory, usage, order, prefix, starts)
        return starts

    def place_in_window(self, order: IntArray, ratio: float, length: int) -> IntArray:
        """Start requests in an order by the window rule (`optsched.admission`)."""
        queue = new_queue(self.prompts, self.outputs, np.zeros_like(order), self.memory, order)
        usage, window = empty_worker(max(int(self.outputs.max()), len(self.load)))
        usage[1 : len(self.load) + 1] = self.load
        window[1] = len(self.load)
        admit_window(queue, self.memory, ratio, length, 0, NEVER, usage, window)
        starts: IntArray = queue.requests.start[ranks_in(order)].copy()
        return starts

    @cached_property
    def schedule(self) -> Schedule:
        """What the fallback would do: a schedule of the instance of `program` to start from."""
        if self.rule == "prefix":
            starts = self.place(self.order)
        else:
            starts = self.place_in_window(self.order, *window_of(self.rule))
        return Schedule(Instance(self.prompts, self.outputs, self.memory), starts, "fallback")

    def cost(self, starts: IntArray) -> float:
        """Return the sum of the starts and of what their memory costs at the prices."""
        return float(priced_cost(self.prompts, self.outputs, self.price_sums, starts))

    def fits(self, starts: npt.ArrayLike) -> bool:
        """Tell whether starts are whole, not in the past, and within the memory at every step."""
        given = np.asarray(starts)
        if given.shape != (len(self),) or not np.issubdtype(given.dtype, np.integer):
            return False
        if len(given) == 0:
            return True
        if given.min() < 0 or given.max() > MAX_STEP:
            return False
        added = Usage(given.astype(np.int64), self.prompts, self.outputs)
        beside = added.at(np.arange(1, len(self.load) + 1))
        held = (self.load + beside)[beside > 0]
        return max(added.peak, int(held.max(initial=0))) <= self.memory

    def program(
        self, horizon: int | None = None, kind: type[HindsightProgram] = HindsightProgram
    ) -> HindsightProgram:
        """Write the window as a hindsight program with priced memory, one output longer."""
        if horizon is None:
            horizon = self.schedule.makespan + int(self.outputs.max())
        prices = self.prices
        if self.method == "cp-sat":  # which counts in whole units
            prices = np.round(prices / _PRICE) * _PRICE
        return kind(
            self.schedule.instance, horizon=horizon, running=self.running, memory_prices=prices
        )


def prices_of_rest(areas: IntArray, before: int, memory: int) -> FloatArray:
    r"""Price memory for requests that are served after others, all of the memory at a time."""
    if not len(areas):
        return np.zeros(0)
    ends = (before + np.cumsum(np.concatenate([[0], np.sort(areas)]))) / memory
    left = np.arange(len(areas), -1, -1) / memory
    require_room(ends[-1], 40, "prices of steps", "take a larger window", PolicyError)
    prices: FloatArray = np.interp(np.arange(1, int(np.ceil(ends[-1])) + 1), ends, left)
    return prices


ARRIVALS = 64  # of each scenario
_SURE = 2.0  # standard errors beyond which the fallback is taken to be better


class Past(NamedTuple):
    """Requests that arrived so far: tokens, keys of the fallback's order, and their rate."""

    prompts: IntArray
    outputs: IntArray
    keys: FloatArray
    rate: float


def plan_is_worse(
    window: Window,
    keys: FloatArray,
    plan: IntArray,
    fallback: IntArray,
    past: Past,
    count: int,
    deadline: float,
) -> bool:
    """Return whether the fallback does better than a plan on scenarios, beyond chance."""
    if np.array_equal(plan == 0, fallback == 0) and np.array_equal(
        np.argsort(plan, kind="stable"), np.argsort(fallback, kind="stable")
    ):
        return False
    planned = _keys_of(plan, keys)
    rng = np.random.default_rng((window.seed, ARRIVALS))
    differences = np.empty(count)
    for scenario in range(count):
        if stopwatch() >= deadline:
            return False
        drawn = rng.integers(0, len(past.prompts), ARRIVALS)
        arrivals = 1 + np.cumsum(rng.exponential(1 / past.rate, ARRIVALS)).astype(np.int64)
        prompts = np.concatenate([window.prompts, past.prompts[drawn]])
        outputs = np.concatenate([window.outputs, past.outputs[drawn]])
        sums = []
        for chosen, urgency in ((plan, planned), (fallback, keys)):
            order = np.argsort(np.concatenate([urgency, past.keys[drawn]]), kind="stable")
            sums.append(
                _sum_of_starts(
                    prompts, outputs, arrivals, window.memory, window.load, chosen == 0, order
                )
            )
        differences[scenario] = sums[0] - sums[1]
    error = float(differences.std(ddof=1)) / np.sqrt(count)
    return bool(differences.mean() > _SURE * error)


def _keys_of(starts: IntArray, keys: FloatArray) -> FloatArray:
    """Return keys that order the window by its starts, comparable to later requests."""
    order = np.lexsort((keys, starts))
    raised = np.empty(len(starts))
    raised[order] = np.maximum.accumulate(keys[order])
    # Equal keys keep the plan's order: the least difference that numbers of this size can have.
    return _increasing(raised, order)


@compiled
def _increasing(keys: FloatArray, order: IntArray) -> FloatArray:
    for place in range(1, len(order)):
        if keys[order[place]] <= keys[order[place - 1]]:
            keys[order[place]] = np.nextafter(keys[order[place - 1]], np.inf)
    return keys


@compiled
def _sum_of_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    load: IntArray,
    now: IntArray,
    order: IntArray,
) -> int:
    """Start some of the first requests now and admit all the others; give the sum of starts."""
    longest = max(outputs.max(), len(load))
    usage = np.zeros(4 * longest + 64, dtype=np.int64)
    window = np.zeros(2, dtype=np.int64)
    usage[1 : len(load) + 1] = load
    window[1] = len(load)
    here = len(now)
    place = np.empty(len(prompts), dtype=np.int64)
    rest = 0
    for request in range(len(prompts)):
        if request < here and now[request]:
            occupy(usage, window, prompts[request], outputs[request], 0)
            place[request] = -1
        else:
            place[request] = rest
            rest += 1
    s, o, a = np.empty((3, rest), dtype=np.int64)
    priority = np.empty(rest, dtype=np.int64)
    count = 0
    for request in order:
        at = place[request]
        if at >= 0:
            s[at], o[at] = prompts[request], outputs[request]
            a[at] = arrivals[request - here] if request >= here else 0
            priority[count] = at
            count += 1
    starts = np.zeros(rest, dtype=np.int64)
    admit_arriving(s, o, a, memory, priority, starts, usage, window)
    total: int = starts.sum()
    return total


# Of the beam: the share of the memory its prices are for, starts for each slice, and its width.
_SHARE, _STARTS, _WIDTH = 0.93, 0.5, 10
_PRICE = 2.0**-16  # unit of prices for a solver that knows whole numbers only
_COMPLETE = (Stopped.OPTIMAL, Stopped.WITHIN_TOLERANCE)  # whatever prices add up to in doubles
_ITERATIONS = 15  # steps of the subgradient method that a budget of some milliseconds allows


def by_hindsight(window: Window) -> Plan:
    """Plan by the hindsight program, searched or by a solver."""
    if window.method != "auto":
        return by_program(window)
    return search_window(
        window.prompts,
        window.outputs,
        window.memory,
        window.usage(),
        window.price_sums,
        window.order,
        window.hint,
        seconds=window.seconds,
        seed=window.seed,
    )


def by_beam(window: Window) -> Plan:
    """Plan by a narrow beam at the prices of the window and of all behind it."""
    deadline = stopwatch() + window.seconds
    plans = [window.place(window.order), window.place(window.order, prefix=False)]
    best = min(plans, key=window.cost)
    if len(window) < 2 or (not best.any() and not window.prices.any()):
        return best, False  # nothing to exchange, or all start now and waiting saves nothing
    if window.load.max(initial=0) > window.memory:
        return best, True  # forecasts were too short: until a preemption a beam has no room
    instance = Instance(window.prompts, window.outputs, window.memory)
    share = max(int(_SHARE * window.memory), int(instance.peaks.max()))
    own = prices_of_rest(instance.areas, window.running.area, share)
    prices = np.zeros(max(len(own), len(window.prices)))
    prices[: len(own)] += own
    prices[: len(window.prices)] += window.prices
    load = np.zeros(len(window.load) + 1, dtype=np.int32)
    load[1:] = window.load
    beam = Beam(
        instance,
        np.ones(len(window)),
        prices,
        np.ones(len(window), dtype=bool),
        Background(best, load),
        slices(best, _STARTS),
        _WIDTH,
    )
    found, _ = beam.follow(Budget(deadline=deadline), math.inf)
    if found is None:
        return best, True
    return min((best, found), key=window.cost), False


def by_program(window: Window) -> Plan:
    """Plan by the hindsight program, by a solver: within its horizon no plan is better."""
    began = stopwatch()
    found, _ = by_hindsight(replace(window, method="auto", seconds=window.seconds / 10))
    if not found.any() and not window.prices.any():
        return found, False  # all start now, and waiting saves nothing
    program = window.program(int((found + window.outputs).max() + window.outputs.max()))
    start = program.write_point(Schedule(program.instance, found))
    values, cut = _solved(window, program.to_linear(), began, start)
    return program.read(values).starts, cut


def _solved(
    window: Window, model: LinearModel, began: float, start: FloatArray | None = None
) -> tuple[FloatArray, bool]:
    """Solve a model in what is left of the time of a window, and say whether that was short."""
    solver = "highs" if window.method == "auto" else window.method
    left = max(window.seconds - (stopwatch() - began), 1e-3)
    solution = solve_linear(model, solver, Options(left, seed=window.seed), start=start)
    if solution.status is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.values is None:
        raise SolverError(f"{solution.solver} found no plan for a window in time")
    return solution.values, solution.status not in _COMPLETE


def by_relaxation(window: Window) -> Plan:
    """Plan in the order of Sorted-LP: expected starts of the relaxation."""
    if window.method == "auto":
        instance = Instance(window.prompts, window.outputs, window.memory)
        expected = averaged_starts(instance, _ITERATIONS)
        return window.place(np.argsort(expected, kind="stable")), False
    began, relaxation = stopwatch(), window.program(kind=LatencyRelaxation)
    values, cut = _solved(window, relaxation.to_linear(), began)
    expected = cast("FloatArray", relaxation.read(values))
    return window.place(np.argsort(expected, kind="stable")), cut


def by_batches(window: Window) -> Plan:
    """Plan in the order of batches of least F until all are in one."""
    began = stopwatch()
    instance, cut = Instance(window.prompts, window.outputs, window.memory), False
    batches: list[IntArray] = []
    if window.method == "auto":  # by local swap
        policy: BatchPolicy = BASIC["sorted-f"]  # type: ignore[assignment]
        selector = policy.batches(instance)
        selector.release(np.arange(len(window)))
        while sum(map(len, batches)) < len(window):
            batches.append(selector.next_batch())
    else:
        waiting = np.arange(len(window))
        while len(waiting):
            left = max(window.seconds - (stopwatch() - began), 1e-3)
            method = cast("BatchMethod", window.method)
            batch = select_batch(instance.take(waiting), method, time_limit=left)
            batches.append(waiting[batch.requests])
            waiting, cut = np.delete(waiting, batch.requests), cut or batch.factor != 1
    return window.place(np.concatenate(batches)), cut


PLANS: dict[str, Callable[[Window], Plan]] = {
    "beam": by_beam,
    "hindsight": by_hindsight,
    "hindsight-exact": by_program,
    "relax-lp": by_relaxation,
    "batch": by_batches,
}
