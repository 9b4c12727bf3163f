"""Runs in steps.

While no request arrives, a backfill plan stays the same, so that a new one is made at arrivals
only, as far as it decides what starts before the next one.

When the greedy policy overflows, the worker becomes empty. If it was empty before with no
completion and no arrival since, the two states are equal, and the run repeats in a loop, which no
later arrival frees. Random clearing repeats a state without repeating itself; such a run is given
up after `patience` steps.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched import admission
from optsched._internal.arguments import noted, noting
from optsched._internal.arrays import FloatArray, IntArray, Records, ranks_in, records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside
from optsched._internal.small_kernels import pop, push, push_by_key
from optsched.clock import BatchContent
from optsched.errors import PolicyError, shown
from optsched.policies.base import BatchPolicy, BatchSelector, Rule, window_of
from optsched.policies.decision import Decision, State
from optsched.problem.execution import Execution, unpreempted
from optsched.problem.work import arrival_times, due_times
from optsched.simulate.seconds.batches import (
    BATCH,
    add_batch,
    apart,
    new_log,
    next_batch,
    start,
    with_room,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched.problem.forecasts import Forecast
    from optsched.problem.instance import Instance
    from optsched.simulate.seconds.batches import BatchLog, EngineRequests, LogArrays, Timer
    from optsched.simulate.settings import Task


WAITS, RUNS = 0, 1  # roles of a request that is ranked

_WORKER = (
    *("released", "waiting", "done", "logged"),  # requests, and attempts that have ended
    *BATCH,
)


class Worker(NamedTuple):
    """State of a worker between two batches; shape (n,) but for the first."""

    now: Records  # (1,), counters
    running: IntArray  # requests
    starts: IntArray  # of the present attempts, in batches
    attempts: IntArray  # that were preempted, of each request


def new_worker(count: int) -> Worker:
    """Make a worker on which none of so many requests has run."""
    arrays = (np.zeros(count, dtype=np.int64) for _ in range(3))
    return Worker(records(1, _WORKER), *arrays)


@compiled
def random_rank(seed: int, request: int, attempt: int, role: int) -> int:
    """Hash to a number in [0, 2^63): the finaliser of splitmix64, once per argument."""
    mixed = np.uint64(0)
    for part in (seed, request, attempt, role):
        mixed += np.uint64(0x9E3779B97F4A7C15) + np.uint64(part)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.int64(mixed >> np.uint64(1))  # type: ignore[return-value]  # int() would be unsigned


@compiled
def admit(worker: Worker, request: int, prompt: int) -> None:
    """Let a request start in the next batch."""
    now = worker.now[0]
    worker.starts[request] = now.batch
    worker.running[now.active] = request
    start(now, prompt)


@compiled_inside
def enqueue(
    worker: Worker,
    heap: IntArray,
    keys: FloatArray | IntArray,
    ranks: IntArray,
    request: int,
    seed: int,
) -> None:
    """Let a request wait by its key, among equal ones at random."""
    ranks[request] = random_rank(seed, request, worker.attempts[request], WAITS)
    now = worker.now[0]
    now.waiting = push_by_key(heap, now.waiting, request, keys, ranks)


@allocating_inside
def end(worker: Worker, log: IntArray, request: int, prompt: int) -> IntArray:
    """Free the memory of a request, and log its attempt."""
    now = worker.now[0]
    now.active -= 1
    now.tokens -= prompt + now.batch - worker.starts[request]
    return _logged(worker, log, request)


@allocating_inside
def log_attempt(log: IntArray, logged: int, request: int, start: int, tokens: int) -> IntArray:
    """Write an attempt down; return the log, a larger one where it was full."""
    if logged == log.shape[1]:
        larger = np.empty((3, 2 * logged), dtype=np.int64)
        for row in range(3):
            for column in range(logged):
                larger[row, column] = log[row, column]
        log = larger
    log[0, logged], log[1, logged], log[2, logged] = request, start, tokens
    return log


@allocating_inside
def _logged(worker: Worker, log: IntArray, request: int) -> IntArray:
    """Write down the attempt of a request that runs."""
    now, first = worker.now[0], worker.starts[request]
    log = log_attempt(log, now.logged, request, first, now.batch - first)
    now.logged += 1
    return log


@allocating_inside
def all_attempts(worker: Worker, log: IntArray) -> IntArray:
    """Return all attempts, those that are still running last."""
    for place in range(worker.now[0].active):
        log = _logged(worker, log, worker.running[place])
    return log[:, : worker.now[0].logged].copy()


@compiled_inside
def least_made(worker: Worker, seed: int) -> int:
    """Return the place of the running request that has made the fewest tokens."""
    now = worker.now[0]
    chosen, fewest, lowest = -1, 0, 0
    for place in range(now.active):
        request = worker.running[place]
        made = now.batch - worker.starts[request]
        if chosen >= 0 and made > fewest:
            continue
        rank = random_rank(seed, request, worker.attempts[request], RUNS)
        if chosen < 0 or made < fewest or rank < lowest:
            chosen, fewest, lowest = place, made, rank
    return chosen


def run_decisions(task: Task, known: Forecast) -> tuple[IntArray, int, BatchLog, bool, bool]:
    """Run a policy that decides batch by batch; tells last whether it gave up, and was blind."""
    run, until, patience = _DecisionRun(task, known), task.settings.until, task.patience
    given_up = False
    while not given_up and run.now < until and run.advance():
        given_up = run.step + run.idle - run.progress > patience
    running = run.unfinished()
    attempts = np.array(run.attempts + running, dtype=np.int64).reshape(-1, 3).T
    return attempts, len(running), run.log(), given_up, not run.read


class _DecisionRun:
    """A worker and its queue; what an attempt keeps counts as made in steps before its start."""

    def __init__(self, task: Task, known: Forecast) -> None:
        self._task, self._known = task, known
        self._shown, self.read = noted(known, ("lower", "upper", "beliefs"))
        self._state = noting(State, ("lower",), self.read)
        self._prompts = task.instance.prompts.tolist()
        self._outputs = task.instance.outputs.tolist()
        self._decider = task.policy.decider()
        self._preempts = task.policy.preemption != "none"
        self._keeps = task.policy.preemption in ("recomputed", "resumed")
        self._cost = Fraction(str(task.policy.resume_cost))
        self._lower = known.lower.copy()
        self._made = np.zeros(len(known), dtype=np.int64)  # and kept, before what runs
        self._kept = self._made  # as decisions see it
        self._released = 0
        self._waiting: set[int] = set()
        self._changed = False
        self._queue = np.empty(0, dtype=np.int64)  # the waiting requests, by arrival
        self._running: dict[int, int] = {}  # request: start, in the order of the starts
        self._entered: list[int] = []  # those that start in the next batch
        self._ends: dict[int, list[int]] = {}  # step: requests that might complete there
        self._held = 0
        self._clock = task.clock
        self._due = due_times(task.instance, task.clock)
        self._arrivals = arrival_times(task.instance, task.clock)
        self._since = self._arrivals.copy()
        self._queued_since = self._since[self._queue]
        self._contents: list[BatchContent] = []
        self._spans: list[tuple[float, float]] = []
        self.now = 0.0
        self.step = self.progress = 0  # batches that have ended
        self.idle = 0  # decisions that started none on an idle worker
        self.attempts: list[tuple[int, int, int]] = []

    def advance(self) -> bool:
        """Decide and run a batch; False once all requests are complete."""
        there = int(np.searchsorted(self._arrivals, self.now, side="right"))
        if there > self._released:
            self._waiting.update(range(self._released, there))
            self._released, self.progress = there, self.step + self.idle
            self._changed = True
        if not self._preempts:
            self._make_room()
        if self._waiting or self._overflows():
            start, preempt = self._decide()
            for request in preempt:
                self._stop(request)
            for request in start:
                self._start(request)
            self._make_room()
        elif not self._running:
            if self._released == len(self._arrivals):
                return False
            self.now = float(self._arrivals[self._released])
            return True
        if self._running:
            self._make_tokens()
        else:
            self._stay_idle()
        return True

    def _decide(self) -> tuple[list[int], list[int]]:
        """Ask the policy; return what it starts and preempts."""
        count = len(self._running)
        running = np.fromiter(self._running, np.int64, count)
        tokens = self.step - np.fromiter(self._running.values(), np.int64, count)
        lower = self._lower.copy()
        lower[running] = np.maximum(lower[running], tokens)
        if self._changed:
            self._kept = self._made.copy() if self._keeps else self._made
            self._queue = np.sort(np.fromiter(self._waiting, np.int64, len(self._waiting)))
            self._queued_since = self._since[self._queue]
            self._changed = False
        for array in (running, tokens, lower, self._kept, self._queue, self._queued_since):
            array.flags.writeable = False
        now = int(self.now) if self._clock.unit == "steps" else self.now
        free = self._known.memory - self._held - count
        seen = (now, self._queue, self._queued_since, running, tokens, free, self._kept, lower)
        rest = (self._shown, self._task.settings.seed, self._due, self._clock)
        given = self._decider(self._state(*seen, *rest))
        if not isinstance(given, Decision):
            return self._checked("starts", given), []
        return self._checked("starts", given.start), self._checked("preempts", given.preempt)

    def _checked(self, verb: str, given: Iterable[int] | IntArray) -> list[int]:
        """Return the requests that a policy names, or refuse the first that it cannot."""
        if not hasattr(given, "__iter__"):
            raise PolicyError(
                f"policy {self._task.policy.name!r} returns {shown(given)}, but must return a list "
                "of requests to start, perhaps empty, or a Decision with such lists"
            )
        chosen: list[int] = []
        able = self._waiting if verb == "starts" else self._running
        unsaid = verb == "preempts" and not self._preempts
        for request in given:
            whole = isinstance(request, int | np.integer) and not isinstance(request, bool)
            if not whole or request not in able or request in chosen or unsaid:
                self._refuse(verb, request if whole else None, request, request in chosen)
            chosen.append(int(request))
        return chosen

    def _refuse(self, verb: str, number: int | None, named: object, again: bool) -> None:
        """Say why a request is not started, or not preempted."""
        advice = f"choose among state.{'waiting' if verb == 'starts' else 'running'}"
        if number is None:
            why = "which is no index of a request"
        elif not 0 <= number < len(self._outputs):
            why = f"but there are only the requests 0 to {len(self._outputs) - 1}"
        else:
            named = self._task.instance.label(int(number))
            if again:
                why = "which it has just " + ("started" if verb == "starts" else "preempted")
            elif number in self._running:
                why = "which already runs"
            elif number >= self._released:
                why = f"which arrives at {self._named(self._arrivals[number])} only"
            else:
                why = "which waits" if number in self._waiting else "which is complete"
            if verb == "preempts" and not self._preempts:
                why = "but does not say what is kept of it"
                advice = "pass preemption='restarted', 'recomputed' or 'resumed' to the policy"
        raise PolicyError(
            f"policy {self._task.policy.name!r} {verb} request {named} at "
            f"{self._named(self.now)}, {why}; {advice}"
        )

    def _named(self, time: float) -> str:
        return f"step {int(time)}" if self._clock.unit == "steps" else f"{time:g} s"

    def _overflows(self) -> bool:
        return self._held + len(self._running) > self._known.memory

    def _make_room(self) -> None:
        while self._overflows():
            self._stop(next(reversed(self._running)))

    def _start(self, request: int) -> None:
        made = int(self._made[request])
        self._waiting.remove(request)
        self._changed = True
        self._running[request] = start = self.step - made
        self._entered.append(request)
        self._ends.setdefault(start + self._outputs[request], []).append(request)
        self._held += self._prompts[request] + made

    def _stop(self, request: int) -> None:
        start, before = self._running.pop(request), int(self._made[request])
        made = self.step - start
        self._ends[start + self._outputs[request]].remove(request)
        self._held -= self._prompts[request] + made
        self._waiting.add(request)
        self._changed = True
        if made == before:  # it was started just now
            self._entered.remove(request)
            return
        self._lower[request] = max(self._lower[request], made)
        self._since[request] = self.now
        self.attempts.append((request, start + before, made - before))
        if self._keeps:
            self._made[request] = made

    def _stay_idle(self) -> None:
        """None was started: a step passes, or where time has no steps, until a request arrives."""
        self.idle += 1
        if self._clock.unit == "steps":
            self.now += 1
        elif self._released < len(self._arrivals):
            self.now = float(self._arrivals[self._released])

    def _make_tokens(self) -> None:
        self._pass_time()
        self.step += 1
        self._held += len(self._running)
        if self._keeps:  # no batch is in vain
            self.progress = self.step + self.idle
        for request in self._ends.pop(self.step, ()):
            start, before = self._running.pop(request), int(self._made[request])
            made = self._outputs[request]
            self._held -= self._prompts[request] + made
            self._lower[request] = made  # its completion gives the output away
            self.attempts.append((request, start + before, made - before))
            self.progress = self.step + self.idle

    def _pass_time(self) -> None:
        prefill = moved = squares = new = 0
        for request in self._entered:
            made = int(self._made[request])
            whole = self._prompts[request] + made
            if made and self._task.policy.preemption == "resumed":
                moved += math.ceil(self._cost * whole)
            elif whole:
                prefill += whole
                squares += whole * whole
                new += 1
        self._entered.clear()
        decodes, usage = len(self._running) - new, self._held + len(self._running)
        content = BatchContent(prefill + moved, decodes, self._held - prefill, squares, usage)
        begin, self.now = self.now, self.now + self._clock(content)
        self._contents.append(content)
        self._spans.append((begin, self.now))

    def unfinished(self) -> list[tuple[int, int, int]]:
        """Return the attempts that have not ended."""
        kept = self._made.tolist()
        return [
            (request, start + kept[request], self.step - start - kept[request])
            for request, start in self._running.items()
        ]

    def log(self) -> BatchLog:
        """Return all batches."""
        log = new_log()
        contents = np.array(self._contents, dtype=np.int64).reshape(-1, len(BatchContent._fields))
        log.state[0], log.now[0] = len(contents), self.now
        spans = np.array(self._spans, dtype=np.float64).reshape(-1, 2)
        return log._replace(contents=contents, spans=spans, usage=contents[:, -1].copy())


def admit_in_order_of(task: Task) -> Execution:
    """Run an order of requests under its rule."""
    instance, policy = task.instance, task.policy
    priority = policy.order(instance)
    if policy.rule == "prefix":
        starts = admission.admit_by_priority(instance, priority)
    elif policy.rule == "backfill":
        rank = ranks_in(priority)
        starts = _admit_by_plan(instance, lambda some: some[np.argsort(rank[some])], policy.rule)
    else:
        starts = admission.admit_in_window(instance, priority, *window_of(policy.rule))
    return _executed(task, starts)


def admit_chosen(task: Task) -> Execution:
    """Run a choice of batches under its rule."""
    instance, policy = task.instance, task.policy
    if policy.rule == "prefix":
        return _executed(task, admit_batches(instance, policy.batches(instance)))
    order = _batch_order(instance, policy)
    return _executed(task, _admit_by_plan(instance, order, policy.rule))


def _executed(task: Task, starts: IntArray) -> Execution:
    """Return the run of a policy that preempts nothing."""
    return unpreempted(task.instance, task.policy.name, starts, task.settings.intervals)


def admit_batches(instance: Instance, selector: BatchSelector) -> IntArray:
    """Admit requests batch by batch; a batch is chosen when the one before is used up."""
    arrivals = instance.arrivals
    starts = np.zeros(len(instance), dtype=np.int64)
    usage = admission.empty_worker(int(instance.outputs.max()))
    released = waiting = clock = 0
    while True:
        if not waiting:
            if released == len(instance):
                return starts
            clock = max(clock, int(arrivals[released]))
        there = int(np.searchsorted(arrivals, clock, side="right"))
        if there > released:
            selector.release(np.arange(released, there))
            waiting += there - released
            released = there
        batch = selector.next_batch()
        waiting -= len(batch)
        clock = admission.admit_in_order(
            instance.prompts, instance.outputs, instance.memory, batch, clock, starts, *usage
        )


def _batch_order(instance: Instance, policy: BatchPolicy) -> Callable[[IntArray], IntArray]:
    def order(waiting: IntArray) -> IntArray:
        # The selector sees no others.
        selector = policy.batches(instance.take(waiting))
        selector.release(np.arange(len(waiting)))
        batches: list[IntArray] = []
        chosen = 0
        while chosen < len(waiting):
            batches.append(selector.next_batch())
            chosen += len(batches[-1])
        return waiting[np.concatenate(batches)]

    return order


def _admit_by_plan(
    instance: Instance, order: Callable[[IntArray], IntArray], rule: Rule
) -> IntArray:
    """Order the waiting requests whenever some arrive, and admit until the next arrival."""
    prompts, outputs, memory = instance.prompts, instance.outputs, instance.memory
    starts = np.full(len(instance), -1)
    usage, window = admission.empty_worker(int(outputs.max()))
    waiting = np.zeros(0, dtype=np.int64)
    steps, first = np.unique(instance.arrivals, return_index=True)
    ends = [*first[1:].tolist(), len(instance)]
    if rule == "backfill":
        places = np.stack([_among_lines(each) for each in (prompts, outputs)])
    for at, step in enumerate(steps.tolist()):
        until = int(steps[at + 1]) if at + 1 < len(steps) else admission.NEVER
        waiting = order(np.concatenate([waiting, np.arange(first[at], ends[at])]))
        if rule == "backfill":
            plan = interruptible_kernel(_backfill, len(waiting))
            lengths = prompts, outputs, memory
            usage = plan(*lengths, places, waiting, step, until, starts, usage, window)
        else:
            count, come = len(waiting), np.full(len(waiting), step)
            queue = admission.new_queue(
                prompts[waiting], outputs[waiting], come, memory, np.arange(count)
            )
            admit = interruptible_kernel(admission.admit_window, count)
            admit(queue, memory, *window_of(rule), step, until, usage, window)
            starts[waiting] = queue.requests.start
        waiting = np.sort(waiting[starts[waiting] < 0])
    return starts


_LINES = 1024  # of a length, by which requests are compared


def _among_lines(lengths: IntArray) -> IntArray:
    """Return the first of some lines that is at least a length, and the last that is at most it."""
    lines = np.quantile(lengths, np.linspace(0, 1, _LINES), method="lower")
    return np.stack(
        [np.searchsorted(lines, lengths), np.searchsorted(lines, lengths, side="right") - 1]
    )


@allocating
def _backfill(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    places: IntArray,
    order: IntArray,
    clock: int,
    until: int,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> IntArray:
    """Plan in order and start what is planned before a step; return the usage, perhaps longer."""
    if clock - window[0] > len(usage) // 2:
        admission.slide(usage, window, clock)
    base, running_end = window[0], window[1]
    planned = np.empty(len(order), dtype=np.int64)
    count = 0
    least, shortest = prompts[order], outputs[order]  # of this and later ones
    for place in range(len(order) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
        shortest[place] = min(shortest[place], shortest[place + 1])
    free = clock  # none of them fits at a step before
    side = min(_LINES, int(np.sqrt(len(order))))
    latest = np.zeros((side + 1, side + 1), dtype=np.int64)
    for request in order:
        prompt, output = prompts[request], outputs[request]
        free = admission.earliest_start(usage, window, memory, least[count], shortest[count], free)
        if free >= until:
            break
        below = places[:, 1, request] * side // _LINES
        start = max(free, _latest_planned(latest, below))
        start = admission.earliest_start(usage, window, memory, prompt, output, start)
        _note_planned(latest, -(-places[:, 0, request] * side // _LINES), start)
        planned[count] = start
        count += 1
        if start + output - base >= len(usage):
            longer = np.zeros(max(2 * len(usage), start + output - base + 64), dtype=np.int64)
            longer[: len(usage)] = usage
            usage = longer
        for token in range(1, output + 1):
            usage[start - base + token] += prompt + token
        window[1] = max(window[1], start + output)
    for place in range(count):
        request, start = order[place], planned[place]
        if start < until:
            starts[request] = start
            running_end = max(running_end, start + outputs[request])
            continue
        for token in range(1, outputs[request] + 1):
            usage[start - base + token] -= prompts[request] + token
    window[1] = running_end
    return usage


@compiled_inside
def _latest_planned(tree: IntArray, lines: IntArray) -> int:
    """Return the latest start of those planned that are no longer: before it, none fits."""
    latest, row = 0, lines[0] + 1
    while row > 0:
        column = lines[1] + 1
        while column > 0:
            latest = max(latest, tree[row, column])
            column &= column - 1
        row &= row - 1
    return latest


@compiled_inside
def _note_planned(tree: IntArray, lines: IntArray, start: int) -> None:
    """Note a start for all prompts and outputs that are no shorter, in a Fenwick tree."""
    row = lines[0] + 1
    while row < len(tree):
        column = lines[1] + 1
        while column < len(tree):
            tree[row, column] = max(tree[row, column], start)
            column += column & -column
        row += row & -row


COMPLETE, LOOPS, STALLED, STOPPED = 0, 1, 2, 3


class Thresholds(NamedTuple):
    """How a policy admits and clears."""

    threshold: int  # tokens held after the next batch up to which requests are admitted
    clears: float  # probability of each running request's preemption, drawn until the batch fits
    patience: int  # batches and draws without a completion or an arrival before giving up
    seed: int  # of the draws


@allocating_inside
def _send_back(
    requests: EngineRequests,
    rules: Thresholds,
    worker: Worker,
    waiting: IntArray,
    attempts: IntArray,
    draws: int,
) -> IntArray:
    """End the attempts of the running requests whose draw is below the share that clears."""
    now, running, kept = worker.now[0], worker.running, 0
    for place in range(now.active):
        request = running[place]
        share = random_rank(rules.seed, request, draws, 0) * 2.0**-63
        if rules.clears < 1.0 and share >= rules.clears:
            running[kept] = request
            kept += 1
            continue
        attempts = end(worker, attempts, request, requests.prompts[request])
        now.waiting = push(waiting, now.waiting, request)
    return attempts


@allocating_inside
def _let_go(requests: EngineRequests, worker: Worker, attempts: IntArray) -> IntArray:
    """End the attempts of the running requests that have all of their tokens."""
    now, running, kept = worker.now[0], worker.running, 0
    for place in range(now.active):
        request = running[place]
        if now.batch - worker.starts[request] < requests.outputs[request]:
            running[kept] = request
            kept += 1
            continue
        attempts = end(worker, attempts, request, requests.prompts[request])
        now.done += 1
    return attempts


@allocating
def run_to_threshold(
    requests: EngineRequests,
    rules: Thresholds,
    worker: Worker,
    log: BatchLog,
    timer: Timer,
    until: float,
) -> tuple[IntArray, LogArrays, int, float, float, IntArray]:
    """Run all requests, or until it is certain or likely that they will never complete."""
    prompts, arrivals, memory = requests.prompts, requests.arrivals, requests.memory
    threshold, clears, patience = rules.threshold, rules.clears, rules.patience
    count, now, running = len(prompts), worker.now[0], worker.running
    attempts = np.empty((3, count + 16), dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    waiting = np.empty(count, dtype=np.int64)  # a heap of indices, which ascend with the arrivals
    draws = progress = 0
    before = (-1, -1)  # completions and arrivals when the worker was empty last
    outcome, emptied, lasted, looping = STOPPED, 0.0, 0.0, none
    while True:
        time = log.now[0]
        while now.released < count and arrivals[now.released] <= time:
            now.waiting = push(waiting, now.waiting, now.released)
            now.released += 1
            progress = now.batch
        overflows = now.tokens + now.active > memory
        if overflows:
            looping = running[: now.active].copy()
        while now.tokens + now.active > memory:
            attempts = _send_back(requests, rules, worker, waiting, attempts, draws)
            draws += 1
            progress -= 1  # a draw counts as a batch, lest tiny probabilities take forever
            if now.batch - progress > patience:
                break
        if now.active == 0 and clears >= 1.0:
            if overflows and before[0] == now.done and before[1] == now.released:
                outcome, lasted = LOOPS, time - emptied
                break
            before = (now.done, now.released)
            emptied = time
        if now.batch - progress > patience:
            outcome, emptied, lasted = STALLED, time, float(now.batch - progress)
            now.active = 0
            break
        while now.waiting > 0:
            request = waiting[0]
            if now.tokens + now.active + prompts[request] + 1 > threshold:
                break
            now.waiting = pop(waiting, now.waiting)
            admit(worker, request, prompts[request])
        if now.active == 0:
            emptied, lasted = time, 0.0
            if now.waiting > 0:
                outcome, looping = LOOPS, waiting[:1].copy()
                break
            if now.released == count:
                outcome = COMPLETE
                break
            log.now[0] = arrivals[now.released]
            continue
        log = with_room(log)
        if time >= until or not add_batch(log, timer, next_batch(now), now.tokens):
            break
        done = now.done
        attempts = _let_go(requests, worker, attempts)
        if now.done > done:
            progress = now.batch
    return all_attempts(worker, attempts), apart(log), outcome, emptied, lasted, looping
