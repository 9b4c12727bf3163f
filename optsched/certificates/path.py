r"""Certificates of bounds on a clock by one common path, and their verifier in exact integers.

The theorem stands in `optsched.bounds.path`. A certificate has the width of steps, how many of them
a prefill counts for at most, the backlog from which on all are one, the step until which decodes
earn, at which rate :math:`r`, and the share of latencies that is set aside.

The verifier runs the program by the place in operational time: that of a machine that always works
is 0, and a backlog is so much more than its. It rounds what a decode earns down, and the refund up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.files import read_object
from optsched.certificates.checks import Claimed, check_fingerprint, check_step, read_fields
from optsched.certificates.on_clock import ChargedRequest, charged_request
from optsched.errors import CertificateError
from optsched.problem.premises import World

if TYPE_CHECKING:
    from pathlib import Path

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance

_MOST = 2**20  # steps of a backlog or a request, and requests: sums stay below 2**62
_NARROW = 2**13  # steps in the mean latency alone, beyond which a proof would not end
_LAST, _RATE = 2**40, 2**10
_NEVER = 2**61  # the cost of a backlog that cannot be
_SMALL = 40  # bits of the part of a time that is left out


@dataclass(frozen=True)
class PathCertificate(Claimed):
    """Proof of a bound on the total latency on a clock, of one worker."""

    FORMAT = "optsched-path-certificate"

    clock: tuple[float, ...]  # its constant and its five coefficients
    seconds_per_step: float  # of arrivals; 1 on a clock whose unit is "steps"
    fingerprint: str
    width: float  # of steps in time, from step `origin` of the arrivals on
    counted: int  # steps of a prefill that count, at most
    backlog: int  # in steps, from which on all are one
    unit: str = "s"
    until: int = 0  # the step by whose begin tokens are made that earn
    rate: float = 0.0  # of what they refund
    aside: float = 0.0  # share of the latencies
    value: Fraction = Fraction(0)
    origin: int = 0  # at most the first arrival

    def __post_init__(self) -> None:
        numbers = (*self.clock, self.seconds_per_step)
        if len(self.clock) != 6 or not all(0 <= number < float("inf") for number in numbers):
            raise CertificateError("a clock is six numbers, none of them negative or infinite")
        if not 0 < self.width < float("inf"):
            raise CertificateError(f"steps are {self.width} wide, but must have a positive width")
        if not 1 <= self.counted <= _MOST or not 1 <= self.backlog <= _MOST:
            raise CertificateError(
                f"{self.counted} steps of a prefill and a backlog of {self.backlog} count, but "
                f"each must be from 1 to {_MOST}"
            )
        if not 0 <= self.until <= _LAST or not 0 <= self.rate <= _RATE or not 0 <= self.aside <= 1:
            raise CertificateError(
                f"until is {self.until}, the rate {self.rate} and the share set aside {self.aside},"
                f" but they must be from 0 to {_LAST}, {_RATE} and 1"
            )
        if self.unit not in ("s", "steps"):
            raise CertificateError(f"the unit is {self.unit!r}, but must be s or steps")

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        step = self.seconds_per_step
        return World(self.fingerprint, 1, self.clock, step, "next-batch", "resumed")

    @classmethod
    def from_json(cls, source: str | Path) -> PathCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "a clock and a path")
        if content.get("format") != cls.FORMAT:
            raise CertificateError(f"{where} is not a certificate of a bound by a path")
        depths = dict.fromkeys(("counted", "backlog", "until", "origin"), 0)
        fields = read_fields(content, where, **depths)
        try:
            clock = tuple(float(number) for number in content["clock"])
            names = ("seconds_per_step", "width", "rate", "aside")
            fields |= {name: float(content[name]) for name in names}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CertificateError(
                f"{where}: clock, seconds_per_step, width, rate and aside must be numbers"
            ) from None
        return cls(clock, unit=str(content.get("unit")), **fields)


class _Arrival(NamedTuple):
    """A request in steps."""

    step: int
    come: int  # counted work
    rest: int  # of operational time


def verify_path(certificate: PathCertificate, instance: Instance) -> Fraction:
    """Find the bound that a certificate proves, in the unit of its clock."""
    check_fingerprint(certificate.fingerprint, instance)
    check_step(certificate.seconds_per_step, certificate.unit, instance)
    origin, every = certificate.origin, instance.arrivals.tolist()
    if not 0 <= origin <= every[0]:
        raise CertificateError(f"time begins at step {origin}, after the first arrival")
    times = [Fraction(float(each - origin) * certificate.seconds_per_step) for each in every]
    clock = [Fraction(number) for number in (*certificate.clock, certificate.width)]
    # All denominators are powers of two; the finer unit has room for a small part of a time.
    unit = max(number.denominator for number in (*clock, *times)) << _SMALL
    c0, *own, width = (int(number * unit) for number in clock)
    rate, aside = Fraction(certificate.rate), Fraction(certificate.aside)
    arrivals, left, total = [], 0, 0
    for prompt, output, time in zip(
        instance.prompts.tolist(), instance.outputs.tolist(), times, strict=True
    ):
        arrival = int(time * unit)
        request = charged_request(prompt, output, arrival, Fraction(1), own, (0, 0))
        step, early = divmod(arrival, width)
        prefill, alone = own[0] * prompt + own[3] * prompt * prompt, request.alone(c0)
        come = min(certificate.counted, _less(prefill) // width)
        rest, more = divmod(_less(alone) - come * width, width)
        arrivals.append(_Arrival(step, come, rest))
        left += more
        until = (certificate.until - step) * width
        total += _added(request, c0, _less(alone), until, rate, aside) - early
    rests = [each.rest for each in arrivals]
    if sum(rests) > _NARROW * len(rests) or max(*rests, len(rests)) > _MOST or step > _LAST:
        raise CertificateError(
            f"steps of {certificate.width:g} {certificate.unit} are too narrow, or requests too "
            "many, for a proof that ends; cut time into fewer steps"
        )
    left += width * _least(arrivals, certificate, rate)
    return ((1 - aside) * left + total) / unit


def _less(time: int) -> int:
    """Return a little less, so that floats round to the same steps as integers."""
    return time - (time >> _SMALL)


def _added(
    request: ChargedRequest, c0: int, alone: int, until: int, rate: Fraction, aside: Fraction
) -> int:
    """Return what its decodes earn, and what is set aside of its latency, rounded down."""
    whole, parts = aside.denominator, aside.numerator
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


def _least(arrivals: list[_Arrival], certificate: PathCertificate, rate: Fraction) -> int:
    """Return the least cost of a path, in steps."""
    top, until = certificate.backlog, certificate.until
    backlogs = np.minimum(np.arange(top + certificate.counted + 1), top)
    waiting = -(-backlogs // certificate.counted)
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
