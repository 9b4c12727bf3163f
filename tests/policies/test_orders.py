"""Every policy that knows the outputs: feasible, deterministic, and equal to its literal twin."""

import re
from pathlib import Path

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from literal import Served, SortedF, simulate
from literal_orders import by_output, local_swap, simulate_backfill, simulate_skip, simulate_window
from literal_selections import selection
from strategies import instances
from tabled import tabled

from optsched import Instance, compare, family, run
from optsched.errors import PolicyError, SolverError
from optsched.policies import BASIC, POLICIES, BatchPolicy, PriorityPolicy
from optsched.policies.priorities import sorted_f
from optsched.solvers import select_batch

KNOW_OUTPUTS = [
    name for name, policy in POLICIES.items() if isinstance(policy, PriorityPolicy | BatchPolicy)
]
BY_SOLVER = {"sorted-f-mip", "sorted-f-mip-profile", "sorted-lp", "lp-swap"}
small = instances(max_requests=8, max_memory=24, max_arrival=15, max_output=10)


def literal_walk(name, instance):
    """Return the walk of a policy by its definition."""
    return Served(selection(name, instance))


def test_the_documentation_lists_all_policies():
    page = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
    assert [name for name in POLICIES if f"`{name}`" not in page.read_text()] == []


def test_all_of_them_are_here():
    assert set(KNOW_OUTPUTS) >= BY_SOLVER | (set(BASIC) - {"area+window"}) | {
        "sorted-f-dp",
        "sorted-f-quantile",
    }


@pytest.mark.few
@pytest.mark.parametrize("name", ["sorted-f-dp", "sorted-f-scaled-dp", "sorted-f-quantile"])
@given(instance=small)
@examples(150)
def test_selections_equal_the_literal_simulator(name, instance):
    schedule = run(instance, name).schedule
    assert schedule.starts.tolist() == simulate(instance, literal_walk(name, instance))


@pytest.mark.parametrize("name", sorted(BY_SOLVER))
@given(instance=small)
@examples(40)
def test_policies_with_a_solver_equal_the_literal_simulator(name, instance):
    schedule = run(instance, name).schedule
    assert schedule.starts.tolist() == simulate(instance, literal_walk(name, instance))


@given(instance=instances(max_requests=9, max_memory=40, max_output=20))
@examples(300)
def test_the_fast_swap_gives_the_batches_of_algorithm_4(instance):
    everybody = list(range(len(instance)))
    by_peak = sorted(everybody, key=lambda i: (instance.peaks[i], i))
    filled = [i for i, held in zip(by_peak, np.cumsum(instance.peaks[by_peak]), strict=True)
              if held <= instance.memory]  # fmt: skip
    batch = local_swap(instance, filled, everybody)
    assert batch == SortedF(instance).select(everybody)
    policy = POLICIES["sorted-f"].selector(instance)
    policy.release(np.arange(len(instance)))
    assert policy.next_batch().tolist() == batch
    assert select_batch(instance, "swap").requests.tolist() == by_output(instance, batch)


@pytest.mark.slow("sorted-f-[!d]*", "sorted-lp", "lp-swap")
@pytest.mark.no_cover  # the tests above reach every line that runs here
@pytest.mark.parametrize("name", KNOW_OUTPUTS)
def test_feasible_and_deterministic_on_random_instances(name):
    rng = np.random.default_rng(5)
    for _ in range(share(1000)):
        memory = int(rng.integers(4, 16))
        count = int(rng.integers(1, 4 if name in BY_SOLVER else 8))
        outputs = rng.integers(1, min(memory, 6) + 1, count)
        prompts = rng.integers(0, memory - outputs + 1)
        arrivals = np.sort(rng.integers(0, 6, count)) * int(rng.integers(0, 2))
        due = 99 - outputs * (arrivals + 1) % 5  # which all meet
        instance = Instance(prompts, outputs, memory, arrivals, deadlines=due)
        schedule = run(instance, name).schedule
        assert schedule.check() == [], instance.to_json()
        if rng.random() < 0.1:
            assert run(instance, name).schedule == schedule


