r"""A bound on a clock by one common path, for the total latency on one worker.

**The path.** Of the prefill :math:`p_k` of each request the first :math:`p'_k \le \bar p` is
*counted*. :math:`A(t)` is the counted work that has arrived and :math:`V(t)` what is done of it;
within a batch it goes first, so that :math:`V` has slope 1 at most, and :math:`\theta = t - V(t)`
never falls and has slope 1 at most as well. A machine that always works has the least backlog
:math:`B = A - V`, and with it the least :math:`\theta_0`. Let i need :math:`w_i` alone, and
:math:`H_i = w_i - p'_i`, let :math:`P_i` be when its counted work is done, :math:`\omega_i =
\theta(P_i) - \theta(a_i)` and :math:`\delta_i` what batches that it is in last longer for others'
decodes. From the batch of :math:`P_i` on it takes part in :math:`H_i` of :math:`\theta` at least:

.. math:: \theta(C_i) \ge \theta(a_i) + \omega_i + H_i + \delta_i .

With :math:`e_i = \theta_0(a_i) + H_i` and as :math:`\theta` is no faster than time,

.. math:: C_i - a_i \ge \int_{a_i} [\theta(t) < e_i]\, dt
    + \min\{\theta(a_i) - \theta_0(a_i), H_i\} + \omega_i + \delta_i .

What waits holds :math:`\bar p` of the backlog at most, so that :math:`\sum_i \omega_i \ge \int
\nu(B)\, d\theta` with :math:`\nu(B) = \lceil B / \bar p \rceil`, by parts :math:`\int \nu\, dt`
less :math:`N(B + p'_k) - N(B)` at each arrival, :math:`N' = \nu`.

**On a grid.** Arrivals, :math:`p'_k` and :math:`\bar p` are rounded down to whole steps; what all
arrive earlier is subtracted, and what is left of :math:`H_i` added. Round a path at the begins of
steps: :math:`\theta` up where its fraction is above one number that is drawn for all from 0 to 1,
else down. That is a path again, in whose steps the backlog stays or falls by one. What is linear
between whole numbers has the same mean: N, and what :math:`\theta` is above :math:`\theta_0`. The
integrals have no larger one: in a step :math:`[\theta < e_i]` and :math:`\nu(B)` last at least as
long as if :math:`\theta`, or V, were as fast as time. So no path costs less than a shortest one on
the grid. From some backlog on all are one state, in which only those that wait count. In a long
time without requests the cost of each state grows evenly.

**Decodes.** Let those in batch b work :math:`u_{kb}`, and let b last :math:`L_b` of :math:`\theta`.
All together they make all that take part wait for :math:`(\sum_k \sqrt{u_{kb}})^2` at least. Less
what is in their own :math:`H`, this is for any :math:`r \ge 0`, as :math:`c_0 \le L_b - \sum_k
u_{kb}`, at least

.. math:: \sum_k \bigl( 2 \sqrt{r c_0 u_{kb}} + (r - 1) u_{kb} \bigr) - r L_b .

Each token that is made by a time :math:`T` earns its term, and all batches until then last
:math:`\theta(T) - \theta(a_0)` at most, a cost of the path. A token that is recomputed in parts
earns no less: a root of a sum is at most the sum of roots.

So that no request puts its tokens off, a share :math:`\eta` of each latency is set aside; of all of
the above the rest counts. If :math:`x > 0` of i's tokens come after T, then :math:`C_i - a_i \ge T
- a_i + (x - 1) t_i`, with its least batch :math:`t_i`. So i adds the least, over x, of :math:`1 -
\eta` times what its other tokens earn and :math:`\eta` times the larger of that and :math:`w_i`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, compiled, compiled_inside
from optsched.bounds.on_clock import SAFE, least_work
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance

_MARGIN = 1 - 2.0**-40  # of work, so that the verifier rounds to the same steps
_FINE, _COARSE = 20.0, 3.0  # steps in the median prefill; a search takes so many times wider ones
_FINEST, _LONGEST = 2.0**12, 2.0**18  # steps in the mean and the longest latency alone, at most
_LAST = 2.0**27  # and in all time
_BELOW = 1 - 2.0**-20  # of a width, so that no time is a whole number of them but for roundings
_CELLS, _CELLS_EACH, _MOST_CELLS = 5e8, 2.5e5, 5e9  # pairs of a step and a backlog; of a request
_BACKLOG = 6.0  # times those that run, in mean prefills: a backlog from which on all are one
_COUNTED, _ASIDE = 3.0, 0.02  # mean prefills that are counted, and what is set aside, at first
_FACTORS, _TELLS = (1.5, 1.2), 1e-5  # by which a search changes a number, and a gain that counts
_SEARCHED = 100_000  # requests up to which there is a search: some ten seconds
_GRAIN = 2**15  # parts of 1 in the rate, so that its products with steps are exact
_STEEPEST, _MOST_ASIDE = 1024.0, 0.9  # the most of the rate, and of what is set aside


class _Requests(NamedTuple):
    """What a path needs of the requests, shape (n,), in the clock's unit."""

    arrivals: FloatArray
    prefills: FloatArray
    own: FloatArray
    decode: FloatArray  # the work of the first of its decodes
    decodes: FloatArray
    growth: float  # of it with each further token


