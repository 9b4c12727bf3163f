"""What a router knows of the requests that run: which of them end inside its window, and when.

The paper's interface (BF-IO Section 4): near its end a request can be known to finish within the
next H steps. How good must that signal be? `Predictor` has errors of a stated size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

NEVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Oracle:
    """All completions inside the window are known."""

    horizon: int = NEVER


@dataclass(frozen=True)
class NoInformation:
    """Nothing is known: every request that runs is read as lasting beyond the window."""

    horizon: int = NEVER


@dataclass(frozen=True)
class Predictor:
    """A signal with errors: a request announces when it will end, at most so many steps before.

    Parameters
    ----------
    horizon
        Steps ahead that the signal reaches; no lookahead can be longer.
    misses
        Share of the requests that end without any announcement.
    false_alarms
        Share of the requests that, at a random age, announce an end within the horizon that does
        not come; the router believes it until that step has passed.
    noise
        Standard deviation, in steps, of the announced end. An end announced too early is put off
        step by step until it comes.

    Raises
    ------
    PolicyError
        If a share lies outside [0, 1], or horizon or noise are negative.

    Examples
    --------
    >>> Predictor(horizon=20, misses=0.1)
    Predictor(horizon=20, misses=0.1, false_alarms=0.0, noise=0.0)
    """

    horizon: int
    misses: float = 0.0
    false_alarms: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("misses", "false_alarms"):
            if not 0 <= getattr(self, name) <= 1:
                raise PolicyError(f"{name} is {getattr(self, name)}, but must be a share, 0 to 1")
        for name in ("horizon", "noise"):
            if not getattr(self, name) >= 0:
                raise PolicyError(f"{name} is {getattr(self, name)}, but must not be negative")

    def alarms(self, outputs: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw what the requests announce.

        Parameters
        ----------
        outputs
            Their true outputs, shape (n,).
        rng
            Source of the errors.

        Returns
        -------
        IntArray
            Shape (n, 4): the age at which the end is announced, the announced age at the end, and
            the same of a false alarm; `NEVER` where there is none.
        """
        n = len(outputs)
        end = np.maximum(1, outputs + np.rint(rng.normal(0, self.noise, n)).astype(np.int64))
        alarm = np.maximum(0, end - self.horizon)
        missed = rng.random(n) < self.misses
        # A false alarm must be false: it is over before the request is.
        latest = outputs - 1 - self.horizon
        false = (rng.random(n) < self.false_alarms) & (latest > 0) & (self.horizon > 0)
        age = rng.integers(0, np.maximum(latest, 1))
        false_end = age + rng.integers(1, max(self.horizon, 1) + 1, n)
        return np.stack(
            [
                np.where(missed, NEVER, alarm),
                np.where(missed, NEVER, end),
                np.where(false, age, NEVER),
                np.where(false, false_end, NEVER),
            ],
            axis=1,
        )


Information = Oracle | NoInformation | Predictor
