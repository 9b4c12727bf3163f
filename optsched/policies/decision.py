"""A policy that is a function: it looks at the worker and returns the requests to start now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from optsched._internal.arguments import checked
from optsched.policies.base import NamedPolicy, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched._internal.arrays import IntArray
    from optsched.forecasts import Forecast


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a decision may look at: read-only arrays made for it alone, and no true output.

    Attributes
    ----------
    clock
        The step that was completed last, or the time on a clock in seconds; a request that starts
        now makes a token in the next batch.
    waiting
        Requests that have arrived and do not run, by arrival.
    running, tokens
        Requests that run, in the order in which they started, and the tokens that each has made.
    free
        Tokens of memory that the next step leaves if none starts; negative where it overflows.
        Request i would take ``forecast.prompts[i] + 1`` of them.
    lower
        What each request's output is at least, shape (n,): the forecast's lower bound, or more
        where it made more tokens in an attempt, the present one included; the output itself of
        those that are complete.
    forecast
        Prompts, arrivals and bounds of the outputs; both bounds are the output where it is known.
    """

    clock: float
    waiting: IntArray
    running: IntArray
    tokens: IntArray
    free: int
    lower: IntArray
    forecast: Forecast


@checked()
@dataclass(frozen=True)
class DecisionPolicy(NamedPolicy):
    """Start what a function chooses at each step at which requests wait.

    The memory is kept for the function: where the next step would not fit, the requests that have
    made the fewest tokens are preempted first, the one started last among equals, before the
    function is asked and once more after those it chose have started.

    Parameters
    ----------
    decide
        Takes an `optsched.policies.State` and returns the waiting requests to start now.

    Examples
    --------
    >>> from optsched import DecisionPolicy, Instance, run
    >>> def one_at_a_time(state):
    ...     return state.waiting[:1] if not len(state.running) else []
    >>> single = DecisionPolicy("single", "no batching", one_at_a_time)
    >>> run(Instance([1, 1], [2, 3], memory=9), single).schedule.starts
    array([0, 2])
    """

    decide: Callable[[State], Iterable[int] | IntArray]
    needs: ClassVar[Needs] = Needs("decision")