@pytest.mark.parametrize("name", ["sorted-f-dp", "sorted-f-quantile", "sorted-lp", "lp-swap"])
def test_nothing_of_the_future_is_used(name):
    rng = np.random.default_rng(2)
    outputs = rng.integers(1, 12, 60)
    arrivals = np.sort(rng.integers(0, 200, 60))
    instance = Instance(rng.integers(0, 15, 60), outputs, 40, arrivals)
    half = instance.take(np.arange(30))
    together, alone = run(instance, name).schedule.starts[:30], run(half, name).schedule.starts
    early = np.minimum(together, alone) < arrivals[30]
    assert early.sum() > 10
    assert np.array_equal(together[early], alone[early])


@pytest.mark.parametrize("rule", ["skip", "backfill", "window"])
@pytest.mark.parametrize("name", ["sorted-f-dp", "lp-swap"])
def test_rules_apply_to_all_of_them(name, rule):
    instance = family("mixed", n=30, seed=2)
    order = []
    left = list(range(30))
    choose = literal_walk(name, instance).select
    while left:
        batch = choose(left)
        order += batch
        left = [i for i in left if i not in batch]
    simulator = {"skip": simulate_skip, "backfill": simulate_backfill, "window": simulate_window}[
        rule
    ]
    literal = simulator(instance, lambda waiting, _: [i for i in order if i in waiting])
    assert run(instance, name, rule=rule).schedule.starts.tolist() == literal


def test_sorted_f_with_options_of_its_own():
    instance = family("uniform", n=30, seed=1)
    policies = [sorted_f("quantile", seed=seed) for seed in range(4)]
    assert len({run(instance, policy).total_latency for policy in policies}) > 1
    assert policies[0].name == "sorted-f-quantile"
    assert sorted_f("highs", fit="profile").name == "sorted-f-mip-profile"


def test_selections_that_cannot_be_made_say_what_to_use():
    instance = family("chat-and-summaries", n=2000, seed=1)
    with pytest.raises(SolverError, match=r"would take 2\.\d GB; use 'scaled-dp', 'swap' or"):
        run(instance, "sorted-f-dp")
    with pytest.raises(SolverError, match="knows only fit='peak'"):
        run(instance, sorted_f("swap", fit="profile"))
    with pytest.raises(PolicyError, match="did you mean 'sorted-f-dp'"):
        run(instance, "sorted-f-pd")


class Stubborn:
    """Gives the same batch again and again."""

    def __init__(self, batch):
        self.batch = batch

    def release(self, requests):
        pass

    def next_batch(self):
        return self.batch


@pytest.mark.parametrize("rule", ["prefix", "skip"])
@tabled()
def test_batches_that_cannot_be_admitted_are_refused(batch, message, rule):
    instance = Instance([1] * 3, [1] * 3, 10, arrivals=[0, 0, 5], labels=["a", "b", "c"])
    mine = BatchPolicy("mine", "", lambda _: Stubborn(np.array(batch)))
    if rule == "skip" and batch == [2]:
        message = "returns the request 2, but there are only 0 to 1"
    with pytest.raises(PolicyError, match=re.escape(message)):
        run(instance, mine, rule=rule)


def test_keys_that_order_nothing_are_refused():
    instance = Instance([1] * 3, [1] * 3, 10, labels=["a", "b", "c"])
    for key, message in (
        ([1, 2], r"policy 'mine': the key has shape \(2,\) and type int64, but must be one number"),
        (["x", "y", "z"], "type <U1, but must be one number for each of 3 requests"),
        ([1, 2, np.nan], "policy 'mine': the key of request c is not a number"),
    ):
        mine = PriorityPolicy("mine", "", lambda _, key=key: np.array(key))
        with pytest.raises(PolicyError, match=message):
            run(instance, mine)


def test_only_the_basic_ones_and_one_told_nothing_are_compared_unless_named():
    found = compare(family("uniform", n=5))
    assert [s.policy for s in found.schedules] == [*BASIC, "alpha-beta-clearing"]
    assert found.best_deployable.policy == "alpha-beta-clearing"
