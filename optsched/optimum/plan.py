"""Stages that start: plans, placements."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from optsched._internal.aside import Aside, heard, stopwatch
from optsched._internal.numbers import proven, round_down
from optsched.bounds.ascent import Bound, BoundMethod, makespan_by_growth
from optsched.bounds.bound import Pools, bound, bound_of_pools, price_pools
from optsched.bounds.lagrangian import PricedStarts, certify
from optsched.errors import InfeasibleError, OptschedError
from optsched.models.hindsight import HindsightProgram
from optsched.optimum import stages
from optsched.optimum.state import (
    BEAM_LEAST,
    BEAM_MOST,
    EVENTS,
    EVENTS_FIRST,
    EVENTS_TIGHT,
    SolveParams,
    SolveState,
)
from optsched.policies import BASIC, Policy, PriorityPolicy
from optsched.policies.priorities import DUE, PRIORITIES
from optsched.problem.schedule import Schedule
from optsched.search.annealing import WORK_PER_SECOND
from optsched.search.delays import list_on_workers
from optsched.search.exact.parts import MOST
from optsched.search.search import FEW_PLACED
from optsched.simulate import run
from optsched.solvers.backends.driver import end_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from fractions import Fraction

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.prices import Certificate
    from optsched.models.hindsight import EventProgram
    from optsched.models.program import Running
    from optsched.problem.instance import Instance


_LENGTH = 128  # of the window
# Powers of the output, and ratios.
_PLACED_LISTS = ((0.0, 1.4), (0.25, 1.6), (0.0, 2.0), (0.5, 1.4))
_SHARES = (0.25, 0.5, 0.75, 1.0)  # of the wait for the cheapest start
_RATIOS = (1.4, 2.0, 3.0, 5.0)  # of the window


def list_placed(state: SolveState) -> Iterator[Schedule]:
    """Start requests in some orders, each on the worker where it leaves the least room."""
    for key, ratio in _keys(state):
        if not state.closed and (state.best is None or state.left > 0):
            yield list_on_workers(state.instance, state.workers, key, ratio, _LENGTH)


def _keys(state: SolveState) -> Iterator[tuple[FloatArray, float]]:
    """Return orders and ratios of the window."""
    instance = state.instance
    if (due := instance.deadlines) is not None:
        yield due.astype(np.float64), math.inf
        yield (due - instance.outputs).astype(np.float64), math.inf
    areas, outputs = instance.areas.astype(np.float64), instance.outputs.astype(np.float64)
    if state.objective == "makespan":
        for key in (-areas, -outputs, -instance.peaks.astype(np.float64)):
            yield key, 0.0
        return
    for power, ratio in _PLACED_LISTS:
        yield areas * outputs**power / state.weights, ratio


def raise_pool_prices(state: SolveState) -> None:
    """Raise the bound by better prices of the pool, and of the workers that few requests need."""
    stages.raise_prices(state)
    if state.alone or state.prices is None or state.over:
        return
    if not state.hard or len(Pools.of(state.instance, state.workers).members) == 1:
        return
    seconds = state.share(stages.PRICES_ARRIVALS)
    found = price_pools(
        state.instance,
        state.workers,
        state.prices,
        cost=state.cost,
        budget=state.budget(seconds * WORK_PER_SECOND, math.inf),
    )
    value = round_down(found.value)
    state.gain("pools", Bound(value, "nested", state.elapsed, found, workers=state.workers))


def wait_for_cheap_starts(state: SolveState) -> None:
    """Let requests wait where arrivals make that pay: shares of the way to the cheapest start."""
    instance = state.instance
    if state.over or state.prices is None or state.best is None or not instance.arrivals.any():
        return
    before, began = state.cost, state.elapsed
    priced = PricedStarts(state.pool, state.prices, state.best.starts)
    wait = priced.cheapest - instance.arrivals
    key = instance.areas / state.weights
    for share in _SHARES:
        releases = instance.arrivals + (share * wait).astype(np.int64)
        for ratio in _RATIOS:
            if state.finished or state.elapsed - began > _WAITING * state.time_limit:
                break
            found = list_on_workers(instance, state.workers, key, ratio, _LENGTH, releases)
            state.offer(found)
    state.note(f"releases: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


_EXACT = 24  # requests up to which branch and bound is worth the time
_ENUMERATED = 6  # requests of which all schedules are enumerated, in milliseconds
_FIRST = 10  # of which running sets, or CP-SAT, prove the optimum at once
_LOOK_EVERY = 0.05  # seconds between two looks at the token
_GRACE = 0.3  # seconds for a stage to put away what it found, when time is up or after Ctrl-C
_FIRST_SCHEDULE = 0.9  # seconds after Ctrl-C for the first schedule, if none is known
_FIRST_SEARCH = 0.1  # share of the time of a search before all else
_WAITING = 0.3  # of the time limit
_RUNS = 7  # from the best so far, where there are few requests
_BEFORE_LAST = 0.8  # of the time left, as a search of a second gains more than a program in ten
_DENSE, _DENSE_MORE = 0.3, 0.5  # of the time left, where the event program comes next
_IN_TIME = 0.95  # of the time, as what a search finds too late is lost
_LIMITS = ("horizon", "lateness", "penalty")  # of a program, that a schedule must keep
_FIRST_PRICE, _DEARER = 20.0, 5.0  # of a step late, over the largest weight; by how much it moves
_TRIED = 0.02  # of the work of a search, from a start that was given: do limits bind?
_AUCTIONS = 6  # prices of lateness
_AT_A_PRICE, _AT_A_PRICE_FEW = 0.6, 0.1  # of the time left, where the event program comes next
_MANY = 20_000  # requests from which on prices take longer than the policies


# Powers of the output by which memory-time is multiplied, and ratios of a window: lists to start
# from besides `area+window` (benchmarks/research.md).
_LISTS = ((0.25, 1.6), (0.0, 1.2), (0.5, 1.4))


class Stage(NamedTuple):
    """What improves the interval, and when; `docs/how-solve-works.md` shows its words."""

    what: str
    when: str
    budget: str  # shares are of the time left, or of the work
    suits: Callable[[SolveState], bool]
    work: Callable[[SolveState], None]


def go_through(state: SolveState) -> None:
    """Go through the stages until the optimum is proven, the token is set or time is up."""
    with heard() as struck:
        working = Aside(_work_and_leave, state)
        try:
            for _ in range(2):
                try:
                    _attend(state, working, struck)
                    break
                except KeyboardInterrupt:  # from a second Ctrl-C on
                    state.stop.set()
        finally:  # whatever happens, the stages go on no longer
            state.close()
            working.give_up()
            if struck:  # perhaps when all had ended: whoever has the token is to know
                state.stop.set()
                end_idle()


def _work_and_leave(state: SolveState) -> None:
    """Work, and leave no process where that was interrupted."""
    try:
        (_work if state.rows is None else _look_without_rows)(state)
    finally:
        if state.stop.is_set():
            end_idle()


def _work(state: SolveState, begin: int = 0, end: int | None = None) -> None:
    for stage in STAGES[begin:end]:
        if state.finished and state.best is not None:
            break
        try:
            if stage.suits(state) and state.wants(stage.work):
                stage.work(state)
        except (OptschedError, MemoryError) as error:
            exact = state.method not in ("auto", "search")
            if state.best is None or exact or isinstance(error, InfeasibleError):
                raise
            state.note(f"left out: {error or 'out of memory'}")


def _attend(state: SolveState, working: Aside[None], struck: list[int]) -> None:
    """Wait for the stages until time is up or the token is set, and a moment longer."""
    asked = first = math.inf  # when the token was set, and until when a schedule is waited for
    while not working.wait(_LOOK_EVERY):
        now = time.perf_counter()
        if struck:  # the one place where it becomes the token
            state.stop.set()
        if state.stop.is_set() and asked == math.inf:
            asked, first = now, state.elapsed + _FIRST_SCHEDULE
        over = now >= asked + _GRACE or state.left <= -_GRACE
        if (over and state.best is not None) or state.elapsed >= first:
            return
    working.result()


def find_first(state: SolveState) -> None:
    """Find a first interval."""
    many = len(state.instance) >= _MANY
    first = _first_bound(state, "closed-form" if many else "auto")
    state.raise_bound(first)
    for schedule in _follow_policies(state) if state.alone else list_placed(state):
        state.offer(schedule)
    if many and state.left > 0 and not state.finished:
        first = _first_bound(state, "auto")
        with state.lock:  # a bound with a certificate, even if it is no better
            state.bound = state.bound if state.closed else first
    state.prices = first.prices
    if not state.hard and state.prices is not None and state.best is not None:
        prices = np.array(state.prices.prices) / state.prices.denominator
        with suppress(OptschedError):  # of a penalty too large for 64 bits
            state.prices = certify(state.pool, prices, state.best.starts, *state.asked)
            state.raise_bound(of_prices(state.prices, first.seconds))
    if state.objective == "makespan":
        state.raise_bound(makespan_by_growth(state.instance, state.workers))
        if not state.workers.equal:
            pools = bound_of_pools(state.instance, state.workers, "auto", state.objective)
            state.raise_bound(pools)
    found = f"{state.cost:,.10g} ({state.best.policy})" if state.best is not None else "none"
    source = "policies" if state.alone else "lists"
    state.note(f"{source}: {found}; bound {proven(state.lowest, digits=10)} ({state.bound.method})")


def _first_bound(state: SolveState, method: BoundMethod) -> Bound:
    """Bound latency, which lateness only adds to, or how many are late however they are served."""
    if state.objective != "late-requests":
        return bound(state.pool, method, state.objective)
    return of_prices(certify(state.pool, np.zeros(0), state.pool.arrivals, *state.asked), 0.0)


def of_prices(certificate: Certificate, seconds: float) -> Bound:
    """Return the bound that prices prove."""
    value, premises = round_down(certificate.value), certificate.premises
    return Bound(value, "lagrangian", seconds, certificate, premises=premises)


class _Other(SolveState):
    """Another problem, of which schedules are offered to the one that was asked for."""

    of: SolveState

    @classmethod
    def than(
        cls, asked: SolveState, instance: Instance, method: str, objective: str = "", **changes: Any
    ) -> Self:
        """Return a problem of other weights, deadlines or parameters, of the same time."""
        params = replace(asked.params, start=None, stop=asked.ended, **changes)
        target: Any = objective or asked.objective
        other = cls(instance, target, method, asked.options, params, asked.workers)
        other.of, other.began = asked, asked.began
        return other

    @property
    def top(self) -> SolveState:
        """What the user asked for."""
        return self.of.top

    def offer(self, schedule: Schedule) -> None:
        super().offer(schedule)
        starts, policy, placement = schedule.starts, schedule.policy, schedule.placement
        asked = self.of
        asked.offer(
            Schedule(asked.instance, starts, policy, workers=asked.workers, placement=placement)
        )


class _Relaxed(_Other):
    """The same without deadlines and a horizon, for as long as what is best meets them."""

    patient = False  # whether what takes little of the time is done where they bind, too

    @property
    def binds(self) -> bool:
        """Whether what is best does not meet all that was asked for."""
        asked = self.top.exact
        return self.exact is not None and (asked is None or asked > self.exact)

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be done, or the limits bind."""
        return (self.binds and not self.patient) or super().finished

    def wants(self, work: Callable[..., None]) -> bool:
        """Return whether a stage is worth its time."""
        return not self.binds or work in _QUICK

    def raise_bound(self, proven: Bound, exact: Fraction | None = None) -> None:
        super().raise_bound(proven, exact)
        self.of.raise_bound(self._of_asked(proven), exact)

    def note(self, step: str) -> None:
        super().note(step)
        self.of.note(f"without limits, {step}")

    def latest_starts(self) -> IntArray:
        """Bound the starts that a program has by the limits, too, whose optimum alone counts."""
        latest, due = super().latest_starts(), self.of.due
        return latest if due is None else np.minimum(latest, due)

    def _of_asked(self, found: Bound) -> Bound:
        """Return a bound as one of the instance that was asked for, of whose deadlines it holds."""
        if (proof := found.certificate) is None:
            return found
        alone = proof.fingerprint == self.pool.fingerprint
        asked = self.of
        its = asked.pool.fingerprint if alone else asked.workers.fingerprint(asked.instance)
        return replace(found, certificate=replace(proof, fingerprint=its))


