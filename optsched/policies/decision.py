"""Policies that are functions: they look at the worker and say what starts now, and what stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from optsched._internal.arguments import as_number, checked
from optsched.errors import PolicyError, nearest, require_known
from optsched.policies.base import NamedPolicy, Needs
from optsched.problem.premises import PREEMPTIONS, Preemption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.forecasts import Forecast
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge


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

    def decider(self) -> Callable[[State], Any]:
        """Return what decides in one run."""
        return self.decide
