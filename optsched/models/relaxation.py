"""The relaxation of the hindsight program (Relax-LP): fractional starts, a lower bound."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched.models.hindsight import HindsightProgram

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.linear.model import LinearModel


@checked()
@dataclass(frozen=True, eq=False, repr=False)
class LatencyRelaxation(HindsightProgram):
    r"""Relax-LP (8)-(11): the `HindsightProgram` with :math:`x_{g,k} \ge 0` in place of (7).

    Its optimum bounds the cost of every schedule that completes by the horizon from below.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import LatencyRelaxation
    >>> relaxation = LatencyRelaxation(Instance([1, 1], [1, 1], memory=3), horizon=2)
    >>> print(relaxation.to_linear())
    total-latency relaxed: min over 2 columns (0 integer), 3 rows, 4 nonzeros
      column  start[request,step]        2  continuous, 0..inf
      row     once[request]              1  2 nonzeros
      row     memory[step]               2  2 nonzeros
    >>> relaxation.read([1.5, 0.5])
    array([0.25, 0.25])
    """

    def to_linear(self) -> LinearModel:
        """Return the relaxation as arrays, with the families of `HindsightProgram.to_linear`."""
        model = super().to_linear()
        upper = model.col_upper.copy()
        upper[model.columns_of("start")] = np.inf  # implied by (9)
        return dataclasses.replace(model.relax(), col_upper=upper, name=f"{model.name} relaxed")

    def read(self, values: npt.ArrayLike, /) -> FloatArray:  # type: ignore[override]  # no schedule
        r"""Return the mean start of each request, :math:`\sum_k k \, x_{g,k} / n_g`, shape (n,)."""
        _, members = self._groups
        _, step, begin = self._columns
        sums = np.add.reduceat(self._start_values(values) * step, begin[:-1])
        return np.asarray((sums / np.bincount(members))[members])

    def prices(self, row_duals: npt.ArrayLike) -> FloatArray:
        """Turn the duals of the rows into prices of memory at steps 1 to `horizon`, not negative.

        However rough the duals, they give a proven bound (`optsched.certificates.prices`).
        """
        first, _ = self._groups
        duals = np.asarray(row_duals, dtype=np.float64)[len(first) :][: self.horizon - self.now]
        return np.concatenate([np.zeros(self.now), np.maximum(-duals, 0)])
