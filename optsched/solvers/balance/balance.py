r"""BF-IO's step program solved: by search, by the certified deficit search, or by a solver.

**Bound.** A search proves nothing. Two bounds hold for every assignment. At step :math:`k + h` no
peak is below the largest load :math:`m_h` of the workers without free slots and of the loads
already there, and worker :math:`g` can at most be filled to :math:`u_g(h)` with the largest
requests, so that the imbalance is at least :math:`\sum_g \max(0, m_h - u_g(h))`. The linear
relaxation of the reduced form gives another; it is evaluated from the prices of its rows alone
(`dual_bound`) and rounded to whole tokens.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched.errors import SolverError, nearest
from optsched.solution import Solution, Stopped

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.models.cluster.balance import BalanceProgram
    from optsched.models.cluster.balance_state import BalanceState

BalanceMethod = Literal["auto", "swap", "greedy", "deficit", "highs", "cp-sat"]
BALANCE_METHODS: tuple[BalanceMethod, ...] = (
    "auto",
    "swap",
    "greedy",
    "deficit",
    "highs",
    "cp-sat",
)

_ROUNDS = 1_000  # the search ends long before
_WORTHWHILE = 0.02  # seconds below which no solver is started
_WAITING = -1


@dataclass(frozen=True, eq=False, repr=False)
class Assignment:
    """Where each request goes, and what is proven about it.

    Attributes
    ----------
    worker
        Worker of each waiting request, -1 for those that stay waiting, shape (R,).
    value
        Imbalance accumulated over the window, less the bonus of those admitted; exact.
    bound
        No assignment of as many requests has a lower value.
    seconds
        Wall time.
    method
        The method that found it.
    status
        Why that ended.

    Examples
    --------
    >>> from optsched import BalanceState, balance
    >>> state = BalanceState(alive=[[9, 10], [4, 0]], free=[0, 1], waiting=[3, 7])
    >>> assignment = balance(state)
    >>> assignment.worker, assignment.value, assignment.bound, assignment.proven_optimal
    (array([-1,  1]), 4, 4, True)
    """

    worker: IntArray
    value: int
    bound: int
    seconds: float
    method: str
    status: Stopped

    def __post_init__(self) -> None:
        frozen = np.array(self.worker, dtype=np.int64)
        frozen.flags.writeable = False
        object.__setattr__(self, "worker", frozen)

    def __repr__(self) -> str:
        return (
            f"<Assignment of {self.admitted} requests by {self.method}: value {self.value:,}, "
            f"bound {self.bound:,}, {self.status}>"
        )

    @property
    def admitted(self) -> int:
        """Number of requests admitted."""
        return int((self.worker != _WAITING).sum())

    @property
    def proven_optimal(self) -> bool:
        """Whether the bound leaves no room for a better assignment."""
        return self.bound >= self.value

    @property
    def gap(self) -> float:
        """Distance of value and bound as a share of the value."""
        room = self.value - self.bound
        return room / abs(self.value) if self.value else math.inf if room else 0.0


def balance(
    state: BalanceState,
    lookahead: int | None = None,
    method: BalanceMethod = "auto",
    budget: float | None = None,
    *,
    threads: int = 1,
    seed: int = 0,
) -> Assignment:
    """Assign waiting requests to workers with the least imbalance over a window (BF-IO, IO).

    Exactly min(waiting, free slots) are admitted. Where memory is limited it may be fewer: as many
    of the smallest as find room, each put where most is left.

    Parameters
    ----------
    state
        The step.
    lookahead
        Steps to look ahead; None takes all that are predicted.
    method
        "swap" (local search) and "greedy" take microseconds; "deficit" is exact with a certificate
        on nearly all steps, without lookahead and on equal workers; "highs" and "cp-sat" solve the
        reduced program, starting from swap. "auto" begins with deficit where it can and with swap
        elsewhere, and goes on to a proof by CP-SAT if the budget allows.
    budget
        Seconds after which the best so far is given; None waits for the end. Searches compute a
        bound by linear programming only within the budget.
    threads, seed
        For "highs" and "cp-sat".

    Returns
    -------
    Assignment
        The best that was found, with a bound that is proven.

    Raises
    ------
    SolverError
        If the method is unknown or cannot take the state, or an option is invalid.
    InstanceError
        If the prediction is shorter than the lookahead.

    Examples
    --------
    >>> from optsched import BalanceState, balance
    >>> state = BalanceState(alive=[[30], [22], [13]], free=[0, 1, 2], waiting=[5, 8, 8, 11])
    >>> balance(state, method="deficit")
    <Assignment of 3 requests by deficit: value 1, bound 1, optimal>
    >>> balance(state, lookahead=1)
    Traceback (most recent call last):
        ...
    optsched.errors.InstanceError: lookahead is 1 steps, but the prediction reaches 0; predict
    further or look less far ahead
    """
    from optsched.models.cluster.balance import BalanceProgram

    began = time.perf_counter()
    if method not in BALANCE_METHODS:
        raise SolverError(f"unknown method {method!r}: {nearest(str(method), BALANCE_METHODS)}")
    if budget is not None and not budget > 0:
        raise SolverError(
            f"budget is {budget!r}, but must be a positive number of seconds (None for no limit)"
        )
    state = state if lookahead is None else state.window(lookahead)
    obstacle = _not_for_deficit(state)
    if method == "deficit" and obstacle:
        raise SolverError(f"method 'deficit' cannot take {obstacle}; use 'auto' or 'cp-sat'")
    by_deficit = method == "deficit" or (method == "auto" and not obstacle)
    if by_deficit:
        worker, bound = _deficit(state)
        program = BalanceProgram(state)
    else:
        worker = _search(state, 0 if method == "greedy" else _ROUNDS)
        program = BalanceProgram(state, admitted=int((worker != _WAITING).sum()))
        bound = _filled(program)
    value = program.cost(worker)
    name = "deficit" if by_deficit else "greedy" if method == "greedy" else "swap"
    status = Stopped.OPTIMAL if bound >= value else Stopped.UNKNOWN

    def left() -> float | None:
        return None if budget is None else budget - (time.perf_counter() - began)

    if status is not Stopped.OPTIMAL and _worthwhile(left()):
        if method in ("swap", "greedy"):
            bound = max(bound, _relaxed(program, left()))
        elif method != "deficit":
            solver = "highs" if method == "highs" else "cp-sat"
            solution = _solve(program, solver, worker, left(), threads, seed)
            name, status = solver, solution.stopped
            if solution.values is not None:
                worker = program.read(solution.values)
                value = program.cost(worker)
            if solution.bound is not None:
                bound = max(bound, round(solution.bound))
    elif method in ("auto", "highs", "cp-sat") and status is not Stopped.OPTIMAL:
        status = Stopped.TIME_LIMIT
    if bound >= value:
        status = Stopped.OPTIMAL
    return Assignment(worker, value, bound, time.perf_counter() - began, name, status)


def _worthwhile(left: float | None) -> bool:
    return left is None or left >= _WORTHWHILE


def _not_for_deficit(state: BalanceState) -> str:
    """Say what of a state the deficit search does not know."""
    if state.lookahead:
        return f"a lookahead of {state.lookahead} steps"
    if (state.slowness != state.slowness[0]).any():
        return "workers of different speed"
    if state.memory is not None:
        return "limited memory"
    return "a bonus" if state.bonus.any() else ""


def _deficit(state: BalanceState) -> tuple[IntArray, int]:
    from optsched.solvers.balance.kernels import search_deficit

    worker, _, bound = search_deficit(*map(np.array, (state.alive, state.free, state.waiting)))
    return worker, int(bound) * int(state.slowness[0])


def _search(state: BalanceState, rounds: int) -> IntArray:
    from optsched.solvers.balance.kernels import UNLIMITED, assign
    from optsched.solvers.balance.profile_kernels import assign_profiles

    memory = np.full(len(state.free), UNLIMITED) if state.memory is None else state.memory
    each = state.drift.ndim == 2
    requests = (state.tokens,) if each else (state.waiting, state.growth)
    arrays = (state.alive, state.free, *requests, state.slowness, state.bonus, memory)
    # Kernels are compiled once more for read-only arrays, hence the copies.
    kernel: Any = assign_profiles if each else assign
    return np.asarray(kernel(*map(np.array, arrays), rounds))


def _filled(program: BalanceProgram) -> int:
    """Bound the value from below, if every worker with free slots took the largest requests."""
    state = program.state
    largest = np.zeros((len(state.waiting) + 1, state.alive.shape[1]), dtype=np.int64)
    np.cumsum(np.sort(state.tokens, axis=0)[::-1], axis=0, out=largest[1:])
    most = largest[np.minimum(state.free, program.admissions)]
    before = state.slowness[:, None] * state.alive
    filled = state.slowness[:, None] * (state.alive + most)
    idle = np.maximum(before.max(axis=0) - filled, 0).sum()
    bonus = np.sort(state.bonus)[::-1][: program.admissions].sum()
    return int(idle - bonus)


def _relaxed(program: BalanceProgram, time_limit: float | None) -> int:
    """Bound the value from below by the linear relaxation of the reduced form."""
    from optsched.solvers.backends.driver import solve_linear
    from optsched.solvers.backends.highs import dual_bound

    relaxation = program.to_linear().relax()
    solution = solve_linear(relaxation, "highs", time_limit=time_limit)
    if solution.duals is None:
        return _filled(program)
    bound = dual_bound(relaxation, solution.duals)
    # Sums of so many floating-point products are off by far less than this.
    rounding = 1e-9 * (abs(relaxation.offset) + abs(bound)) + 1e-6
    return math.ceil(bound - rounding) if math.isfinite(bound) else _filled(program)


def _solve(
    program: BalanceProgram,
    solver: str,
    start: IntArray,
    time_limit: float | None,
    threads: int,
    seed: int,
) -> Solution:
    from optsched.solvers.backends.driver import solve_linear

    return solve_linear(
        program.to_linear(),
        solver,
        start=program.write_point(start),
        time_limit=time_limit,
        threads=threads,
        seed=seed,
    )
