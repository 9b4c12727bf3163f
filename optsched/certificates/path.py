r"""The verifier of bounds on a clock by one common path, in exact integers.

The theorem stands in `optsched.bounds.path`. A certificate has the width of steps, how many of them
a prefill counts for at most, the backlog from which on all are one, the step until which decodes
earn, at which rate :math:`r`, and the share of latencies that is set aside.

The program goes by the place in operational time: that of a machine that always works is 0, and a
backlog is so much more than its. What a decode earns is rounded down, and the refund up.
"""

from __future__ import annotations

from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.errors import CertificateError

if TYPE_CHECKING:
    from fractions import Fraction

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
    rate: Fraction
    aside: Fraction


class _Arrival(NamedTuple):
    """A request in steps."""

    step: int
    come: int  # counted work
    rest: int  # of operational time


def on_a_path(
    requests: list[ChargedRequest], prefills: list[int], c0: int, path: CommonPath
) -> Fraction:
    """Return the least that all latencies are together, where times are multiples of 2**SMALL."""
    width, arrivals, left, total = path.width, [], 0, 0
    for request, prefill in zip(requests, prefills, strict=True):
        step, early = divmod(request.arrival, width)
        alone = _less(request.alone(c0))
        come = min(path.counted, _less(prefill) // width)
        rest, more = divmod(alone - come * width, width)
        arrivals.append(_Arrival(step, come, rest))
        left += more
        until = (path.until - step) * width
        total += _added(request, c0, alone, until, path) - early
    rests = [each.rest for each in arrivals]
    most = max(*rests, len(rests), path.backlog, path.counted)
    if sum(rests) > _NARROW * len(rests) or most > _MOST or step > _LAST:
        raise CertificateError(
            "steps are too narrow, or requests too many, for a proof that ends; cut time into "
            "fewer steps"
        )
    return (1 - path.aside) * (left + width * _least(arrivals, path)) + total


def _less(time: int) -> int:
    """Return a little less, so that floats round to the same steps as integers."""
    return time - (time >> SMALL)


def _added(request: ChargedRequest, c0: int, alone: int, until: int, path: CommonPath) -> int:
    """Return what its decodes earn, and what is set aside of its latency, rounded down."""
    rate, whole, parts = path.rate, path.aside.denominator, path.aside.numerator
    batch, d = c0 + request.decode, request.decodes
    squares, over = 4 * rate.numerator * c0, rate.numerator - rate.denominator

    def earns(made: int) -> int:
        work = request.decode + request.growth * made
        root = isqrt(squares * work // rate.denominator)
        return max(0, root + over * work // rate.denominator)

    least = []
    for made, earned in enumerate(accumulate(map(earns, range(d)), initial=0)):
        late = until + (d - made - 1) * batch if made < d else 0
        least.append((whole - parts) * earned + parts * max(alone, late))
    return min(least) // whole


def _least(arrivals: list[_Arrival], path: CommonPath) -> int:
    """Return the least cost of a path, in steps."""
    top, until, rate = path.backlog, path.until, path.rate
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
        if now == until:
            theta = range(place - first, place - first + count)
            costs[:count] -= [-(-rate.numerator * each // rate.denominator) for each in theta]
        while request is not None and request.step == now:
            count = _come(request, costs[:count], before[least:])
            least = top + 1 - count
            ahead[place - shift : place - shift + request.rest] += 1
            done = max(done, place + request.rest)
            request = next(coming, None)
        idle = place >= done
        if idle and request is None and now >= until:
            return int((costs[:count] + before[least : top + 1]).min())
        quiet = quiet + 1 if idle and not least else 0
        if quiet > top + 1:  # from now on each cost grows evenly
            events = [until] if until > now else []
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


def _come(request: _Arrival, costs: IntArray, before: IntArray) -> int:
    """Let a request come, and return how many states are left."""
    count = len(costs)
    costs += np.minimum(np.arange(count), request.rest)
    costs -= before[request.come :][:count] - before[:count]
    left = count - request.come
    if left < 1:
        raise CertificateError(
            "a machine that always works has a larger backlog than counts; count a larger one"
        )
    costs[left - 1] = costs[left - 1 :].min()
    costs[left:] = _NEVER
    return left
