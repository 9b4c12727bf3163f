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

**On a grid.** Arrivals and :math:`\bar p` are rounded down to whole steps, :math:`p'_k` and
:math:`H_i` to m-ths of them; what all arrive earlier is subtracted, and what is left of :math:`H_i`
added. Draw one number u for all, from 0 to 1, and let each amount x of work be
:math:`\lfloor{x+u}\rfloor` at the begins of steps: A, V, what a machine that always works has done,
and that less :math:`H_i`. V is a path again, in whose steps the backlog stays or falls by one, and
that machine's is its own. What is linear between whole numbers has the same mean: N, what
:math:`\theta` is above :math:`\theta_0`, and the lesser of that and :math:`H_i`. The integrals have
no larger one: in a step :math:`[\theta < e_i]` and :math:`\nu(B)` last at least as long as if
:math:`\theta`, or V, were as fast as time. All but V depends on :math:`\lfloor m u \rfloor` alone,
the *offset*. So no path costs less than the mean over offsets of a shortest one on the grid. From
some backlog on all are one state, in which only those that wait count and :math:`\theta` is as fast
as time. In a long time without requests the cost of each state grows evenly.

**Decodes.** Let those in batch b work :math:`u_{kb}`, and let b last :math:`L_b` of :math:`\theta`.
All together they make all that take part wait for :math:`(\sum_k \sqrt{u_{kb}})^2` at least. Less
what is in their own :math:`H`, this is for any :math:`r \ge 0`, as :math:`c_0 \le L_b - \sum_k
u_{kb}`, at least

.. math:: \sum_k \bigl( 2 \sqrt{r c_0 u_{kb}} + (r - 1) u_{kb} \bigr) - r L_b .

Time until some T is cut into windows of one rate each; from T on it is 0. As that is concave in r,
it holds for each batch with the mean of each term, and of :math:`r L_b`, over its operational time.
So no token earns less than its term at the least rate of the windows that its batch is in, or 0,
and all pay :math:`\int r\, d\theta` at most, a cost of the path. A token that is recomputed in
parts earns no less: a root of a sum is at most the sum of roots.

