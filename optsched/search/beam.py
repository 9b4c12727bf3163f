"""Beam search over the starts of large requests; small ones are background.

A node has decided what starts before a step. It is judged by the latencies of what has started, the
price of the memory that it will still hold, and the least cost of every other request from that
step on. Narrow runs scatter, so many are made, and the better ones repeated with more width.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from optsched._internal.aside import Budget, stopwatch
from optsched._internal.small_kernels import PriceSums
from optsched.bounds.bound import bound, coarse_prices, smoothed
from optsched.errors import OptschedError
from optsched.problem.costs import StartCosts, weights_of
from optsched.problem.schedule import Schedule
from optsched.search import beam_kernels as kernels
from optsched.search.annealing import MAX_STEPS, add_all, empty_usage
from optsched.search.search import search

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.bounds.lagrangian import Objective
    from optsched.certificates.prices import Certificate
    from optsched.problem.instance import Instance
    from optsched.search.annealing import Usage


_CHUNK = 1e7  # work between two looks at the clock
_TABLE = 4_000_000  # entries of a table of least costs at most
_ROOM = 0.5  # share of the memory that requests may take that start as they arrive
_LATE = 0.1  # of the time for a run, by which it may end later, at the width of 1


class Background(NamedTuple):
    """Where small requests start, and what they hold."""

    starts: IntArray  # of all requests of the instance; only those of small ones count
    usage: Usage  # tokens held at steps 0, 1, ...


def background_of(schedule: Schedule, quantile: float) -> tuple[BoolArray, Background]:
    """Tell which requests are small, and let them start as they arrive or as in a schedule."""
    # With arrivals fewer are small where they would take much of the memory as they arrive; all of
    # them offline start where the schedule does.
    instance = schedule.instance
    small = instance.areas < np.quantile(instance.areas, quantile)
    if instance.arrivals.any():
        usage = _held(instance, small, instance.arrivals)
        if usage.max(initial=0) <= _ROOM * instance.memory:
            return small, Background(instance.arrivals, usage)
    return small, Background(schedule.starts, _held(instance, small, schedule.starts))


def _held(instance: Instance, chosen: BoolArray, starts: IntArray) -> Usage:
    """Return the tokens that some requests hold at each step from 0 on."""
    prompts, outputs, begins = instance.prompts[chosen], instance.outputs[chosen], starts[chosen]
    usage = empty_usage(int((begins + outputs).max(initial=0)) + 2)
    add_all(prompts, outputs, usage, begins, 1)
    return usage


def slices(starts: IntArray, each: float) -> IntArray:
    """Return where slices begin, with so many of some starts in each, and where the last ends."""
    # Half of them are spread evenly over time, and half over the starts.
    number, last = max(1, int(len(starts) / each)), int(starts.max()) + 1
    steps = np.arange(last)
    passed = 0.5 * steps / last + 0.5 * np.searchsorted(np.sort(starts), steps) / len(starts)
    begins = np.searchsorted(passed, np.arange(number) / number)
    return np.unique(np.append(begins[begins < last], [0, last]))


class Beam:
    """A beam of some width from the first slice on."""

    def __init__(
        self,
        instance: Instance,
        weights: FloatArray,
        prices: FloatArray,
        large: BoolArray,
        background: Background,
        begins: IntArray,
        width: int,
    ) -> None:
        if (most := int(background.usage.max(initial=0))) > instance.memory:
            raise OptschedError(
                f"the background of a beam holds {most} tokens at step "
                f"{int(background.usage.argmax())}, but the memory is {instance.memory}; start its "
                "requests later, or take fewer as small"
            )
        outputs, arrivals = instance.outputs[large], instance.arrivals[large]
        count = len(outputs)
        # Slices of the mean length go on until nothing is priced and all have arrived.
        self._slices = len(begins) - 1
        mean = -(-int(begins[-1]) // self._slices)
        end = max(len(prices), int(arrivals[-1]) + 1, int(begins[-1])) + 2 * mean
        begins = np.concatenate([begins, np.arange(begins[-1] + mean, end, mean)])
        self._rows = max(1, min(len(begins) - 1, _TABLE // count, 1 + math.isqrt(len(begins))))
        keys = np.random.default_rng(0).integers(1, 2**63, count).astype(np.uint64)
        sums = PriceSums.of(prices)
        self.large = kernels.Large(
            instance.prompts[large].copy(),
            outputs.copy(),
            arrivals.copy(),
            weights[large].copy(),
            instance.memory,
            background.usage,
            sums.total,
            sums.moment,
            np.empty((self._rows + 1, count), dtype=np.float32),
            begins,
            keys,
        )
        self._make_nodes(width, count, int(np.diff(begins).max()) + int(outputs.max()) + 1)

    def _make_nodes(self, width: int, count: int, reach: int) -> None:
        background = self.large.background[:reach]
        self.nodes = kernels.Nodes(
            usage=np.zeros((2, width, 2 * reach), dtype=np.int32),
            started=np.zeros((2, width, count), dtype=np.uint8),
            earliest=np.zeros((2, width, count), dtype=np.int32),
            costs=np.zeros((2, width)),
            values=np.zeros((2, width)),
            hashes=np.zeros((2, width), dtype=np.uint64),
            tails=np.full((2, width), -1),
        )
        self.nodes.usage[0, 0, : len(background)] = background
        self.counts = np.array([0, count, 0, 1, 0, 0, 0, reach])
        most = width * kernels.CHILDREN
        self._children = kernels.Children(
            values=np.empty(most),
            costs=np.empty(most),
            hashes=np.empty(most, dtype=np.uint64),
            parents=np.empty(most, dtype=np.int64),
            counts=np.empty(most, dtype=np.int64),
            requests=np.empty((most, kernels.MAX_STARTS), dtype=np.int64),
            starts=np.empty((most, kernels.MAX_STARTS), dtype=np.int64),
            heap=np.empty(most, dtype=np.int64),
        )
        self.active = kernels.Active(
            np.empty(count, dtype=np.int64), np.empty(count), np.arange(count)
        )
        self.log = kernels.Log(
            *(np.empty(64 * width * kernels.MAX_STARTS, dtype=np.int64) for _ in range(3))
        )
        self._width = width
        chunks = -(-(len(self.large.begins) - 1) // self._rows)
        self._corners = np.empty((chunks, count))  # least costs from the end of each chunk on

    def prepare(self, budget: Budget) -> None:
        """Find the least costs of starts from the end of each chunk of slices on."""
        large = self.large
        begun = np.maximum(large.begins[-1], large.arrivals)
        best = large.weights * (begun + large.outputs - large.arrivals)
        for chunk in range(len(self._corners) - 1, -1, -1):
            if budget.over:
                break
            self._corners[chunk] = best
            kernels.tabulate(large, self.active.waiting, chunk, best)

    def follow(self, budget: Budget, most: float) -> tuple[IntArray | None, float]:
        """Go to the end; return the starts of large requests, if there was time, and the work."""
        self.prepare(budget)
        counts, work, began = self.counts, float(self._rows * self._corners.size), stopwatch()
        end = budget._replace(deadline=budget.deadline + _LATE * (budget.deadline - began))
        while not counts[kernels.DONE]:
            work += self.load_chunk()
            self._keep_pace(began, budget.deadline)
            until = (int(counts[kernels.SLICE]) // self._rows + 1) * self._rows
            work += self.step(until, end, most - work)
            if work >= most or end.over:
                return None, work
        return self.starts(0), work

    def _keep_pace(self, began: float, deadline: float) -> None:
        """Go on with less width where the deadline would come before the end, after it with 1."""
        # The first slices take longer than others, and after half of them half the work is done.
        now, done = stopwatch(), int(self.counts[kernels.SLICE])
        left, needed = deadline - now, (now - began) * max(0, self._slices - done) / max(done, 1)
        if left <= 0:
            self._width = 1
        elif needed > left and done >= self._slices / 2:
            self._width = max(1, int(self._width * left / needed))

    def load_chunk(self) -> int:
        """Tabulate the least costs for the chunk of slices that begins; return the work."""
        chunk = int(self.counts[kernels.SLICE]) // self._rows
        if chunk < len(self._corners):
            active, waiting = int(self.counts[kernels.ACTIVE]), int(self.counts[kernels.WAITING])
            ahead = np.append(self.active.requests[:active], self.active.waiting[:waiting])
            kernels.tabulate(self.large, ahead, chunk, self._corners[chunk].copy())
        return self.large.later.size

    def step(self, until: int, budget: Budget, most: float) -> float:
        """Go on to a slice, at most to the end of the chunk; return the work."""
        counts, width, work = self.counts, self._width, 0.0
        while (
            counts[kernels.SLICE] < until
            and not counts[kernels.DONE]
            and work < most
            and not budget.over
        ):
            if counts[kernels.LOGGED] + width * kernels.MAX_STARTS > len(self.log.starts):
                self.log = kernels.Log(*(np.append(each, np.empty_like(each)) for each in self.log))
            work += kernels.sweep(
                self.large,
                self.nodes,
                self._children,
                self.active,
                self.log,
                counts,
                width,
                until,
                _CHUNK,
            )
        return work

    def starts(self, node: int) -> IntArray:
        """Return the starts of the large requests in a node, -1 where it has not started one."""
        starts = np.full(len(self.large.prompts), -1)
        at = self.nodes.tails[self.counts[kernels.SLICE] % 2, node]
        while at >= 0:
            starts[self.log.requests[at]] = self.log.starts[at]
            at = self.log.before[at]
        return starts


_ROUNDS = 300  # of an ascent on a coarse grid
_CELLS, _CELLS_MANY, _MANY = 25, 12, 5_000  # in an output; fewer from so many requests on
_SMOOTH = 4  # cells over which its prices are smoothed
# Settings to try: what is added to the share of memory that a known schedule makes use of;
# quantiles of memory-time from which requests are large; and large requests for each slice.
_MEMORY, _MEMORY_ARRIVALS = (0.0, -0.02, 0.02), (0.02, 0.045, 0.0)
_QUANTILES, _QUANTILES_ARRIVALS = (0.7, 0.6, 0.85), (0.7, 0.55, 0.75)
_STARTS, _STARTS_ARRIVALS = (0.1, 0.15, 0.2), (0.7, 1.0, 0.4)
_MANY_OFFLINE = 10_000  # requests from which slices hold fewer of more that wait
_NEAR = 0.007, 0.05, 0.2  # by which shares and quantiles, and relatively starts, vary by seed
_WORK_OF_WINDOWS = 2.5e5  # for each request, from which windows slide with arrivals
_NODES = 0.35  # share of the work before they do, of fewer than many requests
_FEW_PLANS, _TRIED = 2, 0.4  # that first runs keep, and their share of the work
_MANY_PLANS, _MOST_PLANS = 40, 100  # with more, another setting gains more; and at most
_NARROW, _WIDE, _WIDEST = 10, 100, 1000  # width of the first run, of one without others, of any
_POLISH = 0.1  # of the work of a run, for a search from what it found
_HOPELESS = 1.05  # times the cost of the start, beyond which more width does not help
_GAINS = 0.997  # times the cost of the start, below which width offline gains more than a choice
_DEARER = 1.2  # offline wide runs take so much more for their width than narrow ones
_WIDER = 3  # times the width of the runs before, for a third as many


class Setting(NamedTuple):
    """What a run of the beam goes by."""

    share: float  # of the memory that the prices are for
    quantile: float
    starts: float  # large requests for each slice, or 0 for windows that slide


class BeamRun(NamedTuple):
    """What a run of the beam has found, if it got to the end, and what it took."""

    schedule: Schedule | None
    work: float
    seconds: float = 0.0


def start_by_beam(
    start: Schedule, certificate: Certificate, budget: Budget, seed: int = 0, threads: int = 1
) -> Schedule:
    """Return the best schedule of several runs, or the start if none gets to its end."""
    # It may cost more than the start, which has often been searched: a search from it may find more
    # than one from the start. Deadlines are not respected.
    if start.instance.memory >= 2**31 or start.makespan > MAX_STEPS:
        return start
    runs = _Runs(start, certificate, budget, seed, threads)
    memory = _MEMORY_ARRIVALS if runs.arriving else _MEMORY
    settings = _settings(start.instance, [runs.usage() + each for each in memory], seed)
    work = budget.work
    sliding = runs.arriving and work >= _WORK_OF_WINDOWS * len(start.instance)
    rest = (1 - _NODES) * work if sliding else 0.0
    runs.left -= rest
    if not sliding or len(start.instance) < _MANY:
        _by_nodes(runs, settings)
    runs.left += rest
    if sliding:
        _by_windows(runs, [each._replace(starts=0.0) for each in settings])
    return runs.best


def _by_windows(runs: _Runs, settings: list[Setting]) -> None:
    """Slide windows at several settings, and with the rest of the work at the best ones."""
    runs.follow(settings[:1], _FEW_PLANS)
    unit = max(runs.done, 1.0) / _FEW_PLANS
    number = min(len(settings), 1 + int(_TRIED * runs.ahead / unit / _FEW_PLANS))
    runs.follow(settings[1:number], _FEW_PLANS)
    plans = int(runs.ahead / unit)
    best = [each for each in runs.ranked() if not each.starts][: max(1, plans // _MANY_PLANS)]
    if best and (width := min(plans // len(best), _MOST_PLANS)) > _FEW_PLANS:
        runs.follow(best, width)


def _by_nodes(runs: _Runs, settings: list[Setting]) -> None:
    """Follow narrow beams, and wider ones at the better settings."""
    # The first run says what others will take; all rounds of them take about as much.
    runs.follow(settings[:1], _NARROW)
    unit, number = max(runs.done, 1.0) / _NARROW, len(settings)
    rounds = 1 + round(math.log(max(1.0, number / runs.threads), _WIDER))
    if not runs.arriving and runs.ratio < _GAINS and runs.ahead > _WIDE * unit:
        # Width gains more than a choice.
        number, rounds = min(number, max(runs.threads, round(runs.ahead / unit / _WIDEST))), 1
        unit *= _DEARER
    width = min(_WIDEST, int(runs.ahead / unit / (rounds * number)))
    if width > _NARROW:
        runs.follow(settings[:number], width)
    else:
        width = _NARROW
        number = min(number, 1 + max(0, int(runs.ahead / unit / (rounds * width))))
        runs.follow(settings[1:number], width)
    for left in range(rounds - 1, 0, -1):
        if number == 1 or runs.ahead <= 0 or runs.ratio > _HOPELESS:
            break
        before, width = width, min(_WIDER * width, _WIDEST)
        number = min(number, max(runs.threads, int(runs.ahead / unit / (left * width))))
        width = min(width, int(runs.ahead / unit / number))
        if width <= before:
            break
        runs.follow(runs.ranked()[:number], width)


def _settings(instance: Instance, shares: list[float], seed: int) -> list[Setting]:
    """Return settings in an order in which neighbours differ in everything."""
    quantiles, starts = _QUANTILES_ARRIVALS, _STARTS_ARRIVALS
    if not instance.arrivals.any():
        quantiles, shorter = _QUANTILES, min(1.0, _MANY_OFFLINE / len(instance))
        starts = (_STARTS[0] * shorter, _STARTS[1] * shorter, _STARTS[2] * shorter)
    turns = [(one, (one + turn) % 3, (one + 2 * turn) % 3) for turn in range(3) for one in range(3)]
    far = np.zeros((len(turns), 3))
    if seed:
        far = np.random.default_rng(seed).uniform(-1, 1, far.shape) * _NEAR
    return [
        # Few shares, as their prices take time.
        Setting(shares[i] + far[i, 0], quantiles[j] + far[turn, 1], starts[k] * (1 + far[turn, 2]))
        for turn, (i, j, k) in enumerate(turns)
    ]


class _Runs:
    """Runs of the beam from one schedule, what they took, and the best schedule found."""

    def __init__(
        self, start: Schedule, certificate: Certificate, budget: Budget, seed: int, threads: int
    ) -> None:
        self._start, self._certificate, self._budget = start, certificate, budget
        self._seed, self.threads = seed, threads
        self._weights = weights_of(start.instance, certificate.objective)
        self.arriving = bool(start.instance.arrivals.any())
        self._prices: dict[float, FloatArray] = {}
        self._costs: dict[Setting, float] = {}
        self.best, self._least = start, math.inf
        self.left, self.done = budget.work, 0.0
        self._spent, self._took = 0.0, 0.0  # work and seconds of the last runs

    def usage(self) -> float:
        """Return what the memory that the schedule holds is worth, as a share of all there is."""
        held = self._start.memory_profile()[1:]
        prices = np.array(self._certificate.prices)[: len(held)]
        all_there_is = float(prices.sum()) * self._start.instance.memory
        return float(prices @ held[: len(prices)]) / all_there_is if all_there_is else 1.0

    @property
    def ahead(self) -> float:
        """The work that is left and for which there is time, at the speed of the last runs."""
        seconds = self.threads * (self._budget.deadline - stopwatch())
        return min(self.left, max(self._spent, 1.0) / max(self._took, 1e-9) * seconds)

    @property
    def ratio(self) -> float:
        """The cost of the best run over that of the start."""
        return self._least / float(self._weights @ self._start.latencies)

    def ranked(self) -> list[Setting]:
        """Return the settings of runs that got to the end, the best first."""
        return sorted(self._costs, key=self._costs.__getitem__)

    def follow(self, settings: list[Setting], width: int) -> None:
        """Run some settings."""
        for setting in settings:
            self._price(setting)

        def run(setting: Setting) -> BeamRun:
            began = stopwatch()
            found = self._run(setting, width)
            return found._replace(seconds=stopwatch() - began)

        if self.threads == 1:
            found = [run(setting) for setting in settings]
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                found = list(pool.map(run, settings))
        self.done = sum(each.work for each in found)
        self.left -= self.done
        self._spent, self._took = self.done, sum(each.seconds for each in found)
        for each, setting in zip(found, settings, strict=True):
            if each.schedule is None:
                continue
            cost = self._costs[setting] = float(self._weights @ each.schedule.latencies)
            if cost < self._least:
                self.best, self._least = each.schedule, cost
        self._budget.tell(self._least)

    def _price(self, setting: Setting) -> None:
        """Find prices for a share of the memory."""
        share, schedule = setting.share, self._start
        if share in self._prices or self._budget.over:
            return
        instance, objective = schedule.instance, cast("Objective", self._certificate.objective)
        memory = max(share * instance.memory, float(instance.peaks.max()))
        if not self.arriving:
            certificate = bound(
                instance.replace(memory=int(memory)), "lagrangian", objective
            ).prices
            assert certificate is not None
            prices = np.array(certificate.prices) / certificate.denominator
        else:
            large = instance.areas >= np.quantile(instance.areas, setting.quantile)
            prices, cell, work = coarse_prices(
                schedule,
                objective,
                large,
                memory,
                rounds=_ROUNDS,
                cells=_CELLS if len(instance) < _MANY else _CELLS_MANY,
                budget=self._budget._replace(report=None),
            )
            prices = smoothed(prices, _SMOOTH * cell)
            self.left -= work
        self._prices[share] = prices

    def _run(self, setting: Setting, width: int) -> BeamRun:
        if self._budget.over or setting.share not in self._prices:
            return BeamRun(None, 0.0)
        start = self._start
        small, background = background_of(start, setting.quantile)
        if small.all():
            return BeamRun(None, 0.0)
        parts, most = start.starts[~small], 2 * max(self.left, 0.0)
        sliding = not setting.starts
        beam = Beam(
            start.instance,
            self._weights,
            self._prices[setting.share],
            ~small,
            background,
            kernels.parts_of_windows(start, ~small) if sliding else slices(parts, setting.starts),
            1 if sliding else width,
        )
        if sliding:
            starts, work = kernels.slide(
                beam.large, width, self._seed, lambda: self._budget.over, most
            )
        else:
            starts, work = beam.follow(self._budget, most)
        if starts is None:
            return BeamRun(None, work)
        found = np.where(small, background.starts, 0)
        found[~small] = starts
        # Some runs leave more to a search than others.
        polished = search(
            Schedule(start.instance, found, "beam"),
            StartCosts.plain(self._weights),
            budget=self._budget._replace(work=_POLISH * work, report=None),
            seed=self._seed,
        )
        return BeamRun(polished.schedule, (1 + _POLISH) * work)
