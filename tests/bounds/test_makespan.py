"""The makespan by sizes and growth: below every schedule, verified without shared code."""

from dataclasses import replace

import brute_force
import highspy
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance, Workers, bound, family, solve, verify
from optsched.bounds.configurations import makespan_by_sizes
from optsched.certificates.prices import MakespanCertificate, items, read_certificate
from optsched.errors import CertificateError

tiny = instances(max_requests=5, max_memory=14, max_arrival=6, max_output=5)


def found(instance):
    return makespan_by_sizes(instance, lambda: False)


@pytest.mark.few
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


@pytest.mark.few
@examples(300)
@given(instance=tiny, memories=st.lists(st.integers(14, 20), min_size=1, max_size=2))
def test_no_schedule_on_several_workers_ends_before_growth_or_sizes_prove(instance, memories):
    workers = Workers(memories)
    least = brute_force.joint_optima(instance, workers)["makespan"]
    for proof in (
        bound(instance, "sawtooth", "makespan", workers=workers),
        makespan_by_sizes(instance, lambda: False, workers=workers),
    ):
        assert proof.value <= proof.certificate.value <= least
        read = read_certificate(proof.certificate.to_json())
        assert verify(read, instance, workers) == proof.certificate.value
    for growth in ((1, 0), (1, 3), (4, 2), (9, 9)):
        other = replace(proof.certificate, sizes=(), growth=growth)
        assert verify(other, instance, workers) <= least


@pytest.mark.few
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
    assert found(instance).value == 12
    result = solve(instance, objective="makespan")
    assert (result.objective, result.proven_optimal) == (12, True)


@pytest.mark.slow
def test_sizes_that_round_below_zero_are_zero():
    instance = family("uniform", n=13, seed=2)  # HiGHS returned -1e-9 or so
    bounded = found(instance)
    assert verify(bounded.certificate, instance) == bounded.certificate.value


@pytest.mark.slow
@pytest.mark.parametrize(("n", "least"), [(20, 345), (50, 600)])
def test_it_is_not_weaker_than_memory_time_and_much_stronger_where_requests_are_large(n, least):
    instance = family("uniform", n=n, seed=21)
    proof = found(instance)
    area = instance.areas.sum() / instance.memory
    assert proof.value >= least > area * 1.1
    assert verify(proof.certificate, instance) == proof.certificate.value


def test_a_highs_with_more_threads_before_it_weakens_no_bound():
    """HiGHS solved nothing after it, and the bound was that of shares of the memory."""
    instance = family("uniform", n=4, seed=21)
    alone = found(instance).value
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.addVar(0.0, 1.0)
    assert other.run() == highspy.HighsStatus.kOk
    assert found(instance).value == alone > 1.1 * instance.areas.sum() / instance.memory


def test_growth_is_seen_whatever_the_memory_and_the_number_of_workers():
    instance = family("uniform", n=200, seed=31)
    for workers, least in ((1, 2500), ([100, 150], 970), (4, 620)):
        proof = bound(instance, "sawtooth", "makespan", workers=workers)
        known = bound(instance, "auto", "makespan", workers=workers).value
        assert proof.value >= least > 1.03 * known
        assert verify(proof.certificate, instance, workers) == proof.certificate.value
    large = instance.replace(memory=10**9)
    assert bound(large, "sawtooth", "makespan").value == large.outputs.max()


def test_what_is_no_certificate_of_the_instance_is_refused():
    instance = Instance([5, 5], [4, 4], memory=10)
    proof = found(instance).certificate
    with pytest.raises(CertificateError, match="another instance"):
        verify(proof, Instance([5, 5], [4, 3], memory=10))
    with pytest.raises(CertificateError, match="1 sizes for 4 items"):
        verify(replace(proof, sizes=(1,)), instance)
    with pytest.raises(CertificateError, match="a size is negative"):
        replace(proof, sizes=(-1, 0, 0, 0))
    for growth in ((1,), (0, 1), (1, -1)):
        with pytest.raises(CertificateError, match="must be tokens, at least 1, and steps"):
            replace(proof, growth=growth)
    with pytest.raises(CertificateError, match="other workers"):
        verify(proof, instance, [10, 10])
    with pytest.raises(CertificateError, match="no request arrives from step 9 on"):
        verify(replace(proof, since=9), instance)
    assert verify(replace(proof, sizes=(0, 0, 0, 0)), instance) == 4  # as long as one runs