So that no request puts its tokens off, a share :math:`\eta` of each latency is set aside; of all of
the above the rest counts. Let a window that begins at b have a lower rate than all before it since
:math:`a_i`. If :math:`x > 0` of i's tokens come after b, then :math:`C_i - a_i \ge b - a_i + (x -
1) t_i`, with its least batch :math:`t_i`; if all come before the next such window, they earn this
rate, and those before b that of the last one. So i adds the least, over such windows and x, of
:math:`1 - \eta` times what its tokens earn and :math:`\eta` times the larger of that and
:math:`w_i`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, compiled_inside
from optsched.bounds.on_clock import SAFE, least_work
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance

_MARGIN = 1 - 2.0**-40  # of work, so that the verifier rounds to the same steps
_FINE, _OFFSETS = 20.0, 4  # steps in the median prefill, and offsets of rounding
_COARSE = 3.0, 2  # while a search lasts, steps are so many times wider; offsets
_FINEST, _LONGEST = 2.0**12, 2.0**18  # steps in the mean and the longest latency alone, at most
_LAST = 2.0**27  # and in all time
_BELOW = 1 - 2.0**-20  # of a width, so that no time is a whole number of them but for roundings
_CELLS, _CELLS_EACH, _MOST_CELLS = 2e9, 5e5, 1e10  # pairs of a step and a backlog; of a request
# Backlogs from which on all are one: mean prefills for each that runs; those more, each as counted.
_BACKLOG, _WAITING = 6.0, 4.0
_COUNTED, _ASIDE = 3.0, 0.02  # mean prefills that are counted, and what is set aside, at first
_FACTORS, _TELLS = (1.5, 1.2), 1e-5  # by which a search changes numbers, and a gain that counts
_POWERS = 1, 1, 1, 4  # of factors, by number
_SEARCHED = 100_000  # requests up to which there is a search: some ten seconds
_GRAIN = 2**15  # parts of 1 in the rate, so that its products with steps are exact
_STEEPEST, _MOST_ASIDE = 1024.0, 0.9  # the most of the rate, and of what is set aside
_WINDOW, _MOST_WINDOWS = 4.0, 1_024  # mean latencies alone in a window of one rate
_IDLE, _PLACES = 0.1, 8  # of time at least; at so many a request is taken to be


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
    rates: tuple[float, ...]
    aside: float
    offsets: int


@compiled_inside
def _arrive(
    cost: FloatArray, waiting: FloatArray, least: int, come: int, rest: int, rate: float
) -> None:
    """Let a request bring work to all backlogs from the least one on."""
    top, best = len(cost) - 1, np.inf
    for k in range(top, least - 1, -1):
        found = cost[k] + min(k - least, rest) - (waiting[k + come] - waiting[k])
        cost[k] = np.inf
        if k + come >= top:  # operational time is at more than that of the top
            best = min(best, found - math.ceil(rate * (k + come - top)))
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
    ends: IntArray,
    rates: FloatArray,
) -> float:
    """Return the least cost of a path, in steps; minus infinity if the backlog passes the top."""
    count, longest = len(arrivals), max(top, rest.max()) + 2
    each = np.ceil(np.minimum(np.arange(top + come.max() + 1), top) / counted)  # that wait
    waiting = np.cumsum(each)
    cost = np.full(top + 1, np.inf)
    cost[0] = 0.0
    here = np.zeros(8 * longest)  # those not done at each place of operational time
    place, last = 1, 1  # the least one now, and where all are done
    now, least, brought, quiet, request = arrivals[0], 0, 0, 0, 0
    until, window = ends[-1], 0
    while True:
        while window < len(ends) and ends[window] <= now:
            for k in range(least, top + 1):
                theta = now - arrivals[0] - brought + k
                cost[k] -= math.ceil((rates[window] - rates[window + 1]) * theta)
            window += 1
        while request < count and arrivals[request] == now:
            _arrive(cost, waiting, least, come[request], rest[request], rates[window])
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
            if now < until:
                ahead = min(ahead, ends[window])
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
        if place + longest > len(here):
            here[: len(here) - place + 1] = here[place - 1 :].copy()
            here[len(here) - place + 1 :] = 0.0
            last -= place - 1
            place = 1


@compiled_inside
def _earn(
    earned: FloatArray, decodes: int, work: float, growth: float, constant: float, rate: float
) -> None:
    """Fill in what the first decodes of a request earn at one rate, for each number of them."""
    earned[0] = 0.0
    for made in range(decodes):
        gained = 2 * math.sqrt(rate * constant * work) + (rate - 1) * work
        earned[made + 1] = earned[made] + max(0.0, gained)
        work += growth


@allocating
def _earned(
    steps: FloatArray,
    own: FloatArray,
    decode: FloatArray,
    decodes: FloatArray,
    growth: float,
    constant: float,
    width: float,
    ends: IntArray,
    rates: FloatArray,
    aside: float,
) -> float:
    """Return what decodes and what is set aside add at least, wherever they are put off to."""
    total, here, there = 0.0, np.empty(int(decodes.max()) + 1), np.empty(int(decodes.max()) + 1)
    for i in range(len(steps)):
        d, batch = int(decodes[i]), constant + decode[i]
        first = np.searchsorted(ends, steps[i], "right")  # the window of its arrival
        _earn(here, d, decode[i], growth, constant, rates[first])
        best, lowest = (1 - aside) * here[d] + aside * own[i], rates[first]
        for window in range(first + 1, len(rates)):  # of its last decodes
            late = (ends[window - 1] - steps[i]) * width
            if aside * late >= best:
                break
            if rates[window] < lowest:
                lowest = rates[window]
                _earn(there, d, decode[i], growth, constant, lowest)
                for made in range(d):  # before
                    earned = here[made] + there[d] - there[made]
                    kept = max(own[i], late + (d - made - 1) * batch)
                    best = min(best, (1 - aside) * earned + aside * kept)
                here, there = there, here
        total += best
    return total


def _value(requests: _Requests, clock: LinearClock, path: _Path) -> float:
    """Return what a path proves, rounded down."""
    width, aside, offsets = path.width, path.aside, path.offsets
    part, steps = width / offsets, requests.arrivals // width
    windows = len(path.rates)
    ends, rates = path.until * np.arange(1, windows + 1) // windows, np.append(path.rates, 0.0)
    come = np.minimum(path.counted * offsets, requests.prefills // part)
    left = requests.own - come * part
    rest = np.maximum(0.0, left // part)
    least = math.fsum(
        _shortest(*each, path.counted, path.backlog, ends, rates)
        for each in _rounded(steps, come, rest, offsets)
    )
    earned = _earned(
        *(steps, requests.own, requests.decode, requests.decodes, requests.growth),
        *(clock.constant, width, ends, rates, aside),
    )
    parts = (
        (1 - aside) * part * least,
        (1 - aside) * math.fsum(left - rest * part),
        earned * (1 - 2.0**-52 * len(steps)),
        -math.fsum(requests.arrivals % width),
    )
    return sum(parts) - SAFE * sum(map(abs, parts))


def _rounded(
    steps: FloatArray, come: FloatArray, rest: FloatArray, offsets: int
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield arrivals, counted work and the rest in whole steps, by offset."""
    arrivals, brought, rests = (each.astype(np.int64) for each in (steps, come.cumsum(), rest))
    now = offsets * arrivals  # as all else, in parts of steps
    idle = np.minimum.accumulate(np.append(0, brought[:-1]) - now)
    done = now + idle  # by a machine that always works
    for offset in range(offsets):
        after, needed = ((done - each + offset) // offsets for each in (0, rests))
        yield arrivals, np.diff((brought + offset) // offsets, prepend=0), after - needed


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
    finest = math.sqrt(lasts * backlog * _OFFSETS / cells)
    at_least = max(alone / _FINEST, float(own.max()) / _LONGEST, last / _LAST)
    width = max(float(np.median(prefills)) / _FINE, finest, at_least) * _BELOW or 1.0
    until = last + alone or 1.0
    windows = max(1, min(_MOST_WINDOWS, int(until / (_WINDOW * alone or 1.0))))
    ends = until * np.arange(1, windows + 1) / windows

    def path(wider: float, offsets: int, numbers: list[float]) -> _Path:
        counted, times_likely, aside, reach = numbers
        likely = _likely_rates(requests, clock.constant, ends, int(reach)) * times_likely
        return _Path(
            wider * width,
            max(1, int(counted // (wider * width))),
            int(max(backlog, (running + _WAITING) * counted) // (wider * width)) + 2,
            int(until // (wider * width)),
            tuple((np.floor(np.minimum(likely, _STEEPEST) * _GRAIN) / _GRAIN).tolist()),
            min(aside, _MOST_ASIDE),
            offsets,
        )

    numbers = [_COUNTED * mean, 1.0, _ASIDE, windows]
    best = _value(requests, clock, path(*_COARSE, numbers))
    factors = _FACTORS if len(times) <= _SEARCHED else ()
    for factor, (place, power) in itertools.product(factors, enumerate(_POWERS)):
        for by in (factor**power, factor**-power):
            while True:
                tried = [each * by if at == place else each for at, each in enumerate(numbers)]
                found = _value(requests, clock, path(*_COARSE, tried))
                if not found - best > _TELLS * abs(best):
                    break
                best, numbers = found, tried
    chosen = path(1.0, _OFFSETS, numbers)
    value = Fraction(_value(requests, clock, chosen))
    return replace(certificate, by_requests=0, value=value, **chosen._asdict())


def _likely_rates(requests: _Requests, constant: float, ends: FloatArray, reach: int) -> FloatArray:
    """Return rates for windows: the best for those within reach, if a machine always worked."""
    d, middle = requests.decodes, requests.decode + requests.growth * (requests.decodes - 1) / 2
    come, lasts = requests.prefills.cumsum(), requests.own - requests.prefills
    theta = np.maximum.accumulate(requests.arrivals - come + requests.prefills)  # at arrivals
    arrived = np.searchsorted(requests.arrivals, ends, "right") - 1
    passed = np.maximum(theta[arrived], ends - come[arrived])
    places = theta + np.outer((np.arange(_PLACES) + 0.5) / _PLACES, lasts)
    at = np.searchsorted(passed[:-1], places.ravel())
    windows = np.arange(len(ends))
    first, last = np.maximum(windows - reach, 0), np.minimum(windows + reach, windows[-1]) + 1

    def near(each: FloatArray) -> FloatArray:
        for _ in range(2):
            sums = np.append(0.0, each.cumsum())
            each = (sums[last] - sums[first]) / (last - first)
        return each

    made, worked = (
        near(np.bincount(at, np.tile(each / _PLACES, _PLACES), len(ends)).astype(np.float64))
        for each in (d * np.sqrt(middle), d * middle)
    )
    left = near(np.diff(passed, prepend=0.0)) - worked
    rates: FloatArray = constant * (made / np.maximum(left, _IDLE * ends[0])) ** 2
    return rates
