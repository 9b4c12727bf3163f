"""What all kinds of certificates read and check alike."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from optsched.errors import CertificateError

if TYPE_CHECKING:
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers


def read_fields(content: dict[str, Any], where: str, **depths: int) -> dict[str, Any]:
    """Read fields, whole numbers in lists nested so deep, with the fingerprint and the value."""

    def whole(value: Any, depth: int, name: str) -> Any:
        if depth == 0 and type(value) is not int:
            raise CertificateError(f"{where}: {name} holds {value!r}, which is not a whole number")
        if depth and not isinstance(value, list):
            raise CertificateError(f"{where}: {name} must be a list")
        return tuple(whole(entry, depth - 1, name) for entry in value) if depth else value

    for name in (*depths, "fingerprint"):
        if name not in content:
            raise CertificateError(f"{where}: the key {name!r} is missing")
    fields = {name: whole(content[name], depth, name) for name, depth in depths.items()}
    claim = whole(content.get("value", [0, 1]), 1, "value")
    if len(claim) != 2 or claim[1] < 1:
        raise CertificateError(f"{where}: value must be a numerator and a positive denominator")
    return {**fields, "fingerprint": str(content["fingerprint"]), "value": Fraction(*claim)}


def check_prices(denominator: int, prices: tuple[int, ...], objective: str) -> None:
    """Reject prices of steps that prove nothing."""
    if denominator < 1:
        raise CertificateError(f"the denominator is {denominator}, but must be positive")
    if objective not in ("total-latency", "weighted-latency"):
        raise CertificateError(f"no certificate can prove anything about {objective!r}")
    if prices and min(prices) < 0:
        step = next(step for step, price in enumerate(prices, 1) if price < 0)
        raise CertificateError(
            f"the price of step {step} is {prices[step - 1]}, but cannot be negative"
        )


def check_fingerprint(fingerprint: str, instance: Instance, workers: Workers | None = None) -> None:
    """Reject a certificate of another instance, or of other workers."""
    found = instance.fingerprint if workers is None else workers.fingerprint(instance)
    if fingerprint != found:
        what = "instance" if workers is None else "instance or to other workers"
        raise CertificateError(
            f"the certificate belongs to another {what}: it was made for fingerprint "
            f"{fingerprint[:12]}..., but here it is {found[:12]}..."
        )


def check_step(step: float, unit: str, instance: Instance) -> None:
    """Reject a certificate for steps of another length, where arrivals depend on it."""
    counted = 1.0 if unit == "steps" else instance.seconds_per_step
    if instance.arrivals.any() and step != counted:
        raise CertificateError(
            f"the certificate is for steps of {step:g} {unit}, but seconds_per_step of the "
            f"instance is {counted}; give it the same"
        )
