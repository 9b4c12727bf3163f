"""Policies that fill the memory to a threshold and clear when it overflows (Jaillet Section 7).

Requests are admitted, in order of arrival, while the tokens held at the next step stay within
(1 - alpha) of the memory. When the next step would not fit the memory, requests are preempted as if
they had never started, and wait at their place by arrival. Outputs need not be known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from optsched._internal.arguments import checked
from optsched.errors import PolicyError
from optsched.policies.base import NamedPolicy, Needs


@checked(PolicyError)
@dataclass(frozen=True)
class OverflowPolicy(NamedPolicy):
    """Admit in order of arrival up to a threshold; when the memory overflows, preempt requests.

    `alpha`, in (0, 1), is the share of the memory that admission leaves free, and `beta` the
    probability with which each running request is preempted; None preempts all.
    """

    alpha: float
    beta: float | None = None
    source: str = field(default="Jaillet Section 7", kw_only=True)
    needs: ClassVar[Needs] = Needs("threshold")

    def __post_init__(self) -> None:
        for parameter in ("alpha", "beta"):
            value = getattr(self, parameter)
            if value is not None:
                why = f"{parameter} is {value:g}, but must lie between 0 and 1"
                self.require(0 < value < 1, why)

    def with_parameters(
        self, alpha: float | None = None, beta: float | None = None
    ) -> OverflowPolicy:
        """Return the policy with other parameters, named as on the command line."""
        if beta is not None and self.beta is None:
            raise PolicyError(
                f"policy {self.name!r} preempts all requests and has no beta; leave it out, or "
                "take alpha-beta-clearing"
            )
        alpha = self.alpha if alpha is None else alpha
        beta = self.beta if beta is None else beta
        values = f"{alpha:g}" if beta is None else f"{alpha:g},{beta:g}"
        name = f"{self.name.partition(':')[0]}:{values}"
        return replace(self, name=name, alpha=alpha, beta=beta)

    def parsed(self, parameters: str) -> OverflowPolicy:
        """Return the policy with the parameters "ALPHA" or "ALPHA,BETA"."""
        form = "ALPHA" if self.beta is None else "ALPHA,BETA"
        try:
            numbers = [float(value) for value in parameters.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= (1 if self.beta is None else 2):
            raise PolicyError(
                f"policy '{self.name}:{parameters}' should read {self.name}:{form}, with numbers "
                "between 0 and 1"
            )
        return self.with_parameters(*numbers)


# 0.3 and 0.1, 0.1 are among the values of Jaillet Section 7; the greedy one needs the larger alpha,
# because it loops where too little is protected.
GREEDY = OverflowPolicy("alpha-greedy", "to a threshold; an overflow preempts all", 0.3)
CLEARING = OverflowPolicy(
    "alpha-beta-clearing", "to a threshold; an overflow preempts some", 0.1, 0.1
)
OVERFLOW = (GREEDY, CLEARING)
