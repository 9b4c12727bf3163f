"""BF-IO's step program: which waiting requests go where, so that workers stay balanced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse

from optsched._internal.arguments import checked
from optsched._internal.arrays import prefix_sums
from optsched.errors import require_known
from optsched.models.cluster.balance_state import WAITING
from optsched.models.linear.model import (
    Family,
    LinearModel,
    ModelError,
    Rows,
    Variables,
    as_point,
    whole_numbers,
)
from optsched.models.program import Program

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.cluster.balance_state import BalanceState
    from optsched.models.cluster.goals import StepGoals

Form = Literal["literal", "reduced"]
FORMS: tuple[Form, ...] = ("literal", "reduced")


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class BalanceProgram(Program):
    r"""Program (IO): the admissions with the least imbalance accumulated over a window.

    .. math::

        \min \quad & \sum_{h=0}^{H} \Bigl( G z_h - \sum_g L_g(h) \Bigr)
            - \sum_{i, g} b_i \, x_{ig} \\
        \text{s.t.} \quad & z_h \ge L_g(h) && \forall g, h \quad \text{(reach)} \\
        & \sum_g x_{ig} \le 1 && \forall i \quad \text{(once)} \\
        & \sum_i x_{ig} \le \mathrm{cap}_g && \forall g \quad \text{(slots)} \\
        & \sum_{i, g} x_{ig} = U && \text{(admit)} \\
        & P_g(h) + \textstyle\sum_i w_i(h) \, x_{ig} \le M_g
            && \forall g, h \quad \text{(memory)} \\
        & x_{ig} \in \{0, 1\}

    with the loads :math:`L_g(h) = a_g \bigl( P_g(h) + \sum_i w_i(h) \, x_{ig} \bigr)`, weighted by
    slowness :math:`a_g`, and the symbols of `BalanceState`. The paper has :math:`a_g = 1`,
    :math:`b_i = 0` and no memory.

    **Reduced form.** Workers without free slots give each :math:`z_h` a lower bound and have no
    other rows or columns. Where all requests drift alike,
    :math:`\sum_i w_i(h) x_{ig} = S_g + n_g \gamma_h` with the tokens
    :math:`S_g = \sum_i s_i x_{ig}`, the count :math:`n_g = \sum_i x_{ig}` and the growth
    :math:`\gamma_h`, so that the reach rows have three entries instead of one per request. Both
    forms have the same answers at the same cost.

    Parameters
    ----------
    state
        The step.
    lookahead
        Steps :math:`H`; None takes as many as are predicted.
    admitted
        Number :math:`U` of admissions; None means min(waiting, free slots), as in the paper.
    form
        "reduced", or "literal" as the paper prints it.
    goals
        Deadlines and tenants, which add rows ``deadline`` and ``share`` and a column
        ``shortfall``; None, as in the paper, for none.

    Raises
    ------
    InstanceError, ModelError
        If prediction or goals do not suit the step, or that many admissions do not fit.

    Examples
    --------
    >>> from optsched.models import BalanceProgram, BalanceState
    >>> state = BalanceState(alive=[[9, 10], [4, 0]], free=[0, 1], waiting=[3, 7])
    >>> program = BalanceProgram(state)
    >>> print(program.to_linear())
    balance: min over 6 columns (6 integer), 7 rows, 14 nonzeros
      column  assign[request,worker]       2  integer, 0..1
      column  tokens[worker]           1  integer, 0..7
      column  count[worker]            1  integer, 1..1
      column  peak[step]               2  integer, 9..11
      row     once[request]            2  2 nonzeros
      row     slots[worker]            1  3 nonzeros
      row     admit                    1  1 nonzero
      row     sum[worker]              1  3 nonzeros
      row     reach[worker,step]       2  5 nonzeros
    >>> program.cost([-1, 1]), program.cost([1, -1])
    (4, 8)
    """

    state: BalanceState
    lookahead: int | None = None
    admitted: int | None = None
    form: Form = "reduced"
    goals: StepGoals | None = None

    def __post_init__(self) -> None:
        require_known("form", self.form, FORMS)
        if self.lookahead is not None:
            object.__setattr__(self, "state", self.state.window(self.lookahead))
        object.__setattr__(self, "lookahead", self.state.lookahead)
        room = min(len(self.state.waiting), int(self.state.free.sum()))
        if self.admitted is None:
            object.__setattr__(self, "admitted", room)
        elif not 0 <= self.admitted <= room:
            raise ModelError(
                f"admitted is {self.admitted}, but with {len(self.state.waiting)} waiting and "
                f"{self.state.free.sum()} free slots it must be from 0 to {room}"
            )
        if self.goals is not None:
            self.goals.check(len(self.state.waiting), self.state.lookahead)

    def __repr__(self) -> str:
        return f"<BalanceProgram of {self.state!r}, admits {self.admitted}>"

    @property
    def admissions(self) -> int:
        """Number of requests that are admitted."""
        return int(self.admitted or 0)

    @property
    def _open(self) -> IntArray:
        """Workers that have columns."""
        free = self.state.free
        return np.arange(len(free)) if self.form == "literal" else np.flatnonzero(free)

    @property
    def _assign_family(self) -> Family:
        workers, requests = self._open, np.arange(len(self.state.waiting))
        return Family.of(
            "assign",
            request=np.tile(requests, len(workers)),
            worker=np.repeat(workers, len(requests)),
        )

    @property
    def _priced(self) -> int:
        """Number of columns after the peaks."""
        return 0 if self.goals is None else len(self.goals.variables())

    @property
    def _sums_count(self) -> bool:
        """Whether loads are written by sums and counts."""
        return self.form == "reduced" and self.state.drift.ndim == 1

    def to_linear(self) -> LinearModel:
        """Write the program as arrays; the printed model lists its rows and columns."""
        state, workers = self.state, self._open
        added = self._added(workers)
        variables = self._variables(workers, added)
        groups = self._selection(workers) + self._reach(workers, added)
        if self.goals is not None:
            variables += self.goals.variables()
            groups += self.goals.rows(len(workers), self.admissions, state.lookahead)
        offset = -float((state.slowness[:, None] * state.alive).sum())
        return LinearModel.build("balance", variables, groups, offset=offset)

    def _variables(self, workers: IntArray, added: dict[str, Any]) -> list[Variables]:
        state = self.state
        requests, steps = len(state.waiting), state.alive.shape[1]
        scale = np.repeat(state.slowness[workers], steps)
        costs = {name: -(scale @ block) for name, block in added.items()}
        worth = np.tile(state.bonus, len(workers))
        assign = Variables(
            self._assign_family, costs.get("assign", 0) - worth, upper=1, integer=True
        )
        peak = Variables(
            Family.of("peak", step=np.arange(steps)),
            len(state.free),
            lower=self._floor(workers),
            upper=self._heaviest(),
            integer=True,
        )
        if not self._sums_count:
            return [assign, peak]
        free, filled = state.free[workers], self.admissions == int(state.free.sum())
        largest = prefix_sums(np.sort(state.waiting)[::-1])[np.minimum(free, requests)]
        tokens, count = Family.of("tokens", worker=workers), Family.of("count", worker=workers)
        return [
            assign,
            Variables(tokens, costs["tokens"], upper=largest, integer=True),
            Variables(count, costs["count"], free if filled else 0, free, integer=True),
            peak,
        ]

    def _selection(self, workers: IntArray) -> list[Rows]:
        """Write which requests go where, and how many."""
        state, requests = self.state, len(self.state.waiting)
        admitted = self.admissions
        each = sparse.eye_array(len(workers), format="csr")
        apiece = sparse.kron(np.ones((1, len(workers))), sparse.eye_array(requests), format="csr")
        counts = sparse.kron(each, np.ones((1, requests)), format="csr")
        all_admitted = self.form == "reduced" and admitted == requests
        family = Family.of("once", request=np.arange(requests))
        once = Rows(family, {"assign": apiece}, lower=int(all_admitted), upper=1)
        slots, admit = Family.of("slots", worker=workers), Family.of("admit")
        if not self._sums_count:
            all_of_them = {"assign": np.ones((1, requests * len(workers)))}
            return [
                once,
                Rows(slots, {"assign": counts}, upper=state.free[workers]),
                Rows(admit, all_of_them, admitted, admitted),
            ]
        sums = sparse.kron(each, state.waiting[None, :], format="csr")
        total = Family.of("sum", worker=workers)
        return [
            once,
            Rows(slots, {"assign": counts, "count": -each}, 0, 0),
            Rows(admit, {"count": np.ones((1, len(workers)))}, admitted, admitted),
            Rows(total, {"assign": sums, "tokens": -each}, 0, 0),
        ]

    def _reach(self, workers: IntArray, added: dict[str, Any]) -> list[Rows]:
        """Write that peaks are above loads, and loads within memory."""
        state, steps = self.state, self.state.alive.shape[1]
        alive, weight = state.alive[workers], state.slowness[workers]
        each, step = np.repeat(workers, steps), np.tile(np.arange(steps), len(workers))
        scale = sparse.diags_array(np.repeat(weight, steps).astype(np.float64))
        blocks = {name: -(scale @ block) for name, block in added.items()}
        blocks["peak"] = sparse.kron(np.ones((len(workers), 1)), sparse.eye_array(steps))
        loads = (weight[:, None] * alive).reshape(-1)
        groups = [Rows(Family.of("reach", worker=each, step=step), blocks, lower=loads)]
        if state.memory is not None:
            left = (state.memory[workers][:, None] - alive).reshape(-1)
            groups.append(Rows(Family.of("memory", worker=each, step=step), added, upper=left))
        return groups

    def _added(self, workers: IntArray) -> dict[str, Any]:
        """Write what is admitted to each worker at each step, in tokens, as blocks of columns."""
        state, each = self.state, sparse.eye_array(len(workers), format="csr")
        if not self._sums_count:
            return {"assign": sparse.kron(each, state.tokens.T, format="csr")}
        steps = state.alive.shape[1]
        return {
            "tokens": sparse.kron(each, np.ones((steps, 1)), format="csr"),
            "count": sparse.kron(each, state.growth[:, None], format="csr"),
        }

    def _floor(self, workers: IntArray) -> IntArray:
        """Find the largest load of the workers that have no columns, at each step."""
        others = np.setdiff1d(np.arange(len(self.state.free)), workers)
        loads = self.state.slowness[others, None] * self.state.alive[others]
        return np.asarray(loads.max(axis=0, initial=0))

    def _heaviest(self) -> IntArray:
        """Bound the load that any worker may reach at each step."""
        tokens = prefix_sums(np.sort(self.state.tokens.T)[:, ::-1])
        most = tokens.T[np.minimum(self.state.free, len(self.state.waiting))]
        loads = self.state.slowness[:, None] * (self.state.alive + most)
        return np.asarray(loads.max(axis=0))

    def loads(self, worker: npt.ArrayLike) -> IntArray:
        """Return the loads that an assignment leads to, weighted by slowness, shape (G, H + 1)."""
        chosen = self._chosen(worker)
        loads = self.state.alive.copy()
        placed = np.flatnonzero(chosen != WAITING)
        np.add.at(loads, chosen[placed], self.state.tokens[placed])
        return loads * self.state.slowness[:, None]

    def cost(self, worker: npt.ArrayLike) -> int:
        """Return imbalance less bonus plus the price of the largest shortfall, exactly.

        The argument is the worker of each waiting request, -1 for those that stay, shape (R,).
        """
        chosen, loads = self._chosen(worker), self.loads(worker)
        bonus = self.state.bonus[chosen != WAITING].sum()
        price = 0 if self.goals is None else self.goals.price * self.goals.shortfall(chosen)
        return int(len(loads) * loads.max(axis=0).sum() - loads.sum() - bonus) + price

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into an assignment; ModelError if it is none."""
        family, workers = self._assign_family, self._open
        sums = 2 * len(workers) if self._sums_count else 0
        point = as_point(values, len(family) + sums + self.state.alive.shape[1] + self._priced)
        taken = whole_numbers(point[: len(family)], family)
        taken = taken.reshape(len(workers), len(self.state.waiting))
        twice = (taken.sum(axis=0) > 1) | (taken < 0).any(axis=0)
        if twice.any():
            request = int(np.argmax(twice))
            raise ModelError(f"the point assigns request {request} to more than one worker")
        chosen = np.full(len(self.state.waiting), WAITING)
        rows, requests = np.nonzero(taken)
        chosen[requests] = workers[rows]
        return chosen

    def write_point(self, worker: npt.ArrayLike, /) -> FloatArray:
        """Turn an assignment into a point of the linear model, for instance as a start."""
        chosen, workers = self._chosen(worker), self._open
        taken = (chosen == workers[:, None]).astype(np.float64)
        missing = (chosen != WAITING) & ~taken.any(axis=0)
        if missing.any():
            request = int(np.argmax(missing))
            raise ModelError(
                f"request {request} goes to worker {chosen[request]}, which has no free slot"
            )
        parts = [taken.reshape(-1)]
        if self._sums_count:
            parts += [taken @ self.state.waiting, taken.sum(axis=1)]
        peaks = np.maximum(self.loads(chosen).max(axis=0), self._floor(workers))
        parts.append(peaks.astype(np.float64))
        if self.goals is not None and self._priced:
            parts.append(np.array([float(self.goals.shortfall(chosen))]))
        return np.concatenate(parts)

    def _chosen(self, worker: npt.ArrayLike) -> IntArray:
        chosen = np.asarray(worker, dtype=np.int64)
        if chosen.shape != self.state.waiting.shape:
            raise ModelError(
                f"the assignment has shape {chosen.shape}, but {len(self.state.waiting)} requests "
                "are waiting"
            )
        outside = (chosen < WAITING) | (chosen >= len(self.state.free))
        if outside.any():
            request = int(np.argmax(outside))
            raise ModelError(
                f"request {request} goes to worker {chosen[request]}, but workers are numbered "
                f"from 0 to {len(self.state.free) - 1}"
            )
        return chosen
