"""Loading of the kernels that the stages call, so that no time limit counts their compilation."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from optsched.instance import Instance
from optsched.policies import BASIC
from optsched.simulate import run
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.bound import bound
from optsched.solvers.bounds.configurations import configuration_bound
from optsched.solvers.bounds.lagrangian import weights_of
from optsched.solvers.exact.search import solve_exact
from optsched.solvers.search.delays import delay_large
from optsched.solvers.search.search import search

if TYPE_CHECKING:
    from optsched.models.objectives import ScheduleObjective
    from optsched.optimum.state import State

_LITTLE = 1e3  # work


def load_kernels(state: State) -> float:
    """Load what the stages of such an instance call, and return the seconds that it took."""
    began = time.perf_counter()
    small = len(state.instance) <= state.tuning.exact and state.objective == "total-latency"
    _load(state.objective, bool(state.instance.arrivals.any()), state.plain, state.plain and small)
    return time.perf_counter() - began


@cache
def _load(objective: ScheduleObjective, arrivals: bool, plain: bool, small: bool) -> None:
    """Run every stage on four requests whose first bound is not the optimum."""
    steps = [0, 1, 1, 2] if arrivals else None
    tiny = Instance([4] * 4, [1, 1, 6, 6], memory=13, arrivals=steps)
    prices = bound(tiny, objective=objective).certificate
    schedules = [run(tiny, policy).schedule for policy in BASIC.values()]
    if not plain or prices is None:
        return
    weights = weights_of(tiny, objective)
    improve_prices(schedules[0], prices, work=_LITTLE)
    if arrivals:
        delay_large(tiny, weights, prices, work=_LITTLE)
    search(schedules[0], weights, work=_LITTLE)
    if small:
        sizes = configuration_bound(tiny, phases=1, iterations=1).certificate
        solve_exact(tiny, upper=schedules[0], certificate=sizes, node_limit=10)
