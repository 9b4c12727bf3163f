"""Deadlines and tenants in program (IO): against matchings and enumeration, in both solvers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from clustered import with_deadlines
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal_balance import allowed, draw_state, imbalance
from scipy import sparse
from scipy.sparse.csgraph import maximum_bipartite_matching

from optsched import Cluster, Instance, run, solve
from optsched.errors import InstanceError, PolicyError
from optsched.models import BalanceProgram, BalanceState
from optsched.models.balance import FORMS
from optsched.simulate.cluster import PowerLaw
from optsched_papers.bf_io.goals import (
    GoalProgram,
    GoalRouting,
    StepGoals,
    energy_bonus,
    fair_slots,
    tenants_of,
)

SOLVERS = ("highs", "cp-sat")


def passing(latest, freed, left):
    """Latest starts of the window that pass if these requests wait, by a largest matching."""
    due = [request for request in left if 0 <= latest[request] <= len(freed)]
    slots = [step for step, count in enumerate(freed, start=1) for _ in range(count)]
    if not due or not slots:
        return len(due)
    fits = [[step <= latest[request] for step in slots] for request in due]
    graph = sparse.csr_array(np.array(fits, dtype=np.int8))
    return len(due) - int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())


@examples(150)
@given(
    latest=st.lists(st.integers(-2, 5), min_size=1, max_size=6),
    freed=st.lists(st.integers(0, 2), max_size=3),
    admitted=st.integers(0, 4),
)
def test_rows_hold_exactly_where_no_more_latest_starts_pass_than_must(latest, freed, admitted):
    requests = range(len(latest))
    admitted = min(admitted, len(latest))
    goals = StepGoals(latest, freed)
    subsets = list(itertools.combinations(requests, admitted))
    lost = [passing(latest, freed, sorted(set(requests) - set(each))) for each in subsets]
    for subset, misses in zip(subsets, lost, strict=True):
        chosen = np.full(len(latest), -1)
        chosen[list(subset)] = 0
        assert goals.admits(chosen, len(freed)) == (misses == min(lost))


def literal_cost(state, goals, chosen):
    """Imbalance, and the price of the tenant that is worst off."""
    left = list(goals.short)
    for request, worker in enumerate(chosen):
        if worker >= 0:
            left[goals.tenant[request]] -= 1
    return imbalance(state, chosen) + goals.price * int(max(0, *left))


def draw_goals(generator, state):
    """Goals for a step: some late, some due now, tenants short of slots or not."""
    count = len(state.waiting)
    return StepGoals(
        latest=generator.integers(-1, 5, count),
        freed=generator.integers(0, 2, state.lookahead) if generator.integers(2) else None,
        tenant=generator.integers(0, 3, count),
        short=generator.integers(-1, 4, 3),
        price=int(generator.integers(0, 60)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("profiles", [False, True])
def test_both_forms_and_solvers_find_the_optimum_of_the_enumeration(profiles):
    generator = np.random.default_rng(3)
    changed = 0
    for _ in range(12):
        state = draw_state(generator, profiles=profiles)
        goals = draw_goals(generator, state)
        plain = BalanceProgram(state)
        every = itertools.product(range(-1, len(state.free)), repeat=len(state.waiting))
        costs = {
            chosen: literal_cost(state, goals, chosen)
            for chosen in every
            if allowed(state, chosen, plain.admissions)
        }
        good = [each for each in costs if goals.admits(np.array(each), state.lookahead)]
        assert good
        least = min(costs[each] for each in good)
        changed += least > min(imbalance(state, each) for each in costs)
        for form, solver in itertools.product(FORMS, SOLVERS):
            program = GoalProgram(BalanceProgram(state, form=form), goals)
            model = program.to_linear()
            for chosen, cost in costs.items():
                point = program.write_point(chosen)
                assert program.cost(chosen) == cost
                assert model.objective(point) == cost
                assert (not model.violations(point)) == (chosen in good)
                assert program.read(point).tolist() == list(chosen)
            solution = solve(model, method=solver).require(optimal=True)
            assert solution.objective == least
            assert program.cost(program.read(solution.values)) == least
    assert changed >= 3


@pytest.mark.slow
def test_solvers_agree_on_random_steps():
    generator = np.random.default_rng(5)
    for _ in range(share(100)):
        workers, count = int(generator.integers(1, 5)), int(generator.integers(1, 11))
        state = BalanceState(
            generator.integers(0, 60, (workers, int(generator.integers(1, 4)))),
            generator.integers(0, 4, workers),
            generator.integers(0, 50, count),
        )
        program = GoalProgram(BalanceProgram(state), draw_goals(generator, state))
        one, other = (solve(program, method=name).require(optimal=True) for name in SOLVERS)
        assert one.objective == one.bound == other.objective
        for found in (one, other):
            assert program.cost(found.answer) == found.objective
            assert allowed(state, found.answer, program.program.admissions)
            assert program.goals.admits(found.answer, state.lookahead)


def test_a_shorter_window_forgets_later_deadlines():
    state = BalanceState([[9, 9, 9], [9, 9, 9]], [1, 0], [30, 1])
    goals = StepGoals(latest=[1, 9], freed=[0, 5])
    assert solve(GoalProgram(BalanceProgram(state), goals)).answer.tolist() == [0, -1]
    assert solve(GoalProgram(BalanceProgram(state, 0), goals)).answer.tolist() == [-1, 0]


def test_deadlines_and_memory_together_may_be_infeasible_and_are_then_said_to_be():
    state = BalanceState([[5], [0]], [1, 0], [8, 2], memory=[10, 10])
    goals = StepGoals(latest=[0, 9])
    solution = solve(GoalProgram(BalanceProgram(state), goals))
    assert (solution.status, solution.answer) == ("infeasible", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tenant": [0, 0]}, "tenant and short belong together"),
        ({"tenant": [0, 2], "short": [1, 1]}, "request 1: tenant is 2, but must be from 0 to 1"),
        ({"freed": [2, -1]}, r"freed\[1\] is -1, but must be at least 0"),
        ({"price": -1}, "price is -1, but must be from 0"),
        ({"latest": [0.5, 1]}, r"latest\[0\] is 0.5, but must be a whole number"),
        ({"latest": [1]}, "latest has 1 entries, but 2 requests are waiting"),
        ({"freed": []}, "freed has 0 entries, but the lookahead is 1 steps"),
    ],
)
def test_bad_goals_are_refused_in_one_sentence(arguments, message):
    state = BalanceState([[9, 10], [4, 0]], [1, 1], [3, 7])
    with pytest.raises(InstanceError, match=message):
        GoalProgram(BalanceProgram(state), StepGoals(**arguments))


def literal_shares(demands, weights, slots):
    """Max-min fair shares: raise all in proportion to weight, in exact fractions."""
    shares, left = [Fraction(0)] * len(demands), Fraction(slots)
    rising = {t for t, demand in enumerate(demands) if demand}
    while rising and left:
        total = sum(weights[t] for t in rising)
        speed = min(left / total, *((demands[t] - shares[t]) / weights[t] for t in rising))
        for t in rising:
            shares[t] += speed * weights[t]
        left -= speed * total
        rising = {t for t in rising if shares[t] < demands[t]}
    return [int(share) for share in shares]


@pytest.mark.parametrize("lookahead", [0, 3])
def test_goals_of_a_step_are_those_of_the_run_read_literally(lookahead):
    rng = np.random.default_rng(8)
    instance, cluster = with_deadlines(rng), Cluster(3, 2)
    routing = GoalRouting(instance, cluster, lookahead, deadlines=True, tenants=True)
    done = run(instance, routing, cluster=cluster, reveal=7)
    ends = done.starts + instance.outputs
    owners = ["abc".index(instance.label(i)[0]) for i in range(len(instance))]
    calls = iter(routing.seen)
    asked = shortfalls = 0
    for step in range(done.steps):
        waiting = [i for i in range(len(instance)) if done.revealed[i] <= step <= done.starts[i]]
        active = [i for i in range(len(instance)) if done.starts[i] < step < ends[i]]
        free = 6 - len(active)
        if not waiting or not free:
            continue
        goals, chosen = next(calls)
        left = [int(instance.deadlines[i] - instance.outputs[i]) - step for i in waiting]
        assert goals.latest.tolist() == left
        freed = [sum(ends[i] == step + h for i in active) for h in range(1, lookahead + 1)]
        assert goals.freed.tolist() == freed
        assert goals.admits(chosen, lookahead)
        running = [sum(owners[i] == t for i in active) for t in range(3)]
        demands = [running[t] + sum(owners[i] == t for i in waiting) for t in range(3)]
        slots = len(active) + min(free, len(waiting))
        shares = literal_shares(demands, [1, 2, 3], slots)
        assert goals.short.tolist() == [s - r for s, r in zip(shares, running, strict=True)]
        assert goals.price == (lookahead + 1) * 3 * max(instance.prompts[waiting])
        asked += goals.required(min(free, len(waiting)), lookahead).max()
        shortfalls += goals.short.max() > 0
    assert next(calls, None) is None
    assert min(asked, shortfalls) > 3


@pytest.mark.slow
def test_deadlines_are_missed_less_often_than_without():
    rng, cluster, missed = np.random.default_rng(5), Cluster(2, 3), np.zeros(2)
    for _ in range(2):
        instance = with_deadlines(rng, 60)
        for place, kept in enumerate((False, True)):
            routing = GoalRouting(instance, cluster, 2, deadlines=kept, energy_price=10.0)
            done = run(instance, routing, cluster=cluster, steps=40, reveal=30)
            assert done.check() == []
            missed[place] += done.metrics(warm_up=5)["missed"]
    assert missed[1] < missed[0]


def test_goals_without_what_they_need_are_refused():
    plain, cluster = Instance([1, 2], [1, 1], 9), Cluster(2, 2)
    for goals, message in (
        ({"deadlines": True}, "the requests have no deadlines; add a column deadline"),
        ({"tenants": True}, "tenants are read from labels such as acme/17"),
    ):
        with pytest.raises(InstanceError, match=message):
            GoalRouting(plain, cluster, **goals)
    for facts, message in (
        ({"power": PowerLaw(utilisation="throughput")}, "needs a power law by load"),
        ({"slowness": [1, 2]}, "needs workers of one slowness"),
    ):
        with pytest.raises(PolicyError, match=message):
            GoalRouting(plain, Cluster(2, 2, **facts), energy_price=1)


LOADS = st.lists(st.integers(1, 10**6), min_size=2, max_size=6)


@given(
    demands=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    slots=st.integers(0, 60),
    data=st.data(),
)
def test_fair_shares_leave_no_tenant_short_for_one_with_more(demands, slots, data):
    size = len(demands)
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)), float)
    shares = fair_slots(weights, np.array(demands), slots)
    assert (shares >= 0).all()
    assert (shares <= demands).all()
    assert shares.sum() <= slots
    assert shares.sum() > min(slots, sum(demands)) - size
    for one in range(size):
        if shares[one] == demands[one]:
            continue  # content
        for other in range(size):  # what is rounded down may be just below one
            assert shares[other] / weights[other] < (shares[one] + 1) / weights[one] + 1e-9


def test_tenants_are_what_stands_before_the_first_slash_and_weigh_their_mean():
    instance = Instance([1, 1, 1], [1, 1, 1], 9, labels=["b/1", "a/x/y", "b/2"], weights=[1, 4, 2])
    names, number, weights = tenants_of(instance)
    assert (names, number.tolist(), weights.tolist()) == (("a", "b"), [1, 0, 1], [4, 1.5])
    assert tenants_of(instance.replace(labels=["b/1", "a", "b/2"])) is None
    assert tenants_of(instance.replace(labels=None)) is None


def joules(cluster, loads):
    """Energy of a step from the power law, load by load."""
    power, most = cluster.power, max(loads)
    watt = sum(
        power.idle_watt + (power.peak_watt - power.idle_watt) * (load / most) ** power.exponent
        for load in loads
    )
    return (cluster.overhead_s + cluster.seconds_per_token * most) * watt


def linear(cluster, loads, least):
    """The linear form of the module goals: constant, largest load, sum."""
    power, seconds = cluster.power, cluster.seconds_per_token
    spread, exponent, workers = power.peak_watt - power.idle_watt, power.exponent, len(loads)
    fixed = power.idle_watt + (1 - exponent) * spread
    a = workers * seconds * fixed
    b = exponent * spread * (seconds + cluster.overhead_s / least)
    return workers * cluster.overhead_s * fixed + a * max(loads) + b * sum(loads), a, b


@given(loads=LOADS, exponent=st.floats(0.1, 1), share=st.floats(0.1, 1))
def test_the_linear_form_is_never_below_the_energy_and_equal_where_loads_are(
    loads, exponent, share
):
    cluster = Cluster(len(loads), power=PowerLaw(exponent=exponent))
    bound = linear(cluster, loads, share * max(loads))[0]
    assert bound >= joules(cluster, loads) * (1 - 1e-12)
    even = [max(loads)] * len(loads)
    assert linear(cluster, even, max(loads))[0] == pytest.approx(joules(cluster, even))


@given(loads=LOADS, price=st.floats(0, 1e9), added=st.lists(st.integers(0, 9_999), min_size=2))
def test_imbalance_with_a_price_on_the_linear_form_is_imbalance_less_a_bonus(loads, price, added):
    """Scaled, both rank what may be admitted alike, up to rounding to whole tokens."""
    cluster, workers = Cluster(len(loads)), len(loads)
    before, sizes = np.array(loads)[:, None], np.array(added)
    bonus = energy_bonus(cluster, before, sizes[:, None], price)
    _, a, _ = linear(cluster, loads, max(loads))
    values = []
    for request, size in enumerate(added):
        after = [loads[0] + size, *loads[1:]]
        imbalance = workers * max(after) - sum(after)
        energy = linear(cluster, after, max(loads))[0]
        scaled = (imbalance + price * energy) / (1 + price * a / workers)
        values.append(scaled - (imbalance - bonus[request]))
    assert max(values) - min(values) <= 1 + 1e-6 * max(1, *map(abs, values))


def test_in_short_steps_the_power_law_rewards_imbalance():
    """The same 300 tokens on two workers: balanced they draw more energy, not less."""
    cluster = Cluster(2, power=PowerLaw())
    assert joules(cluster, [150, 150]) > 1.15 * joules(cluster, [100, 200])
    assert joules(cluster, [150_000, 150_000]) < joules(cluster, [140_000, 160_000])
    assert joules(cluster, [40_000, 40_000]) > joules(cluster, [39_000, 41_000])
