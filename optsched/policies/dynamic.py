"""Orders whose keys change while requests wait: with the time, or with what runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from optsched._internal.arguments import as_count, checked
from optsched._internal.arrays import frozen
from optsched.errors import PolicyError
from optsched.policies.base import Needs, Rule, window_of
from optsched.policies.decision import DecidedPolicy
from optsched.search.window import add_all, admit_now

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.policies.decision import State


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
    """Return the places of waiting requests that start now, tried in order beside those that run.

    Outputs are taken to be as small as they can be.
    """
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
