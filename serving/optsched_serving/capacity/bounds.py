"""How many workers are enough, and how many any scheduler needs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched.bounds.on_clock import PARTS, least_work
from optsched.certificates.capacity import CapacityCertificate, Goal
from optsched.problem.work import step_of
from optsched.problem.workers import MAX_WORKERS
from optsched.solvers.backends import highs
from optsched_serving.capacity.slo import ROUNDING, Charging, Demand, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.problem.premises import Knowledge
    from optsched_serving.capacity.slo import Bounded, Slo


_FEW = 24  # requests up to which all windows between arrivals and due dates are tried
_MAX_LENGTHS = 9  # halvings of the whole time
_KEPT = 6  # windows of each length that are mixed
_NESTED = 20  # windows that begin with the first request
_ROUNDS = 100
_ENOUGH = 1e-3  # relative distance to the best mixture
_MOST = 30_000_000  # numbers for windows, requests and cells together
_LEAST = 1e-4  # weight of a window that is kept
_SAFE = 1 - 2.0**-36


class Proof(NamedTuple):
    """Windows with weights, and how many workers their demand takes, rounded down."""

    value: float
    windows: tuple[tuple[float, float, float], ...]  # begin, end, weight
    price: float = 0.0  # of latencies that may be any, with a mean


def best_proof(demand: Demand) -> Proof:
    """Return the best windows that are found for a demand."""
    if demand.allowed < 0 or not demand.asked.any():
        return Proof(0.0, ())
    found = _candidates(demand)
    if demand.mean is not None:
        more = _nested(demand, found) if int(demand.asked.sum()) > _FEW else []
        return _of_mean(demand, sorted({*found, *more}))
    rows = np.zeros((len(found), len(demand.asked)))
    for row, (begin, end) in zip(rows, found, strict=True):
        some, values = demand.demanded(begin, end)
        row[some] = values / (end - begin)
    mixed = np.zeros(len(rows))
    if demand.allowed and len(rows) > 1:
        mixed = _game(rows, demand.allowed)
    else:
        mixed[rows.sum(axis=1).argmax()] = 1.0
    used = np.flatnonzero(mixed > 1e-6)
    value = _without(mixed[used] @ rows[used], demand.allowed) / float(mixed[used].sum())
    weighted = ((*found[at], float(mixed[at])) for at in used.tolist())
    return Proof(value * _SAFE, tuple((b, e, weight / (e - b)) for b, e, weight in weighted))


def _without(values: FloatArray, count: int) -> float:
    """Return the sum of all but so many of the largest."""
    if not count:
        return float(values.sum())
    if count >= len(values):
        return 0.0
    return float(np.partition(values, len(values) - count)[: len(values) - count].sum())


def _candidates(demand: Demand) -> list[tuple[float, float]]:
    """Return windows with much demand for their length, of many lengths."""
    arrivals, due = demand.arrivals[demand.asked], demand.due[demand.asked]
    last = arrivals + due + 2 * demand.slack
    if len(arrivals) <= _FEW:
        begins = np.unique(np.append(arrivals, last - demand.own[demand.asked]))
        own = demand.own[demand.asked]
        later = [] if demand.mean is None else [own * share for share in (0.05, 0.2, 0.5)]
        ends = np.unique(np.concatenate([last, *(arrivals + own + more for more in (0.0, *later))]))
        return [(b, e) for b in begins.tolist() for e in ends.tolist() if e - b > demand.slack]
    first, end = float(arrivals[0]), float(last.max())
    share = demand.allowed / len(arrivals)
    kept = [(first, end)]
    length = end - first
    for _ in range(_MAX_LENGTHS):
        starts = np.arange(first, end - length / 2, length / 2).tolist()
        tried = [(begin, begin + length) for begin in starts]
        ranked = sorted(tried, key=lambda window: -_density(demand, window, share))
        kept += [_moved(demand, window, share) for window in ranked[:_KEPT]]
        if length < float(np.median(due)):
            break
        length /= 2
    return sorted(set(kept))


def _nested(demand: Demand, windows: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return windows that begin together, as latencies that may be any fall into some of them."""
    begins = np.quantile(np.unique([begin for begin, _ in windows]), np.linspace(0, 1, 4)).tolist()
    lengths = np.geomspace(0.25, 20, _NESTED) * (demand.mean or 0.0)
    lengths = np.ceil(lengths) if demand.whole else lengths
    nested = [lengths, *[lengths[1::2]] * (len(begins) - 1)]
    return [
        (begin, begin + length)
        for begin, own in zip(begins, nested, strict=True)
        for length in own.tolist()
    ]


