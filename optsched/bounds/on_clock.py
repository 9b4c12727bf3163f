r"""Bounds on a clock: the closed form, and prices of memory over time.

**Closed form.** Charge each request :math:`q_{ik} = w_{ik} + c_0 h_{ik} / M` for its token
:math:`k`, with the seconds :math:`w_{ik}` that it adds and the tokens :math:`h_{ik}` that it holds:
what a batch charges is at most what it lasts. Spread each charge evenly over its batch; the engine
then works on all requests at a rate of at most one. With :math:`W_i = \sum_k q_{ik}` and the mean
:math:`m_i` of the times of its work, request :math:`i` completes no earlier than

.. math:: m_i + \sum_k \frac{q_{ik}}{W_i} \Bigl(\frac{t_{ik}}{2} + \sum_{k' > k} t_{ik'}\Bigr),

since its batches are apart and last :math:`t_{ik} = c_0 + w_{ik}` at least. The sum of the
:math:`m_i` is least where a machine that may be interrupted always serves the least :math:`W_i` of
those that have arrived (Goemans, 1997), by weight where latencies have weights. Several equal
workers are one machine of their speed together. What arrives in one busy period of that machine is
bounded by itself, and never by less than its latencies would be alone.

Where a batch may have at most :math:`B` requests, any mixture of :math:`c_0 / B` times their number
and the above may be charged. A preempted request prefills its prompt and tokens again in place of a
decoding; where that could be cheaper, the decoding is charged no more.

**Prices** are found by projected supergradient ascent with the steps of Adam (Kingma and Ba, 2015),
at first with wide bins, which are cut in halves again and again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating
from optsched.bounds.lagrangian import prices_of, serve
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Storage

_TICKS_OF_BIN = 2.0**40
_SAFE = 2.0**-40  # relative allowance for all roundings, fewer than 2**12 of them in a row
PARTS = 16  # into which the constant is divided between requests and their tokens
_TICKS = 2.0**60  # ticks of time that the machine runs, at most


class LeastWork(NamedTuple):
    """The least that each request needs on a clock, shape (n,), in the clock's unit."""

    first: FloatArray  # its own seconds in the batch that makes its first token
    decode: FloatArray  # what the further tokens 1, 2, ... need is decode + growth * token
    growth: float
    decodes: FloatArray
    constant: float

    @property
    def own(self) -> FloatArray:
        """The latency of each request if it is alone."""
        return self._sum(self.first, self.decode) + self.constant * (self.decodes + 1)

    def charges(self, share: FloatArray, growth: float) -> FloatArray:
        """Return all work with a share of the constant that grows with each token."""
        d = self.decodes
        return self._sum(self.first, self.decode) + self.constant * (
            share * (d + 1) + growth * d * (d + 1) / 2
        )

    def lags(self, share: FloatArray, growth: float) -> FloatArray:
        """Return what lies between the charges and the completion, times the charges."""
        d, constant = self.decodes, self.constant
        charge = self.decode + constant * share  # of further tokens 1, 2, ...: plus
        charge_growth = self.growth + constant * growth  # times the token
        lasts, lasts_growth = constant + self.decode, self.growth
        ones, squares = (d + 1) * d / 2, d * (d + 1) * (2 * d + 1) / 6
        cubes = (d * (d + 1) / 2) ** 2
        later = lasts * d + lasts_growth * ones
        return (
            (self.first + constant * share) * ((constant + self.first) / 2 + later)
            + lasts * (charge * d * d / 2 + charge_growth * squares / 2)
            + lasts_growth * (charge * d * (d + 1) * (4 * d - 1) / 12 + charge_growth * cubes / 2)
        )

    def _sum(self, first: FloatArray, decode: FloatArray) -> FloatArray:
        return first + decode * self.decodes + self.growth * self.decodes * (self.decodes + 1) / 2


class Share(NamedTuple):
    """What a request is charged of the constant of each batch that it is in."""

    first: FloatArray  # of that which makes its first token
    growth: float  # more with each further token
    max_num_seqs: int = 0  # in a batch; 0 without a limit
    by_requests: int = 0  # sixteenths that are shared by number, the others by memory


