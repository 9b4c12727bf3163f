"""Lower bounds on the cost of any schedule: the relaxation in closed form, or with a certificate.

The closed form is that of `relaxation`. Its dual prices, put into the Lagrangian
of the true problem, give a bound that is at least as good up to rounding, and a certificate.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.aside import interruptible
from optsched.errors import OptschedError, nearest
from optsched.solvers.bounds.lagrangian import Objective, certify, kinds_of, weights_of
from optsched.solvers.bounds.relaxation import closed_form, dual_prices, relax

if TYPE_CHECKING:
    from optsched.certificates.prices import Certificate
    from optsched.instance import Instance

OBJECTIVES: tuple[Objective, ...] = ("total-latency", "weighted-latency", "makespan")
BoundMethod = Literal["auto", "closed-form", "lagrangian"]
BOUND_METHODS: tuple[BoundMethod, ...] = ("auto", "closed-form", "lagrangian")

_MAX_PRICES = 20_000_000
_MAX_SEARCH = 5e8  # requests times the root of the steps: what the search for starts takes
_LONG = 20_000  # requests from which on a kernel may take a second


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the objective of every feasible schedule.

    Attributes
    ----------
    value
        The bound in steps, rounded towards minus infinity.
    method
        How it was found: "closed-form" or "lagrangian".
    seconds
        Time it took.
    certificate
        The proof, for "lagrangian"; the closed form is proven on paper (docs/bounds.md) and
        evaluated with an allowance for rounding.
    interrupted
        Whether Ctrl-C ended its improvement.
    """

    value: float
    method: str
    seconds: float
    certificate: Certificate | None = None
    interrupted: bool = False


def bound(
    instance: Instance, method: BoundMethod = "auto", objective: Objective = "total-latency"
) -> Bound:
    """Bound the total latency of every feasible schedule from below, or another objective.

    Parameters
    ----------
    instance
        The requests.
    method
        "closed-form", "lagrangian" (with a certificate), or "auto": the better of the two, but the
        closed form alone where the other takes longer than some ten seconds, as for a million
        requests that are not of a few kinds.
    objective
        "total-latency", "weighted-latency", or "makespan", for which there is only the closed
        form: the memory-time that arrives from some step on over the memory, and the longest
        request.

    Returns
    -------
    Bound
        The bound and, for "lagrangian", its certificate.

    Raises
    ------
    OptschedError
        If the method or the objective is unknown, or "lagrangian" is asked for the makespan or
        would need more prices than fit.

    Examples
    --------
    >>> from optsched import Instance, bound
    >>> result = bound(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> result.method, result.value <= 45
    ('lagrangian', True)
    """
    if method not in BOUND_METHODS:
        raise OptschedError(f"unknown bound {method!r}: known: {', '.join(BOUND_METHODS)}")
    if objective not in OBJECTIVES:
        raise OptschedError(f"unknown objective {objective!r}: {nearest(objective, OBJECTIVES)}")
    if len(instance) >= _LONG:
        return interruptible(_find, instance, method, objective)
    return _find(instance, method, objective)


def _find(instance: Instance, method: BoundMethod, objective: Objective) -> Bound:
    began = time.perf_counter()
    weights = weights_of(instance, objective)
    relaxation = relax(instance, weights)
    horizon = relaxation.horizon(instance.memory)
    if objective == "makespan":
        if method == "lagrangian":
            raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
        last = max(horizon, int((instance.arrivals + instance.outputs).max()))
        return Bound(float(last), "closed-form", time.perf_counter() - began)
    value = closed_form(instance, weights, relaxation)
    simple = Bound(value, "closed-form", time.perf_counter() - began)
    long = horizon > _MAX_PRICES or _takes_long(instance, horizon)
    if method == "closed-form" or (method == "auto" and long):
        return simple
    if horizon > _MAX_PRICES:
        raise OptschedError(
            f"the Lagrangian bound would need a price for each of {horizon} steps (at most "
            f"{_MAX_PRICES}); use the closed form or longer steps"
        )
    guesses = relaxation.last_starts(instance)
    certificate = certify(instance, dual_prices(instance, weights, relaxation), guesses, objective)
    free = certify(instance, np.zeros(0), guesses, objective)
    certificate = max(certificate, free, key=lambda candidate: candidate.value)
    value = round_down(certificate.value)
    proven = Bound(value, "lagrangian", time.perf_counter() - began, certificate)
    # The certificate is preferred unless it loses more than what rounding the prices costs.
    weaker = value < simple.value - 1e-6 * abs(simple.value)
    return simple if method == "auto" and weaker else proven


def _takes_long(instance: Instance, horizon: int) -> bool:
    """Return whether the cheapest starts at so many prices take more than some seconds."""
    if len(instance) * math.sqrt(horizon) <= _MAX_SEARCH:
        return False
    return kinds_of(instance, horizon) is None


def round_down(value: Fraction) -> float:
    """Turn a fraction into the largest double that is not above it."""
    close = float(value)
    return close if Fraction(close) <= value else math.nextafter(close, -math.inf)