def _look_without_rows(state: SolveState) -> None:
    """Solve without the rows of a program: bounds hold with them, schedules that keep them do."""
    instance, model = state.instance, state.rows
    assert model is not None
    assert isinstance(model.program, HindsightProgram)
    latest = model.program.latest_under(model)
    if state.hard and latest is not None:
        if latest.min() < 0:  # no start is left, as the solver that comes next will say
            return
        instance = instance.replace(deadlines=latest + instance.outputs)
    relaxed = _Relaxed.than(state, instance, "auto")
    relaxed.patient = True
    _look(relaxed)
    state.prices = relaxed.prices


def look_without_limits(state: SolveState) -> None:
    """Solve without deadlines and a horizon: bounds hold with them, schedules that meet them do."""
    free = state.instance.replace(deadlines=None)
    relaxed = _Relaxed.than(
        state, free, state.method, horizon=None, lateness="forbidden", penalty=0.0
    )
    _look(relaxed)
    state.worked += relaxed.worked
    if relaxed.proven and state.proven:
        state.status = "optimal"
    if relaxed.prices is not None and state.hard:
        state.prices = replace(relaxed.prices, fingerprint=state.pool.fingerprint)


def _look(relaxed: _Relaxed) -> None:
    state = relaxed.of
    _work(relaxed, end=1)
    if (best := state.best) is not None and state.params.start is not None:
        # It may be better than what was found now, so that nothing seems to bind.
        starts, policy, place, workers = best.starts, best.policy, best.placement, state.workers
        relaxed.offer(Schedule(relaxed.instance, starts, policy, workers=workers, placement=place))
        work = _TRIED * state.searching * WORK_PER_SECOND
        stages.search_schedules(relaxed, state.params.seed, work=work)
    _work(relaxed, begin=1)


