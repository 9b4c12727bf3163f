"""Objectives, and the demand against which they are held; docs/bounds.md has the proof.

Batches charge their seconds to requests (`LeastWork`, `Share`), never more than they last, so that
G workers serve charges of at most G (e - b) in a window [b, e]. Requests that may miss their limits
are taken to be those of the largest weighted demand, the best that any scheduler can do.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.numbers import proven
from optsched.bounds.on_clock import PARTS, least_work, share_of
from optsched.clock import UNIT, LinearClock
from optsched.errors import OptschedError, nearest, shown
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.execution import Times
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Storage


_METRICS = ("latency", "ttft", "tpot")
ROUNDING = 1e-9  # relative, on a clock: times are sums of many batches
_FORMS = (
    "write METRIC:STATISTIC<=VALUE, such as ttft:p99<=2s, tpot:mean<=50ms or latency:max<=40steps, "
    "or within:ttft<=1s&tpot<=80ms:99%"
)
_LIMIT = re.compile(r"<=(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)(ms|steps?|s|)")
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{0,15})?|\.\d{1,15}")


def is_whole(clock: Clock | None) -> bool:
    """Whether all times are whole steps, and so compared with limits without a tolerance."""
    return clock is None or (
        isinstance(clock, LinearClock)
        and clock.unit == "steps"
        and replace(clock, name=UNIT.name) == UNIT
    )


@dataclass(frozen=True)
class Slo:
    """A service level objective.

    The text ``METRIC:STATISTIC<=VALUE`` limits the `latency`, `ttft` (time to first token) or
    `tpot` (time per output token after the first) of the requests: their `mean`, their `max`, or a
    percentile such as `p99`: 99 % of them have at most VALUE. ``within:CONDITION&CONDITION:99%``
    asks that 99 % of the requests meet all conditions, such as ``ttft<=1s``. With ``TENANT/``
    before it an objective is about the requests whose labels begin with it. Values carry their
    unit, ``s``, ``ms`` or ``steps``; without one they are seconds on a clock, and refused
    elsewhere. `limits` are in seconds or in steps.

    A request with a single token has no TPOT: ``tpot:...`` leaves it out, ``within`` counts the
    condition as met. One that never completes meets nothing. A text that is none of these raises an
    `OptschedError`.

    Examples
    --------
    >>> from optsched import Slo
    >>> slo = Slo("within:ttft<=1s&tpot<=80ms:99%")
    >>> slo.limits, slo.unit, slo.share, slo.misses(1000)
    ({'ttft': 1.0, 'tpot': 0.08}, 's', Fraction(99, 100), 10)
    >>> Slo("acme/ttft:p99<=40steps").tenant
    'acme'
    """

    text: str
    tenant: str | None = field(init=False)
    limits: dict[str, float] = field(init=False, compare=False)
    share: Fraction | None = field(init=False)  # of the requests; None for a mean
    unit: str | None = field(init=False)  # "s" or "steps"; None where the text names none

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise OptschedError(f"an objective is {shown(self.text)}, but must be a text; {_FORMS}")
        text = re.sub(r"\s", "", self.text)
        tenant, slash, rest = text.rpartition("/")
        parts = rest.split(":")
        if len(parts) == 3 and parts[0] == "within":
            conditions = parts[1].split("&")
            share: Fraction | None = self._percent(parts[2].removesuffix("%"))
        elif len(parts) == 2 and "<=" in parts[1]:
            statistic, sign, value = parts[1].partition("<=")
            conditions = [f"{parts[0]}{sign}{value}"]
            share = self._share(statistic)
        else:
            raise self._wrong(f"has the wrong form; {_FORMS}")
        found = [self._limit(condition) for condition in conditions]
        limits, units = {metric: limit for metric, limit, _ in found}, {unit for *_, unit in found}
        if len(limits) < len(conditions):
            raise self._wrong("limits a metric twice; keep the smaller limit")
        if len(units) > 1:
            raise self._wrong("has limits in different units; write all of them with s, or steps")
        vars(self).update(unit=units.pop(), text=text, tenant=tenant if slash else None)
        vars(self).update(limits=limits, share=share)

    def _wrong(self, why: str) -> OptschedError:
        return OptschedError(f"the objective {shown(self.text)} {why}")

    def _limit(self, condition: str) -> tuple[str, float, str | None]:
        metric, sign, value = condition.partition("<=")
        found = _LIMIT.fullmatch(sign + value)
        limit = math.inf if found is None else float(found[1])
        if found is None or limit == math.inf:
            raise self._wrong(f"has {condition!r} where a limit belongs; {_FORMS}")
        if metric not in _METRICS:
            raise self._wrong(f"limits {metric!r}: {nearest(metric, _METRICS)}")
        if found[2] == "ms":
            return metric, limit / 1000, "s"
        return metric, limit, "steps" if found[2] == "step" else found[2] or None

    def _share(self, statistic: str) -> Fraction | None:
        if statistic in ("mean", "max"):
            return None if statistic == "mean" else Fraction(1)
        if not statistic.startswith("p"):
            raise self._wrong(f"has the statistic {statistic!r}; write mean, max or p99")
        return self._percent(statistic[1:])

    def _percent(self, text: str) -> Fraction:
        percent = Fraction(text) if _PERCENT.fullmatch(text) else Fraction(0)
        if not 0 < percent <= 100:
            raise self._wrong(
                f"has the share {shown(text)}, but it must be above 0 and at most 100"
            )
        return percent / 100

    def __str__(self) -> str:
        return self.text

    def counted_in(self, unit: str) -> Slo:
        """Return it with its unit, which a bare number lacks, or refuse another unit."""
        if self.unit == unit:
            return self
        if self.unit is not None:
            raise self._wrong(
                "is in steps, but times on this clock are in seconds; write s or ms"
                if unit == "s"
                else "is in seconds, but times here are in steps; write steps, or pass a clock "
                "that counts seconds"
            )
        if unit != "s":
            in_steps = _LIMIT.sub(r"<=\1steps", self.text)
            raise self._wrong(
                "has a limit without a unit, which means seconds on a clock only; write "
                f"{in_steps}, or pass a clock that counts seconds"
            )
        return Slo(_LIMIT.sub(r"<=\1s", self.text))

    def raised(self, factor: float) -> Slo:
        """Return it with the limits that `reached` means by a factor, rounded up."""

        def limit(found: re.Match[str]) -> str:
            old = float(found[1]) / (1000 if found[2] == "ms" else 1)
            # What a limit was divided by and multiplied with again may be off in the last digit.
            raised = float(f"{factor * old:.15g}") if len(self.limits) > 1 else factor
            value = proven(raised, up=True)
            return f"<={value.replace(',', '')}{self.unit or ''}"

        return Slo(_LIMIT.sub(limit, self.text))

    def misses(self, requests: int) -> int:
        """Return how many of so many requests may miss the limits."""
        assert self.share is not None
        return requests - math.ceil(self.share * requests)

    def asked(self, instance: Instance) -> BoolArray:
        """Return which requests it is about, shape (n,)."""
        asked = np.ones(len(instance), dtype=np.bool_)
        if list(self.limits) == ["tpot"] and not self.text.rpartition("/")[2].startswith("within"):
            asked &= instance.outputs > 1
        if self.tenant is not None:
            begin = f"{self.tenant}/"
            own = [label.startswith(begin) for label in instance.labels or ()]
            if not any(own):
                raise self._wrong(
                    f"is about the tenant {self.tenant!r}, but no label begins with {begin!r}; "
                    "add a column label such as acme/17, or leave the tenant out"
                )
            asked &= np.array(own)
        return asked

    def within(self, times: Times) -> BoolArray:
        """Return which requests meet all its limits, shape (n,)."""
        met = ~np.isnan(times.latency)
        for metric, limit in self.limits.items():
            value = getattr(times, metric)
            met &= np.isnan(value) | (value <= limit)
        return met

    def reached(self, times: Times, asked: BoolArray) -> float:
        """Return the least limit that is met, of several what all are multiplied by."""
        count = int(asked.sum())
        if not count:
            return 0.0
        worst = np.where(np.isnan(times.latency), np.inf, 0.0)
        for metric, limit in self.limits.items():
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                scaled = getattr(times, metric) / (limit if len(self.limits) > 1 else 1.0)
            worst = np.fmax(worst, scaled)
        if self.share is None:
            return math.fsum(worst[asked]) / count
        place = count - self.misses(count) - 1
        found = float(np.partition(worst[asked], place)[place])
        return found if found * max(self.limits.values()) < math.inf else math.inf

    def attained(self, times: Times, asked: BoolArray) -> tuple[bool, float]:
        """Return whether it is met, and how far: a share of requests, or the limit over a mean."""
        count = int(asked.sum())
        if not count:
            return True, 1.0
        if self.share is not None:
            within = int(self.within(times)[asked].sum())
            return count - within <= self.misses(count), within / count
        ((metric, limit),) = self.limits.items()
        if np.isnan(times.latency[asked]).any():
            return False, 0.0
        total = math.fsum(getattr(times, metric)[asked])
        met = Fraction(total) <= Fraction(str(limit)) * count  # the decimal that was written
        return met, 1.0 if met else min(limit * count / total, math.nextafter(1, 0))


def as_percent(attained: float) -> str:
    """Write how far an objective is attained, rounded down: what is short by a hair is not all."""
    return f"{proven(100 * Fraction(str(attained)), decimals=2)}%"  # the decimal that it is


def as_slos(slo: str | Slo | Iterable[str | Slo], unit: str) -> tuple[Slo, ...]:
    """Return objectives in a unit, at least one."""
    given = [slo] if isinstance(slo, str | Slo) else list(slo)
    if not given:
        raise OptschedError(f"there is no objective; {_FORMS}")
    each = (one if isinstance(one, Slo) else Slo(one) for one in given)
    return tuple(one.counted_in(unit) for one in each)


_SAFE = 2.0**-40  # relative allowance for roundings
_LESS = 1 - _SAFE
FINE = 2**40  # multipliers are whole numbers of its parts
_CELLS, _FEW_CELLS, _ALL_CELLS = 80, 12, 130_000  # of latencies, and of all requests together
# Of a mean: up to there latencies are cut evenly, then by their ratio; less where little is left.
_NEAR, _NEAREST, _FAR = 0.3, 1e-4, 22.0


class Charging(NamedTuple):
    """How the constant of batches is charged, in sixteenths: by number, by time, else by memory."""

    by_requests: int = 0
    by_time: int = 0  # to those that must decode in time, so that their batches are short


@dataclass(frozen=True)
class Bounded:
    """What the proofs are about: requests, batches, and what engines may do."""

    instance: Instance
    clock: LinearClock
    max_num_seqs: int = 0
    storage: Storage = "at-once"
    shared: bool = False
    timed: bool = False  # whether batches are formed on a clock; else requests run in steps

    @property
    def needed(self) -> Instance:
        """The requests with what each of them needs, whatever others leave in a prefix cache."""
        instance = self.instance
        if not self.shared or instance.hash_ids is None or instance.hash_block is None:
            return instance
        times = Counter(
            itertools.chain.from_iterable(set(ids.tolist()) for ids in instance.hash_ids)
        )
        found = [sum(times[key] > 1 for key in ids.tolist()) for ids in instance.hash_ids]
        left = instance.prompts - np.array(found) * instance.hash_block
        return instance.replace(
            prompts=np.maximum(0, left),
            outputs=np.maximum(1, instance.outputs + np.minimum(0, left)),
            hash_ids=None,
            hash_block=None,
        )


class Demand:
    """The demand of requests that must meet objectives together, or one mean."""

    def __init__(self, world: Bounded, slos: Sequence[Slo], charging: Charging) -> None:
        self.world, self.slos, self.charging = world, slos, charging
        instance, clock = world.needed, world.clock
        work = least_work(instance, clock)
        self.constant, self.growth, self.decode = work.constant, work.growth, work.decode
        self.arrivals = times_since_first(instance, clock)
        self.first, self.own = work.first + work.constant, work.own
        ttft, tpot, due = (np.full(len(instance), np.inf) for _ in range(3))
        self.mean: float | None = None
        self.whole = is_whole(clock)
        for goal in slos:
            asked = goal.asked(instance)
            for metric, values in (("ttft", ttft), ("tpot", tpot), ("latency", due)):
                limit = goal.limits.get(metric, np.inf) * (1 if self.whole else 1 + ROUNDING)
                values[asked] = np.minimum(values[asked], limit)
                if goal.share is None and metric in goal.limits:
                    self.mean = limit
                    alone = self.own if metric == "latency" else self.first
                    spare = max(0.0, limit - float(alone[asked].mean())) if asked.any() else 0.0
                    values[asked] = alone[asked] + spare  # such that their mean is the limit
        decodes = work.decodes
        paced = np.where(decodes > 0, tpot * np.maximum(decodes, 1), 0.0)
        due = np.minimum(due, ttft + paced)
        if self.whole and self.mean is None:
            ttft, due = np.floor(ttft), np.floor(due)
        alone = self.own - self.first
        self.impossible: BoolArray = (self.mean is None) & (
            (self.first * _LESS > ttft)
            | (self.own * _LESS > due)
            | ((alone * _LESS > paced) & (decodes > 0))
        )
        # Without a last date only the first token has one.
        self.decodes = np.where(np.isinf(due), 0.0, decodes)
        self.own = np.where(np.isinf(due), self.first, self.own)
        self.due = np.where(np.isinf(due), ttft, due)
        self.ttft = np.minimum(ttft, self.due)
        self.asked = np.isfinite(self.due) & ~self.impossible
        shared_goals = (goal for goal in slos if goal.share is not None)
        missed = sum(goal.misses(int(goal.asked(instance).sum())) for goal in shared_goals)
        self.allowed = missed - int(self.impossible.sum())
        self.share = share_of(
            instance, world.max_num_seqs, charging.by_requests, world.storage, charging.by_time
        )
        columns = self.arrivals, self.first, self.own, self.decodes, self.decode, self.share.first
        self._columns = np.array(np.broadcast_arrays(*columns), dtype=np.float64)
        self.timed = charging.by_time / PARTS
        self._wait(instance, clock, paced)
        span = float(self.arrivals[-1]) + float(self.own.max())
        self.slack = 0.0 if self.whole else _SAFE * span
        self.longest = float(self.due[self.asked].max(initial=0.0))
        self.offsets = np.zeros(0)
        if self.mean is not None:
            self.offsets = self._cells(len(instance), self.mean)
            own = float((self.own[self.asked]).max(initial=0.0))
            self.longest = own + float(self.offsets[-1])

    def _cells(self, count: int, mean: float) -> FloatArray:
        """Return the latencies that are looked at where they may be any, beyond those alone."""
        most = max(_FEW_CELLS, min(_CELLS, _ALL_CELLS // count))
        spare = float((self.due - self.own)[self.asked].max(initial=0.0))
        near = min(_NEAR, max(_NEAREST, spare / mean)) if mean else 1.0
        found: FloatArray = np.sinh(np.linspace(0.0, np.arcsinh(_FAR / near), most)) * near * mean
        return np.unique(np.append(np.arange(most), np.ceil(found))) if self.whole else found

    def _wait(self, instance: Instance, clock: LinearClock, paced: FloatArray) -> None:
        """Find which requests are dear to decode again, and the best multipliers of due dates."""
        held = instance.prompts + 1.0
        again = clock.prefill_tokens * held + clock.squared_prompts * held**2
        if self.world.shared:  # all but two tokens may be found in a cache
            again = 2 * clock.prefill_tokens + 4 * clock.squared_prompts * instance.prompts
        dear = again - clock.decode_requests - clock.resident_tokens * held
        dear *= 1 - _SAFE
        self._dear = np.maximum(0.0, dear) * (clock.prefill_tokens >= clock.resident_tokens)
        left = self.due - self.first
        # Within a time per token the prefills of others may come before the first.
        self._paused = (left < paced) & (self.decodes > 0)
        self.spare = np.where(self.decodes > 0, np.minimum(left, paced), 0.0)
        self.multipliers = self._best_multipliers() if self.timed else np.zeros(len(left), np.int64)
        self.price_time()

    def _best_multipliers(self) -> IntArray:
        """Return multipliers as they are best if all requests are alike; of a mean one for all."""
        d, c0 = np.maximum(self.decodes, 1), self.constant
        half = np.where(self._paused, (self.first - c0) / d / 2, 0.0)
        pace, least = self.spare / d, self.decode + self.growth + half
        found = np.zeros(len(pace))
        fast = (pace > c0) & np.isfinite(pace) & self.asked & (least > 0)
        pace, half, least = pace[fast], half[fast], least[fast]
        most = self._dear[fast] ** 2 / (4 * c0 * least) if c0 else 0 * least
        if self.mean is not None and len(pace):
            pace, half, least = (np.average(each, weights=d[fast]) for each in (pace, half, least))
            most = np.inf
        found[fast] = np.minimum(np.minimum(c0 * least / (pace + half - c0) ** 2, most), 1.0)
        return (found * FINE).astype(np.int64)

    def price_time(self) -> None:
        """Find what is charged by time under the multipliers, plus them times the time spent."""
        mu, d = self.multipliers / FINE, self.decodes
        used = np.flatnonzero(mu > 0)
        self.slope, self.extra = mu * self.timed, np.zeros(len(mu))
        if not self.timed or not len(used):
            return
        mu, d, c0 = mu[used], d[used], self.constant
        prefill = np.where(self._paused[used], self.first[used] - c0, 0.0)
        root = np.sqrt(mu * (self.decode[used] + self.growth))
        steep = prefill / d / mu
        order = np.argsort(steep)
        before = np.cumsum(prefill[order])
        after = (d * mu)[order][::-1].cumsum()[::-1] - (d * mu)[order]
        pairs = np.zeros(len(used))
        pairs[order] = mu[order] * (before + steep[order] * after)
        total = float(d @ root)
        norm = np.sqrt(total**2 + float(d @ pairs) / 2)
        gain = 2 * np.sqrt(c0) * (root * total + pairs / 2) / norm if norm else pairs
        gain = np.minimum(gain, self._dear[used])
        self.extra[used] = self.timed * (d * (c0 * mu + gain) - mu * prefill / 2)

    def within(
        self, begin: float, end: float, due: FloatArray | None = None
    ) -> tuple[slice, FloatArray, BoolArray]:
        """Return requests that may demand something in a window, what they do, and which wholly.

        Several due dates of each are looked at in one call, shape (dates, requests).
        """
        low = int(np.searchsorted(self.arrivals, begin - self.longest))
        high = int(np.searchsorted(self.arrivals, end))
        last = (self.due if due is None else due).reshape(-1, len(self.own))
        ttft = self.ttft[None] if self.mean is None else last
        found = np.empty((len(last), high - low))
        whole = np.empty(found.shape, dtype=np.bool_)
        numbers = begin, end, self.slack, self.constant, self.growth, self.share.growth, low
        _fill_demand(*numbers, last, ttft, self._columns, self.asked, found, whole)
        if due is None:
            found, whole = found[0], whole[0]
        return slice(low, high), found, whole

    def demanded(self, begin: float, end: float) -> tuple[slice, FloatArray]:
        """Return requests that may demand something in a window, and all that each of them does."""
        some, found, whole = self.within(begin, end)
        waited = np.where(whole, self.spare[some], 0.0)
        return some, found + whole * np.maximum(0.0, self.extra[some] - self.slope[some] * waited)


@compiled_inside
def _decodes(progress: float, own: float, most: float, linear: float, growth: float) -> float:
    """Return how many decodings fit into so much of a request's own time, as a real number."""
    beyond = min(max(progress, 0.0), own)
    root = linear + math.sqrt(linear**2 + 2 * growth * beyond)
    return min(2 * beyond / root, most) if root > 0 else most


