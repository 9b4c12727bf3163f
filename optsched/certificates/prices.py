r"""Certificates of prices, and of the sawtooth that running requests keep free.

Between completions the memory in use only grows, so that every request that is running at step
:math:`t` keeps a token free for each step to the next completion. Beside prices :math:`\pi_t = p_t
/ d` of memory a certificate has charges :math:`\kappa_t = q_t / d` for each of the first :math:`m`
tokens of a running request, and with :math:`[x]^+ = \max(0, x)` completing at step :math:`c` is
credited

.. math::

    \beta_c = \frac{M}{m} \sum_{t \le c} \bigl[ m \kappa_t - (c - t) \pi_t \bigr]^+ .

No schedule has a total latency below

.. math::

    L = \sum_i \min_{k \ge a_i} \Bigl[ k + o_i - a_i + \sum_{u=1}^{o_i} \bigl( (s_i + u) \pi_{k+u} +
        \min(m, s_i + u) \kappa_{k+u} \bigr) - \beta_{k+o_i} \Bigr] - M \sum_t \pi_t ,

as docs/bounds.md proves; without charges it is the Lagrangian. Credits are rounded up to multiples
of :math:`1 / d`. On several workers :math:`M` is the memory of all where it is sold, and that of
the largest in the credits. The verifier shares no code with what makes certificates.

A certificate is a price :math:`\pi_t = p_t / d \ge 0` for a token-step of memory at each step
:math:`t = 1, \dots, T` (free afterwards), with integers :math:`p_t` and :math:`d`. Whatever the
prices are, :math:`L(\pi)` of docs/bounds.md is below the total latency of every schedule.

On several workers there are prices :math:`\pi^S_t` of *pools*: sets :math:`S` of workers that hold
:math:`M_S = \sum_{g \in S} M_g` tokens. A request that may run on workers :math:`E_i \subseteq S`
only holds its tokens in the pool whatever its placement: it pays :math:`\sum_{S \supseteq E_i}
\pi^S_t`, and :math:`\sum_S M_S \sum_t \pi^S_t` is subtracted. One worker is one pool. Where every
request fits everywhere, the pool of all workers proves as much as any prices.

The verifier shares no code with the modules that make certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.files import read_object, write_object
from optsched.certificates.checks import check_fingerprint, check_prices, least_costs, read_fields
from optsched.errors import CertificateError
from optsched.problem.premises import Preemption, World
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeAlias

    from optsched._internal.arrays import BoolArray
    from optsched.certificates.capacity import CapacityCertificate
    from optsched.certificates.configurations import (
        ConfigurationCertificate,
        MakespanCertificate,
    )
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.problem.instance import Instance

    AnyCertificate: TypeAlias = (
        "Certificate | ConfigurationCertificate | MakespanCertificate"
        " | ClockCertificate | CapacityCertificate"
        " | SawtoothCertificate"
    )

SAWTOOTH = "optsched-sawtooth-certificate"


@dataclass(frozen=True)
class SawtoothCertificate:
    """Prices of memory and charges for growth that prove a bound on the latency."""

    denominator: int
    size: int  # tokens of a request that are charged for at most
    prices: tuple[int, ...]  # of a token at steps 1 to T, times the denominator
    charges: tuple[int, ...]  # beside them, for each of the first `size` tokens of a request
    fingerprint: str  # of the instance, with the workers if there are several
    value: Fraction = Fraction(0)  # claimed; `verify_sawtooth` finds what is proven
    objective: str = "total-latency"

    def __post_init__(self) -> None:
        check_prices(self.denominator, self.prices, self.objective)
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

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        return World(self.fingerprint, None, preemption="restarted", objective=self.objective)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the certificate as JSON, and write it to `path` if one is given."""
        value = [self.value.numerator, self.value.denominator]
        return write_object({"format": SAWTOOTH, **vars(self), "value": value}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> SawtoothCertificate:
        """Read a certificate from a JSON file or JSON text; its value is a claim until verified."""
        content, where = read_object(source, CertificateError, "prices and charges")
        fields = read_fields(content, where, denominator=0, size=0, prices=1, charges=1)
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
    check_fingerprint(certificate.fingerprint, instance, workers)
    unit, prices, charges = certificate.denominator, certificate.prices, certificate.charges
    credited = _credits(certificate, largest)
    total = least_costs(
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


_ALONE, _SEVERAL = "optsched-certificate", "optsched-joint-certificate"


@dataclass(frozen=True)
class Certificate:
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
        What it bounds, "total-latency" or "weighted-latency".
    pools
        The workers of each pool; none for the memory of one worker.

    Examples
    --------
    >>> from optsched import Instance, bound, verify
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> certificate = bound(instance).certificate
    >>> verify(certificate, instance) == certificate.value
    True
    """

    denominator: int
    prices: tuple[int, ...]
    fingerprint: str
    value: Fraction = Fraction(0)
    objective: str = "total-latency"
    pools: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.pools and len(self.prices) % len(self.pools):
            raise CertificateError("prices of pools must be for the same steps")
        for row in self.rows:
            check_prices(self.denominator, row, self.objective)

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
        return World(self.fingerprint, count, preemption=kept, objective=self.objective)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the certificate as JSON, and write it to `path` if one is given."""
        value = [self.value.numerator, self.value.denominator]
        content = vars(self) | {"value": value}
        if not self.pools:
            kind, keys = _ALONE, ["fingerprint", "denominator", "prices", "value", "objective"]
        else:
            kind = _SEVERAL
            keys = ["denominator", "pools", "prices", "fingerprint", "value", "objective"]
            content["prices"] = self.rows
        return write_object({"format": kind} | {key: content[key] for key in keys}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> Certificate:
        """Read a certificate from a JSON file or JSON text; its value is a claim until verified."""
        content, where = read_object(source, CertificateError, "denominator and prices")
        objective = content.get("objective", "total-latency")
        if content.get("format") != _SEVERAL:
            fields = read_fields(content, where, denominator=0, prices=1)
            return cls(**fields, objective=objective)
        fields = read_fields(content, where, denominator=0, pools=2, prices=2)
        pools, rows = fields["pools"], fields.pop("prices")
        if not pools or len(pools) != len(rows):
            raise CertificateError(f"{where}: {len(pools)} pools, but prices of {len(rows)}")
        if len({len(row) for row in rows}) > 1:
            raise CertificateError(f"{where}: prices of pools must be for the same steps")
        return cls(**fields, prices=tuple(chain.from_iterable(rows)), objective=objective)


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
    from optsched.certificates import capacity, configurations, on_clock

    content, _ = read_object(source, CertificateError, "prices")
    kinds: dict[Any, type[Any]] = {
        configurations.FORMAT: configurations.ConfigurationCertificate,
        configurations.MAKESPAN: configurations.MakespanCertificate,
        SAWTOOTH: SawtoothCertificate,
        on_clock.FORMAT: on_clock.ClockCertificate,
        capacity.FORMAT: capacity.CapacityCertificate,
    }
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
        The prices, prices and charges (`optsched.certificates.prices`), prices and sizes
        (`optsched.certificates.configurations`), or what proves a bound on a clock
        (`optsched.certificates.on_clock`) or a number of workers
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
    if isinstance(certificate, Certificate):
        return _verify_prices(certificate, instance, several)
    from optsched.certificates.capacity import CapacityCertificate, verify_capacity
    from optsched.certificates.configurations import (
        ConfigurationCertificate,
        MakespanCertificate,
        verify_configuration,
        verify_makespan,
    )
    from optsched.certificates.on_clock import verify_on_clock

    if isinstance(certificate, SawtoothCertificate):
        return verify_sawtooth(certificate, instance, several)
    if isinstance(certificate, ConfigurationCertificate):
        return verify_configuration(certificate, instance, several)
    if isinstance(certificate, MakespanCertificate):
        return verify_makespan(certificate, instance)
    if isinstance(certificate, CapacityCertificate):
        return verify_capacity(certificate, instance)
    return verify_on_clock(certificate, instance)


def _verify_prices(
    certificate: Certificate, instance: Instance, workers: Workers | None
) -> Fraction:
    if certificate.pools and workers is None:
        raise CertificateError("the certificate is for several workers; pass them")
    if not certificate.pools and workers is not None:
        if len(workers) > 1:
            raise CertificateError("the certificate is for one worker; leave the workers out")
        instance, workers = workers.pool(instance), None
    check_fingerprint(certificate.fingerprint, instance, workers)
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
        total += least_costs(instance.take(requests), charged, unit, certificate.objective)
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
