"""Whether requests will fit to their ends: the blocks that they are expected to hold from now on.

A plan is made once in a `schedule()`, when the first request waits to be admitted, and each
admission adds a slice to it. Blocks that several requests share count once, until the last of those
requests is expected to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.serving.plugin.foresight import POINT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.serving.plugin.foresight import Foresight


class Row(NamedTuple):
    """What a plan sees of a request."""

    tokens: int  # of the prompt, and made
    made: int
    limit: int  # tokens that it may make at most
    left: int  # tokens that the plan counts on, one at least
    row: int = POINT  # of the beliefs


class Plan:
    """What the running requests are expected to hold, and whether another one may join them."""

    def __init__(
        self,
        foresight: Foresight,
        rows: Sequence[Row],
        lag: int,
        held: Callable[[], Sequence[IntArray]] = list,
        shares: bool = False,
    ) -> None:
        self._foresight, self._lag, self._held = foresight, lag, held
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(Row._fields)).T
        self._ends = columns[3] + lag
        self._joined: list[int] = []  # ends of those admitted since
        self._life: IntArray | None = None
        foreign = np.zeros(len(rows), dtype=np.int64)
        if shares:
            foreign = self._shared()
        self._ahead = foresight.ahead
        self._variance = np.zeros(1)
        if self._ahead is None:
            self._mean: FloatArray = self._expected(columns, foreign).astype(np.float64)
        else:
            mean, variance = self._believed(columns, foreign[:, None])
            self._mean, self._variance = mean.sum(axis=0), variance.sum(axis=0)

    def admits(self, row: Row, hits: Sequence[int] = ()) -> bool:
        """Whether a request will fit beside the others; hits are blocks of theirs that it uses."""
        if self._ahead is not None:
            used = self._in_use(hits, self._ahead)
            mean, variance = self._believed(np.array([row]).T, used)
            self._next = self._mean + mean[0], self._variance + variance[0]
            return self._fits(*self._next)
        end = row.left + self._lag
        ahead = np.arange(1, end + 1)
        stored = row.tokens - 1 + np.minimum(ahead, row.left)
        mean = (self._blocks(stored) - self._in_use(hits, ahead)).astype(np.float64)
        known, later = self._mean[:end], self._mean[end:]
        mean[: len(known)] += known
        self._next = mean, self._variance
        return self._fits(*self._next) and self._fits(later, self._variance)

    def joined(self, row: Row, held: Callable[[], IntArray]) -> None:
        """Count on the request that was looked at last, whose blocks others may find."""
        mean, self._variance = self._next
        if len(mean) < len(self._mean):
            self._mean[: len(mean)] = mean
        else:
            self._mean = mean
        self._joined.append(row.left + self._lag)
        if self._life is not None:
            blocks = held()
            self._life[blocks] = np.maximum(self._life[blocks], row.left + self._lag)

    def _blocks(self, stored: IntArray) -> IntArray:
        """Return the blocks of so many tokens."""
        blocks = np.zeros(stored.shape, dtype=np.int64)
        for size in self._foresight.sizes:
            blocks -= -stored // size
        return blocks

    def _fits(self, mean: FloatArray, variance: FloatArray) -> bool:
        """Whether blocks fit at all times, with a margin where they are only likely."""
        if self._ahead is not None:
            mean = mean + self._foresight.deviations * np.sqrt(variance)
        return bool(mean.max(initial=0.0) <= self._foresight.room)

    def _expected(self, columns: IntArray, foreign: IntArray) -> IntArray:
        """Return the blocks that are held 1, 2, ... batches ahead."""
        tokens, _, _, left, _ = columns
        length = int(self._ends.max(initial=0)) + 1
        change = np.zeros(length + 1, dtype=np.int64)
        for size in self._foresight.sizes:
            # The last batch in which each request begins a block, all of them `size` apart.
            last = left - (left + tokens - 2) % size
            steps = np.bincount(last[last > 1], minlength=-(-(length + 1) // size) * size)
            steps = steps.reshape(-1, size)[::-1].cumsum(axis=0)[::-1].ravel()
            steps[:2] = 0  # what is begun in the first batch is counted below
            change += steps[: length + 1]
        change[1] += (self._blocks(tokens) - foreign).sum()
        given_back = self._blocks(tokens + left - 1) - foreign
        np.subtract.at(change, self._ends + 1, given_back)
        return change.cumsum()[1:-1]

    def _believed(
        self, columns: IntArray, foreign: IntArray | int
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the blocks of each request, batches ahead."""
        tokens, made, limit, left, row = columns
        ahead, certain = self._foresight.ahead, row == POINT
        assert ahead is not None
        most = np.where(certain, left, np.maximum(limit - made, 1))
        stored = tokens[:, None] + np.minimum(ahead, most[:, None]) - 1
        blocks = self._blocks(stored) - foreign
        chances = (ahead <= left[:, None] + self._lag).astype(np.float64)
        if not certain.all():
            chances[~certain] = self._foresight.chances(made, limit, row, ahead - self._lag)[
                ~certain
            ]
        return chances * blocks, chances * (1 - chances) * blocks**2

    def _shared(self) -> IntArray:
        """Return how many blocks of each request another one is expected to hold longer."""
        held, ends = self._held(), np.append(self._ends, self._joined).astype(np.int64)
        order = np.argsort(ends, kind="stable")
        counts = np.array([len(each) for each in held])
        blocks = np.concatenate([held[index] for index in order])
        owner = np.full(self._foresight.usable + 1, -1)
        owner[blocks] = np.repeat(order, counts[order])  # whoever is last to end comes last
        owned = owner[owner >= 0]
        self._life = np.zeros(len(owner), dtype=np.int64)
        self._life[owner >= 0] = ends[owned]
        return np.asarray(counts - np.bincount(owned, minlength=len(counts)))

    def _in_use(self, hits: Sequence[int], ahead: IntArray) -> IntArray | int:
        """Return how many of the blocks that a request finds others hold, batches ahead."""
        if not len(hits):
            return 0
        if self._life is None:
            self._shared()
        assert self._life is not None
        lives = np.sort(self._life[np.asarray(hits)])
        return np.asarray(len(lives) - np.searchsorted(lives, ahead))