@compiled
def _fill_demand(
    begin: float,
    end: float,
    slack: float,
    constant: float,
    growth: float,
    share_growth: float,
    low: int,
    due: FloatArray,
    ttft: FloatArray,
    columns: FloatArray,
    asked: BoolArray,
    found: FloatArray,
    whole: BoolArray,
) -> None:
    """Fill in what requests from `low` on do in a window, and which of them wholly."""
    grown = growth + constant * share_growth
    for date in range(len(found)):
        for at in range(found.shape[1]):
            request = low + at
            found[date, at], whole[date, at] = 0.0, False
            if not asked[request]:
                continue
            arrival, first, own = columns[0, request], columns[1, request], columns[2, request]
            decodes, decode, shared = columns[3:, request]
            last = arrival + due[date, request]
            done = 0.0  # along its own batches, at most
            if arrival < begin:
                done = max(0.0, begin - arrival + slack)
            inside = last + slack <= end
            reached = own - max(0.0, last - end) - slack  # at least
            linear = constant + decode + growth / 2
            late = math.ceil(_decodes(done - first, own, decodes, linear, growth))
            early = decodes
            if not inside:
                early = math.floor(_decodes(reached - first, own, decodes, linear, growth))
            each = decode + constant * shared
            demand = max(
                0.0,
                (each * early + grown * early * (early + 1) / 2)
                - (each * late + grown * late * (late + 1) / 2),
            )
            # Of a prompt in chunks, the constant of the last batch alone is charged by share.
            left = first - done
            if left > 0 and (
                inside
                or reached >= first
                or arrival + ttft[date % len(ttft), request] + slack <= end
            ):
                if done > 0:
                    tail = min(left, constant)
                    demand += shared * tail + max(0.0, left - tail)
                else:
                    demand += first - constant * (1 - shared)
            found[date, at], whole[date, at] = demand, done == 0 and inside
