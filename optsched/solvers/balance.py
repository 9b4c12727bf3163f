r"""Methods that assign requests to workers.

At step :math:`k + h` no peak is below the largest load :math:`m_h` that is there already, and
worker :math:`g` can at most be filled to :math:`u_g(h)`, so that the imbalance is at least
:math:`\sum_g \max(0, m_h - u_g(h))`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import IntArray, frozen
from optsched._internal.aside import stopwatch
from optsched._internal.views import draw
from optsched.errors import SolverError, require_known
from optsched.models.balance import WAITING, BalanceProgram, BalanceState
from optsched.models.program import Solution, Stopped
from optsched.solvers.backends import pyomo
from optsched.solvers.backends.base import OnProgress, Options
from optsched.solvers.backends.driver import PLAIN, capabilities, solve_linear
from optsched.solvers.backends.highs import dual_bound
from optsched.solvers.backends.words import INFEASIBLE
from optsched.solvers.balance_kernels import UNLIMITED, assign, assign_profiles

if TYPE_CHECKING:
    import threading

    from matplotlib.axes import Axes


_SEARCHES = ("swap", "greedy")
BALANCE_METHODS = ("auto", *_SEARCHES, "highs", "cp-sat")

_ROUNDS = 1_000  # the search ends long before
_LARGE = 2**31  # tokens
_WORTHWHILE = 0.02  # seconds below which no solver is started


@dataclass(frozen=True, eq=False, repr=False)
class Assignment:
    """The worker of each waiting request (-1: none), its imbalance less bonus, and the method."""

    worker: IntArray
    value: int
    method: str
    program: BalanceProgram | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker", frozen(np.asarray(self.worker, dtype=np.int64)))

    def __repr__(self) -> str:
        return f"<Assignment of {self.admitted} requests by {self.method}: value {self.value:,}>"

    @property
    def admitted(self) -> int:
        """Number of requests admitted."""
        return int((self.worker != WAITING).sum())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the load of each worker: what it runs, what is admitted, and H steps ahead."""
        return draw("plot_balance", self.program, self.worker, ax)


class _Found(NamedTuple):
    """The best assignment so far, if any, what it costs, and what is proven."""

    worker: IntArray | None
    value: float
    bound: float
    method: str
    status: str = Stopped.UNKNOWN
    raw_status: str = ""

    @property
    def proven(self) -> bool:
        """Whether the bound leaves no room for a better one."""
        return self.bound >= self.value


def assign_balanced(
    program: BalanceProgram,
    method: str = "auto",
    options: Options = PLAIN,
    *,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> Solution:
    """Assign waiting requests to workers with the least imbalance over a window (BF-IO, IO)."""
    began = stopwatch()
    if method not in BALANCE_METHODS and pyomo.capabilities(method) is None:
        require_known("method", method, BALANCE_METHODS, SolverError)
    found = _first(program, method)
    limit = options.time_limit
    left = None if limit is None else limit - (stopwatch() - began)
    if not found.proven:
        by_search = method in _SEARCHES
        if left is not None and left < _WORTHWHILE:
            found = found if by_search else found._replace(status=Stopped.TIME_LIMIT)
        elif by_search:
            found = found._replace(bound=max(found.bound, _relaxed(program, left)))
        else:
            if method == "auto":
                state = program.state  # at large loads HiGHS may not end
                large = int(state.alive.max()) + int(state.waiting.max(initial=0)) >= _LARGE
                method = "cp-sat" if state.lookahead or large else "highs"
            options = replace(options, time_limit=left)
            found = _solve(program, found, method, options, on_progress, stop)
    answer = None
    if found.worker is not None:
        answer = Assignment(found.worker, int(found.value), found.method, program)
    return Solution(
        Stopped.OPTIMAL if found.proven and answer is not None else found.status,
        found.method,
        stopwatch() - began,
        objective=found.value,
        bound=found.bound,
        raw_status=found.raw_status,
        step=1.0,
        model="balance",
        answer=answer,
    )


def _first(program: BalanceProgram, method: str) -> _Found:
    """Return what the searches find at once, unless they find no room for some requests."""
    state, bound = program.state, _filled(program)
    nothing = _Found(None, math.inf, bound, method)
    if program.admissions < min(len(state.waiting), int(state.free.sum())):
        if method in _SEARCHES:
            raise SolverError(
                f"method {method!r} admits all requests that find room, not {program.admissions}; "
                "use method='cp-sat', or leave admitted out"
            )
        return nothing
    worker = _search(state, 0 if method == "greedy" else _ROUNDS)
    if (admitted := int((worker != WAITING).sum())) == program.admissions:
        by = "greedy" if method == "greedy" else "swap"
        return _Found(worker, program.cost(worker), bound, by)
    why = f"{method} found room for {admitted} of {program.admissions} requests"
    return nothing._replace(
        raw_status=f"{why}; method='cp-sat' tells whether there is room for all"
    )


def _search(state: BalanceState, rounds: int) -> IntArray:
    memory = np.full(len(state.free), UNLIMITED) if state.memory is None else state.memory
    # Kernels are compiled once more for read-only arrays, hence the copies.
    alive, free, waiting, slowness, bonus, limits = (
        np.array(each)
        for each in (state.alive, state.free, state.waiting, state.slowness, state.bonus, memory)
    )
    if state.drift.ndim == 2:
        return assign_profiles(alive, free, state.tokens, slowness, bonus, limits, rounds)
    return assign(alive, free, waiting, state.growth, slowness, bonus, limits, rounds)


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
    relaxation = program.to_linear().relax()
    solution = solve_linear(relaxation, "highs", Options(time_limit))
    if solution.duals is None:
        return _filled(program)
    bound = dual_bound(relaxation, solution.duals)
    # Sums of so many floating-point products are off by far less than this.
    rounding = 1e-9 * (abs(relaxation.offset) + abs(bound)) + 1e-6
    return math.ceil(bound - rounding) if math.isfinite(bound) else _filled(program)


def _solve(
    program: BalanceProgram,
    found: _Found,
    solver: str,
    options: Options,
    on_progress: OnProgress | None,
    stop: threading.Event | None,
) -> _Found:
    """Go on by a back end, which starts from what is known if it can."""
    worker = found.worker
    given = worker if capabilities(solver).starts else None
    solution = solve_linear(
        program.to_linear(),
        solver,
        options,
        start=None if given is None else program.write_point(given),
        on_progress=on_progress,
        stop=stop,
    )
    said, bound, value = (solution.status, solution.raw_status), found.bound, found.value
    if solution.status in INFEASIBLE:
        if worker is None:
            return _Found(None, math.inf, -math.inf, solver, *said)
        said = (Stopped.ERROR, "it denies that there is an answer, but one is known")
    if solution.bound is not None:
        bound = max(bound, math.ceil(solution.bound))
    if (
        solution.values is not None
        and program.cost(better := program.read(solution.values)) <= value
    ):
        worker, value = better, program.cost(better)
    return _Found(worker, value, bound, solver, *said)
