"""The configuration-size bound (docs/bounds.md): what running requests are worth, by their state.

Prices and sizes are improved together by projected subgradient ascent with Adam's steps (Kingma and
Ba, 2015). For the makespan the best sizes are a linear program with a row for each set of items
that can run together: a dynamic program finds rows that are broken, and HiGHS solves those found.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import FloatArray, IntArray, Scalar, require_room
from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, compiled, compiled_inside
from optsched._internal.numbers import round_down
from optsched._internal.small_kernels import copy
from optsched.bounds.ascent import Bound, bound_makespan, busy_since
from optsched.bounds.bound import bound
from optsched.certificates.prices import (
    Certificate,
    ConfigurationCertificate,
    items,
)
from optsched.errors import CertificateError, OptschedError
from optsched.problem.workers import Workers

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.problem.instance import Instance

_TERMS = 50_000_000  # of one evaluation of all starts
_CHUNK = 8  # iterations between two looks at the clock
_EXACT = 2**61
_PRICE_STEP, _SIZE_STEP = 0.3, 0.12  # lengths of Adam's first steps, as shares of the means
_LONGER = 1.25  # horizon of the prices over that of the Lagrangian bound
_SCARCE = 0.6  # of the memory of several workers, for prices to begin with
_CELLS = 100_000_000  # of one dynamic program
_LAST_STEP = 0.005  # what is left of the lengths of the steps in the end
_MEAN, _SQUARE = 0.9, 0.999  # Adam's memories


def configuration_bound(
    instance: Instance,
    *,
    workers: Workers | None = None,
    share: float = 1.0,
    phases: int = 16,
    iterations: int = 1500,
    time_limit: float | None = None,
    start: Certificate | ConfigurationCertificate | None = None,
    on_progress: Callable[[float, float], None] | None = None,
    stop: threading.Event | None = None,
) -> Bound:
    """Bound the total latency by sizes of running requests, on one worker or on equal ones."""
    began = stopwatch()
    if phases < 1 or iterations < 0:
        raise OptschedError(
            f"phases is {phases} and iterations {iterations}, but need at least 1 and 0"
        )
    fingerprint = instance.fingerprint
    if workers is not None:
        fingerprint = workers.fingerprint(instance)
        instance = instance.replace(memory=workers.memories[0])
    problem = Problem.of(instance, 1 if workers is None else len(workers))
    point = _first_point(instance, problem, phases, start, fingerprint)
    # Where the ascent ends depends on where it begins.
    point = point._replace(prices=share * point.prices)
    lengths = _PRICE_STEP * float(point.prices.mean()), _SIZE_STEP * float(point.sizes.mean())
    state = AscentState.at(point.prices, point.sizes)
    done = 0
    interrupted = False
    try:
        # Where nothing is charged, nothing competes.
        while done < iterations and point.prices.any():
            chunk = min(_CHUNK, iterations - done)
            best = ascend(
                problem, point.ends, point.copies, state, done, chunk, iterations, *lengths
            )
            done += chunk
            seconds = stopwatch() - began
            if on_progress is not None:
                on_progress(seconds, best)
            late = time_limit is not None and seconds >= time_limit
            if late or (stop is not None and stop.is_set()):
                break
    except KeyboardInterrupt:
        interrupted = True
    found = Point(state.best_prices, state.best_sizes, point.ends, point.copies)
    certificate = certify_configuration(instance, problem, found, fingerprint)
    value, seconds = round_down(certificate.value), stopwatch() - began
    return Bound(value, "configuration", seconds, certificate, interrupted)


class Point(NamedTuple):
    """Prices and sizes, with the phases: steps ends[p - 1] + 1 to ends[p] are phase p."""

    prices: FloatArray  # (T,)
    sizes: FloatArray  # (phases, items)
    ends: IntArray
    copies: IntArray


def _first_point(
    instance: Instance,
    problem: Problem,
    phases: int,
    start: Certificate | ConfigurationCertificate | None,
    fingerprint: str,
) -> Point:
    pool = instance.replace(memory=instance.memory * problem.workers)
    if start is not None and start.fingerprint not in (fingerprint, pool.fingerprint):
        raise CertificateError("the certificate to start from belongs to another instance")
    if not isinstance(start, ConfigurationCertificate) or not start.prices:
        certificate = start if isinstance(start, Certificate) else None
        if problem.workers > 1:
            # Requests compete on each worker where all memory together would be enough.
            scarce = max(instance.memory, int(_SCARCE * pool.memory))
            certificate = bound(pool.replace(memory=scarce), "lagrangian").prices
        certificate = certificate or bound(pool, "lagrangian").prices
        assert certificate is not None
        # An item's size is the share of the memory that it holds; all together are 1 at most.
        prices = np.array(certificate.prices, dtype=np.float64)
        prices *= instance.memory / certificate.denominator
        prices = np.concatenate([prices, np.zeros(int((_LONGER - 1) * len(prices)) + 1)])
        sizes = (problem.tokens / instance.memory)[None]
        old = np.zeros(len(prices), dtype=np.int64)
    else:
        prices = np.array(start.prices, dtype=np.float64) / start.price_denominator
        sizes = np.array(start.sizes, dtype=np.float64) / start.size_denominator
        old = np.searchsorted(start.ends, np.arange(1, len(prices) + 1))
    if len(prices) * int(problem.outputs.sum()) > _TERMS:
        raise too_large(instance)
    ends = _split(prices, phases)
    return Point(prices, sizes[old[ends - 1]], ends, problem.copies(ends))


def _split(prices: FloatArray, phases: int) -> IntArray:
    """Return the last steps of phases of about equal sums of prices."""
    paid = np.cumsum(prices)
    if not len(prices) or paid[-1] == 0:
        return np.array([len(prices)])
    phase = np.minimum((paid - prices / 2) / paid[-1] * phases, phases - 1).astype(np.int64)
    ends: IntArray = np.append(np.flatnonzero(np.diff(phase)) + 1, len(prices))
    return ends


def certify_configuration(
    instance: Instance, problem: Problem, point: Point, fingerprint: str | None = None
) -> ConfigurationCertificate:
    """Round prices and sizes to integers and evaluate the bound at them exactly."""
    count, horizon = len(instance), len(point.prices)
    widest = float(point.sizes.max(initial=1.0)) + 1.0
    reach = horizon + float(instance.arrivals[-1]) + float(instance.outputs.max()) + 1.0
    spent = float(point.prices.sum()) + horizon + 1.0
    room = _EXACT / (max(count, problem.workers) * (reach + spent * widest * problem.width))
    if room < 2**12:
        raise too_large(instance)
    bits = int(math.log2(room))
    size_unit, price_unit = 2 ** min(24, bits // 2), 2 ** min(24, bits - bits // 2)
    prices = np.rint(point.prices * price_unit).astype(np.int64)
    sizes = np.rint(point.sizes * size_unit).astype(np.int64)
    capacities = largest_sets(problem, sizes, point.copies)
    phase = np.searchsorted(point.ends, np.arange(1, horizon + 1))
    costs = start_costs(problem, prices, phase, sizes, price_unit * size_unit)
    supply = problem.workers * int(prices @ capacities[phase])
    total = int((problem.counts * costs.min(axis=1)).sum()) - supply
    return ConfigurationCertificate(
        price_unit,
        size_unit,
        tuple(prices.tolist()),
        tuple(point.ends.tolist()),
        tuple(map(tuple, sizes.tolist())),
        fingerprint or instance.fingerprint,
        Fraction(total, price_unit * size_unit),
    )


class Problem(NamedTuple):
    """The requests as the kernels see them: groups of equal requests, and items."""

    limit: int
    width: int  # at least the number of items that can run together
    tokens: IntArray  # of each item
    left: IntArray
    outputs: IntArray  # of each group
    arrivals: IntArray
    counts: IntArray
    first: IntArray
    place: IntArray
    workers: int  # equal ones
    group: IntArray  # of each request

    @classmethod
    def of(cls, instance: Instance, workers: int = 1) -> Problem:
        """Group the requests of an instance."""
        rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals])
        groups, group, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        prompts, outputs, arrivals = groups.T.copy()
        if outputs.sum() * (instance.memory + 1) > _CELLS:
            raise too_large(instance)
        pairs = items(instance)
        first = np.cumsum(outputs) - outputs
        token = np.arange(outputs.sum()) - np.repeat(first, outputs) + 1
        left = np.repeat(outputs, outputs) - token
        # Rows of `pairs` go by decreasing steps left, then by tokens.
        key = (pairs[:, 1].max() - pairs[:, 1]) * (instance.memory + 1) + pairs[:, 0]
        wanted = (pairs[:, 1].max() - left) * (instance.memory + 1)
        place = np.searchsorted(key, wanted + np.repeat(prompts, outputs) + token)
        # No more run together than the lightest requests at their first step.
        lightest = np.cumsum(np.sort(instance.prompts + 1))
        width = max(1, int(np.searchsorted(lightest, instance.memory, side="right")))
        if len(pairs) * (width + 1) * (instance.memory + 1) > _CELLS:
            raise too_large(instance)
        tokens, left = pairs.T.copy()
        requests = outputs, arrivals, counts, first, place
        return cls(instance.memory, width, tokens, left, *requests, workers, group.reshape(-1))

    def copies(self, ends: IntArray) -> IntArray:
        """Count how many requests can be each item by the end of each phase, or fit as such."""
        return self.available(np.repeat(self.arrivals, self.outputs) + self.token, ends)

    @property
    def token(self) -> IntArray:
        """Number of the step in which a request is the item of `place`."""
        token: IntArray = np.arange(len(self.place)) - np.repeat(self.first, self.outputs) + 1
        return token

    def available(self, reached: IntArray, ends: IntArray) -> IntArray:
        """Count how many requests can be each item if their states are reached at given steps."""
        counts = np.zeros((len(ends), len(self.tokens)), dtype=np.int64)
        for phase, end in enumerate(ends.tolist()):
            there = np.repeat(self.counts, self.outputs) * (reached <= end)
            np.add.at(counts[phase], self.place, there)
        fitting: IntArray = np.minimum(counts, self.limit // (self.tokens + self.left))
        return fitting


def too_large(instance: Instance) -> OptschedError:
    """Say that the dynamic program is out of reach."""
    return OptschedError(
        f"a memory of {instance.memory:,} and {int(instance.outputs.sum()):,} output tokens are "
        "too much for the dynamic program of the configuration bound; use bound(instance)"
    )


class AscentState(NamedTuple):
    """Where the ascent is, Adam's means, and the best point met."""

    prices: FloatArray
    sizes: FloatArray
    price_mean: FloatArray
    price_square: FloatArray
    size_mean: FloatArray
    size_square: FloatArray
    best_prices: FloatArray
    best_sizes: FloatArray
    best: FloatArray  # (1,)

    @classmethod
    def at(cls, prices: FloatArray, sizes: FloatArray) -> AscentState:
        """Begin at a point."""
        flat = np.zeros_like
        means = flat(prices), flat(prices), flat(sizes), flat(sizes)
        best = prices.copy(), sizes.copy(), np.full(1, -np.inf)
        return cls(prices.copy(), sizes.copy(), *means, *best)


