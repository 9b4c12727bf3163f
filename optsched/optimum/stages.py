"""Stages that improve the interval, and stages that close it (docs/how-solve-works.md).

A start whose regret exceeds the distance from the bound to the best schedule, less one, is in no
better schedule. If the program of what is left has no answer, the best schedule is optimal.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import IntArray, room_for
from optsched._internal.aside import Token, untimed
from optsched._internal.numbers import proven, round_down
from optsched.bounds.ascent import (
    Bound,
    improve_charges,
    improve_prices,
    sawtooth_bound,
    work_of_point,
)
from optsched.bounds.bound import CELLS, coarse_prices, smoothed
from optsched.bounds.configurations import charges_of_starts, configuration_bound, makespan_by_sizes
from optsched.bounds.lagrangian import PricedStarts, certify
from optsched.certificates.prices import SawtoothCertificate
from optsched.errors import InfeasibleError, OptschedError
from optsched.models.hindsight import EventProgram, HindsightProgram
from optsched.models.program import Solution, Stopped
from optsched.optimum.state import EVENTS, EVENTS_FIRST, EVENTS_TIGHT, TOO_LARGE, Effort, SolveState
from optsched.search.annealing import WORK_PER_SECOND
from optsched.search.beam import start_by_beam
from optsched.search.delays import delay_large
from optsched.search.exact.parts import MOST, solve_few, solve_parts
from optsched.search.exact.search import ExactResult, solve_exact
from optsched.search.exact.states import solve_by_states
from optsched.search.search import search
from optsched.solvers.backends.base import Options, whole_multiple
from optsched.solvers.backends.driver import solve_events, solve_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.models.linear import LinearModel
    from optsched.problem.schedule import Schedule

# Shares of the time left.
PRICES_OFFLINE, PRICES_ARRIVALS = 0.05, 0.15
CHARGES, CHARGES_BEAM = 0.05, 0.6  # at first and again at the end; there a beam leaves much time
DELAYS, DELAYS_FEW = 0.4, 0.2
BEFORE_BEAM, AFTER_BEAM = 0.05, 0.15  # of stages that a beam makes up for, and of a search from it
FEW = 400  # requests that are better searched than delayed
_BEAM = 2.2  # where runs are faster than work is counted
PRICED = 1000  # requests up to which prices are improved offline
LARGE_GAP = 0.04  # above which large requests do not pack, and the bound is too low
SIZES = 0.5  # of the time left, for the configuration bound
SIZES_MAKESPAN, SIZES_MOST = 0.3, 100  # and for sizes that bound the makespan, of so many seconds
SLOW = 0.85  # of the time left, when a beam ends on a slow machine
_CLIMB = 5  # rounds below which an ascent gains nothing
_LARGE = 0.7  # quantile of memory-time from which requests are priced on coarse grids
_GRIDS = ((CELLS, 300), (4 * CELLS, 200))  # cells in an output, and rounds


def delay_requests(state: SolveState) -> None:
    """Let large requests wait where arrivals make that pay."""
    if state.over or state.prices is None or not state.instance.arrivals.any():
        return
    few = len(state.instance) <= FEW
    share = DELAYS_FEW if few else DELAYS
    before, seconds = state.cost, state.share(BEFORE_BEAM if state.beamed else share)
    found = delay_large(
        state.instance,
        state.weights,
        state.prices,
        budget=state.budget(
            seconds * WORK_PER_SECOND,
            state.until(1.5 * seconds),
            lambda _: state.report("delays", state.cost, state.lowest),
        ),
        seed=state.params.seed,
    )
    state.offer(found)
    state.note(f"delays: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def start_large(state: SolveState, seed: int) -> None:
    """Start large requests anew where memory is worth it, and let a search move all."""
    if state.finished or state.prices is None or state.best is None:
        return
    threads, before, seconds = state.params.threads, state.cost, state.share(SLOW)
    found = start_by_beam(
        state.best,
        state.prices,
        budget=state.budget(
            threads * _BEAM * seconds * WORK_PER_SECOND,
            state.until(seconds),
            lambda cost: state.report("beam", min(cost, state.cost), state.lowest),
        ),
        seed=seed,
        threads=threads,
    )
    state.offer(found)
    state.note(f"beam: {state.cost:,.10g}, gained {before - state.cost:,.10g}")
    search_schedules(state, seed, AFTER_BEAM, start=found)


def search_schedules(
    state: SolveState,
    seed: int,
    share: float = 1.0,
    threads: int | None = None,
    work: float = math.inf,
    start: Schedule | None = None,
) -> None:
    """Improve the best schedule, or another, for a share of the time left and no more work."""
    if state.finished or state.best is None:
        return
    seconds = state.searching if share == 1 else state.share(share)
    if seconds <= 0:
        return
    before, began = state.cost, state.elapsed
    stop, ties = Token(state.ended), state.objective == "late-requests"

    def improved(cost: float) -> None:
        state.report("search", min(cost, before), state.lowest)
        if cost <= state.lowest or (ties and cost < state.lowest + float(state.unit)):
            stop.set()

    try:
        found = search(
            start or state.best,
            state.steered,
            state.budget(
                min(work, seconds * WORK_PER_SECOND), state.began + state.time_limit, improved
            )._replace(stop=stop),
            seed=seed,
            threads=state.params.threads if threads is None else threads,
            latest=state.due,
        )
    except OptschedError as error:
        state.status = "too long to be searched"
        state.note(f"search: left out, {error}")
        return
    state.offer(found.schedule)
    unit = float(state.unit)
    met = [(at, unit * (cost // unit) if ties else cost) for at, cost in found.history[1:]]
    better = [(at, cost) for at, cost in met if cost < before]
    state.history += [(began + at, cost, state.lowest) for at, cost in better]
    if found.interrupted:
        state.interrupt()
    state.status = "time limit" if state.left <= 0 else "search ended"
    state.note(f"search: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


def raise_prices(state: SolveState, work: float | None = None) -> None:
    """Raise the bound by better prices: with arrivals it pays, offline a little."""
    if state.over or state.prices is None or state.best is None:
        return
    arrivals = bool(state.instance.arrivals.any())
    if not arrivals and len(state.instance) > PRICED:
        return  # the relaxation's prices are as good (benchmarks/research.md)
    seconds = state.share(PRICES_ARRIVALS if arrivals else PRICES_OFFLINE)
    end = state.until(1.5 * seconds)
    if arrivals and state.beamed:
        work = _price_coarsely(state, seconds * WORK_PER_SECOND, end)
    found = improve_prices(
        state.best.pooled(),
        state.prices,
        state.budget(
            seconds * WORK_PER_SECOND if work is None else work,
            end,
            lambda value: state.report("prices", state.cost, max(value, state.lowest)),
        ),
    )
    state.prices = found.prices
    state.gain("prices", found)


def charge_for_growth(state: SolveState) -> None:
    """Raise the bound by the memory that requests keep free to grow."""
    prices = state.prices
    if state.over or prices is None:
        return
    work = state.share(CHARGES) * WORK_PER_SECOND
    if work < work_of_point(state.pool, prices):
        return
    found = sawtooth_bound(state.instance, prices, state.workers, work, state.ended)
    state.gain("sawtooth", found)


def raise_charges(state: SolveState) -> None:
    """Raise the bound by better prices and charges together, before the last search."""
    certificate, prices = state.bound.certificate, state.prices
    if not isinstance(certificate, SawtoothCertificate) or state.best is None or prices is None:
        return
    share = CHARGES_BEAM if state.beamed else CHARGES
    ahead = _BEAM * share * state.searching * WORK_PER_SECOND
    if state.finished or ahead < _CLIMB * work_of_point(state.pool, prices):
        return
    seconds = state.share(share)
    found = improve_charges(
        state.best,
        certificate,
        state.budget(_BEAM * seconds * WORK_PER_SECOND, state.until(seconds)),
    )
    state.gain("charges", found)


def _price_coarsely(state: SolveState, work: float, deadline: float) -> float:
    """Find prices on coarse grids from which to begin; return the work that is left."""
    assert state.best is not None
    assert state.prices is not None
    assert state.objective != "late-requests"  # for which there is no beam
    instance, best = state.pool, state.best.pooled()
    large = instance.areas >= np.quantile(instance.areas, _LARGE)
    found = None
    for cells, rounds in _GRIDS:
        found, cell, spent = coarse_prices(
            best,
            state.objective,
            large,
            instance.memory,
            rounds=rounds,
            cells=cells,
            begin=found,
            budget=state.budget(work if state.by_work else math.inf, deadline),
        )
        if cell == 1:
            break
        found = smoothed(found, cell)
        coarse = certify(instance, found, best.starts, state.objective)
        state.prices = max(state.prices, coarse, key=lambda certificate: certificate.value)
        work -= spent
        if work <= 0 or state.ended.is_set():
            break
    return max(work, 0.0)


def large_requests(state: SolveState) -> bool:
    """Return whether the gap suggests that large requests leave memory empty."""
    if state.objective != "total-latency" or state.best is None:
        return False
    priced = state.lowest if state.prices is None else float(state.prices.value)
    return (state.cost - priced) / state.cost >= LARGE_GAP


def price_configurations(state: SolveState, seed: int, effort: Effort | None = None) -> None:
    """Raise the bound where large requests leave memory empty that nothing could use."""
    if state.over:
        return
    beside = state.params.threads > 1 and effort is None
    stop = Token(state.ended)
    try:
        found = _beside_a_search(state, seed, stop) if beside else _price(state, stop, effort)
    except OptschedError as error:
        state.note(f"configurations: left out, {error}")
        return
    if state.plain:  # what goes on from sizes knows no deadlines
        state.sizes = found.sizes
    state.gain("configurations", found)


def size_requests(state: SolveState) -> None:
    """Raise the bound on the makespan by sizes of what runs together."""
    if state.over:
        return
    end = state.elapsed + min(state.left, SIZES_MOST) * SIZES_MAKESPAN
    try:
        found = makespan_by_sizes(
            state.instance,
            lambda: state.ended.is_set() or state.elapsed >= end,
            state.cost - 1,
            state.workers,
        )
    except OptschedError as error:
        state.note(f"sizes: left out, {error}")
        return
    state.gain("sizes", found)


def _beside_a_search(state: SolveState, seed: int, stop: Token) -> Bound:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_price, state, stop, None)
        try:
            search_schedules(state, seed, SIZES, state.params.threads - 1)
            if state.finished:
                stop.set()
            return future.result()
        finally:
            stop.set()


def _price(state: SolveState, stop: Token, effort: Effort | None) -> Bound:
    def watch(_: float, value: float) -> None:
        state.report("configurations", state.cost, max(value, state.lowest))

    phases, iterations = (16, 1500) if effort is None else effort[1:3]
    return configuration_bound(
        state.instance,
        time_limit=SIZES * state.left,
        start=state.prices,
        on_progress=watch,
        stop=stop,
        phases=phases,
        iterations=iterations,
    )


BEGINNING = 0.1  # of the time left, for sizes from one beginning
_BEGINNINGS = (1.0, 0.4, 0.2)  # shares of the prices of scarce memory
_PHASES, _ITERATIONS = 8, 800
PARTS, PARTS_ARRIVALS = 0.8, 0.3  # of the time left
TO_THE_PROOF = 0.9  # of the time left; where nodes are limited, other stages follow


def price_sizes(state: SolveState) -> None:
    """Raise the bound where large requests leave memory of equal workers empty."""
    if state.over:
        return
    best = None
    for begin in _BEGINNINGS:
        try:
            found = configuration_bound(
                state.instance,
                workers=state.workers,
                share=begin,
                phases=_PHASES,
                iterations=_ITERATIONS,
                time_limit=BEGINNING * state.left,
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
    state.sizes = best.sizes
    state.gain("configurations", best)


def choose_parts(state: SolveState) -> None:
    """Close the interval of few requests on equal workers: which share a worker, in which order."""
    price_sizes(state)
    # What it needs grows with the number of subsets; where time runs out the program comes next.
    if state.over or state.sizes is None or state.best is None:
        return
    if len(state.instance) > MOST or state.instance.deadlines is not None:
        return
    late = bool(state.instance.arrivals.any())
    end = state.elapsed + (PARTS_ARRIVALS if late else PARTS) * state.left
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


def kept_by_sizes(state: SolveState, latest: IntArray) -> tuple[IntArray, ...] | None:
    """Return the starts that better schedules may have by the sizes known; None without sizes."""
    if state.sizes is None or state.best is None:
        return None
    instance, workers, certificate = state.instance, state.workers, state.sizes
    costs, group, unit = charges_of_starts(certificate, instance, workers)
    room = int((Fraction(state.cost - 1) - certificate.value) * unit)
    kept = []
    for request, number in enumerate(group.tolist()):
        arrival, most = int(instance.arrivals[request]), int(costs[number].min()) + room
        listed = np.flatnonzero(costs[number, arrival:] <= most) + arrival
        # After the last price a start costs its latency.
        last = most // unit - int(instance.outputs[request]) + arrival
        starts = np.concatenate([listed, np.arange(costs.shape[1], last + 1)])
        kept.append(starts[starts <= latest[request]])
    return tuple(kept)


_ENUMERATION = 2e7  # tokens ahead that an enumeration may take, about a second
_TABLES = 2_000_000  # output tokens x requests x memory up to which sizes take milliseconds
_TINY = 8  # requests up to which all efforts are worth it
HOPELESS = 0.1  # gap above which more requests are left to stages that take their time
_FIRST_PRICES = 2e5  # work that takes milliseconds and gives most of what prices can
_RUNNING = 2e4  # times the cube of the requests: work of a search before running sets
# Each takes several times as long as the one before: little is lost where it is not enough.
_EFFORTS = (
    Effort(search=4e5, phases=1, iterations=0, nodes=1_500),
    Effort(search=4e6, phases=4, iterations=50, nodes=80_000),
    Effort(search=2e7, phases=8, iterations=200, nodes=300_000),
)
_NONZEROS = 20_000_000  # up to which a time-indexed program is built
NONZEROS_PER_SECOND = 200_000  # of time left, up to which "auto" builds it
BEFORE_ROWS = 0.3  # of the time left, for CP-SAT before a program with rows of the user's
_BYTES = 2**30  # that layers of nodes may take
_FIRST_BYTES, FIRST_SECONDS = 2**26, 2  # of running sets, or of CP-SAT, before anything else
FIRST_SHARE = 0.7  # of the time left, for CP-SAT where a search goes on from what it finds
_SET_BYTES = 2**29, 2**32  # that running sets may take, before branch and bound and after it
_TAKING = 0.3  # seconds
MOST_PLACED = 60  # requests of several workers; their event program grows with the square of this


def enumerate_few(state: SolveState) -> None:
    """Close the interval of a few requests: in arrays, as compiling takes longer than that."""
    raise_prices(state, _FIRST_PRICES)  # whose proof is easier to check
    if state.best is None or state.finished:
        return
    began = state.elapsed
    found = solve_few(state.instance, state.best, _ENUMERATION, lambda: state.over)
    if found is None:
        state.note("enumeration: left out, it takes too long")
        return
    state.offer(found)
    value = float(found.total_latency)
    state.raise_bound(Bound(value, "branch and bound", state.elapsed - began))
    state.status = "optimal"
    state.note(f"enumeration: optimal, {state.cost:,.10g}, bound {proven(state.lowest, digits=10)}")


def prove_first(state: SolveState) -> None:
    """Close the interval of a few requests at once, before a search is even compiled."""
    if state.over:
        return
    arrivals = state.instance.arrivals
    if state.plain and state.objective == "total-latency" and arrivals[0] == arrivals[-1]:
        search_running_sets(state, _FIRST_BYTES)
    elif state.method == "auto":
        few = len(state.instance) <= EVENTS
        solve_program(state, FIRST_SECONDS if few else FIRST_SHARE * state.left)


def prove_small(state: SolveState) -> None:
    """Close the interval of a small instance by branch and bound, with growing effort."""
    instance = state.instance
    cells = len(instance) * int(instance.outputs.sum()) * instance.memory
    if state.prices is None or cells > _TABLES:
        return
    tiny = len(instance) <= _TINY
    raise_prices(state, _FIRST_PRICES)
    together = not (instance.arrivals > instance.arrivals[0]).any()
    for number, effort in enumerate(_EFFORTS):
        few = tiny or (together and number == 1)
        if number > 0 and not few and state.gap > HOPELESS:
            break
        running = together and number == 1
        work = _RUNNING * len(instance) ** 3 if running else effort.search
        search_schedules(state, state.params.seed, threads=1, work=work)
        price_configurations(state, state.params.seed, _EFFORTS[-1] if running else effort)
        if running and state.sizes is not None:
            search_running_sets(state, _SET_BYTES[0])
        branch_and_bound(state, effort.nodes)
    # Of fewer requests, branch and bound proves what has many sets as fast.
    if together and len(instance) > EVENTS and not state.finished:
        price_configurations(state, state.params.seed, _EFFORTS[-1])
        search_running_sets(state, _SET_BYTES[1])
    state.sizes = None  # stronger ones are made where they pay


def branch_and_bound(state: SolveState, nodes: int | None = None) -> None:
    """Search in time order; stopped early it still narrows the interval."""
    if state.sizes is None:
        return
    share = TO_THE_PROOF if nodes is None else 0.3
    _search(state, "branch and bound", share, _BYTES, solve_exact, node_limit=nodes)


def search_running_sets(state: SolveState, size: int) -> None:
    """Search by sets of running requests, which ends soon or fails at once."""
    _search(state, "running sets", 0.9, size, solve_by_states)


def _search(
    state: SolveState,
    name: str,
    share: float,
    size: int,
    solve: Callable[..., ExactResult],
    **limits: int | None,
) -> None:
    if state.over:
        return
    limit = state.params.memory_limit
    try:
        found = solve(
            state.instance,
            upper=state.best,
            certificate=state.sizes,
            # What is in memory takes a while to put away.
            time_limit=share * state.left,
            memory_limit=min(size, room_for(1)) if limit is None else limit,
            on_progress=lambda _, lower, upper: state.report(name, upper, lower),
            stop=state.ended,
            **limits,
        )
    except OptschedError as error:
        state.note(f"{name}: left out, {error}")
        return
    state.offer(found.schedule)
    state.raise_bound(Bound(float(found.lower), name, found.seconds))
    state.status = str(found.stopped)
    if found.stopped == "interrupted":
        state.interrupt()
    state.note(
        f"{name}: {found.stopped}, {state.cost:,.10g}, bound "
        f"{proven(state.lowest, digits=10)}, {found.nodes:,} nodes"
    )


def solve_program(state: SolveState, most: float = math.inf) -> None:
    """Hand the program to a solver for some seconds, without starts that no better schedule has."""
    if state.finished:
        return
    if state.left <= 0:
        state.status = "time limit"
        return
    if state.top.rows is not None:
        most = min(most, BEFORE_ROWS * state.left)
    latest = state.latest_starts()
    kept = None if state.alone else kept_by_sizes(state, latest)
    if kept is not None and not all(map(len, kept)):
        state.raise_bound(Bound(state.cost, "configuration", state.elapsed), state.exact)
        state.note(f"configurations: no better start is left, {state.cost:,.10g}")
        return
    form = _form(state, latest, kept)
    if form is None:
        return
    solution = _solve(state, form, most)
    if isinstance(form, HindsightProgram):
        solution = form.judged(solution)
        small = len(state.instance) <= state.events
        if solution.status is Stopped.WITHIN_TOLERANCE and small and _suits_events(state, latest):
            form = _by_events(state, latest, kept)
            solution = _solve(state, form, most)
    if solution.values is not None:
        state.offer(form.read(solution.values))
    exact = None if solution.bound is None else Fraction(solution.bound)
    if solution.status == "infeasible" and state.exact is None:
        raise InfeasibleError(state.infeasible())
    if solution.proven_optimal or (solution.status == "infeasible" and kept is not None):
        exact = state.exact  # the starts of the best schedule itself are not kept
    if exact is not None and state.exact is not None:
        # Starts that were left out are in no schedule that is better than the best before.
        exact = min(exact, state.exact)
        state.raise_bound(Bound(round_down(exact), solution.solver, solution.seconds), exact)
    state.status = str(solution.status)
    if solution.status == "interrupted":
        state.interrupt()
    said = f" ({solution.raw_status})" if solution.raw_status else ""
    state.note(
        f"{solution.solver}, {'events' if isinstance(form, EventProgram) else 'time-indexed'}: "
        f"{solution.status}{said if solution.status == 'error' else ''}, {state.cost:,.10g}, "
        f"bound {proven(state.lowest, digits=10)}"
    )


def _suits_events(state: SolveState, latest: IntArray) -> bool:
    """Return whether CP-SAT can represent the weights."""
    costs = state.costs
    numbers = np.concatenate([costs.weights, costs.jumps, costs.slopes])
    return whole_multiple(numbers, float(costs.steepest @ latest)) is not None


def _by_events(
    state: SolveState, latest: IntArray, kept: tuple[IntArray, ...] | None
) -> EventProgram:
    params = state.params
    return EventProgram(
        state.instance,
        state.objective,
        latest,
        workers=state.workers,
        kept=kept,
        lateness=params.lateness,
        penalty=params.penalty,
    )


def _form(
    state: SolveState, latest: IntArray, kept: tuple[IntArray, ...] | None
) -> EventProgram | HindsightProgram | None:
    """Choose the event program or the time-indexed one; None where both are too large."""
    with untimed():
        import scipy.sparse  # noqa: F401 - which programs are made of
    instance, params = state.instance, state.params
    workers, method = state.workers, state.method

    def by_events() -> EventProgram:
        return _by_events(state, latest, kept)

    most = EVENTS_FIRST if state.timely else state.events
    if method == "cp-sat":  # whose time-indexed program is hopeless where this one is proven
        most = max(most, EVENTS_TIGHT)
    events = method != "highs" and (method != "auto" or _suits_events(state, latest))
    if events and len(instance) <= (most if state.alone else MOST_PLACED):
        return by_events()
    if events and not state.alone:
        state.status = TOO_LARGE
        return None
    if state.top.rows is not None:  # which the solver takes that comes next
        return None
    program = HindsightProgram(
        instance,
        int((latest + instance.outputs).max()),
        state.objective,
        lateness=params.lateness,
        penalty=params.penalty,
        workers=workers,
    )
    # To build one of millions of nonzeros takes seconds, and to solve its linear relaxation much
    # longer: "auto" leaves it out where little time is left, and searches on.
    if method == "auto" and state.alone:
        if program.nonzeros <= min(_NONZEROS, NONZEROS_PER_SECOND * state.left):
            return program
        if program.nonzeros > _NONZEROS:
            state.status = TOO_LARGE
        return None
    if program.nonzeros <= _NONZEROS:
        return program
    if events:
        return by_events()
    raise OptschedError(
        f"the time-indexed program would have {program.nonzeros:,} nonzeros (at most "
        f"{_NONZEROS:,}); use the method search, or fewer requests"
    )


def next_by_rows(state: SolveState) -> bool:
    """Return whether a program with rows of the user's comes next, which time suffices for."""
    rows = state.top.rows
    return rows is not None and rows.matrix.nnz <= min(_NONZEROS, NONZEROS_PER_SECOND * state.left)


