"""The makespan by sizes: below every schedule, and proven by a verifier that shares no code."""

from __future__ import annotations

import math
from dataclasses import replace

import brute_force
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, bound, family, solve, verify
from optsched.bounds.configurations import makespan_by_sizes
from optsched.certificates.prices import MakespanCertificate, items, read_certificate
from optsched.errors import CertificateError

tiny = instances(max_requests=5, max_memory=14, max_arrival=6, max_output=5)


def found(instance):
    return makespan_by_sizes(instance, lambda: False)


@examples(300)
@given(instance=tiny)
def test_no_schedule_ends_before_the_bound(instance):
    proof = found(instance)
    least = brute_force.optima(instance)["makespan"]
    assert proof.value <= proof.certificate.value <= least
    assert verify(proof.certificate, instance) == proof.certificate.value
    assert verify(read_certificate(proof.certificate.to_json()), instance) == verify(
        proof.certificate, instance
    )


@examples(300)
@given(instance=tiny, data=st.data())
def test_whatever_the_sizes_what_is_verified_holds(instance, data):
    since = int(data.draw(st.sampled_from(instance.arrivals.tolist())))
    later = instance.take(np.flatnonzero(instance.arrivals >= since))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=len(items(later)), max_size=99))
    certificate = MakespanCertificate(
        since, tuple(sizes[: len(items(later))]), instance.fingerprint
    )
    assert verify(certificate, instance) <= brute_force.optima(instance)["makespan"]


def test_requests_that_exclude_each_other_are_seen():
    """Two of at least 6 tokens never run together in 10, which memory-time does not see."""
    instance = Instance([5, 5, 5], [4, 4, 4], memory=10)
    assert bound(instance, objective="makespan").value == 9
    assert math.ceil(found(instance).certificate.value) == 12
    result = solve(instance, objective="makespan")
    assert (result.objective, result.proven_optimal) == (12, True)


def test_sizes_that_round_below_zero_are_zero():
    instance = family("uniform", n=13, seed=2)  # HiGHS returned -1e-9 or so
    bounded = found(instance)
    assert verify(bounded.certificate, instance) == bounded.certificate.value


def test_it_is_not_weaker_than_memory_time_and_much_stronger_where_requests_are_large():
    for n, least in ((20, 345), (50, 600)):
        instance = family("uniform", n=n, seed=21)
        proof = found(instance)
        area = instance.areas.sum() / instance.memory
        assert proof.value >= least > area * 1.1
        assert verify(proof.certificate, instance) == proof.certificate.value


def test_what_is_no_certificate_of_the_instance_is_refused():
    instance = Instance([5, 5], [4, 4], memory=10)
    proof = found(instance).certificate
    with pytest.raises(CertificateError, match="another instance"):
        verify(proof, Instance([5, 5], [4, 3], memory=10))
    with pytest.raises(CertificateError, match="1 sizes for 4 items"):
        verify(replace(proof, sizes=(1,)), instance)
    with pytest.raises(CertificateError, match="a size is negative"):
        replace(proof, sizes=(-1, 0, 0, 0))
    with pytest.raises(CertificateError, match="no request arrives from step 9 on"):
        verify(replace(proof, since=9), instance)
    assert verify(replace(proof, sizes=(0, 0, 0, 0)), instance) == 0