def largest_sets(problem: Problem, sizes: IntArray, copies: IntArray) -> IntArray:
    """Return the largest total size of items that can run together in each phase, exactly."""
    chosen = np.zeros(problem.width, dtype=np.int64)
    phases = zip(sizes, copies, strict=True)
    return np.array([largest_set(problem, *phase, chosen) for phase in phases], dtype=np.int64)


def start_costs(
    problem: Problem, prices: IntArray, phase: IntArray, sizes: IntArray, unit: int
) -> IntArray:
    """Return latency times unit plus price paid, by group and start 0 .. max(T, last arrival)."""
    last = max(len(prices), int(problem.arrivals.max()))
    starts = (last + 1) * len(problem.outputs)
    require_room(starts, 8, "starts to price", "use longer steps or the method lagrangian")
    costs = np.full((len(problem.outputs), last + 1), np.iinfo(np.int64).max)
    _add_prices(problem, prices, phase, sizes, unit, costs)
    return costs


def charges_of_starts(
    certificate: ConfigurationCertificate, instance: Instance, workers: Workers
) -> tuple[IntArray, IntArray, int]:
    """Return what a certificate charges each group for starts, the groups, and the unit."""
    problem = Problem.of(instance.replace(memory=workers.memories[0]), len(workers))
    unit = certificate.price_denominator * certificate.size_denominator
    prices = np.array(certificate.prices, dtype=np.int64)
    shape = len(certificate.ends), len(problem.tokens)  # also where there is nothing
    sizes = np.array(certificate.sizes, dtype=np.int64).reshape(shape)
    phase = np.searchsorted(certificate.ends, np.arange(1, len(prices) + 1))
    return start_costs(problem, prices, phase, sizes, unit), problem.group, unit


