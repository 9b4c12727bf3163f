r"""Certificates of lower bounds, and the verifier that trusts nothing but integers.

A certificate is a price :math:`\pi_t = p_t / d \ge 0` for a token-step of memory at each step
:math:`t = 1, \dots, T` (free afterwards), with integers :math:`p_t` and :math:`d`. Whatever the
prices are, no schedule of the instance has a total latency below

.. math::

    L(\pi) = \sum_i \min_{k \ge a_i} \Bigl[ k + o_i - a_i
             + \sum_{u=1}^{o_i} (s_i + u)\, \pi_{k+u} \Bigr] - M \sum_t \pi_t ,

because a feasible schedule pays at most :math:`M \pi_t` for the tokens it holds at step :math:`t`
(Lagrangian relaxation of the memory rows, Sorted-F Eq. 6). The verifier evaluates this in exact
integers. It shares no code with the module that makes certificates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.json import read_object, write_object
from optsched.certificates.fields import check_fingerprint, read_fields
from optsched.errors import CertificateError
from optsched.premises import Preemption, World
from optsched.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.certificates.joint import JointCertificate
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.instance import Instance
    from optsched.workers import Workers

_CHUNK = 8192


@dataclass(frozen=True)
class Certificate:
    """Prices of memory that prove a lower bound on the total or the weighted latency.

    Parameters
    ----------
    denominator
        Positive integer d; the price of step t is ``prices[t - 1] / d``.
    prices
        Non-negative integers for steps 1 to T; later steps are free.
    fingerprint
        The instance it was made for (`Instance.fingerprint`).
    value
        The bound that its maker claims; `verify` finds the bound that it proves.
    objective
        What it bounds, "total-latency" or "weighted-latency".

    Raises
    ------
    CertificateError
        If the denominator is not positive, a price is negative or the objective is unknown.

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

    def __post_init__(self) -> None:
        if self.denominator < 1:
            raise CertificateError(f"the denominator is {self.denominator}, but must be positive")
        if self.objective not in ("total-latency", "weighted-latency"):
            raise CertificateError(f"no certificate can prove anything about {self.objective!r}")
        if self.prices and min(self.prices) < 0:
            step = next(step for step, price in enumerate(self.prices, 1) if price < 0)
            raise CertificateError(
                f"the price of step {step} is {self.prices[step - 1]}, but cannot be negative"
            )

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        kept: Preemption = "restarted"
        return World(self.fingerprint, preemption=kept, objective=self.objective)

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON.

        Parameters
        ----------
        path
            Where to write it; None only returns the text.

        Returns
        -------
        str
            The JSON text, from which `from_json` makes an equal certificate.
        """
        content = {
            "format": "optsched-certificate",
            "fingerprint": self.fingerprint,
            "denominator": self.denominator,
            "prices": list(self.prices),
            "value": [self.value.numerator, self.value.denominator],
            "objective": self.objective,
        }
        return write_object(content, path)

    @classmethod
    def from_json(cls, source: str | Path) -> Certificate:
        """Read a certificate from a JSON file or from JSON text.

        Parameters
        ----------
        source
            A path, or the text itself (it starts with a brace).

        Returns
        -------
        Certificate
            What was written by `to_json`; the value is a claim until it is verified.

        Raises
        ------
        CertificateError
            If a key is missing or a number is not a whole number.
        """
        content, where = read_object(source, CertificateError, "denominator and prices")
        fields = read_fields(content, where, denominator=0, prices=1)
        return cls(**fields, objective=content.get("objective", "total-latency"))


@checked(CertificateError)
def read_certificate(
    source: str | Path,
) -> Certificate | ConfigurationCertificate | ClockCertificate | JointCertificate:
    """Read a certificate of any kind; the file says which it is.

    Parameters
    ----------
    source
        A path, or the JSON text itself (it starts with a brace).

    Returns
    -------
    Certificate, ConfigurationCertificate, ClockCertificate or JointCertificate
        What was written by `to_json`; the value is a claim until it is verified.

    Raises
    ------
    CertificateError
        If the file is not a certificate.

    Examples
    --------
    >>> from optsched import Instance, bound
    >>> proof = bound(Instance([1], [2], memory=3), "lagrangian").certificate
    >>> read_certificate(proof.to_json()) == proof
    True
    """
    from optsched.certificates import configurations, joint, on_clock

    content, _ = read_object(source, CertificateError, "prices")
    if content.get("format") == configurations.FORMAT:
        return configurations.ConfigurationCertificate.from_json(source)
    if content.get("format") == on_clock.FORMAT:
        return on_clock.ClockCertificate.from_json(source)
    if content.get("format") == joint.FORMAT:
        return joint.JointCertificate.from_json(source)
    return Certificate.from_json(source)


@checked(CertificateError)
def verify(
    certificate: Certificate | ConfigurationCertificate | ClockCertificate | JointCertificate,
    instance: Instance,
    workers: int | str | Sequence[int] | Workers | None = None,
) -> Fraction:
    """Find the bound on the total or weighted latency that a certificate proves.

    The value that the certificate claims is not looked at.

    Parameters
    ----------
    certificate
        The prices, prices and sizes (`optsched.certificates.configurations`), or what proves a
        bound on a clock (`optsched.certificates.on_clock`).
    instance
        The instance it was made for.
    workers
        The workers it was made for, if it is a proof for several; on a clock the certificate has
        their number itself.

    Returns
    -------
    Fraction
        A lower bound on the objective of every feasible schedule, exact; in steps, or in the unit
        of the certificate's clock.

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
    if not isinstance(certificate, Certificate):
        from optsched.certificates.configurations import (
            ConfigurationCertificate,
            verify_configuration,
        )
        from optsched.certificates.joint import JointCertificate, verify_joint
        from optsched.certificates.on_clock import verify_on_clock

        several = None if workers is None else as_workers(workers, instance)
        if isinstance(certificate, ConfigurationCertificate):
            return verify_configuration(certificate, instance, several)
        if isinstance(certificate, JointCertificate):
            return verify_joint(certificate, instance, several)
        return verify_on_clock(certificate, instance)
    if workers is not None:
        raise CertificateError("the certificate is for one worker; leave the workers out")
    check_fingerprint(certificate.fingerprint, instance)
    unit, paid = certificate.denominator, instance.memory * sum(certificate.prices)
    costs = least_costs(instance, certificate.prices, unit, certificate.objective)
    return Fraction(costs - paid, unit)


