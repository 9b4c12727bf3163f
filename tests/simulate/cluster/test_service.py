"""Tenants, fair shares, and energy that is linear in the largest load and the sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import Cluster, Instance
from optsched.simulate.cluster import PowerLaw
from optsched.simulate.cluster.results import energy_bonus, fair_slots, jain, tenants_of

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
    assert jain(np.array([4.0, 1.5]), tenants_of(instance)) == pytest.approx(1)
    assert jain(np.array([4.0, 0.0]), tenants_of(instance)) == pytest.approx(0.5)


def joules(cluster, loads):
    """Energy of a step from the power law, load by load."""
    power, most = cluster.power, max(loads)
    watt = sum(
        power.idle_watt + (power.peak_watt - power.idle_watt) * (load / most) ** power.exponent
        for load in loads
    )
    return (cluster.overhead_s + cluster.seconds_per_token * most) * watt


def linear(cluster, loads, least):
    """The linear form of docs/cluster.md: constant, largest load, sum."""
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
