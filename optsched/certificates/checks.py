"""What certificates have in common, and what their verifiers check first."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from optsched._internal.files import write_object
from optsched.errors import CertificateError
from optsched.problem.premises import World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched._internal.files import JSON
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

    Exact = npt.NDArray[Any]  # of 64-bit integers, or of Python's own


class Claimed:
    """A proof with the value that it claims until it is verified."""

    FORMAT: ClassVar[str]  # in JSON
    fingerprint: str
    value: Fraction
    objective: str = "total-latency"

    @property
    def premises(self) -> World:
        """Of which runs it proves a bound."""
        return World(self.fingerprint, None, preemption="restarted", objective=self.objective)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the certificate as JSON, and write it to `path` if one is given."""
        value = [self.value.numerator, self.value.denominator]
        return write_object({"format": self.FORMAT, **vars(self), "value": value}, path)


def read_fields(content: JSON, where: str, **depths: int) -> JSON:
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


def check_lateness(lateness: str, penalty: float) -> None:
    """Reject an unknown price on lateness, or one that is no price."""
    if lateness not in ("forbidden", "per-step", "per-request"):
        raise CertificateError(f"lateness is {lateness!r}, but must be per-step or per-request")
    number = type(penalty) in (int, float) and math.isfinite(penalty)
    if not number or (penalty != 0 if lateness == "forbidden" else penalty <= 0):
        raise CertificateError(
            f"penalty is {penalty!r}, but must be a positive number, and 0 where lateness is "
            "forbidden"
        )


def check_prices(denominator: int, prices: tuple[int, ...], objective: str, *others: str) -> None:
    """Reject prices of steps that prove nothing."""
    if denominator < 1:
        raise CertificateError(f"the denominator is {denominator}, but must be positive")
    if objective not in ("total-latency", "weighted-latency", *others):
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


class ChargedRequest(NamedTuple):
    """A request in whole units of time."""

    arrival: int
    weight: Fraction
    decodes: int
    share: int  # of the constant with its first token, of `whole` parts
    sharing: int  # more of it with each further token
    first: int  # own time with its first token
    decode: int  # own time with its second token
    growth: int  # of it with each further token

    def alone(self, constant: int) -> int:
        """Return its latency if nothing else runs."""
        return constant + self.first + self.decoding(constant)

    def decoding(self, constant: int) -> int:
        """Return what all further tokens take."""
        d = self.decodes
        return (constant + self.decode) * d + self.growth * (d * (d - 1) // 2)


_CHUNK = 8192


def least_costs(
    instance: Instance,
    prices: Sequence[int],
    denominator: int,
    objective: str,
    charges: Sequence[int] = (),
    size: int = 0,
    credited: Sequence[int] = (0,),
    lateness: tuple[str, float] = ("forbidden", 0.0),
) -> int:
    """Add up costs of the cheapest starts at prices, charges and credits, times the denominator."""
    horizon, spent = len(prices), sum(prices) + sum(charges)
    weights, nothing = [1.0] * len(instance), [0] * len(instance)
    if objective in ("weighted-latency", "late-requests") and instance.weights is not None:
        weights = instance.weights.tolist()
    # A step of latency costs its weight times the denominator, rounded down; so do being late, and
    # each step of it, their prices.
    steps = [math.floor(Fraction(weight) * denominator) for weight in weights]
    once = each = due = nothing
    if objective == "late-requests":
        steps, once = nothing, steps
    kind_of_lateness, penalty = lateness
    price = [math.floor(Fraction(penalty) * denominator)] * len(instance)
    if kind_of_lateness == "per-step":
        each = price
    elif kind_of_lateness == "per-request":
        once = price
    if any(once) or any(each):
        if instance.deadlines is None:
            raise CertificateError("the certificate is of late requests; none has a deadline here")
        due = instance.deadlines.tolist()
    most = max(credited)
    # Everything below stays under `limit`; beyond 64 bits numpy computes with Python's integers.
    limit = instance.memory + size + horizon + int(instance.outputs.max()) + 1
    limit = limit * (spent * 2 + max(steps) + max(each)) + most + max(once)
    kind: npt.DTypeLike = np.int64 if limit < 2**62 else object
    tokens = _Sums.of(prices, kind)
    counted = _Sums.of(charges or [0] * horizon, kind)
    credit = np.array(credited, dtype=kind)
    total = 0
    rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals]).tolist()
    of_each = zip(rows, steps, due, once, each, strict=True)
    for (prompt, output, arrival), step, deadline, jump, slope in of_each:
        # From the horizon on nothing is paid and credits fall, so that no later start is cheaper.
        last = max(horizon, arrival)
        best = step * (last + output - arrival) - credited[min(last + output, len(credited) - 1)]
        over = max(last + output - deadline, 0)
        best += slope * over + (jump if over else 0)
        for first in range(arrival, horizon, _CHUNK):
            if step * (first + output - arrival) - most >= best:
                break  # prices are not negative
            start = np.arange(first, min(first + _CHUNK, horizon))
            latency = (start + output - arrival).astype(kind)
            cost = step * latency + tokens.paid(prompt, start, start + output)
            if charges:
                full = start + min(max(size - prompt, 0), output)  # then it has `size` tokens
                cost += counted.paid(prompt, start, full)
                cost += size * counted.between(full, start + output)
            if jump or slope:
                late = np.maximum(start + output - deadline, 0)
                cost += slope * late.astype(kind) + np.where(late > 0, jump, 0).astype(kind)
            cost -= credit[np.minimum(start + output, len(credit) - 1)]
            best = min(best, int(cost.min()))
        total += best
    return total


class _Sums(NamedTuple):
    """Sums of prices by which costs of starts are found; steps beyond the last price are free."""

    before: Exact  # of steps 1..t
    twice: Exact  # of `before`

    @classmethod
    def of(cls, prices: Sequence[int], kind: npt.DTypeLike) -> _Sums:
        before = np.zeros(len(prices) + 1, dtype=kind)
        before[1:] = np.cumsum(np.array(prices, dtype=kind))
        twice = np.zeros(len(prices) + 2, dtype=kind)
        twice[1:] = np.cumsum(before)
        return cls(before, twice)

    def between(self, start: IntArray, end: IntArray) -> Exact:
        """Return the price of a token at the steps after each start up to each end."""
        last = len(self.before) - 1
        ends, starts = self.before[np.minimum(end, last)], self.before[np.minimum(start, last)]
        return np.asarray(ends - starts)

    def paid(self, prompt: int, start: IntArray, end: IntArray) -> Exact:
        """Return what a request pays that holds a token more at each step."""
        end = np.minimum(end, len(self.before) - 1)
        # sum of u * p[start + u] by parts: end * before[end] minus the sums in between
        ramp = (end - start) * self.before[end] - (self.twice[end] - self.twice[start])
        return np.asarray(prompt * self.between(start, end) + ramp)
