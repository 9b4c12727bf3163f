"""Lower bounds on the cost of any schedule of one worker in steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from optsched._internal.exact import round_down
from optsched._internal.loading import stopwatch
from optsched._internal.room import has_room, require_room
from optsched.bounds.lagrangian import Objective, certify, kinds_of, weights_of
from optsched.bounds.relaxation import closed_form, dual_prices, relax
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError
from optsched.problem.premises import NOWHERE, World

if TYPE_CHECKING:
    from optsched.certificates.sawtooth import SawtoothCertificate
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

BoundMethod = Literal["auto", "closed-form", "lagrangian", "sawtooth"]
BOUND_METHODS: tuple[BoundMethod, ...] = get_args(BoundMethod)

_MAX_PRICES = 20_000_000
_PRICE = 160  # bytes of the price of a step, its sums and what is kept of it in a certificate
_MAX_SEARCH = 5e8  # requests times the root of the steps: what the search for starts takes


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the objective of every feasible schedule.

    Attributes
    ----------
    value
        The bound in steps, rounded towards minus infinity.
    method
        How it was found: "closed-form", "lagrangian" or "sawtooth"; on several workers "pool",
        which is "lagrangian" for the memory of all, or "nested", with prices of parts of it.
    seconds
        Time it took.
    certificate
        The proof, if prices prove it; the closed form is proven on paper (docs/bounds.md) and
        evaluated with an allowance for rounding.
    interrupted
        Whether Ctrl-C ended its improvement.
    premises
        The runs for which it holds (`optsched.problem.premises.World`); none unless stated.
    workers
        The workers that it holds for; None is one.
    """

    value: float
    method: str
    seconds: float
    certificate: Certificate | SawtoothCertificate | None = None
    interrupted: bool = False
    premises: World = NOWHERE
    workers: Workers | None = None

    @property
    def prices(self) -> Certificate | None:
        """The certificate, if it proves the bound by prices of memory alone."""
        return self.certificate if isinstance(self.certificate, Certificate) else None


def find_bound(instance: Instance, method: BoundMethod, objective: Objective) -> Bound:
    """Bound the cost of every schedule of one worker in steps."""
    began = stopwatch()
    # An interrupted request has its token-steps early at best where it runs through (docs).
    premises = World(instance.fingerprint, preemption="resumed", objective=objective)
    weights = weights_of(instance, objective)
    relaxation = relax(instance, weights)
    horizon = relaxation.horizon(instance.memory)
    if objective == "makespan":
        if method == "lagrangian":
            raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
        last = max(horizon, int((instance.arrivals + instance.outputs).max()))
        return Bound(float(last), "closed-form", stopwatch() - began, premises=premises)
    value = closed_form(instance, weights, relaxation)
    simple = Bound(value, "closed-form", stopwatch() - began, premises=premises)
    long = horizon > _MAX_PRICES or _takes_long(instance, horizon)
    if method == "closed-form" or (method == "auto" and (long or not has_room(horizon, _PRICE))):
        return simple
    if horizon > _MAX_PRICES:
        raise OptschedError(
            f"the Lagrangian bound would need a price for each of {horizon} steps (at most "
            f"{_MAX_PRICES}); use the closed form or longer steps"
        )
    require_room(horizon, _PRICE, "prices of steps", "use the closed form or longer steps")
    guesses = relaxation.last_starts(instance)
    try:
        prices = dual_prices(instance, weights, relaxation)
        certificate = certify(instance, prices, guesses, objective)
    except OptschedError:
        if method == "lagrangian":
            raise
        return simple
    free = certify(instance, np.zeros(0), guesses, objective)
    certificate = max(certificate, free, key=lambda candidate: candidate.value)
    value = round_down(certificate.value)
    seconds = stopwatch() - began
    proven = Bound(value, "lagrangian", seconds, certificate, premises=certificate.premises)
    # The certificate is preferred unless it loses more than what rounding the prices costs.
    weaker = value < simple.value - 1e-6 * abs(simple.value)
    return simple if method == "auto" and weaker else proven


def _takes_long(instance: Instance, horizon: int) -> bool:
    """Return whether the cheapest starts at so many prices take more than some seconds."""
    if len(instance) * math.sqrt(horizon) <= _MAX_SEARCH:
        return False
    return kinds_of(instance, horizon) is None