def _solve(state: SolveState, form: EventProgram | HindsightProgram, most: float) -> Solution:
    # The best schedule has starts that sizes do not keep.
    hinted = state.best if state.sizes is None else None
    how: dict[str, Any] = {
        "start": None if hinted is None else form.write_point(hinted),
        "on_progress": state.params.on_progress,
        "stop": state.ended,
        "in_child": True,
    }
    if isinstance(form, EventProgram):
        return solve_events(form, options=solver_options(state, most), bound=state.lowest, **how)
    model = form.to_linear()
    model = without_dear_starts(state, model)
    solver = "cp-sat" if state.method == "cp-sat" else "highs"
    return solve_linear(model, solver, solver_options(state, most), settle=form.whole, **how)


def without_dear_starts(state: SolveState, model: LinearModel) -> LinearModel:
    """Fix starts of a time-indexed model that no better schedule than the best has."""
    if state.prices is None or state.exact is None:
        return model
    priced = PricedStarts(state.pool, state.prices)
    starts = model.variables[0].keys
    regrets = priced.regrets(starts[:, 0], starts[:, -1])
    excluded = np.flatnonzero(regrets > priced.room(state.exact))
    return model.fix(excluded, np.zeros(len(excluded)))


def solver_options(state: SolveState, most: float = math.inf) -> Options:
    """Return a time limit that leaves a moment to end a deaf child, and to take its answer."""
    seconds = state.left - min(_TAKING, 0.1 * state.left)
    return replace(state.options, time_limit=max(min(seconds, most), 1e-3))
