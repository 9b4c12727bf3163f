"""Simulated annealing over starts, also of windows at prices of memory, and its pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import BoolArray, FloatArray, IntArray, require_room
from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import PriceSums, copy, price_of_start
from optsched.problem.costs import StartCosts, cost_of_start, latest_within

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

    Usage = npt.NDArray[np.int32]
    RandomState = npt.NDArray[np.uint64]

#: Work of a unit, which a time limit counts as a second: 1.6 billion steps (`STEP_WORK`).
WORK_PER_SECOND = 4e8

#: Steps of a dense usage profile at most.
MAX_STEPS = 50_000_000

#: Between the seeds of annealings that belong together.
STRIDE = 1_000_003

_LATE = 1.1  # the share of time spent over that of work done, beyond which an annealing is late

# Work of a token-step, of which eight are touched at once, and of a move beyond them.
STEP_WORK, MOVE_WORK = 0.25, 150.0


class SearchRequests(NamedTuple):
    """The requests of an instance."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    costs: StartCosts
    memory: int
    latest: IntArray  # starts that are allowed, where starts are moved

    @classmethod
    def of(
        cls, instance: Instance, costs: StartCosts, latest: IntArray | None = None
    ) -> SearchRequests:
        """Collect what the kernels need."""
        if latest is None:
            latest = np.full(len(instance), MAX_STEPS)
        arrays = instance.prompts, instance.outputs, instance.arrivals
        return cls(*arrays, costs, instance.memory, latest)


class Leg(NamedTuple):
    """Work to do, and the temperatures at its beginning and its end."""

    work: float
    hot: float
    cold: float


class Cooling(NamedTuple):
    """Geometric cooling between two temperatures, both in units of the scale."""

    scale: float
    hot: float
    cold: float

    def at(self, share: float) -> float:
        """Return the temperature after a share of the work."""
        return self.scale * self.hot * math.pow(self.cold / self.hot, min(1.0, share))

    def leg(self, work: float, begin: float, end: float) -> Leg:
        """Return a leg of so much work from one share to another."""
        return Leg(work, self.at(begin), self.at(end))


class Pace:
    """The work of an annealing, less where the machine is too slow for it in the time."""

    def __init__(self, work: float, seconds: float = math.inf) -> None:
        self.work, self.done = work, 0.0
        self._began, self._seconds = stopwatch(), max(seconds, 1e-9)

    def goes_on(self) -> bool:
        """Return whether work and time are left; work for which there is no time counts as done."""
        if self.done >= self.work:
            return False
        spent = (stopwatch() - self._began) / self._seconds
        # An annealing that is cut before it has cooled is wasted, so it skips what is too much.
        if spent > _LATE * self.done / self.work + 0.02:
            self.done = spent * self.work
        return self.done < self.work and spent < 1

    def leg(self, cooling: Cooling, most: float = math.inf) -> Leg:
        """Return the next leg, of so much work at most."""
        work = min(most, self.work - self.done)
        end = min(self.work, self.done + most)
        return cooling.leg(work, self.done / self.work, end / self.work)


def empty_usage(steps: int) -> Usage:
    """Return a usage of so many steps, all zero."""
    require_room(steps, 8, "steps of a search", "use longer steps")
    return np.zeros(steps, dtype=np.int32)


def new_random(seed: int) -> RandomState:
    """Return the random state of a seed."""
    return np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@compiled_inside
def temperature_after(leg: Leg, spent: float) -> float:
    """Return the temperature after some of the work."""
    return float(leg.hot * (leg.cold / leg.hot) ** (spent / leg.work))


