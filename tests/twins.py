"""The literal twin of a run of any policy in any world, and whether the run equals it.

`twin_of` takes what `optsched.run` takes, for workers that run each on its own or a single one. It
knows every policy by name but the rolling horizon; of functions it knows orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import literal
import literal_clocked
import literal_orders
import literal_routing
import literal_vllm
import numpy as np
from literal_attempts import TieError, planned_run, threshold_run, work
from literal_chance import ChanceRun

from optsched.clock import UNIT, LinearClock, get_clock
from optsched.execution import Execution
from optsched.forecasts import Beliefs, forecast
from optsched.policies import get_policy, with_rule
from optsched.policies.base import delay_of, window_of
from optsched.routers import get_router
from optsched.solvers import select_batch
from optsched.solvers.selection.expected_starts import expected_starts
from optsched.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched import Instance

#: For each batch begun, by request: tokens held when it ends, 0 of one that waits, and made.
States = list[dict[int, tuple[int, int]]]


@dataclass
class Twin:
    """What a literal run did; lists by request, and by batch."""

    spans: list[tuple[float, float]]
    last: list[int]
    states: States
    first: list[int] | None = None
    contents: list[list[int]] | None = None
    preempted: list[int] | None = None
    lost: list[int] | None = None
    attempts: list[tuple[int, float, int]] | None = None  # request, begin, tokens
    rows: list[list[int]] | None = None  # statistics of vLLM

    def differs(self, run: Any) -> str:
        """Return what a run did otherwise; nothing if it is the same."""
        if isinstance(run, Execution):
            found = zip(run.requests.tolist(), run.starts.tolist(), run.tokens.tolist(), strict=True)
            assert self.attempts is not None
            return _unequal("attempts", sorted(found), sorted(self.attempts))
        spans, literal_spans = (np.reshape(each, (-1, 2)) for each in (run.log.spans, self.spans))
        if spans.shape != literal_spans.shape or not np.allclose(spans, literal_spans, rtol=1e-12):
            return f"spans: {spans.tolist()}, but {literal_spans.tolist()}"
        columns = {
            "contents": run.log.contents,
            "first": run.first_batch,
            "last": run.last_batch,
            "preempted": run.preempted,
            "lost": run.preempted_tokens_by_request,
            "rows": run.statistics,
        }
        return "".join(
            _unequal(name, column.tolist(), getattr(self, name))
            for name, column in columns.items()
            if column is not None
        )

    def look(self, time: float) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """Return what is on the worker when a request comes, and which are complete.

        That is before the worker decides on a batch that begins then. What is in a batch counts as
        it is when that ends, and completes then.
        """
        begun = sum(begin < time for begin, _ in self.spans)
        if not begun:
            return {}, set()
        end = self.spans[begun - 1][1]
        ended = begun if end <= time else begun - 1
        done = {i for i, last in enumerate(self.last) if 0 <= last < ended}
        state = self.states[begun - 1]
        if self.attempts is not None and end < time:  # no batch followed: all were sent back
            state = {}
        return {i: state[i] for i in state if i not in done}, done


@dataclass
class Routed:
    """What literal workers did: the worker of each request, and the twin of each worker."""

    placement: list[int]
    twins: list[Twin | None]

    def differs(self, run: Any) -> str:
        """Return what a run did otherwise; nothing if it is the same."""
        if wrong := _unequal("placement", run.placement.tolist(), self.placement):
            return wrong
        pairs = zip(run.runs, self.twins, strict=True)
        return "".join(twin.differs(each) for each, twin in pairs if twin is not None)


@dataclass
class _World:
    """What a twin may look at beside the instance and the policy."""

    clock: Any
    intervals: str | None
    beliefs: Any
    seed: int
    patience: int | None
    until: float
    steps: bool


def twin_of(
    instance: Instance,
    policy: Any,
    *,
    clock: Any = None,
    workers: Any = None,
    router: Any = None,
    intervals: str | None = None,
    beliefs: Any = None,
    rule: str = "prefix",
    seed: int = 0,
    patience: int | None = None,
    until: float = math.inf,
) -> Twin | Routed | None:
    """Return what a literal run does; None where there is no twin, or rounding decides a tie."""
    chosen = with_rule(get_policy(policy), rule)
    timed = UNIT if clock is None else get_clock(clock)
    world = _World(timed, intervals, beliefs, seed, patience, until, clock is None)
    try:
        if workers is None:
            return _alone(instance, chosen, world)
        where = as_workers(workers, instance)
        how = get_router("least-tokens" if router is None else router)
        return _routed(instance, chosen, world, where, how)
    except TieError:
        return None


def _unequal(name: str, found: Any, wanted: Any) -> str:
    same = found == [list(each) if isinstance(each, tuple) else each for each in wanted]
    return "" if same or found == wanted else f"{name}: {found}, but {wanted}\n"


def _alone(instance: Instance, policy: Any, world: _World) -> Twin | None:
    """Run one worker."""
    twin = _KINDS.get(policy.needs.kind)
    return None if twin is None else twin(instance, policy, world)


# Orders, and batches one after another.


def _keys(instance: Instance, policy: Any, world: _World) -> list[Any]:
    """Return the keys of an order from their definitions; those of an order of one's own."""
    rows = list(zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True))
    name, _, parameters = policy.name.partition("+")[0].partition(":")
    if name in ("area", "work"):
        clock = world.clock if name == "work" else None
        found = [work(s, o, instance.memory, clock) for s, o in rows]
        if parameters == "weighted" and instance.weights is not None:
            weights = instance.weights.tolist()
            found = [key / Fraction(w) for key, w in zip(found, weights, strict=True)]
        elif parameters:
            raise TieError  # a mixture of shares, found by search
        for (one, i), (other, j) in pairwise(sorted(zip(found, range(len(rows)), strict=True))):
            if one != other and other - one < 1e-9 * other and rows[i] != rows[j]:
                raise TieError
        return found
    own = {"fcfs": instance.arrivals.tolist(), "mc-sf": [o for _, o in rows],
           "mc-sf-total": [s + o for s, o in rows], "h-sf": [o for _, o in rows],
           "a-random": np.random.default_rng(world.seed).permutation(len(rows)).tolist()}  # fmt: skip
    return own[name] if name in own else np.asarray(policy.key(instance)).tolist()


