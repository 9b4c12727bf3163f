r"""At least so much money: what any fleet of several kinds of workers costs.

Each request is served on one kind, and what is served on a kind demands of it what `Demand` says.
So :math:`\sum_k G_k \sum_w z_{kw} |w| \ge \sum_i \min_k \sum_w z_{kw} q_{ikw}` for all weights
:math:`z` of windows, where the sum leaves out the requests that may miss their limits. These are
cuts of an integer program over the numbers of workers :math:`G_k`: it proposes a fleet, and a cut
that the fleet violates is added, until there is none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.certificates.fleet import FleetCertificate
from optsched.sizing.lower import best_windows, sets_of
from optsched.sizing.windows import SAFE, game

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.certificates.capacity import CapacityCertificate
    from optsched.sizing.lower import Bounded
    from optsched.sizing.slo import Slo

_ROUNDS = 60
_FEW = 1e-3  # workers of a kind that is absent, for which a cut is sought


@dataclass(frozen=True)
class _Part:
    """What some objectives demand of each kind."""

    rows: FloatArray  # demand for the length of a window, shape (kinds, windows, n)
    late: BoolArray  # whether a request is late there even alone, shape (kinds, n)
    allowed: int
    windows: list[tuple[float, float]]
    proofs: list[CapacityCertificate]  # without windows

    @property
    def possible(self) -> bool:
        """Whether enough requests are in time on some kind, if they are alone."""
        return int(self.late.all(axis=0).sum()) <= self.allowed

    def cut(self, fleet: FloatArray) -> tuple[FloatArray, float, tuple[CapacityCertificate, ...]]:
        """Return what a fleet violates the most: coefficients, what they reach, and the proof."""
        own = np.maximum(fleet, _FEW)
        mixed = game(self.rows / own[:, None, None], self.late, self.allowed)
        mixed[mixed < 1e-9] = 0.0
        lengths = np.array([end - begin for begin, end in self.windows])
        weights = mixed / own[:, None] / lengths
        each = ((weights * lengths)[:, None] @ self.rows)[:, 0]
        least = np.sort(np.where(self.late, np.inf, each).min(axis=0))
        needed = float(least[: max(0, len(least) - self.allowed)].sum()) * SAFE
        proofs = tuple(
            replace(
                proof,
                windows=tuple(
                    (*window, float(weight))
                    for window, weight in zip(self.windows, row, strict=True)
                    if weight
                ),
            )
            for proof, row in zip(self.proofs, weights, strict=True)
        )
        return weights @ lengths, needed, proofs


def least_cost(
    worlds: Sequence[Bounded], costs: Sequence[float], slos: Sequence[Slo]
) -> FleetCertificate | None:
    """Return what any fleet costs at least that meets objectives about shares of the requests.

    None where nothing is proven beyond the cost of a single worker.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    every = (_part(worlds, some) for some in sets_of(slos))
    parts = [part for part in every if part.windows and part.possible]
    cuts = [(np.ones(len(worlds)), 1.0)]  # somebody must be there
    proofs: list[tuple[CapacityCertificate, ...]] = []
    fleet = np.zeros(len(costs))
    for _ in range(_ROUNDS):
        matrix, needs = (np.array(column) for column in zip(*cuts, strict=True))
        solved = milp(
            np.array(costs),
            integrality=np.ones(len(costs), dtype=np.int64),
            bounds=Bounds(0, np.inf),
            constraints=LinearConstraint(matrix, lb=needs),
            options={"mip_rel_gap": 0.0},
        )
        if solved.x is None:
            break
        fleet = np.round(solved.x)
        found = [part.cut(fleet) for part in parts]
        violated = [each for each in found if each[0] @ fleet < each[1]]
        if not violated:
            break
        cuts += [(lengths, needed) for lengths, needed, _ in violated]
        proofs += [proof for _, _, proof in violated]
    memories = tuple(world.instance.memory for world in worlds)
    if not proofs:
        return None
    return FleetCertificate(tuple(map(int, fleet)), tuple(costs), memories, tuple(proofs))


def _part(worlds: Sequence[Bounded], slos: Sequence[Slo]) -> _Part:
    found = [best_windows(world, slos) for world in worlds]
    windows = sorted({window[:2] for _, proof in found for window in proof.windows})
    rows = np.zeros((len(worlds), len(windows), len(worlds[0].instance)))
    for (kind, (demand, _)), (at, (begin, end)) in itertools.product(
        enumerate(found), enumerate(windows)
    ):
        some, values = demand.demanded(begin, end)
        rows[kind, at, some] = values / (end - begin)
    late = np.array([demand.impossible for demand, _ in found])
    allowed = sum(slo.misses(int(slo.asked(worlds[0].instance).sum())) for slo in slos)
    proofs = [
        world.certificate(1, slos, demand, proof._replace(windows=()))
        for world, (demand, proof) in zip(worlds, found, strict=True)
    ]
    return _Part(rows, late, allowed, windows, proofs)
