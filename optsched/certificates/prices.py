r"""Certificates of lower bounds, and the verifier that trusts nothing but integers.

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
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.json import read_object, write_object
from optsched.certificates.fields import check_fingerprint, check_prices, read_fields
from optsched.certificates.starts import least_costs
from optsched.errors import CertificateError
from optsched.problem.premises import Preemption, World
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeAlias

    from optsched._internal.arrays import BoolArray
    from optsched.certificates.capacity import CapacityCertificate
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.certificates.sawtooth import SawtoothCertificate
    from optsched.problem.instance import Instance

    AnyCertificate: TypeAlias = (
        "Certificate | ConfigurationCertificate | ClockCertificate | CapacityCertificate | "
        "SawtoothCertificate"
    )

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
    from optsched.certificates import capacity, configurations, on_clock, sawtooth

    content, _ = read_object(source, CertificateError, "prices")
    kinds: dict[Any, type[Any]] = {
        configurations.FORMAT: configurations.ConfigurationCertificate,
        sawtooth.FORMAT: sawtooth.SawtoothCertificate,
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
        The prices, prices and charges (`optsched.certificates.sawtooth`), prices and sizes
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
    from optsched.certificates.configurations import ConfigurationCertificate, verify_configuration
    from optsched.certificates.on_clock import verify_on_clock
    from optsched.certificates.sawtooth import SawtoothCertificate, verify_sawtooth

    if isinstance(certificate, SawtoothCertificate):
        return verify_sawtooth(certificate, instance, several)
    if isinstance(certificate, ConfigurationCertificate):
        return verify_configuration(certificate, instance, several)
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
