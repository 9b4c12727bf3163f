"""Bounds on a clock by prices over time: what a batch costs those who stand still meanwhile.

Prices are found by projected supergradient ascent with the steps of Adam (Kingma and Ba, 2015): a
price rises where requests would take part in more than fits into its bin, and falls elsewhere. Most
rounds are made with wide bins, which are cut in halves again and again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.bounds.clock_prices import SAFE, Priced, Prices, Slopes, priced, sweep
from optsched.bounds.on_clock import prices_of_machine, share_of

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance

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
_WORK = 3e9  # bins looked at by all sweeps together


class _Level(NamedTuple):
    """Rounds of ascent with bins of one width."""

    width: float
    rounds: int
    memory: float  # first step of the prices of memory, over their mean on the machine
    taking: float  # and of those of taking part, over the weight


_LEVELS = (
    _Level(4.0, 150, 0.05, 0.3),
    _Level(2.0, 80, 0.005, 0.06),
    _Level(1.0, 40, 0.0015, 0.02),
    _Level(0.5, 20, 0.0005, 0.01),
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

    def halved(self) -> _Bins:
        """Return bins of half the width."""
        return _Bins(self.requests, self.width / 2, 2 * self.count)

    def from_wider(self, wider: _Bins, prices: _Point) -> _Point:
        """Return the prices that were found in bins of twice the width."""
        memory = np.zeros(self.count)
        memory[: 2 * wider.count] = np.repeat(prices.memory, 2)
        last = wider.rows[self.request + 1] - 1
        rows = wider.rows[self.request] + self.bin_of // 2 - wider.begins[self.request]
        return _Point(memory, prices.taking[np.minimum(rows, last)])


class _Ascent:
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
        self.work_left -= looked
        value = paid - room * (math.fsum(at.memory) + math.fsum(at.taking))
        return value, _Point((memory + work) / room - 1, (taking + work[bins.bin_of]) / room - 1)

    def climb(self, bins: _Bins, at: _Point, level: _Level, scale: float) -> _Point:
        """Return the best prices met in some rounds from given ones."""
        steps = _Point(
            np.full(bins.count, level.memory * scale), level.taking * self.weights[bins.request]
        )
        highest, best = -math.inf, at
        means, spreads = (_Point(*map(np.zeros_like, at)) for _ in range(2))
        for done in range(1, level.rounds + 1):
            value, slopes = self.look(bins, at)
            if value > highest:
                highest, best = value, at
            if self.work_left <= 0:
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
        return best


def _mixed(old: FloatArray, new: FloatArray, share: float) -> FloatArray:
    return share * old + (1 - share) * new


def price_on_clock(
    instance: Instance,
    clock: LinearClock,
    certificate: ClockCertificate,
    weights: FloatArray,
    effort: float = 1.0,
) -> ClockCertificate | None:
    """Find prices that prove much, in the form of a certificate without any; None if too many."""
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
    ascent = _Ascent(requests, clock.constant, certificate.workers, _WORK * effort)
    best = _first(ascent, bins, np.append(machine, np.zeros(bins.count - len(machine))))
    scale = float(machine.mean())
    for level in _LEVELS:
        if level.width < bins.width / unit:
            finer = bins.halved()
            if not finer.fits or ascent.work_left <= 0:
                break
            bins, best = finer, finer.from_wider(bins, best)
        level = level._replace(rounds=math.ceil(level.rounds * effort))
        best = ascent.climb(bins, best, level, scale)
    return _certified(ascent, bins, best, certificate)


def _first(ascent: _Ascent, bins: _Bins, machine: FloatArray) -> _Point:
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
    ascent: _Ascent, bins: _Bins, best: _Point, certificate: ClockCertificate
) -> ClockCertificate:
    """Return the certificate with prices, which are rounded first."""
    whole = _Point(*(np.floor(prices * _GRAIN) for prices in best))
    value, _ = ascent.look(bins, _Point(whole.memory / _GRAIN, whole.taking / _GRAIN))
    paid = ascent.workers * bins.width * sum(math.fsum(prices) for prices in whole) / _GRAIN
    late = float(ascent.weights @ bins.requests.arrivals)  # subtracted from all completions
    claim = value - SAFE * (abs(value) + 2 * paid + late)
    parts = np.split(whole.taking.astype(np.int64), bins.rows[1:-1])
    return replace(
        certificate,
        width=bins.width,
        denominator=_GRAIN,
        memory_prices=tuple(whole.memory.astype(np.int64).tolist()),
        begins=tuple(bins.begins.tolist()),
        prices=tuple(tuple(np.trim_zeros(part, "b").tolist()) for part in parts),
        value=Fraction(claim),
    )