class _Path(NamedTuple):
    """The numbers that make a certificate."""

    width: float
    counted: int
    backlog: int
    until: int
    rate: float
    aside: float


@compiled_inside
def _arrive(cost: FloatArray, waiting: FloatArray, least: int, come: int, rest: int) -> None:
    """Let a request bring work to all backlogs from the least one on."""
    top, best = len(cost) - 1, np.inf
    for k in range(top, least - 1, -1):
        found = cost[k] + min(k - least, rest) - (waiting[k + come] - waiting[k])
        cost[k] = np.inf
        if k + come >= top:
            best = min(best, found)
        else:
            cost[k + come] = found
    cost[top] = best


@compiled_inside
def _pass(cost: FloatArray, here: FloatArray, each: FloatArray) -> None:
    """Let a step pass at all backlogs: each stays or falls by one."""
    for k in range(len(cost) - 2):  # slices of known length: the compiler makes vectors of them
        stay, fall = cost[k] + here[k] + each[k], cost[k + 1] + here[k + 1] + each[k + 1]
        cost[k] = stay if stay < fall else fall
    cost[-1] += each[-1]
    if len(cost) > 1:
        cost[-2] = min(cost[-2] + here[-2] + each[-2], cost[-1])


@allocating
def _shortest(
    arrivals: IntArray,
    come: IntArray,
    rest: IntArray,
    counted: int,
    top: int,
    until: int,
    rate: float,
) -> float:
    """Return the least cost of a path, in steps; minus infinity if the backlog passes the top."""
    count, window = len(arrivals), max(top, rest.max()) + 2
    each = np.ceil(np.minimum(np.arange(top + come.max() + 1), top) / counted)  # that wait
    waiting = np.cumsum(each)
    cost = np.full(top + 1, np.inf)
    cost[0] = 0.0
    here = np.zeros(8 * window)  # those not done at each place of operational time
    place, last = 1, 1  # the least one now, and where all are done
    now, least, brought, quiet, request = arrivals[0], 0, 0, 0, 0
    while True:
        if now == until:
            for k in range(least, top + 1):
                cost[k] -= math.ceil(rate * (now - arrivals[0] - brought + k))
        while request < count and arrivals[request] == now:
            _arrive(cost, waiting, least, come[request], rest[request])
            least += come[request]
            brought += come[request]
            if least > top:
                return -np.inf
            here[place : place + rest[request]] += 1.0
            last = max(last, place + rest[request])
            request += 1
        idle = place >= last
        if idle and request == count and now >= until:
            return float((cost[least:] + waiting[least : top + 1]).min())
        quiet = quiet + 1 if idle and least == 0 else 0
        if quiet > top + 1:
            ahead = until if request == count else arrivals[request]
            if now < until < ahead:
                ahead = until
            cost += (ahead - now) * each[: top + 1]
            now = ahead
            continue
        low = max(least - 1, 0)
        begin = place - (least - low)
        _pass(cost[low:], here[begin : begin + top + 1 - low], each[low : top + 1])
        if least == 0:
            place += 1
        least = low
        now += 1
        if place + window > len(here):
            here[: len(here) - place + 1] = here[place - 1 :].copy()
            here[len(here) - place + 1 :] = 0.0
            last -= place - 1
            place = 1


@compiled
def _earned(
    until: FloatArray,
    own: FloatArray,
    decode: FloatArray,
    decodes: FloatArray,
    growth: float,
    constant: float,
    rate: float,
    aside: float,
) -> float:
    """Return what decodes and what is set aside add at least; of each, what is left until T."""
    total = 0.0
    for i in range(len(until)):
        batch, earned, best = constant + decode[i], 0.0, np.inf
        for later in range(int(decodes[i]), -1, -1):
            kept = own[i]
            if later > 0:
                kept = max(kept, until[i] + (later - 1) * batch)
            best = min(best, (1 - aside) * earned + aside * kept)
            work = decode[i] + growth * (decodes[i] - later)
            earned += max(0.0, 2 * math.sqrt(rate * constant * work) + (rate - 1) * work)
        total += best
    return total


