r"""The largest quotient of two quadratic forms over mixes of types, enclosed by proven bounds.

For suffix sums :math:`y_1 \ge \dots \ge y_n \ge 0` the quotient is :math:`y^\top G y / y^\top D y`
(`SuffixForm`). :math:`D^{-1} G` is a positive matrix, hence (Collatz and Wielandt)

.. math:: \frac{y^\top G y}{y^\top D y} \le \lambda_{\max}(D^{-1} G)
          \le \max_k \frac{(G w)_k}{d_k w_k} \quad \text{for every } w > 0.

Written out: with :math:`\lambda` the last number, :math:`\lambda D - G` has no positive entry off
its diagonal and maps :math:`w` to something nonnegative, so that :math:`y^\top (\lambda D - G) y`
is a sum of squares :math:`\sum_k \frac{v_k}{w_k} y_k^2 + \sum_{k < l} G_{kl} w_k w_l
(\frac{y_k}{w_k} - \frac{y_l}{w_l})^2` with :math:`v = (\lambda D - G) w \ge 0`. Bounds are
evaluated in whole numbers with directed rounding; floating point only proposes :math:`w`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.papers.robust.suffix_form import SuffixForm

_MAX_ROUNDS = 10_000
_CLOSE = 1e-15  # of the ratios (G w)_k / (d_k w_k): no closer in floating point
_PATIENCE = 10  # rounds without progress
_VECTOR_BITS, _SCALE_BITS = 100, 64


@dataclass(frozen=True)
class Enclosure:
    """The largest quotient, from below and from above."""

    lower: Fraction  # proven in whole numbers by the mix of `counts`
    upper: Fraction  # no mix has a larger one: proven by `weights`
    value: float  # the largest eigenvalue of the pencil in floating point
    weights: tuple[int, ...]  # the vector w of the proof: positive, and does not increase
    counts: tuple[int, ...]  # the mix whose suffix sums they are, not negative


def enclose(form: SuffixForm) -> Enclosure:
    """Enclose the largest quotient over nonincreasing nonnegative vectors."""
    vector, value = _ascend(form)
    descending = np.minimum.accumulate(vector / vector.max())
    weights = [max(1, int(entry)) for entry in np.ldexp(descending, _VECTOR_BITS)]
    counts = [here - after for here, after in zip(weights, [*weights[1:], 0], strict=True)]
    return Enclosure(
        _quotient_below(form, weights),
        _quotients_above(form, weights),
        value,
        tuple(weights),
        tuple(counts),
    )


def _ascend(form: SuffixForm) -> tuple[FloatArray, float]:
    """Iterate towards the leading eigenvector; a shift damps negative eigenvalues."""
    vector = 1 / np.arange(1.0, len(form.diagonal) + 1)
    best, closest, idle = vector, np.inf, 0
    for _ in range(_MAX_ROUNDS):
        image = form.image(vector) / form.diagonal
        ratios = image / vector
        spread = (ratios.max() - ratios.min()) / ratios.max()
        idle += 1
        if spread < closest:
            best, closest, idle = vector, spread, 0
        if closest <= _CLOSE or idle > _PATIENCE:
            break
        vector = image + ratios.min() / 2 * vector
        vector /= vector.max()
    energy = float(best @ (form.diagonal * best))
    return best, float(best @ form.image(best)) / energy


def _quotients_above(form: SuffixForm, weights: list[int]) -> Fraction:
    """Bound all quotients (G w)_k / (d_k w_k) from above."""
    images = _image(form, weights, up=True)
    most = max(
        -(-image // (2 * diagonal * weight))
        for image, diagonal, weight in zip(images, form.diagonal.tolist(), weights, strict=True)
    )
    return Fraction(most, 1 << _SCALE_BITS)


def _quotient_below(form: SuffixForm, weights: list[int]) -> Fraction:
    """Bound w'Gw / w'Dw from below."""
    images = _image(form, weights, up=False)
    twice = sum(image * weight for image, weight in zip(images, weights, strict=True))
    energy = sum(d * weight**2 for d, weight in zip(form.diagonal.tolist(), weights, strict=True))
    return Fraction(twice // (2 * energy), 1 << _SCALE_BITS)


def _image(form: SuffixForm, weights: list[int], *, up: bool) -> list[int]:
    """Return 2^(1 + scale) G w in whole numbers, rounded to one side."""

    def share(whole: int, parts: int) -> int:
        scaled = whole << _SCALE_BITS
        return -(-scaled // parts) if up else scaled // parts

    diagonal, divisor, constant, slope, product = (column.tolist() for column in form)
    parts = [share(weight, part) for weight, part in zip(weights, product, strict=True)]
    after = list(accumulate(reversed(weights), initial=0))[-2::-1]
    parts_after = list(accumulate(reversed(parts), initial=0))[-2::-1]
    flat = accumulate((g * w for g, w in zip(constant, weights, strict=True)), initial=0)
    steep = accumulate((p * w for p, w in zip(slope, weights, strict=True)), initial=0)
    return [
        share(2 * d * w, c)
        + ((g * later + before) << _SCALE_BITS)
        + p * parts_later
        + share(parts_before, r)
        for d, c, g, p, r, w, later, parts_later, before, parts_before in zip(
            diagonal,
            divisor,
            constant,
            slope,
            product,
            weights,
            after,
            parts_after,
            flat,
            steep,
            strict=False,  # the two sums over all entries have one more
        )
    ]
