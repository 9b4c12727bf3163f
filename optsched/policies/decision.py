"""Policies that are functions of a state or have keys that change; settings of rolling horizons."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.arrays import FloatArray, IntArray, frozen
from optsched.errors import PolicyError, nearest, require_known
from optsched.policies.base import (
    NamedPolicy,
    Needs,
    Policy,
    PriorityPolicy,
    Rule,
    window_of,
    with_rule,
)
from optsched.policies.priorities import PRIORITIES
from optsched.problem.premises import PREEMPTIONS, Knowledge, Preemption
from optsched.problem.work import time_alone, work_of
from optsched.search.annealing import add_all, admit_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from optsched.clock import Clock
    from optsched.problem.forecasts import Forecast
    from optsched.problem.instance import Instance


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a decision may look at: read-only arrays made for it alone, and no true output.

    Attributes
    ----------
    clock
        The step that was completed last, or the time on a clock in seconds; a request that starts
        now makes a token in the next batch.
    waiting, since
        Requests that have arrived and do not run, by arrival, and since when each of them waits:
        its arrival, or when it was preempted last.
    running, tokens
        Requests that run, in the order in which they started, and the tokens that each has made.
    free
        Tokens of memory that the next step leaves if none starts; negative where it overflows,
        which only policies that preempt get to see.
    kept
        Tokens that each request keeps of attempts that were preempted, shape (n,).
    lower
        What each request's output is at least, shape (n,): the forecast's lower bound, or more
        where it made more tokens in an attempt, the present one included; the output itself of
        those that are complete.
    forecast
        Prompts, arrivals and bounds of the outputs; both bounds are the output where it is known.
    seed
        The seed of the run, for keys with noise.
    deadlines
        Time of each request's deadline in the unit of `clock`, shape (n,); None where there are
        none in that unit.
    batch_clock
        How long batches take; in steps that of the unit clock.
    """

    clock: float
    waiting: IntArray
    since: FloatArray
    running: IntArray
    tokens: IntArray
    free: int
    kept: IntArray
    lower: IntArray
    forecast: Forecast
    seed: int
    deadlines: FloatArray | None
    batch_clock: Clock

    @property
    def made(self) -> IntArray:
        """Tokens that each request that waits or runs has made, and not to make again, (n,)."""
        made = self.kept.copy()
        made[self.running] = self.tokens
        return made

    @property
    def waited(self) -> FloatArray:
        """How long each waiting request waits already, in the unit of `clock`."""
        return np.asarray(self.clock - self.since)

    def fits(self, requests: npt.ArrayLike) -> bool:
        """Tell whether requests that wait, one or several together, find room at the next step."""
        which = np.asarray(requests, dtype=np.int64)
        return int((self.forecast.prompts[which] + self.kept[which] + 1).sum()) <= self.free


class Decision(NamedTuple):
    """Waiting requests to start now, and running ones to preempt before.

    >>> Decision(start=[4], preempt=[0, 2])
    Decision(start=[4], preempt=[0, 2])
    """

    start: Iterable[int] | IntArray = ()
    preempt: Iterable[int] | IntArray = ()

    @classmethod
    def most_urgent(cls, state: State, keys: npt.ArrayLike) -> Decision:
        """Let those run that come first by ascending key, shape (n,), as far as memory goes.

        Of equals those that run come first, then those that arrived first; the first that does not
        fit the next step ends it.
        """
        there = np.concatenate([state.running, state.waiting])
        made = np.concatenate([state.tokens, state.kept[state.waiting]])
        places = np.argsort(np.asarray(keys)[there], kind="stable")
        known = state.forecast
        needed = np.cumsum((known.prompts[there] + made + 1)[places])
        chosen = np.zeros(len(there), dtype=bool)
        chosen[places[: np.searchsorted(needed, known.memory, side="right")]] = True
        stays, starts = np.split(chosen, [len(state.running)])
        return cls(state.waiting[starts], state.running[~stays])


@dataclass(frozen=True)
class DecidedPolicy(NamedPolicy):
    """What policies share that are asked step by step: what becomes of preempted requests."""

    reads: Literal["outputs", "nothing"] = field(default="outputs", kw_only=True)
    preemption: Preemption = field(default="none", kw_only=True)
    resume_cost: float = field(default=0.0, kw_only=True)
    needs: ClassVar[Needs] = Needs("decision")

    def knows(self, instance: Instance, intervals: str | None = None) -> Knowledge:
        """Return what it is told of an output of the instance before that request ends."""
        return "nothing" if self.reads == "nothing" else super().knows(instance, intervals)

    def __post_init__(self) -> None:
        require_known("reads", self.reads, ("outputs", "nothing"), PolicyError)
        if self.preemption not in PREEMPTIONS:
            found = nearest(str(self.preemption), PREEMPTIONS)
            raise PolicyError(f"policy {self.name!r}: unknown preemption: {found}")
        cost = self.resume_cost
        as_number("resume_cost", cost, lambda each: each >= 0, "at least 0", PolicyError)
        self.require(
            not cost or self.preemption == "resumed",
            f"resume_cost is {cost:g}, but preempted requests are not resumed; pass "
            "preemption='resumed', or leave the cost out",
        )


