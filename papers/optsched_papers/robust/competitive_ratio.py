"""How much A_min can cost over H-SF when the memory is large (Robust, Corollary 4.8), proven."""

# With x_i requests of output i = l, ..., u and prompts of s tokens each, as the memory grows, the
# ratio of total latencies tends to x'Ax / x'Bx. Lemma 4.6 works out to
#     a_ij = i (s + i) + j (s + i) / 2 - i (s + i)^2 / (2 (s + j)),  b_ij = i (s + i)  for i <= j,
# which for s = 0 is Corollary 4.8. The bound l that A_min knows drops out: it only says which
# outputs occur. In suffix sums y_k = sum_{i >= k} x_i, which are nonincreasing, the quotient is
# y'Gy / y'Dy with a diagonal D (`SuffixForm`). The competitive ratio is its maximum over all mixes.
# D^-1 G is a positive matrix, hence (Collatz and Wielandt), for every w > 0,
#     y'Gy / y'Dy <= lambda_max(D^-1 G) <= max_k (G w)_k / (d_k w_k).
# Written out: with lambda the last number, lambda D - G has no positive entry off its diagonal and
# maps w to v >= 0, so that y'(lambda D - G)y is a sum of squares,
#     sum_k (v_k / w_k) y_k^2 + sum_{k < l} G_kl w_k w_l (y_k / w_k - y_l / w_l)^2.
# Bounds are evaluated in whole numbers with directed rounding; floating point only proposes w.
#
# B^-1 A in counts has no negative entry either, so that the leading eigenvector is a mix, the
# eigenvalue is the maximum over mixes for all l, u and s, and the bounds meet but for rounding:
# with t_k = (a_kj - a_(k-1)j) / d_k its entries in column j are t_k - t_(k+1), and t falls in k,
# for k <= j since (k (s + k)^2 - (k - 1)(s + k - 1)^2) / (2k - 1 + s) rises, for k > j term by
# term, and t_j = (s + j + 1) / 2(s + j) > t_(j+1) = (s + j) / 2(s + j + 1).

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.numbers import proven
from optsched.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import FloatArray, IntArray

_MAX_TOKENS = 1_000_000  # keeps the whole numbers of the form within 64 bits
_MAX_ROUNDS = 10_000
_TOLERANCE = 1e-6  # of bounds that count as one number
_CLOSE = 1e-15  # of the ratios (G w)_k / (d_k w_k): no closer in floating point
_PATIENCE = 10  # rounds without progress
_VECTOR_BITS, _SCALE = 100, 1 << 64


class Enclosure(NamedTuple):
    """The largest quotient, from below and from above."""

    lower: Fraction  # proven in whole numbers by the mix of `counts`
    upper: Fraction  # no mix has a larger one: proven by `weights`
    value: float  # the largest eigenvalue of the pencil in floating point
    weights: tuple[int, ...]  # the vector w of the proof: positive, and does not increase
    counts: tuple[int, ...]  # the mix whose suffix sums they are, not negative


@dataclass(frozen=True)
class CompetitiveRatio:
    """The competitive ratio of A_min by Lemma 4.6, between proven bounds.

    Outputs are from `lower` to `upper`, prompts are equal. It is the limit for a growing memory of
    what the lemma describes; a simulated A_min can cost more (papers/docs/theorems.md).
    Corollary 4.8 has `lower` 1 and no prompts.
    """

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
        scale = math.lcm(*(self.prompt + i for i, _ in present))
        served = slowed = before = twice = below = 0
        for i, count in present:
            peak = self.prompt + i
            # 2 a_ij over all earlier i, then a_ii; 2 b_ij and b_ii.
            cross = scale * (2 * served + i * before) - slowed * (scale // peak)
            twice += count * (2 * cross + 2 * scale * i * peak * count)
            below += count * (2 * served + i * peak * count)
            served += count * i * peak
            slowed += count * i * peak**2
            before += count * peak
        return Fraction(twice, 2 * scale * below)

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

    @cached_property
    def enclosure(self) -> Enclosure:
        """The bounds with what proves them."""
        return self.form().enclose()

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
        return self.upper_bound - self.lower_bound <= _TOLERANCE * self.lower_bound

    @cached_property
    def shares(self) -> FloatArray:
        """Share of each output from `lower` to `upper` in the worst mix, shape (n,)."""
        counts = np.array(self.enclosure.counts, dtype=np.float64)
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
            f"  at least    {proven(self.lower_bound, decimals=12)}  by a mix of outputs",
            f"  at most     {proven(self.upper_bound, up=True, decimals=12)}  by a positive "
            f"vector; {meet}",
            f"  eigenvalue  {self.eigenvalue:.12f}",
        ]
        if self.trace_bound is not None:
            lines.append(f"  trace       {self.trace_bound:.12f}  the bound of Theorem 4.3")
        return "\n".join(lines)


