"""A slow, literal simulator of admission by what is likely to fit, in exact fractions."""

import math
from fractions import Fraction
from itertools import pairwise

from literal_attempts import TieError, Worker, random_rank, work


class ChanceRun:
    """One run; request i is in a group, whose row of the table has the chances of 1, 2, ..."""

    def __init__(
        self, instance, lower, upper, table, groups, prior, z, passed, seed, *, clock=None,
        charged=None, until=math.inf,
    ):  # fmt: skip
        self.worker = Worker(instance, clock, until)
        self.charged = charged  # the clock on which work is counted; None: memory-time
        self.lower, self.upper, self.groups = lower, upper, groups
        self.table = [[Fraction(chance) for chance in row] for row in table]
        self.chances = [self.table[group] for group in groups]
        self.prior, self.z, self.passed, self.seed = Fraction(prior), z, passed, seed
        self.seen = [0] * len(instance)
        self.complete = []
        longest = max(upper)
        self.ahead = [*range(1, 9)]
        while self.ahead[-1] < longest:
            self.ahead.append(self.ahead[-1] + self.ahead[-1] // 4)

    def chance_of_more(self, i, tokens, given):
        """Return P(output > tokens) where it is more than `given` and within its interval."""
        row = self.chances[i]

        def between(least):
            outputs = range(max(least + 1, self.lower[i]), min(self.upper[i], len(row)) + 1)
            return sum(row[output - 1] for output in outputs)

        if tokens <= max(given, self.lower[i] - 1):
            return Fraction(1)
        whole = between(given)
        return between(tokens) / whole if whole else Fraction(0)

    def cost(self, i):
        """Return the expected memory-time or work, given what was seen."""
        s, row = self.worker.prompts[i], self.chances[i]
        outputs = range(max(self.seen[i] + 1, self.lower[i]), min(self.upper[i], len(row)) + 1)
        whole = sum(row[output - 1] for output in outputs)
        memory, clock = self.worker.memory, self.charged
        if not whole:
            return work(s, max(self.seen[i] + 1, self.lower[i]), memory, clock)
        return sum(row[o - 1] * work(s, o, memory, clock) for o in outputs) / whole

    def fits(self, running):
        """Whether what is likely to be held fits at all steps ahead."""
        worker = self.worker
        for t in self.ahead:
            mean, variance = Fraction(0), Fraction(0)
            for i, start in running.items():
                made = worker.step - start
                runs = self.chance_of_more(i, made + t - 1, max(made, self.seen[i]))
                held = worker.prompts[i] + made + t
                mean += held * runs
                variance += held**2 * runs * (1 - runs)
            if float(mean) + self.z * float(variance) ** 0.5 > worker.memory + 1e-6:
                return False
        return True

    def in_order(self):
        """Return the waiting requests, cheapest first."""
        worker = self.worker
        rank = {i: random_rank(self.seed, i, worker.starts[i], 0) for i in worker.waiting}
        cost = {i: self.cost(i) for i in worker.waiting}
        order = sorted(worker.waiting, key=lambda i: (cost[i], rank[i]))
        known = [
            (worker.prompts[i], self.lower[i], self.upper[i], self.seen[i], self.groups[i])
            for i in order
        ]
        for (i, j), (one, other) in zip(pairwise(order), pairwise(known), strict=True):
            if one != other and cost[j] - cost[i] < 1e-9:
                raise TieError
        return order

    def learn(self):
        """Estimate each chance to end by those that ended among those that came so far."""
        worker = self.worker
        longest = len(self.chances[0])
        made = dict.fromkeys([*worker.waiting, *worker.running], 0)
        for i in made:
            running = worker.step - worker.running[i] if i in worker.running else 0
            made[i] = min(max(self.seen[i], running), longest)
        ended = {j: worker.outputs[j] for j in self.complete}
        mean = [sum(chances) / len(self.table) for chances in zip(*self.table, strict=True)]
        common = _estimate(mean, self.prior, list(made.values()), list(ended.values()))
        for i in range(len(self.chances)):
            mine = [j for j, group in enumerate(self.groups) if group == self.groups[i]]
            self.chances[i] = _estimate(
                common,
                10,
                [made[j] for j in mine if j in made],
                [ended[j] for j in mine if j in ended],
            )

    def run(self):
        """Return the worker on which everything was run."""
        worker = self.worker
        learn_at = 0
        while worker.goes_on():
            worker.arrive()
            if self.prior and len(self.complete) >= learn_at:
                self.learn()
                learn_at = len(self.complete) + max(5, len(self.complete) // 50)
            while worker.held_next() > worker.memory:
                first = min(
                    worker.running,
                    key=lambda i: (
                        worker.step - worker.running[i],
                        random_rank(self.seed, i, worker.starts[i], 1),
                    ),
                )
                self.seen[first] = max(self.seen[first], worker.cancel(first))
            passed = 0
            for i in self.in_order():
                alone = not worker.running
                if alone or self.fits(worker.running | {i: worker.step}):
                    worker.start(i)
                else:
                    passed += 1
                    if passed > self.passed:
                        break
            before = set(worker.running)
            worker.make_tokens()
            self.complete += sorted(before - set(worker.running))
        return worker


def _estimate(first, weight, there, ended):
    """Return the chances of all outputs, from a belief and from what goes on and what has ended."""
    chances, stays = [], Fraction(1)
    for output in range(1, len(first) + 1):
        come = weight * sum(first[output - 1 :]) + sum(
            1 for each in there + ended if each >= output
        )
        ends = (weight * first[output - 1] + ended.count(output)) / come if come else Fraction(1)
        chances.append(stays * ends)
        stays *= 1 - ends
    return chances