def put_price_on_lateness(state: SolveState) -> None:
    """Search with a price on lateness in place of deadlines, more while some are late."""
    due = state.instance.deadlines
    if state.over or due is None:
        return
    before, penalty, start = state.cost, _FIRST_PRICE * float(state.weights.max()), state.best
    few = len(state.instance) <= state.events
    seconds = state.searching * (_AT_A_PRICE_FEW if few else _AT_A_PRICE)
    until = state.elapsed + seconds
    for number in range(_AUCTIONS):
        priced = _Other.than(
            state, state.instance, "search", lateness="per-step", penalty=penalty, work=None
        )
        if not state.by_work:
            end = state.elapsed + (until - state.elapsed) / (_AUCTIONS - number)
            priced.options = replace(state.options, time_limit=end)
        if start is None:
            find_first(priced)
        else:
            priced.offer(start)
        work = seconds / _AUCTIONS * WORK_PER_SECOND
        stages.search_schedules(priced, state.params.seed + number, work=work)
        start = priced.best
        if state.over or start is None:
            break
        late = (start.completions > due).any()
        penalty *= _DEARER if late else 1 / _DEARER
    state.worked += seconds
    cost = f"{state.cost:,.10g}" if state.best is not None else "none in time"
    gained = f", gained {before - state.cost:,.10g}" if before < math.inf else ""
    state.note(f"lateness at a price: {cost}{gained}")


