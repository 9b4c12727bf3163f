"""The settings of the rolling horizon: plan a window, start what the plan starts now, and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from optsched._internal.arguments import as_count, checked
from optsched.errors import PolicyError, nearest, require_known
from optsched.policies.base import Needs, Policy, PriorityPolicy, with_rule
from optsched.policies.priorities import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray

LengthEstimate = Literal["lower", "upper", "posterior"]
LENGTH_ESTIMATES: tuple[LengthEstimate, ...] = get_args(LengthEstimate)
#: What plans, and what may solve it; "auto" is a search or a rule of this package where one is.
ROLLING_MODELS = {
    "hindsight": ("auto", "highs", "cp-sat"),
    "beam": ("auto",),
    "hindsight-exact": ("auto", "highs", "cp-sat"),
    "relax-lp": ("auto", "highs"),
    "batch": ("auto", "dp", "highs", "cp-sat"),
}
ORDERS = {policy.name: policy for policy in PRIORITIES}


@checked(PolicyError)
@dataclass(frozen=True)
class RollingPolicy(Policy):
    """Plan the requests that wait, start those whose time has come, and plan again.

    Reviews take place when requests have arrived, when an output differs from the plan, and
    when a request has started while others wait beyond the window; `Execution.decisions` says how
    decisions came about. Ctrl-C ends the planning, not the run: the fallback decides the rest. A
    second Ctrl-C ends the run.

    Parameters
    ----------
    model
        What plans a window. "hindsight": the hindsight program with the memory priced for the
        requests beyond the window, by search. "beam": the same by a narrow beam over time, which
        takes tens of milliseconds for 64 requests. "hindsight-exact": the same by HiGHS, for small
        windows. "relax-lp": the order of Sorted-LP, by a subgradient method. "batch": batches of
        least F, by local swap. Or a function that takes an `optsched.rolling.Window` and returns a
        start for each of its requests, or a schedule.
    method
        What solves the model: "auto", "highs" or "cp-sat", where it can represent it, and of
        "batch" also "dp". "auto" is what the model says above.
    window
        Maximum number of waiting requests that are planned, the first in the fallback's order.
    horizon
        Number of steps whose memory is planned; fewer requests are planned once it is full. None
        plans the whole window.
    replan_interval
        Least number of steps between two reviews.
    budget
        Seconds for one decision. At 0 the fallback decides alone.
    fallback
        The order of admission where there is no plan: "area", "mc-sf", "mc-sf-total", "fcfs", or a
        `PriorityPolicy`; by the prefix rule, or by the window rule as in "area+window".
    length_estimate
        With intervals: what an output is taken for, its "lower" or "upper" bound, or the
        "posterior" mean of those outputs that are still possible, all equally likely.
    scenarios
        Simulated arrival scenarios, drawn from the past, on which a plan is compared with the
        fallback; 0 trusts the plan.

    Examples
    --------
    >>> from optsched import RollingPolicy, family, run
    >>> instance = family("uniform", n=30, seed=1)
    >>> run(instance, "area").total_latency
    3757
    >>> run(instance, RollingPolicy(budget=1)).total_latency < 3700
    True
    """

    model: str | Callable[[Any], IntArray] = "hindsight"
    method: str = "auto"
    window: int = 64
    horizon: int | None = None
    replan_interval: int = 1
    budget: float = 0.02
    fallback: str | PriorityPolicy = "area"
    length_estimate: LengthEstimate = "posterior"
    scenarios: int = 8
    name: str = "rolling"
    description: str = "plans a window of waiting requests, starts what is due, and plans again"
    source: str = "this package, docs/rolling.md"
    needs: ClassVar[Needs] = Needs("rolling")

    def __post_init__(self) -> None:
        if isinstance(self.model, str) and self.model not in ROLLING_MODELS:
            known = nearest(self.model, ROLLING_MODELS)
            raise PolicyError(f"unknown model {self.model!r} of a rolling horizon: {known}")
        methods = ROLLING_MODELS[self.model] if isinstance(self.model, str) else ("auto",)
        if self.method not in methods:
            raise PolicyError(
                f"method is {self.method!r}, but the model of this rolling horizon is planned by "
                f"{' or '.join(map(repr, methods))}"
            )
        require_known("length estimate", self.length_estimate, LENGTH_ESTIMATES, PolicyError)
        for field in ("window", "horizon", "replan_interval", "scenarios"):
            if (value := getattr(self, field)) is not None:
                as_count(field, value, int(field != "scenarios"), error=PolicyError)
        if not (np.isfinite(self.budget) and self.budget >= 0):
            raise PolicyError(
                f"the budget of a decision is {self.budget} seconds, but must be a number of at "
                "least 0"
            )
        order = self.order
        if order.rule.partition(":")[0] not in ("prefix", "window"):
            plain = order.name.partition("+")[0]
            raise PolicyError(
                f"the fallback {order.name!r} has the rule {order.rule!r}, but must be a plain "
                f"order, such as {plain!r}, or one with a window, such as '{plain}+window'"
            )

    @property
    def order(self) -> PriorityPolicy:
        """The order of the fallback."""
        if isinstance(self.fallback, PriorityPolicy):
            return self.fallback
        name, plus, rule = str(self.fallback).partition("+")
        if name not in ORDERS:
            raise PolicyError(
                f"unknown fallback {self.fallback!r}: {nearest(name, ORDERS)}; a fallback is an "
                "order that takes no time"
            )
        return with_rule(ORDERS[name], rule) if plus else ORDERS[name]

    def parsed(self, parameters: str) -> RollingPolicy:
        """Return the policy with one of `ROLLING_MODELS`, named "rolling:MODEL"."""
        return replace(self, model=parameters, name=f"{self.name}:{parameters}")


ROLLING = (RollingPolicy(),)
