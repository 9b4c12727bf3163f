"""Slow, literal simulators of runs in which requests are cancelled; they read like the papers."""

from __future__ import annotations

from fractions import Fraction

TWO_64 = 2**64


def random_rank(seed, request, attempt, role):
    """Vigna's splitmix64, once per argument, without its lowest bit."""
    mixed = 0
    for part in (seed, request, attempt, role):
        mixed = (mixed + 0x9E3779B97F4A7C15 + part) % TWO_64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % TWO_64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % TWO_64
        mixed ^= mixed >> 31
    return mixed >> 1


def mean(values):
    """Exact mean."""
    return Fraction(sum(values), len(values))


class Worker:
    """Requests of an instance by step: waiting, running since when, and all attempts."""

    def __init__(self, instance):
        self.prompts = instance.prompts.tolist()
        self.outputs = instance.outputs.tolist()
        self.arrivals = instance.arrivals.tolist()
        self.memory = instance.memory
        self.step = 0
        self.waiting = set()
        self.to_come = set(range(len(instance)))
        self.running = {}
        self.starts = [0] * len(instance)  # attempts that were made so far
        self.attempts = []

    def arrive(self):
        """Let all requests that have arrived wait."""
        there = {i for i in self.to_come if self.arrivals[i] <= self.step}
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
        if self.step > start:
            self.attempts.append((i, start, self.step - start))
        self.waiting.add(i)
        self.starts[i] += 1
        return self.step - start

    def make_tokens(self):
        """Take one step, in which each running request produces a token."""
        assert self.held_next() <= self.memory
        self.step += 1
        for i, start in sorted(self.running.items()):
            if self.step - start == self.outputs[i]:
                del self.running[i]
                self.attempts.append((i, start, self.outputs[i]))


def planned_run(
    instance, lower, upper, order="bound", outlived="ends-next", cancel="bound", reserve=0, seed=0
):
    """Robust Algorithms 1 (lower = upper), 2, 5 and 6, and their variants."""
    worker = Worker(instance)
    bound = list(lower)
    order = order.replace("work", "area")  # the same in steps

    def urgency(i):
        s = worker.prompts[i]
        first = {
            "random": 0,
            "bound": bound[i],
            "area": sum(s + k for k in range(1, bound[i] + 1)),
            "mean-area": mean(
                [
                    sum(s + k for k in range(1, output + 1))
                    for output in range(bound[i], upper[i] + 1)
                ]
            )
            if order == "mean-area"
            else None,
        }[order]
        return first, random_rank(seed, i, worker.starts[i], 0)

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

    while worker.to_come or worker.waiting or worker.running:
        worker.arrive()
        if outlived in ("restarts", "doubles"):
            for i, start in list(worker.running.items()):
                if worker.step - start >= bound[i]:
                    worker.cancel(i)
                    bound[i] = upper[i] if outlived == "restarts" else min(upper[i], 2 * bound[i])
        elif outlived == "ends-next":
            cancel_all_that_is_too_much()
        for i in sorted(worker.waiting, key=urgency):
            worker.start(i)
            if not fits(i):
                del worker.running[i]
                worker.waiting.add(i)
                break
        if outlived == "holds-nothing":
            cancel_all_that_is_too_much()
        worker.make_tokens()
    return worker.attempts


def threshold_run(instance, threshold, beta=None, seed=0, steps=10**9):
    """Jaillet Section 7, until all are complete or for a number of steps.

    Also gives the first state with an empty worker that came twice with no arrival between: (step,
    period, what ran before it was cleared). The state is what waits.
    """
    worker = Worker(instance)
    seen = {}
    loop = None
    draws = 0
    while (worker.to_come or worker.waiting or worker.running) and worker.step < steps:
        if worker.to_come and not worker.waiting and not worker.running:
            worker.step = max(worker.step, min(worker.arrivals[i] for i in worker.to_come))
        if any(worker.arrivals[i] <= worker.step for i in worker.to_come):
            seen = {}
        worker.arrive()
        ran = sorted(worker.running)
        while worker.held_next() > worker.memory:
            for i in list(worker.running):
                if beta is None or random_rank(seed, i, draws, 0) / 2**63 < beta:
                    worker.cancel(i)
            draws += 1
        state = frozenset(worker.waiting)
        if beta is None and not worker.running:
            if loop is None and state in seen:
                loop = (seen[state], worker.step - seen[state], ran or sorted(worker.waiting)[:1])
            seen.setdefault(state, worker.step)
        for i in sorted(worker.waiting):
            if worker.held_next() + worker.prompts[i] + 1 > threshold:
                break
            worker.start(i)
        worker.make_tokens()
    return worker, loop


def decided_run(instance, decide):
    """A user's policy; `decide(worker)` gives the requests to start."""
    worker = Worker(instance)

    def make_room():
        while worker.held_next() > worker.memory:
            worker.cancel(list(worker.running)[-1])

    while worker.to_come or worker.waiting or worker.running:
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
