r"""The thresholds of WAIT in whole numbers, for solvers that take nothing else."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import MAX_SUM
from optsched.errors import ModelError
from optsched.models.fluid.equilibrium import exact_terms
from optsched.models.fluid.wait import WaitThresholds, limits_of, threshold_model
from optsched.models.linear.model import Family, LinearModel, Variables
from optsched.models.program import Program
from optsched.problem.request_types import decimal

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray

_LARGEST = 2**53  # up to here arrays of floats hold every whole number
_SUMS = MAX_SUM // _LARGEST


@dataclass(frozen=True, eq=False, repr=False)
class WholeThresholds(Program):
    r"""`WaitThresholds` with whole coefficients, whole columns and finite bounds.

    Rates and coefficients count as the decimals they are written as, so (9) divided by
    :math:`\lambda_j` has rational coefficients. Over their common denominator :math:`1 / u` they
    are whole, and the slack is a whole number of units :math:`u`, since the largest slack is
    :math:`\min_j n_j / \lambda_j - T(n)` at whole :math:`n`. Where the slack is given, each row
    has a denominator of its own. A threshold is at most what the limits leave beside one request of
    each other type; without limits, what the memory of the least fixed point leaves, which no
    optimum exceeds. Where the whole numbers are too large, `to_linear` raises a `ModelError`.

    Examples
    --------
    >>> from optsched import RequestTypes
    >>> from optsched.models import WaitThresholds
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> program = WaitThresholds(types, "affine:0.0085,2.7e-7", memory=8000, objective="slack")
    >>> print(WholeThresholds(program).to_linear())
    WAIT thresholds: max over 3 columns (3 integer), 3 rows, 8 nonzeros
      column  threshold[type]          2  integer, 1..45
      column  slack                    1  integer, 0..186841
      row     time[type]               2  6 nonzeros
      row     memory                   1  2 nonzeros
    """

    program: WaitThresholds

    @functools.cached_property
    def unit(self) -> Fraction:
        """Unit in seconds of which the slack is a whole multiple; 1 where the slack is given."""
        if self.program.objective == "memory":
            return Fraction(1)
        inverse, work, start = self._seconds
        return _common([*inverse, *work, start])

    @property
    def _seconds(self) -> tuple[list[Fraction], list[Fraction], Fraction]:
        """Seconds between arrivals of each type, of a request in all its batches, of no request."""
        rates, work, start = exact_terms(self.program.types, self.program.clock)
        return [1 / rate for rate in rates], work, start

    @property
    def most(self) -> IntArray:
        """Thresholds that no optimum exceeds, at least 1, shape (m,)."""
        limits = [(uses, limit) for _, _, uses, limit in limits_of(self.program)]
        if not limits:  # the objective is then memory: a slack without limit has no model
            uses = self.program.types.held_tokens
            limits = [(uses, int(uses @ self.program.least_fixed_point()))]
        left = [(most - (uses.sum() - uses)) // uses for uses, most in limits]
        return np.asarray(np.maximum(np.min(left, axis=0), 1))

    def to_linear(self) -> LinearModel:
        """Write the program as arrays: the columns and rows of `WaitThresholds`, whole."""
        self.program.to_linear()  # refuses a slack without limit
        most, slack = self.most, []
        entries, lower = self._time_rows()
        blocks = {"threshold": entries}
        if self.program.objective == "slack":
            least = math.ceil(decimal(self.program.minimum_slack) / self.unit)
            slack = [self._slack(least, most)]
            blocks["slack"] = -np.ones((len(most), 1), dtype=np.int64)
        return threshold_model(self.program, blocks, lower, slack, most)

    def _slack(self, least: int, most: IntArray) -> Variables:
        """Return the column of the slack, up to where the largest thresholds would leave it."""
        inverse, work, start = self._seconds
        between = min(count * gap for count, gap in zip(most.tolist(), inverse, strict=True))
        upper = max((between - start - sum(work)) // self.unit, least)
        self._require_small([upper], "the slack")
        return Variables(Family.of("slack"), 1, lower=least, upper=upper, integer=True)

    def _time_rows(self) -> tuple[IntArray, IntArray]:
        """Return coefficients of the thresholds in (9) and its right side, all whole."""
        inverse, work, start = self._seconds
        given = self.program.objective == "memory"
        if given:
            start += decimal(self.program.minimum_slack)
        entries, lower, most = [], [], self.most.tolist()
        for j, gap in enumerate(inverse):
            row = [(gap if i == j else 0) - seconds for i, seconds in enumerate(work)]
            unit = _common([*row, start]) if given else self.unit
            whole = [int(value / unit) for value in row]
            right = int(start / unit)
            # A row's sum may be larger than its parts: MAX_SUM is exact in a solver of integers.
            reach = sum(abs(a) * b for a, b in zip(whole, most, strict=True)) // _SUMS
            self._require_small([*whole, right, reach], f"type {self.program.types.names[j]}")
            entries.append(whole)
            lower.append(right)
        return np.array(entries, dtype=np.int64), np.array(lower, dtype=np.int64)

    @staticmethod
    def _require_small(numbers: list[int], what: str) -> None:
        """Refuse whole numbers that are not exact in arrays of floats."""
        largest = max(map(abs, numbers))
        if largest > _LARGEST:
            raise ModelError(
                f"WAIT thresholds: in whole numbers (9) has one of {len(str(largest))} digits for "
                f"{what}, and at most 15 are exact; round the rates and the clock to fewer digits, "
                "or take method highs"
            )

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point into thresholds, as `WaitThresholds.read` does."""
        return self.program.read(values)

    def write_point(self, thresholds: npt.ArrayLike, /) -> FloatArray:
        """Turn thresholds into a point; the slack is counted in units."""
        point = self.program.write_point(thresholds)
        if self.program.objective == "slack":
            point[-1] = self.program.exact_slack(thresholds) // self.unit
        return point


def _common(values: list[Fraction]) -> Fraction:
    """Return the largest number of which all are whole multiples."""
    parts = [value for value in values if value]
    denominator = math.lcm(*(value.denominator for value in parts))
    whole = (int(value * denominator) for value in parts)
    return Fraction(math.gcd(*whole), denominator)
