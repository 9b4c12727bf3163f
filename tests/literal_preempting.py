"""Slow, literal servers that stop requests and let them go on, and published policies on them.

They share nothing with the package but the counts that a clock is asked with.
"""

import math
from fractions import Fraction

from optsched.clock import BatchContent


class Server:
    """One worker, batch by batch: what each request has made, and where its KV cache is."""

    def __init__(self, instance, kind, cost=0, clock=None, bounds=None):
        self.prompts, self.outputs = instance.prompts.tolist(), instance.outputs.tolist()
        self.memory, self.kind, self.cost, self.clock = instance.memory, kind, cost, clock
        self.arrivals = instance.arrivals.tolist()
        if clock is not None and clock.unit == "s":
            self.arrivals = [step * instance.seconds_per_step for step in self.arrivals]
        count = len(instance)
        self.lower, self.upper = (self.outputs,) * 2 if bounds is None else bounds
        self.place = ["nowhere"] * count  # then waiting, running, done
        self.made, self.since = [0] * count, list(self.arrivals)
        self.running = []  # in the order of the starts
        self.now, self.number = 0, 0
        self.begun = {}  # of those that run: number of the first batch, and when that began
        self.batches, self.attempts, self.completions = [], [], [None] * count
        self.first, self.preempted = [None] * count, [0] * count
        self.swapped = [0] * count
        self.least = [0] * count  # tokens made in any attempt

    def waiting(self):
        """Those that wait, by arrival."""
        return [i for i, place in enumerate(self.place) if place == "waiting"]

    def needs(self, i):
        """Tokens that a request holds when the next batch ends."""
        return self.prompts[i] + self.made[i] + 1

    def stop(self, i):
        """Preempt a request; what it has made is kept, or not."""
        self.running.remove(i)
        self.place[i] = "waiting"
        number, begin, made = self.begun.pop(i)
        if number == self.number:  # it did not run yet
            return
        self.attempts.append((i, begin, self.made[i] - made))
        self.preempted[i] += 1
        self.swapped[i] += self.prompts[i] + self.made[i]
        self.since[i] = self.now
        if self.kind in ("none", "restarted"):
            self.made[i] = 0
            self.first[i] = None

    def start(self, i):
        """Let a waiting request run."""
        assert self.place[i] == "waiting"
        self.place[i] = "running"
        self.running.append(i)
        self.begun[i] = (self.number, None, self.made[i])

    def overflows(self):
        """Whether the next batch has no room for all that run."""
        return sum(map(self.needs, self.running)) > self.memory

    def make_room(self):
        """Stop those that started last."""
        while self.overflows():
            self.stop(self.running[-1])

    def batch(self):
        """Let all that run make a token."""
        prefill = decodes = resident = squares = held = 0
        for i in self.running:
            has, new = self.prompts[i] + self.made[i], self.begun[i][0] == self.number
            if new and self.made[i] and self.kind == "resumed":
                prefill += math.ceil(Fraction(str(self.cost)) * has)
                decodes, resident = decodes + 1, resident + has
            elif new and has:
                prefill, squares = prefill + has, squares + has**2
            else:
                decodes, resident = decodes + 1, resident + has
            held += has + 1
        assert held <= self.memory
        content = BatchContent(prefill, decodes, resident, squares, held)
        begin, self.now = self.now, self.now + (1 if self.clock is None else self.clock(content))
        self.batches.append((begin, self.now, content))
        for i in list(self.running):
            if self.begun[i][0] == self.number:
                self.begun[i] = (self.number, begin, self.begun[i][2])
            self.made[i] += 1
            self.least[i] = max(self.least[i], self.made[i])
            if self.first[i] is None:
                self.first[i] = self.now
            if self.made[i] == self.outputs[i]:
                self.running.remove(i)
                self.place[i] = "done"
                _, started, before = self.begun.pop(i)
                self.attempts.append((i, started, self.made[i] - before))
                self.completions[i] = self.now
        self.number += 1


def serve(server, choose):
    """Run to the end; `choose(server)` gives the requests to start, and those to stop before."""
    patience = 0
    while any(place != "done" for place in server.place):
        for i, arrival in enumerate(server.arrivals):
            if server.place[i] == "nowhere" and arrival <= server.now:
                server.place[i] = "waiting"
        if server.kind == "none":
            server.make_room()
        if server.waiting() or server.overflows():
            start, stop = choose(server)
            for i in stop:
                server.stop(i)
            for i in start:
                server.start(i)
            server.make_room()
        if server.running:
            server.batch()
        elif server.waiting():
            patience += 1
            assert patience < 1000
            server.now += 1
        else:
            server.now = min(
                arrival
                for arrival, place in zip(server.arrivals, server.place, strict=True)
                if place == "nowhere"
            )
    return server


def most_urgent(server, key):
    """Fill the memory of the next step by key, those that run before others, and stop the rest."""
    there = server.running + server.waiting()
    chosen, used = [], 0
    for i in sorted(there, key=key):  # stable
        used += server.needs(i)
        if used > server.memory:
            break
        chosen.append(i)
    start = [i for i in server.waiting() if i in chosen]
    return start, [i for i in server.running if i not in chosen]


def shortest_remaining(server):
    """Preemptive shortest remaining processing: the predicted output less what is made."""
    return most_urgent(server, lambda i: server.upper[i] - server.made[i])


def least_attained(server):
    """Least attained service: whoever has made the fewest tokens."""
    return most_urgent(server, lambda i: server.made[i])


def limited(server, share=0.5):
    """TRAIL: shortest remaining, but none is preempted that has made its share."""

    def key(i):
        safe = i in server.running and server.made[i] >= share * server.upper[i]
        return -math.inf if safe else server.upper[i] - server.made[i]

    return most_urgent(server, key)


def feedback(server, quantum=2, chunk=8, patience=12):
    """FastServe: quanta double from level to level; who starves goes to the top."""

    def level(i):
        if server.place[i] == "waiting" and server.now - server.since[i] > patience:
            return 0
        joined, allowed = 0, quantum
        while allowed < 1 + server.prompts[i] / chunk:  # its first iteration takes longer
            joined, allowed = joined + 1, 2 * allowed
        left = allowed
        for _ in range(server.made[i]):
            left -= 1
            if left == 0:
                joined, allowed = joined + 1, 2 * allowed
                left = allowed
        return joined

    return most_urgent(server, level)


def planned(key, rule=(1, 1)):
    """Admit by a key of the moment, while all that run fit to their (least) ends."""

    def choose(server):
        def ahead(i):
            return max(max(server.lower[i], server.least[i]) - server.made[i], 1)

        def area(i):
            has = server.prompts[i] + server.made[i]
            return sum(has + u for u in range(1, ahead(i) + 1))

        def fits(group):  # while the last of them runs
            return all(
                sum(server.prompts[i] + server.made[i] + u for i in group if ahead(i) >= u)
                <= server.memory
                for u in range(1, ahead(group[-1]) + 1)
            )

        waiting, start = server.waiting(), []
        if server.overflows():
            return [], []
        tried, head = 0, None
        ratio, length = rule
        for i in sorted(waiting, key=lambda i: key(server, i)):
            if tried == 0:
                head = area(i)
            if area(i) <= ratio * head and fits([*server.running, *start, i]):
                start.append(i)
                continue
            tried += 1
            if tried == length:
                break
        return start, []

    return choose
