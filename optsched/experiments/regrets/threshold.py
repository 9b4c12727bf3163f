r"""From which load on the backlog of a policy grows without end.

Jaillet Section 5 calls a system overloaded if the arrival rate is above a threshold
:math:`\mu^*`, and gives no formula for it. No schedule can serve a load above 1 for long. A policy
that leaves memory idle is overloaded below that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.errors import OptschedError
from optsched.experiments.regrets.source import read_source
from optsched.policies import get_policy
from optsched.simulate import run

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.experiments.regrets.source import Source
    from optsched.instance import Instance
    from optsched.policies import Policy

LEFT_BEHIND = 0.01  # share of the memory-time of the second half that adds to the backlog
_OVERLOADED = 1.25  # a load that leaves a fifth of the memory-time behind, whatever the schedule


@dataclass(frozen=True)
class OverloadThreshold:
    """The loads between which a policy becomes overloaded.

    Attributes
    ----------
    policy
        Its name.
    stable, overloaded
        The largest load found stable, and the smallest found overloaded.
    rate
        Requests per step in the middle between them.
    horizon, seeds
        Of the runs.
    tried
        (load, share of the memory-time left behind) of each load tried, in this order.
    """

    policy: str
    stable: float
    overloaded: float
    rate: float
    horizon: int
    seeds: int
    tried: tuple[tuple[float, float], ...]

    @property
    def load(self) -> float:
        """The middle between the two loads."""
        return (self.stable + self.overloaded) / 2

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data, ready for JSON."""
        return vars(self) | {"load": self.load, "tried": [list(each) for each in self.tried]}

    def __str__(self) -> str:
        return (
            f"{self.policy} is stable at load {self.stable:.3f} and overloaded at "
            f"{self.overloaded:.3f} ({self.rate:.4g} requests per step; {self.seeds} runs of "
            f"{self.horizon:,} steps each)"
        )


def overload_threshold(
    source: str | Path | Instance = "family:equal-prompts",
    policy: str | Policy = "mc-sf",
    *,
    memory: int | None = None,
    horizon: int = 20_000,
    seeds: int = 3,
    precision: float = 0.01,
    seed: int = 0,
) -> OverloadThreshold:
    """Find by bisection from which load on the backlog of a policy grows.

    A load is called overloaded if, in the second half of the horizon, the memory-time
    :math:`A_i` of the requests that wait grows by more than 1 % of what arrives, in the mean over
    seeds. The same seeds are used at all loads.

    Parameters
    ----------
    source, memory
        As in `regret`.
    policy
        A name or a policy object.
    horizon
        Steps in which requests arrive. A policy that is overloaded only once chance has driven it
        into waves may look stable in a shorter run.
    seeds
        Runs at each load.
    precision
        Width of the interval of loads to be reached.
    seed
        The first seed.

    Returns
    -------
    OverloadThreshold
        The interval of loads.

    Raises
    ------
    OptschedError
        If an argument makes no sense.

    Examples
    --------
    Prompts of 6 and outputs of 1 in a memory of 20: two requests per step, 14 of 20 tokens.

    >>> source = "family:equal-prompts,prompt=6,output_most=1"
    >>> threshold = overload_threshold(source, memory=20, horizon=4000)
    >>> abs(threshold.load - 0.7) < 0.02
    True
    """
    if not 0 < precision < 1:
        raise OptschedError(f"precision is {precision}, but must be between 0 and 1")
    if seeds < 1 or seed < 0:
        raise OptschedError(f"seeds is {seeds} and seed {seed}; give at least 1 and 0")
    drawn, chosen = read_source(source, memory), get_policy(policy)
    stable, overloaded = 0.0, _OVERLOADED
    drawn.check(drawn.rate(overloaded / 2), horizon)
    tried = []
    while overloaded - stable > precision:
        load = (stable + overloaded) / 2
        share = float(
            np.mean(
                [
                    left_behind(drawn, chosen, drawn.rate(load), horizon, each)
                    for each in range(seed, seed + seeds)
                ]
            )
        )
        tried.append((load, share))
        if share > LEFT_BEHIND:
            overloaded = load
        else:
            stable = load
    rate = drawn.rate((stable + overloaded) / 2)
    return OverloadThreshold(chosen.name, stable, overloaded, rate, horizon, seeds, tuple(tried))


def left_behind(source: Source, policy: Policy, rate: float, horizon: int, seed: int) -> float:
    """Give the share of the second half's memory-time by which the backlog grows there."""
    instance = source.draw(rate, horizon, seed)
    starts, areas = run(instance, policy, seed=seed).starts, instance.areas
    middle, end = horizon // 2, horizon

    def waiting(step: int) -> float:
        return float(areas[(instance.arrivals < step) & (starts >= step)].sum())

    arrived = float(areas[instance.arrivals >= middle].sum())
    return (waiting(end) - waiting(middle)) / max(arrived, 1.0)
