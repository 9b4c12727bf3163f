r"""Two quadratic forms of suffix sums, one diagonal, the other with a structure of rank two.

Many costs of mixes of types depend on how many requests have at least some length. In such suffix
sums a form that is dense in the counts can be sparse or structured, so that a product with it costs
as much as reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray


class SuffixForm(NamedTuple):
    r"""The forms :math:`y^\top G y` and :math:`y^\top D y`, with whole numbers throughout."""

    diagonal: IntArray  # d
    divisor: IntArray  # c
    constant: IntArray  # g
    slope: IntArray  # p
    product: IntArray  # r

    def image(self, vector: FloatArray) -> FloatArray:
        """Compute G y in as many operations as y has entries."""
        after, before = np.zeros((2, len(vector) + 1)), np.zeros((2, len(vector) + 1))
        after[:, 1:] = np.cumsum([vector[::-1], (vector / self.product)[::-1]], axis=1)
        before[:, 1:] = np.cumsum([self.constant * vector, self.slope * vector], axis=1)
        after, before = after[:, -2::-1], before[:, :-1]
        upper = self.constant * after[0] + self.slope * after[1]
        lower = before[0] + before[1] / self.product
        image: FloatArray = self.diagonal / self.divisor * vector + (upper + lower) / 2
        return image

    def dense(self) -> FloatArray:
        """Return G as a matrix, shape (n, n)."""
        upper = np.triu((self.constant[:, None] + self.slope[:, None] / self.product) / 2, 1)
        dense: FloatArray = upper + upper.T + np.diag(self.diagonal / self.divisor)
        return dense