class SuffixForm(NamedTuple):
    """The forms y'Gy and y'Dy, with whole numbers throughout."""

    # G has a structure of rank two off its diagonal, so that a product with it costs as much as
    # reading the vector.

    diagonal: IntArray  # d
    divisor: IntArray  # c
    constant: IntArray  # g
    slope: IntArray  # p
    product: IntArray  # r

    def image(self, vector: FloatArray) -> FloatArray:
        """Compute G y in as many operations as y has entries."""
        upper = self.constant * _after(vector) + self.slope * _after(vector / self.product)
        lower = _before(self.constant * vector) + _before(self.slope * vector) / self.product
        image: FloatArray = self.diagonal / self.divisor * vector + (upper + lower) / 2
        return image

    def enclose(self) -> Enclosure:
        """Enclose the largest quotient over nonincreasing nonnegative vectors."""
        vector, value = self._ascend()
        descending = np.ldexp(np.minimum.accumulate(vector / vector.max()), _VECTOR_BITS)
        weights = np.array([max(1, int(entry)) for entry in descending], dtype=object)
        energies = 2 * self.diagonal.astype(object) * weights
        most = max(-(-self._scaled_image(weights, up=True) // energies))
        least = (self._scaled_image(weights, up=False) @ weights) // (energies @ weights)
        counts = (weights - np.append(weights[1:], 0)).tolist()
        bounds = Fraction(least, _SCALE), Fraction(most, _SCALE)
        return Enclosure(*bounds, value, tuple(weights.tolist()), tuple(counts))

    def _ascend(self) -> tuple[FloatArray, float]:
        """Iterate towards the leading eigenvector; a shift damps negative eigenvalues."""
        vector = 1 / np.arange(1.0, len(self.diagonal) + 1)
        best, closest, idle = vector, np.inf, 0
        for _ in range(_MAX_ROUNDS):
            image = self.image(vector) / self.diagonal
            ratios = image / vector
            spread = (ratios.max() - ratios.min()) / ratios.max()
            idle += 1
            if spread < closest:
                best, closest, idle = vector, spread, 0
            if closest <= _CLOSE or idle > _PATIENCE:
                break
            vector = image + ratios.min() / 2 * vector
            vector /= vector.max()
        energy = float(best @ (self.diagonal * best))
        return best, float(best @ self.image(best)) / energy

    def _scaled_image(self, weights: Any, *, up: bool) -> Any:
        """Return 2 G w times the scale in whole numbers of Python, rounded to one side."""

        def share(whole: Any, parts: Any) -> Any:
            scaled = whole * _SCALE
            return -(-scaled // parts) if up else scaled // parts

        d, c, g, p, r = (column.astype(object) for column in self)
        flat = (g * _after(weights) + _before(g * weights)) * _SCALE
        steep = p * _after(share(weights, r)) + share(_before(p * weights), r)
        return share(2 * d * weights, c) + flat + steep


def _before(values: Any) -> Any:
    """Sum up what stands before each entry."""
    return np.concatenate([[0], np.cumsum(values)[:-1]])


def _after(values: Any) -> Any:
    """Sum up what stands after each entry."""
    return _before(values[::-1])[::-1]
