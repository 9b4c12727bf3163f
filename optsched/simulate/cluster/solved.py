"""Routing by least imbalance over a window (BF-IO), with a program for every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.simulate.cluster import service
from optsched.simulate.cluster.balance import add_bonus, add_queues, window_now
from optsched.simulate.cluster.rules import keep_to_memory, open_space, waiting_sizes
from optsched.simulate.cluster.state import NONE, seen_loads

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.cluster.goals import StepGoals
    from optsched.problem.cluster import Cluster
    from optsched.problem.instance import Instance
    from optsched.simulate.cluster.routing import BalanceRouting
    from optsched.simulate.cluster.state import Settings, State

_AT_ONCE = 1e-9  # seconds; leaves a search no time for bounds that nobody reads


class Solved:
    """Chooses workers as `balance.run_balanced` does, by a program that may have goals."""

    def __init__(self, routing: BalanceRouting, cluster: Cluster, instance: Instance) -> None:
        self._routing, self._cluster = routing, cluster
        self._deadlines: FloatArray | None = None  # in the unit of arrivals
        self._tenants = service.require_tenants(instance) if routing.tenants else None
        if routing.deadlines:
            unit = instance.seconds_per_step or 1.0
            self._deadlines = service.require_deadlines(instance).astype(np.float64) * unit
        if routing.energy_price:
            service.require_power(cluster)
        self._outputs = service.longest_outputs(instance)  # that requests are planned with
        self._running = np.zeros(0, dtype=np.int64)

    def __call__(
        self, state: State, believed: IntArray | None, settings: Settings, _: bool
    ) -> IntArray:
        """Choose a worker for each waiting request, or NONE."""
        self._running = still_running(state, self._running)
        chosen = self._solve_step(state, believed, settings)
        if settings.limited:
            keep_to_memory(state, settings, chosen)
        admitted = state.waiting[: len(chosen)][chosen != NONE]
        self._running = np.concatenate([self._running, admitted])
        return chosen

    def _solve_step(self, state: State, believed: IntArray | None, settings: Settings) -> IntArray:
        lookahead, routing = window_now(state, settings), self._routing
        loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
        sizes, slots = waiting_sizes(state), open_space(state, settings).slots
        if settings.instant:
            add_queues(state, loads, growth)
        bonus = np.zeros(len(sizes), dtype=np.int64)
        if not settings.patient:
            add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
        if not slots.any():
            return np.full(len(sizes), NONE)
        if routing.energy_price:
            tokens = sizes[:, None] + growth
            bonus += service.energy_bonus(self._cluster, loads, tokens, routing.energy_price)
        goals = None
        if routing.deadlines or routing.tenants:
            length = 1.0  # of a step, in the unit of arrivals: in seconds, as long as one is now
            if settings.timed:
                most = int((loads[:, 0] * state.slowness).max())
                length = settings.overhead_s + settings.seconds_per_token * most
            price = service.slot_price(loads, sizes)
            goals = self._goals(state, believed is None, lookahead, length, price)
        return solve_step(loads, slots, sizes, growth, state.slowness, bonus, routing, goals)

    def _goals(
        self, state: State, certain: bool, lookahead: int, length: float, price: int
    ) -> StepGoals:
        """Return deadlines and shortfalls of the requests that wait."""
        from optsched.models.cluster.goals import StepGoals

        requests, step, active = state.requests, int(state.now[0].step), self._running
        waiting = state.waiting[: state.now[0].waiting]
        latest = freed = tenant = short = None
        if self._deadlines is not None:
            lasts = requests["output" if certain else "lasts"][active]
            left = requests["start"][active] + lasts - step
            freed = np.bincount(left[left <= lookahead], minlength=lookahead + 1)[1:]
            left = self._deadlines[waiting] - state.time[0]
            steps = np.floor(left / length + 1e-9).astype(np.int64)
            latest = steps - self._outputs[waiting]
        if self._tenants is not None:
            number, weights = self._tenants.number, self._tenants.weights
            tenant = number[waiting]
            running = np.bincount(number[active], minlength=len(weights))
            demands = running + np.bincount(tenant, minlength=len(weights))
            free = int((state.workers["slots"] - state.workers["active"]).sum())
            slots = len(active) + min(free, len(waiting))
            short = service.fair_slots(weights, demands, slots) - running
        return StepGoals(latest, freed, tenant, short, price)


def still_running(state: State, requests: IntArray) -> IntArray:
    """Return those of the given requests that run at this step."""
    begun = state.requests["start"][requests]
    ends = begun + state.requests["output"][requests]
    return np.asarray(requests[(begun >= 0) & (ends > state.now[0].step)])


def solve_step(
    loads: IntArray,
    slots: IntArray,
    sizes: IntArray,
    growth: IntArray,
    slowness: IntArray,
    bonus: IntArray,
    routing: BalanceRouting,
    goals: StepGoals | None,
) -> IntArray:
    """Solve the program of one step; the solver has one thread, so that a run can be repeated."""
    from optsched.models.cluster.balance import BalanceProgram
    from optsched.models.cluster.balance_state import BalanceState
    from optsched.solvers.backends.base import Options
    from optsched.solvers.balance.balance import assign_balanced

    step = BalanceState(loads, slots, sizes, np.diff(growth), slowness, bonus=bonus)
    limit = _AT_ONCE if routing.method == "swap" else routing.time_limit
    program = BalanceProgram(step, goals=goals)
    found = assign_balanced(program, routing.method, Options(time_limit=limit, threads=1))
    if found.answer is None:
        raise PolicyError(
            f"{routing.method} found no assignment of {len(sizes)} requests: {found.status}"
        )
    return np.array(found.answer.worker)
