r"""Certificates that fleets of several kinds of workers cost at least so much, and a verifier.

A cut has for each kind a certificate with windows and weights. What a request demands of the kind
on which it demands the least is demanded of whoever serves it; those that may miss their limits are
the requests with the largest demand. So the lengths of the windows times the numbers of workers are
at least the sum. The verifier tries all whole numbers that are not too expensive.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from optsched._internal.json import read_object, write_object
from optsched.certificates.capacity import CapacityCertificate, allowed_misses, demands_in
from optsched.errors import CertificateError
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optsched.instance import Instance
    from optsched.premises import World

FORMAT = "optsched-fleet-certificate"


@dataclass(frozen=True)
class FleetCertificate:
    """Proof that no fleet which meets goals costs less than that of so many workers."""

    workers: tuple[int, ...]
    costs: tuple[float, ...]  # of a worker of each kind
    memories: tuple[int, ...]
    cuts: tuple[tuple[CapacityCertificate, ...], ...]  # one certificate for each kind

    def __post_init__(self) -> None:
        kinds = len(self.costs)
        if (
            not kinds
            or not self.cuts
            or any(len(each) != kinds for each in (self.workers, self.memories, *self.cuts))
        ):
            raise CertificateError(
                "each kind of workers needs a cost, a memory and a part of a cut"
            )
        if not all(isinstance(part, CapacityCertificate) for cut in self.cuts for part in cut):
            raise CertificateError("each part of a cut is a certificate of demand in windows")
        if not all(0 < cost < math.inf for cost in self.costs):
            raise CertificateError("the cost of a worker must be a positive number")

    @property
    def cost(self) -> Fraction:
        """What a fleet costs at least."""
        return sum(
            (n * Fraction(c) for n, c in zip(self.workers, self.costs, strict=True)), Fraction()
        )

    @property
    def premises(self) -> World:
        """Of which runs on the first kind it proves anything."""
        return self.cuts[0][0].premises

    def to_json(self, path: str | Path | None = None) -> str:
        """Write the certificate as JSON."""
        cuts = [[json.loads(part.to_json()) for part in cut] for cut in self.cuts]
        return write_object({"format": FORMAT, **vars(self), "cuts": cuts}, path)

    @classmethod
    def from_json(cls, source: str | Path) -> FleetCertificate:
        """Read a certificate from a JSON file or text."""
        content, where = read_object(source, CertificateError, "costs and cuts")
        try:
            costs = tuple(map(float, content["costs"]))
            workers, memories = (tuple(map(int, content[name])) for name in ("workers", "memories"))
            cuts = [[json.dumps(part) for part in cut] for cut in content["cuts"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CertificateError(f"{where}: workers, costs or cuts cannot be read") from None
        parts = tuple(tuple(map(CapacityCertificate.from_json, cut)) for cut in cuts)
        return cls(workers, costs, memories, parts)


def verify_fleet(certificate: FleetCertificate, instance: Instance) -> Fraction:
    """Find what fleets of these kinds cost at least."""
    cuts = [_cut(cut, certificate.memories, instance) for cut in certificate.cuts]
    ones = [Fraction(1)] * len(certificate.costs)
    return _cheapest([*cuts, (ones, Fraction(1))], [Fraction(cost) for cost in certificate.costs])


def _cut(
    parts: Sequence[CapacityCertificate], memories: Sequence[int], instance: Instance
) -> tuple[list[Fraction], Fraction]:
    """Return how long the windows of each kind are, and what is demanded in them."""
    if any((part.goals, part.price) != (parts[0].goals, parts[0].price) for part in parts):
        raise CertificateError("the parts of a cut have different goals or prices")
    found = [
        demands_in(part, instance.replace(memory=memory))
        for part, memory in zip(parts, memories, strict=True)
    ]
    unit = math.lcm(*(scale for _, scale, _ in found))
    columns = ([None if d is None else d * (unit // scale) for d in own] for own, scale, _ in found)
    least = [
        min((demand for demand in row if demand is not None), default=None)
        for row in zip(*columns, strict=True)
    ]
    allowed = allowed_misses(parts[0], least.count(None))
    kept = sorted(demand for demand in least if demand is not None)
    needed = Fraction(sum(kept[: max(0, len(kept) - allowed)]), unit)
    return [length for _, _, length in found], needed


def _cheapest(
    cuts: Sequence[tuple[Sequence[Fraction], Fraction]], costs: Sequence[Fraction]
) -> Fraction:
    """Return the least cost of whole numbers of workers that satisfy all cuts."""
    (cost, *others), best = costs, None
    if not others:
        counts = (math.ceil(needed / lengths[0]) for lengths, needed in cuts)
        return cost * max(counts, default=0)
    for count in range(MAX_WORKERS + 1):
        if best is not None and count * cost >= best:
            return best
        left = [(lengths[1:], needed - lengths[0] * count) for lengths, needed in cuts]
        left = [(lengths, needed) for lengths, needed in left if needed > 0]
        if all(any(lengths) for lengths, _ in left):
            found = count * cost + _cheapest(left, others)
            best = found if best is None else min(best, found)
    raise CertificateError(f"the cuts ask for more than {MAX_WORKERS:,} workers")