def first_of(program: HindsightProgram | EventProgram) -> Schedule | None:
    """Return the best that policies do within a program; beside running requests, that of one."""
    instance, workers = program.instance, program.workers
    released = instance.replace(
        arrivals=np.maximum(instance.arrivals, program.now),
        memory=workers.total if len(workers) == 1 else instance.memory,
    )
    limits = {name: getattr(program, name) for name in _LIMITS if hasattr(program, name)}
    state = SolveState(released, program.objective, params=SolveParams(**limits), workers=workers)
    if len(program.running.tokens):
        schedules = _serve_beside(program.running, released, program.now)
    else:
        schedules = _follow_policies(state) if state.alone else list_placed(state)
    for schedule in schedules:
        state.offer(schedule)
    if (best := state.best) is None:
        return None
    placement = best.placement
    return Schedule(instance, best.starts, best.policy, workers=workers, placement=placement)


def _serve_beside(running: Running, instance: Instance, now: int) -> Iterator[Schedule]:
    """Serve requests by memory-time beside those that are running, which come first."""
    count = len(running.tokens)
    key = np.concatenate([np.full(count, -1), instance.areas])
    starts = run(
        running.join(instance, now), PriorityPolicy("area", "", lambda _: key)
    ).schedule.starts
    yield Schedule(instance, starts[count:], "area")