@compiled
def _add_prices(
    problem: Problem, prices: IntArray, phase: IntArray, sizes: IntArray, unit: int, costs: IntArray
) -> None:
    horizon, place = len(prices), problem.place
    for group in range(len(problem.outputs)):
        output, arrival = problem.outputs[group], problem.arrivals[group]
        first = problem.first[group]
        for start in range(arrival, costs.shape[1]):
            cost = unit * (start + output - arrival)
            end = start + output if start + output < horizon else horizon
            for step in range(start, end):
                cost += prices[step] * sizes[phase[step], place[first + step - start]]
            costs[group, start] = cost


@allocating
def largest_set(
    problem: Problem, sizes: npt.NDArray[Scalar], copies: IntArray, chosen: IntArray
) -> Scalar:
    """Return the largest total size of items that can run together, in integers or doubles."""
    limit, width = problem.limit, problem.width
    tries = 0
    for item in range(len(sizes)):
        if sizes[item] > 0:
            tries += copies[item]
    best = np.empty((width + 1, limit + 1), dtype=sizes.dtype)
    best[:] = -1
    best[0, 0] = 0
    taken = np.empty((tries, width + 1, limit + 1), dtype=np.bool_)
    taken[:] = False
    fullest = np.empty(width + 1, dtype=np.int64)  # most tokens that are held by so many items
    fullest[:] = -1
    fullest[0] = 0
    attempt = 0
    for item in range(len(sizes)):
        size, tokens, left = sizes[item], problem.tokens[item], problem.left[item]
        if size <= 0:
            continue
        for _ in range(copies[item]):
            for count in range(min(width - 1, attempt), -1, -1):
                for held in range(min(limit - tokens - (count + 1) * left, fullest[count]), -1, -1):
                    old = best[count, held]
                    if old >= 0 and old + size > best[count + 1, held + tokens]:
                        best[count + 1, held + tokens] = old + size
                        taken[attempt, count + 1, held + tokens] = True
                        fullest[count + 1] = max(fullest[count + 1], held + tokens)
            attempt += 1
    count = held = 0
    for some in range(width + 1):
        for amount in range(fullest[some] + 1):
            if best[some, amount] > best[count, held]:
                count, held = some, amount
    value: Scalar = best[count, held]
    chosen[:] = -1
    for item in range(len(sizes) - 1, -1, -1):
        if sizes[item] <= 0:
            continue
        for _ in range(copies[item]):
            attempt -= 1
            if taken[attempt, count, held]:
                count -= 1
                held -= problem.tokens[item]
                chosen[count] = item
    return value


