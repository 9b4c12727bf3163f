"""Slow, literal simulators of runs in which requests are cancelled; they read like the papers."""

import math
from fractions import Fraction
from itertools import pairwise

from optsched.clock import BatchContent

TWO_64 = 2**64
RATES = BatchContent._fields  # a clock has a rate for each


def random_rank(seed, request, attempt, role):
    """Vigna's splitmix64, once per argument, without its lowest bit."""
    mixed = 0
    for part in (seed, request, attempt, role):
        mixed = (mixed + 0x9E3779B97F4A7C15 + part) % TWO_64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % TWO_64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % TWO_64
        mixed ^= mixed >> 31
    return mixed >> 1


class TieError(Exception):
    """Two different requests cost the same, which floating-point numbers may not see."""


def work(prompt, output, memory, clock=None):
    """Memory-time, token by token; on a clock seconds, of the constants a share by memory."""
    held = [prompt + token for token in range(1, output + 1)]
    if clock is None or clock.unit == "steps":
        return Fraction(sum(held))
    constant, *rates = (Fraction(getattr(clock, name)) for name in ("constant", *RATES))
    contents = [
        BatchContent(prompt, 0, 0, prompt**2, tokens)
        if token == 0
        else BatchContent(0, 1, tokens - 1, 0, tokens)
        for token, tokens in enumerate(held)
    ]
    return constant * Fraction(sum(held), memory) + sum(
        rate * number for content in contents for rate, number in zip(rates, content, strict=True)
    )


def mean(values):
    """Exact mean."""
    return Fraction(sum(values), len(values))


class Worker:
    """Requests of an instance by batch: waiting, running since when, and all attempts.

    In steps a batch takes one step. The arrivals are in the unit of the clock.
    """

    def __init__(self, instance, clock=None, until=math.inf):
        self.prompts = instance.prompts.tolist()
        self.outputs = instance.outputs.tolist()
        self.arrivals = instance.arrivals.tolist()
        self.clock, self.until = clock, until
        if clock is not None and clock.unit != "steps" and any(self.arrivals):
            self.arrivals = [arrival * instance.seconds_per_step for arrival in self.arrivals]
        self.memory = instance.memory
        self.now = 0
        self.step = 0  # batches so far
        self.waiting = set()
        self.to_come = set(range(len(instance)))
        self.running = {}
        self.starts = [0] * len(instance)  # attempts that were made so far
        self.attempts = []  # request, when its first batch began, tokens
        self.batches = []  # begin, end, content
        self.states = []  # of each batch: tokens held and made by request
        self.last = [-1] * len(instance)
        self.preempted, self.lost = [0] * len(instance), [0] * len(instance)
        self.stopped = False

    def goes_on(self):
        """Whether there is anything left to do."""
        return not self.stopped and bool(self.to_come or self.waiting or self.running)

    def arrive(self):
        """Let all requests that have arrived wait."""
        there = {i for i in self.to_come if self.arrivals[i] <= self.now}
        self.to_come -= there
        self.waiting |= there

    def held_next(self):
        """Tokens held at the next step if all go on."""
        return sum(self.prompts[i] + self.step + 1 - start for i, start in self.running.items())

    def start(self, i):
        """Admit a waiting request."""
        self.waiting.remove(i)
        self.running[i] = self.step

    def cancel(self, i):
        """Send a running request back; gives the tokens that it had made."""
        start = self.running.pop(i)
        made = self.step - start
        if made:
            self.attempts.append((i, self.batches[start][0], made))
            self.preempted[i] += 1
            self.lost[i] += self.prompts[i] + made
        self.waiting.add(i)
        self.starts[i] += 1
        return made

    def make_tokens(self):
        """Take one batch, in which each running request produces a token, or wait for one."""
        assert self.held_next() <= self.memory
        if not self.running:
            if self.to_come:
                self.now = max(self.now, min(self.arrivals[i] for i in self.to_come))
            return
        if self.now >= self.until:
            self.stopped = True
            return
        new = [i for i, start in self.running.items() if start == self.step and self.prompts[i]]
        old = [i for i in self.running if i not in new]
        content = BatchContent(
            sum(self.prompts[i] for i in new),
            len(old),
            sum(self.prompts[i] + self.step - self.running[i] for i in old),
            sum(self.prompts[i] ** 2 for i in new),
            self.held_next(),
        )
        begin, self.now = self.now, self.now + (1 if self.clock is None else self.clock(content))
        self.batches.append((begin, self.now, content))
        self.step += 1
        made = {i: self.step - start for i, start in self.running.items()}
        self.states.append({i: (self.prompts[i] + made[i], made[i]) for i in made})
        for i, start in sorted(self.running.items()):
            if made[i] == self.outputs[i]:
                del self.running[i]
                self.attempts.append((i, self.batches[start][0], self.outputs[i]))
                self.last[i] = self.step - 1