def share_of(
    instance: Instance,
    max_num_seqs: int = 0,
    by_requests: int = 0,
    storage: Storage = "at-once",
    others: int = 0,
) -> Share:
    """Return what is charged by number, for some sixteenths, and by memory, but for others."""
    by_memory = (PARTS - by_requests - others) / PARTS
    held = instance.prompts.astype(np.float64) + (storage == "at-once")
    fixed = by_requests / PARTS / max_num_seqs if max_num_seqs else 0.0
    first = by_memory * held / instance.memory + fixed
    return Share(first, by_memory / instance.memory, max_num_seqs, by_requests)


def best_share(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    workers: int = 1,
    max_num_seqs: int = 0,
    storage: Storage = "at-once",
) -> Share:
    """Return the share by which the machine proves most; among equal ones, that with most work."""
    work, shares = least_work(instance, clock), shares_of(instance, max_num_seqs, storage)
    if len(shares) == 1:
        return shares[0]
    return max(
        shares,
        key=lambda share: (
            machine_bound(instance, clock, weights, workers, share),
            work.charges(share.first, share.growth).sum(),
        ),
    )


def least_work(instance: Instance, clock: LinearClock) -> LeastWork:
    """Return the least that requests need on a clock, preempted or not."""
    prompts = instance.prompts.astype(np.float64)
    held = prompts + 1
    growth = min(clock.prefill_tokens, clock.resident_tokens)
    decode = np.minimum(clock.decode_requests, _again(held, clock))
    return LeastWork(
        clock.prefill_tokens * prompts
        + clock.squared_prompts * prompts**2
        + clock.held_tokens * held,
        decode + growth * prompts + clock.held_tokens * held,
        growth + clock.held_tokens,
        instance.outputs.astype(np.float64) - 1,
        clock.constant,
    )


def _again(held: FloatArray, clock: LinearClock) -> FloatArray:
    """Return what prefilling tokens again takes at least, beside what grows with each token."""
    growth = min(clock.prefill_tokens, clock.resident_tokens)
    return (clock.prefill_tokens - growth) * held + clock.squared_prompts * held**2


def is_decoding_cheapest(instance: Instance, clock: LinearClock) -> bool:
    """Whether prefilling tokens again always takes as long as decoding one, or longer."""
    decoded = instance.prompts[instance.outputs > 1].astype(np.float64)
    return not len(decoded) or bool(
        clock.prefill_tokens >= clock.resident_tokens
        and (_again(decoded + 1, clock) >= clock.decode_requests).all()
    )


def caveats(instance: Instance, clock: LinearClock) -> list[str]:
    """Say in a sentence each what makes bounds on this clock weaker."""
    found = []
    if not is_decoding_cheapest(instance, clock):
        found.append(
            "on this clock prefilling tokens again may take less than decoding them; the bound "
            "counts on the lesser"
        )
    if not clock.constant:
        found.append(
            "this clock has no constant, without which prices prove nothing; the bound is that of "
            "the machine"
        )
    return found


def machine_bound(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    workers: int = 1,
    share: Share | None = None,
) -> float:
    """Return a lower bound on the weighted latency on a clock, without prices."""
    work = least_work(instance, clock)
    arrivals = times_since_first(instance, clock)
    shared, growth, *_ = share_of(instance) if share is None else share
    charges = work.charges(shared, growth)
    tick = _ticks(charges, arrivals, workers)
    whole = np.floor(charges * (1 - _SAFE) * tick).astype(np.int64)
    busy = whole > 0  # others take no time of the machine that could be counted
    group, means = _mean_busy_times(
        whole[busy], np.floor(arrivals[busy] * tick).astype(np.int64), weights[busy], workers
    )
    own = weights * work.own
    total = math.fsum(own[~busy])
    if busy.any():
        parts = (
            weights[busy] * (means / tick + work.lags(shared, growth)[busy] / charges[busy]),
            weights[busy] * arrivals[busy],
        )
        counts = group.max() + 1
        late, early, alone = (np.bincount(group, part, counts) for part in (*parts, own[busy]))
        together = late - early - (_SAFE + 2.0**-52 * len(own)) * (late + early)
        total += math.fsum(np.maximum(together, alone))
    return total * (1 - _SAFE)


def makespan_on_clock(
    instance: Instance, clock: LinearClock, workers: int, shares: list[Share]
) -> tuple[float, Share]:
    """Return the least time from the first arrival to the last completion, and its share."""
    work, arrivals = least_work(instance, clock), times_since_first(instance, clock)
    alone = float((arrivals + work.own).max())

    def least(share: Share) -> float:
        charges = work.charges(share.first, share.growth)
        return max(alone, float((arrivals + np.cumsum(charges[::-1])[::-1] / workers).max()))

    best = max(shares, key=least)
    # A sum of n terms, one after another, has as many roundings.
    return least(best) * (1 - SAFE - 2.0**-52 * len(instance)), best