@allocating
def ascend(
    problem: Problem,
    ends: IntArray,
    copies: IntArray,
    state: AscentState,
    done: int,
    chunk: int,
    planned: int,
    price_step: float,
    size_step: float,
) -> float:
    """Take some steps of projected ascent from the state on; give the best value met so far."""
    prices, sizes = state.prices, state.sizes
    horizon, phases = len(prices), len(ends)
    phase = np.empty(horizon, dtype=np.int64)
    chosen = np.empty(problem.width, dtype=np.int64)
    excess = np.empty(horizon, dtype=np.float64)  # of what requests pay over the supply
    pushed = np.empty(sizes.shape, dtype=np.float64)
    number = 0
    for step in range(horizon):
        if step == ends[number]:
            number += 1
        phase[step] = number
    for iteration in range(done, done + chunk):
        pushed[:] = 0
        value = 0.0
        for number in range(phases):
            begin = 0 if number == 0 else ends[number - 1]
            mass = 0.0
            for step in range(begin, ends[number]):
                mass += prices[step]
            capacity = largest_set(problem, sizes[number], copies[number], chosen)
            for item in chosen:
                if item >= 0:
                    pushed[number, item] -= mass * problem.workers
            for step in range(begin, ends[number]):
                excess[step] = -capacity * problem.workers
            value -= mass * capacity * problem.workers
        value = _start_cheaply(problem, prices, sizes, phase, excess, pushed, value)
        if value > state.best[0]:
            state.best[0] = value
            copy(prices, state.best_prices, 0, horizon)
            copy(sizes.ravel(), state.best_sizes.ravel(), 0, sizes.size)
        shrink = _LAST_STEP ** (iteration / planned)
        _move(prices, state.price_mean, state.price_square, excess, iteration, price_step * shrink)
        _move(
            sizes.ravel(),
            state.size_mean.ravel(),
            state.size_square.ravel(),
            pushed.ravel(),
            iteration,
            size_step * shrink,
        )
    return float(state.best[0])


