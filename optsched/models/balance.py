"""The cluster balance program of BF-IO, and its state."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy

from optsched._internal.arguments import checked
from optsched._internal.arrays import BoolArray, FloatArray, IntArray, prefix_sums
from optsched._internal.views import draw
from optsched.errors import InstanceError, ModelError, require_known
from optsched.models.linear import (
    Family,
    LinearModel,
    Rows,
    Variables,
    as_point,
    read_only,
    whole_numbers,
)
from optsched.models.program import Program

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched.models.linear import Blocks


WAITING = -1  # in place of a worker
_LARGEST = 2**40  # tokens of a worker times its slowness
_SUM = 2**53  # beyond it an imbalance is no exact floating-point number


@dataclass(frozen=True, eq=False, repr=False)
class BalanceState:
    r"""Workers and waiting requests at a step :math:`k`, with what is predicted of the next steps.

    Worker :math:`g` holds :math:`P_g(h)` tokens of requests admitted before that are still alive at
    step :math:`k + h`, and has free slots. A waiting request that is admitted now holds
    :math:`w_i(h) = s_i + \sum_{j=1}^{h} \delta_{ij}` tokens at step :math:`k + h`; one that is
    known to end inside the window falls to 0 by a negative drift.

    Parameters
    ----------
    alive
        Tokens :math:`P_g(h)`, shape (G, H + 1) for a prediction over H further steps.
    free
        Free slots of each worker, shape (G,).
    waiting
        Tokens :math:`s_i` of the waiting requests, the oldest first, shape (R,).
    drift
        Tokens that a new request gains per step: a number, one per step, shape (H,), or one per
        request and step, shape (R, H).
    slowness
        Whole number that each worker takes per token, relative to the others, shape (G,); None
        means that all are equally fast.
    memory
        Tokens that each worker may hold at any step of the window, shape (G,); None for no limit.
    bonus
        Value of each request's admission in the objective, shape (R,); None: zero.

    Examples
    --------
    >>> from optsched.models import BalanceState
    >>> state = BalanceState(alive=[[9, 10], [4, 0]], free=[0, 1], waiting=[3, 7])
    >>> state
    <BalanceState: 2 workers, 1 free slot, 2 waiting, lookahead 1>
    >>> state.tokens
    array([[3, 4],
           [7, 8]])
    """

    alive: IntArray
    free: IntArray
    waiting: IntArray
    drift: IntArray
    slowness: IntArray
    memory: IntArray | None
    bonus: IntArray

    def __init__(
        self,
        alive: npt.ArrayLike,
        free: npt.ArrayLike,
        waiting: npt.ArrayLike,
        drift: npt.ArrayLike = 1,
        slowness: npt.ArrayLike | None = None,
        memory: npt.ArrayLike | None = None,
        bonus: npt.ArrayLike | None = None,
    ) -> None:
        loads = _whole("alive", alive)
        if loads.ndim != 2 or loads.shape[1] == 0:
            raise InstanceError(
                f"alive has shape {loads.shape}, but needs one row per worker and one column per "
                "step from now on"
            )
        workers, steps = loads.shape
        if workers == 0:
            raise InstanceError("there are no workers; pass at least one row of loads")
        sizes = whole_row("waiting", waiting, None)
        count = len(sizes)
        fields = {
            "alive": loads,
            "free": whole_row("free", free, workers),
            "waiting": sizes,
            "drift": _drifts(drift, count, steps - 1),
            "slowness": whole_row("slowness", 1 if slowness is None else slowness, workers),
            "memory": None if memory is None else whole_row("memory", memory, workers),
            "bonus": whole_row("bonus", 0 if bonus is None else bonus, count),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, None if value is None else read_only(value))
        self._check()

    def _check(self) -> None:
        for owner, name, least in (
            ("worker", "alive", 0),
            ("worker", "free", 0),
            ("worker", "slowness", 1),
            ("request", "waiting", 0),
            ("request", "bonus", 0),
        ):
            values = getattr(self, name)
            if (values < least).any():
                at = _first(values < least)[0]
                raise InstanceError(
                    f"{owner} {at}: {name} is {values[at].min()}, but must be at least {least}"
                )
        tokens = self.tokens
        if (tokens < 0).any():
            request, step = _first(tokens < 0)
            raise InstanceError(
                f"request {request}: its drift leaves {tokens[request, step]} tokens {step} "
                f"step{'s' * (step > 1)} ahead, but no load can be below 0; let it drift by less"
            )
        self._check_memory(tokens)
        most = self.alive.max(axis=1) + self.free * int(tokens.max(initial=0))
        heaviest = int((most * self.slowness).max())
        total = len(self.free) * self.alive.shape[1] * heaviest + int(self.bonus.sum())
        if heaviest >= _LARGEST or total >= _SUM:
            raise InstanceError(
                f"a worker's load may reach {heaviest:,} tokens times slowness, which is too much "
                "for exact arithmetic over the window; use a larger unit of tokens or slowness"
            )

    def _check_memory(self, tokens: IntArray) -> None:
        if self.memory is None:
            return
        over = self.alive > self.memory[:, None]
        if over.any():
            worker, step = _first(over)
            raise InstanceError(
                f"worker {worker}: its requests hold {self.alive[worker, step]} tokens at step "
                f"k + {step}, but its memory holds {self.memory[worker]}; raise the memory"
            )
        peaks, largest = tokens.max(axis=1), self.memory.max()
        if (peaks > largest).any():
            request = int(np.argmax(peaks > largest))
            raise InstanceError(
                f"request {request}: it reaches {peaks[request]} tokens inside the window, but no "
                f"worker's memory holds more than {largest}; leave it out or raise the memory"
            )

    @classmethod
    def from_requests(
        cls,
        slots: npt.ArrayLike,
        worker: npt.ArrayLike,
        tokens: npt.ArrayLike,
        remaining: npt.ArrayLike,
        waiting: npt.ArrayLike,
        lookahead: int = 0,
        drift: npt.ArrayLike = 1,
        slowness: npt.ArrayLike | None = None,
        memory: npt.ArrayLike | None = None,
        bonus: npt.ArrayLike | None = None,
    ) -> BalanceState:
        """Make a state from a list of the active requests."""
        limits, at = whole_row("slots", slots, None), whole_row("worker", worker, None)
        held = whole_row("tokens", tokens, len(at))
        left = whole_row("remaining", remaining, len(at))
        if len(limits) == 0:
            raise InstanceError("there are no workers; pass the slots of at least one")
        if lookahead < 0:
            raise InstanceError(f"lookahead is {lookahead}, but must be at least 0 steps")
        outside = (at < 0) | (at >= len(limits))
        for what, name, values, bad, wish in (
            ("worker", "slots", limits, limits < 1, "at least 1"),
            ("active request", "worker", at, outside, f"from 0 to {len(limits) - 1}"),
            ("active request", "remaining", left, left < 1, "at least 1"),
        ):
            if bad.any():
                first = int(np.argmax(bad))
                raise InstanceError(
                    f"{what} {first}: {name} is {values[first]}, but must be {wish}"
                )
        free = limits - np.bincount(at, minlength=len(limits))
        if free.min() < 0:
            number = int(np.argmin(free))
            raise InstanceError(
                f"worker {number} runs {limits[number] - free[number]} requests, but has "
                f"{limits[number]} slots"
            )
        growth = prefix_sums(_drifts(drift, -1, lookahead))
        profile = (held[:, None] + growth) * (left[:, None] > np.arange(lookahead + 1))
        if (profile < 0).any():
            request, step = _first(profile < 0)
            raise InstanceError(
                f"active request {request}: the drift leaves {profile[request, step]} tokens "
                f"{step} steps ahead, but no load can be below 0; let it drift by less"
            )
        alive = np.zeros((len(limits), lookahead + 1), dtype=np.int64)
        np.add.at(alive, at, profile)
        return cls(alive, free, waiting, drift, slowness, memory, bonus)

    def __repr__(self) -> str:
        slots = int(self.free.sum())
        return (
            f"<BalanceState: {len(self.free)} worker{'s' * (len(self.free) != 1)}, {slots} free "
            f"slot{'s' * (slots != 1)}, {len(self.waiting)} waiting, lookahead {self.lookahead}>"
        )

    @property
    def lookahead(self) -> int:
        """Steps that the prediction reaches."""
        return int(self.alive.shape[1]) - 1

    @property
    def growth(self) -> IntArray:
        """Tokens gained by step k + h, shape (H + 1,), or (R, H + 1) where requests differ."""
        return prefix_sums(self.drift)

    @property
    def tokens(self) -> IntArray:
        """Tokens of each waiting request at step k + h if it is admitted now, shape (R, H + 1)."""
        return self.waiting[:, None] + self.growth

    def window(self, lookahead: int) -> BalanceState:
        """Return the state with a shorter prediction."""
        if not 0 <= lookahead <= self.lookahead:
            raise InstanceError(
                f"lookahead is {lookahead} steps, but the prediction reaches {self.lookahead}; "
                "predict further or look less far ahead"
            )
        if lookahead == self.lookahead:
            return self
        alive, drift = self.alive[:, : lookahead + 1], self.drift[..., :lookahead]
        return dataclasses.replace(self, alive=alive, drift=drift)


def _whole(name: str, values: npt.ArrayLike) -> IntArray:
    """Copy whole numbers of any shape, refusing everything else."""
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64)
    if array.dtype.kind not in "iuf":
        raise InstanceError(f"{name} must hold whole numbers only")
    with np.errstate(invalid="ignore"):
        good = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < _SUM)
    if not good.all():
        place = _first(~good)
        raise InstanceError(f"{name}{place} is {array[tuple(place)]}, but must be a whole number")
    return array.astype(np.int64)


def whole_row(name: str, values: npt.ArrayLike, length: int | None) -> IntArray:
    """Copy a row of whole numbers, one for all where a number is given and the length is known."""
    array = _whole(name, values)
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1 or (length is not None and len(array) != length):
        wish = "a list of numbers" if length is None else f"{length} numbers"
        raise InstanceError(f"{name} has shape {array.shape}, but must be {wish}")
    return array


def _drifts(drift: npt.ArrayLike, requests: int, steps: int) -> IntArray:
    """Return one drift per step, or per request and step."""
    array = _whole("drift", drift)
    if array.ndim == 0:
        return np.full(steps, array)
    shapes = [(steps,), (requests, steps)] if requests >= 0 else [(steps,)]
    if array.shape not in shapes:
        raise InstanceError(
            f"drift has shape {array.shape}, but must be a number or have shape "
            f"{' or '.join(map(str, shapes))}: one per step of the prediction"
        )
    return array


def _first(bad: BoolArray) -> list[int]:
    return list(np.argwhere(bad)[0].tolist())


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
        Number :math:`U` of admissions; None means min(waiting, free slots), as in the paper. Where
        memory has no room for so many the program is infeasible.
    form
        "reduced", or "literal" as the paper prints it.

    Raises
    ------
    InstanceError, ModelError
        If the prediction does not suit the step, or that many admissions do not fit.

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
    def _sums_count(self) -> bool:
        """Whether loads are written by sums and counts."""
        return self.form == "reduced" and self.state.drift.ndim == 1

    def to_linear(self) -> LinearModel:
        """Write the program as arrays; the printed model lists its rows and columns."""
        state, workers = self.state, self._open
        added = self._added(workers)
        variables = self._variables(workers, added)
        groups = self._selection(workers) + self._reach(workers, added)
        offset = -float((state.slowness[:, None] * state.alive).sum())
        return LinearModel.build("balance", variables, groups, offset=offset)

    def _variables(self, workers: IntArray, added: Blocks) -> list[Variables]:
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
        each = scipy.sparse.eye_array(len(workers), format="csr")
        apiece = scipy.sparse.kron(
            np.ones((1, len(workers))), scipy.sparse.eye_array(requests), format="csr"
        )
        counts = scipy.sparse.kron(each, np.ones((1, requests)), format="csr")
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
        sums = scipy.sparse.kron(each, state.waiting[None, :], format="csr")
        total = Family.of("sum", worker=workers)
        return [
            once,
            Rows(slots, {"assign": counts, "count": -each}, 0, 0),
            Rows(admit, {"count": np.ones((1, len(workers)))}, admitted, admitted),
            Rows(total, {"assign": sums, "tokens": -each}, 0, 0),
        ]

    def _reach(self, workers: IntArray, added: Blocks) -> list[Rows]:
        """Write that peaks are above loads, and loads within memory."""
        state, steps = self.state, self.state.alive.shape[1]
        alive, weight = state.alive[workers], state.slowness[workers]
        each, step = np.repeat(workers, steps), np.tile(np.arange(steps), len(workers))
        scale = scipy.sparse.diags_array(np.repeat(weight, steps).astype(np.float64))
        blocks = {name: -(scale @ block) for name, block in added.items()}
        blocks["peak"] = scipy.sparse.kron(
            np.ones((len(workers), 1)), scipy.sparse.eye_array(steps)
        )
        loads = (weight[:, None] * alive).reshape(-1)
        groups = [Rows(Family.of("reach", worker=each, step=step), blocks, lower=loads)]
        if state.memory is not None:
            left = (state.memory[workers][:, None] - alive).reshape(-1)
            groups.append(Rows(Family.of("memory", worker=each, step=step), added, upper=left))
        return groups

    def _added(self, workers: IntArray) -> Blocks:
        """Write what is admitted to each worker at each step, in tokens, as blocks of columns."""
        state, each = self.state, scipy.sparse.eye_array(len(workers), format="csr")
        if not self._sums_count:
            return {"assign": scipy.sparse.kron(each, state.tokens.T, format="csr")}
        steps = state.alive.shape[1]
        return {
            "tokens": scipy.sparse.kron(each, np.ones((steps, 1)), format="csr"),
            "count": scipy.sparse.kron(each, state.growth[:, None], format="csr"),
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

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the load of each worker before anything is admitted, now and H steps ahead."""
        return draw("plot_balance", self, np.full(len(self.state.waiting), WAITING), ax)

    def cost(self, worker: npt.ArrayLike) -> int:
        """Return imbalance less bonus, exactly.

        The argument is the worker of each waiting request, -1 for those that stay, shape (R,).
        """
        chosen, loads = self._chosen(worker), self.loads(worker)
        bonus = self.state.bonus[chosen != WAITING].sum()
        return int(len(loads) * loads.max(axis=0).sum() - loads.sum() - bonus)

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into an assignment; ModelError if it is none."""
        family, workers = self._assign_family, self._open
        sums = 2 * len(workers) if self._sums_count else 0
        point = as_point(values, len(family) + sums + self.state.alive.shape[1])
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
