"""Stages that prove a joint optimum: sizes on equal workers, and programs of the starts they keep.

A start whose regret at a bound exceeds the distance from the bound to the best schedule, less one,
is in no better schedule. What is left of few requests is a small program: it is solved by events,
and where it has no answer, the best schedule is optimal.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import proven
from optsched.errors import InfeasibleError, OptschedError
from optsched.instance import Instance
from optsched.models.joint import JointEvents, JointProgram, all_starts, latest_joint_starts
from optsched.optimum.stages.exact import solver_options
from optsched.optimum.state import TOO_LARGE
from optsched.schedule import Schedule
from optsched.solvers.backends.driver import solve_events, solve_linear
from optsched.solvers.bounds.bound import Bound
from optsched.solvers.bounds.configurations import charges_of_starts, configuration_bound
from optsched.solvers.bounds.lagrangian import PricedStarts
from optsched.solvers.exact.parts import MOST, solve_parts
from optsched.workers import Workers

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.optimum.joint import JointState
    from optsched.solution import Solution

_SHARE = 0.1  # of the time left, for sizes from one beginning
_BEGINNINGS = (1.0, 0.4, 0.2)  # shares of the prices of scarce memory
_PHASES, _ITERATIONS = 8, 800
_PARTS = 0.8  # of the time left
_MAX_EVENTS = 60  # requests; the program grows with the square of their number


@cache
def _load_sizes(_: str) -> None:
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=10, arrivals=[0, 1, 1, 2])
    found = configuration_bound(instance, workers=Workers([10, 10]), phases=1, iterations=1)
    _kept_by_sizes(instance, Workers([10, 10]), found.certificate, 40.0)


@cache
def _load_parts(_: str) -> None:
    instance, workers = Instance([4] * 4, [1, 1, 6, 6], memory=10), Workers([10, 10])
    start = Schedule(instance, [0, 6, 1, 12], workers=workers, placement=[0] * 4)
    found = configuration_bound(instance, workers=workers, phases=1, iterations=1)
    solve_parts(start, found.certificate)


def price_sizes(state: JointState) -> None:
    """Raise the bound where large requests leave memory of equal workers empty."""
    if state.finished or state.left <= 0:
        return
    state.load(_load_sizes, "sizes")
    before, best = state.lowest, None
    for begin in _BEGINNINGS:
        try:
            found = configuration_bound(
                state.requests,
                workers=state.workers,
                share=begin,
                phases=_PHASES,
                iterations=_ITERATIONS,
                time_limit=_SHARE * state.left,
                stop=state.ended,
            )
        except OptschedError as error:
            state.note(f"configurations: left out, {error}")
            return
        if best is None or found.value > best.value:
            best = found
        if state.ended.is_set() or state.left <= 0:
            break
    assert best is not None
    state.sizes = best.certificate
    state.raise_bound(best)
    gained = state.lowest - before
    state.note(f"configurations: bound {proven(state.lowest, digits=10)}, gained {gained:,.10g}")


def choose_parts(state: JointState) -> None:
    """Close the interval of few requests on equal workers: who shares a worker, and in which order.

    What it needs grows with the number of subsets; where time runs out the program comes next.
    """
    if state.finished or state.left <= 0 or state.sizes is None or state.joint is None:
        return
    state.load(_load_parts, "parts")
    end = state.elapsed + _PARTS * state.left
    found = solve_parts(
        state.joint,
        state.sizes,
        stop=lambda: state.finished or state.elapsed >= end,
        on_progress=lambda lower, cost: state.report("parts", cost, lower),
    )
    state.offer_joint(found.joint)
    state.raise_bound(Bound(float(found.lower), "branch and bound", found.seconds))
    if found.stopped == "optimal":
        state.status = "optimal"
    state.note(
        f"parts: {found.stopped}, {state.cost:,.10g}, bound {proven(state.lowest, digits=10)}, "
        f"{found.ordered:,} put in order"
    )


def has_few_parts(state: JointState) -> bool:
    """Whether all subsets of the requests can be tabulated."""
    return len(state.instance) <= MOST and state.instance.deadlines is None


def solve_joint_program(state: JointState) -> None:
    """Hand the starts that a better schedule may have to a solver."""
    if state.finished or state.left <= 0:
        return
    instance, latest = state.requests, latest_starts(state)
    solution: Solution | None
    if state.method == "highs" or (state.method == "auto" and not state.whole_weights):
        solution = _solve_steps(state, latest)
    elif len(instance) > _MAX_EVENTS:
        state.status = TOO_LARGE
        return
    else:
        solution = _solve_events(state, latest)
    if solution is None:
        state.raise_bound(Bound(state.cost, "configuration", state.elapsed))
        state.note(f"configurations: no better start is left, {state.cost:,.10g}")
        return
    if solution.has_answer:
        state.offer_joint(solution.answer)
    if solution.status == "infeasible":
        if state.best is None:
            raise InfeasibleError(state.infeasible())
        state.raise_bound(Bound(state.cost, solution.solver, solution.seconds))
    elif solution.bound is not None:
        # Starts that were left out are in no schedule that is better than the best before.
        value = min(solution.bound, state.cost)
        state.raise_bound(Bound(value, solution.solver, solution.seconds))
    state.status = str(solution.status)
    if solution.status == "interrupted":
        state.interrupt()
    state.note(
        f"{solution.solver}: {solution.status}, {state.cost:,.10g}, bound "
        f"{proven(state.lowest, digits=10)}"
    )


def latest_starts(state: JointState) -> IntArray:
    """Bound the start of every request in some optimal joint schedule."""
    latest = latest_joint_starts(state.requests, state.workers)
    if state.prices is not None and state.best is not None:
        latest = np.minimum(latest, PricedStarts(state.instance, state.prices).latest(state.cost))
    elif state.objective == "makespan" and state.best is not None:
        latest = np.minimum(latest, int(state.cost) - state.requests.outputs)
    return latest


def _solve_steps(state: JointState, latest: IntArray) -> Solution:
    horizon = int((latest + state.requests.outputs).max())
    program = JointProgram(state.requests, state.workers, horizon, state.objective)
    if program.nonzeros > state.tuning.nonzeros:
        raise OptschedError(
            f"the time-indexed program would have {program.nonzeros:,} nonzeros (at most "
            f"{state.tuning.nonzeros:,}); use the method search, or fewer requests"
        )
    start = None if state.joint is None else program.write_point(state.joint)
    found = solve_linear(
        program.to_linear(),
        "highs",
        solver_options(state),
        start=start,
        stop=state.ended,
        in_child=True,
    )
    return found.with_answer(program.read)


def _solve_events(state: JointState, latest: IntArray) -> Solution | None:
    """Solve by events; None where some request has no start that a better schedule may have."""
    instance = state.requests
    kept = list(all_starts(instance, latest))
    start = state.joint
    if state.sizes is not None and state.joint is not None:
        better = _kept_by_sizes(instance, state.workers, state.sizes, state.cost - 1)
        kept = [np.intersect1d(mine, its) for mine, its in zip(kept, better, strict=True)]
        if not all(map(len, kept)):
            return None
        start = None  # it has a start that is not kept
    program = JointEvents(instance, state.workers, state.objective, tuple(kept))
    found = solve_events(
        program,
        options=solver_options(state),
        start=None if start is None else program.write_point(start),
        bound=state.lowest,
        stop=state.ended,
        in_child=True,
    )
    return found.with_answer(program.read)


def _kept_by_sizes(
    instance: Instance, workers: Workers, certificate: ConfigurationCertificate, cost: float
) -> list[IntArray]:
    """Return the starts of each request that schedules of at most a cost may have."""
    costs, group, unit = charges_of_starts(certificate, instance, workers)
    room = int((Fraction(cost) - certificate.value) * unit)
    kept = []
    for request, number in enumerate(group.tolist()):
        arrival, most = int(instance.arrivals[request]), int(costs[number].min()) + room
        listed = np.flatnonzero(costs[number, arrival:] <= most) + arrival
        # After the last price a start costs its latency.
        last = most // unit - int(instance.outputs[request]) + arrival
        kept.append(np.concatenate([listed, np.arange(costs.shape[1], last + 1)]))
    return kept