def shares_of(instance: Instance, max_num_seqs: int, storage: Storage) -> list[Share]:
    """Return all ways to share the constant of batches that are tried."""
    parts = range(PARTS + 1 if max_num_seqs else 1)
    return [share_of(instance, max_num_seqs, part, storage) for part in parts]


def prices_of_machine(
    instance: Instance,
    clock: LinearClock,
    weights: FloatArray,
    share: Share,
    workers: int,
    width: float,  # of a bin, a power of two
    most: int,
) -> FloatArray | None:
    """Return what a second of the machine is worth in bins; None if there are too many."""
    work = least_work(instance, clock)
    arrivals = times_since_first(instance, clock)
    charges = work.charges(share.first, share.growth)
    # A bin of more ticks would leave the range of integers where all work is far below one.
    tick = max(min(_ticks(charges, arrivals, workers), _TICKS_OF_BIN / width), 1 / width)
    whole = np.maximum(1, np.floor(charges * tick).astype(np.int64))
    last = 2.0**62 / workers  # what arrives later has no bin of its own
    served = serve(
        whole,
        np.minimum(np.floor(arrivals * tick), last).astype(np.int64) * workers,
        np.argsort(whole / weights, kind="stable"),
    )
    bin_of = int(width * tick)
    if served.horizon(bin_of * workers) > most:
        return None
    return bin_of * prices_of(whole / weights, served, bin_of * workers)


def _ticks(charges: FloatArray, arrivals: FloatArray, workers: int) -> float:
    """Return into how many ticks a unit of time can be cut, a power of two."""
    extent = workers * float(arrivals[-1]) + float(charges.sum())
    return 2.0 ** min(1000, math.floor(math.log2(_TICKS / extent))) if extent else 1.0


def _mean_busy_times(
    work: IntArray, arrivals: IntArray, weights: FloatArray, workers: int
) -> tuple[IntArray, FloatArray]:
    """Return the busy period in which each request is served, and the mean time of its service."""
    if not len(work):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    priority = np.argsort(work / weights, kind="stable")
    request, begin, end, _ = serve(work, arrivals * workers, priority)
    period = np.cumsum(np.append(0, begin[1:] > end[:-1]))
    group = np.zeros(len(work), dtype=np.int64)
    group[request] = period
    middle = (begin.astype(np.float64) + end) / 2 / workers
    means = np.bincount(request, (end - begin) * middle / work[request], len(work))
    return group, means.astype(np.float64)


SAFE = 2.0**-36  # relative allowance for the roundings of all sums over bins and requests


class Priced(NamedTuple):
    """Requests as the sweep sees them, shape (n,); times in the clock's unit."""

    arrivals: FloatArray
    weights: FloatArray
    alone: FloatArray
    least: FloatArray  # least own seconds of any of its batches
    share: FloatArray  # of the constant with its first token
    batches: FloatArray
    decoding: FloatArray  # what all tokens but the first take
    prefill: FloatArray  # own seconds of the first batch beyond the least
    tokens: FloatArray  # and of all others
    ahead: FloatArray  # and of all further tokens beyond the first's


class Prices(NamedTuple):
    """Prices by bins: of memory, and of taking part for each request from a bin on."""

    memory: FloatArray
    begins: IntArray
    rows: IntArray  # where the prices of each request are among all, shape (n + 1,)
    taking: FloatArray


class Slopes(NamedTuple):
    """How much each price would bring, beside what it costs."""

    memory: FloatArray
    taking: FloatArray
    work: FloatArray


def priced(instance: Instance, clock: LinearClock, weights: FloatArray, share: Share) -> Priced:
    """Return what a sweep needs of the requests."""
    work = least_work(instance, clock)
    d, second = work.decodes, work.decode + work.growth
    least = np.where(d > 0, np.minimum(work.first, second), work.first)
    own = second * d + work.growth * d * (d - 1) / 2
    return Priced(
        times_since_first(instance, clock),
        weights,
        work.own * (1 - SAFE),  # rounded down, as no price may be missed
        least,
        share.first,
        d + 1,
        (own + clock.constant * d) * (1 - SAFE),
        work.first - least,
        (second - least) * d + work.growth * d * (d - 1) / 2,
        d * (d + 1) / 2 * share.growth,
    )


