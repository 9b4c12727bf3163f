"""What `capacity` claims in steps, against all schedules there are, in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from effort import share

from optsched import Instance, capacity, run, verify

PARTS = ("max", "p100", "p99", "p66.66666666666666", "p66.66666666666667", "p50", "p33.4", "p1")
ROUTERS = ("least-tokens", "round-robin", "jsq")
POLICIES = ("fcfs", "area", "mc-sf")


class Goal:
    """Limits on latency, time to first token or both: of how many requests, or of a mean."""

    def __init__(self, rng, instance):
        count = len(instance)
        metrics = [("latency",), ("ttft",), ("latency", "ttft")][rng.integers(3)]
        self.mean = len(metrics) == 1 and rng.random() < 0.4
        part = str(rng.choice(PARTS))
        self.share = Fraction(1) if part == "max" else Fraction(part[1:]) / 100
        self.limits = {}
        for metric in metrics:
            least = instance.outputs if metric == "latency" else np.ones(count, dtype=np.int64)
            # At means and values that schedules have, or a hair beside them.
            units = count if self.mean else 1
            whole = int(least.sum() if self.mean else least.max()) + int(rng.integers(0, 5))
            near = rng.choice(["", "below", "above"], p=[0.6, 0.2, 0.2])
            value = whole / units
            if near:
                value = np.nextafter(value, 0 if near == "below" else np.inf)
            self.limits[metric] = float(value)
        conditions = [f"{metric}<={limit!r}steps" for metric, limit in self.limits.items()]
        if len(metrics) == 1:
            ((metric, limit),) = self.limits.items()
            self.text = f"{metric}:{'mean' if self.mean else part}<={limit!r}steps"
        else:
            self.text = f"within:{'&'.join(conditions)}:{'100' if part == 'max' else part[1:]}%"

    def is_met(self, instance, starts):
        """Say whether a schedule meets it; limits are the doubles that were written."""
        ends = (starts + instance.outputs - instance.arrivals).tolist()
        firsts = (starts + 1 - instance.arrivals).tolist()
        times = {"latency": ends, "ttft": firsts}
        if self.mean:
            ((metric, limit),) = self.limits.items()
            return Fraction(sum(times[metric]), len(instance)) <= Fraction(limit)
        met = sum(
            all(times[metric][i] <= Fraction(limit) for metric, limit in self.limits.items())
            for i in range(len(instance))
        )
        return Fraction(met) >= self.share * len(instance)


def fewest(instance, goals):
    """Return the fewest workers of any schedule that meets all goals, None where none does."""
    count, latest = len(instance), int(instance.arrivals.max() + instance.outputs.sum())
    rows = list(zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True))

    def serves(starts, placed, held, workers):
        request = len(starts)
        if request == count:
            return all(goal.is_met(instance, np.array(starts)) for goal in goals)
        prompt, output = rows[request]
        for worker in range(min(workers, max(placed, default=-1) + 2)):
            for start in range(int(instance.arrivals[request]), latest + 1):
                grown = dict(held)
                for made in range(1, output + 1):
                    step = worker, start + made
                    grown[step] = grown.get(step, 0) + prompt + made
                fits = all(
                    grown[worker, start + u] <= instance.memory for u in range(1, output + 1)
                )
                if fits and serves([*starts, start], [*placed, worker], grown, workers):
                    return True
        return False

    return next((each for each in range(1, count + 1) if serves([], [], {}, each)), None)


def attack(seed):
    """Hold everything that is claimed of one random instance against all schedules."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    outputs, prompts = rng.integers(1, 4, count), rng.integers(0, 4, count)
    memory = int((prompts + outputs).max() + rng.integers(0, 4))
    instance = Instance(prompts, outputs, memory, np.sort(rng.integers(0, 3, count)))
    goals = [Goal(rng, instance) for _ in range(rng.integers(1, 3))]
    policy, router = str(rng.choice(POLICIES)), str(rng.choice(ROUTERS))
    found = capacity(instance, [goal.text for goal in goals], policy, router)
    needed = fewest(instance, goals)
    if not found.possible:
        assert needed is None
    elif needed is not None:
        assert found.at_least <= needed
    if found.certificate is not None:
        assert verify(found.certificate, instance) > found.at_least - 1
    (plan,) = found.plans
    for workers, tried in plan.attempts.items():
        starts = run(instance, policy, workers=workers, router=router).schedule.starts
        met = all(goal.is_met(instance, starts) for goal in goals)
        assert met == (tried.held == tried.runs)
        assert not met or workers >= plan.workers
    if plan.workers is not None:
        assert needed is not None
        assert needed <= plan.workers
        starts = run(instance, policy, workers=plan.workers, router=router).schedule.starts
        assert all(goal.is_met(instance, starts) for goal in goals)
        if plan.workers > 1:
            starts = run(instance, policy, workers=plan.workers - 1, router=router).schedule.starts
            assert not all(goal.is_met(instance, starts) for goal in goals)
    tried = plan.reached
    if tried is not None and plan.attempts:
        workers = next(count for count, each in plan.attempts.items() if each is tried)
        starts = run(instance, policy, workers=workers, router=router).schedule.starts
        for goal, least in zip(goals, plan.least(found.slos), strict=False):
            goal.limits = least.limits  # as it is printed
            assert goal.is_met(instance, starts)
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "seeds", [range(45, 45 + share(200)), pytest.param(range(3000), marks=pytest.mark.long)]
)
def test_no_claim_on_capacity_is_wrong(seeds):
    found = [attack(seed) for seed in seeds]
    assert any(1 < (each.at_least or 0) == each.at_most for each in found)
    assert not all(each.possible for each in found)
