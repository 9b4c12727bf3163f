r"""From which load on the backlog of a policy grows without end.

Jaillet Section 5 calls a system overloaded above an arrival rate :math:`\mu^*`, without a formula.
No schedule can serve a load above 1 for long; a policy that leaves memory idle even less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_number
from optsched.experiments.regrets.source import read_source, seeds_of
from optsched.policies import get_policy
from optsched.simulate import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optsched.experiments.regrets.source import Source
    from optsched.policies import Policy
    from optsched.problem.instance import Instance

LEFT_BEHIND = 0.01  # share of the memory-time of the second half that adds to the backlog
_OVERLOADED = 1.25  # a load that leaves a fifth of the memory-time behind, whatever the schedule


@dataclass(frozen=True)
class OverloadThreshold:
    """The loads between which a policy becomes overloaded."""

    policy: str
    stable: float  # the largest load found stable
    overloaded: float  # the smallest load found overloaded
    rate: float  # requests per step in the middle between them
    horizon: int
    seeds: int
    tried: tuple[tuple[float, float], ...]  # loads, and the share of memory-time left behind

    @property
    def load(self) -> float:
        """The middle between the two loads."""
        return (self.stable + self.overloaded) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
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
    seeds: int | Sequence[int] = 3,
    precision: float = 0.01,
) -> OverloadThreshold:
    """Find by bisection from which load on the backlog of a policy grows."""
    # A load is overloaded if the memory-time of waiting requests grows by more than 1 % of what
    # arrives, in the mean over seeds, the same at all loads. A policy that is overloaded only once
    # chance has driven it into waves may look stable in a shorter run.
    as_number("precision", precision, lambda x: 0 < x < 1, "between 0 and 1")
    seeds = seeds_of(seeds)
    drawn, chosen = read_source(source, memory), get_policy(policy)
    stable, overloaded = 0.0, _OVERLOADED
    drawn.check(drawn.rate(overloaded / 2), horizon)
    tried = []
    while overloaded - stable > precision:
        load = (stable + overloaded) / 2
        rate = drawn.rate(load)
        share = float(np.mean([left_behind(drawn, chosen, rate, horizon, each) for each in seeds]))
        tried.append((load, share))
        if share > LEFT_BEHIND:
            overloaded = load
        else:
            stable = load
    rate = drawn.rate((stable + overloaded) / 2)
    return OverloadThreshold(
        chosen.name, stable, overloaded, rate, horizon, len(seeds), tuple(tried)
    )


def left_behind(source: Source, policy: Policy, rate: float, horizon: int, seed: int) -> float:
    """Return the share of the second half's memory-time by which the backlog grows there."""
    instance = source.draw(rate, horizon, seed)
    starts, areas = run(instance, policy, seed=seed).schedule.starts, instance.areas
    middle, end = horizon // 2, horizon

    def waiting(step: int) -> float:
        return float(areas[(instance.arrivals < step) & (starts >= step)].sum())

    arrived = float(areas[instance.arrivals >= middle].sum())
    return (waiting(end) - waiting(middle)) / max(arrived, 1.0)