@checked()
@dataclass(frozen=True)
class DecisionPolicy(DecidedPolicy):
    """Start, and perhaps preempt, what a function chooses at each step at which requests wait.

    The memory is kept for the function: where the next step would not fit, the requests that
    started last, which have made the fewest tokens in their attempts, are preempted before it is
    called and again after those it chose have started. One that preempts is called first, and
    also where no request waits but the memory overflows.

    Parameters
    ----------
    decide
        Takes an `optsched.policies.State` and returns the waiting requests to start now, or an
        `optsched.policies.Decision`.
    reads
        "outputs": the forecast is what the run may know of them, all where there are no intervals;
        "nothing": it leaves them open, so that the policy could be deployed as it is.
    preemption
        What becomes of preempted requests: "restarted", all their tokens are made again;
        "recomputed", their tokens are kept and prefilled after the prompt when they start again;
        "resumed", their KV cache is kept elsewhere and moved back. "none": the function does not
        preempt, and those that have no room are restarted.
    resume_cost
        On a clock, what it takes to move back a token of the cache, in tokens of prefill; rounded
        up for each request.

    Examples
    --------
    >>> from optsched import DecisionPolicy, Instance, run
    >>> def one_at_a_time(state):
    ...     return state.waiting[:1] if not len(state.running) else []
    >>> single = DecisionPolicy("single", "no batching", one_at_a_time)
    >>> run(Instance([1, 1], [2, 3], memory=9), single).schedule.starts
    array([0, 2])

    The request with the fewest tokens left runs, and others make way:

    >>> from optsched.policies import Decision
    >>> def shortest(state):
    ...     return Decision.most_urgent(state, state.forecast.upper - state.made)
    >>> shortest_first = DecisionPolicy("shortest", "", shortest, preemption="resumed")
    >>> run(Instance([1, 5], [8, 2], 9, arrivals=[0, 3]), shortest_first).completions
    array([10,  5])
    """

    decide: Callable[[State], Iterable[int] | IntArray | Decision]

    def decider(self) -> Callable[[State], object]:
        """Return what decides in one run."""
        return self.decide


@checked(PolicyError)
@dataclass(frozen=True)
class DynamicPolicy(DecidedPolicy):
    """Admit waiting requests by ascending key of the moment; equal keys in order of arrival.

    Memory is planned as for a `PriorityPolicy`, with the outputs that requests have at least; they
    are preempted where these were too small.

    Parameters
    ----------
    key
        Takes an `optsched.policies.State` and returns one number per waiting request.
    rule
        What happens when a request does not fit: "prefix", "skip" or "window".
    every
        After how many decisions keys are computed anew, or "event": when requests have arrived,
        started, completed or been preempted. One that has no key gets it at once.
    reads, preemption, resume_cost
        As of `DecisionPolicy`.

    Examples
    --------
    Short requests first, but after 3 steps of waiting in order of arrival:

    >>> import numpy as np
    >>> from optsched import Instance, run
    >>> from optsched.policies import DynamicPolicy
    >>> def aging(state):
    ...     return np.where(state.waited < 3, state.lower[state.waiting], 0)
    >>> policy = DynamicPolicy("aging", "shortest first, with aging", aging)
    >>> run(Instance([0] * 4, [3, 3, 2, 2], 3, [0, 0, 2, 4]), policy).schedule.starts
    array([0, 3, 6, 7])
    """

    key: Callable[[State], npt.NDArray[np.number]]
    rule: Rule = "prefix"
    every: int | Literal["event"] = 1
    needs: ClassVar[Needs] = Needs("decision", rules=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.rule.partition(":")[0] in ("prefix", "skip", "window"),
            f"the rule {self.rule!r} is not for keys that change; use prefix, skip or window",
        )
        if self.every != "event":
            as_count("every", self.every, of=" of decisions, or 'event', as", error=PolicyError)

    def decider(self) -> Callable[[State], IntArray]:
        """Return what decides in one run."""
        return _Decider(self)


class _Decider:
    """Keeps the keys of one run."""

    def __init__(self, policy: DynamicPolicy) -> None:
        self._policy, self._limits = policy, window_of(policy.rule)
        self._keys: FloatArray = np.zeros(0)  # NaN where there is none yet
        self._calls = 0
        self._seen: tuple[IntArray, ...] = ()  # that waited and ran at the last call

    def __call__(self, state: State) -> IntArray:
        """Return the waiting requests to start now."""
        waiting = state.waiting
        if not len(self._keys):
            self._keys = np.full(len(state.forecast), np.nan)
        stale = np.isnan(self._keys[waiting]) | self._due(state)
        if stale.any():
            keys, label = self._policy.key(state), state.forecast.label
            keys = self._policy.checked_keys(keys, waiting, label)
            self._keys[waiting[stale]] = keys[stale]
        if state.free < 0:
            return waiting[:0]
        order = np.argsort(self._keys[waiting], kind="stable")
        return waiting[_admitted(state, order, self._limits)]

    def _due(self, state: State) -> bool:
        """Say whether all keys are to be computed anew."""
        self._calls += 1
        if self._policy.every != "event":
            return (self._calls - 1) % self._policy.every == 0
        before, self._seen = self._seen, (state.waiting, state.running)
        return not (before and all(map(np.array_equal, before, self._seen)))


