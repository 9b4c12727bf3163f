"""The configuration-size bound against brute force; its certificates against the definition."""

import dataclasses
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from priced_instances import TINY, certificates
from strategies import instances
from tabled import tabled

from optsched import Instance, OptschedError, bound, family
from optsched.bounds import configurations
from optsched.bounds.configurations import Point, Problem, configuration_bound
from optsched.certificates.prices import ConfigurationCertificate, items, verify_configuration
from optsched.errors import CertificateError


def largest_together(instance, size, end):
    """Largest total size of states (one per request, or none) that fit until all are done."""
    states = [
        [None, *range(1, output + 1)] for output in instance.outputs.tolist()
    ]  # steps done, or not running
    best = Fraction(0)
    for chosen in itertools.product(*states):
        pairs = []
        for i, token in enumerate(chosen):
            if token is not None:
                pairs.append((int(instance.prompts[i]) + token, int(instance.outputs[i]) - token))
        late = any(
            token is not None and int(instance.arrivals[i]) + token > end
            for i, token in enumerate(chosen)
        )
        later = range(max((left for _, left in pairs), default=0) + 1)
        fits = all(
            sum(held + wait for held, left in pairs if left >= wait) <= instance.memory
            for wait in later
        )
        if fits and not late:
            best = max(best, sum((size[pair] for pair in pairs), Fraction(0)))
    return best


def literal_value(certificate, instance, capacities):
    """The bound from its formula, in fractions."""
    pairs = [tuple(pair) for pair in items(instance).tolist()]
    horizon = len(certificate.prices)
    prices = [Fraction(price, certificate.price_denominator) for price in certificate.prices]
    phase = [
        next(p for p, e in enumerate(certificate.ends) if t <= e) for t in range(1, horizon + 1)
    ]

    def paid(i, start):
        total = Fraction(0)
        for token in range(1, int(instance.outputs[i]) + 1):
            step = start + token
            if step <= horizon:
                pair = (int(instance.prompts[i]) + token, int(instance.outputs[i]) - token)
                size = certificate.sizes[phase[step - 1]][pairs.index(pair)]
                total += prices[step - 1] * Fraction(size, certificate.size_denominator)
        return total

    total = Fraction(0)
    for i, arrival in enumerate(instance.arrivals.tolist()):
        latest = max(arrival, horizon)
        total += min(
            start + int(instance.outputs[i]) - arrival + paid(i, start)
            for start in range(arrival, latest + 1)
        )
    return total - sum(
        (price * capacities[p] for price, p in zip(prices, phase, strict=True)), Fraction(0)
    )


@given(certificates(**TINY))
@examples(200)
def test_any_certificate_proves_a_bound_below_the_optimum_and_its_formula(case):
    instance, certificate = case
    pairs = [tuple(pair) for pair in items(instance).tolist()]
    capacities = []
    for row, end in zip(certificate.sizes, certificate.ends, strict=True):
        size = dict(
            zip(pairs, (Fraction(n, certificate.size_denominator) for n in row), strict=True)
        )
        capacities.append(largest_together(instance, size, end))
    proven = verify_configuration(certificate, instance)
    # The dynamic program may count one request twice, so that it proves the formula or less.
    assert proven <= literal_value(certificate, instance, capacities)
    assert proven <= optimum(instance)


@given(certificates(max_requests=7, max_arrival=12))
@examples(200)
def test_maker_and_verifier_agree_on_any_prices_and_sizes(case):
    instance, certificate = case
    problem = Problem.of(instance)
    ends = np.array(certificate.ends)
    point = Point(
        np.array(certificate.prices) / certificate.price_denominator,
        np.array(certificate.sizes) / certificate.size_denominator,
        ends,
        problem.copies(ends),
    )
    made = configurations.certify_configuration(instance, problem, point)
    assert verify_configuration(made, instance) == made.value
    assert float(made.value) == pytest.approx(
        float(verify_configuration(certificate, instance)), abs=0.01
    )


@pytest.mark.few
@given(instances(**TINY), st.integers(1, 6), st.data())
@examples(500)
def test_bounds_hold_and_certificates_are_never_trusted(instance, phases, data):
    best = optimum(instance)
    result = configuration_bound(instance, phases=phases, iterations=data.draw(st.integers(0, 60)))
    certificate = result.certificate
    assert result.value <= certificate.value <= best
    assert result.value >= bound(instance).value - 0.01
    assert verify_configuration(certificate, instance) == certificate.value
    assert ConfigurationCertificate.from_json(certificate.to_json()) == certificate
    # Prices or sizes are raised; the claim stays.
    prices, sizes = list(certificate.prices), [list(row) for row in certificate.sizes]
    if data.draw(st.booleans()):
        prices[data.draw(st.integers(0, len(prices) - 1))] += data.draw(st.integers(1, 2**26))
    else:
        row = sizes[data.draw(st.integers(0, len(sizes) - 1))]
        row[data.draw(st.integers(0, len(row) - 1))] += data.draw(st.integers(1, 2**26))
    forged = dataclasses.replace(
        certificate, prices=tuple(prices), sizes=tuple(map(tuple, sizes)), value=Fraction(10**9)
    )
    assert verify_configuration(forged, instance) <= best


