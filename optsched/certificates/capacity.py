r"""Certificates that objectives need so many workers, and a verifier in exact integers.

**Windows.** Batches are charged as in `optsched.certificates.on_clock`: what a batch charges is at
most what it lasts. Each request has a time line of its own: the batches that it would have alone.
By the begin of a window it cannot be further along than the time since its arrival, and at the end
it is no further back than the time that is left until it is due: the batches in between charge
workers inside the window, of which :math:`G` serve at most :math:`G` times its length. With weights
on windows both sides are added up. A scheduler may let some requests miss their limits: those with
the largest demand are left out, and those that would be late even alone count among them.

Of a prompt that is cut by the begin of a window, in chunks, at least the part counts that is left
if the last chunk is as late as it can be: the constant of one batch is charged by share, what is
before it in full.

**By time.** The constant may also be charged to requests that lie wholly in a window, since their
batches must be short. From its first token to its last a request spends no more than it may,
:math:`T_i`: the constants and the decoding of its batches, and the prefill :math:`p_j` of each
request that arrives later and shares a batch of decodings with it, for that comes in between. Two
share at most :math:`\min(d_i, d_j)` batches. With multipliers :math:`\mu_i` on these sums, a batch
with decodings of :math:`B` lasts at least what prefills take in it, :math:`\sum_B w_i`, and

.. math:: \sum_B c_0 \mu_i + c_0 + \sum_{i, j \in B} K_{ij} - \frac{1}{2} \sum_B \mu_i r_i, \quad
    K_{ij} = \sqrt{\mu_i w_i \mu_j w_j} + \frac{1}{2} \mu_i \mu_j
    \min\Bigl(\frac{r_i}{\mu_i}, \frac{r_j}{\mu_j}\Bigr), \quad r_i = \frac{p_i}{d_i},

less the :math:`\mu_i T_i`. :math:`K` has no negative eigenvalue, so that for any :math:`v` the root
of its sum is at least :math:`\sum_B (K v)_i / \sqrt{v^T K v}`, here with :math:`v = d`, and
:math:`c_0 + x \ge 2 \sqrt{c_0 x}` makes all of it a sum over requests. A decoding that is done
again as a prefill must take as much as it would have been charged. Within a limit on the time per
token nothing is said of prefills.

**Means.** A latency may be any, at a price. With :math:`\lambda` on each, the weighted windows take
at least :math:`\sum_i \min_l (\lambda l + \sum_w z_w q_{iw}(l)) - \lambda n L`, where the demand
:math:`q_{iw}` falls in :math:`l`: in each of the cells between some latencies it counts as at the
end of the cell. A mean TTFT is bounded by requests that end with their first tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from optsched._internal.files import read_object, write_object
from optsched.certificates.checks import ChargedRequest, check_fingerprint, check_step, read_fields
from optsched.certificates.on_clock import PARTS, charged_request, shared_constant
from optsched.errors import CertificateError
from optsched.problem.premises import STORAGES, Storage, World

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optsched.problem.instance import Instance

_METRICS = ("latency", "ttft", "tpot")
_UNITS = 2**40  # parts of a multiplier
_FINE = 2**80  # parts of what is charged by time
_ROUNDING = 1 + 1e-9  # on a clock limits are met up to this factor


class Goal(NamedTuple):
    """Limits of a tenant's requests, or all; how many may miss them, or None for the mean."""

    limits: Mapping[str, float]
    misses: int | None
    tenant: str | None = None

    def said(self, unit: str) -> str:
        """Return it in words, its limits in a unit."""
        limits = " & ".join(
            f"{metric} <= {limit:g} {unit}" for metric, limit in self.limits.items()
        )
        who = "" if self.tenant is None else f" of {self.tenant}"
        if self.misses is None:
            return f"mean {limits}{who}"
        return f"{limits} for all{f' but {self.misses:,}' if self.misses else ''} requests{who}"