@compiled_inside
def _start_cheaply(
    problem: Problem,
    prices: FloatArray,
    sizes: FloatArray,
    phase: IntArray,
    excess: FloatArray,
    pushed: FloatArray,
    value: float,
) -> float:
    """Add what the cheapest start of each group costs to a value, and what it takes to slopes."""
    horizon, place = len(prices), problem.place
    for group in range(len(problem.outputs)):
        output, arrival = problem.outputs[group], problem.arrivals[group]
        first, count = problem.first[group], problem.counts[group]
        cheapest, at = np.inf, 0
        for start in range(arrival, max(horizon, arrival) + 1):
            cost = float(start + output - arrival)
            if cost >= cheapest:
                break  # prices are not negative
            for step in range(start, min(start + output, horizon)):
                cost += prices[step] * sizes[phase[step], place[first + step - start]]
            if cost < cheapest:
                cheapest, at = cost, start
        value += count * cheapest
        for step in range(at, min(at + output, horizon)):
            item = place[first + step - at]
            excess[step] += count * sizes[phase[step], item]
            pushed[phase[step], item] += count * prices[step]
    return value


@compiled_inside
def _move(
    values: FloatArray,
    mean: FloatArray,
    square: FloatArray,
    slope: FloatArray,
    iteration: int,
    length: float,
) -> None:
    # Adam's step, uphill, kept non-negative. What never had a slope stays where it is.
    one, two = 1 - _MEAN ** (iteration + 1), 1 - _SQUARE ** (iteration + 1)
    for index in range(len(values)):
        mean[index] = _MEAN * mean[index] + (1 - _MEAN) * slope[index]
        square[index] = _SQUARE * square[index] + (1 - _SQUARE) * slope[index] ** 2
        if square[index] > 0:
            move = length * (mean[index] / one) / (math.sqrt(square[index] / two) + 1e-9)
            values[index] = max(0.0, values[index] + move)


#: Tokens of a class of items, and the ratio of the steps left of the longest to the shortest.
_CLASSES = ((5, 1e9), (5, 2.0), (2, 2.0), (1, 2.0), (1, 1.2))
_BETWEEN = (0.2, 0.5, 1.0)  # shares of the way to the optimum of the rows that are known
_CLOSE = 2e-3  # between what holds and what the known rows allow
_LARGEST = 20.0  # size beside the share of the memory
_UNIT = 2**24  # of sizes in a certificate


