r"""The ratio of A_min's total latency to that of H-SF for a mix of outputs (Robust, Lemma 4.6).

With :math:`x_i` requests of output :math:`i = \ell, \dots, u` and prompts of :math:`s` tokens each,
as the memory grows, the ratio tends to :math:`x^\top A x / x^\top B x`. Lemma 4.6 works out to

.. math:: a_{ij} = i (s + i) + \frac{j (s + i)}{2} - \frac{i (s + i)^2}{2 (s + j)}, \quad
          b_{ij} = i (s + i) \qquad (i \le j),

which for :math:`s = 0` is Corollary 4.8. The bound :math:`\ell` that A_min knows drops out: it only
says which outputs occur. In suffix sums :math:`y_k = \sum_{i \ge k} x_i` the second form is
diagonal and both are a `SuffixForm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import ModelError
from optsched.papers.robust.suffix_form import SuffixForm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import FloatArray

_MAX_MATRIX = 5_000
_MAX_TOKENS = 1_000_000  # keeps the whole numbers of the form within 64 bits


@dataclass(frozen=True)
class LatencyQuotient:
    """The quotient of Lemma 4.6 for outputs from `lower` to `upper` and equal prompts."""

    upper: int
    lower: int = 1
    prompt: int = 0

    def __post_init__(self) -> None:
        for name, least in (("lower", 1), ("upper", self.lower), ("prompt", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise ModelError(f"{name} is {value!r}, but must be a whole number")
            if not least <= value <= _MAX_TOKENS:
                raise ModelError(
                    f"{name} is {value}, but must be from {least} to {_MAX_TOKENS:,} tokens"
                )
            object.__setattr__(self, name, int(value))

    def __len__(self) -> int:
        """Return the number of outputs that may occur."""
        return self.upper - self.lower + 1

    def quotient(self, counts: Sequence[int]) -> Fraction:
        """Compute the quotient, exactly, for a mix: requests of each output from `lower` on."""
        counts = [int(count) for count in counts]
        if len(counts) != len(self) or min(counts) < 0 or not any(counts):
            raise ModelError(
                f"a mix is {len(self)} numbers of requests that are not negative and not all 0, "
                f"but this one has {len(counts)} numbers with least {min(counts, default=0)}"
            )
        present = [(i, x) for i, x in enumerate(counts, self.lower) if x]
        prompt = self.prompt
        scale = math.lcm(*(prompt + i for i, _ in present))
        served = slowed = before = twice = below = 0
        for i, count in present:
            peak = prompt + i
            # 2 a_ij over all earlier i, then a_ii; 2 b_ij and b_ii.
            cross = scale * (2 * served + i * before) - slowed * (scale // peak)
            twice += count * (2 * cross + 2 * scale * i * peak * count)
            below += count * (2 * served + i * peak * count)
            served += count * i * peak
            slowed += count * i * peak**2
            before += count * peak
        return Fraction(twice, 2 * scale * below)

    def matrices(self) -> tuple[FloatArray, FloatArray]:
        r"""Return the matrices A and B, shape (n, n) with :math:`n = u - \ell + 1`."""
        if len(self) > _MAX_MATRIX:
            raise ModelError(
                f"matrices for {len(self):,} outputs would not fit; `form` needs no matrix"
            )
        lengths = np.arange(self.lower, self.upper + 1, dtype=np.float64)
        i, j = np.minimum.outer(lengths, lengths), np.maximum.outer(lengths, lengths)
        held = self.prompt + i
        below = i * held
        above = below + j * held / 2 - i * held**2 / (2 * (self.prompt + j))
        return above, below

    def form(self) -> SuffixForm:
        """Return both forms in suffix sums; with ratios of both that are the same."""
        s, k = self.prompt, np.arange(self.lower, self.upper + 1, dtype=np.int64)
        # Differences over k of k (s + k), s + k and k (s + k)^2; the first ones are sums.
        diagonal, constant = 2 * k - 1 + s, np.ones_like(k)
        slope = 3 * k * k - 3 * k + 1 + 4 * s * k - 2 * s + s * s
        divisor, product = s + k, (s + k) * (s + k - 1)
        held = s + self.lower
        diagonal[0], constant[0], slope[0] = self.lower * held, held, self.lower * held**2
        divisor[0] = product[0] = 1  # the last is not used: nothing is below the first
        return SuffixForm(diagonal, divisor, constant, slope, product)