def _follow_policies(state: SolveState) -> Iterator[Schedule]:
    for policy in _policies(state):
        if not state.closed:
            yield run(state.instance, policy).schedule


def _policies(state: SolveState) -> Iterator[Policy]:
    """Return policies that suit the objective; plain orders do where a proof comes next."""
    plain = _few(state) or _first_proof(state)
    yield from PRIORITIES if plain else BASIC.values()
    if state.objective == "weighted-latency":
        weights = state.weights
        yield PriorityPolicy("area-weighted", "", lambda i: i.areas / weights)
    if state.objective == "makespan":
        yield PriorityPolicy("largest", "", lambda i: -i.areas)
        yield PriorityPolicy("longest", "", lambda i: -i.outputs)
    elif not plain:
        yield from _lists(state)
    if state.instance.deadlines is not None:
        yield from DUE


def _lists(state: SolveState) -> Iterator[Policy]:
    """List requests by memory-time with a bias to short and wide ones, which are hard to pack."""
    areas, outputs = state.instance.areas, state.instance.outputs
    for power, ratio in _LISTS:
        if state.left <= 0:
            return
        yield _list(f"window-list-{power:g}", areas * outputs**power / state.weights, ratio)


def _list(name: str, key: FloatArray, ratio: float) -> PriorityPolicy:
    return PriorityPolicy(name, "", lambda _: key, f"window:{ratio}")


def _exact_is_quick(state: SolveState) -> bool:
    return len(state.instance) <= _EXACT


def _plain(state: SolveState, *methods: str) -> bool:
    return state.alone and state.plain and state.method in methods


def _limited(state: SolveState) -> bool:
    limited = state.instance.deadlines is not None or state.params.horizon is not None
    late = state.objective == "late-requests"
    suits = limited and not late and not _first_proof(state)
    return suits and state.method in ("auto", "search")


def _late_at_a_price(state: SolveState) -> bool:
    due = state.instance.deadlines is not None and state.timely
    return due and state.method in ("auto", "search") and not _first_proof(state)


def _small(state: SolveState) -> bool:
    latency = state.objective == "total-latency"
    return latency and _exact_is_quick(state) and _plain(state, "auto", "exact")


def _few(state: SolveState) -> bool:
    return _small(state) and len(state.instance) <= _ENUMERATED


