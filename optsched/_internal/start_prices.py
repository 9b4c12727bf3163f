r"""What a start costs where every token held at step t has a price :math:`p_t`.

Started at :math:`k`, :math:`\sum_{u=1}^{o} (s + u) \, p_{k+u} = (s - k) (P_{k+o} - P_k) +
Q_{k+o} - Q_k` with :math:`P_t = \sum_{j \le t} p_j` and :math:`Q_t = \sum_{j \le t} j \, p_j`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import prefix_sums
from optsched._internal.compiled import compiled, compiled_inside

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray


class PriceSums(NamedTuple):
    """Sums over steps 1 to t of the prices, and of step times price; integers or doubles."""

    total: npt.NDArray[Any]  # (T + 1,)
    moment: npt.NDArray[Any]  # (T + 1,)

    @classmethod
    def of(cls, prices: npt.NDArray[Any]) -> PriceSums:
        """Add up the prices of steps 1 to T; later steps are free."""
        return cls(prefix_sums(prices), prefix_sums(prices * np.arange(1, len(prices) + 1)))


@compiled_inside
def price_of_start(
    prompt: int, output: int, start: int, total: npt.NDArray[Any], moment: npt.NDArray[Any]
) -> Any:
    """Return what the memory of a request costs that starts at a step, from both `PriceSums`."""
    last = len(total) - 1
    if start >= last:
        return total[0]  # zero, of the type of the prices
    end = start + output
    if end > last:
        end = last
    return (prompt - start) * (total[end] - total[start]) + moment[end] - moment[start]


@compiled
def prices_of_starts(
    prompts: IntArray, outputs: IntArray, starts: IntArray, sums: PriceSums
) -> npt.NDArray[Any]:
    """Return what the memory of each request costs, shape (n,)."""
    total, moment = sums
    paid = np.empty(len(starts), dtype=total.dtype)
    for request in range(len(starts)):
        paid[request] = price_of_start(
            prompts[request], outputs[request], starts[request], total, moment
        )
    return paid
