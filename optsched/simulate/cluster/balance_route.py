"""BalanceRoute: BR-0, which foresees nothing, and BR-H, which looks H steps ahead."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched.errors import PolicyError
from optsched.simulate.cluster.routing import LONGEST_LOOKAHEAD, Information, Oracle

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.cluster.routing import ClusterState


_ORACLE = Oracle()


@checked(PolicyError)
@dataclass(frozen=True)
class BalanceRoute:
    r"""Fill each worker up to the load of the heaviest (Bu et al., arXiv 2605.06113).

    Requests of :math:`\Delta` prompt tokens gain on worker :math:`g`, with margins
    :math:`m_{gh} = \max_{g'} L_{g'h} - L_{gh}` at the further steps :math:`h = 0, \dots, H`,

    .. math:: F_g = \Delta \sum_h \gamma^h - \beta \sum_h \gamma^h (\Delta - m_{gh})^+.

    The worker with most free slots, of equals the lightest, is given the request that gains most;
    once slots are scarce, the set of requests that does, or one request where no set gains. A rule
    of one's own for `run` and `compare`; memory is not looked at.

    Parameters
    ----------
    lookahead
        :math:`H` in steps; 0 is BR-0.
    penalty
        :math:`\beta`; None is the number of workers, as in BR-0.
    decay, scarce
        :math:`\gamma`, and the number of free slots up to which they are scarce, for which
        0.86 and 7 of BF-IO's public code stand.
    information
        What is known of the ends of running requests.

    Examples
    --------
    >>> from optsched import Cluster, family, run
    >>> from optsched.simulate.cluster import BalanceRoute
    >>> trace, cluster = family("lognormal", n=300, seed=1), Cluster(workers=4, slots=8)
    >>> rules = (BalanceRoute(), "fcfs")
    >>> balanced, plain = (run(trace, each, cluster=cluster, steps=400) for each in rules)
    >>> bool(balanced.imbalance.mean() < plain.imbalance.mean() / 2)
    True
    """

    lookahead: int = 0
    penalty: float | None = None
    decay: float = 0.86
    scarce: int = 7
    information: Information = _ORACLE
    name: str = "balance-route"

    def __post_init__(self) -> None:
        as_count("lookahead", self.lookahead, 0, LONGEST_LOOKAHEAD, error=PolicyError)
        as_count("scarce", self.scarce, 0, error=PolicyError)
        share = "above 0, at most 1"
        as_number("decay", self.decay, lambda each: 0 < each <= 1, share, PolicyError)
        if self.penalty is not None:
            as_number("penalty", self.penalty, lambda each: each > 0, "above 0", PolicyError)

    def route(self, state: ClusterState) -> IntArray:
        """Return a worker for each waiting request, or -1 to let it wait."""
        chosen = np.full(len(state.waiting), -1)
        left, free, loads = np.arange(len(chosen)), state.free.copy(), state.loads.astype(np.int64)
        while len(left) and free.any():
            margins = loads.max(axis=0) - loads
            worker = int(np.lexsort((loads[:, 0], -free))[0])
            most = 1 if free.sum() > self.scarce else int(free[worker])
            places = left[self.best(state.sizes[left], margins[worker], most, len(free))]
            chosen[places] = worker
            free[worker] -= len(places)
            loads[worker] += state.sizes[places].sum()
            left = np.setdiff1d(left, places)
        return chosen

    def gain(self, tokens: IntArray, margin: IntArray, workers: int) -> FloatArray:
        """Return F of sums of prompts on a worker with these margins, shape (H + 1,)."""
        weights = self.decay ** np.arange(len(margin))
        over = np.maximum(tokens[:, None] - margin, 0) @ weights
        gained: FloatArray = tokens * weights.sum() - (self.penalty or workers) * over
        return gained

    def best(self, sizes: IntArray, margin: IntArray, most: int, workers: int) -> list[int]:
        """Return the places of at most so many requests that gain most, of at least one."""
        if most > 1:
            peaks = np.unique(np.append(margin, 0))  # F is concave, and greatest at one of them
            peak = int(peaks[np.argmax(self.gain(peaks, margin, workers))])
            near = [places for places in _nearest(sizes, peak, most) if places]
            sums = np.array([sizes[places].sum() for places in near], dtype=np.int64)
            gains = self.gain(sums, margin, workers)
            if gains.max(initial=0) > 0:
                return near[int(np.argmax(gains))]
        return [int(np.argmax(self.gain(sizes, margin, workers)))]


def _nearest(sizes: IntArray, peak: int, most: int) -> list[list[int]]:
    """Return at most so many places whose sizes have the largest sum up to, and the least above."""
    # Bit s of the entry k: some k of the sizes so far have the sum s.
    mask, reach = (2 << peak + int(sizes.max())) - 1, [1] + [0] * most
    before = []
    for size in sizes.tolist():
        before.append(reach)
        reach = [1, *((own | less << size) & mask for less, own in pairwise(reach))]
    below = max((each & (2 << peak) - 1).bit_length() - 1 for each in reach[1:])
    beyond = [each >> peak + 1 for each in reach[1:]]
    above = min(((each & -each).bit_length() + peak for each in beyond if each), default=0)
    found: list[list[int]] = []
    for total in (below, above):
        left = total
        count = next((k for k in range(1, most + 1) if left > 0 and reach[k] >> left & 1), 0)
        places: list[int] = []
        for place in range(len(sizes) - 1, -1, -1):
            if count and not before[place][count] >> left & 1:
                places.append(place)
                left -= int(sizes[place])
                count -= 1
        found.append(places)
    return found
