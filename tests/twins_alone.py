"""The literal twin of a run on one worker, by kind of policy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import literal
import literal_clocked
import literal_orders
import literal_vllm
import numpy as np
from literal_attempts import TieError, planned_run, threshold_run, work
from literal_chance import ChanceRun
from literal_selections import selection

from optsched import Beliefs, Execution, Instance, forecast
from optsched.clock import UNIT, LinearClock
from optsched.policies.base import window_of

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
            found = zip(
                run.requests.tolist(), run.starts.tolist(), run.tokens.tolist(), strict=True
            )
            assert self.attempts is not None
            return unequal("attempts", sorted(found), sorted(self.attempts))
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
            unequal(name, column.tolist(), getattr(self, name))
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
class World:
    """What a twin may look at beside the instance and the policy."""

    clock: Any
    intervals: str | None
    beliefs: Any
    seed: int
    patience: int | None
    until: float
    steps: bool


def unequal(name: str, found: Any, wanted: Any) -> str:
    same = found == [list(each) if isinstance(each, tuple) else each for each in wanted]
    return "" if same or found == wanted else f"{name}: {found}, but {wanted}\n"


def alone(instance: Instance, policy: Any, world: World) -> Twin | None:
    """Run one worker."""
    if not has_twin(policy, world):
        return None
    twin: Twin | None = KINDS[policy.needs.kind](instance, policy, world)
    return twin


def has_twin(policy: Any, world: World) -> bool:
    """Say whether there is a twin; of decisions only that of one order, where outputs are known."""
    if policy.needs.kind != "decision":
        return policy.needs.kind in KINDS
    return policy.name.startswith("tardiness") and world.intervals in (None, "exact")


# Orders, and batches one after another.


def keys(instance: Instance, policy: Any, world: World) -> list[Any]:
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
    outputs = [output for _, output in rows]
    if name in ("edf", "least-slack"):
        found = due_times(instance, world)
        if name == "least-slack":
            own_times = [taking(s, o, instance.memory, world) for s, o in rows]
            found = [due - own for due, own in zip(found, own_times, strict=True)]
        return untied(found, [*zip(rows, instance.deadlines.tolist(), strict=True)])
    own = {
        "fcfs": instance.arrivals.tolist(),
        "mc-sf": outputs,
        "mc-sf-total": [prompt + output for prompt, output in rows],
        "h-sf": outputs,
        "a-random": np.random.default_rng(world.seed).permutation(len(rows)).tolist(),
    }
    return own[name] if name in own else np.asarray(policy.key(instance)).tolist()


def due_times(instance: Instance, world: World) -> list[Fraction]:
    """Return the deadlines in the unit of the clock."""
    step = 1.0 if world.clock.unit == "steps" else instance.seconds_per_step
    return [due * Fraction(step) for due in instance.deadlines.tolist()]


def taking(prompt: int, output: int, memory: int, world: World) -> Fraction:
    """Return how long a request takes alone: every batch takes all of the constant."""
    if world.clock.unit == "steps":
        return Fraction(output)
    constant, held = Fraction(world.clock.constant), sum(range(prompt + 1, prompt + output + 1))
    without = work(prompt, output, memory, world.clock) - constant * Fraction(held, memory)
    return without + constant * output


def untied(found: list[Any], requests: list[Any]) -> list[Any]:
    """Return keys of requests; refuse different ones so close that rounding orders them."""
    for (one, i), (other, j) in pairwise(sorted(zip(found, range(len(found)), strict=True))):
        if requests[i] != requests[j] and other - one < 1e-9 * (1 + abs(other)) and one != other:
            raise TieError
    return found


def _of_decision(instance: Instance, policy: Any, world: World) -> Twin:
    """Admit by apparent tardiness cost."""
    rows = [*zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)]
    weights = [1.0] * len(rows) if instance.weights is None else instance.weights.tolist()
    charge = [work(s, o, instance.memory, world.clock) for s, o in rows]
    if world.clock.unit == "steps":
        charge = [each / instance.memory for each in charge]
    starts = [
        due - taking(*row, instance.memory, world)
        for due, row in zip(due_times(instance, world), rows, strict=True)
    ]
    last: dict[float, list[int]] = {}  # the order of the moment at which it was asked for

    def costs(i: int, now: float, mean: Fraction) -> float:
        slack = max(starts[i] - Fraction(now), Fraction(0))
        return math.log(weights[i] / charge[i]) - float(slack / (2 * mean))

    def walk(waiting: list[int], now: float) -> list[int]:
        if now not in last:
            mean = sum((charge[i] for i in waiting), Fraction(0)) / len(waiting)
            keys = [-costs(i, now, mean) for i in waiting]
            known = [(rows[i], starts[i], weights[i]) for i in waiting]
            ranked = zip(untied(keys, known), waiting, strict=True)
            last[now] = [i for _, i in sorted(ranked)]
        return [i for i in last[now] if i in waiting]

    return _admitted(instance, policy.rule, world, walk)


def _of_order(instance: Instance, policy: Any, world: World) -> Twin | None:
    key = keys(instance, policy, world)
    return _admitted(instance, policy.rule, world, literal.by_key(key))


def _of_batches(instance: Instance, policy: Any, world: World) -> Twin | None:
    choose = selection(policy.name.partition("+")[0], instance)
    if choose is None:
        return None
    one_by_one = policy.rule == "prefix"
    walk = literal.Served(choose) if one_by_one else literal_orders.Batches(instance, choose)
    return _admitted(instance, policy.rule, world, walk)


def _admitted(instance: Instance, rule: str, world: World, walk: Any) -> Twin:
    """Admit in an order that is asked again and again, under a rule."""
    if rule == "backfill":
        return _of_starts(instance, literal_orders.simulate_backfill(instance, walk))
    requests = _requests(instance, world)
    decide = literal_clocked.admission(requests, instance.memory, walk, *window_of(rule))
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


def _requests(instance: Instance, world: World) -> list[literal_clocked.Request]:
    return literal_clocked.requests_of(
        instance.prompts.tolist(), instance.outputs.tolist(), arrivals_of(instance, world)
    )


def arrivals_of(instance: Instance, world: World) -> list[float]:
    """Return the arrivals in the unit of the clock."""
    steps = instance.arrivals.tolist()
    if world.clock.unit == "steps" or not any(steps):
        return [float(step) for step in steps]
    assert instance.seconds_per_step is not None
    return [step * instance.seconds_per_step for step in steps]


def _clocked(requests: list[literal_clocked.Request], decide: Any, world: World) -> Twin:
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


def _of_engine(instance: Instance, policy: Any, world: World) -> Twin:
    how = {"mixed": "mixed", "prefill-first": "prefill first", "chunked": "chunked"}
    blocks, size = instance.memory // policy.block_size, policy.block_size
    reserve = int(Fraction(str(policy.watermark)) * blocks) * size
    requests = _requests(instance, world)
    limits = (policy.max_num_seqs, policy.max_num_batched_tokens, reserve, size)
    decide = literal_clocked.engine(requests, blocks * size, how[policy.batching], *limits)
    return _clocked(requests, decide, world)


def _of_waiting(instance: Instance, policy: Any, world: World) -> Twin:
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


def _of_plan(instance: Instance, policy: Any, world: World) -> Twin | None:
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


def _of_chance(instance: Instance, policy: Any, world: World) -> Twin | None:
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


def _of_threshold(instance: Instance, policy: Any, world: World) -> Twin:
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


def _of_vllm(instance: Instance, policy: Any, world: World) -> Twin:
    outcome = vllm_outcome(instance, policy, world)
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


def vllm_outcome(
    instance: Instance, policy: Any, world: World, pause: float = math.inf
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
    sizes = (instance.prompts.tolist(), instance.outputs.tolist(), arrivals_of(instance, world))
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
        key = None if policy.order is None else _key_of(policy.order.name, instance, world)
        bounds = known.lower.tolist(), known.upper.tolist()
        foresight = literal_vllm.Foresight(*bounds, key, policy.plan, chances, policy.deviations)
        scheduler = literal_vllm.with_foresight(foresight)
    return literal_vllm.run(requests, settings, world.clock, world.until, scheduler, pause)


def _key_of(name: str, instance: Instance, world: World) -> Callable[[int, int, Any], Any]:
    """Return the key of a request with a prompt and so many tokens to come."""
    memory = instance.memory
    due = [] if instance.deadlines is None else due_times(instance, world)
    keys: dict[str, Callable[[int, int, Any], Any]] = {
        "fcfs": lambda prompt, left, request: request.arrival,
        "mc-sf": lambda prompt, left, _: left,
        "mc-sf-total": lambda prompt, left, _: prompt + left,
        "area": lambda prompt, left, _: work(prompt, left, memory),
        "work": lambda prompt, left, _: float(work(prompt, left, memory, world.clock)),
        "edf": lambda prompt, left, request: due[request.index],
        "least-slack": lambda prompt, left, request: (
            float(due[request.index]) - float(taking(prompt, left, memory, world))
        ),
    }
    return keys[name]


KINDS: dict[str, Any] = {
    "decision": _of_decision,
    "order": _of_order,
    "batch": _of_batches,
    "plan": _of_plan,
    "chance": _of_chance,
    "threshold": _of_threshold,
    "engine": _of_engine,
    "wait": _of_waiting,
    "vllm": _of_vllm,
}
