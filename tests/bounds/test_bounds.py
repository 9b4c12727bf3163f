"""Bounds against their definitions, certificates against a literal Lagrangian."""

import time
from fractions import Fraction

import literal
import numpy as np
import pytest
from brute_force import feasible_starts
from effort import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from interrupts import ctrl_c
from literal import lagrangian, mean_busy_time_bound, optimum
from literal_orders import relaxed_optimum
from scipy.stats import kendalltau
from strategies import instances
from tabled import tabled

from optsched import Certificate, Instance, OptschedError, Schedule, bound, family, run, verify
from optsched._internal.numbers import proven
from optsched.bounds import ascent
from optsched.bounds import lagrangian as module
from optsched.bounds.bound import machines_bound
from optsched.bounds.lagrangian import averaged_starts, certify, cheapest_starts, expected_starts
from optsched.errors import CertificateError, InstanceError, SolverError
from optsched.problem.costs import StartCosts
from optsched.problem.premises import World


@given(instances(max_requests=7, max_arrival=12))
@examples(300)
def test_closed_form_equals_filling_token_steps_one_by_one(instance):
    literal = max(mean_busy_time_bound(instance), Fraction(int(instance.outputs.sum())))
    value = bound(instance, "closed-form").value
    assert value <= literal
    assert value == pytest.approx(float(literal), rel=1e-9)


@given(instances(max_requests=4, max_memory=12, max_arrival=5, max_output=4))
def test_every_bound_is_at_most_the_optimum(instance):
    best = optimum(instance)
    assert bound(instance, "closed-form").value <= best
    assert bound(instance, "lagrangian").value <= best


# Prices that were continuous where an arrival meets a completion gave 7.7 against 9.7 here.
@pytest.mark.few
@example(Instance([0] * 5, [1, 2, 2, 1, 1], 2, [0, 0, 0, 2, 2]))
@given(instances(max_requests=8, max_arrival=30))
@examples(300)
def test_lagrangian_is_at_least_the_closed_form(instance):
    loose, tight = bound(instance, "closed-form"), bound(instance, "lagrangian")
    assert tight.value >= loose.value - 1e-6
    assert bound(instance).value >= max(loose.value, tight.value) - 1


@st.composite
def certificates(draw):
    """Draw an instance and any prices for it."""
    instance = draw(instances())
    prices = draw(st.lists(st.integers(0, 50), max_size=30))
    denominator = draw(st.integers(1, 60))
    return instance, Certificate(denominator, tuple(prices), instance.fingerprint)


@given(certificates())
@examples(300)
def test_verifier_and_maker_equal_the_definition_for_any_prices(case):
    instance, certificate = case
    prices = [Fraction(price, certificate.denominator) for price in certificate.prices]
    expected = lagrangian(instance, prices)
    assert verify(certificate, instance) == expected
    starts, costs = cheapest_starts(
        instance,
        np.array(certificate.prices, dtype=np.int64),
        StartCosts.plain(np.full(len(instance), certificate.denominator)),
        instance.arrivals,
    )
    spent = instance.memory * sum(certificate.prices)
    assert Fraction(int(costs.sum()) - spent, certificate.denominator) == expected
    assert (starts >= instance.arrivals).all()


@pytest.mark.few
@given(instances(max_requests=8, max_arrival=30), st.data())
def test_certificates_prove_what_they_claim_and_are_never_trusted(instance, data):
    certificate = bound(instance, "lagrangian").certificate
    assert verify(certificate, instance) == certificate.value
    assert Certificate.from_json(certificate.to_json()) == certificate
    assume(certificate.prices)
    prices = list(certificate.prices)
    step = data.draw(st.integers(0, len(prices) - 1))
    prices[step] += data.draw(st.integers(1, 10 * certificate.denominator))
    forged = Certificate(
        certificate.denominator, tuple(prices), instance.fingerprint, certificate.value
    )
    scaled = [Fraction(price, certificate.denominator) for price in prices]
    assert verify(forged, instance) == lagrangian(instance, scaled)


def test_long_horizons_use_both_levels_of_pruning():
    """Prices over 20,000 steps: thousands of starts are ruled out at a time."""
    rng = np.random.default_rng(3)
    instance = Instance(
        rng.integers(0, 60, 400), rng.integers(1, 40, 400), 100, np.sort(rng.integers(0, 9000, 400))
    )
    for prices in (rng.random(20_000) * 0.05, np.linspace(4, 0, 20_000), np.zeros(20_000)):
        certificate = certify(instance, prices, instance.arrivals)
        assert verify(certificate, instance) == certificate.value


