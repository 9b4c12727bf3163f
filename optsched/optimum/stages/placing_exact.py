"""Stages that prove an optimum: sizes on equal workers, and programs of the starts they keep.

A start whose regret exceeds the distance from the bound to the best schedule, less one, is in no
better schedule. If the program of what is left has no answer, the best schedule is optimal.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import proven
from optsched.bounds.configurations import charges_of_starts, configuration_bound
from optsched.bounds.one_worker import Bound
from optsched.errors import OptschedError
from optsched.search.exact.parts import MOST, solve_parts

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.optimum.state import State
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers

_SHARE = 0.1  # of the time left, for sizes from one beginning
_BEGINNINGS = (1.0, 0.4, 0.2)  # shares of the prices of scarce memory
_PHASES, _ITERATIONS = 8, 800
_PARTS = 0.8  # of the time left


def price_sizes(state: State) -> None:
    """Raise the bound where large requests leave memory of equal workers empty."""
    if state.finished or state.left <= 0:
        return
    before, best = state.lowest, None
    for begin in _BEGINNINGS:
        try:
            found = configuration_bound(
                state.instance,
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


def choose_parts(state: State) -> None:
    """Close the interval of few requests on equal workers: who shares a worker, in which order."""
    # What it needs grows with the number of subsets; where time runs out the program comes next.
    if state.finished or state.left <= 0 or state.sizes is None or state.best is None:
        return
    end = state.elapsed + _PARTS * state.left
    found = solve_parts(
        state.best,
        state.sizes,
        stop=lambda: state.finished or state.elapsed >= end,
        on_progress=lambda lower, cost: state.report("parts", cost, lower),
    )
    state.offer(found.schedule)
    state.raise_bound(Bound(float(found.lower), "branch and bound", found.seconds))
    if found.stopped == "optimal":
        state.status = "optimal"
    state.note(
        f"parts: {found.stopped}, {state.cost:,.10g}, bound {proven(state.lowest, digits=10)}, "
        f"{found.ordered:,} put in order"
    )


def has_few_parts(state: State) -> bool:
    """Whether all subsets of the requests can be tabulated."""
    return len(state.instance) <= MOST and state.instance.deadlines is None


def kept_by_sizes(state: State, latest: IntArray) -> tuple[IntArray, ...] | None:
    """Return the starts that better schedules may have by the sizes known; None without sizes."""
    if state.sizes is None or state.best is None:
        return None
    better = _kept_by_sizes(state.instance, state.workers, state.sizes, state.cost - 1)
    return tuple(starts[starts <= last] for starts, last in zip(better, latest, strict=True))


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