@dataclass(frozen=True)
class CapacityCertificate:
    """Proof that goals take at least so many workers."""

    FORMAT: ClassVar[str] = "optsched-capacity-certificate"

    workers: int
    goals: tuple[Goal, ...]
    fingerprint: str
    clock: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # a constant and five coefficients
    seconds_per_step: float = 1.0
    unit: str = "steps"
    # Begin and end, counted from the first arrival, and weight.
    windows: tuple[tuple[float, float, float], ...] = ()
    max_num_seqs: int = 0  # 0: no limit of requests per batch
    by_requests: int = 0  # sixteenths of the constant that are charged by number,
    by_time: int = 0  # and by time; the others by memory
    storage: Storage = "at-once"
    shared: bool = False  # whether requests may share the blocks of their hash_ids
    price: float = 0.0  # of each request's latency, where the goal is a mean
    latencies: tuple[float, ...] = ()  # beyond those alone: between them demand is as at the larger
    multipliers: tuple[int, ...] = ()  # of each request, in parts of 2**40, with `by_time`

    def __post_init__(self) -> None:
        every = (*self.clock, self.seconds_per_step, *(n for w in self.windows for n in w))
        limits = (limit for goal in self.goals for limit in goal.limits.values())
        if len(self.clock) != 6 or not all(0 <= n < math.inf for n in (*self.clock, *limits)):
            raise CertificateError("clock and limits must be numbers, none negative or infinite")
        if not all(map(math.isfinite, every)) or any(
            end <= begin or weight < 0 for begin, end, weight in self.windows
        ):
            raise CertificateError("a window must end after it begins, with a weight of at least 0")
        parts = (self.by_requests, self.by_time, PARTS - self.by_requests - self.by_time)
        if min(parts) < 0 or self.max_num_seqs < 0 or (self.by_requests and not self.max_num_seqs):
            raise CertificateError("the constant of batches is not shared as it can be")
        if self.storage not in STORAGES or self.unit not in ("s", "steps") or self.workers < 1:
            raise CertificateError("storage, unit or workers are none that there are")
        if not {metric for goal in self.goals for metric in goal.limits} <= set(_METRICS):
            raise CertificateError(f"goals limit {', '.join(_METRICS[:2])} and {_METRICS[2]} only")
        if not 0 <= self.price < math.inf or min(self.multipliers, default=0) < 0:
            raise CertificateError("prices and multipliers must be numbers, none negative")
        if any(b <= a for a, b in itertools.pairwise((-1.0, *self.latencies))) or (
            self.latencies and not self.latencies[0] == 0 <= self.latencies[-1] < math.inf
        ):
            raise CertificateError("latencies must begin at 0 and grow")

    @property
    def whole(self) -> bool:
        """Whether batches take a step each, so that all times are whole."""
        return self.unit == "steps" and self.clock == (1.0, *[0.0] * 5)

    @property
    def premises(self) -> World:
        """Of which runs it proves anything."""
        return World(
            self.fingerprint,
            None,
            None if self.whole else self.clock,
            self.seconds_per_step,
            self.storage,
            "resumed",
            self.max_num_seqs or None,
            cached=self.shared,
            objective="workers",
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        goals = [goal._asdict() for goal in self.goals]
        return write_object({"format": self.FORMAT, **vars(self), "goals": goals}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> CapacityCertificate:
        """Read a certificate from a JSON file or text."""
        content, where = read_object(source, CertificateError, "goals and windows")
        counts = ("workers", "max_num_seqs", "by_requests", "by_time")
        content = {"price": 0.0, "latencies": [], "multipliers": [], **content}
        fields = read_fields(content, where, **dict.fromkeys(counts, 0), multipliers=1)
        del fields["value"]
        try:
            goals = tuple(
                Goal({m: float(v) for m, v in goal["limits"].items()}, *map(goal.get, _REST))
                for goal in content["goals"]
            )
            windows = tuple((float(b), float(e), float(w)) for b, e, w in content["windows"])
            clock = tuple(float(number) for number in content["clock"])
            step, price = float(content["seconds_per_step"]), float(content["price"])
            latencies = tuple(map(float, content["latencies"]))
            unit, storage = str(content["unit"]), cast("Storage", str(content["storage"]))
            if not all(goal.misses is None or type(goal.misses) is int for goal in goals):
                raise TypeError
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise CertificateError(f"{where}: goals, windows or clock cannot be read") from None
        return cls(
            goals=goals,
            clock=clock,
            seconds_per_step=step,
            windows=windows,
            shared=content.get("shared") is True,
            price=price,
            latencies=latencies,
            unit=unit,
            storage=storage,
            **fields,
        )


_REST = ("misses", "tenant")


def verify_capacity(certificate: CapacityCertificate, instance: Instance) -> Fraction:
    """Find how many workers a certificate proves to be needed."""
    demands, scale, length = _demands_in(certificate, instance)
    known = sorted(demand for demand in demands if demand is not None)
    allowed = sum(goal.misses or 0 for goal in certificate.goals) - demands.count(None)
    if allowed < 0:
        raise CertificateError("more requests would be late even alone than may miss their limits")
    kept = known[: max(0, len(known) - allowed)]
    return max(Fraction(1), Fraction(sum(kept), scale) / length if length else Fraction(0))


def _needed(certificate: CapacityCertificate, instance: Instance) -> Instance:
    """Return the requests that a certificate is about, if it belongs to the instance."""
    check_fingerprint(certificate.fingerprint, instance)
    check_step(certificate.seconds_per_step, certificate.unit, instance)
    return _unshared(instance) if certificate.shared else instance


def _unshared(instance: Instance) -> Instance:
    """Return the requests with only those of their tokens that no other request has."""
    if instance.hash_ids is None or instance.hash_block is None:
        return instance
    owners = Counter(key for ids in instance.hash_ids for key in set(ids.tolist()))
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    for place, ids in enumerate(instance.hash_ids):
        shared = sum(owners[key] > 1 for key in ids.tolist()) * instance.hash_block
        outputs[place] = max(1, outputs[place] - max(0, shared - prompts[place]))
        prompts[place] = max(0, prompts[place] - shared)
    return instance.replace(prompts=prompts, outputs=outputs, hash_ids=None, hash_block=None)


def _belongs(instance: Instance, tenant: str | None) -> list[bool]:
    if tenant is None:
        return [True] * len(instance)
    return [label.startswith(f"{tenant}/") for label in instance.labels or [""] * len(instance)]


class _Request(NamedTuple):
    """A request with its limits, in whole units of time."""

    request: ChargedRequest
    constant: int
    decodes: int
    ttft: int | None  # when its first token is due, after the arrival
    due: int  # when its last token, or the only one that has a date, is due
    spare: int = 0  # time for its decodings, and the pauses in between if it is paused
    paused: bool = False
    dear: int = 0  # what doing a decoding again takes more than it

    def lasts(self, decodes: int) -> int:
        """Return the time until so many decodings are done, if nothing else runs."""
        r = self.request
        growing = r.growth * (decodes * (decodes - 1) // 2)
        return self.constant + r.first + (self.constant + r.decode) * decodes + growing

    def charge(self, begin: int, end: int, whole: int) -> tuple[int, bool]:
        """Return what it must charge in a window, times `whole`, and whether it is all in it."""
        r, constant = self.request, self.constant
        done, late = begin - r.arrival, r.arrival + self.due - end
        if self.due <= done or r.arrival >= end:
            return 0, False
        early = self.decodes
        if late > 0:
            reached = self.lasts(self.decodes) - late
            early = bisect.bisect_right(range(self.decodes + 1), reached, key=self.lasts) - 1
        if early < 0 and self.ttft is not None and r.arrival + self.ttft <= end:
            early = 0
        if early < 0:
            return 0, False
        if done <= 0:
            after, first = 0, whole * r.first + constant * r.share
        else:
            after = bisect.bisect_left(range(self.decodes), done, key=self.lasts)
            left = max(0, self.lasts(0) - done)
            first = r.share * min(left, constant) + whole * max(0, left - constant)
        total = first + max(0, self._decoding(early, whole) - self._decoding(after, whole))
        return total, done <= 0 and late <= 0

    def _decoding(self, count: int, whole: int) -> int:
        """Return what the first so many decodings charge."""
        r = self.request
        own = r.decode * count + r.growth * (count * (count - 1) // 2)
        return whole * own + self.constant * (
            r.share * count + r.sharing * (count * (count + 1) // 2)
        )


def _limits_of(
    index: int, goals: list[tuple[list[bool], dict[str, Fraction]]], unit: int
) -> dict[str, int]:
    """Return the least limit of each metric for a request."""
    mine: dict[str, int] = {}
    for belongs, asked in goals:
        for metric, limit in asked.items() if belongs[index] else ():
            mine[metric] = min(mine.get(metric, int(limit * unit)), int(limit * unit))
    return mine


def _demands_in(
    certificate: CapacityCertificate, instance: Instance
) -> tuple[list[int | None], int, Fraction]:
    """Return demands in the windows, None if late even alone; their scale, and the length."""
    instance = _needed(certificate, instance)
    step = certificate.seconds_per_step
    numbers = [Fraction(number) for number in certificate.clock]
    origin, *_ = every = instance.arrivals.tolist()
    arrivals = [Fraction(float(arrival - origin) * step) for arrival in every]
    windows = [tuple(map(Fraction, window)) for window in certificate.windows]
    goals = [
        (
            _belongs(instance, goal.tenant),
            {m: _limit(v, certificate.whole) for m, v in goal.limits.items()},
        )
        for goal in certificate.goals
    ]
    price, offsets = Fraction(certificate.price), list(map(Fraction, certificate.latencies))
    limits = [limit for _, each in goals for limit in each.values()]
    unit = math.lcm(
        *(n.denominator for n in (*numbers, *arrivals, *limits, *offsets)),
        *(n.denominator for window in windows for n in window[:2]),
    )
    c0, *own = (int(number * unit) for number in numbers)
    batches = instance.memory, certificate.max_num_seqs, certificate.storage
    whole, shares = shared_constant(*batches, certificate.by_requests, certificate.by_time)
    weigh = math.lcm(price.denominator, *(weight.denominator for _, _, weight in windows))
    spans = [(int(b * unit), int(e * unit), int(w * weigh)) for b, e, w in windows]
    mean = _mean_of(certificate)
    cells = [int(offset * unit) for offset in offsets]
    less = unit if certificate.whole else 0
    requests: list[tuple[()] | _Request | None] = []
    for index, (prompt, output) in enumerate(
        zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    ):
        mine = _limits_of(index, goals, unit)
        arrival = int(arrivals[index] * unit)
        request = charged_request(prompt, output, arrival, Fraction(1), own, shares)
        held = prompt + 1
        again = own[0] * held + own[3] * held * held
        if certificate.shared:  # all but two tokens may be found
            again = 2 * own[0] + 4 * own[3] * prompt
        dear = max(0, again - own[1] - own[2] * held) if own[0] >= own[2] else 0
        requests.append(_limited(request, c0, dear, mine, certificate, unit, mean))
    demands: list[int | None] = []
    for each, timed in zip(requests, _timed(requests, c0, certificate), strict=True):
        if not each:
            demands.append(None if each is None else 0)
        elif mean is None:
            charged = (
                w * (_FINE * charge + inside * whole * max(0, timed[0] - timed[1] * each.spare))
                for charge, inside, w in ((*each.charge(b, e, whole), w) for b, e, w in spans)
            )
            demands.append(sum(charged))
        else:
            paid = int(price * weigh) * whole * _FINE
            given = paid * int(goals[0][1][mean] * unit)
            demands.append(_least(each, cells, less, paid, spans, whole, timed) - given)
    length = sum(weight * (end - begin) for begin, end, weight in spans)
    return demands, _FINE * whole * unit * weigh, Fraction(length, unit * weigh)


def _limit(value: float, whole: bool) -> Fraction:
    """Return a limit in steps as the decimal that was written, on a clock with the tolerance."""
    return Fraction(str(value)) if whole else Fraction(value * _ROUNDING)


def _mean_of(certificate: CapacityCertificate) -> str | None:
    """Return the metric whose mean is limited; None where shares of the requests have limits."""
    goals = certificate.goals
    if all(goal.misses is not None for goal in goals):
        return None
    metric, *others = goals[0].limits
    if len(goals) > 1 or others or metric == "tpot" or not certificate.latencies:
        raise CertificateError(
            "the certificate of a mean must have one goal with one limit, of latency or ttft"
        )
    return metric


def _limited(
    request: ChargedRequest,
    c0: int,
    dear: int,
    limits: dict[str, int],
    certificate: CapacityCertificate,
    unit: int,
    mean: str | None,
) -> tuple[()] | _Request | None:
    """Return a request with its due dates, nothing without one; None if it is late alone."""
    d, first = request.decodes, c0 + request.first
    ttft, due = limits.get("ttft"), limits.get("latency")
    if mean is not None:
        if mean not in limits:
            return ()
        d *= mean == "latency"
        return _Request(request, c0, d, None, 0, 0, d > 0, dear)
    paced = limits["tpot"] * d if "tpot" in limits else None
    if ttft is not None and (paced is not None or not d):
        both = ttft + (paced or 0)
        due = both if due is None else min(due, both)
    if certificate.whole:
        ttft, due = (None if t is None else t // unit * unit for t in (ttft, due))
    decoding = request.decoding(c0)
    late = (ttft is not None and first > ttft) or (due is not None and first + decoding > due)
    if late or (d and paced is not None and decoding > paced):
        return None
    if due is None:
        return () if ttft is None else _Request(request, c0, 0, ttft, ttft)
    # Within a time per token the prefills of others may come before the first one.
    paused = d > 0 and (paced is None or due - first < paced)
    spare = due - first if paused or paced is None else paced
    return _Request(request, c0, d, ttft, due, spare, paused, dear)


def _timed(
    requests: list[tuple[()] | _Request | None], c0: int, certificate: CapacityCertificate
) -> list[tuple[int, int]]:
    """Return what each is charged by time, and what less per unit of it, in parts of `_FINE`."""
    found = [(0, 0)] * len(requests)
    part = certificate.by_time
    if not part or not certificate.multipliers:
        return found
    if len(certificate.multipliers) != len(requests):
        raise CertificateError("there must be one multiplier for each request")
    rows = [
        (at, each, m)
        for at, (each, m) in enumerate(zip(requests, certificate.multipliers, strict=True))
        if each and m and each.decodes
    ]
    # The roots, and how steep: both in parts, rounded down.
    roots = [math.isqrt(m * each.request.decode * _FINE) for _, each, m in rows]
    pauses = [each.request.first if each.paused else 0 for _, each, _ in rows]
    steep = [p * _FINE // (each.decodes * m) for p, (_, each, m) in zip(pauses, rows, strict=True)]
    order = sorted(range(len(rows)), key=steep.__getitem__)
    total = sum(each.decodes * root for root, (_, each, _) in zip(roots, rows, strict=True))
    after = sum(each.decodes * m for _, each, m in rows)
    before, pairs = 0, [0] * len(rows)
    for at in order:
        _, each, m = rows[at]
        before, after = before + each.decodes * m * steep[at], after - each.decodes * m
        pairs[at] = m * (before + steep[at] * after)
    norm = 2 * total**2 + sum(each.decodes * x for x, (_, each, _) in zip(pairs, rows, strict=True))
    if not norm:
        return found
    shift = 1 << (norm.bit_length() + 128)
    rate = math.isqrt(2 * c0 * shift * shift // (norm * _UNITS * _FINE))
    for (at, each, m), root, pair, pause in zip(rows, roots, pairs, pauses, strict=True):
        gain = min((2 * root * total + pair) * rate // shift, each.dear)
        d = each.decodes
        extra = 2 * d * (c0 * m + gain * _UNITS) - m * pause
        found[at] = (
            part * extra * (_FINE // (2 * _UNITS * PARTS)),
            part * m * (_FINE // (_UNITS * PARTS)),
        )
    return found


def _least(
    each: _Request,
    cells: list[int],
    less: int,
    price: int,
    spans: list[tuple[int, int, int]],
    whole: int,
    timed: tuple[int, int],
) -> int:
    """Return the least that a latency and what is demanded under it cost, over all latencies."""
    extra, slope = timed
    alone, first = each.lasts(each.decodes), each.lasts(0)
    best = price * (alone + cells[-1])
    kink = first + (extra // slope if slope else 0)  # from when on nothing is charged by time
    for begin, end in itertools.pairwise(cells):
        low, high = alone + begin, alone + end - less
        if price * low >= best:
            break
        due = each._replace(due=high)
        charges = [(*due.charge(b, e, whole), w) for b, e, w in spans]
        inside = whole * sum(w for _, within, w in charges if within)
        held = _FINE * sum(w * charge for charge, _, w in charges)
        points = (low, high, min(max(kink, low), high))
        sums = (price * t + inside * max(0, extra - slope * (t - first)) for t in points)
        best = min(best, held + min(sums))
    return best