def makespan_by_sizes(
    instance: Instance,
    over: Callable[[], bool],
    target: float = np.inf,
    workers: Workers | None = None,
) -> Bound:
    """Bound the makespan until it is proven, all classes are tried or it is over."""
    began = stopwatch()
    workers = workers or Workers([instance.memory])
    since = busy_since(workers.pool(instance))
    later = instance.take(np.flatnonzero(instance.arrivals >= since))
    problem = Problem.of(later.replace(memory=max(workers.memories)))
    search = _Sizes.of(problem, Counter(workers.memories))
    for tokens, ratio in _CLASSES:
        if over() or since + search.value >= target:
            break
        search = search.improved(_classes(problem, tokens, ratio), over, target - since)
    # HiGHS returns a tiny negative number for a size of 0.
    whole = np.floor(np.maximum(search.sizes, 0) * _UNIT).astype(np.int64)
    largest, _ = search.largest(whole)
    steps = Fraction(int(search.counts @ whole), max(int(largest), 1))
    return bound_makespan("sizes", instance, workers, since, steps, began, tuple(whole.tolist()))


def _classes(problem: Problem, tokens: int, ratio: float) -> IntArray:
    """Return the class of each item: those of about as many tokens and steps."""
    left = (np.log1p(problem.left) / np.log(ratio)).astype(np.int64)
    keys = np.stack([problem.tokens // tokens, left])
    _, classes = np.unique(keys, axis=1, return_inverse=True)
    return np.asarray(classes.reshape(-1))


class _Sizes(NamedTuple):
    """The best sizes that hold, and the sets of items that were found to run together."""

    problem: Problem
    memories: Counter[int]  # how many workers have each
    counts: IntArray  # steps that requests are each item
    copies: IntArray  # requests that may be
    shares: FloatArray  # of the memory of all workers
    sizes: FloatArray
    rows: list[tuple[IntArray, IntArray]]

    @classmethod
    def of(cls, problem: Problem, memories: Counter[int]) -> _Sizes:
        """Begin with shares of the memory."""
        counts = np.zeros(len(problem.tokens), dtype=np.int64)
        np.add.at(counts, problem.place, np.repeat(problem.counts, problem.outputs))
        copies = problem.copies(np.array([np.iinfo(np.int64).max]))[0]
        shares = problem.tokens / sum(memories.elements())
        return cls(problem, memories, counts, copies, shares, shares, [])

    @property
    def value(self) -> float:
        """Steps that all need."""
        return float(self.counts @ self.sizes)

    def largest(self, sizes: FloatArray | IntArray) -> tuple[float, tuple[IntArray, IntArray]]:
        """Return the largest total size of what can run on all workers, its items, how often."""
        total: float = 0  # exact where sizes are whole
        running = []
        chosen = np.zeros(self.problem.width, dtype=np.int64)
        for memory, workers in self.memories.items():
            problem = self.problem._replace(limit=memory)
            total += workers * largest_set(problem, sizes, self.copies, chosen)
            running.append(np.repeat(chosen[chosen >= 0], workers))
        return total, np.unique(np.concatenate(running), return_counts=True)

    def improved(self, classes: IntArray, over: Callable[[], bool], target: float) -> _Sizes:
        """Return the best sizes by class, or the best until it is over."""
        from optsched.solvers.backends.highs import of_one_thread

        best, number = self, int(classes.max()) + 1
        weights = np.bincount(classes, self.counts * self.shares)
        highs = of_one_thread()
        nothing = np.zeros(0)
        highs.addCols(
            number, -weights, np.zeros(number), np.full(number, _LARGEST), 0, *[nothing] * 3
        )

        def add(items: IntArray, times: IntArray) -> None:
            row = np.bincount(classes[items], times * self.shares[items], number)
            some = np.flatnonzero(row)
            highs.addRow(-np.inf, 1.0, len(some), some.astype(np.int32), row[some])

        for row in self.rows:
            add(*row)
        while not over() and best.value < target:
            highs.run()
            most = -highs.getInfo().objective_function_value
            if most - best.value <= _CLOSE * most:
                break
            found = np.array(highs.getSolution().col_value)[classes] * self.shares
            for share in _BETWEEN:
                tried = share * found + (1 - share) * best.sizes
                largest, row = self.largest(tried)
                self.rows.append(row)
                add(*row)
                if (tried := tried / largest) @ self.counts > best.value:
                    best = best._replace(sizes=tried)
        return best
