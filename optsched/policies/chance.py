"""Policies that admit what is likely to fit, given a belief about each output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched.clock import UNIT, LinearClock
from optsched.errors import PolicyError, require_known
from optsched.policies.base import NamedPolicy, Needs
from optsched.problem.work import work_by_output

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.clock import Clock
    from optsched.problem.forecasts import Forecast

_DEVIATIONS, _DEVIATIONS_ON_CLOCK = 0.5, 1.0


@checked(PolicyError)
@dataclass(frozen=True)
class ChancePolicy(NamedPolicy):
    """Admit while the memory that is likely to be held fits; preempt where that was too little."""

    order: Literal["area", "work", "output", "arrival"] = "area"  # what a request costs
    deviations: float | None = None  # z; None: 0.5 in steps, 1 on clocks, where prefill is redone
    passed: int = 2  # maximum number of requests that are passed over at a step
    needs: ClassVar[Needs] = Needs("chance", "intervals")

    def __post_init__(self) -> None:
        require_known("order", self.order, ("area", "work", "output", "arrival"), PolicyError)
        for option, value in (("deviations", self.deviations), ("passed", self.passed)):
            self.require(
                value is None or 0 <= value < np.inf,
                f"{option} is {value}, but must be a number of at least 0",
            )

    def parsed(self, parameters: str) -> ChancePolicy:
        """Return the policy with the parameters "Z" or "Z,PASSED"."""
        first, comma, second = parameters.partition(",")
        try:
            deviations, passed = float(first), int(second) if comma else self.passed
        except ValueError:
            deviations, passed = np.nan, 0
        if not 0 <= deviations < np.inf or passed < 0:
            raise PolicyError(
                f"policy '{self.name}:{parameters}' should read {self.name}:Z or "
                f"{self.name}:Z,PASSED, with the deviations that count and how many requests may "
                f"be passed over, such as {self.name}:0.5,2"
            )
        name = f"{self.name}:{parameters}"
        return replace(self, name=name, deviations=deviations, passed=passed)

    def margin(self, clock: Clock) -> float:
        """Return z on a clock."""
        if self.deviations is not None:
            return self.deviations
        return _DEVIATIONS if clock is UNIT else _DEVIATIONS_ON_CLOCK

    def costs(self, forecast: Forecast, clock: Clock) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what a request costs: a constant, and factors of its output and its square."""
        none, one = np.zeros(len(forecast)), np.ones(len(forecast))
        if self.order == "arrival":
            return np.arange(len(forecast), dtype=np.float64), none, none
        if self.order == "output":
            return none, one, none
        if self.order == "work":
            if not isinstance(clock, LinearClock):
                raise PolicyError(
                    f"policy {self.name!r} needs a clock that is a weighted sum of what is in a "
                    f"batch, but {clock.name} is a function; use area-chance, or pass a LinearClock"
                )
            return work_by_output(forecast.prompts.astype(np.float64), forecast.memory, clock)
        return none, forecast.prompts.astype(np.float64) + 0.5, np.full(len(one), 0.5)


CHANCE = (
    ChancePolicy(
        "area-chance",
        "smallest expected memory-time first, while what is likely to be held fits",
        source="memory-time, as in area; chance constraints on the memory",
    ),
    ChancePolicy(
        "work-chance",
        "smallest expected work on the clock first, while what is likely to be held fits",
        order="work",
        source="as work; chance constraints on the memory",
    ),
)