def least_costs(instance: Instance, prices: Sequence[int], denominator: int, objective: str) -> int:
    """Add up what the cheapest start of each request costs, times the denominator."""
    horizon, spent = len(prices), sum(prices)
    weights = [1.0] * len(instance)
    if objective == "weighted-latency" and instance.weights is not None:
        weights = instance.weights.tolist()
    # A step of latency costs its weight times the denominator, rounded down.
    steps = [math.floor(Fraction(weight) * denominator) for weight in weights]
    # Everything below stays under `size`; beyond 64 bits numpy computes with Python's integers.
    size = (instance.memory + horizon + 1) * (spent * 2 + max(steps))
    kind: npt.DTypeLike = np.int64 if size < 2**62 else object
    # before[t]: prices of steps 1..t; steps beyond the horizon are free. twice: sums of before.
    before = np.zeros(horizon + 1, dtype=kind)
    before[1:] = np.cumsum(np.array(prices, dtype=kind))
    twice = np.zeros(horizon + 2, dtype=kind)
    twice[1:] = np.cumsum(before)
    total = 0
    rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals]).tolist()
    for (prompt, output, arrival), step in zip(rows, steps, strict=True):
        # From the horizon on nothing is paid, and starting later only costs more.
        best = step * (max(horizon, arrival) + output - arrival)
        for first in range(arrival, horizon, _CHUNK):
            if step * (first + output - arrival) >= best:
                break  # prices are not negative
            start = np.arange(first, min(first + _CHUNK, horizon))
            end = np.minimum(start + output, horizon)
            paid = before[end] - before[start]
            # sum of u * p[start + u] by parts: end * before[end] minus the sums in between
            ramp = (end - start) * before[end] - (twice[end] - twice[start])
            latency = (start + output - arrival).astype(kind)
            cost = step * latency + prompt * paid + ramp
            best = min(best, int(cost.min()))
        total += best
    return total
