"""One step of BF-IO, proven optimal, against HiGHS on the program as the paper prints it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from cluster_states import simulated_states
from timing import Row, measure

from optsched import solve
from optsched.models import BalanceProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 20.0  # seconds of wall time for each state


def rows(quick: bool) -> Iterator[Row]:
    """Without lookahead a certified search decides; with it, swap, and CP-SAT for the proof."""
    if quick:
        yield from one_setting(4, 0, 1, {"slots": 8, "warm_up": 30})
        yield from one_setting(4, 4, 1, {"slots": 8, "warm_up": 30, "reveal": 12})
        return
    yield from one_setting(16, 0, 5, {})
    yield from one_setting(128, 0, 3, {})
    yield from one_setting(16, 20, 3, {})


def one_setting(workers: int, lookahead: int, count: int, setting: dict) -> Iterator[Row]:
    """Several states of a running cluster; the time is that of all of them."""
    states = list(islice(simulated_states(workers, lookahead, every=7, **setting), count))
    theirs, solutions = measure(
        lambda: [
            solve(
                BalanceProgram(state, form="literal").to_linear(), method="highs", time_limit=LIMIT
            )
            for state in states
        ],
        1,
        warm_up=False,
    )
    ours, found = measure(
        lambda: [solve(BalanceProgram(state), time_limit=None) for state in states], 3
    )
    for assignment, solution in zip(found, solutions, strict=True):
        assert assignment.proven_optimal
        if solution.proven_optimal:
            assert abs(assignment.objective - solution.objective) < 0.5
    proven = sum(solution.proven_optimal for solution in solutions)
    agreement = "same optimum" if proven == count else f"proves {proven} of {count}"
    size = f"{count} steps, G = {workers}, R = {len(states[0].waiting)}, H = {lookahead}"
    literal, stopped = "HiGHS on literal (IO)", proven < count
    yield Row("route, proven", size, literal, ours, theirs, agreement, stopped)
    if lookahead:
        ours, quickly = measure(
            lambda: [
                solve(BalanceProgram(state), method="swap", time_limit=1e-3) for state in states
            ],
            3,
        )
        best = sum(assignment.objective for assignment in found)
        above = sum(assignment.objective for assignment in quickly) / best - 1
        assert above >= 0
        text = f"swap, {above:.2%} above the optimum"
        yield Row("route, not proven", size, literal, ours, theirs, text, stopped)
