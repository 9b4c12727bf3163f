r"""How much A_min can cost over H-SF when the memory is large (Robust, Corollary 4.8), proven.

The ratio of total latencies for a mix of outputs is a quotient of quadratic forms
(`latency_quotient`); the competitive ratio is its maximum over all mixes. Neither
:math:`D^{-1} G` in suffix sums nor :math:`B^{-1} A` in counts has a negative entry. By the first, a
positive vector proves an upper bound; by the second, the leading eigenvector is a mix. So the
eigenvalue is the maximum over mixes for every :math:`\ell`, :math:`u` and :math:`s`, and the bounds
meet but for rounding (docs/uncertainty.md has the argument).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.papers.robust.latency_quotient import LatencyQuotient
from optsched.papers.robust.quotient import Enclosure, enclose
from optsched.solution import TOLERANCE

if TYPE_CHECKING:
    from fractions import Fraction

    from optsched._internal.arrays import FloatArray


class CompetitiveRatio(LatencyQuotient):
    """The competitive ratio of A_min by Lemma 4.6, between proven bounds.

    It is the limit for a growing memory of what the lemma describes; a simulated A_min can cost
    more (docs/uncertainty.md). Corollary 4.8 has `lower` 1 and no prompts.
    """

    @cached_property
    def enclosure(self) -> Enclosure:
        """The bounds with what proves them."""
        return enclose(self.form())

    @property
    def lower_bound(self) -> Fraction:
        """Some mix has this ratio or more, found by ascent over mixes; exact."""
        return self.enclosure.lower

    @property
    def upper_bound(self) -> Fraction:
        """No mix has a higher ratio; exact."""
        return self.enclosure.upper

    @property
    def eigenvalue(self) -> float:
        r"""The largest eigenvalue of :math:`B^{-1} A` in floating point."""
        return self.enclosure.value

    @property
    def meets(self) -> bool:
        """Whether the bounds are the same number but for a relative 1e-6."""
        return self.upper_bound - self.lower_bound <= TOLERANCE * self.lower_bound

    @cached_property
    def shares(self) -> FloatArray:
        """Share of each output from `lower` to `upper` in the worst mix, shape (n,)."""
        counts = np.array([float(count) for count in self.enclosure.counts])
        shares: FloatArray = counts / counts.sum()
        return shares

    @property
    def trace_bound(self) -> float | None:
        r"""The trace of :math:`B^{-1} A`, the bound in the proof of Theorem 4.3; None with prompts.

        It is :math:`1 + \sum_{k = \ell + 1}^{u} 1 / k`, hence :math:`H_u` for :math:`\ell = 1`.
        With prompts A need not be positive definite, and its trace is no bound then.
        """
        if self.prompt:
            return None
        return math.fsum([1.0, *(1 / np.arange(self.lower + 1.0, self.upper + 1))])

    def __str__(self) -> str:
        prompts = f"prompts of {self.prompt}" if self.prompt else "no prompts"
        meet = "they meet" if self.meets else "they do not meet"
        lines = [
            f"competitive ratio of A_min for outputs {self.lower} to {self.upper}, {prompts}",
            f"  at least    {float(self.lower_bound):.12f}  by a mix of outputs",
            f"  at most     {float(self.upper_bound):.12f}  by a positive vector; {meet}",
            f"  eigenvalue  {self.eigenvalue:.12f}",
        ]
        if self.trace_bound is not None:
            lines.append(f"  trace       {self.trace_bound:.12f}  the bound of Theorem 4.3")
        return "\n".join(lines)
