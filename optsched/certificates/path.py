r"""The verifier of bounds on a clock by one common path, in exact integers.

The theorem stands in `optsched.bounds.path`. A certificate has the width of steps, how many of them
a prefill counts for at most, the backlog from which on all are one, the step until which decodes
earn, at which rates :math:`r` in windows of as many steps until then, the share of latencies that
is set aside, and over how many offsets of rounding the costs of paths are averaged.

The program goes by the place in operational time: that of a machine that always works is 0, and a
backlog is so much more than its. What a decode earns is rounded down, and the refund up.
"""

from __future__ import annotations

from bisect import bisect
from fractions import Fraction
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.errors import CertificateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray
    from optsched.certificates.checks import ChargedRequest

SMALL = 40  # bits of the part of a time that is left out
_MOST = 2**20  # steps of a backlog or a request, and requests: sums stay below 2**62
_NARROW = 2**13  # steps in the mean latency alone, beyond which a proof would not end
_LAST = 2**40  # step of an arrival
_NEVER = 2**61  # the cost of a backlog that cannot be


class CommonPath(NamedTuple):
    """The numbers of a certificate."""

    width: int  # of steps, in units of time
    counted: int
    backlog: int
    until: int
    rates: tuple[Fraction, ...]
    aside: Fraction
    offsets: int  # of rounding, over which costs are averaged


class _Arrival(NamedTuple):
    """A request, with work in parts of steps."""

    step: int
    brought: int  # counted work that has come by then
    done: int  # of it, by a machine that always works
    rest: int  # of operational time


class _InSteps(NamedTuple):
    """A request in steps."""

    step: int
    come: int  # counted work
    rest: int  # of operational time


