"""A policy of the user's own: a function that looks at the worker and says who starts now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        The step that was completed last, or the time on a clock in seconds; who starts now makes a
        token in the next batch.
    waiting
        Requests that have arrived and do not run, by arrival.
    running
        Requests that run, in the order in which they started.
    tokens
        Tokens that each of the running requests has made, in the same order.
    free
        Tokens of memory that the next step leaves if nobody starts; negative where it overflows.
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


@dataclass(frozen=True)
class DecisionPolicy:
    """Start whom a function of yours chooses at each step at which somebody waits.

    The memory is kept for you: where the next step would not fit, the requests that have made the
    fewest tokens are cancelled first, the one started last among equals, before the function is
    asked and once more after those it chose have started.

    Parameters
    ----------
    name
        Short name for tables.
    title
        What the policy does, in a few words.
    decide
        Gets a `State` and gives the waiting requests to start now.

    Examples
    --------
    >>> from optsched import Instance, execute
    >>> def one_at_a_time(state):
    ...     return state.waiting[:1] if not len(state.running) else []
    >>> single = DecisionPolicy("single", "no batching", one_at_a_time)
    >>> execute(Instance([1, 1], [2, 3], memory=9), single).schedule.starts
    array([0, 2])
    """

    name: str
    title: str
    decide: Callable[[State], Iterable[int] | IntArray]
