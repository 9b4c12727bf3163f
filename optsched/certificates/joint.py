r"""Certificates of bounds on several workers, and a verifier that trusts nothing but integers.

A *pool* is a set :math:`S` of workers that holds :math:`M_S = \sum_{g \in S} M_g` tokens. A
request that may run only on workers :math:`E_i \subseteq S`, because elsewhere it does not fit or
is not eligible, holds its tokens in the pool whatever its placement. So with a price
:math:`\rho^S_t \ge 0` for the tokens of each pool at each step no joint schedule has a total
latency below

.. math::

    \sum_i \min_{k \ge a_i} \Bigl[ k + o_i - a_i
    + \sum_{u=1}^{o_i} (s_i + u) \sum_{S \supseteq E_i} \rho^S_{k+u} \Bigr]
    - \sum_S M_S \sum_t \rho^S_t .

With the pool of all workers alone it is the bound of one worker that has all memory. Where every
request fits everywhere, no prices prove more: those of single workers can be averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.json import read_object, write_object
from optsched.certificates.fields import check_fingerprint, read_fields
from optsched.certificates.prices import least_costs
from optsched.errors import CertificateError
from optsched.premises import Preemption, World

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.instance import Instance
    from optsched.workers import Workers

FORMAT = "optsched-joint-certificate"


@dataclass(frozen=True)
class JointCertificate:
    """Prices of the memory of pools of workers that prove a bound on a joint schedule."""

    denominator: int
    pools: tuple[tuple[int, ...], ...]  # the workers of each
    prices: tuple[tuple[int, ...], ...]  # of each pool, for steps 1 to T; later steps are free
    fingerprint: str  # of the instance and the workers
    value: Fraction = Fraction(0)  # claimed; `verify_joint` finds what is proven
    objective: str = "total-latency"

    def __post_init__(self) -> None:
        if self.denominator < 1:
            raise CertificateError(f"the denominator is {self.denominator}, but must be positive")
        if self.objective not in ("total-latency", "weighted-latency"):
            raise CertificateError(f"no certificate can prove anything about {self.objective!r}")
        if len(self.pools) != len(self.prices):
            raise CertificateError(f"{len(self.pools)} pools, but prices of {len(self.prices)}")
        if len({len(row) for row in self.prices}) > 1:
            raise CertificateError("prices of pools must be for the same steps")
        if any(row and min(row) < 0 for row in self.prices):
            raise CertificateError("a price is negative")

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        kept: Preemption = "restarted"
        return World(self.fingerprint, None, preemption=kept, objective=self.objective)

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        value = [self.value.numerator, self.value.denominator]
        return write_object({"format": FORMAT, **vars(self), "value": value}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> JointCertificate:
        """Read a certificate from a JSON file or from JSON text."""
        content, where = read_object(source, CertificateError, "pools and prices")
        if content.get("format") != FORMAT:
            raise CertificateError(f"{where} is not a certificate for several workers")
        fields = read_fields(content, where, denominator=0, pools=2, prices=2)
        return cls(**fields, objective=content.get("objective", "total-latency"))


def verify_joint(
    certificate: JointCertificate, instance: Instance, workers: Workers | None
) -> Fraction:
    """Find the bound that a certificate proves for several workers."""
    if workers is None:
        raise CertificateError("the certificate is for several workers; pass them")
    check_fingerprint(certificate.fingerprint, instance, workers)
    count, sold = len(workers), 0
    members = np.zeros((len(certificate.pools), count), dtype=np.bool_)
    for pool, inside in enumerate(certificate.pools):
        if len(set(inside)) < len(inside) or not set(inside) <= set(range(count)):
            raise CertificateError(f"pool {pool} names a worker twice, or one that is not there")
        members[pool, list(inside)] = True
        memory = sum(workers.memories[worker] for worker in inside)
        sold += memory * sum(certificate.prices[pool])
    total = -sold
    for places, requests in _by_places(instance, workers):
        paying = [
            row
            for inside, row in zip(members, certificate.prices, strict=True)
            if not (places & ~inside).any()
        ]
        prices = [sum(column) for column in zip(*paying, strict=True)]
        part = instance.take(requests)
        total += least_costs(part, prices, certificate.denominator, certificate.objective)
    return Fraction(total, certificate.denominator)


def _by_places(
    instance: Instance, workers: Workers
) -> list[tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], list[int]]]:
    """Group the requests by the workers on which they may run."""
    may_run = (instance.prompts + instance.outputs)[:, None] <= np.array(workers.memories)
    if workers.eligible is not None:
        may_run = may_run & workers.eligible
    groups: dict[bytes, list[int]] = {}
    for request, places in enumerate(may_run):
        groups.setdefault(places.tobytes(), []).append(request)
    return [(np.frombuffer(key, dtype=np.bool_), found) for key, found in groups.items()]
