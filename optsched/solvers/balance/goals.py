"""An assignment that keeps to a step's goals, by swap: a start for solvers, or quick on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.models.cluster.balance_state import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.models.cluster.balance import BalanceProgram
    from optsched.models.cluster.goals import StepGoals


def search_with_goals(
    program: BalanceProgram, search: Callable[[IntArray], IntArray]
) -> IntArray | None:
    """Search with requests forced in that goals require; None if deadlines find no room."""
    goals, state = program.goals, program.state
    assert goals is not None
    due = _due(goals, program.admissions, state.lookahead)
    served = _served(goals, due, program.admissions)
    # More than all that another request in its slot can save.
    worth = state.bonus.sum() + state.tokens.max() * state.alive.shape[1] * len(state.free) * 2
    best: IntArray | None = None
    for requests in (due, served) if len(served) > len(due) else (due,):
        bonus = state.bonus.copy()
        bonus[requests] += int(worth) * int(state.slowness.max())
        chosen = search(bonus)
        kept = int((chosen != WAITING).sum()) == program.admissions
        if not kept or not goals.admits(chosen, state.lookahead):
            continue
        if best is None or program.cost(chosen) < program.cost(best):
            best = chosen
    return best


def _due(goals: StepGoals, admitted: int, lookahead: int) -> IntArray:
    """Return the requests due first, as many as deadlines require now."""
    if goals.latest is None:
        return np.zeros(0, dtype=np.int64)
    number = int(goals.required(admitted, lookahead).max())
    order = np.argsort(goals.latest, kind="stable")
    return np.asarray(order[goals.latest[order] >= 0][:number])


def _served(goals: StepGoals, due: IntArray, admitted: int) -> IntArray:
    """Add the oldest requests of tenants, so that the largest shortfall becomes the least."""
    if goals.tenant is None or goals.short is None:
        return due
    tenants = len(goals.short)
    served = np.bincount(goals.tenant[due], minlength=tenants)
    others = np.setdiff1d(np.arange(len(goals.tenant)), due)
    there = np.bincount(goals.tenant[others], minlength=tenants)
    low, high = 0, int(goals.short.max(initial=0))
    while low < high:  # the least shortfall that the admissions suffice for
        level = (low + high) // 2
        if _missing(goals.short - served, there, level).sum() <= admitted - len(due):
            high = level
        else:
            low = level + 1
    wanted = _missing(goals.short - served, there, high)
    oldest = [others[goals.tenant[others] == t][: wanted[t]] for t in range(tenants)]
    return np.concatenate([due, *oldest])


def _missing(short: IntArray, there: IntArray, level: int) -> IntArray:
    """Return how many of each tenant are to be admitted so that none is further short."""
    return np.minimum(there, np.maximum(short - level, 0))