def planned_run(
    instance,
    lower,
    upper,
    order="bound",
    outlived="ends-next",
    cancel="bound",
    reserve=0,
    seed=0,
    clock=None,
    until=math.inf,
):
    """Robust Algorithms 1 (lower = upper), 2, 5 and 6, and their variants; returns the worker."""
    worker = Worker(instance, clock, until)
    bound = list(lower)

    def urgency(i):
        if order == "random":
            first = 0
        elif order == "bound":
            first = bound[i]
        else:
            most = max(upper[i], bound[i])  # a bound that was outlived is what was outlived
            last = most if order.startswith("mean-") else bound[i]
            charged = None if order.endswith("area") else clock
            first = mean(
                [
                    work(worker.prompts[i], output, worker.memory, charged)
                    for output in range(bound[i], last + 1)
                ]
            )
        return first, random_rank(seed, i, worker.starts[i], 0)

    def in_order():
        order = sorted((urgency(i), i) for i in worker.waiting)
        for (one, i), (other, j) in pairwise(order):
            alike = [(worker.prompts[k], bound[k], upper[k]) for k in (i, j)]
            if alike[0] != alike[1] and 0 < other[0] - one[0] < 1e-9 * other[0]:
                raise TieError
        return [i for _, i in order]

    def cancel_all_that_is_too_much():
        def precious(i):
            made = worker.step - worker.running[i]
            value = max(bound[i], made) if cancel == "tokens" else bound[i]
            return value, random_rank(seed, i, worker.starts[i], 1)

        while worker.held_next() > worker.memory:
            first = min(worker.running, key=precious)
            bound[first] = max(bound[first], worker.cancel(first))

    def planned_end(i):
        end = worker.running[i] + bound[i]
        return max(end, worker.step + 1) if outlived == "ends-next" else end

    def fits(new):
        """While `new` runs; before it was started the plan of the others fitted."""
        room = worker.memory if len(worker.running) == 1 else worker.memory - reserve
        return all(
            sum(
                worker.prompts[i] + step - start
                for i, start in worker.running.items()
                if step <= planned_end(i)
            )
            <= room
            for step in range(worker.step + 1, planned_end(new) + 1)
        )

    while worker.goes_on():
        worker.arrive()
        if outlived in ("restarts", "doubles"):
            for i, start in list(worker.running.items()):
                if worker.step - start >= bound[i]:
                    worker.cancel(i)
                    if bound[i] >= upper[i]:  # the interval missed: twice as much, if that can run
                        bound[i] = min(2 * bound[i], worker.memory - worker.prompts[i])
                    else:
                        more = 2 * bound[i] if outlived == "doubles" else upper[i]
                        bound[i] = min(upper[i], more)
        elif outlived == "ends-next":
            cancel_all_that_is_too_much()
        for i in in_order():
            worker.start(i)
            if not fits(i):
                del worker.running[i]
                worker.waiting.add(i)
                break
        if outlived == "holds-nothing":
            cancel_all_that_is_too_much()
        worker.make_tokens()
    return worker


def threshold_run(
    instance,
    threshold,
    beta=None,
    seed=0,
    clock=None,
    until=math.inf,
    patience=math.inf,
    beyond_loops=False,
):
    """Jaillet Section 7, until all are complete, a loop is certain or the time is over.

    Also gives the first state with an empty worker that came twice with no arrival between: (time,
    period, what ran before it was cleared). The state is what waits. A request that never fits is a
    loop of one step, or of no time on a clock. Given up is after so many batches and draws without
    a completion or an arrival.
    """
    worker = Worker(instance, clock, until)
    seen = {}
    loop = None
    draws = idle = 0
    while worker.goes_on():
        if any(worker.arrivals[i] <= worker.now for i in worker.to_come):
            seen, idle = {}, 0
        worker.arrive()
        ran = sorted(worker.running)
        while worker.held_next() > worker.memory and idle <= patience:
            for i in list(worker.running):
                if beta is None or random_rank(seed, i, draws, 0) / 2**63 < beta:
                    worker.cancel(i)
            draws += 1
            idle += 1
        if beta is None and not worker.running and worker.waiting:
            state = frozenset(worker.waiting)
            if loop is None and state in seen:
                loop = (seen[state], worker.now - seen[state], ran)
            seen.setdefault(state, worker.now)
        if (loop and not beyond_loops) or idle > patience:
            break
        for i in sorted(worker.waiting):
            if worker.held_next() + worker.prompts[i] + 1 > threshold:
                break
            worker.start(i)
        if worker.waiting and not worker.running:
            loop = loop or (worker.now, 1 if clock is None else 0, sorted(worker.waiting)[:1])
            break
        done = sum(last >= 0 for last in worker.last)
        worker.make_tokens()
        idle = 0 if sum(last >= 0 for last in worker.last) > done else idle + 1
    return worker, loop


def decided_run(instance, decide):
    """A user's policy; `decide(worker)` gives the requests to start."""
    worker = Worker(instance)

    def make_room():
        while worker.held_next() > worker.memory:
            worker.cancel(list(worker.running)[-1])

    while worker.goes_on():
        worker.arrive()
        make_room()
        if worker.waiting:
            for i in decide(worker):
                worker.start(i)
        make_room()
        worker.make_tokens()
    return worker.attempts


def attempts_of(execution):
    """Return request, start and tokens of every attempt of a run, as the twins do."""
    return sorted(
        zip(
            execution.requests.tolist(),
            execution.starts.tolist(),
            execution.tokens.tolist(),
            strict=True,
        )
    )
