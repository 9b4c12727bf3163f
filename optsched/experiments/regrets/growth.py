r"""Whether regret grows with the horizon: a test that can say so, and says what it could have seen.

Growth is measured per tenfold horizon :math:`T`, by a line through :math:`\log_{10} T` for each
seed; Student's t over the seeds gives the limits of the mean slope. Regret is *bounded* if the
upper end of its interval (against the proven bound) grows by less than the tolerance, *growing* if
the lower end (against the best schedule known) grows by more, and *undecided* otherwise. Fewer than
four horizons or five seeds name no growth.

A finite range of horizons says nothing of those beyond it. Growth by any power of :math:`T` is
growth per tenfold :math:`T` that itself grows, so the test looks at the upper half of the range,
where it shows most, and where the empty worker at the start counts least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched._internal.numbers import proven
from optsched._internal.student import student
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray

Verdict = Literal["bounded", "grows", "undecided", "too few points"]
_LEAST_HORIZONS, _LEAST_SEEDS = 4, 5
TOO_FEW = (
    f"whether regret grows is said from {_LEAST_HORIZONS} horizons and {_LEAST_SEEDS} seeds on"
)
POWER = 0.9  # with which a growth that is called detectable is found


@dataclass(frozen=True)
class Growth:
    """How the ends of the regret interval move per tenfold horizon."""

    verdict: Verdict
    low: float  # mean growth of the lower end
    high: float  # mean growth of the upper end
    low_floor: float  # one-sided confidence limit: the lower end grows by more than this
    high_ceiling: float  # and the upper end by less than this; infinite with a single seed
    tolerance: float  # growth that does not count
    detectable: float  # a lower end that grows by this is called growing with probability 0.9
    power: float  # probability that an upper end that does not grow is called bounded
    exponent: float | None  # of the horizon, by which the lower end grows; None if not known
    horizons: tuple[int, ...]
    seeds: int
    confidence: float  # of each limit
    unit: str = "steps"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON; None for what is infinite."""
        return finite(vars(self))

    def __str__(self) -> str:
        if self.verdict == "bounded":
            return (
                f"bounded: growth above {proven(self.high_ceiling, up=True, digits=3)} {self.unit} "
                f"per tenfold horizon is excluded (tolerance {self.tolerance:,.3g}, power "
                f"{self.power:.2f})"
            )
        if self.verdict == "grows":
            power = "" if self.exponent is None else f", like T^{self.exponent:.2f}"
            return (
                f"grows: by more than {proven(self.low_floor, digits=3)} {self.unit} per tenfold "
                f"horizon{power} "
                f"(tolerance {self.tolerance:,.3g})"
            )
        power = f"growth of {self.detectable:,.3g} would show"
        if self.verdict == "too few points":
            power = TOO_FEW
        return (
            f"{self.verdict}: the lower end grows by {self.low:,.3g}, the upper end by "
            f"{self.high:,.3g} {self.unit} per tenfold horizon "
            f"(tolerance {self.tolerance:,.3g}, {power})"
        )


def finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with None for what is infinite."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def growth_of(
    horizons: Sequence[int],
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    tolerance: float,
    *,
    confidence: float = 0.95,
    unit: str = "steps",
) -> Growth:
    """Test whether regret grows, from its ends: a row per seed, a column per horizon."""
    lows, highs = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    steps = np.asarray(horizons)
    if lows.shape != highs.shape or lows.ndim != 2 or lows.shape[1:] != steps.shape:
        raise OptschedError(
            f"growth needs one row per seed and one column per horizon, but there are "
            f"{len(steps)} horizons and ends of shapes {lows.shape} and {highs.shape}"
        )
    if len(steps) < 2 or np.any(np.diff(steps) <= 0) or steps[0] < 1:
        raise OptschedError("growth needs at least two horizons, ascending and positive")
    if np.any(lows > highs):
        raise OptschedError("a lower end of regret is above its upper end")
    few = len(steps) < _LEAST_HORIZONS or len(lows) < _LEAST_SEEDS
    # The upper half of the range on the scale of the lines, and two horizons at least.
    half = min(len(steps) - 2, int(np.searchsorted(steps, math.sqrt(steps[0] * steps[-1]))))
    steps, lows, highs = steps[half:], lows[:, half:], highs[:, half:]
    low_line, high_line = _Slope(steps, lows, confidence), _Slope(steps, highs, confidence)
    low_floor = low_line.mean - low_line.margin
    high_ceiling = high_line.mean + high_line.margin
    verdict: Verdict = "undecided"
    if few:
        verdict = "too few points"
    elif high_ceiling < tolerance:
        verdict = "bounded"
    elif low_floor > tolerance:
        verdict = "grows"
    return Growth(
        verdict,
        low_line.mean,
        high_line.mean,
        low_floor,
        high_ceiling,
        tolerance,
        tolerance + low_line.detectable(),
        high_line.power(tolerance),
        None if few else _exponent(steps, lows.mean(axis=0)),
        tuple(steps.tolist()),
        len(lows),
        confidence,
        unit,
    )


class _Slope:
    """The mean over seeds of slopes against the logarithm of the horizon."""

    def __init__(self, steps: npt.NDArray[np.int64], ends: FloatArray, confidence: float) -> None:
        at = np.log10(steps)
        at = at - at.mean()
        slopes = ends @ at / (at @ at)
        self.mean = float(slopes.mean())
        self._free = len(slopes) - 1
        self._error = float(slopes.std(ddof=1)) / math.sqrt(len(slopes)) if self._free else math.inf
        self._limit = student(confidence, len(slopes)) if self._free else math.inf
        self.margin = self._limit * self._error

    def power(self, distance: float) -> float:
        """Return the probability of finding that a slope so far from a limit is beyond it."""
        from scipy import stats

        if not self._free:
            return 0.0
        if self._error == 0:
            return float(distance > 0)
        shift = min(distance / self._error, 1e3)  # further is certain, and overflows
        return float(stats.nct.sf(self._limit, self._free, shift)) if shift < 1e3 else 1.0

    def detectable(self) -> float:
        """Return the distance from a limit that is found with the probability `POWER`."""
        from scipy import optimize

        if not self._free or self._error == 0:
            return self._error
        far = self._error
        while self.power(far) < POWER:
            far *= 2
        return float(optimize.brentq(lambda distance: self.power(distance) - POWER, 0, far))


def _exponent(steps: npt.NDArray[np.int64], means: FloatArray) -> float | None:
    if np.any(means <= 0):
        return None
    return float(np.polyfit(np.log(steps), np.log(means), 1)[0])