class _Expected:
    """Expected starts of the waiting requests, computed when one is new."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.known = instance, dict[int, float]()

    def __call__(self, waiting: list[int]) -> dict[int, float]:
        if not set(waiting) <= set(self.known):
            y = expected_starts(self.instance.take(waiting)).tolist()
            self.known = dict(zip(waiting, y, strict=True))
        return self.known


def selection(name: str, instance: Instance) -> Callable[[list[int]], list[int]] | None:
    """Return what chooses the next batch among those that wait, by name of the policy.

    What a solver selects is compared with all batches elsewhere.
    """

    def solved(method: Any, **options: Any) -> Callable[[list[int]], list[int]]:
        def choose(waiting: list[int]) -> list[int]:
            batch = select_batch(instance.take(waiting), method, **options)
            return [waiting[place] for place in batch.requests]

        return choose

    def by_expected_start(waiting: list[int]) -> list[int]:
        """Alg. 6, in batches whose peaks fit together."""
        y = expected(waiting)
        order = sorted(waiting, key=lambda i: (y[i], i))
        held = np.cumsum(instance.peaks[order])
        return order[: int((held <= instance.memory).sum())]

    expected = _Expected(instance)
    made: dict[str, Callable[[], Callable[[list[int]], list[int]]]] = {
        "sorted-f": lambda: literal.SortedF(instance).select,
        "sorted-f-dp": lambda: literal_orders.exact_selection(instance),
        "sorted-f-scaled-dp": lambda: solved("scaled-dp"),
        "sorted-f-quantile": lambda: literal_orders.quantile_selection(instance),
        "sorted-f-mip": lambda: solved("mip"),
        "sorted-f-mip-profile": lambda: solved("mip", fit="profile"),
        "sorted-lp": lambda: by_expected_start,
        "lp-swap": lambda: literal_orders.lp_swap_selection(instance, expected),
    }
    return made[name]() if name in made else None


def _of_order(instance: Instance, policy: Any, world: _World) -> Twin | None:
    key = _keys(instance, policy, world)
    return _admitted(instance, policy.rule, world, literal.by_key(key))


def _of_batches(instance: Instance, policy: Any, world: _World) -> Twin | None:
    choose = selection(policy.name.partition("+")[0], instance)
    if choose is None:
        return None
    one_by_one = policy.rule == "prefix"
    walk = literal.Served(choose) if one_by_one else literal_orders.Batches(instance, choose)
    return _admitted(instance, policy.rule, world, walk)


def _admitted(instance: Instance, rule: str, world: _World, walk: Any) -> Twin:
    """Admit in an order that is asked again and again, under a rule."""
    if rule == "backfill":
        return _of_starts(instance, literal_orders.simulate_backfill(instance, walk))
    delays = rule.startswith("delay")
    delay = (delay_of(rule), world.clock) if delays else None
    limits = (1, 1) if delays else window_of(rule)
    return _run_of(_requests(instance, world), instance.memory, walk, limits, delay, world)


def _run_of(
    requests: list[literal_clocked.Request],
    memory: int,
    walk: Any,
    limits: tuple[float, int],
    delay: Any,
    world: _World,
) -> Twin:
    decide = literal_clocked.admission(requests, memory, walk, *limits, delay)
    found = _clocked(requests, decide, world)
    found.attempts = [
        (r.index, found.spans[r.begun][0], r.output) for r in requests if r.begun >= 0
    ]
    return found


def _of_starts(instance: Instance, starts: list[int]) -> Twin:
    """Return what happens in steps where requests start then and run through."""
    outputs, prompts = instance.outputs.tolist(), instance.prompts.tolist()
    rows = list(zip(starts, outputs, strict=True))
    steps = sorted({step for start, output in rows for step in range(start, start + output)})
    states = []
    for step in steps:
        made = {i: step + 1 - s for i, (s, o) in enumerate(rows) if s <= step < s + o}
        states.append({i: (prompts[i] + tokens, tokens) for i, tokens in made.items()})
    last = [steps.index(start + output - 1) for start, output in rows]
    attempts = [(i, start, output) for i, (start, output) in enumerate(rows)]
    return Twin([(step, step + 1) for step in steps], last, states, attempts=attempts)


# Events on a clock.


def _requests(instance: Instance, world: _World) -> list[literal_clocked.Request]:
    return literal_clocked.requests_of(
        instance.prompts.tolist(), instance.outputs.tolist(), _arrivals(instance, world)
    )


def _arrivals(instance: Instance, world: _World) -> list[float]:
    """Return the arrivals in the unit of the clock."""
    steps = instance.arrivals.tolist()
    if world.clock.unit == "steps" or not any(steps):
        return [float(step) for step in steps]
    assert instance.seconds_per_step is not None
    return [step * instance.seconds_per_step for step in steps]


def _clocked(requests: list[literal_clocked.Request], decide: Any, world: _World) -> Twin:
    outcome = literal_clocked.run(requests, world.clock, decide, world.until)
    return Twin(
        [batch[:2] for batch in outcome.batches],
        [r.ended for r in requests],
        outcome.states,
        [r.begun for r in requests],
        [list(batch[2]) for batch in outcome.batches],
        [r.returns for r in requests],
        [r.lost for r in requests],
    )


def _of_engine(instance: Instance, policy: Any, world: _World) -> Twin:
    how = {"mixed": "mixed", "prefill-first": "prefill first", "chunked": "chunked"}
    blocks, size = instance.memory // policy.block_size, policy.block_size
    reserve = int(Fraction(str(policy.watermark)) * blocks) * size
    requests = _requests(instance, world)
    limits = (policy.max_num_seqs, policy.max_num_batched_tokens, reserve, size)
    decide = literal_clocked.engine(requests, blocks * size, how[policy.batching], *limits)
    return _clocked(requests, decide, world)


def _of_waiting(instance: Instance, policy: Any, world: _World) -> Twin:
    requests = _requests(instance, world)
    queues = policy.queues(instance, world.clock, np.array([r.arrival for r in requests]))
    tables = (queues.entrance.tolist(), queues.before.tolist(), queues.length.tolist())
    changes, levels = queues.changes.tolist(), queues.thresholds.tolist()

    def level(now: float) -> list[int]:
        return levels[max(place for place, change in enumerate(changes) if change <= now)]

    decide = literal_clocked.thresholds(requests, instance.memory, *tables, level)
    return _clocked(requests, decide, world)


# Policies that preempt and start again.


def _of_worker(worker: Any) -> Twin:
    begins = [begin for begin, _, _ in worker.batches]
    first = [-1] * len(worker.outputs)
    for i, begin, tokens in worker.attempts:
        if tokens == worker.outputs[i]:
            first[i] = begins.index(begin)
    for i, start in worker.running.items():
        first[i] = start if start < worker.step else -1
    return Twin(
        [batch[:2] for batch in worker.batches],
        worker.last,
        worker.states,
        first,
        [list(content) for _, _, content in worker.batches],
        worker.preempted,
        worker.lost,
        worker.attempts,
    )


def _of_plan(instance: Instance, policy: Any, world: _World) -> Twin | None:
    assert world.intervals is not None
    known = forecast(instance, world.intervals)
    policy = policy.for_forecast(known)
    if "work" in policy.order and not isinstance(world.clock, LinearClock):
        return None
    timed = world.clock is not UNIT and policy.slack_on_clock is not None
    slack = policy.slack_on_clock if timed else policy.slack
    planned = known.lower if policy.plan == "lower" else known.upper
    worker = planned_run(
        instance,
        planned.tolist(),
        known.upper.tolist(),
        policy.order,
        policy.outlived,
        policy.preempt,
        int(Fraction(str(slack)) * instance.memory),
        world.seed,
        None if world.steps else world.clock,
        world.until,
    )
    return _of_worker(worker)


def _of_chance(instance: Instance, policy: Any, world: _World) -> Twin | None:
    assert world.intervals is not None
    if policy.order not in ("area", "work"):
        return None
    known = forecast(instance, world.intervals, world.beliefs)
    beliefs = known.beliefs or Beliefs.to_learn(known.prompts, int(known.upper.max()))
    usual = 0.5 if world.clock is UNIT else 1.0
    literal_run = ChanceRun(
        instance,
        known.lower.tolist(),
        known.upper.tolist(),
        beliefs.chances.tolist(),
        beliefs.rows.tolist(),
        beliefs.prior,
        usual if policy.deviations is None else policy.deviations,
        policy.passed,
        world.seed,
        clock=None if world.steps else world.clock,
        charged=world.clock if policy.order == "work" else None,
        until=world.until,
    )
    return _of_worker(literal_run.run())


def _of_threshold(instance: Instance, policy: Any, world: _World) -> Twin:
    protects = -(-instance.memory * Fraction(str(policy.alpha)) // 1)  # rounded up
    patience = world.patience
    if patience is None:
        patience = max(10_000, 100 * int(instance.outputs.max()))
    worker, _ = threshold_run(
        instance,
        instance.memory - protects,
        policy.beta,
        world.seed,
        None if world.steps else world.clock,
        world.until,
        math.inf if policy.beta is None else patience,
    )
    return _of_worker(worker)


# vLLM.


def _of_vllm(instance: Instance, policy: Any, world: _World) -> Twin:
    outcome = _vllm(instance, policy, world)
    requests = outcome.requests
    return Twin(
        outcome.spans,
        [-1 if r.last is None else r.last for r in requests],
        [],
        [-1 if r.first is None else r.first for r in requests],
        [list(content) for content in outcome.contents],
        [r.preempted for r in requests],
        [r.lost for r in requests],
        rows=[list(batch.row) for batch in outcome.batches],
    )


def _vllm(
    instance: Instance, policy: Any, world: _World, pause: float = math.inf
) -> literal_vllm.Outcome:
    """Serve until a pause; literal twins of other orders than these there are none."""
    blocks = policy.num_gpu_blocks or instance.memory // policy.block_size + 1
    by_priority = policy.scheduling_policy == "priority" or policy.order is not None
    settings = literal_vllm.Settings(
        blocks,
        policy.block_size,
        policy.max_num_seqs,
        policy.max_num_batched_tokens,
        "priority" if by_priority else "fcfs",
        policy.watermark,
        policy.scheduler_reserve_full_isl,
        policy.async_scheduling,
    )
    given = policy.order is None and instance.priorities is not None
    priorities = instance.priorities.tolist() if given else [0] * len(instance)
    sizes = (instance.prompts.tolist(), instance.outputs.tolist(), _arrivals(instance, world))
    requests = [
        literal_vllm.Request(i, *row, instance.label(i))
        for i, row in enumerate(zip(*sizes, priorities, strict=True))
    ]
    scheduler = literal_vllm.Scheduler
    if policy.plan or policy.order is not None:
        known = forecast(instance, world.intervals or "exact", world.beliefs)
        chances = None
        if known.beliefs is not None:
            table = known.beliefs.chances.tolist()  # as they were before they became floats
            rows = [[Fraction(chance).limit_denominator(10**9) for chance in row] for row in table]
            chances = [rows[row] for row in known.beliefs.rows.tolist()]
        key = None if policy.order is None else _key_of(policy.order.name, instance.memory, world)
        bounds = known.lower.tolist(), known.upper.tolist()
        foresight = literal_vllm.Foresight(*bounds, key, policy.plan, chances, policy.deviations)
        scheduler = literal_vllm.with_foresight(foresight)
    return literal_vllm.run(requests, settings, world.clock, world.until, scheduler, pause)


def _key_of(name: str, memory: int, world: _World) -> Callable[[int, int, Any], Any]:
    """Return the key of a request with a prompt and so many tokens to come."""
    keys: dict[str, Callable[[int, int, Any], Any]] = {
        "fcfs": lambda prompt, left, request: request.arrival,
        "mc-sf": lambda prompt, left, _: left,
        "mc-sf-total": lambda prompt, left, _: prompt + left,
        "area": lambda prompt, left, _: work(prompt, left, memory),
        "work": lambda prompt, left, _: float(work(prompt, left, memory, world.clock)),
    }
    return keys[name]


_KINDS: dict[str, Any] = {
    "order": _of_order,
    "batch": _of_batches,
    "plan": _of_plan,
    "chance": _of_chance,
    "threshold": _of_threshold,
    "engine": _of_engine,
    "wait": _of_waiting,
    "vllm": _of_vllm,
}


# Several workers.


def _routed(
    instance: Instance, policy: Any, world: _World, workers: Any, router: Any
) -> Routed | None:
    """Send each request where its router does, given what literal runs of those before show."""
    if policy.needs.kind not in _KINDS:
        return None
    memories = list(workers.memories)
    placed: list[list[int]] = [[] for _ in memories]

    def twin(worker: int) -> Twin | None:
        if not placed[worker]:
            return None
        own = _own(instance, placed[worker], memories[worker])
        return _alone(own, policy, _seeded(world, worker))

    placement: list[int] = []
    if router.name == "central":
        key, arrivals = _keys(instance, policy, world), _arrivals(instance, world)
        placement, begun = literal_routing.serve_from_one_queue(
            instance, memories, key, world.clock, arrivals
        )
        return Routed(placement, [_begun(instance, g, placement, begun, world) for g in range(len(memories))])
    fitting = [np.flatnonzero(row).tolist() for row in workers.allowed(instance)]
    if router.choices is not None and router.choices < len(memories):
        rng = np.random.default_rng(np.random.SeedSequence(world.seed, spawn_key=(2,)))
        drawn = rng.random((len(instance), len(memories))).tolist()
        for i, able in enumerate(fitting):
            fitting[i] = sorted(sorted(able, key=lambda g, i=i: drawn[i][g])[: router.choices])
    scale = [max(memories) / memory for memory in memories]
    if not {"held", "waiting_prompts", "work"} & set(router.weights):
        scale = [1] * len(memories)
    if router.weights and max(_arrivals(instance, world)) > world.until:
        return None  # what is on workers that were stopped nobody says
    turn = -1
    for i, time in enumerate(_arrivals(instance, world)):
        if router.weights:
            scores = {}
            for g in fitting[i]:
                load = dict.fromkeys(router.weights, 0)
                if placed[g]:
                    own = _own(instance, placed[g], memories[g])
                    load = _load(own, policy, _seeded(world, g), time)
                scores[g] = scale[g] * sum(w * load[name] for name, w in router.weights.items())
            turn = min(fitting[i], key=lambda g: (scores[g], g))
        elif router.function is not None:
            return None
        else:
            turn = next((g for g in fitting[i] if g > turn), fitting[i][0])
        placement.append(turn)
        placed[turn].append(i)
    return Routed(placement, [twin(g) for g in range(len(memories))])


def _begun(
    instance: Instance, worker: int, placement: list[int], begun: list[float], world: _World
) -> Twin | None:
    """Return the twin of a worker on which its requests begin at these times."""
    own = [i for i, where in enumerate(placement) if where == worker]
    if not own:
        return None
    columns = (instance.prompts[own].tolist(), instance.outputs[own].tolist())
    requests = literal_clocked.requests_of(*columns, [begun[i] for i in own])
    order = literal.by_key([r.arrival for r in requests])
    return _run_of(requests, 10**18, order, (1, 1), None, world)


def _seeded(world: _World, worker: int) -> _World:
    return _World(**(world.__dict__ | {"seed": world.seed + worker}))


def _own(instance: Instance, requests: list[int], memory: int) -> Instance:
    return instance.take(np.array(requests, dtype=np.int64)).replace(memory=memory)


def _load(own: Instance, policy: Any, world: _World, time: float) -> dict[str, float]:
    """Count what is on a worker when a request arrives."""
    prompts, outputs = own.prompts.tolist(), own.outputs.tolist()
    if policy.needs.kind == "vllm":
        outcome = _vllm(own, policy, world, pause=time)
        assert outcome.engine is not None
        there = [r for r in outcome.requests if r.last is None]
        runs = {r.index: r.computed for r in outcome.engine.running}
        made = {r.index: r.made + r.in_flight for r in there}
    else:
        found = _alone(own, policy, world)
        assert found is not None
        state, done = found.look(time)
        runs = {i: held for i, (held, _) in state.items() if held}
        made = {i: state.get(i, (0, 0))[1] for i in range(len(own)) if i not in done}
    waits = [i for i in made if i not in runs]
    areas = {i: work(prompts[i], outputs[i], own.memory) for i in made}
    taken = {i: work(prompts[i], tokens, own.memory) for i, tokens in made.items()}
    return {
        "waiting": len(waits),
        "running": len(runs),
        "held": sum(runs.values()),
        "waiting_prompts": sum(prompts[i] for i in waits),
        "work": sum(areas[i] - taken[i] for i in made),
    }
