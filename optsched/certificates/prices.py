r"""Certificates of bounds in steps, and verifiers that share no code with what makes them.

Prices :math:`\pi_t = p_t / d \ge 0` of a token at each step, and charges for the first tokens of a
request beside them, prove the bounds of docs/bounds.md whatever they are.

**Pools.** On several workers prices :math:`\pi^S_t` may be those of sets :math:`S` of workers. A
request that may run on workers :math:`E_i \subseteq S` only holds its tokens in the pool whatever
its placement: it pays :math:`\sum_{S \supseteq E_i} \pi^S_t`, and :math:`\sum_S M_S \sum_t \pi^S_t`
is subtracted, where :math:`M_S` is the memory of the pool.

**Items.** An item is a running request by the tokens :math:`m` that it holds and the steps
:math:`r` that are left to it. If nothing new starts, one with :math:`r' \ge r` steps left holds
:math:`m' + r` tokens after :math:`r` more steps and all others are done. So items run together only
if :math:`\sum_{r' \ge r} (m' + r) \le M` at the :math:`r` of each. Taken by decreasing :math:`r`,
the next one fits iff :math:`S + m + (c + 1) r \le M` beside :math:`c` that hold :math:`S`; a
dynamic program over :math:`(c, S)` finds the largest total size. An item is taken at most as often
as there are requests that can be in that state by the end of the phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.files import read_object, write_object
from optsched.certificates import capacity, checks, on_clock
from optsched.errors import CertificateError
from optsched.problem.premises import Preemption, World
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    import numpy.typing as npt

    from optsched._internal.arrays import BoolArray, IntArray
    from optsched.problem.costs import Lateness
    from optsched.problem.instance import Instance

    AnyCertificate: TypeAlias = (
        "Certificate | ConfigurationCertificate | MakespanCertificate | SawtoothCertificate"
        " | on_clock.ClockCertificate | capacity.CapacityCertificate"
    )


@dataclass(frozen=True)
class ConfigurationCertificate(checks.Claimed):
    """Prices of steps and sizes of running requests that prove a bound on the total latency."""

    FORMAT = "optsched-configuration-certificate"

    price_denominator: int  # the price of step t is prices[t - 1] / price_denominator
    size_denominator: int
    prices: tuple[int, ...] = field(repr=False)  # of steps 1 to T; later steps are free
    ends: tuple[int, ...]  # last step of each phase, ascending; the last one is T
    sizes: tuple[tuple[int, ...], ...] = field(repr=False)  # a row per phase, as `items`
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

    @classmethod
    def from_json(cls, source: str | Path) -> ConfigurationCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "prices and sizes")
        if content.get("format") != cls.FORMAT:
            raise CertificateError(f"{where} is not a certificate of the configuration bound")
        depths = {"price_denominator": 0, "size_denominator": 0, "prices": 1, "ends": 1, "sizes": 2}
        return cls(**checks.read_fields(content, where, **depths))


@dataclass(frozen=True)
class MakespanCertificate(checks.Claimed):
    r"""Sizes of running requests that prove a bound on the makespan.

    Let no set of items that can run together on worker :math:`g` be larger than :math:`F_g`. Those
    requests that arrive from step :math:`a` on then complete no sooner than
    :math:`a + \sum_i \sum_u \varphi(s_i + u, o_i - u) / \sum_g F_g`, and none before it would
    alone. Sizes of `growth`, tokens :math:`m` and steps :math:`H`, are those of the sawtooth
    (docs/bounds.md).
    """

    FORMAT = "optsched-makespan-certificate"
    objective = "makespan"

    since: int  # the step a
    sizes: tuple[int, ...] = field(repr=False)  # as `items`, of what arrives from then on
    fingerprint: str  # of the instance, with the workers if there are several
    value: Fraction = Fraction(0)  # claimed; `verify_makespan` finds what is proven
    growth: tuple[int, ...] = ()  # m and H; there are no sizes then

    def __post_init__(self) -> None:
        if min(self.sizes, default=0) < 0:
            raise CertificateError("a size is negative")
        if self.growth and (len(self.growth) != 2 or self.growth[0] < 1 or self.growth[1] < 0):
            raise CertificateError(
                f"growth is {self.growth}, but must be tokens, at least 1, and steps, at least 0"
            )

    @classmethod
    def from_json(cls, source: str | Path) -> MakespanCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "sizes")
        content = {"growth": [], **content}
        return cls(**checks.read_fields(content, where, since=0, sizes=1, growth=1))


def verify_makespan(
    certificate: MakespanCertificate, instance: Instance, workers: Workers | None = None
) -> Fraction:
    """Find the bound on the makespan that a certificate of sizes proves."""
    if workers is not None and len(workers) == 1:
        instance, workers = workers.pool(instance), None
    checks.check_fingerprint(certificate.fingerprint, instance, workers)
    memories = (instance.memory,) if workers is None else workers.memories
    alone = int((instance.arrivals + instance.outputs).max())  # each runs as soon as it arrives
    later = np.flatnonzero(instance.arrivals >= certificate.since)
    if not len(later):
        raise CertificateError(f"no request arrives from step {certificate.since} on")
    instance = instance.take(later)
    total, capacity = (_grown if certificate.growth else _sized)(certificate, instance, memories)
    steps = math.ceil(Fraction(total, capacity)) if capacity else 0  # whole, as is every step
    return Fraction(max(certificate.since + steps, alone))


def _sized(
    certificate: MakespanCertificate, instance: Instance, memories: tuple[int, ...]
) -> tuple[int, int]:
    """Return the total size of all items, and the largest that fits on all workers."""
    pairs = items(instance)
    if len(certificate.sizes) != len(pairs):
        raise CertificateError(f"{len(certificate.sizes)} sizes for {len(pairs)} items")
    most = max(certificate.sizes) * max(*memories, int(instance.outputs.sum()))
    kind: npt.DTypeLike = np.int64 if most < 2**62 else object
    sizes = np.array([certificate.sizes], dtype=kind)
    last = (int(instance.arrivals[-1] + instance.outputs.max()),)
    capacity = sum(
        memories.count(memory) * int(_capacities(instance, pairs, sizes, last, memory)[0])
        for memory in set(memories)
    )
    place = {(tokens, left): index for index, (tokens, left) in enumerate(pairs.tolist())}
    rows = zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    total = sum(
        certificate.sizes[place[prompt + token, output - token]]
        for prompt, output in rows
        for token in range(1, output + 1)
    )
    return total, capacity


def _grown(
    certificate: MakespanCertificate, instance: Instance, memories: tuple[int, ...]
) -> tuple[int, int]:
    """Return the same for the sizes of the sawtooth, which no worker holds more of than m M."""
    size, height = certificate.growth
    largest, total = max(memories), 0
    most = (size + height) * largest
    kind: npt.DTypeLike = np.int64 if most * len(instance) < 2**62 else object
    for token in range(1, int(instance.outputs.max()) + 1):
        running = instance.outputs >= token
        held = (instance.prompts[running] + token).astype(kind)
        left = (instance.outputs[running] - token).astype(kind)
        paid = size * held + height * np.minimum(size, held)
        total += int(np.maximum(paid - largest * np.maximum(height - left, 0), 0).sum())
    return total, size * sum(memories)


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
    checks.check_fingerprint(certificate.fingerprint, instance, workers)
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
    capacity = _capacities(instance, pairs, sizes, certificate.ends, instance.memory).tolist()
    begin = 0
    for end, size in zip(certificate.ends, capacity, strict=True):
        total -= count * size * sum(certificate.prices[begin:end])
        begin = end
    return Fraction(total, unit)


def _capacities(
    instance: Instance, pairs: IntArray, sizes: checks.Exact, ends: tuple[int, ...], memory: int
) -> checks.Exact:
    """Find for each phase the largest total size of items that can run together."""
    phases = len(ends)
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
    capacities: checks.Exact = best.max(axis=(1, 2))
    return capacities


@dataclass(frozen=True)
class SawtoothCertificate(checks.Claimed):
    """Prices of memory and charges for growth that prove a bound on the latency."""

    FORMAT = "optsched-sawtooth-certificate"

    denominator: int
    size: int  # tokens of a request that are charged for at most
    prices: tuple[int, ...] = field(repr=False)  # of a token at steps 1 to T, times the denominator
    charges: tuple[int, ...] = field(repr=False)  # beside them, for the first `size` tokens
    fingerprint: str  # of the instance, with the workers if there are several
    value: Fraction = Fraction(0)  # claimed; `verify_sawtooth` finds what is proven
    objective: str = "total-latency"

    def __post_init__(self) -> None:
        checks.check_prices(self.denominator, self.prices, self.objective)
        if self.size < 1:
            raise CertificateError(f"the size is {self.size}, but must be positive")
        if len(self.charges) != len(self.prices):
            raise CertificateError(
                f"{len(self.prices)} prices, but {len(self.charges)} charges; there is one a step"
            )
        for step, (price, charge) in enumerate(zip(self.prices, self.charges, strict=True), 1):
            if not 0 <= charge * self.size <= price * len(self.prices):
                raise CertificateError(
                    f"the charge of step {step} is {charge}, but must be between 0 and its price "
                    "times the steps over the size"
                )

    @classmethod
    def from_json(cls, source: str | Path) -> SawtoothCertificate:
        """Read a certificate from a JSON file or JSON text; its value is a claim until verified."""
        content, where = read_object(source, CertificateError, "prices and charges")
        fields = checks.read_fields(content, where, denominator=0, size=0, prices=1, charges=1)
        return cls(**fields, objective=content.get("objective", "total-latency"))


def verify_sawtooth(
    certificate: SawtoothCertificate, instance: Instance, workers: Workers | None = None
) -> Fraction:
    """Find the bound on the total or weighted latency that prices and charges prove."""
    pool, largest = instance, instance.memory
    if workers is not None:
        pool, largest = workers.pool(instance), max(workers.memories)
        if len(workers) == 1:
            instance, workers = pool, None
    checks.check_fingerprint(certificate.fingerprint, instance, workers)
    unit, prices, charges = certificate.denominator, certificate.prices, certificate.charges
    credited = _credits(certificate, largest)
    total = checks.least_costs(
        pool, prices, unit, certificate.objective, charges, certificate.size, credited
    )
    return Fraction(total - pool.memory * sum(prices), unit)


def _credits(certificate: SawtoothCertificate, memory: int) -> list[int]:
    """Return what completing at steps 0, 1, 2, ... is credited, from its second differences."""
    size, bends = certificate.size, [0] * (2 * len(certificate.prices) + 4)
    for step, (price, charge) in enumerate(
        zip(certificate.prices, certificate.charges, strict=True), 1
    ):
        if charge:
            # A line from `height` down to zero; `over` is what is left of it at the last step.
            height = size * charge
            reach, over = divmod(height, price)
            bends[step] += height
            bends[step + 1] -= height + price
            bends[step + reach + 1] += price - over
            bends[step + reach + 2] += over
    return [-(-memory * value // size) for value in accumulate(accumulate(bends))]


_SEVERAL = "optsched-joint-certificate"


@dataclass(frozen=True)
class Certificate(checks.Claimed):
    """Prices of memory that prove a lower bound on the total or the weighted latency.

    Parameters
    ----------
    denominator
        Positive integer d; the price of step t is ``prices[t - 1] / d``.
    prices
        Non-negative integers for steps 1 to T, of one pool after the other; later steps are free.
    fingerprint
        The instance it was made for (`Instance.fingerprint`), with the workers if there are several
        (`Workers.fingerprint`).
    value
        The bound that its maker claims; `verify` finds the bound that it proves.
    objective
        What it bounds: "total-latency", "weighted-latency" or "late-requests".
    pools
        The workers of each pool; none for the memory of one worker.
    lateness, penalty
        What is added to the objective, as of `SolveParams`.

    Examples
    --------
    >>> from optsched import Instance, bound, verify
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> certificate = bound(instance).certificate
    >>> verify(certificate, instance) == certificate.value
    True
    """

    FORMAT = "optsched-certificate"

    denominator: int
    prices: tuple[int, ...] = field(repr=False)
    fingerprint: str
    value: Fraction = Fraction(0)
    objective: str = "total-latency"
    pools: tuple[tuple[int, ...], ...] = ()
    lateness: Lateness = "forbidden"
    penalty: float = 0.0

    def __post_init__(self) -> None:
        checks.check_lateness(self.lateness, self.penalty)
        if self.pools and len(self.prices) % len(self.pools):
            raise CertificateError("prices of pools must be for the same steps")
        for row in self.rows:
            checks.check_prices(self.denominator, row, self.objective, "late-requests")

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The prices of each pool, for steps 1 to T."""
        count = max(1, len(self.pools))
        steps = len(self.prices) // count
        return tuple(self.prices[pool * steps : (pool + 1) * steps] for pool in range(count))

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        kept: Preemption = "restarted"
        count = None if self.pools else 1
        # What a request pays that is late bounds only runs in which none is.
        soft = self.lateness != "forbidden"
        return World(
            self.fingerprint, count, preemption=kept, restricted=soft, objective=self.objective
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the certificate as JSON, and write it to `path` if one is given."""
        value = [self.value.numerator, self.value.denominator]
        content = vars(self) | {"value": value}
        if not self.pools:
            kind, keys = self.FORMAT, ["fingerprint", "denominator", "prices", "value", "objective"]
        else:
            kind = _SEVERAL
            keys = ["denominator", "pools", "prices", "fingerprint", "value", "objective"]
            content["prices"] = self.rows
        if self.lateness != "forbidden":
            keys += ["lateness", "penalty"]
        return write_object({"format": kind} | {key: content[key] for key in keys}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> Certificate:
        """Read a certificate from a JSON file or JSON text; its value is a claim until verified."""
        content, where = read_object(source, CertificateError, "denominator and prices")
        objective = content.get("objective", "total-latency")
        late = {key: content[key] for key in ("lateness", "penalty") if key in content}
        if content.get("format") != _SEVERAL:
            fields = checks.read_fields(content, where, denominator=0, prices=1)
            return cls(**fields, objective=objective, **late)
        fields = checks.read_fields(content, where, denominator=0, pools=2, prices=2)
        pools, rows = fields["pools"], fields.pop("prices")
        if not pools or len(pools) != len(rows):
            raise CertificateError(f"{where}: {len(pools)} pools, but prices of {len(rows)}")
        if len({len(row) for row in rows}) > 1:
            raise CertificateError(f"{where}: prices of pools must be for the same steps")
        return cls(**fields, prices=tuple(chain.from_iterable(rows)), objective=objective, **late)


@checked(CertificateError)
def read_certificate(source: str | Path) -> AnyCertificate:
    """Read a certificate of any kind, a claim until it is verified, from a JSON file or JSON text.

    Examples
    --------
    >>> from optsched import Instance, bound
    >>> proof = bound(Instance([1], [2], memory=3), "lagrangian").certificate
    >>> read_certificate(proof.to_json()) == proof
    True
    """
    content, _ = read_object(source, CertificateError, "prices")
    kinds = {kind.FORMAT: kind for kind in _VERIFIERS}
    found: AnyCertificate = kinds.get(str(content.get("format")), Certificate).from_json(source)
    return found


@checked(CertificateError)
def verify(
    certificate: AnyCertificate,
    instance: Instance,
    workers: int | str | Sequence[int] | Workers | None = None,
) -> Fraction:
    """Find the bound that a certificate proves: on a latency, or on a number of workers.

    Parameters
    ----------
    certificate
        The prices, prices and charges, or prices and sizes (`optsched.certificates.prices`), or
        what proves a bound on a clock (`optsched.certificates.on_clock`) or a number of workers
        (`optsched.certificates.capacity`); what it claims is ignored.
    instance
        The instance it was made for.
    workers
        The workers it was made for, if it is a proof for several; a certificate on a clock says
        itself how many there are.

    Returns
    -------
    Fraction
        A lower bound on the objective of every feasible schedule, exact; in steps, or in the unit
        of the certificate's clock. Of a certificate of `optsched.capacity`, the least number of
        workers for its goals, perhaps with a fraction.

    Raises
    ------
    CertificateError
        If the certificate was made for another instance or for other workers.

    Examples
    --------
    >>> from optsched import Certificate, Instance
    >>> instance = Instance([1, 1], [2, 2], memory=3)
    >>> verify(Certificate(1, (1, 1), instance.fingerprint), instance)
    Fraction(2, 1)
    """
    several = None if workers is None else as_workers(workers, instance)
    return _VERIFIERS[type(certificate)](certificate, instance, several)


def _verify_prices(
    certificate: Certificate, instance: Instance, workers: Workers | None
) -> Fraction:
    if certificate.pools and workers is None:
        raise CertificateError("the certificate is for several workers; pass them")
    if not certificate.pools and workers is not None:
        if len(workers) > 1:
            raise CertificateError("the certificate is for one worker; leave the workers out")
        instance, workers = workers.pool(instance), None
    checks.check_fingerprint(certificate.fingerprint, instance, workers)
    owners = Workers([instance.memory]) if workers is None else workers
    pools, unit = certificate.pools or ((0,),), certificate.denominator
    members = np.zeros((len(pools), len(owners)), dtype=np.bool_)
    total = 0
    for pool, (inside, prices) in enumerate(zip(pools, certificate.rows, strict=True)):
        if len(set(inside)) < len(inside) or not set(inside) <= set(range(len(owners))):
            raise CertificateError(f"pool {pool} names a worker twice, or one that is not there")
        members[pool, list(inside)] = True
        total -= sum(owners.memories[worker] for worker in inside) * sum(prices)
    for places, requests in _by_places(instance, owners):
        rows = zip(members, certificate.rows, strict=True)
        paid = [prices for inside, prices in rows if not (places & ~inside).any()]
        charged = paid[0] if len(paid) == 1 else [sum(step) for step in zip(*paid, strict=True)]
        total += checks.least_costs(
            instance.take(requests),
            charged,
            unit,
            certificate.objective,
            lateness=(certificate.lateness, certificate.penalty),
        )
    return Fraction(total, unit)


def _by_places(instance: Instance, workers: Workers) -> list[tuple[BoolArray, list[int]]]:
    """Group the requests by the workers on which they may run."""
    may_run = (instance.prompts + instance.outputs)[:, None] <= np.array(workers.memories)
    if workers.eligible is not None:
        may_run = may_run & workers.eligible
    groups: dict[bytes, list[int]] = {}
    for request, places in enumerate(may_run):
        groups.setdefault(places.tobytes(), []).append(request)
    return [(np.frombuffer(key, dtype=np.bool_), found) for key, found in groups.items()]


#: What finds the bound that a certificate of a kind proves, for an instance and its workers.
_VERIFIERS: dict[type[Any], Callable[[Any, Instance, Workers | None], Fraction]] = {
    Certificate: _verify_prices,
    SawtoothCertificate: verify_sawtooth,
    ConfigurationCertificate: verify_configuration,
    MakespanCertificate: verify_makespan,
    # These say themselves how many workers there are.
    capacity.CapacityCertificate: lambda given, instance, _: capacity.verify_capacity(
        given, instance
    ),
    on_clock.ClockCertificate: lambda given, instance, _: on_clock.verify_on_clock(given, instance),
}