def on_a_path(
    requests: list[ChargedRequest], prefills: list[int], c0: int, path: CommonPath
) -> Fraction:
    """Return the least that all latencies are together, where times are multiples of 2**SMALL."""
    width, parts, arrivals, left, total = path.width, path.offsets, [], 0, 0
    ends = [path.until * each // len(path.rates) for each in range(1, len(path.rates) + 1)]
    brought = idle = 0  # of a machine that always works, in parts of steps
    for request, prefill in zip(requests, prefills, strict=True):
        step, early = divmod(request.arrival, width)
        alone = _less(request.alone(c0))
        come = min(path.counted * parts, _less(prefill) * parts // width)
        rest, more = divmod(alone * parts - come * width, width)
        idle = max(idle, step * parts - brought)
        brought += come
        arrivals.append(_Arrival(step, brought, step * parts - idle, rest))
        left += more
        total += _added(request, c0, alone, step, path, ends) - early
    rests = [-(-each.rest // parts) for each in arrivals]
    most = max(*rests, len(rests), path.backlog, path.counted)
    if sum(rests) > _NARROW * len(rests) or most > _MOST or step > _LAST:
        raise CertificateError(
            "steps are too narrow, or requests too many, for a proof that ends; cut time into "
            "fewer steps"
        )
    rounded = (list(_in_steps(arrivals, offset, parts)) for offset in range(parts))
    least = sum(_least(each, path, ends[::-1]) for each in rounded)
    return (1 - path.aside) * Fraction(left + width * least, parts) + total


def _in_steps(arrivals: list[_Arrival], offset: int, parts: int) -> Iterator[_InSteps]:
    """Yield all requests in whole steps, where all work is rounded alike."""
    before = 0
    for step, brought, done, rest in arrivals:
        now, *works = ((each + offset) // parts for each in (brought, done, done - rest))
        yield _InSteps(step, now - before, works[0] - works[1])
        before = now


def _less(time: int) -> int:
    """Return a little less, so that floats round to the same steps as integers."""
    return time - (time >> SMALL)


def _added(
    request: ChargedRequest, c0: int, alone: int, step: int, path: CommonPath, ends: list[int]
) -> int:
    """Return what its decodes earn, and what is set aside of its latency, rounded down."""
    whole, parts = path.aside.denominator, path.aside.numerator
    batch, d = c0 + request.decode, request.decodes
    rates = [*path.rates, Fraction(0)]
    begins = bisect(ends, step)  # the window of its arrival

    def earns(rate: Fraction) -> list[int]:
        """Return what its first decodes earn, for each number of them."""
        squares, over = 4 * rate.numerator * c0, rate.numerator - rate.denominator
        works = (request.decode + request.growth * made for made in range(d))
        roots = ((isqrt(squares * work // rate.denominator), work) for work in works)
        every = (max(0, root + over * work // rate.denominator) for root, work in roots)
        return list(accumulate(every, initial=0))

    lowest = rates[begins]
    here = earns(lowest)
    least = (whole - parts) * here[d] + parts * alone
    for window, rate in enumerate(rates[begins + 1 :], begins + 1):  # of its last decodes
        late = (ends[window - 1] - step) * path.width
        if parts * late >= least:
            break
        if rate < lowest:
            lowest, there = rate, earns(rate)
            for made in range(d):  # before
                earned = here[made] + there[d] - there[made]
                kept = max(alone, late + (d - made - 1) * batch)
                least = min(least, (whole - parts) * earned + parts * kept)
            here = there
    return least // whole


def _least(arrivals: list[_InSteps], path: CommonPath, ends: list[int]) -> int:
    """Return the least cost of a path, in steps, with the ends of windows, the last one first."""
    top, rates = path.backlog, [*path.rates, Fraction(0)]
    backlogs = np.minimum(np.arange(top + path.counted + 1), top)
    waiting = -(-backlogs // path.counted)
    before = np.cumsum(waiting)
    costs, full = np.full((2, top + 1), _NEVER)  # at so much more backlog than the least, and where
    costs[0] = least = quiet = 0  # all that are not done have waited for a step
    now = place = done = first = arrivals[0].step
    longest = max(each.rest for each in arrivals)
    ahead = np.zeros(2 * (top + longest) + 2, dtype=np.int64)  # not done at `shift` or later places
    shift, coming = place, iter(arrivals)
    request = next(coming, None)
    while True:
        count = top + 1 - least
        while ends and ends[-1] <= now:
            change = rates[0] - rates[1]
            theta = range(place - first, place - first + count)
            costs[:count] -= [-(-change.numerator * each // change.denominator) for each in theta]
            del rates[0], ends[-1]
        while request is not None and request.step == now:
            count = _come(request, costs[:count], before[least:], rates[0])
            least = top + 1 - count
            ahead[place - shift : place - shift + request.rest] += 1
            done = max(done, place + request.rest)
            request = next(coming, None)
        idle = place >= done
        if idle and request is None and not ends:
            return int((costs[:count] + before[least : top + 1]).min())
        quiet = quiet + 1 if idle and not least else 0
        if quiet > top + 1:  # from now on each cost grows evenly
            events = ends[-1:]
            events += [request.step] if request is not None else []
            passed = min(events) - now
            costs += passed * waiting[: top + 1]
            now, place, shift = now + passed, place + passed, shift + passed
            continue
        here = full[:count]
        np.add(costs[:count], ahead[place - shift :][:count], out=here)
        here[-1] = costs[count - 1]
        here += waiting[least : top + 1]
        if least:  # a backlog that stays is one more above the least
            costs[0] = here[0]
            np.minimum(here[:-1], here[1:], out=costs[1:count])
            costs[count] = here[-1]
            least -= 1
        else:
            np.minimum(here[:-1], here[1:], out=costs[: count - 1])
            costs[count - 1] = here[-1]
            place += 1
        now += 1
        if place - shift > top + longest:
            left = ahead[place - shift :].copy()
            ahead[:], shift = 0, place
            ahead[: len(left)] = left


def _come(request: _InSteps, costs: IntArray, before: IntArray, rate: Fraction) -> int:
    """Let a request come, and return how many states are left."""
    count = len(costs)
    costs += np.minimum(np.arange(count), request.rest)
    costs -= before[request.come :][:count] - before[:count]
    left = count - request.come
    if left < 1:
        raise CertificateError(
            "a machine that always works has a larger backlog than counts; count a larger one"
        )
    above = range(request.come + 1)  # the top, and in operational time
    refunds = [-(-rate.numerator * each // rate.denominator) for each in above]
    costs[left - 1] = (costs[left - 1 :] - refunds).min()
    costs[left:] = _NEVER
    return left
