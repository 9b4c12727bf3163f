"""What `capacity` claims in steps and on clocks, against all schedules there are, in fractions."""

from fractions import Fraction

import numpy as np
import pytest
from brute_force_capacity import fewest_workers
from brute_force_clocked import drawn
from effort import share

from optsched import Instance, Slo, capacity, run, verify
from optsched._internal.numbers import proven
from optsched.clock import LinearClock
from optsched.errors import CertificateError

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


def clocked_goals(rng, instance, clock, unit):
    """Draw objectives whose limits are times that batches have, or a hair beside them."""
    alone = run(instance, "fcfs", clock=clock, workers=len(instance), router="round-robin")
    times = {
        "latency": alone.latencies,
        "ttft": alone.first_token_latencies,
        "tpot": np.nan_to_num(alone.times_per_token),
    }
    goals = []
    for _ in range(rng.integers(1, 4)):
        metrics = [str(rng.choice([*times]))] if rng.random() < 0.6 else ["ttft", "tpot"]
        limits = {}
        for metric in metrics:
            value = float(times[metric].max()) + clock.constant * int(rng.integers(0, 3))
            beside = [value, np.nextafter(value, 0), np.nextafter(value, 1e9)]
            near = [*beside, *(value * (1 + hair) for hair in (1e-9, -1e-9, -3e-9))]
            limits[metric] = abs(float(rng.choice(near)))
        part = str(rng.choice(["100", "99", "50.1", "50", "49.9", "33.33333333333"]))
        conditions = "&".join(f"{metric}<={limit!r}{unit}" for metric, limit in limits.items())
        goals.append((limits, Slo(f"within:{conditions}:{part}%")))
    return goals


def holds(goal, done, tolerance):
    """Whether a run meets a goal, in fractions: limits count as met up to a factor."""
    limits, slo = goal
    times = {
        "latency": done.latencies,
        "ttft": done.first_token_latencies,
        "tpot": done.times_per_token,
    }
    met = sum(
        all(
            np.isnan(times[metric][i]) or Fraction(times[metric][i]) <= Fraction(limit) * tolerance
            for metric, limit in limits.items()
        )
        for i in range(len(done.instance))
    )
    return met >= slo.share * len(done.instance)


def attack_on_clock(seed):
    """Hold what is claimed on a clock, whose sums are exact, against all batches there are."""
    rng = np.random.default_rng(seed)
    instance, _ = drawn(rng, 2)
    unit, scale = str(rng.choice(["s", "steps"])), float(2.0 ** rng.choice([0, -20, 20]))
    numbers = rng.choice([0, 1 / 64, 1 / 8, 1 / 4, 1.0], 6)
    numbers[0] = rng.choice([1 / 16, 1 / 4, 1.0])
    hinges = ((float(rng.integers(1, 4)), 0.5 * scale),) * int(rng.random() < 0.3)
    if rng.random() < 0.25:
        numbers, scale, hinges, unit = np.eye(6)[0], 1.0, (), "steps"
    clock = LinearClock("drawn", *(numbers * scale).tolist(), unit=unit, hinges=hinges)
    late = 10**9 * int(unit == "s" and rng.random() < 0.3)
    step = float(rng.choice([0.25, 0.5])) * scale
    instance = instance.replace(seconds_per_step=step)
    times = (instance.arrivals * (step if unit == "s" else 1.0)).tolist()
    goals = clocked_goals(rng, instance, clock, unit)
    instance = instance.replace(arrivals=instance.arrivals + late)
    whole = unit == "steps" and numbers.tolist() == [1, 0, 0, 0, 0, 0] and not hinges
    tolerance = Fraction(1) if whole else 1 + Fraction(1, 10**9)
    policy = str(rng.choice(["fcfs", "mixed", "sarathi", "vllm"]))
    if policy == "vllm":  # it refuses less memory than a block, and no prompt
        instance = instance.replace(prompts=instance.prompts.clip(1), memory=32)
    found = capacity(instance, [slo for _, slo in goals], policy, clock=clock)
    count = len(instance)
    numbers = [
        ({m: v / (1 + 1e-9) if whole else v for m, v in limits.items()}, slo.misses(count))
        for limits, slo in goals
    ]
    needed = fewest_workers(instance, clock, numbers, storage="next-batch", arrivals=times)
    if not found.possible:
        assert needed is None
    else:
        proven = verify(found.certificate, instance)
        assert found.at_least - 1 < proven
        assert needed is None or max(found.at_least, proven) <= needed
    plans = found.plans if policy == "vllm" else found.plans[:1]
    for plan in plans:
        apart = instance.replace(arrivals=instance.arrivals - late)
        for workers in range(1, count + 1):
            done = run(apart, policy, clock=clock, workers=workers)
            met = all(holds(goal, done, tolerance * (1 - Fraction(1, 2**50))) for goal in goals)
            loosely = all(holds(goal, done, tolerance * (1 + Fraction(1, 2**50))) for goal in goals)
            tried = plan.attempts.get(workers)
            assert loosely or tried is None or not tried.met
            assert not met or (plan.workers is not None and plan.workers <= workers)
        if plan.workers is not None:
            assert needed is not None
            assert needed <= plan.workers
            least = plan.least(found.slos)
            again = capacity(instance, least, policy, workers=plan.workers, clock=clock)
            assert not least or again.at_most == plan.workers
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "seeds", [range(45, 45 + share(120)), pytest.param(range(3000), marks=pytest.mark.long)]
)
def test_no_claim_on_capacity_is_wrong_on_a_clock(seeds):
    found = [attack_on_clock(seed) for seed in seeds]
    assert any(1 < (each.at_least or 0) == each.at_most for each in found)
    assert not all(each.possible for each in found)