@compiled_inside
def uniform(random: RandomState) -> float:
    """Draw from [0, 1) by xorshift64*: a state of its own makes runs repeatable."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled_inside
def add_usage(usage: Usage, prompt: int, output: int, start: int, sign: int) -> None:
    """Add the memory of a request to the usage, or with the sign -1 remove it."""
    # In 32 bits, as the usage is, eight steps are one instruction.
    held = usage[start + 1 : start + output + 1]
    first, times = np.int32(prompt + 1), np.int32(sign)
    for at in range(len(held)):
        held[at] += np.int32(times * np.int32(first + np.int32(at)))


@compiled_inside
def earliest_fit(
    usage: Usage, memory: int, prompt: int, output: int, start: int, latest: int
) -> int:
    """Return the first feasible start up to `latest`, or -1 - k if there is none before step k."""
    shift = np.int32(prompt - memory)
    seen = start
    while start <= latest:
        first = max(seen, start) + 1
        held = usage[first : start + output + 1]
        jump, begin = np.int32(start), np.int32(first)
        for at in range(len(held)):
            step = np.int32(begin + np.int32(at))
            fits = np.int32(np.int32(held[at] + shift) + step)
            jump = max(jump, min(fits, step))
        if jump == start:
            return start
        seen = start + output
        start = int(jump)
    return -1 - start


@compiled_inside
def first_from(values: IntArray, order: IntArray, least: int) -> int:
    """Return the first place in an order by value whose value is at least so large."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if values[order[middle]] < least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_inside
def occupy_before(
    prompts: IntArray,
    outputs: IntArray,
    order: IntArray,
    starts: IntArray,
    usage: Usage,
    place: int,
    clock: int,
    longest: int,
    spent: float,
) -> tuple[int, float]:
    """Add what requests before a place hold after the clock; return the last step, and the work."""
    end = clock
    for rank in range(place - 1, -1, -1):
        request = order[rank]
        start = starts[request]
        if longest and start + longest <= clock:
            break
        over = start + outputs[request]
        if over > clock:
            begin = max(clock, start)
            add_usage(usage, prompts[request] + begin - start, over - begin, begin, 1)
            spent += STEP_WORK * (over - begin)
            end = max(end, over)
    return end, spent


_MAX_TAKEN = 6  # requests taken out at once, beside small ones
_REACH = 15  # positions by start within which they lie
_REACH_LARGE = 8  # positions among the large requests within which those lie that are moved
_BEFORE = 40  # positions before a large request among which it finds some to push away
_SPARE = 64  # places in the order of a worker for requests that come
_SMALL = 24  # small requests that make room for large ones, less one
_TWO = 0.7  # of the moves on several workers, those that may concern two of them


class SearchWorkers(NamedTuple):
    """The workers, and on which of them each kind of request may run."""

    memories: IntArray  # (G,)
    kind: IntArray  # of each request
    allowed: BoolArray  # (kinds, G)

    @classmethod
    def of(cls, instance: Instance, workers: Workers) -> SearchWorkers:
        """Group the requests by the workers on which they may run."""
        allowed, kind = workers.kinds(instance)
        return cls(np.array(workers.memories), kind, allowed)


class Moves(NamedTuple):
    """A schedule, and the best one met."""

    starts: IntArray
    placement: IntArray
    orders: IntArray  # the requests of each worker by start, shape (G, most of a worker)
    counts: IntArray  # (G,)
    position: IntArray  # of each request in the order of the only worker
    large: IntArray  # large requests, on one worker by start
    place: IntArray  # of each request among the large ones by start, or -1
    usage: Usage  # what all hold: so many steps of each worker in turn
    best: IntArray
    best_placement: IntArray
    costs: FloatArray  # of both

    @classmethod
    def of(
        cls,
        starts: IntArray,
        placement: IntArray,
        usage: Usage,
        workers: int,
        cost: float,
        large: IntArray | tuple[()] = (),
    ) -> Moves:
        """Begin with a schedule."""
        counts = np.bincount(placement, minlength=workers)
        orders = np.zeros((workers, min(len(starts), 2 * int(counts.max())) + _SPARE), np.int64)
        for worker, count in enumerate(counts):
            requests = np.flatnonzero(placement == worker)
            orders[worker, :count] = requests[np.argsort(starts[requests], kind="stable")]
        position, place = np.full((2, len(starts)), -1)
        chosen = np.array(large, dtype=np.int64)
        if workers == 1:
            position[orders[0, : counts[0]]] = np.arange(counts[0])
            chosen = chosen[np.argsort(position[chosen])]
            place[chosen] = np.arange(len(chosen))
        return cls(
            starts.copy(),
            placement.copy(),
            orders,
            counts,
            position,
            chosen,
            place,
            usage,
            starts.copy(),
            placement.copy(),
            np.array([cost, cost]),
        )


