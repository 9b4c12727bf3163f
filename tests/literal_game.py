"""All decision trees of a tiny game with unknown outputs, from what an observer sees."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache

DONE, WAITS = "done", "waits"
NEVER = float("inf")


class Trees:
    """Policies that see completions and nothing else; `outcomes` maps outputs to chances."""

    def __init__(self, prompts, arrivals, memory, outcomes, preemption):
        self.prompts, self.arrivals, self.memory = prompts, arrivals, memory
        self.outcomes, self.preemption = outcomes, preemption
        self.last = max(arrivals) + 2 * sum(map(max, zip(*outcomes, strict=True)))
        self.mean = cache(self.mean)
        self.worst = cache(self.worst)

    def best_mean(self):
        """Return the least mean of the total latency."""
        return self.mean(0, (WAITS,) * len(self.prompts), frozenset(self.outcomes))

    def best_ratio(self, optima):
        """Return the least ratio to the optima at worst."""
        return self._at_worst(lambda cost, outcome: Fraction(cost, optima[outcome]))

    def best_regret(self, optima):
        """Return the least difference from the optima at worst."""
        return self._at_worst(lambda cost, outcome: cost - optima[outcome])

    def _at_worst(self, judge):
        self.judge = judge
        self.worst.cache_clear()
        return self.worst(0, (WAITS,) * len(self.prompts), frozenset(self.outcomes), 0)

    def mean(self, step, state, left):
        """Return the least mean of what is still to be paid, given the outcomes that are left."""
        if all(each == DONE for each in state):
            return Fraction(0)
        if step == self.last:
            return NEVER
        whole = sum(self.outcomes[outcome] for outcome in left)
        values = [NEVER]
        for branches in self.actions(step, state, left):
            value = Fraction(0)
            for after, group in branches:
                later = self.mean(step + 1, after, group)
                share = sum(self.outcomes[outcome] for outcome in group) / whole
                value = NEVER if NEVER in (value, later) else value + share * later
            values.append(value)
        return self.cost(step, state) + min(values)

    def worst(self, step, state, left, paid):
        """Return the least judgement at worst, given what was paid."""
        if all(each == DONE for each in state):
            return max(self.judge(paid, outcome) for outcome in left)
        if step == self.last:
            return NEVER
        paid += self.cost(step, state)
        return min(
            (
                max(self.worst(step + 1, after, group, paid) for after, group in branches)
                for branches in self.actions(step, state, left)
            ),
            default=NEVER,
        )

    def cost(self, step, state):
        """Requests that have arrived and are not complete."""
        return sum(
            arrival <= step and each != DONE
            for arrival, each in zip(self.arrivals, state, strict=True)
        )

    def actions(self, step, state, left):
        """Yield, for each decision, the states that may follow with the outcomes left in each."""
        choices = []
        for arrival, each in zip(self.arrivals, state, strict=True):
            if each == DONE or arrival > step:
                choices.append([each])
            elif each == WAITS:
                choices.append([WAITS, 0])
            else:
                choices.append([each, WAITS, 0] if self.preemption else [each])
        for chosen in itertools.product(*choices):
            running = [i for i, made in enumerate(chosen) if made not in (DONE, WAITS)]
            if sum(self.prompts[i] + chosen[i] + 1 for i in running) > self.memory:
                continue
            groups = {}
            for outcome in left:
                after = list(chosen)
                for i in running:
                    after[i] = DONE if chosen[i] + 1 == outcome[i] else chosen[i] + 1
                groups.setdefault(tuple(after), set()).add(outcome)
            yield [(after, frozenset(group)) for after, group in groups.items()]