def _first_proof(state: SolveState) -> bool:
    few = len(state.instance) <= (_FIRST if state.plain else EVENTS) and not _few(state)
    return few and state.alone and state.hard and state.method in ("auto", "exact")


def _events_first(state: SolveState) -> bool:
    arrivals = state.instance.arrivals
    late = bool((arrivals > arrivals[0]).any())
    most = EVENTS_FIRST if state.alone else stages.MOST_PLACED
    timely = state.timely and late and state.method == "auto"
    return timely and state.best is None and EVENTS_TIGHT < len(state.instance) <= most


def _priced(state: SolveState) -> bool:
    latency = state.objective != "makespan"
    return latency and state.method in ("auto", "search", "exact")


def _placed(state: SolveState) -> bool:
    return not state.alone and state.method != "search" and _exact_is_quick(state)


def _makespan(state: SolveState) -> bool:
    return state.objective == "makespan" and state.hard and state.method in ("auto", "search")


def _first_search(state: SolveState) -> None:
    everything = state.method == "search" and not state.beamed
    share = stages.BEFORE_BEAM if state.beamed or not state.alone else _FIRST_SEARCH
    stages.search_schedules(state, state.params.seed, 1.0 if everything else share)


def _searched_last(state: SolveState) -> bool:
    """Whether time that is left goes to a search; alone, `search` has taken all of it."""
    latency = _priced(state) and state.method != "exact" and not stages.next_by_rows(state)
    return latency and (state.method == "auto" or not _plain(state, "search") or state.beamed)


def _solve_program(state: SolveState) -> None:
    last = not state.alone and state.method == "auto" and _searched_last(state)
    stages.solve_program(state, _BEFORE_LAST * state.left if last else math.inf)


def _programmed(state: SolveState) -> bool:
    if not state.alone:
        packed = _makespan(state) and _packed_first(state)
        return packed or _placed(state) or state.method in ("highs", "cp-sat")
    solved = state.method in ("auto", "highs", "cp-sat")
    return solved and state.sizes is None and not _events_first(state)


class _Dense(_Other):
    """A search as for latency, in which a step of each request costs its memory-time."""

    def offer(self, schedule: Schedule) -> None:
        super().offer(schedule)
        if self.of.proven:
            self.ended.set()


def _packed_first(state: SolveState) -> bool:
    """Whether the event program, which is strong for few requests, comes after dense packing."""
    most = state.events if state.alone else stages.MOST_PLACED
    return state.method == "auto" and len(state.instance) <= most


def pack_densely(state: SolveState) -> None:
    """Complete early by packing densely: all orders of equal density cost the same."""
    if state.over or state.best is None:
        return
    before = state.cost
    few = len(state.instance) <= state.events
    share = _DENSE if few else _DENSE_MORE
    seconds = state.searching * (share if _packed_first(state) else 1.0)
    if seconds <= 0:
        return
    limit = _IN_TIME * (state.left if state.by_work else seconds)
    weighted = state.instance.replace(weights=state.instance.areas.astype(np.float64))
    work = seconds if state.by_work else None
    packing = _Dense.than(
        state, weighted, "search", "weighted-latency", work=work, on_progress=None
    )
    packing.options = replace(state.options, time_limit=None if math.isinf(limit) else limit)
    packing.began = stopwatch()
    find_first(packing)
    for number in range(_RUNS if few else 0):
        work = packing.searching / (_RUNS + 1 - number) * WORK_PER_SECOND
        stages.search_schedules(
            packing, state.params.seed + 2 + number, work=work, start=state.best
        )
    _first_search(packing)
    if packing.beamed:
        stages.start_large(packing, state.params.seed)
        stages.search_schedules(packing, state.params.seed + 1)
    state.worked += seconds
    state.status = "time limit" if state.left <= 0 else "search ended"
    state.note(f"dense packing: {state.cost:,.10g}, gained {before - state.cost:,.10g}")


