r"""What any policy must cost where outputs are not known: a game against chance, or the worst case.

Only a few requests with a few possible outputs each can be solved, but of these nothing is guessed:
the best mean, competitive ratio or regret says how far a policy is from what can be known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from optsched.errors import ModelError, require_known
from optsched.forecasts import Forecast

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray

Criterion = Literal["mean", "ratio", "regret"]
CRITERIA = get_args(Criterion)


class Outcomes(NamedTuple):
    """All outputs that a few requests may turn out to have."""

    outputs: IntArray  # (outcomes, n)
    chances: FloatArray  # of each, with a sum of one


@dataclass(frozen=True, eq=False)
class GameValue:
    r"""The least that a policy can cost which learns an output only by its completion.

    A policy :math:`\pi` decides at each step which requests make a token: it may start waiting
    requests, preempt running ones, whose tokens are then lost, and start these again at once. With
    :math:`k` tokens of the present attempt, request :math:`i` holds :math:`s_i + k` tokens, at most
    :math:`M` all together. What it knows is the forecast, and of each request its output or that it
    is more than :math:`\kappa_i`, the most tokens of any attempt. With
    :math:`\mathrm{TEL}_\pi(o)`, the total latency where the outputs are :math:`o`, and
    :math:`\mathrm{OPT}(o)` in hindsight, the value is

    .. math::
        \text{mean:} \quad & \min_\pi \; \mathbb E_o \, \mathrm{TEL}_\pi(o) \\
        \text{ratio:} \quad & \min_\pi \max_o \; \mathrm{TEL}_\pi(o) / \mathrm{OPT}(o) \\
        \text{regret:} \quad & \min_\pi \max_o \; \mathrm{TEL}_\pi(o) - \mathrm{OPT}(o)

    Outputs are independent of each other. The best policy knows all arrivals from the start, so
    with arrivals the mean is a lower bound for policies that do not. Ratio and regret are those of
    policies that draw no lots; to the mean that makes no difference.

    Parameters
    ----------
    forecast
        The requests, and which outputs they may have: those of the interval to which the belief
        leaves a chance. "mean" needs a belief; without one ratio and regret take all outputs of
        the interval.
    criterion
        "mean", "ratio" or "regret".
    preemption
        Whether requests may be preempted. If not, the memory must suffice whatever the outputs are.

    Raises
    ------
    ModelError
        If the criterion is unknown, or there is no belief for a mean, or one that learns.

    Examples
    --------
    Two requests of one or three tokens each share a memory of four:

    >>> from optsched import Beliefs, Forecast, GameValue, solve
    >>> coin = Beliefs([[0.5, 0, 0.5]], rows=[0, 0])
    >>> known = Forecast([0, 0], [0, 0], lower=[1, 1], upper=[3, 3], memory=4, beliefs=coin)
    >>> solve(GameValue(known)).objective
    4.5
    >>> print(solve(GameValue(known, "ratio", preemption=False)).answer)
    best ratio 1.5 over 4 outcomes
    """

    forecast: Forecast
    criterion: Criterion = "mean"
    preemption: bool = True

    def __post_init__(self) -> None:
        require_known("criterion", self.criterion, CRITERIA)
        if not isinstance(self.forecast, Forecast) or not len(self.forecast):
            raise ModelError(f"a game is about a Forecast of requests, not {self.forecast}")
        beliefs = self.forecast.beliefs
        if beliefs is None and self.criterion == "mean":
            raise ModelError(
                "the forecast has no belief, without which there is no mean; pass it beliefs, or "
                'ask for the "ratio" or the "regret"'
            )
        if beliefs is not None and beliefs.prior:
            raise ModelError(
                f"the belief learns while requests complete (prior {beliefs.prior:g}), but in a "
                "game outputs are independent; pass one whose prior is 0"
            )

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.forecast)

    def __repr__(self) -> str:
        return f"<GameValue of {len(self)} requests: {self.criterion}, {self.size}>"

    @cached_property
    def supports(self) -> tuple[tuple[IntArray, FloatArray], ...]:
        """Possible outputs of each request, ascending, and their chances."""
        known, found = self.forecast, []
        for request in range(len(known)):
            outputs = np.arange(known.lower[request], known.upper[request] + 1)
            chances = np.ones(len(outputs))
            if known.beliefs is not None:
                row = known.beliefs.chances[known.beliefs.rows[request]]
                outputs = outputs[: len(row) + 1 - outputs[0]]
                chances = row[outputs - 1]
                outputs, chances = outputs[chances > 0], chances[chances > 0]
            found.append((outputs, chances / chances.sum()))
        return tuple(found)

    def outcomes(self) -> Outcomes:
        """Return all combinations of possible outputs, the last request's the fastest."""
        outputs = np.meshgrid(*(each for each, _ in self.supports), indexing="ij")
        chances = np.meshgrid(*(each for _, each in self.supports), indexing="ij")
        return Outcomes(
            np.stack([each.ravel() for each in outputs], axis=1),
            np.prod([each.ravel() for each in chances], axis=0),
        )

    @property
    def steps(self) -> int:
        """Steps from the first arrival to the last."""
        return int(self.forecast.arrivals.max() - self.forecast.arrivals.min())

    @property
    def states(self) -> int:
        """States of the game: what is known of each request and how far it is, and the step."""
        apart = self.criterion != "mean"  # requests that are complete, by their outputs
        each = (int(out.sum()) + (len(out) if apart else 1) for out, _ in self.supports)
        return (self.steps + 1) * math.prod(each)

    @property
    def size(self) -> str:
        """The number of states in words."""
        if self.states < 10**15:
            return f"{self.states:,} states"
        return f"about 10^{math.log10(self.states):.0f} states"