def _value(requests: _Requests, clock: LinearClock, path: _Path) -> float:
    """Return what a path proves, rounded down."""
    width, aside = path.width, path.aside
    steps, come = requests.arrivals // width, np.minimum(path.counted, requests.prefills // width)
    left = requests.own - come * width
    rest = np.maximum(0.0, left // width)
    numbers = path.counted, path.backlog, path.until, path.rate
    arrivals, works, rests = (each.astype(np.int64) for each in (steps, come, rest))
    least = _shortest(arrivals, works, rests, *numbers)
    earned = _earned(
        (path.until - steps) * width,
        *(requests.own, requests.decode, requests.decodes, requests.growth),
        *(clock.constant, path.rate, aside),
    )
    parts = (
        (1 - aside) * width * least,
        (1 - aside) * math.fsum(left - rest * width),
        earned * (1 - 2.0**-52 * len(steps)),
        -math.fsum(requests.arrivals % width),
    )
    return sum(parts) - SAFE * sum(map(abs, parts))


def bound_by_path(
    instance: Instance, clock: LinearClock, certificate: ClockCertificate
) -> ClockCertificate:
    """Return the certificate with the best path that a search over its numbers finds."""
    work, times = least_work(instance, clock), times_since_first(instance, clock)
    prompts = instance.prompts.astype(np.float64)
    prefills = (clock.prefill_tokens * prompts + clock.squared_prompts * prompts**2) * _MARGIN
    own, first = work.own * _MARGIN, work.decode + work.growth
    requests = _Requests(times, prefills, own, first, work.decodes, work.growth)
    come = np.cumsum(prefills) - times
    most = float((come - np.minimum.accumulate(come - prefills)).max())  # of a machine's backlog
    alone, mean, last = float(own.mean()), float(prefills.mean()), float(times[-1])
    gaps = times[1:] - np.maximum.accumulate(times + own)[:-1]
    running = float(own.sum()) / (last + alone - float(np.maximum(gaps, 0).sum()) or 1.0)
    backlog = max(_BACKLOG * running * mean, 2 * most)
    lasts = last + most + float(own.max()) - float(np.maximum(gaps - backlog, 0).sum())
    cells = min(max(_CELLS, _CELLS_EACH * len(times)), _MOST_CELLS)
    finest = math.sqrt(lasts * backlog / cells)
    at_least = max(alone / _FINEST, float(own.max()) / _LONGEST, last / _LAST)
    width = max(float(np.median(prefills)) / _FINE, finest, at_least) * _BELOW or 1.0

    def path(width: float, counted: float, rate: float, aside: float) -> _Path:
        return _Path(
            width,
            max(1, int(counted // width)),
            int(backlog // width) + 2,
            int((last + alone) // width),
            math.floor(min(rate, _STEEPEST) * _GRAIN) / _GRAIN,
            min(aside, _MOST_ASIDE),
        )

    numbers = [_COUNTED * mean, _likely_rate(requests, clock.constant), _ASIDE]
    best = _value(requests, clock, path(_COARSE * width, *numbers))
    factors = _FACTORS if len(times) <= _SEARCHED else ()
    for factor, place in itertools.product(factors, range(3)):
        for by in (factor, 1 / factor):
            while True:
                tried = [each * by if at == place else each for at, each in enumerate(numbers)]
                found = _value(requests, clock, path(_COARSE * width, *tried))
                if not found - best > _TELLS * abs(best):
                    break
                best, numbers = found, tried
    chosen = path(width, *numbers)
    value = Fraction(_value(requests, clock, chosen))
    return replace(certificate, by_requests=0, value=value, **chosen._asdict())


def _likely_rate(requests: _Requests, constant: float) -> float:
    """Return the rate that would be best if the machine always formed batches."""
    d, middle = requests.decodes, requests.decode + requests.growth * (requests.decodes - 1) / 2
    works = float(requests.prefills.sum() + (d * middle).sum())
    left = float(requests.arrivals[-1] + requests.own.mean()) - works
    return constant * float((d * np.sqrt(middle)).sum() / left) ** 2 if left > 0 else 1.0