_DRIFT = 2.0**-30  # of the sum of as many terms as there are bins, which come and go


@allocating
def sweep(
    requests: Priced,
    prices: Prices,
    every: FloatArray,
    slopes: Slopes,
    constant: float,
    width: float,
) -> tuple[float, int]:
    """Return what all requests pay at least and the bins looked at; add to the slopes."""
    (arrivals, weights, alone, least, share, batches, decoding, prefill, tokens, ahead) = requests
    memory, begins, rows, taking = prices
    by_memory, by_taking, by_work = slopes
    bins = len(memory)
    cost, length, best_length = np.empty(bins), np.empty(bins), np.empty(bins)
    where, best_where = np.empty(bins, dtype=np.int64), np.empty(bins, dtype=np.int64)
    total, looked = 0.0, 0
    for request in range(len(arrivals)):
        arrival, batch = arrivals[request], constant + least[request]
        need = batch * batches[request]
        first = math.floor(arrival / width)
        begin, row = begins[request], rows[request]
        count = rows[request + 1] - row
        head = tail = served = 0  # of the bins that it would take part in, dearest first
        covered = charged = highest = 0.0
        earliest, free = arrival + alone[request], bins * width
        best = weights[request] * ((free if free > earliest else earliest) - arrival)
        best_place = -1
        # Bins of the least prices, up to the one at hand.
        low, low_held, low_before, reached = first, first, first, first - 1
        best_low, best_held, best_before = low, low, low
        for place in range(first, bins):
            mine = taking[row + place - begin] if begin <= place < begin + count else 0.0
            price = constant * mine + least[request] * every[place]
            price = (price + constant * share[request] * memory[place]) / batch
            begun = place * width
            looked += 8
            if covered < need or price < cost[head]:
                at = tail
                while at > head and cost[at - 1] < price:
                    cost[at], length[at], where[at] = cost[at - 1], length[at - 1], where[at - 1]
                    at -= 1
                cost[at], where[at] = price, place
                length[at] = begun + width - (begun if begun > arrival else arrival)
                covered += length[at]
                charged += length[at] * price
                highest = max(highest, charged)
                looked += tail - at
                tail += 1
                while covered - length[head] >= need:
                    covered -= length[head]
                    charged -= length[head] * cost[head]
                    head += 1
            if every[place] < every[low]:
                low = place
            if memory[place] < memory[low_held]:
                low_held = place
            if begun + width < earliest:
                continue
            latency = weights[request] * ((begun if begun > earliest else earliest) - arrival)
            if latency >= best:
                break
            before = begun + width - decoding[request]
            while reached < place and (reached + 1) * width <= before:
                reached += 1
                if every[reached] < every[low_before]:
                    low_before = reached
            found = latency + tokens[request] * every[low] + prefill[request] * every[low_before]
            found += constant * ahead[request] * memory[low_held]
            if found + charged - max(0.0, covered - need) * cost[head] - _DRIFT * highest >= best:
                continue
            left, at = need, tail
            while at > head and left > 0:
                at -= 1
                taken = left if left < length[at] else length[at]
                found += taken * cost[at]
                left -= taken
            looked += tail - head
            if found < best:
                best, best_place = found, place
                best_low, best_held, best_before = low, low_held, low_before
                served = tail - head
                for at in range(served):
                    best_where[at], best_length[at] = where[tail - 1 - at], length[tail - 1 - at]
        total += best
        if best_place < 0:
            continue
        left = need
        for at in range(served):
            place = best_where[at]
            taken = left if left < best_length[at] else best_length[at]
            left -= taken
            active = taken * constant / batch
            by_memory[place] += active * share[request]
            by_work[place] += taken - active
            if begin <= place < begin + count:
                by_taking[row + place - begin] += active
        by_work[best_low] += tokens[request]
        by_work[best_before] += prefill[request]
        by_memory[best_held] += constant * ahead[request]
    return total, looked


_GRAIN = 2**20  # prices are whole multiples of 1 / _GRAIN
_WIDTHS = 14.0  # bins of unit width in which the mean request could be served alone, about
_REACH, _BEYOND = 3.0, 1.4  # taking part has a price for so many own and mean latencies alone
_MAX_BINS = 2**20
_MAX_PRICES = 2**23
_IDLE_PRICE = 0.5  # of taking part, where memory has none
_BUSY_PRICE = 0.25  # where it has
_STEEP = 3.0  # largest slope that counts
_LATEST, _SPREAD, _FLAT = 0.95, 0.99, 0.3  # Adam: kept of means and spreads, and epsilon
_SHRINKS = 100.0  # steps are divided by the root of 1 + rounds / _SHRINKS
_WORK = 2.5e9  # bins looked at by all sweeps together, an equal share for each of the levels left
_ROUND_WORK, _PRICE_WORK = 3e4, 4.0  # of a round, beside the bins that it looks at