@compiled_inside
def is_new(taken: IntArray, number: int, request: int) -> bool:
    """Whether a request is not among those taken so far."""
    for rank in range(number):  # noqa: SIM110
        if taken[rank] == request:
            return False
    return True


@compiled_inside
def shuffle(values: IntArray, number: int, random: RandomState) -> None:
    """Bring the first values into random order."""
    for rank in range(number - 1, 0, -1):
        swap = int(uniform(random) * (rank + 1))
        values[rank], values[swap] = values[swap], values[rank]


@compiled_inside
def _draw(
    order: IntArray, low: int, high: int, wanted: int, taken: IntArray, random: RandomState
) -> int:
    """Draw some distinct requests from positions low to high; return their number."""
    wanted = min(wanted, high - low + 1)
    number = 0
    while number < wanted:
        request = order[low + int(uniform(random) * (high - low + 1))]
        if is_new(taken, number, request):
            taken[number] = request
            number += 1
    return number


@compiled_inside
def _begin_with_first(
    starts: IntArray,
    arrivals: IntArray,
    delay: int,
    taken: IntArray,
    number: int,
    begin: IntArray,
    random: RandomState,
) -> None:
    """Let requests begin when the first of them had started, some of them later."""
    earliest = starts[taken[0]]
    for rank in range(1, number):
        earliest = min(earliest, starts[taken[rank]])
    for rank in range(number):
        begin[rank] = max(earliest, arrivals[taken[rank]])
        if delay and uniform(random) < 0.5:
            begin[rank] += int(uniform(random) * (delay + 1))


@compiled_inside
def _take_large(
    large: IntArray,
    starts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    span: int,
    taken: IntArray,
    begin: IntArray,
    random: RandomState,
) -> tuple[int, int]:
    """Choose large requests, and from when each may start; return their number and the least."""
    centre = int(uniform(random) * len(large))
    if uniform(random) < 0.6:
        low, high = max(0, centre - _REACH_LARGE), min(len(large) - 1, centre + _REACH_LARGE)
        number = _draw(large, low, high, 1 + int(uniform(random) * (_MAX_TAKEN - 1)), taken, random)
        earliest = starts[taken[0]]
        for rank in range(1, number):
            earliest = min(earliest, starts[taken[rank]])
        if uniform(random) < 0.3:
            earliest = max(0, earliest - int(uniform(random) * span))
    else:
        # One that waits comes earlier, and pushes away some that run then.
        request = large[centre]
        earliest = starts[request]
        earliest -= int(uniform(random) ** 2 * (earliest - arrivals[request]))
        taken[0], number = request, 1
        wanted = 1 + int(uniform(random) * 4)
        for _ in range(2 * _MAX_TAKEN):
            other = large[max(0, centre - 1 - int(uniform(random) * _BEFORE))]
            runs = starts[other] < earliest + outputs[request]
            runs = runs and starts[other] + outputs[other] > earliest
            if runs and number < wanted and is_new(taken, number, other):
                taken[number] = other
                number += 1
    for rank in range(number):
        begin[rank] = max(earliest, arrivals[taken[rank]])
        if uniform(random) < 0.2:
            begin[rank] += int(uniform(random) ** 2 * span)
    return number, earliest


