"""What a step should achieve beside balance: deadlines kept, and fair shares of the slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from optsched._internal.arrays import prefix_sums
from optsched.errors import InstanceError
from optsched.models.cluster.balance_state import WAITING, whole_row
from optsched.models.linear.families import read_only
from optsched.models.linear.model import Family, Rows, Variables

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray

_LARGEST = 2**40


@dataclass(frozen=True, eq=False, repr=False)
class StepGoals:
    r"""Deadlines and tenants of the requests that wait at a step (BF-IO Section 7.3).

    **Deadlines.** Let :math:`D_j` be the requests whose latest start is one of the steps
    :math:`k, \dots, k + j`, :math:`F_j` the slots that become free at steps
    :math:`k + 1, \dots, k + j`, and :math:`U` the admissions of this step. However it is decided,
    at least :math:`m = \max_j \, (|D_j| - U - F_j)^+` latest starts pass, and the rows

    .. math:: \sum_{i \in D_j} \sum_g x_{ig} \ge |D_j| - F_j - m \quad \forall j

    hold exactly where no more than :math:`m` need to pass: the sets :math:`D_j` are nested, so that
    this is Hall's condition. Admitting by latest start satisfies them, so that they exclude no step
    where memory is not limited. A request whose latest start has passed is no longer in any row.

    **Tenants.** A tenant that is :math:`q_t` slots short of its share may be served now; the
    objective has the largest shortfall that remains, at a price :math:`\beta` per slot:
    :math:`\beta \, \max ( 0, \max_t \, ( q_t - \sum_{i \in t} \sum_g x_{ig} ) )`.

    Parameters
    ----------
    latest
        Steps from now to the latest start of each waiting request, negative where that has passed,
        shape (R,); None for no deadlines.
    freed
        Slots that become free at each of the next steps, shape (H,); None where that is unknown,
        and then only latest starts of this step count.
    tenant
        Number of the tenant of each waiting request, shape (R,); None for no tenants.
    short
        Slots :math:`q_t` by which each tenant is short of its share before this step, as far as it
        has requests waiting; shape (T,).
    price
        :math:`\beta`, in tokens of imbalance.

    Examples
    --------
    >>> from optsched import solve
    >>> from optsched.models import BalanceProgram
    >>> from optsched.models import BalanceState, StepGoals
    >>> state = BalanceState(alive=[[9], [4]], free=[1, 0], waiting=[3, 7, 1])
    >>> program = BalanceProgram(state, goals=StepGoals(latest=[5, 0, 2]))
    >>> solve(program).answer.worker
    array([-1,  0, -1])
    """

    latest: IntArray | None
    freed: IntArray | None
    tenant: IntArray | None
    short: IntArray | None
    price: int

    def __init__(
        self,
        latest: npt.ArrayLike | None = None,
        freed: npt.ArrayLike | None = None,
        tenant: npt.ArrayLike | None = None,
        short: npt.ArrayLike | None = None,
        price: int = 1,
    ) -> None:
        if (tenant is None) != (short is None):
            raise InstanceError("tenant and short belong together; pass both or neither")
        given = {"latest": latest, "freed": freed, "tenant": tenant, "short": short}
        for name, values in given.items():
            row = None if values is None else read_only(whole_row(name, values, None))
            object.__setattr__(self, name, row)
        object.__setattr__(self, "price", int(whole_row("price", price, 1)[0]))
        self._check()

    def _check(self) -> None:
        if not 0 <= self.price < _LARGEST:
            raise InstanceError(f"price is {self.price}, but must be from 0 to {_LARGEST - 1}")
        if self.freed is not None and (self.freed < 0).any():
            step = int(np.argmax(self.freed < 0))
            raise InstanceError(f"freed[{step}] is {self.freed[step]}, but must be at least 0")
        if self.tenant is None or self.short is None:
            return
        bad = (self.tenant < 0) | (self.tenant >= len(self.short))
        if bad.any():
            request = int(np.argmax(bad))
            raise InstanceError(
                f"request {request}: tenant is {self.tenant[request]}, but must be from 0 to "
                f"{len(self.short) - 1}"
            )
        if int(self.short.max(initial=0)) * self.price >= 2**53:
            raise InstanceError("price times shortfall is too much for exact arithmetic")

    def check(self, requests: int, lookahead: int) -> None:
        """Refuse goals of another step."""
        for name in ("latest", "tenant"):
            row = getattr(self, name)
            if row is not None and len(row) != requests:
                raise InstanceError(
                    f"{name} has {len(row)} entries, but {requests} requests are waiting"
                )
        if self.freed is not None and len(self.freed) < lookahead:
            raise InstanceError(
                f"freed has {len(self.freed)} entries, but the lookahead is {lookahead} steps"
            )

    def required(self, admitted: int, lookahead: int) -> IntArray:
        """Return how many requests due within each further step are to be admitted now."""
        if self.latest is None:
            return np.zeros(0, dtype=np.int64)
        freed = np.zeros(1, dtype=np.int64)
        if self.freed is not None:
            freed = prefix_sums(self.freed[:lookahead])
        ahead = np.arange(len(freed))
        due = ((self.latest >= 0) & (self.latest <= ahead[:, None])).sum(axis=1)
        passing = max(0, int((due - freed).max()) - admitted)
        return np.asarray(np.maximum(due - freed - passing, 0), dtype=np.int64)

    def admits(self, chosen: IntArray, lookahead: int) -> bool:
        """Return whether an assignment admits what deadlines require."""
        if self.latest is None:
            return True
        started = chosen != WAITING
        required = self.required(int(started.sum()), lookahead)
        ahead = np.arange(len(required))[:, None]
        due = (self.latest >= 0) & (self.latest <= ahead)
        return bool(((due & started).sum(axis=1) >= required).all())

    def shortfall(self, chosen: IntArray) -> int:
        """Return by how many slots the tenant that is worst off falls short after an assignment."""
        if self.tenant is None or self.short is None:
            return 0
        admitted = self.tenant[chosen != WAITING]
        left = self.short - np.bincount(admitted, minlength=len(self.short))
        return int(left.max(initial=0))

    def variables(self) -> list[Variables]:
        """Write the column of the largest shortfall."""
        if self.short is None:
            return []
        most = int(self.short.max(initial=0))
        return [Variables(Family.of("shortfall"), self.price, upper=most, integer=True)]

    def rows(self, workers: int, admitted: int, lookahead: int) -> list[Rows]:
        """Write the rows of deadlines and tenants for workers with columns."""
        groups = []
        required = self.required(admitted, lookahead)
        steps = np.flatnonzero(required)
        if self.latest is not None and len(steps):
            due = (self.latest >= 0) & (self.latest <= steps[:, None])
            family = Family.of("deadline", step=steps)
            groups.append(Rows(family, {"assign": _apiece(due, workers)}, lower=required[steps]))
        if self.tenant is not None and self.short is not None:
            poor = np.flatnonzero(self.short > 0)
            blocks = {
                "assign": _apiece(self.tenant == poor[:, None], workers),
                "shortfall": np.ones((len(poor), 1)),
            }
            if len(poor):
                groups.append(Rows(Family.of("share", tenant=poor), blocks, lower=self.short[poor]))
        return groups


def _apiece(mask: npt.NDArray[np.bool_], workers: int) -> sparse.csr_array:
    """Write sums over some requests, on whatever worker they run."""
    return sparse.csr_array(np.tile(mask.astype(np.float64), (1, workers)))