# What is worth its time although rows of the user's bind.
_QUICK = {
    stages.enumerate_few,
    stages.prove_small,
    raise_pool_prices,
    stages.charge_for_growth,
    _first_search,
}

_LATENCY = "all but the makespan"
_HARD = "latency, of which no deadline may be missed"
_ALONE, _SEVERAL = "one worker", "several workers"
_TO_THE_END = "what is left"

STAGES: tuple[Stage, ...] = (
    Stage(
        "policies, on several workers lists, and a first bound",
        "always",
        "milliseconds",
        lambda _: True,
        find_first,
    ),
    Stage(
        "the same without deadlines and a horizon, while what is best meets them",
        "auto and search, but for late requests and where a proof comes at once",
        _TO_THE_END,
        _limited,
        look_without_limits,
    ),
    Stage(
        "lateness at a price, more while some are late",
        f"{_HARD}; auto and search",
        f"{_AT_A_PRICE:.0%}, up to {EVENTS_TIGHT} requests {_AT_A_PRICE_FEW:.0%}",
        _late_at_a_price,
        put_price_on_lateness,
    ),
    Stage(
        "running sets, where requests arrive together, or events by CP-SAT",
        f"{_ALONE}: {_ENUMERATED + 1} to {_FIRST} requests, makespan and deadlines up to {EVENTS}; "
        f"auto, where no schedule is known that meets deadlines, {EVENTS_TIGHT + 1} to "
        f"{EVENTS_FIRST} with arrivals, or on {_SEVERAL} to {stages.MOST_PLACED}",
        f"at most {stages.FIRST_SECONDS} s of CP-SAT; from {EVENTS_TIGHT + 1} requests on "
        f"{stages.FIRST_SHARE:.0%}",
        lambda state: _first_proof(state) or _events_first(state),
        stages.prove_first,
    ),
    Stage(
        "sizes of what runs together",
        "auto, makespan",
        f"{stages.SIZES_MAKESPAN:.0%} of at most {stages.SIZES_MOST} s",
        lambda state: _makespan(state) and state.method == "auto",
        stages.size_requests,
    ),
    Stage(
        "a search as for latency, in which each request weighs its memory-time",
        "makespan",
        f"{_DENSE:.0%} up to {EVENTS_TIGHT} requests, {_DENSE_MORE:.0%} on {_SEVERAL} up to "
        f"{stages.MOST_PLACED}, else all",
        _makespan,
        pack_densely,
    ),
    Stage(
        "all schedules, one by one",
        f"{_ALONE}, up to {_ENUMERATED} requests, total latency",
        "about a second",
        _few,
        stages.enumerate_few,
    ),
    Stage(
        "short searches, sizes of running sets, branch and bound, with growing effort",
        f"{_ALONE}, up to {_EXACT} requests, total latency",
        f"counted in work; where the gap is above {stages.HOPELESS:.0%}, only the first",
        _small,
        stages.prove_small,
    ),
    Stage(
        "better prices of memory, and of workers that few requests need",
        f"{_LATENCY}; offline up to {stages.PRICED:,} requests",
        f"{stages.PRICES_OFFLINE:.0%}, with arrivals or for such workers "
        f"{stages.PRICES_ARRIVALS:.0%}",
        _priced,
        raise_pool_prices,
    ),
    Stage(
        "charges for memory that is kept free to grow",
        _HARD,
        f"{stages.CHARGES:.0%}",
        lambda state: _priced(state) and state.hard,
        stages.charge_for_growth,
    ),
    Stage(
        "large requests wait",
        f"{_ALONE}, latency without deadlines or a horizon, with arrivals",
        f"{stages.DELAYS:.0%}; up to {stages.FEW} requests {stages.DELAYS_FEW:.0%}, before a beam "
        f"{stages.BEFORE_BEAM:.0%}",
        lambda state: _plain(state, "auto", "search", "exact"),
        stages.delay_requests,
    ),
    Stage(
        "requests wait for cheap starts",
        f"{_SEVERAL}, {_LATENCY}, with arrivals",
        f"{_WAITING:.0%} of the time limit",
        lambda state: _priced(state) and not state.alone,
        wait_for_cheap_starts,
    ),
    Stage(
        "simulated annealing: orders, and moves between workers",
        f"{_LATENCY}; on {_SEVERAL} up to {_EXACT} requests",
        f"{_FIRST_SEARCH:.0%}, before a beam or on {_SEVERAL} {stages.BEFORE_BEAM:.0%}",
        lambda state: _priced(state) and (state.alone or _placed(state)),
        _first_search,
    ),
    Stage(
        "a beam over starts, and annealing from what it found",
        f"{_ALONE}, latency without deadlines or a horizon, {BEAM_LEAST} to {BEAM_MOST:,} requests "
        "(with arrivals more, given time)",
        f"{stages.SLOW:.0%}, then {stages.AFTER_BEAM:.0%}",
        lambda state: state.beamed,
        lambda state: stages.start_large(state, state.params.seed),
    ),
    Stage(
        "sizes of running sets",
        f"{_ALONE}: exact; or auto, total latency, where the gap is above {stages.LARGE_GAP:.0%}",
        f"{stages.SIZES:.0%}",
        lambda state: (
            _plain(state, "exact")
            or (
                state.alone
                and state.hard
                and state.method == "auto"
                and stages.large_requests(state)
            )
        ),
        lambda state: stages.price_configurations(state, state.params.seed + 2),
    ),
    # Where sizes gained on prices, a time-indexed program would not get as far.
    Stage(
        "branch and bound",
        f"{_ALONE}: sizes are known; exact, or up to {_EXACT} requests",
        f"{stages.TO_THE_PROOF:.0%}",
        lambda state: state.alone and (state.method == "exact" or _exact_is_quick(state)),
        stages.branch_and_bound,
    ),
    Stage(
        "sizes of running sets; which requests share a worker, in which order",
        f"{_SEVERAL}, which are equal: total latency, up to {_EXACT} requests, the second part up "
        f"to {MOST} without deadlines",
        f"{stages.BEGINNING:.0%} from each of three beginnings; {stages.PARTS:.0%}, with arrivals "
        f"{stages.PARTS_ARRIVALS:.0%}",
        lambda state: (
            _placed(state)
            and state.objective == "total-latency"
            and state.hard
            and state.workers.equal
            and state.method in ("auto", "exact")
        ),
        stages.choose_parts,
    ),
    Stage(
        "a program for CP-SAT (events) or HiGHS (time-indexed)",
        f"highs or cp-sat; else {_ALONE}, where no sizes are known: events up to {EVENTS} "
        f"requests, by cp-sat, makespan and deadlines {EVENTS_TIGHT}, time-indexed up to "
        f"{stages.NONZEROS_PER_SECOND:,} nonzeros for each second left; {_SEVERAL}, up to "
        f"{_EXACT}, of the makespan {stages.MOST_PLACED}",
        f"{_TO_THE_END}; on {_SEVERAL} {_BEFORE_LAST:.0%}, where a search follows",
        _programmed,
        _solve_program,
    ),
    Stage(
        "prices and charges together",
        f"{_HARD}, where charges gained",
        f"{stages.CHARGES:.0%}, after a beam {stages.CHARGES_BEAM:.0%}",
        _priced,
        stages.raise_charges,
    ),
    Stage(
        "simulated annealing: moves of single requests, on several workers orders, too",
        f"auto, {_LATENCY}; search after a beam or on {_SEVERAL}; orders up to {FEW_PLACED} "
        "requests",
        _TO_THE_END,
        _searched_last,
        lambda state: stages.search_schedules(state, state.params.seed + 1),
    ),
)