@allocating_inside
def _take_small(
    order: IntArray,
    place: IntArray,
    starts: IntArray,
    arrivals: IntArray,
    earliest: int,
    taken: IntArray,
    begin: IntArray,
    number: int,
    random: RandomState,
) -> int:
    """Add small requests in the way of the large ones taken; return the number of all."""
    low = first_from(starts, order, earliest)
    small = 0
    first = uniform(random) < 0.5  # the small ones are put back before the large ones
    for at in range(low, min(len(order), low + int(uniform(random) * _SMALL))):
        request = order[at]
        if place[request] < 0:
            taken[number + small] = request
            begin[number + small] = max(earliest, arrivals[request])
            small += 1
    count = number + small
    if first and small:
        requests, steps = taken[:count].copy(), begin[:count].copy()
        for rank in range(count):
            taken[(rank + small) % count] = requests[rank]
            begin[(rank + small) % count] = steps[rank]
    return count


@compiled_inside
def _take_near(
    request: int,
    starts: IntArray,
    placement: IntArray,
    orders: IntArray,
    counts: IntArray,
    arrivals: IntArray,
    delay: int,
    taken: IntArray,
    begin: IntArray,
    random: RandomState,
) -> tuple[int, int]:
    """Choose requests that start near one, there or on another worker; return how many, and it."""
    one = placement[request]
    other = int(uniform(random) * len(counts)) if uniform(random) < _TWO else one
    wanted = 1 + int(uniform(random) * _MAX_TAKEN)
    taken[0], number = request, 1
    for _ in range(wanted - 1):
        worker = one if uniform(random) < 0.5 else other
        count = counts[worker]
        if count == 0:
            continue
        order = orders[worker, :count]
        place = first_from(starts, order, starts[request])
        place += int(uniform(random) * (2 * _REACH + 1)) - _REACH
        near = order[min(max(place, 0), count - 1)]
        if is_new(taken, number, near):
            taken[number] = near
            number += 1
    shuffle(taken, number, random)
    _begin_with_first(starts, arrivals, delay, taken, number, begin, random)
    return number, other


@compiled_inside
def _relocate(
    starts: IntArray,
    placement: IntArray,
    orders: IntArray,
    counts: IntArray,
    request: int,
    start: int,
    worker: int,
) -> None:
    """Move a request to another start and worker, in the orders too."""
    order, count = orders[placement[request]], counts[placement[request]]
    place = first_from(starts, order[:count], starts[request])
    while order[place] != request:
        place += 1
    for later in range(place, count - 1):
        order[later] = order[later + 1]
    counts[placement[request]] -= 1
    order, count = orders[worker], counts[worker]
    place = first_from(starts, order[:count], start)
    for later in range(count, place, -1):
        order[later] = order[later - 1]
    order[place] = request
    counts[worker] += 1
    starts[request], placement[request] = start, worker


@compiled_inside
def _resort(order: IntArray, position: IntArray, starts: IntArray, request: int) -> None:
    """Move a request whose start has changed to its place in the order by start."""
    place, start = position[request], starts[request]
    while place > 0 and starts[order[place - 1]] > start:
        order[place] = order[place - 1]
        position[order[place]] = place
        place -= 1
    while place < len(order) - 1 and starts[order[place + 1]] < start:
        order[place] = order[place + 1]
        position[order[place]] = place
        place += 1
    order[place] = request
    position[request] = place