@pytest.mark.slow
def test_the_bound_is_much_stronger_than_the_lagrangian_where_requests_are_large():
    instance = family("uniform", n=10, seed=0)
    assert bound(instance).value < 626  # 875 is the best known
    assert configuration_bound(instance, iterations=600).value > 800


def test_equal_input_gives_equal_bounds_and_a_time_limit_only_stops_earlier():
    instance = family("normal", n=6, seed=1)
    looks = []
    once = configuration_bound(instance, iterations=80, on_progress=lambda *at: looks.append(at))
    assert len(looks) == 10
    assert configuration_bound(instance, iterations=80).certificate == once.certificate
    limit = {"time_limit": 0.0, "on_progress": lambda *at: looks.append(at)}
    stopped = configuration_bound(instance, iterations=80, **limit)
    assert len(looks) == 11
    assert stopped.value <= once.value
    assert verify_configuration(stopped.certificate, instance) == stopped.certificate.value


def test_an_interrupt_keeps_the_best_so_far():
    instance = family("normal", n=6, seed=1)
    seen = []

    def interrupt(seconds, value):
        seen.append(value)
        if len(seen) == 3:
            raise KeyboardInterrupt

    result = configuration_bound(instance, iterations=800, on_progress=interrupt)
    assert result.interrupted
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert result.value == pytest.approx(seen[-1], abs=0.01)
    assert verify_configuration(result.certificate, instance) == result.certificate.value


def test_an_earlier_certificate_can_be_improved_with_more_phases():
    instance = family("uniform", n=8, seed=2)
    first = configuration_bound(instance, phases=2, iterations=100)
    second = configuration_bound(instance, phases=8, iterations=100, start=first.certificate)
    assert len(second.certificate.ends) > len(first.certificate.ends)
    assert second.value >= first.value - 0.01
    empty = ConfigurationCertificate(1, 1, (), (), (), instance.fingerprint)
    assert verify_configuration(empty, instance) == instance.outputs.sum()
    assert configuration_bound(instance, iterations=0, start=empty).value > 0


def test_nothing_is_charged_where_nothing_competes():
    instance = Instance([5, 5], [3, 4], memory=30)
    looks = []
    result = configuration_bound(instance, on_progress=lambda *at: looks.append(at))
    assert result.value == 7
    assert not looks


def test_numbers_beyond_64_bits_are_verified_exactly():
    instance = Instance([1, 1, 4], [2, 2, 1], memory=5)
    small = ConfigurationCertificate(
        3, 5, (4, 2), (2,), (tuple(range(1, len(items(instance)) + 1)),), instance.fingerprint
    )
    big = dataclasses.replace(
        small, price_denominator=3 * 10**30, prices=tuple(price * 10**30 for price in small.prices)
    )
    assert verify_configuration(big, instance) == verify_configuration(small, instance)


def test_certificates_of_other_instances_are_refused():
    instance = Instance([1, 1], [2, 2], memory=3)
    other = instance.replace(memory=4)
    certificate = configuration_bound(instance, iterations=10).certificate
    with pytest.raises(CertificateError, match="belongs to another instance"):
        verify_configuration(certificate, other)
    with pytest.raises(CertificateError, match="belongs to another instance"):
        configuration_bound(other, start=certificate)
    short = ((1,),) * len(certificate.ends)
    forged = dataclasses.replace(certificate, fingerprint=other.fingerprint, sizes=short)
    with pytest.raises(CertificateError, match="1 sizes for 2 items"):
        verify_configuration(forged, other)


@tabled(
    ({"prices": None}, "the key 'prices' is missing"),
)
def test_malformed_certificates_are_refused(changes, message):
    certificate = ConfigurationCertificate(1, 1, (1, 2), (2,), ((1, 2),), "")
    content = json.loads(certificate.to_json()) | changes
    text = json.dumps({key: entry for key, entry in content.items() if entry is not None})
    with pytest.raises(CertificateError, match=message):
        ConfigurationCertificate.from_json(text)


def test_files_are_written_and_refused_by_name(tmp_path):
    certificate = ConfigurationCertificate(1, 1, (1, 2), (2,), ((1, 2),), "")
    certificate.to_json(tmp_path / "good.json")
    assert ConfigurationCertificate.from_json(tmp_path / "good.json") == certificate
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CertificateError, match=r"bad\.json is not valid JSON"):
        ConfigurationCertificate.from_json(tmp_path / "bad.json")


def test_what_is_out_of_range_or_reach_is_refused():
    instance = Instance([1], [2], memory=3)
    with pytest.raises(OptschedError, match="phases is 0"):
        configuration_bound(instance, phases=0)
    for large in (family("chat-and-summaries", n=50), Instance([1, 1], [2, 2], 3, [0, 10**8])):
        with pytest.raises(OptschedError):
            configuration_bound(large)