def _admitted(state: State, order: IntArray, limits: tuple[float, int]) -> IntArray:
    """Return the places of requests that start now, in order, if outputs are as small as can be."""
    waiting, running, prompts = state.waiting, state.running, state.forecast.prompts
    held, ahead = (
        prompts[running] + state.tokens,
        np.maximum(state.lower[running] - state.tokens, 1),
    )
    outputs = np.maximum(state.lower[waiting] - state.kept[waiting], 1)
    usage = np.zeros(max(ahead.max(initial=0), outputs.max(initial=0)) + 2, dtype=np.int32)
    add_all(held, ahead, usage, np.zeros_like(running), 1)
    # Read-only, as where a rolling horizon calls it: then it is compiled once.
    sizes = frozen(prompts[waiting] + state.kept[waiting]), frozen(outputs)
    return admit_now(*sizes, state.forecast.memory, usage, order, *limits)


_NEAR = 2.0  # k, in mean times that requests take


def _apparent_tardiness(state: State) -> FloatArray:
    r"""Return minus the logarithm of the apparent tardiness cost of each waiting request.

    At time :math:`t` that is :math:`(w / p) \exp(-\max(0, d - a - t) / (k \bar p))` with the weight
    :math:`w`, the deadline :math:`d` and :math:`k = 2`. For the processing time :math:`p` stands
    the work on the clock, in steps memory-time over the memory; :math:`\bar p` is its mean over
    those that wait, and :math:`a` the time that a request takes alone. Of outputs that are not
    known the middle of their bounds counts.
    """
    clock = TARDINESS.linear(state.batch_clock, "edf")
    known, waiting = state.forecast, state.waiting
    lower = state.lower[waiting]
    sizes = known.prompts[waiting], (lower + np.maximum(known.upper[waiting], lower) + 1) // 2
    work, weights = work_of(*sizes, known.memory, clock), known.weights
    slack = TARDINESS.due(state.deadlines)[waiting] - state.clock - time_alone(*sizes, clock)
    per_weight = work if weights is None else work / weights[waiting]
    key: FloatArray = np.log(per_weight) + np.maximum(slack, 0) / (_NEAR * work.mean())
    return key


TARDINESS = DynamicPolicy(
    "tardiness",
    "greatest apparent tardiness cost first, with memory-time for processing times",
    _apparent_tardiness,
    source="Vepsalainen and Morton 1987",
)

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
        least F, by local swap. Or a function that takes an `optsched.rolling.window.Window` and
        returns a start for each of its requests, or a schedule.
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
    work
        Units of work of the search for one decision, as of `SolveParams`; by default 0.0015.
        The same work and seed give the same run at any speed; other planners without a solver do
        what they do. Solvers go by time.
    budget
        Seconds for one decision, in place of work: a plan that takes twice as long is not used. By
        default 0.02 for solvers. At 0 the fallback decides alone.
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
    >>> run(instance, RollingPolicy(work=0.1)).total_latency < 3700
    True
    """

    model: str | Callable[[Any], IntArray] = "hindsight"
    method: str = "auto"
    window: int = 64
    horizon: int | None = None
    replan_interval: int = 1
    work: float | None = None
    budget: float | None = None
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
        for name in ("window", "horizon", "replan_interval", "scenarios"):
            if (value := getattr(self, name)) is not None:
                as_count(name, value, int(name != "scenarios"), error=PolicyError)
        if self.budget is not None and not (np.isfinite(self.budget) and self.budget >= 0):
            raise PolicyError(
                f"the budget of a decision is {self.budget} seconds, but must be a number of at "
                "least 0"
            )
        if self.work is not None:
            searched = (self.model, self.method) == ("hindsight", "auto") and self.budget is None
            as_number("work", self.work, lambda work: work > 0, "above 0", PolicyError)
            if not searched:
                raise PolicyError(
                    f"work is {self.work:g}, but limits only the search of the model hindsight; "
                    "leave it out, or leave out model, method and budget"
                )
        order = self.order
        if order.rule.partition(":")[0] not in ("prefix", "window"):
            plain = order.name.partition("+")[0]
            raise PolicyError(
                f"the fallback {order.name!r} has the rule {order.rule!r}, but must be a plain "
                f"order, such as {plain!r}, or one with a window, such as '{plain}+window'"
            )

    @property
    def seconds(self) -> float:
        """Seconds for one decision; infinite where planning goes by work."""
        by_time = self.method != "auto" or self.model == "hindsight-exact"
        given = self.budget if self.budget is not None or not by_time else _SOLVING
        return math.inf if given is None else given

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


_SOLVING = 0.02  # seconds that a solver has for one decision, unless it is said
ROLLING = (RollingPolicy(),)
