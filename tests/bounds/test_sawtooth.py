"""The sawtooth bound: against its formula in fractions, and against every schedule."""

from dataclasses import replace

import numpy as np
import pytest
from brute_force import joint_optima, optima
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal import sawtooth
from strategies import instances, tiny_joint
from tabled import tabled

import optsched
from optsched import Instance, SolveParams, Workers, bound, family, run, solve, verify
from optsched._internal.aside import Budget
from optsched.bounds.ascent import certify_charges, find_sawtooth, improve_charges, sawtooth_bound
from optsched.bounds.lagrangian import certify
from optsched.certificates.prices import SawtoothCertificate
from optsched.errors import CertificateError
from optsched.optimum import stages as improve
from optsched.search.delays import list_on_workers

TINY = instances(max_requests=4, max_memory=12, max_arrival=5, max_output=5)


def alone(instance):
    """Return the one worker of an instance."""
    return Workers([instance.memory])


def certified(instance, prices, charges, size, objective="total-latency"):
    """Return the certificate of prices and charges on one worker."""
    first = instance.arrivals
    return certify_charges(instance, alone(instance), prices, charges, size, first, objective)


@st.composite
def certificates(draw):
    """Draw an instance with any prices, charges and size that a certificate may have."""
    instance = draw(instances())
    weights = st.sampled_from([0.25, 1, 1.1, 3])
    instance = instance.replace(weights=[draw(weights) for _ in range(len(instance))])
    prices = draw(st.lists(st.integers(0, 50), max_size=20))
    size = draw(st.integers(1, 30))
    charges = [draw(st.integers(0, price * len(prices) // size)) for price in prices]
    numbers = draw(st.integers(1, 60)), size, tuple(prices), tuple(charges)
    objective = draw(st.sampled_from(["total-latency", "weighted-latency"]))
    return instance, SawtoothCertificate(*numbers, instance.fingerprint, objective=objective)


@given(certificates())
@examples(300)
def test_the_verifier_equals_the_formula_in_fractions(case):
    instance, certificate = case
    assert verify(certificate, instance) == sawtooth(certificate, instance)


def some_charges(rng, instance):
    """Draw prices that fall, and charges that reach some steps far."""
    steps = int(rng.integers(1, 16))
    prices = rng.choice([0.3, 1, 3]) * rng.random(steps) * np.linspace(1, 0, steps) ** 0.5
    size = int(rng.integers(1, instance.memory + 3))
    return prices, prices * rng.random(steps) * rng.choice([0.5, 1, 4]) / size, size


@pytest.mark.few
@given(TINY, st.integers(0, 2**32 - 1), st.data())
@examples(300)
def test_no_schedule_is_below_any_charges_and_the_maker_equals_the_verifier(instance, seed, data):
    weights = st.sampled_from([0.25, 1, 2, 3])
    instance = instance.replace(weights=[data.draw(weights) for _ in range(len(instance))])
    best = optima(instance)
    for objective in ("total-latency", "weighted-latency"):
        first = bound(instance, "lagrangian", objective).certificate
        found = sawtooth_bound(instance, first, alone(instance)).certificate
        prices, charges, size = some_charges(np.random.default_rng(seed), instance)
        other = certify_charges(
            instance, alone(instance), prices, charges, size, instance.arrivals, objective
        )
        assert found.value >= first.value
        for certificate in (found, other):
            assert verify(certificate, instance) == certificate.value <= best[objective]
            assert optsched.read_certificate(certificate.to_json()) == certificate


@pytest.mark.few
@examples(100)
@given(TINY, st.sampled_from(["total-latency", "weighted-latency"]), st.integers(1, 2))
def test_better_charges_prove_no_less_and_never_more_than_the_optimum(instance, objective, count):
    instance = instance.replace(weights=np.arange(1, len(instance) + 1) / 2)
    workers = Workers([instance.memory] * count)
    schedule = list_on_workers(instance, workers, instance.areas.astype(float), 1.4, 8)
    first = bound(instance, "sawtooth", objective, workers=workers)
    found = improve_charges(schedule, first.certificate, Budget(work=2e6))
    assert found.certificate.value >= first.certificate.value
    assert verify(found.certificate, instance, workers) == found.certificate.value
    assert found.value <= joint_optima(instance, workers)[objective]


def test_better_charges_gain_where_few_requests_are_large_and_stop_when_told():
    instance = family("chat-and-summaries", n=100, seed=1).replace(arrivals=None)
    schedule = run(instance, "area").schedule
    first = bound(instance, "sawtooth")
    found = improve_charges(schedule, first.certificate, Budget(work=1e8))
    assert found.value > 1.01 * first.value
    late = improve_charges(schedule, first.certificate, Budget(deadline=0.0))
    assert late.value == pytest.approx(first.value, rel=1e-9)
    assert not late.interrupted


@pytest.mark.few
def test_one_worker_is_the_instance_with_its_memory():
    """So a certificate of one is one of the other, and no schedule is below it."""
    rng = np.random.default_rng(12)
    for _ in range(share(40)):
        instance, _ = tiny_joint(rng)
        memory = int(instance.peaks.max() + rng.integers(3))
        pooled, worker = instance.replace(memory=memory), Workers([memory])
        for objective in ("total-latency", "weighted-latency"):
            certificate = bound(pooled, "sawtooth", objective).certificate
            proven = verify(certificate, instance, worker)
            assert proven == verify(certificate, pooled) == certificate.value
            assert proven <= joint_optima(instance, worker)[objective]
            with pytest.raises(CertificateError, match="belongs to another"):
                verify(certificate, instance, Workers([memory + 1]))


@pytest.mark.few
def test_nor_is_any_schedule_on_several_workers():
    rng = np.random.default_rng(5)
    for _ in range(share(300)):
        instance, workers = tiny_joint(rng)
        best = joint_optima(instance, workers)
        pool = instance.replace(memory=workers.total)
        for objective in ("total-latency", "weighted-latency"):
            found = bound(instance, "sawtooth", objective, workers=workers).certificate
            numbers = some_charges(rng, pool)
            other = certify_charges(instance, workers, *numbers, instance.arrivals, objective)
            for certificate in (found, other):
                proven = verify(certificate, instance, workers)
                assert proven == sawtooth(certificate, instance, workers)
                assert proven == certificate.value <= best[objective]


@pytest.mark.long
@pytest.mark.no_cover
def test_no_schedule_of_20_000_tiny_instances_is_below_the_bound():
    rng = np.random.default_rng(34)
    above = 0
    for _ in range(share(20_000)):
        count, memory = int(rng.integers(2, 5)), int(rng.integers(5, 14))
        outputs = rng.integers(1, 6, count)
        prompts = rng.integers(0, memory + 1 - outputs)
        last = int(rng.choice([1, 5]))
        instance = Instance(prompts, outputs, memory, np.sort(rng.integers(0, last, count)))
        prices, charges, size = some_charges(rng, instance)
        without = certify(instance, prices, instance.arrivals)
        found = certified(instance, prices, charges, size)
        assert found.value <= optima(instance)["total-latency"], (instance, found)
        above += found.value > without.value
    assert above > share(2_000)


def test_credits_far_ahead_are_no_reason_to_stop_the_search():
    """Prices over 20,000 steps: thousands of starts are ruled out at a time."""
    rng = np.random.default_rng(3)
    instance = Instance(
        rng.integers(0, 60, 60), rng.integers(1, 40, 60), 100, np.sort(rng.integers(0, 9000, 60))
    )
    bursts = np.where(np.arange(20_000) % 5000 < 60, 4.0, 0.001)
    for prices in (rng.random(20_000) * 0.05, np.linspace(4, 0, 20_000), bursts):
        charges = prices * rng.random(20_000) * 30 / 20
        certificate = certify_charges(
            instance, alone(instance), prices, charges, 20, instance.arrivals
        )
        assert verify(certificate, instance) == certificate.value


def test_it_gains_where_few_requests_run_and_costs_nothing_where_many_do():
    few, many = family("uniform", n=60, seed=1), family("exponential", n=200, seed=1)
    assert bound(few, "sawtooth").value > 1.03 * bound(few, "lagrangian").value
    assert bound(many, "sawtooth").value >= bound(many, "lagrangian").value
    alone = Instance([5], [3], memory=30)
    assert bound(alone, "sawtooth").value == 3


@pytest.mark.slow
def test_solve_certifies_its_bound_by_charges():
    instance = family("chat-and-summaries", n=60, seed=3).replace(arrivals=None)
    found = solve(instance, method="search", params=SolveParams(work=1))
    assert found.proof == "sawtooth"
    assert verify(found.certificate, instance) >= found.bound - 1
    assert found.price_certificate.value < found.certificate.value
    double = instance.replace(memory=2 * instance.memory)
    assert find_sawtooth(double, alone(double), "total-latency").value < found.bound
    several = family("uniform", n=30, seed=3)
    several = solve(several, workers=2, method="search", params=SolveParams(work=0.2))
    assert several.proof == "sawtooth"
    assert verify(several.certificate, several.schedule.instance, 2) >= several.bound - 1


@pytest.mark.slow
@pytest.mark.parametrize(("n", "load"), [(150, None), (200, 2.0)])
def test_solve_raises_prices_and_charges_together(n, load, monkeypatch):
    instance, proven = family("chat-and-summaries", n=n, seed=3, load=load), []
    for last in (0.0, 0.6):
        monkeypatch.setattr(improve, "CHARGES_BEAM", last)
        found = solve(instance, method="search", params=SolveParams(work=2)).certificate
        assert verify(found, instance) == found.value
        proven.append(found.value)
    assert proven[0] < proven[1]


def test_where_there_is_no_sawtooth_bound_it_is_refused():
    instance = Instance([1, 1], [2, 2], memory=6)
    with pytest.raises(optsched.OptschedError, match="on the clock unit nothing is known to grow"):
        bound(instance, "sawtooth", clock="unit")
    certificate = bound(instance, "sawtooth", workers=1).certificate
    assert verify(certificate, instance, workers=1) == certificate.value
    with pytest.raises(CertificateError, match="to other workers"):
        verify(certificate, instance, workers=2)
    with pytest.raises(CertificateError, match="belongs to another instance"):
        verify(certificate, instance.replace(memory=7))


@tabled()
def test_certificates_that_prove_nothing_are_refused(changes, message):
    certificate = SawtoothCertificate(1, 2, (3, 0), (1, 0), "")
    with pytest.raises(CertificateError, match=message):
        replace(certificate, **changes)