def _density(demand: Demand, window: tuple[float, float], share: float) -> float:
    """Return the demand in a window for its length, if a share of its requests is left out."""
    _, values = demand.demanded(*window)
    values = values[values > 0]
    return _without(values, int(share * len(values))) / (window[1] - window[0])


def _moved(demand: Demand, window: tuple[float, float], share: float) -> tuple[float, float]:
    best, step = _density(demand, window, share), (window[1] - window[0]) / 4
    for _ in range(5):
        begin, end = window
        for first, last in ((step, 0.0), (-step, 0.0), (0.0, -step), (0.0, step)):
            tried = begin + first, end + last
            if tried[1] - tried[0] > step and (found := _density(demand, tried, share)) > best:
                best, window = found, tried
        step /= 2
    return window


class _Latencies:
    """What requests demand in windows if their latencies may be any, in cells between offsets."""

    def __init__(
        self, demand: Demand, windows: Sequence[tuple[float, float]], kind: type = np.float64
    ) -> None:
        self.demand, self.asked = demand, np.flatnonzero(demand.asked)
        alone = demand.own[self.asked]
        self.begins = alone[:, None] + demand.offsets
        self.ends = np.column_stack(
            [self.begins[:, 1:] - float(demand.whole), self.begins[:, -1]]  # the last has no end
        )
        shape = (len(windows), *self.begins.shape)
        self.rows, self.inside = np.zeros(shape, kind), np.zeros(shape, kind)
        place = np.full(len(demand.asked), -1)
        place[self.asked] = np.arange(len(self.asked))
        due = np.zeros((shape[2] - 1, len(place)))
        due[:, self.asked] = self.ends[:, :-1].T
        for at, (begin, end) in enumerate(windows):
            some, found, whole = demand.within(begin, end, due)
            there = place[some] >= 0
            rows = place[some][there]
            self.rows[at, rows, :-1] = found[:, there].T / (end - begin)
            self.inside[at, rows, :-1] = whole[:, there].T / (end - begin)

    def answer(self, weights: FloatArray) -> FloatArray:
        mixed, price, demand = weights[:-1].astype(self.rows.dtype), weights[-1], self.demand
        extra, slope, first = (
            values[self.asked] for values in (demand.extra, demand.slope, demand.first)
        )
        # Within a cell the sum is convex: least at an end, or where nothing is charged by time.
        kink = first + np.divide(extra, slope, out=np.zeros_like(extra), where=slope > 0)
        points = np.stack([self.begins, self.ends, kink[:, None].clip(self.begins, self.ends)])
        timed = np.maximum(0.0, extra[:, None] - slope[:, None] * (points - first[:, None]))
        values = np.tensordot(mixed, self.rows, 1) + price * points
        values += np.tensordot(mixed, self.inside, 1) * timed
        every, count = np.arange(len(extra)), values.shape[2]
        flat = values.transpose(1, 0, 2).reshape(len(extra), -1).argmin(axis=1)
        point, cell = flat // count, flat % count
        chosen = self.rows[:, every, cell].sum(axis=1, dtype=np.float64)
        chosen += self.inside[:, every, cell] @ timed[point, every, cell]
        spent = float(points[point, every, cell].sum()) - len(extra) * (demand.mean or 0.0)
        return np.append(chosen, spent)