@allocating
def move_starts(
    requests: SearchRequests,
    places: SearchWorkers,
    prices: PriceSums,
    state: Moves,
    share: float,
    delay: int,
    random: RandomState,
    leg: Leg,
) -> float:
    """Move requests until the work of a leg is done; return the work."""
    # A share of the moves begins with a large request; requests are put back later than they could
    # by up to a delay.
    prompts, outputs, arrivals, costs, _, due = requests
    memories, kinds, allowed = places
    total, moment = prices
    starts, placement, orders, counts, position, large, place, usage, best, _, met = state
    best_placement = state.best_placement
    workers = len(memories)
    steps = len(usage) // workers
    count = _MAX_TAKEN + _SMALL
    taken, begin = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    # Starts as places in the usage.
    old, new = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    order = orders[0, : counts[0]]
    span = 0
    for at in range(len(large)):
        span += outputs[large[at]]
    if len(large):
        span = int(span / len(large))
    at_best = met[0] == met[1]
    spent = 0.0
    one = other = 0
    while spent < leg.work:
        temperature = temperature_after(leg, spent)
        # Choose requests, and from when each may start.
        if workers > 1:
            if uniform(random) < share:
                request = large[int(uniform(random) * len(large))]
            else:
                request = int(uniform(random) * len(starts))
            one = placement[request]
            number, other = _take_near(
                request, starts, placement, orders, counts, arrivals, delay, taken, begin, random
            )
        elif share > 0 and uniform(random) < share:
            number, earliest = _take_large(
                large, starts, outputs, arrivals, span, taken, begin, random
            )
            if uniform(random) >= 0.5:
                number = _take_small(
                    order, place, starts, arrivals, earliest, taken, begin, number, random
                )
        else:
            # Some that start near each other.
            centre = int(uniform(random) * len(order))
            low, high = max(0, centre - _REACH), min(len(order) - 1, centre + _REACH)
            number = _draw(order, low, high, 1 + int(uniform(random) * _MAX_TAKEN), taken, random)
            _begin_with_first(starts, arrivals, delay, taken, number, begin, random)
        # Take them out.
        before, rest = 0.0, 0.0
        for rank in range(number):
            request = taken[rank]
            prompt, output, start = prompts[request], outputs[request], starts[request]
            before += cost_of_start(costs, request, start)
            before += price_of_start(prompt, output, start, total, moment)
            rest += cost_of_start(costs, request, begin[rank])
            old[rank] = placement[request] * steps + start
            add_usage(usage, prompt, output, old[rank], -1)
            spent += STEP_WORK * output
        # Put them back in this order, each as soon as it fits; `rest` is the least the others add.
        budget = before - temperature * math.log(1.0 - uniform(random))
        after = 0.0
        placed = 0
        for rank in range(number):
            request = taken[rank]
            prompt, output = prompts[request], outputs[request]
            rest -= cost_of_start(costs, request, begin[rank])
            latest = latest_within(costs, request, budget - after - rest)
            latest = min(latest, steps - 2 - output, due[request])
            start = -1
            for turn in range(2 if one != other else 1):
                worker = other if turn else one
                if allowed[kinds[request], worker]:
                    end = latest if start < 0 else start - 1
                    base = worker * steps
                    at = earliest_fit(
                        usage, memories[worker], prompt, output, base + begin[rank], base + end
                    )
                    if at >= 0:
                        start, new[rank] = at - base, at
            spent += STEP_WORK * output
            if workers > 1:
                last = latest if start < 0 else start  # before `begin` where nothing was looked at
                spent += STEP_WORK * max(output + last - begin[rank], 0)
            if start < 0:
                break
            after += cost_of_start(costs, request, start)
            after += price_of_start(prompt, output, start, total, moment)
            add_usage(usage, prompt, output, new[rank], 1)
            placed += 1
        spent += MOVE_WORK
        room = orders.shape[1] - number
        if placed < number or after > budget or counts[one] > room or counts[other] > room:
            # Take those out again that are placed so far, and put all back where they were.
            for rank in range(placed):
                request = taken[rank]
                add_usage(usage, prompts[request], outputs[request], new[rank], -1)
            for rank in range(number):
                request = taken[rank]
                add_usage(usage, prompts[request], outputs[request], old[rank], 1)
            continue
        # Accept; the best schedule is written down when it is left.
        if after > before and at_best:
            copy(starts, best, 0, len(starts))
            copy(placement, best_placement, 0, len(starts))
            at_best = False
        met[0] += after - before
        for rank in range(number):
            request = taken[rank]
            worker = new[rank] // steps
            start = new[rank] - worker * steps
            if workers > 1:
                _relocate(starts, placement, orders, counts, request, start, worker)
                continue
            starts[request] = start
            _resort(order, position, starts, request)
            if place[request] >= 0:
                _resort(large, place, starts, request)
        if met[0] < met[1]:
            met[1] = met[0]
            at_best = True
    if at_best:
        copy(starts, best, 0, len(starts))
        copy(placement, best_placement, 0, len(starts))
    return spent


