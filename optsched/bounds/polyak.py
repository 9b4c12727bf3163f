"""Projected subgradient ascent on prices of memory, with steps of Polyak's length (Polyak, 1969).

A step leads towards a target a little above the best value met, along the slopes so far, of which
old ones count less (Crowder, 1976); the target comes closer after rounds without a gain. Work is
counted in the unit of the searches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.loading import stopwatch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from optsched._internal.arrays import FloatArray

_PATIENCE = 20  # rounds without a gain until the target comes closer
_CLOSER = 0.5
_MOMENTUM = 0.9
_FIRST_TARGET = 0.1  # of the distance to a schedule
_ENOUGH = 0.01  # of the distance to the target, to be a gain
_TINY = 1e-6  # distance of the target, relative to the bound, at which prices have converged
_STEP_WORK, _REQUEST_WORK = 60.0, 1200.0  # of a round, for each price and each request


def work_of_round(prices: int, requests: int) -> float:
    """Return the work of a round."""
    return _STEP_WORK * prices + _REQUEST_WORK * requests


class PolyakAscent(ABC):
    """Where an ascent is, and the best prices met."""

    best: float
    best_prices: FloatArray
    _direction: FloatArray
    _idle: int

    @abstractmethod
    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the Lagrangian, and its slope where prices can follow it."""

    def _begin(self, points: Iterable[FloatArray]) -> None:
        """Begin at the best of some prices."""
        self.best = -np.inf
        for prices in points:
            self._visit(prices)

    def _aim(self, ahead: float) -> None:
        """Set the first target, given how far above the best value a schedule is."""
        self._ahead = _FIRST_TARGET * max(ahead, 0.0)
        self._return()

    @property
    def converged(self) -> bool:
        """Whether better prices would hardly be worth more."""
        return self._ahead <= _TINY * abs(self.best) or not self._best_slope.any()

    def climb(
        self,
        rounds: float,
        deadline: float,
        on_progress: Callable[[float], None] | None = None,
        stop: threading.Event | None = None,
    ) -> bool:
        """Go so many rounds at most; return whether Ctrl-C ended them."""
        try:
            for done in takewhile(lambda done: done <= rounds, count()):
                if self.converged or stopwatch() >= deadline:
                    break
                self.step()
                if on_progress is not None and done % 16 == 0:
                    on_progress(self.best)
                if stop is not None and stop.is_set():
                    break
        except KeyboardInterrupt:
            return True
        return False

    def step(self) -> None:
        """Move once, and remember the best prices."""
        self._direction = self._slope + _MOMENTUM * self._direction
        squared = float(np.vdot(self._direction, self._direction))
        length = (self.best + self._ahead - self._value) / (squared or 1.0)  # slopes may cancel out
        gained = self._visit(np.maximum(self._prices + length * self._direction, 0.0))
        self._idle = 0 if gained > _ENOUGH * self._ahead else self._idle + 1
        if self._idle >= _PATIENCE or not self._slope.any():
            self._ahead *= _CLOSER
            self._return()

    def _visit(self, prices: FloatArray) -> float:
        """Go to prices, and return how much better they are than the best."""
        self._prices, (self._value, self._slope) = prices, self._evaluate(prices)
        gained = self._value - self.best
        if gained > 0:
            self.best, self.best_prices, self._best_slope = self._value, prices, self._slope
        return gained

    def _return(self) -> None:
        """Go back to the best prices."""
        self._idle = 0
        self._prices, self._value = self.best_prices, self.best
        self._slope, self._direction = self._best_slope, np.zeros_like(self._best_slope)
