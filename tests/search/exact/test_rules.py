"""Every rule of the exact search against all completions of a node, and searches with and without.

A rule may drop a node only if no completion is optimal; a node is needless only if another one has
a completion that costs no more.
"""

from collections import Counter

import brute_force
import numpy as np
import pytest
from effort import share
from literal import usage_at
from priced_instances import loose_certificate, one_by_one
from strategies import tiny_instance

from optsched.search.exact import growth
from optsched.search.exact.growth import ACTIVE, HELD, JUMPS, PEAK, PENDING, Layer, active, pending
from optsched.search.exact.search import ALL, solve_exact

RULES = {"active": ACTIVE, "pending": PENDING, "jumps": JUMPS}


class Node:
    """The starts of a schedule before a clock, and what the kernels are passed about them."""

    def __init__(self, instance, schedule, clock):
        self.starts = np.where(schedule < clock, schedule, -1)
        lists = instance.prompts.tolist(), instance.outputs.tolist()
        begun = [None if start < 0 else start for start in self.starts.tolist()]
        longest = max(lists[1])
        steps = range(clock - longest, clock + 2 * longest + 2)
        self.held = np.array([usage_at(step, begun, *lists) for step in steps])
        self.place, self.clock, self.limit = longest, clock, instance.memory
        self.profile = self.held[longest + 1 : 2 * longest + 1]
        past = range(clock - longest, clock + 1)
        self.full = max((s for s in past if self.held[s - past[0]] == self.limit), default=-1)
        self.line = np.zeros((4, len(steps)), dtype=np.int64)
        self.line[HELD] = self.held
        ended = np.isin(steps, (self.starts + instance.outputs)[self.starts >= 0])
        self.line[PEAK] = np.maximum.accumulate(np.where(ended, np.arange(len(steps)), 0))
        columns = (instance.prompts, instance.outputs, instance.arrivals)
        self.slots = np.column_stack([*columns, np.zeros(len(instance), dtype=np.int64)])

    def drops(self, name):
        """Whether a rule drops this node."""
        clock = self.place, self.clock, self.limit
        if name == "active":
            return active(self.starts, self.slots, self.line, *clock)
        return pending(self.starts, self.slots, self.held, *clock, self.full)

    def completions(self, schedules):
        """Rows of all schedules that have these starts, and no other before the clock."""
        begun = self.starts >= 0
        same = (schedules[:, begun] == self.starts[begun]).all(axis=1)
        return schedules[same & (schedules[:, ~begun] >= self.clock).all(axis=1)]


def _nodes(instance, schedules, rng):
    """Draw nodes that something waits in, of good schedules mostly."""
    costs = schedules.sum(axis=1)
    order = np.argsort(costs, kind="stable")
    for _ in range(12):
        schedule = schedules[order[int(len(order) * rng.random() ** 3)]]
        clocks = schedule[schedule > instance.arrivals[0]]
        if len(clocks):
            yield Node(instance, schedule, int(rng.integers(1, clocks.max() + 1)))


@pytest.mark.no_cover
@pytest.mark.parametrize("arrivals", [False, True])
def test_no_rule_drops_a_node_that_has_an_optimal_completion(arrivals):
    rng = np.random.default_rng(int(arrivals))
    dropped = Counter()
    for _ in range(share(150)):
        instance = tiny_instance(rng, arrivals)
        schedules = brute_force.feasible_starts(instance)
        least = schedules.sum(axis=1).min()
        for node in _nodes(instance, schedules, rng):
            for name in ("active", "pending"):
                if node.drops(name):
                    best = node.completions(schedules).sum(axis=1).min()
                    assert best > least, (name, instance, node.starts, node.clock)
                    dropped[name] += 1
    assert min(dropped[name] for name in ("active", "pending")) >= share(150) / 15, dropped


@pytest.mark.no_cover
def test_a_needless_node_has_no_better_completion_than_those_kept():
    rng = np.random.default_rng(0)
    dropped = 0
    for round_ in range(share(60)):
        instance = tiny_instance(rng, arrivals=round_ % 2 == 0)
        schedules = brute_force.feasible_starts(instance)
        clock = int(rng.integers(1, 8))
        rows = np.unique(np.where(schedules < clock, schedules, -1), axis=0)
        nodes = [Node(instance, row + (row < 0) * (clock + 1), clock) for row in rows]
        begun = rows >= 0
        layer = Layer.empty(len(rows), len(instance), len(nodes[0].profile), instance.memory)
        layer.starts[:], layer.profile[:] = rows, [node.profile for node in nodes]
        layer.clock[:], layer.key[:] = clock, begun @ 2 ** np.arange(len(instance))
        layer.cost[:] = (rows * begun).sum(axis=1)
        some = np.flatnonzero(~begun.all(axis=1))
        order = some[np.lexsort((layer.cost[some], layer.key[some]))]
        keep = growth.undominated(layer, order)
        best = np.array([node.completions(schedules).sum(axis=1).min() for node in nodes])
        for node in order[~keep]:
            others = order[keep & (layer.key[order] == layer.key[node])]
            assert best[others].min() <= best[node], (instance, rows[node], clock)
            dropped += 1
    assert dropped >= share(60) * 3


@pytest.mark.no_cover
@pytest.mark.parametrize("arrivals", [False, True])
def test_the_optimum_is_the_same_with_any_rules_from_a_bad_schedule_on(arrivals):
    rng = np.random.default_rng(2 + int(arrivals))
    saved = Counter()
    for _ in range(share(40)):
        instance = tiny_instance(rng, arrivals, most=7)
        start = {
            "upper": one_by_one(instance, rng),
            "certificate": loose_certificate(instance, rng),
        }
        plain = solve_exact(instance, **start, rules=0)
        assert plain.proven_optimal
        for rules in (ALL, *RULES.values(), int(rng.integers(ALL))):
            found = solve_exact(instance, **start, rules=rules)
            assert found.schedule.check() == []
            assert found.lower == found.schedule.total_latency == plain.lower, (instance, rules)
            saved[rules] += plain.nodes - found.nodes
    assert min(saved[rules] for rules in (ALL, *RULES.values())) > 0, saved