_CHUNKS = 20  # looks at the clock
_WINDOW_HOT, _WINDOW_COLD = 0.15, 0.01  # temperatures, in mean outputs


def search_window(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    prices: PriceSums,
    order: IntArray,
    hint: IntArray,
    *,
    work: float,
    deadline: float,
    seed: int = 0,
) -> tuple[IntArray, bool]:
    """Find starts of small cost, and whether the time was up before the work was done."""
    last = np.lexsort((np.argsort(order), hint))
    plans = [(order, True), (order, False)] + [(last, False)] * bool((hint >= 0).any())
    best, least = np.zeros(0, dtype=np.int64), np.inf
    for ordered, prefix in plans:
        starts = np.zeros(len(prompts), dtype=np.int64)
        place_in_order(prompts, outputs, memory, usage, ordered, prefix, starts)
        add_all(prompts, outputs, usage, starts, -1)
        cost = priced_cost(prompts, outputs, prices, starts)
        if cost < least:
            best, least = starts, cost
    if len(prompts) < 2 or least == 0:  # nothing to exchange, or all start now for nothing
        return best, False
    add_all(prompts, outputs, usage, best, 1)
    none = np.zeros(len(prompts), dtype=np.int64)
    costs = StartCosts.plain(np.ones(len(prompts)))
    requests = SearchRequests(prompts, outputs, none, costs, memory, none + MAX_STEPS)
    places = SearchWorkers(np.array([memory]), none, np.ones((1, 1), dtype=np.bool_))
    state = Moves.of(best, none, usage, 1, least)
    random, longest = new_random(seed), int(outputs.max())
    cooling = Cooling(float(outputs.mean()), _WINDOW_HOT, _WINDOW_COLD)
    for chunk in range(_CHUNKS):
        if stopwatch() >= deadline:
            return state.best, True
        leg = cooling.leg(work * WORK_PER_SECOND / _CHUNKS, chunk / _CHUNKS, (chunk + 1) / _CHUNKS)
        move_starts(requests, places, prices, state, 0.0, longest, random, leg)
    return state.best, False


@compiled
def priced_cost(prompts: IntArray, outputs: IntArray, prices: PriceSums, starts: IntArray) -> float:
    """Return the sum of all starts and of what their memory costs."""
    total, moment = prices
    cost = 0.0
    for request in range(len(starts)):
        start = starts[request]
        cost += start + price_of_start(prompts[request], outputs[request], start, total, moment)
    return cost


@compiled
def place_in_order(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    order: IntArray,
    prefix: bool,
    starts: IntArray,
) -> None:
    """Start each at its first feasible step, by the prefix rule none before the one before it."""
    clock = 0
    for request in order:
        output = outputs[request]
        latest = len(usage) - 2 - output
        start = earliest_fit(usage, memory, prompts[request], output, clock, latest)
        add_usage(usage, prompts[request], output, start, 1)
        starts[request] = start
        if prefix:
            clock = start


@allocating
def admit_now(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    order: IntArray,
    ratio: float,
    length: int,
) -> IntArray:
    """Start requests at step 0 by the window rule, and add them to the usage; return which."""
    started = np.empty(len(order), dtype=np.int64)
    count = passed = 0
    most = 0.0
    for request in order:
        prompt, output = prompts[request], outputs[request]
        area = prompt * output + output * (output + 1) // 2
        if passed == 0:
            most = ratio * area
        step = 1
        while area <= most and step <= output and usage[step] + prompt + step <= memory:
            step += 1
        if step > output:
            add_usage(usage, prompt, output, 0, 1)
            started[count] = request
            count += 1
            continue
        passed += 1
        if passed == length:
            break
    return started[:count].copy()


@compiled
def add_all(
    prompts: IntArray, outputs: IntArray, usage: Usage, starts: IntArray, sign: int
) -> None:
    """Add the memory of all to the usage, or with the sign -1 remove it."""
    for request in range(len(starts)):
        add_usage(usage, prompts[request], outputs[request], starts[request], sign)