def test_a_mean_at_the_decimal_that_was_written_is_met():
    five = Instance([1] * 5, [1, 1, 1, 1, 3], 100)  # 7 / 5, which no double is
    found = capacity(five, "latency:mean<=1.4steps", "fcfs")
    assert (found.possible, found.at_most) == (True, 1)
    assert verify(found.certificate, five) == 1
    assert found.plans[0].least(found.slos) == list(found.slos)
    assert not capacity(five, "latency:mean<=1.399999steps", "fcfs").possible


def test_a_clock_that_counts_whole_steps_has_no_tolerance():
    for clock in (None, "unit", LinearClock("mine", 1.0, unit="steps")):
        found = capacity(
            Instance([1], [5], 9), "latency:max<=4.999999996steps", "fcfs", clock=clock
        )
        assert not found.possible
        assert found.at_most is None


def test_no_limit_is_said_to_be_enough_where_a_factor_of_nothing_is_asked():
    for limits in ("latency<=0steps&ttft<=5steps", "latency<=1e-300steps&ttft<=1e10steps"):
        found = capacity(Instance([1], [1], 9), f"within:{limits}:100%", "fcfs")
        assert found.plans[0].least(found.slos) == []
        assert "least limit" not in str(found.answer)


def test_objectives_that_different_requests_miss_alone_are_impossible_together():
    two = Instance([1, 4], [5, 1], 9, seconds_per_step=1.0)
    clock = LinearClock("mine", 1.0, 1.0)  # 2 s to the first token and 6 in all, or 5 and 5
    asked = ["latency:p50<=5s", "ttft:p50<=2s"]
    found = capacity(two, [*asked, "latency:max<=6s"], "fcfs", clock=clock)
    assert found.possible
    found = capacity(two, ["latency:p50<=5s", "ttft:p100<=2s"], "fcfs", clock=clock)
    assert not found.possible
    assert found.at_least is None


def test_seconds_since_1970_lose_no_digits():
    clock, slo = LinearClock("mine", 0.01, 0.001), "latency:max<=0.0229999s"  # it takes 0.023
    for first in (0, 1_700_000_000):
        one = Instance([3], [2], 20, [first], seconds_per_step=1.0)
        found = capacity(one, slo, "fcfs", workers=1, clock=clock)
        assert (found.possible, found.at_most) == (False, None)
        assert str(found.plans[0].least(found.slos)[0]) == "latency:max<=0.023s"


def test_what_workers_cost_is_exact_and_a_bound_is_rounded_down():
    many = Instance([5] * 6, [4] * 6, memory=9)
    for cost in (0.1, 1e-12, 1234.567):
        found = capacity(many, "latency:max<=5steps", "fcfs", cost=cost)
        exact = [Fraction(str(cost)) * workers for workers in (found.at_least, found.at_most)]
        assert (found.at_least, found.at_most) == (4, 6)
        assert found.price == tuple(map(float, exact))
        assert found.plans[0].cost == float(exact[1])
        needed = proven(exact[0])
        assert f"Any scheduler needs 4 ({needed} per hour)" in " ".join(found.answer)
    said = " ".join(found.answer)  # 6 and 4 times 1234.567 are 7407.402 and 4938.268
    assert "needs 6 (7,407.41 per hour)" in said
    assert "needs 4 (4,938.26 per hour)" in said


def test_a_run_that_never_ends_falls_short_and_is_no_error():
    two = Instance([1, 4], [7, 3], 8)
    found = capacity(two, "latency:p50<=50steps", "alpha-greedy:0.1", seed=79)
    assert found.plans[0].workers == 2
    assert not found.plans[0].attempts[1].met


def test_a_certificate_that_was_tampered_with_is_refused_or_proves_no_more():
    many = Instance([5] * 6, [4] * 6, memory=9)
    proof = capacity(many, "latency:max<=5steps", at_least_only=True).certificate
    true = verify(proof, many)
    for other in (many.replace(memory=10), many.replace(outputs=[4] * 5 + [3])):
        with pytest.raises(CertificateError):
            verify(proof, other)
    text = proof.to_json()
    assert proof.workers - 1 < true
    assert verify(type(proof).from_json(text.replace("5.0", "50.0")), many) < true
