"""Routing by least imbalance over a window (BF-IO), with a program for every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.cluster import service
from optsched.errors import PolicyError
from optsched.simulate.cluster.balance import add_bonus, add_queues, window_now
from optsched.simulate.cluster.rules import keep_to_memory, open_space, waiting_sizes
from optsched.simulate.cluster.state import NONE, seen_loads

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.cluster.facts import Cluster
    from optsched.cluster.routing import BalanceRouting
    from optsched.instance import Instance
    from optsched.models.cluster.goals import StepGoals
    from optsched.simulate.cluster.state import Settings, State

_AT_ONCE = 1e-9  # seconds; leaves a search no time for bounds that nobody reads


class Planner(NamedTuple):
    """What the program of a step is made from beside the state of the cluster."""

    routing: BalanceRouting
    cluster: Cluster
    outputs: IntArray  # that requests are planned with
    deadlines: FloatArray | None  # in the unit of arrivals
    timed: bool  # whether that is seconds
    tenants: service.Tenants | None


def planner_of(routing: BalanceRouting, cluster: Cluster, instance: Instance) -> Planner:
    """Read from an instance what the routing asks for."""
    deadlines: FloatArray | None = None
    tenants = None
    if routing.deadlines:
        unit = instance.seconds_per_step or 1.0
        deadlines = service.require_deadlines(instance).astype(np.float64) * unit
    if routing.tenants:
        tenants = service.require_tenants(instance)
    if routing.energy_price:
        service.require_power(cluster)
    outputs, timed = service.longest_outputs(instance), instance.seconds_per_step is not None
    return Planner(routing, cluster, outputs, deadlines, timed, tenants)


class Solved:
    """Chooses workers as `balance.run_balanced` does, by a program that may have goals."""

    def __init__(self, routing: BalanceRouting, cluster: Cluster, instance: Instance) -> None:
        self._planner = planner_of(routing, cluster, instance)
        self._running = np.zeros(0, dtype=np.int64)

    def __call__(
        self, state: State, believed: IntArray | None, settings: Settings, _: bool
    ) -> IntArray:
        """Choose a worker for each waiting request, or NONE."""
        running = still_running(state, self._running)
        chosen = _solve_step(self._planner, state, believed, settings, running)
        if settings.limited:
            keep_to_memory(state, settings, chosen)
        admitted = state.waiting[: len(chosen)][chosen != NONE]
        self._running = np.concatenate([running, admitted])
        return chosen


def still_running(state: State, requests: IntArray) -> IntArray:
    """Return those of the given requests that run at this step."""
    begun = state.requests["start"][requests]
    ends = begun + state.requests["output"][requests]
    return np.asarray(requests[(begun >= 0) & (ends > state.now[0].step)])


def _solve_step(
    planner: Planner,
    state: State,
    believed: IntArray | None,
    settings: Settings,
    running: IntArray,
) -> IntArray:
    """Choose a worker for each waiting request, or NONE."""
    lookahead = window_now(state, settings)
    loads, growth = seen_loads(state, believed, lookahead), state.growth[: lookahead + 1]
    sizes, slots = waiting_sizes(state), open_space(state, settings).slots
    if settings.instant:
        add_queues(state, loads, growth)
    bonus = np.zeros(len(sizes), dtype=np.int64)
    if not settings.patient:
        add_bonus(state, sizes, (lookahead + 1) * len(slots), bonus)
    if not slots.any():
        return np.full(len(sizes), NONE)
    routing = planner.routing
    if routing.energy_price:
        tokens = sizes[:, None] + growth
        bonus += service.energy_bonus(planner.cluster, loads, tokens, routing.energy_price)
    goals = None
    if routing.deadlines or routing.tenants:
        price = service.slot_price(loads, sizes)
        length = _step_length(planner, int((loads[:, 0] * state.slowness).max()))
        goals = _goals(planner, state, running, believed is None, lookahead, length, price)
    return solve_step(loads, slots, sizes, growth, state.slowness, bonus, routing, goals)


def _goals(
    planner: Planner,
    state: State,
    active: IntArray,
    certain: bool,
    lookahead: int,
    length: float,
    price: int,
) -> StepGoals:
    """Return deadlines and shortfalls of the requests that wait."""
    from optsched.models.cluster.goals import StepGoals

    requests, step = state.requests, int(state.now[0].step)
    waiting = state.waiting[: state.now[0].waiting]
    latest = freed = tenant = short = None
    if planner.deadlines is not None:
        lasts = requests["output" if certain else "lasts"][active]
        left = requests["start"][active] + lasts - step
        freed = np.bincount(left[left <= lookahead], minlength=lookahead + 1)[1:]
        left = planner.deadlines[waiting] - state.time[0]
        steps = np.floor(left / length + 1e-9).astype(np.int64)
        latest = steps - planner.outputs[waiting]
    if planner.tenants is not None:
        number, weights = planner.tenants.number, planner.tenants.weights
        tenant = number[waiting]
        running = np.bincount(number[active], minlength=len(weights))
        demands = running + np.bincount(tenant, minlength=len(weights))
        free = int((state.workers["slots"] - state.workers["active"]).sum())
        slots = len(active) + min(free, len(waiting))
        short = service.fair_slots(weights, demands, slots) - running
    return StepGoals(latest, freed, tenant, short, price)


def _step_length(planner: Planner, most: int) -> float:
    """Return how long a step is in the unit of arrivals: in seconds, as long as one is now."""
    if not planner.timed:
        return 1.0
    return planner.cluster.overhead_s + planner.cluster.seconds_per_token * most


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