class _Level(NamedTuple):
    """Rounds of ascent with bins of one width."""

    width: float
    rounds: int
    memory: float  # first step of the prices of memory, over their mean on the machine
    taking: float  # and of those of taking part, over the weight
    ahead: float  # the most that levels to come add to the bound, of what it is


_LEVELS = (
    _Level(4.0, 150, 0.05, 0.3, 0.12),
    _Level(2.0, 80, 0.005, 0.06, 0.05),
    _Level(1.0, 40, 0.0015, 0.02, 0.02),
    _Level(0.5, 20, 0.0005, 0.01, 0.0),
)


class _Point(NamedTuple):
    """Prices of memory by bins, and of taking part by request and bin."""

    memory: FloatArray
    taking: FloatArray


class _Bins:
    """Time in bins of one width, and the bins in which each request has prices."""

    def __init__(self, requests: Priced, width: float, at_least: int) -> None:
        reach = _REACH * requests.alone + _BEYOND * requests.alone.mean()
        counts = np.ceil(reach / width).astype(np.int64)
        self.requests, self.width = requests, width
        self.begins = (requests.arrivals / width).astype(np.int64)
        self.rows = np.append(0, np.cumsum(counts))
        self.count = max(at_least, int((self.begins + counts).max()))
        self.fits = self.count <= _MAX_BINS and self.rows[-1] <= _MAX_PRICES
        if self.fits:
            self.request = np.repeat(np.arange(len(counts)), counts)
            self.place = np.arange(self.rows[-1]) - self.rows[self.request]
            self.bin_of = self.begins[self.request] + self.place

    def from_wider(self, wider: _Bins, prices: _Point) -> _Point:
        """Return the prices that were found in bins of twice the width."""
        memory = np.zeros(self.count)
        memory[: 2 * wider.count] = np.repeat(prices.memory, 2)
        last = wider.rows[self.request + 1] - 1
        rows = wider.rows[self.request] + self.bin_of // 2 - wider.begins[self.request]
        return _Point(memory, prices.taking[np.minimum(rows, last)])


class _ClockAscent:
    """The best prices so far and the work spent on them."""

    def __init__(self, requests: Priced, constant: float, workers: int, work: float) -> None:
        self.constant, self.workers = constant, workers
        self.weights = requests.weights
        self.work_left = work

    def look(self, bins: _Bins, at: _Point) -> tuple[float, _Point]:
        """Return the bound by prices, and how much more of each would be used than there is."""
        room = self.workers * bins.width
        memory, taking, work = slopes = Slopes(*map(np.zeros_like, (*at, at.memory)))
        prices = Prices(at.memory, bins.begins, bins.rows, at.taking)
        every = at.memory + np.bincount(bins.bin_of, at.taking, bins.count)
        paid, looked = sweep(bins.requests, prices, every, slopes, self.constant, bins.width)
        self.work_left -= looked + _PRICE_WORK * len(taking) + _ROUND_WORK
        value = paid - room * (math.fsum(at.memory) + math.fsum(at.taking))
        return value, _Point((memory + work) / room - 1, (taking + work[bins.bin_of]) / room - 1)

    def climb(
        self, bins: _Bins, at: _Point, level: _Level, scale: float, spare: float
    ) -> tuple[float, _Point]:
        """Return the best bound and prices met in some rounds that leave some work to spare."""
        steps = _Point(
            np.full(bins.count, level.memory * scale), level.taking * self.weights[bins.request]
        )
        highest, best = -math.inf, at
        means, spreads = (_Point(*map(np.zeros_like, at)) for _ in range(2))
        for done in range(1, level.rounds + 1):
            value, slopes = self.look(bins, at)
            if value > highest:
                highest, best = value, at
            if self.work_left <= spare:
                break
            slopes = _Point(*(np.minimum(_STEEP, slope) for slope in slopes))
            means = _Point(*map(_mixed, means, slopes, (_LATEST, _LATEST)))
            spreads = _Point(*map(_mixed, spreads, (s**2 for s in slopes), (_SPREAD, _SPREAD)))
            shrunk = 1 / (math.sqrt(1 + done / _SHRINKS) * (1 - _LATEST**done))
            at = _Point(
                *(
                    np.maximum(0.0, p + s * shrunk * m / (np.sqrt(v / (1 - _SPREAD**done)) + _FLAT))
                    for p, s, m, v in zip(at, steps, means, spreads, strict=True)
                )
            )
        return highest, best


