r"""Certificates of bounds on a clock, and a verifier that trusts nothing but integers.

**Without prices** the verifier lets a machine serve the charges of
`optsched.bounds.on_clock`, least charge over weight first, and adds what lies between the
charges and each completion.

Of the makespan, all charges of what arrives from some time on are served after it.

**By a path** the certificate is six numbers and rates, as `optsched.certificates.path` says.

**With prices.** Time from some step on, the first arrival at the latest, is cut into bins of equal
width. In each bin memory has a price :math:`\nu \ge 0`, and taking part in a batch has a price
:math:`\mu_i \ge 0` for each request; :math:`\pi = \nu + \sum_i \mu_i`. A batch over some time pays
the mean of :math:`\pi` times what it lasts: for the seconds :math:`w` of each request in it, and
for the constant :math:`c_0`, which is at least :math:`c_0 \sum_i ( \bar\mu_i + \bar\nu\, h_i / M )`
over the requests that take part, since they hold :math:`\sum_i h_i \le M`. So no schedule has a
total latency below :math:`\sum_i \varphi_i - G \int \pi`, where :math:`G` is the number of workers
and :math:`\varphi_i` the least latency plus payments of request :math:`i` alone.

:math:`\varphi_i` is taken from below. Each of its :math:`o_i` batches lasts at least :math:`c_0 +
v` with :math:`v` its least own seconds, so that at least :math:`o_i (c_0 + v)` seconds between
arrival and completion are paid at :math:`(c_0 \mu_i + v \pi + c_0 \nu h_i / M) / (c_0 + v)`: the
cheapest there are. What its prefill takes beyond :math:`v` is paid at the least :math:`\pi` before
the time that its decoding needs, what later tokens add at the least :math:`\pi` and :math:`\nu` of
all. A completion counts as at the beginning of its bin, or when the request alone could complete.

**With a limit** of :math:`B` requests per batch the constant is also at least :math:`c_0 / B` times
their number; with `by_requests` sixteenths of it shared so, :math:`h_i / M` becomes
:math:`(1 - \theta) h_i / M + \theta / B`. Where an engine **stores** a token one batch later,
:math:`h_i` is one less in each batch.

Integers round down to 2**-80 of the clock's unit for each request. The verifier shares no code with
the modules that make certificates.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from optsched._internal.files import read_object
from optsched.certificates.checks import (
    ChargedRequest,
    Claimed,
    check_fingerprint,
    check_step,
    read_fields,
)
from optsched.certificates.path import SMALL, CommonPath, on_a_path
from optsched.errors import CertificateError
from optsched.problem.premises import STORAGES, Storage, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.problem.instance import Instance

_MAX_BINS = 2**24
_MOST, _RATE, _OFFSETS = 2**40, 2**10, 2**6  # steps, rate and offsets of a path, at most
_FINE = 2**80  # of the clock's unit, to which each request's part is rounded down
PARTS = 16  # into which the constant of batches is divided between requests and their tokens


@dataclass(frozen=True)
class ClockCertificate(Claimed):
    """Proof of a bound on the total or the weighted latency, or the makespan, on a clock."""

    FORMAT = "optsched-clock-certificate"

    clock: tuple[float, ...]  # its constant and its five coefficients
    seconds_per_step: float  # of arrivals; 1 on a clock whose unit is "steps"
    fingerprint: str
    unit: str = "s"
    workers: int = 1
    objective: str = "total-latency"
    width: float = 1.0  # of bins, from step `origin` on
    denominator: int = 1  # of all prices
    memory_prices: tuple[int, ...] = field(default=(), repr=False)  # of bins; all others are zero
    begins: tuple[int, ...] = field(default=(), repr=False)  # first bin of prices, by request
    prices: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    value: Fraction = Fraction(0)
    max_num_seqs: int = 0  # 0: no limit of requests per batch
    by_requests: int = 0
    storage: Storage = "at-once"
    origin: int = 0  # at most the first arrival
    counted: int = 0  # steps of `width` that a prefill counts for at most, where it goes by a path
    backlog: int = 0  # in steps, from which on all are one
    until: int = 0  # the step by whose begin tokens are made that earn
    # Of what they refund, in windows of as many steps until then.
    rates: tuple[float, ...] = field(default=(), repr=False)
    aside: float = 0.0  # share of latencies
    offsets: int = 1  # into so many parts of a step work is cut

    def __post_init__(self) -> None:
        numbers = (*self.clock, self.seconds_per_step)
        if len(self.clock) != 6 or not all(0 <= number < float("inf") for number in numbers):
            raise CertificateError("a clock is six numbers, none of them negative or infinite")
        if self.denominator < 1 or self.workers < 1 or not 0 < self.width < float("inf"):
            raise CertificateError("denominator, workers and width of bins must be positive")
        if self.max_num_seqs < 0 or not 0 <= self.by_requests <= PARTS * (self.max_num_seqs > 0):
            raise CertificateError(
                f"{self.by_requests} sixteenths of the constant cannot be shared by requests, of "
                f"which a batch has at most {self.max_num_seqs or 'any number'}"
            )
        if self.storage not in STORAGES:
            known = " or ".join(STORAGES)
            raise CertificateError(f"storage is {self.storage!r}, but must be {known}")
        if self.unit not in ("s", "steps"):
            raise CertificateError(f"the unit is {self.unit!r}, but must be s or steps")
        if self.objective not in ("total-latency", "weighted-latency", "makespan"):
            raise CertificateError(f"no certificate can prove anything about {self.objective!r}")
        alone = self.workers == 1 and self.objective == "total-latency"
        if self.counted and not alone:
            raise CertificateError("a path proves something about total latency on one worker only")
        steps, shares = (self.counted, self.backlog, self.until), (self.aside, *self.rates)
        most = (1, *[_RATE] * len(self.rates))
        within = all(0 <= each <= limit for each, limit in zip(shares, most, strict=True))
        if not 0 <= min(steps) <= max(steps) < _MOST or not within:
            raise CertificateError(
                f"counted, backlog, until, aside and rates are {steps}, {self.aside} and "
                f"{self.rates[:9]}, but must be from 0 to {_MOST}, 1 and {_RATE}"
            )
        if not 1 <= self.offsets <= _OFFSETS:
            raise CertificateError(f"offsets are {self.offsets}, but must be from 1 to {_OFFSETS}")
        every = (*self.begins, *self.memory_prices, *(p for row in self.prices for p in row))
        if min(every, default=0) < 0:
            raise CertificateError("a price or a bin is negative")
        ends = (begin + len(row) for begin, row in zip(self.begins, self.prices, strict=False))
        if max(ends, default=0) > _MAX_BINS:
            raise CertificateError(f"prices reach beyond bin {_MAX_BINS}; cut time into fewer bins")
        if len(self.begins) != len(self.prices):
            raise CertificateError(f"{len(self.prices)} rows of prices begin {len(self.begins)}")

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        return World(
            self.fingerprint,
            self.workers,
            self.clock,
            self.seconds_per_step,
            self.storage,
            "resumed",
            self.max_num_seqs or None,
            objective=self.objective,
        )

    @classmethod
    def from_json(cls, source: str | Path) -> ClockCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "a clock and prices")
        if content.get("format") != cls.FORMAT:
            raise CertificateError(f"{where} is not a certificate of a bound on a clock")
        depths = {"workers": 0, "denominator": 0, "memory_prices": 1, "begins": 1, "prices": 2}
        names = ("max_num_seqs", "by_requests", "origin", "counted", "backlog", "until")
        optional = {**dict.fromkeys(names, 0), "offsets": 1}
        fields = read_fields({**optional, **content}, where, **depths, **dict.fromkeys(optional, 0))
        try:
            clock = tuple(float(number) for number in content["clock"])
            width, step = float(content["width"]), float(content["seconds_per_step"])
            fields["aside"] = float(content.get("aside", 0))
            fields["rates"] = tuple(float(rate) for rate in content.get("rates", ()))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CertificateError(
                f"{where}: clock, width, seconds_per_step, aside and rates must be numbers"
            ) from None
        return cls(
            clock,
            step,
            unit=str(content.get("unit")),
            objective=str(content.get("objective")),
            width=width,
            storage=content.get("storage", "at-once"),
            **fields,
        )


def verify_on_clock(certificate: ClockCertificate, instance: Instance) -> Fraction:
    """Find the bound that a certificate proves, in the unit of its clock."""
    check_fingerprint(certificate.fingerprint, instance)
    step = certificate.seconds_per_step
    check_step(step, certificate.unit, instance)
    clock = [Fraction(number) for number in (*certificate.clock, certificate.width)]
    origin, every = certificate.origin, instance.arrivals.tolist()
    if not 0 <= origin <= every[0]:
        raise CertificateError(f"bins begin at step {origin}, after the first arrival")
    arrivals = [Fraction(float(arrival - origin) * step) for arrival in every]
    unit = max(number.denominator for number in (*clock, *arrivals))  # all are powers of two
    unit <<= SMALL if certificate.counted else 0
    c0, *own, width = (int(number * unit) for number in clock)
    batches = instance.memory, certificate.max_num_seqs, certificate.storage
    whole, shares = shared_constant(*batches, certificate.by_requests)
    weights = [1.0] * len(instance)
    if certificate.objective == "weighted-latency" and instance.weights is not None:
        weights = instance.weights.tolist()
    scale = Fraction(2) ** min(0, math.frexp(max(weights))[1])  # small weights are not rounded away
    requests = [
        charged_request(prompt, output, int(arrival * unit), Fraction(weight) / scale, own, shares)
        for prompt, output, arrival, weight in zip(
            instance.prompts.tolist(), instance.outputs.tolist(), arrivals, weights, strict=True
        )
    ]
    if certificate.objective == "makespan":
        first = Fraction(float(origin) * step)
        return first + Fraction(_last(requests, c0, whole * certificate.workers, whole), unit)
    if certificate.counted:
        prefills = [own[0] * each + own[3] * each * each for each in instance.prompts.tolist()]
        steps = certificate.counted, certificate.backlog, certificate.until
        rates = tuple(Fraction(rate) for rate in certificate.rates)
        path = CommonPath(width, *steps, rates, Fraction(certificate.aside), certificate.offsets)
        return on_a_path(requests, prefills, c0, path) / unit
    if not certificate.memory_prices and not certificate.prices:
        total = _machine(requests, c0, whole, certificate.workers, unit)
    else:
        if c0 == 0:
            raise CertificateError("prices prove nothing on a clock without a constant")
        if len(certificate.prices) != len(instance):
            raise CertificateError(
                f"{len(certificate.prices)} rows of prices for {len(instance)} requests"
            )
        total = _priced(requests, c0, width, whole, certificate, unit, scale.denominator)
    return Fraction(total, _FINE) * scale


def shared_constant(
    memory: int, max_num_seqs: int, storage: Storage, by_requests: int, others: int = 0
) -> tuple[int, tuple[int, int]]:
    """Return into how many parts it is cut, and how many a request and each held token pay for."""
    most = max(1, max_num_seqs)
    sharing = (PARTS - by_requests - others) * most
    own = by_requests * memory - (storage == "next-batch") * sharing
    return PARTS * memory * most, (own, sharing)


def charged_request(
    prompt: int,
    output: int,
    arrival: int,
    weight: Fraction,
    own: list[int],
    shares: tuple[int, int],
) -> ChargedRequest:
    """Return a request in whole units of time, with shares of the constant."""
    prefill, decode, resident, squared, holding = own
    held = prompt + 1
    # A token that is made after recomputing x tokens takes prefill * x + squared * x * x in place
    # of decode + resident * x, for some x from `held` on; both grow by `slope` at least.
    slope = min(prefill, resident)
    least = min(decode, (prefill - slope) * held + squared * held * held)
    return ChargedRequest(
        arrival,
        weight,
        output - 1,
        shares[0] + shares[1] * held,
        shares[1],
        prefill * prompt + squared * prompt * prompt + holding * held,
        least + slope * held + holding * (held + 1),
        slope + holding,
    )


def _last(requests: list[ChargedRequest], c0: int, parts: int, whole: int) -> Fraction:
    """Return when the last request completes at the earliest."""
    # What arrives from some time on is served after it; its charges are cut into `parts`.
    charged, last = 0, Fraction(0)
    for request in reversed(requests):
        charged += _charged(request, c0, whole)[0]
        least = max(Fraction(charged, parts), Fraction(request.alone(c0)))
        last = max(last, request.arrival + least)
    return last


def _machine(requests: list[ChargedRequest], c0: int, whole: int, workers: int, unit: int) -> int:
    """Return the bound by a machine that serves all charges, in units of 1 / _FINE."""
    charges, lags = zip(*(_charged(request, c0, whole) for request in requests), strict=True)
    keys = [Fraction(w) / request.weight for w, request in zip(charges, requests, strict=True)]
    # Time on the machine counts `whole * workers` per unit, so that charges are whole.
    squares = [0] * len(requests)
    left = list(charges)
    waiting: list[tuple[Fraction, int]] = []
    now = arrived = total = 0
    busy: list[int] = []  # requests of the busy period

    def close() -> int:
        """Return the larger bound of a busy period that has ended."""
        together = alone = 0
        for index in busy:
            request, charge = requests[index], charges[index]
            fine = _FINE * request.weight / unit
            middle = Fraction(squares[index], 2 * charge * whole * workers)
            late = middle + Fraction(lags[index], 2 * charge) - request.arrival
            together += math.floor(fine * late)
            alone += math.floor(fine * request.alone(c0))
        busy.clear()
        return max(together, alone)

    while arrived < len(requests) or waiting:
        if not waiting:
            total += close()
            now = max(now, requests[arrived].arrival * whole * workers)
        while arrived < len(requests) and requests[arrived].arrival * whole * workers <= now:
            if charges[arrived]:
                busy.append(arrived)
                heapq.heappush(waiting, (keys[arrived], arrived))
            else:  # it needs none of the machine: its latency alone is all that is known
                request = requests[arrived]
                total += math.floor(_FINE * request.weight / unit * request.alone(c0))
            arrived += 1
        if not waiting:
            continue
        served = waiting[0][1]
        end = now + left[served]
        if arrived < len(requests):
            end = min(end, requests[arrived].arrival * whole * workers)
        squares[served] += end * end - now * now
        left[served] -= end - now
        if not left[served]:
            heapq.heappop(waiting)
        now = end
    return total + close()


def _charged(request: ChargedRequest, c0: int, whole: int) -> tuple[int, int]:
    """Return the sum of the charges times `whole`, and twice that of charges times their lags."""
    d = request.decodes
    # Charges of further tokens j = 0, 1, ... are a + b j, their batches last c + e j.
    a = whole * request.decode + c0 * (request.share + request.sharing)
    b = whole * request.growth + c0 * request.sharing
    c, e = c0 + request.decode, request.growth
    ones, squares = d * (d - 1) // 2, (d - 1) * d * (2 * d - 1) // 6
    cubes = ones * ones
    prefill = whole * request.first + c0 * request.share
    decoding = c * d + e * ones
    # Twice the half of a batch and all after it: 2 * decoding - c (1 + 2 j) - e j j.
    whole = 2 * decoding - c
    lag = prefill * (c0 + request.first + 2 * decoding)
    lag += a * (whole * d - 2 * c * ones - e * squares)
    lag += b * (whole * ones - 2 * c * squares - e * cubes)
    return prefill + a * d + b * ones, lag


def _priced(
    requests: list[ChargedRequest],
    c0: int,
    width: int,
    whole: int,
    certificate: ClockCertificate,
    unit: int,
    times: int,
) -> int:
    """Return the bound by prices, which count so many times, in units of 1 / _FINE."""
    priced = ([times * price for price in row] for row in certificate.prices)
    rows = list(zip(certificate.begins, priced, strict=True))
    horizon = max(len(certificate.memory_prices), *(begin + len(row) for begin, row in rows))
    holding = [times * price for price in certificate.memory_prices]
    holding += [0] * (horizon - len(holding))
    every = holding.copy()
    for begin, row in rows:
        for place, price in enumerate(row, begin):
            every[place] += price
    rent = Fraction(certificate.workers * sum(every) * width, certificate.denominator * unit)
    total = -math.ceil(_FINE * rent)
    for request, (begin, row) in zip(requests, rows, strict=True):
        least = min(request.first, request.decode) if request.decodes else request.first
        # Costs are counted in whole units of 1 / scale.
        scale = whole * (c0 + least) * certificate.denominator * request.weight.denominator
        second = request.weight.numerator * scale // request.weight.denominator
        best: int | None = None
        for latency, paid in _completions(request, begin, row, holding, every, width, c0, whole):
            if best is not None and second * latency >= best:
                break
            found = second * latency + paid * request.weight.denominator
            best = found if best is None else min(best, found)
        assert best is not None
        total += _FINE * best // (scale * unit)
    return total


def _completions(
    request: ChargedRequest,
    begin: int,
    row: list[int],
    holding: list[int],
    every: list[int],
    width: int,
    c0: int,
    whole: int,
) -> Iterator[tuple[int, int]]:
    """Yield the least latency and payments for each bin of completion, in order."""
    # Payments are times `whole`, the least batch of the request and the denominator of prices.
    alone, decoding = request.alone(c0), request.decoding(c0)
    least = min(request.first, request.decode) if request.decodes else request.first
    batch = c0 + least
    need = batch * (request.decodes + 1)
    d = request.decodes
    prefill = request.first - least
    tokens = (request.decode - least) * d + request.growth * (d * (d - 1) // 2)
    ahead = d * (d + 1) // 2
    first = request.arrival // width
    cheapest: list[tuple[int, int]] = []  # price of a second times `whole * batch`, seconds
    low_every = low_holding = low_before = None
    reached = first - 1
    for place in range(first, len(every)):
        mine = row[place - begin] if begin <= place < begin + len(row) else 0
        price = whole * (c0 * mine + least * every[place]) + c0 * request.share * holding[place]
        length = (place + 1) * width - max(place * width, request.arrival)
        insort(cheapest, (price, length))
        low_every = every[place] if low_every is None else min(low_every, every[place])
        low_holding = holding[place] if low_holding is None else min(low_holding, holding[place])
        if (place + 1) * width < request.arrival + alone:
            continue
        while reached < place and (reached + 1) * width <= (place + 1) * width - decoding:
            reached += 1
            low_before = every[reached] if low_before is None else min(low_before, every[reached])
        assert low_before is not None
        left, payments = need, 0
        for used, (price, length) in enumerate(cheapest, 1):
            payments += price * min(length, left)
            left -= min(length, left)
            if not left:
                del cheapest[used:]  # what comes later can only be cheaper
                break
        payments += whole * batch * (prefill * low_before + tokens * low_every)
        payments += batch * c0 * request.sharing * ahead * low_holding
        yield max(place * width, request.arrival + alone) - request.arrival, payments
    yield max(len(every) * width, request.arrival + alone) - request.arrival, 0