def test_numbers_beyond_64_bits_are_verified_exactly():
    instance = Instance([3, 1], [2, 4], memory=6)
    certificate = Certificate(10**30, (10**30, 7, 10**29), instance.fingerprint)
    prices = [Fraction(price, 10**30) for price in certificate.prices]
    assert verify(certificate, instance) == lagrangian(instance, prices)


def test_bounds_are_tight_where_nothing_competes():
    instance = Instance([5, 5], [3, 4], memory=30)
    assert bound(instance).value == 7 == run(instance, "area").total_latency


def test_gap_at_real_scale_is_about_ten_percent():
    instance = family("chat-and-summaries", n=2000, seed=3)
    total = run(instance, "area").total_latency
    assert 0 <= 1 - bound(instance).value / total < 0.12


def test_certificate_of_another_instance_is_refused():
    instance = Instance([1], [2], memory=3)
    certificate = bound(instance, "lagrangian").certificate
    with pytest.raises(CertificateError, match="belongs to another instance"):
        verify(certificate, instance.replace(memory=4))


@tabled()
def test_malformed_certificates_are_refused(text, message):
    with pytest.raises(CertificateError, match=message):
        Certificate.from_json(text)


def test_certificate_file_without_an_object_is_refused(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[]")
    with pytest.raises(CertificateError, match=r"list\.json holds no JSON object"):
        Certificate.from_json(path)


@pytest.mark.few
@given(instances(max_requests=4, max_memory=12, max_arrival=5, max_output=4), st.data())
def test_bounds_of_other_objectives_hold_for_every_schedule(instance, data):
    weight = st.sampled_from([0.25, 1, 1.1, 3])
    weights = [data.draw(weight) for _ in range(len(instance))]
    instance = instance.replace(weights=weights)
    best = optimum(instance)
    schedules = [Schedule(instance, starts) for starts in feasible_starts(instance)]
    weighted = min(schedule.weighted_latency for schedule in schedules)
    for method in ("closed-form", "lagrangian", "auto"):
        proven = bound(instance, method, "weighted-latency")
        assert proven.value <= weighted
        if proven.certificate is not None:
            assert verify(proven.certificate, instance) == proven.certificate.value
            assert Certificate.from_json(proven.certificate.to_json()) == proven.certificate
    makespan = min(schedule.makespan for schedule in schedules)
    assert bound(instance, objective="makespan").value <= makespan
    equal = instance.replace(weights=[2] * len(instance))
    assert bound(equal, objective="weighted-latency").value <= 2 * best


def test_unknown_bound_is_refused():
    with pytest.raises(OptschedError, match="unknown bound 'tight': known: auto, closed-form"):
        bound(Instance([1], [1], memory=2), "tight")
    with pytest.raises(OptschedError, match="unknown objective 'latency': did you mean"):
        bound(Instance([1], [1], memory=2), objective="latency")
    with pytest.raises(OptschedError, match="makespan has no Lagrangian bound"):
        bound(Instance([1], [1], memory=2), "lagrangian", "makespan")
    with pytest.raises(CertificateError, match="prove anything about 'makespan'"):
        Certificate(1, (), "", objective="makespan")


def test_horizons_too_long_for_prices_fall_back_to_the_closed_form():
    instance = Instance([1, 1], [2, 2], 3, arrivals=[0, 10**9])
    assert bound(instance).method == "closed-form"
    with pytest.raises(OptschedError, match="a price for each of 1000000002 steps"):
        bound(instance, "lagrangian")


def test_sizes_beyond_64_bits_are_refused_not_wrapped():
    instance = Instance([1], [10**9 - 1], 10**9, arrivals=[10**12])
    with pytest.raises(OptschedError, match="too large to be counted in token-steps"):
        bound(instance)


def test_a_bound_is_shown_without_its_thousands_of_prices():
    instance = family("uniform", n=60, seed=1, rate=6, seconds_per_step=0.01)
    clocked = [{"clock": "llama-2-7b-a100", "method": how} for how in ("lagrangian", "path")]
    for options in ({}, {"method": "sawtooth"}, {"workers": 2}, *clocked):
        found = bound(instance, **options)
        assert max(len(repr(found)), len(repr(found.certificate))) < 1000


def test_ctrl_c_is_heard_inside_kernels(monkeypatch):
    """A bound of a million requests answered after a minute and a half."""

    def deaf(*arguments):
        time.sleep(6)

    instance = family("uniform", n=20_000, seed=1)
    bound(instance, "closed-form")
    monkeypatch.setattr(module, "certify", deaf)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), ctrl_c(0.5, noted=True):
        bound(instance, "lagrangian")
    assert time.perf_counter() - began < 3


def test_the_better_bound_is_left_out_where_it_takes_long(monkeypatch):
    instance = family("uniform", n=50, seed=1)
    assert bound(instance).method == "lagrangian"
    monkeypatch.setattr(ascent, "_MAX_SEARCH", 0)
    assert bound(instance).method == "closed-form"
    assert bound(instance, "lagrangian").method == "lagrangian"