def _mixed(old: FloatArray, new: FloatArray, share: float) -> FloatArray:
    return share * old + (1 - share) * new


def price_on_clock(
    instance: Instance,
    clock: LinearClock,
    certificate: ClockCertificate,
    weights: FloatArray,
    known: float = -math.inf,
    work: float = _WORK,
) -> ClockCertificate | None:
    """Find prices that prove much, in the form of a certificate without any.

    None if there would be too many, or once it is unlikely that they prove more than is known.
    """
    # Latencies weigh one at most here: prices are whole multiples of a small part of the largest.
    scale = math.frexp(float(weights.max()))[1] - 1
    weights = np.maximum(np.ldexp(weights, -scale), np.finfo(np.float64).tiny)
    parts = certificate.max_num_seqs, certificate.by_requests, certificate.storage
    share = share_of(instance, *parts)
    requests = priced(instance, clock, weights, share)
    unit = 2.0 ** round(math.log2(float(requests.alone.mean()) / _WIDTHS))
    width = unit * _LEVELS[0].width
    machine = prices_of_machine(
        instance, clock, weights, share, certificate.workers, width, _MAX_BINS
    )
    if machine is None:
        return None
    bins = _Bins(requests, width, len(machine) + 1)
    if not bins.fits:
        return None
    ascent = _ClockAscent(requests, clock.constant, certificate.workers, work)
    best = _first(ascent, bins, np.append(machine, np.zeros(bins.count - len(machine))))
    mean = float(machine.mean())
    for done, level in enumerate(_LEVELS):
        if done:
            finer = _Bins(requests, bins.width / 2, 2 * bins.count)
            if not finer.fits or ascent.work_left <= 0:
                break
            bins, best = finer, finer.from_wider(bins, best)
        spare = ascent.work_left * (1 - 1 / (len(_LEVELS) - done))
        value, best = ascent.climb(bins, best, level, mean, spare)
        if math.ldexp(value + level.ahead * abs(value), scale) <= known:
            return None
    return _certified(ascent, bins, best, certificate, scale)


def _first(ascent: _ClockAscent, bins: _Bins, machine: FloatArray) -> _Point:
    """Return the best of some prices that are near at hand."""
    weights = ascent.weights[bins.request]
    taking = weights * (bins.place * bins.width <= bins.requests.alone[bins.request])
    starts = (
        _Point(np.zeros(bins.count), _IDLE_PRICE * taking),
        _Point(machine, np.zeros(len(taking))),
        _Point(machine, _BUSY_PRICE * taking),
    )
    return max(starts, key=lambda start: ascent.look(bins, start)[0])


def _certified(
    ascent: _ClockAscent, bins: _Bins, best: _Point, certificate: ClockCertificate, scale: int
) -> ClockCertificate:
    """Return the certificate with prices, which are rounded first and then times 2**scale."""
    whole = _Point(*(np.floor(prices * _GRAIN) for prices in best))
    value, _ = ascent.look(bins, _Point(whole.memory / _GRAIN, whole.taking / _GRAIN))
    paid = ascent.workers * bins.width * sum(math.fsum(prices) for prices in whole) / _GRAIN
    late = float(ascent.weights @ bins.requests.arrivals)  # subtracted from all completions
    claim = value - SAFE * (abs(value) + 2 * paid + late)
    unit = Fraction(2) ** scale / _GRAIN
    parts = np.split(whole.taking.astype(np.int64), bins.rows[1:-1])

    def exact(prices: IntArray) -> tuple[int, ...]:
        return tuple(unit.numerator * price for price in prices.tolist())

    return replace(
        certificate,
        width=bins.width,
        denominator=unit.denominator,
        memory_prices=exact(whole.memory.astype(np.int64)),
        begins=tuple(bins.begins.tolist()),
        prices=tuple(exact(np.trim_zeros(part, "b")) for part in parts),
        value=Fraction(claim) * Fraction(2) ** scale,
    )
