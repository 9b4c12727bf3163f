r"""Certificates of the configuration-size bound, and a verifier that trusts nothing but integers.

At step :math:`t` a running request is described by the tokens :math:`m` it holds and the steps
:math:`r` that remain to it. A certificate gives every such *item* a size :math:`\varphi_p(m, r)
\ge 0`, one set of sizes per phase :math:`p` of consecutive steps, and every step a price
:math:`\pi_t \ge 0`. Let :math:`F_p` be at least the total size of any set of items that can run
together in phase :math:`p`. Then no schedule has a total latency below

.. math::

    L = \sum_i \min_{k \ge a_i} \Bigl[ k + o_i - a_i + \sum_{u=1}^{o_i} \pi_{k+u}\,
        \varphi_{p(k+u)}(s_i + u, o_i - u) \Bigr] - \sum_t \pi_t F_{p(t)} ,

because what a feasible schedule pays at step :math:`t` is at most :math:`\pi_t F_{p(t)}`; on
:math:`G` equal workers it is at most :math:`G` times that.

**Which items can run together.** If nothing new starts, an item with :math:`r' \ge r` steps left
holds :math:`m' + r` tokens after :math:`r` more steps and all others are done. Requests that start
later only add to that. So a set of items that run together satisfies
:math:`\sum_{r' \ge r} (m' + r) \le M` for every :math:`r \ge 0`. Between completions usage grows,
so it is enough to ask this at the :math:`r` of the set's own items.

**How F is found.** Items are taken by decreasing :math:`r`; among :math:`c` items taken with
:math:`S` tokens in total the next one fits iff :math:`S + m + (c + 1) r \le M`. A dynamic program
over :math:`(c, S)` maximises the total size. An item is taken at most as often as there are
requests that can be in that state by the end of the phase, those with :math:`s_i + o_i = m + r`,
:math:`o_i > r` and :math:`a_i + o_i - r` not after it, and no more items are taken than requests
fit by their prompts and first tokens. That one request might be taken in several states only makes
:math:`F` larger. The verifier shares no code with the module that makes certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.files import read_object, write_object
from optsched.certificates.checks import check_fingerprint, read_fields
from optsched.errors import CertificateError
from optsched.problem.premises import World

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

FORMAT = "optsched-configuration-certificate"
MAKESPAN = "optsched-makespan-certificate"


@dataclass(frozen=True)
class ConfigurationCertificate:
    """Prices of steps and sizes of running requests that prove a bound on the total latency."""

    price_denominator: int  # the price of step t is prices[t - 1] / price_denominator
    size_denominator: int
    prices: tuple[int, ...]  # of steps 1 to T; later steps are free
    ends: tuple[int, ...]  # last step of each phase, ascending; the last one is T
    sizes: tuple[tuple[int, ...], ...]  # a row for each phase, in the order of `items`
    fingerprint: str  # of the instance
    value: Fraction = Fraction(0)  # claimed; `verify_configuration` finds what is proven

    def __post_init__(self) -> None:
        for name in ("price_denominator", "size_denominator"):
            if (number := getattr(self, name)) < 1:
                raise CertificateError(f"{name} is {number}, but must be positive")
        if self.prices and min(self.prices) < 0:
            raise CertificateError(f"a price is {min(self.prices)}, but cannot be negative")
        if any(row and min(row) < 0 for row in self.sizes):
            raise CertificateError("a size is negative")
        steps = (0, *self.ends)
        ascending = all(begin < end for begin, end in zip(steps, self.ends, strict=False))
        if steps[-1] != len(self.prices) or not ascending:
            raise CertificateError(
                f"the phases must end at ascending steps, the last one at {len(self.prices)}"
            )
        if len(self.sizes) != len(self.ends):
            raise CertificateError(f"{len(self.ends)} phases, but {len(self.sizes)} rows of sizes")

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        return World(self.fingerprint, None, preemption="restarted")

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        value = [self.value.numerator, self.value.denominator]
        content = {"format": FORMAT, **vars(self), "value": value}
        return write_object(content, path)

    @classmethod
    def from_json(cls, source: str | Path) -> ConfigurationCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "prices and sizes")
        if content.get("format") != FORMAT:
            raise CertificateError(f"{where} is not a certificate of the configuration bound")
        depths = {"price_denominator": 0, "size_denominator": 0, "prices": 1, "ends": 1, "sizes": 2}
        return cls(**read_fields(content, where, **depths))


@dataclass(frozen=True)
class MakespanCertificate:
    r"""Sizes of running requests that prove a bound on the makespan of one worker.

    Let no set of items that can run together be larger than :math:`F`. Those requests that arrive
    from step :math:`a` on then complete no sooner than
    :math:`a + \sum_i \sum_u \varphi(s_i + u, o_i - u) / F`.
    """

    since: int  # the step a
    sizes: tuple[int, ...]  # in the order of `items`, of the requests that arrive from then on
    fingerprint: str  # of the instance
    value: Fraction = Fraction(0)  # claimed; `verify_makespan` finds what is proven

    def __post_init__(self) -> None:
        if min(self.sizes, default=0) < 0:
            raise CertificateError("a size is negative")

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        return World(self.fingerprint, None, preemption="restarted", objective="makespan")

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        value = [self.value.numerator, self.value.denominator]
        return write_object({"format": MAKESPAN, **vars(self), "value": value}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> MakespanCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "sizes")
        return cls(**read_fields(content, where, since=0, sizes=1))


def verify_makespan(certificate: MakespanCertificate, instance: Instance) -> Fraction:
    """Find the bound on the makespan that a certificate of sizes proves."""
    check_fingerprint(certificate.fingerprint, instance, None)
    later = np.flatnonzero(instance.arrivals >= certificate.since)
    if not len(later):
        raise CertificateError(f"no request arrives from step {certificate.since} on")
    instance = instance.take(later)
    pairs = items(instance)
    if len(certificate.sizes) != len(pairs):
        raise CertificateError(f"{len(certificate.sizes)} sizes for {len(pairs)} items")
    most = max(certificate.sizes) * max(instance.memory, int(instance.outputs.sum()))
    kind: npt.DTypeLike = np.int64 if most < 2**62 else object
    sizes = np.array([certificate.sizes], dtype=kind)
    last = int(instance.arrivals[-1] + instance.outputs.max())
    capacity = int(_capacities(instance, pairs, sizes, (last,))[0])
    place = {(tokens, left): index for index, (tokens, left) in enumerate(pairs.tolist())}
    rows = zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    total = sum(
        certificate.sizes[place[prompt + token, output - token]]
        for prompt, output in rows
        for token in range(1, output + 1)
    )
    return Fraction(certificate.since) + (Fraction(total, capacity) if capacity else 0)


def items(instance: Instance) -> IntArray:
    """List pairs (tokens held, steps left) of running requests, most steps, least tokens first."""
    pairs = {
        (output - token, prompt + token)
        for prompt, output in zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
        for token in range(1, output + 1)
    }
    ordered = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    return np.array([(tokens, left) for left, tokens in ordered], dtype=np.int64)


def verify_configuration(
    certificate: ConfigurationCertificate, instance: Instance, workers: Workers | None = None
) -> Fraction:
    """Find the bound on the total latency that a configuration certificate proves."""
    check_fingerprint(certificate.fingerprint, instance, workers)
    count = 1
    if workers is not None:
        if not workers.equal:
            raise CertificateError("a certificate of sizes is for equal workers only")
        count, instance = len(workers), instance.replace(memory=workers.memories[0])
    pairs = items(instance)
    for row in certificate.sizes:
        if len(row) != len(pairs):
            raise CertificateError(f"a phase has {len(row)} sizes for {len(pairs)} items")
    unit = certificate.price_denominator * certificate.size_denominator
    horizon = len(certificate.prices)
    largest = max((max(row, default=0) for row in certificate.sizes), default=0)
    reach = horizon + int(instance.arrivals[-1]) + int(instance.outputs.max()) + 1
    most = unit * reach + largest * (sum(certificate.prices) + instance.memory)
    # Beyond 64 bits numpy computes with Python's integers.
    kind: npt.DTypeLike = np.int64 if most < 2**62 else object
    prices = np.array(certificate.prices, dtype=kind)
    sizes = np.array(certificate.sizes, dtype=kind).reshape(len(certificate.ends), len(pairs))
    phase = np.searchsorted(certificate.ends, np.arange(1, horizon + 1))
    place = {(tokens, left): index for index, (tokens, left) in enumerate(pairs.tolist())}
    total = 0
    for prompt, output, arrival in zip(
        instance.prompts.tolist(),
        instance.outputs.tolist(),
        instance.arrivals.tolist(),
        strict=True,
    ):
        # From the horizon on nothing is paid, so that no start after it is cheaper.
        starts = np.arange(arrival, max(horizon, arrival) + 1)
        cost = unit * (starts + output - arrival).astype(kind)
        for token in range(1, output + 1):
            item = place[prompt + token, output - token]
            steps = np.arange(arrival + token, horizon + 1)
            cost[: len(steps)] += prices[steps - 1] * sizes[phase[steps - 1], item]
        total += int(cost.min())
    capacity = _capacities(instance, pairs, sizes, certificate.ends).tolist()
    begin = 0
    for end, size in zip(certificate.ends, capacity, strict=True):
        total -= count * size * sum(certificate.prices[begin:end])
        begin = end
    return Fraction(total, unit)


def _capacities(
    instance: Instance, pairs: IntArray, sizes: npt.NDArray[Any], ends: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Find for each phase the largest total size of items that can run together."""
    phases, memory = len(ends), instance.memory
    last = np.array(ends, dtype=np.int64)
    # best[p, c, S]: largest total size in phase p of c items that hold S tokens; -1 where none do.
    width, lightest = 0, 0
    for prompt in sorted(instance.prompts.tolist()):
        lightest += prompt + 1
        width += lightest <= memory
    best = np.full((phases, width + 1, memory + 1), -1, dtype=sizes.dtype)
    best[:, 0, 0] = 0
    filled = 0
    for index, (tokens, left) in enumerate(pairs.tolist()):
        there = (instance.peaks == tokens + left) & (instance.outputs > left)
        earliest = np.sort(instance.arrivals[there] + instance.outputs[there] - left)
        copies = np.searchsorted(earliest, last, side="right")
        for copy in range(min(len(earliest), memory // (tokens + left))):
            able = np.flatnonzero(copies > copy)
            for count in range(min(filled, width - 1), -1, -1):
                room = memory - tokens - (count + 1) * left
                if room < 0 or not len(able):
                    continue
                old = best[able, count, : room + 1]
                grown = np.where(old < 0, -1, old + sizes[able, index][:, None])
                new = best[able, count + 1, tokens : tokens + room + 1]
                best[able, count + 1, tokens : tokens + room + 1] = np.maximum(new, grown)
            filled += 1
    capacities: npt.NDArray[Any] = best.max(axis=(1, 2))
    return capacities
