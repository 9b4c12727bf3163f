"""Policies that do not know outputs: intervals, chances, thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from optsched._internal.arguments import checked
from optsched.clock import UNIT, Clock
from optsched.errors import PolicyError, require_known
from optsched.policies.base import NamedPolicy, Needs, PriorityPolicy
from optsched.problem.work import work_by_output

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.forecasts import Forecast


Order = Literal["bound", "area", "mean-area", "work", "mean-work", "random"]
Outlived = Literal["ends-next", "holds-nothing", "restarts", "doubles"]
Preempt = Literal["bound", "tokens"]


@checked()
@dataclass(frozen=True)
class IntervalPolicy(NamedPolicy):
    """Plan with a bound of each output, and preempt what turns out longer than fits.

    A preempted request loses its tokens and waits again; from then on it is planned with the
    tokens it had made where these are more than its bound. Waiting requests are admitted in order
    as long as the plan fits (prefix rule); ties are random, from the seed of the run.

    Parameters
    ----------
    plan
        Bound that a request is planned with at first.
    order
        Waiting requests by ascending "bound", "area" or "work" on the clock of that bound, or by
        "mean-area" or "mean-work" over all outputs from that bound to the upper one; or at
        "random".
    outlived
        A running request that has outlived its plan is planned to end with the next step
        ("ends-next"), counts as nothing at admission ("holds-nothing", after which what is too
        much is preempted), or is preempted at once and planned with its upper bound ("restarts")
        or with twice its bound ("doubles").
    preempt
        Which is preempted first when the memory runs out: the least "bound", or the least of the
        larger of bound and "tokens" made.
    slack
        Share of the memory that admission leaves free unless the worker is idle.
    slack_on_clock
        The same on clocks, where a preempted prompt is prefilled again. None: as in steps.

    Examples
    --------
    Robust Algorithm 2 with a reserve of a quarter of the memory:

    >>> from optsched import Instance, run
    >>> careful = IntervalPolicy("careful", "a-min with a reserve", slack=0.25)
    >>> run(Instance([1] * 5, [1] * 5, 10), careful, intervals="common:1,4").total_latency
    6
    """

    plan: Literal["lower", "upper"] = "lower"
    order: Order = "bound"
    outlived: Outlived = "ends-next"
    preempt: Preempt = "bound"
    slack: float = 0.0
    slack_on_clock: float | None = None
    needs: ClassVar[Needs] = Needs("plan", "intervals")

    def __post_init__(self) -> None:
        for option, known in (("order", Order), ("outlived", Outlived), ("preempt", Preempt)):
            require_known(option, getattr(self, option), get_args(known), PolicyError)
        require_known("plan", self.plan, ("lower", "upper"), PolicyError)
        for slack in (self.slack, self.slack_on_clock):
            self.require(
                slack is None or 0 <= slack < 1,
                f"slack is {slack}, but must be a share from 0 to below 1",
            )

    def first_plan(self, forecast: Forecast) -> IntArray:
        """Return the output that each request is planned with at first, shape (n,)."""
        return forecast.lower if self.plan == "lower" else forecast.upper

    def reserve(self, memory: int, clock: Clock) -> int:
        """Return the tokens that admission leaves free, rounded down from the share as written."""
        share = self.slack
        if clock is not UNIT and self.slack_on_clock is not None:
            share = self.slack_on_clock
        return int(Fraction(str(share)) * memory)

    def for_forecast(self, forecast: Forecast) -> IntervalPolicy:
        """Return the policy that is run under a forecast: itself, unless it depends on that."""
        return self


@dataclass(frozen=True)
class SwitchingPolicy(IntervalPolicy):
    """Be `apart` up to a ratio of lower to upper bounds, in sums, and `near` above it."""

    apart: IntervalPolicy | None = None
    near: IntervalPolicy | None = None
    switch: float = 0.5

    def for_forecast(self, forecast: Forecast) -> IntervalPolicy:
        """Return one of the two."""
        ratio = float(forecast.lower.sum()) / float(forecast.upper.sum())
        chosen = self.apart if ratio <= self.switch else self.near
        assert chosen is not None
        return chosen


class Hindsight(PriorityPolicy):
    """Know the outputs even where the policies beside it only know intervals: a reference."""

    needs: ClassVar[Needs] = Needs("order", "hindsight", rules=True)


class RandomOrder(Hindsight):
    """Take requests in random order and know the outputs (Robust's auxiliary A_random)."""

    def seeded(self, seed: int) -> RandomOrder:
        """Return the policy that draws its order from a seed."""
        return replace(self, key=lambda given: np.random.default_rng(seed).permutation(len(given)))


_LATER = "memory-time, as in area"
_TOKENS: dict[str, str | float] = {"preempt": "tokens", "slack": 0.1}

#: Name, description, source and what differs from `a-min`.
_INTERVAL_POLICIES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("a-max", "least upper bound first, planned with it", "after Robust Alg. 1", {"plan": "upper"}),
    (
        "a-max-random",
        "random order, planned with the upper bound",
        "Robust Alg. 1",
        {"plan": "upper", "order": "random"},
    ),
    ("a-min", "smallest lower bound first, planned with it; preempts", "Robust Alg. 2", {}),
    (
        "a-min-overcommit",
        "a-min where a request that outlived its bound counts as nothing at admission",
        "after Robust Alg. 2",
        {"outlived": "holds-nothing"},
    ),
    (
        "a-l",
        "lower bound first; one that outlives it restarts with the upper",
        "Robust Section 5.1, Alg. 6",
        {"outlived": "restarts"},
    ),
    (
        "a-double",
        "lower bound first; one that outlives it restarts with twice the bound",
        "after Robust Alg. 6",
        {"outlived": "doubles"},
    ),
    (
        "area-lower",
        "smallest memory-time at the lower bound first; preempts the fewest tokens",
        _LATER,
        {"order": "area", **_TOKENS},
    ),
    (
        "area-posterior",
        "smallest mean memory-time over the interval first; preempts the fewest tokens",
        _LATER,
        {"order": "mean-area", **_TOKENS, "slack": 0.02, "slack_on_clock": 0.03},
    ),
    (
        "work-posterior",
        "smallest mean work on the clock over the interval first; preempts the fewest tokens",
        "the work that is expected, as in work",
        {"order": "mean-work", **_TOKENS, "slack": 0.02, "slack_on_clock": 0.03},
    ),
)
_INTERVAL = {
    name: IntervalPolicy(name, description, source=source, **rules)
    for name, description, source, rules in _INTERVAL_POLICIES
}

ROBUST = (
    Hindsight(
        "h-sf",
        "shortest true output first, in hindsight",
        attrgetter("outputs"),
        source="Robust Section 3.1, Alg. 3",
    ),
    RandomOrder(
        "a-random",
        "random order, with the true outputs",
        attrgetter("arrivals"),
        source="Robust Section 8",
    ).seeded(0),
    *_INTERVAL.values(),
    # Where the bounds of Robust Theorems 5.1 and 5.2 cross, for two-point outputs.
    SwitchingPolicy(
        "a-switch",
        "a-l where lower bounds are below 0.38 of the upper ones, else a-min",
        apart=_INTERVAL["a-l"],
        near=_INTERVAL["a-min"],
        switch=(3 - math.sqrt(5)) / 2,
        source="Robust Theorems 5.1 and 5.2",
    ),
)


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
            timed = self.linear(clock, "area-chance")
            return work_by_output(forecast.prompts.astype(np.float64), forecast.memory, timed)
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
