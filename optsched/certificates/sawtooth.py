r"""Certificates of the sawtooth bound, and a verifier that trusts nothing but integers.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

from optsched._internal.json import read_object, write_object
from optsched.certificates.fields import check_fingerprint, check_prices, read_fields
from optsched.certificates.starts import least_costs
from optsched.errors import CertificateError
from optsched.problem.premises import World

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

FORMAT = "optsched-sawtooth-certificate"


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
        return write_object({"format": FORMAT, **vars(self), "value": value}, path)

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