@given(
    prompt=st.integers(0, 6),
    requests=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4),
    more=st.integers(0, 9),
)
def test_no_schedule_is_below_it(prompt, requests, more):
    arrivals, outputs = zip(*sorted(requests), strict=True)
    memory = prompt + max(outputs) + more
    instance = Instance([prompt] * len(requests), outputs, memory, arrivals)
    assert machines_bound(instance) <= literal.optimum(instance)


@given(requests=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9))
def test_one_at_a_time_it_is_shortest_remaining_first(requests):
    arrivals, outputs = map(list, zip(*sorted(requests), strict=True))
    instance = Instance([9] * len(requests), outputs, 9 + max(outputs), arrivals)
    left, now, total = dict(enumerate(outputs)), 0, 0
    while left:  # one step after the other
        here = [request for request in left if arrivals[request] <= now]
        now += 1
        if here:
            least = min(here, key=left.__getitem__)
            left[least] -= 1
            if not left[least]:
                del left[least]
                total += now - arrivals[least]
    assert machines_bound(instance) == total


def test_it_is_met_where_outputs_are_equal_and_age_makes_no_difference():
    instance = Instance([20] * 60, [5] * 60, 75, [3 * (i // 4) for i in range(60)])
    assert run(instance, "mc-sf").total_latency >= machines_bound(instance) > 0.8 * 60 * 5


def test_different_prompts_are_refused():
    with pytest.raises(InstanceError, match="between 1 and 2"):
        machines_bound(Instance([1, 2], [1, 1], 9))


@given(instance=instances(max_requests=5, max_memory=15, max_arrival=0, max_output=6))
@examples(100)
def test_they_cost_what_the_relaxation_costs_over_any_longer_horizon(instance):
    longer = int(instance.outputs.sum()) + 2 * int(instance.outputs.max())
    cost = float((expected_starts(instance) + instance.outputs).sum())
    assert cost == pytest.approx(relaxed_optimum(instance, longer), abs=1e-4 * len(instance))


def test_arrivals_and_deadlines_do_not_count():
    plain = Instance([3, 1, 1], [1, 2, 2], memory=6)
    timed = plain.replace(arrivals=[0, 5, 9], deadlines=[1, 2, 3], weights=[1, 2, 3])
    assert np.array_equal(expected_starts(plain), expected_starts(timed))


@pytest.mark.parametrize("name", ["mixed", "exponential", "uniform"])
@pytest.mark.parametrize("seed", range(3))
def test_averages_of_the_lagrangian_order_nearly_as_the_relaxation(name, seed, monkeypatch):
    instance = family(name, n=20 if name == "uniform" else 40, seed=seed)
    monkeypatch.setattr(module, "_FITS", 10**9)
    exact, rough = expected_starts(instance), averaged_starts(instance)
    assert kendalltau(exact, rough).statistic > 0.85
    assert np.abs(exact - rough).mean() < 0.02 * exact.max()


def test_large_instances_take_the_averages(monkeypatch):
    instance = family("uniform", n=30, seed=1)
    monkeypatch.setattr(module, "_FITS", 0)
    assert np.array_equal(expected_starts(instance), averaged_starts(instance))


def test_requests_that_all_fit_start_at_once():
    instance = Instance([1, 2, 3], [4, 5, 6], memory=100)
    assert averaged_starts(instance).tolist() == expected_starts(instance).tolist() == [0, 0, 0]


def test_too_many_steps_are_refused():
    instance = Instance([0] * 3, [10**9] * 3, 10**9)
    with pytest.raises(SolverError, match=r"prices for 1,500,000,00\d steps .*; order by 'area'"):
        expected_starts(instance)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no schedule has a total latency below "),
        (
            {"workers": 2, "objective": "weighted-latency"},
            "no schedule on these 2 workers has a ",
        ),
        ({"workers": [200, 100]}, "no schedule on these 2 workers has a total latency below "),
        (
            {"clock": "llama-2-7b-a100", "max_num_seqs": 8},
            "no schedule with at most 8 requests in a batch has a total latency below ",
        ),
    ],
)
def test_a_bound_says_what_it_claims_with_its_premises(options, said):
    instance = family("uniform", n=20, seed=1, rate=6, seconds_per_step=0.01)
    found = bound(instance, **options)
    assert str(found).startswith(said)
    assert proven(found.value, decimals=1).rstrip("0").rstrip(".") in str(found)


def test_late_requests_are_counted_and_not_measured_in_steps():
    """A certificate was said to prove "a late requests below 7 steps"."""
    said = World("", objective="late-requests").says("7", "steps")
    assert said == "no schedule has fewer than 7 late requests"