def _of_mean(demand: Demand, windows: list[tuple[float, float]]) -> Proof:
    most = max(_FEW, _MOST // (int(demand.asked.sum()) * len(demand.offsets)))
    windows = windows[:: -(-len(windows) // most)]
    cells = _Latencies(demand, windows, np.float32)
    scale = 1 / (len(cells.asked) * (demand.mean or 1.0))
    weights = _best_weights(cells.answer, len(windows), [[1e9 * scale], [scale]])
    used = [at for at, weight in enumerate(weights[:-1].tolist()) if weight > _LEAST]
    kept = weights[[*used, -1]]
    few = [windows[at] for at in used]
    value = float(_Latencies(demand, few).answer(kept) @ kept) / float(kept[:-1].sum())
    lengths = [end - begin for begin, end in few]
    shares = (kept[:-1] / lengths).tolist()
    return Proof(
        value * _SAFE, tuple((*w, z) for w, z in zip(few, shares, strict=True)), float(kept[-1])
    )


def _game(rows: FloatArray, allowed: int) -> FloatArray:
    """Return weights of rows, 1 in all, whose sum keeps most without its largest entries."""

    def answer(weights: FloatArray) -> FloatArray:
        kept = np.ones(rows.shape[1])
        kept[np.argsort(weights @ rows)[max(0, len(kept) - allowed) :]] = 0.0
        left: FloatArray = rows @ kept
        return left

    return _best_weights(answer, len(rows))


def _best_weights(
    answer: Callable[[FloatArray], FloatArray],
    count: int,
    prices: Sequence[Sequence[float]] = ((),),
) -> FloatArray:
    """Return weights, so many of which are 1 in all, against which an answer leaves the most.

    An answer is what each weight counts for once others have done their best. Further weights have
    no sum; the first prices are tried for them.
    """
    # Cuts: each round adds the best answer to weights between the best so far and those that are
    # best against all answers.
    begins = [np.append(np.full(count, 1 / count), each) for each in prices]
    best, value, size = begins[0], -np.inf, len(begins[0])
    program = highs.of_one_thread()
    program.addVars(size + 1, np.append(np.zeros(size), -np.inf), np.full(size + 1, np.inf))
    program.changeColCost(size, -1.0)
    every = np.arange(size + 1, dtype=np.int32)
    program.addRow(1.0, 1.0, count, every[:count], np.ones(count))
    for turn in range(_ROUNDS):
        if turn < len(begins):
            weights = begins[turn]
        cut = answer(weights)
        if (found := float(weights @ cut)) > value:
            value, best = found, weights
        program.addRow(0.0, np.inf, size + 1, every, np.append(cut, -1.0))
        if turn + 1 < len(begins):
            continue
        program.run()
        solved = np.array(program.getSolution().col_value)
        optimal = program.getModelStatus() == highs.load().HighsModelStatus.kOptimal
        if not optimal or solved[-1] <= value + _ENOUGH * abs(value):
            break
        weights = (best + np.maximum(0.0, solved[:-1])) / 2
    return best


@dataclass(frozen=True)
class Attempt:
    """What simulations with some number of workers came to.

    Attributes
    ----------
    held, runs
        Of how many runs, one for each instance, all objectives are met.
    attained
        The least that any objective reaches in the mean of the runs: a share of the requests, or
        the limit over the mean.
    reached
        The least limit of each objective that all runs meet; of several limits their factor.
    """

    held: int
    runs: int
    attained: float
    binds: str = ""
    reached: tuple[float, ...] = ()

    @property
    def met(self) -> bool:
        """Whether all runs meet all objectives."""
        return self.held == self.runs


@dataclass(frozen=True)
class CapacityPlan:
    """The fewest workers with which a policy and a router meet objectives.

    Attributes
    ----------
    workers
        Their number; None where none that was tried is enough.
    attempts
        Every number of workers that was tried, ascending.
    binds
        What one worker less lacks: "memory", "the limit of requests" in a batch, "compute", "a
        burst" or "one large request"; empty where one worker is enough, or the number is also
        proven to be needed.
    cost
        What the workers cost per hour, where it is known.
    knows
        What policy and router are told of outputs: "outputs", "forecast" or "nothing".
    alone
        What is reached where each request is alone; None where two meet however far apart.
    """

    policy: str
    router: str
    workers: int | None
    attempts: Mapping[int, Attempt] = field(repr=False)
    binds: str = ""
    cost: float | None = None
    knows: Knowledge = "outputs"
    alone: Attempt | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.router} with {self.policy}"

    @property
    def used(self) -> int:
        """The workers; where none are enough, those with which the most is reached."""
        return self.workers or max(self.attempts, key=lambda n: self.attempts[n].attained)

    @property
    def reached(self) -> Attempt | None:
        """What they came to, or without attempts each request alone."""
        return self.attempts[self.used] if self.attempts else self.alone

    @property
    def relapses(self) -> list[int]:
        """Numbers of workers above the answer that were tried and fall short."""
        enough = self.workers or MAX_WORKERS
        return [n for n, each in self.attempts.items() if n > enough and not each.met]

    def least(self, slos: Sequence[Slo]) -> list[Slo]:
        """Return objectives with the least limits that are reached; none where there are none."""
        reached = () if self.reached is None else self.reached.reached
        if not np.isfinite(reached).all():
            return []
        return [slo.raised(factor) for slo, factor in zip(slos, reached, strict=False)]

    def to_dict(self, slos: Sequence[Slo]) -> dict[str, Any]:
        """Return it as plain data."""
        found, least = self.reached, self.least(slos)
        first = [[next(iter(slo.limits.values())) for slo in each] for each in (least, slos)]
        pairs = [(new / old if old else np.inf, new) for new, old in zip(*first, strict=False)]
        return {
            "policy": self.policy,
            "router": self.router,
            "knows": self.knows,
            "met": self.workers is not None,
            "workers": self.workers,
            "attained": None if found is None else found.attained,
            "least_limit": max(pairs, default=(0.0, None))[1],
            "least_objectives": [str(slo) for slo in least],
            "binds": self.binds,
            "monotone": not self.relapses,
            "runs": max((each.runs for each in self.attempts.values()), default=0),
            **({"cost_per_hour": self.cost} if self.cost else {}),
            "attempts": [
                {"workers": count, "attained": each.attained, "held": each.held}
                for count, each in self.attempts.items()
            ],
        }


_MAX_SETS = 3  # objectives of which all combinations are tried


@dataclass(frozen=True)
class AtLeast:
    """What is proven for some objectives: no scheduler meets them with fewer workers."""

    workers: int  # 1 where nothing more is proven
    slos: tuple[Slo, ...]
    certificate: CapacityCertificate | None = None  # None where nothing is known, as of mean TPOT
    why: str = "any scheduler needs one worker"


def late_alone(world: Bounded, slo: Slo) -> tuple[IntArray, bool]:
    """Return requests that miss an objective even alone, and whether no workers can meet it."""
    instance = world.needed
    work, asked = least_work(instance, world.clock), slo.asked(instance)
    first = work.first + work.constant
    decoding = np.where(work.decodes > 0, (work.own - first) / np.maximum(work.decodes, 1), 0.0)
    alone = {"latency": work.own, "ttft": first, "tpot": decoding}
    late: BoolArray = np.zeros(len(instance), dtype=np.bool_)
    # Steps are whole numbers, and exact.
    sure, rounding = (1.0, 1.0) if is_whole(world.clock) else (1 - 2.0**-40, 1 + ROUNDING)
    for metric, limit in slo.limits.items():
        late |= asked & (alone[metric] * sure > limit * rounding)
    if slo.share is not None:
        return np.flatnonzero(late), int(late.sum()) > slo.misses(int(asked.sum()))
    ((metric, limit),) = slo.limits.items()
    least = math.fsum(alone[metric][asked]) * sure
    hopeless = Fraction(least) > Fraction(str(limit * rounding)) * int(asked.sum())
    return np.flatnonzero(late & hopeless), hopeless


def _certificate(workers: int, demand: Demand, proof: Proof) -> CapacityCertificate:
    world, instance, by_time = demand.world, demand.world.instance, demand.charging.by_time
    goals = []
    for slo in demand.slos:
        count = int(slo.asked(instance).sum())
        goals.append(Goal(slo.limits, None if slo.share is None else slo.misses(count), slo.tenant))
    return CapacityCertificate(
        workers,
        tuple(goals),
        instance.fingerprint,
        tuple(world.clock.coefficients.tolist()),
        step_of(instance, world.clock) or 1.0,
        world.clock.unit,
        proof.windows,
        world.max_num_seqs,
        *demand.charging,
        world.storage,
        world.shared,
        proof.price,
        tuple(demand.offsets.tolist()),
        tuple(demand.multipliers.tolist()) if by_time else (),
    )


def at_least(world: Bounded, slos: Sequence[Slo]) -> AtLeast | None:
    """Return the most workers that are proven to be needed; None if no number is enough."""
    best = AtLeast(1, tuple(slos))
    means = [(slo,) for slo in slos if slo.share is None and "tpot" not in slo.limits]
    for some in [*_sets_of(slos), *means]:
        demand, proof = _best_windows(world, some)
        if demand.allowed < 0:  # more are late alone, by one objective or another, than may be
            return None
        workers = max(1, math.ceil(proof.value))
        if best.certificate is None or workers > best.workers:
            certificate = _certificate(workers, demand, proof)
            why = _said(proof, world.clock.unit) if workers > 1 else best.why
            best = AtLeast(workers, some, certificate, why)
    return best


def _said(proof: Proof, unit: str) -> str:
    begin, end, _ = max(proof.windows, key=lambda window: window[2] * (window[1] - window[0]))
    when = f"from {begin:,.6g} to {end:,.6g} {unit} after the first arrival"
    takes = f"takes {proof.value:,.3f} workers"
    if len(proof.windows) == 1:
        return f"what must be done {when} {takes}"
    return f"what must be done in {len(proof.windows)} windows, mainly {when}, {takes}"


def _sets_of(slos: Sequence[Slo]) -> list[tuple[Slo, ...]]:
    shares = [slo for slo in slos if slo.share is not None]
    sizes = range(1, len(shares) + 1) if len(shares) <= _MAX_SETS else (1, len(shares))
    return [some for size in sizes for some in itertools.combinations(shares, size)]


def least_late(world: Bounded, slos: Sequence[Slo], workers: int = 1) -> int:
    """Return how many requests miss one of the limits at least, whoever schedules the workers.

    What is demanded in windows by those that are on time fits into the windows, so that no more
    are on time than as many of the least demanding as fit.
    """
    least = 0
    for demand in _demands(world, slos):
        late = int(demand.impossible.sum())
        demand.allowed = max(0, least - late)
        while True:
            windows = best_proof(demand).windows
            values, total = (
                np.zeros(len(demand.asked)),
                math.fsum(w * (e - b) for b, e, w in windows),
            )
            for begin, end, weight in windows:
                some, found = demand.demanded(begin, end)
                values[some] += weight * found
            sums = np.cumsum(np.sort(values[demand.asked])) * _SAFE
            more = len(sums) - int(np.searchsorted(sums, workers * total, side="right"))
            if more <= demand.allowed:
                break
            demand.allowed = more  # other windows may prove more of what is left
        least = max(least, late + demand.allowed)
    return least


def _best_windows(world: Bounded, slos: Sequence[Slo]) -> tuple[Demand, Proof]:
    """Return the demand that proves most, however constants are charged, and in which windows."""
    found = [(demand, best_proof(demand)) for demand in _demands(world, slos)]
    return max(found, key=lambda each: each[1].value)


def _demands(world: Bounded, slos: Sequence[Slo]) -> list[Demand]:
    """Return the demand however constants are charged."""
    half = PARTS // 2
    ways = [Charging(), Charging(0, half), Charging(0, PARTS)]
    if world.max_num_seqs:
        ways += [Charging(PARTS, 0), Charging(half, half), Charging(half, 0)]
    if slos[0].share is None:
        ways = [way for way in ways if way.by_time != half]
    if not any(world.clock.coefficients[1:]):
        ways = [way for way in ways if not way.by_time]
    return [Demand(world, slos, way) for way in ways]
