"""Bounds for several workers against brute force; their certificates against the definition."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from brute_force import OBJECTIVES, joint_optima
from strategies import tiny_joint

import optsched
from optsched import Instance, OptschedError, Workers, bound, family, read_certificate, verify
from optsched.bounds.configurations import configuration_bound
from optsched.errors import CertificateError


def literal_value(certificate, instance, workers):
    """The bound from its formula, in fractions."""
    unit, horizon = certificate.denominator, len(certificate.rows[0])
    total = Fraction(0)
    for pool, prices in zip(certificate.pools, certificate.rows, strict=True):
        total -= sum(workers.memories[g] for g in pool) * Fraction(sum(prices), unit)
    for i in range(len(instance)):
        prompt, output, arrival = (
            int(getattr(instance, name)[i]) for name in ("prompts", "outputs", "arrivals")
        )
        places = {
            g
            for g, memory in enumerate(workers.memories)
            if prompt + output <= memory and (workers.eligible is None or workers.eligible[i, g])
        }
        weight = Fraction(1)
        if certificate.objective == "weighted-latency" and instance.weights is not None:
            weight = Fraction(float(instance.weights[i]))
        costs = []
        for start in range(arrival, max(horizon, arrival) + 1):
            cost = weight * (start + output - arrival)
            for pool, prices in zip(certificate.pools, certificate.rows, strict=True):
                if places <= set(pool):
                    for token in range(1, output + 1):
                        if start + token <= horizon:
                            cost += (prompt + token) * Fraction(prices[start + token - 1], unit)
            costs.append(cost)
        total += min(costs)
    return total


@pytest.mark.slow
def test_no_bound_is_above_the_joint_optimum_and_certificates_prove_it():
    rng = np.random.default_rng(19)
    nested = 0
    for _ in range(40):
        instance, workers = tiny_joint(rng)
        least = joint_optima(instance, workers)
        for objective in OBJECTIVES:
            found = bound(instance, objective=objective, workers=workers)
            assert found.value <= least[objective]
            assert (
                bound(instance, "closed-form", objective, workers=workers).value
                <= (least[objective])
            )
            if found.certificate is None:
                continue
            nested += found.method == "nested"
            proven = verify(found.certificate, instance, workers)
            assert found.value <= proven == found.certificate.value <= least[objective]
            assert proven == literal_value(found.certificate, instance, workers)
            assert read_certificate(found.certificate.to_json()) == found.certificate
    assert nested > 3


def test_sizes_on_equal_workers_prove_no_more_than_the_joint_optimum():
    rng = np.random.default_rng(7)
    for _ in range(30):
        instance, workers = tiny_joint(rng)
        workers = Workers([instance.memory] * len(workers))
        least = joint_optima(instance, workers)["total-latency"]
        found = configuration_bound(instance, workers=workers, phases=2, iterations=40)
        proven = verify(found.certificate, instance, workers)
        assert found.value <= proven == found.certificate.value <= least
        if len(workers) > 1:
            other = Workers([instance.memory] * (len(workers) + 1))
            with pytest.raises(CertificateError, match="other workers"):
                verify(found.certificate, instance, other)
            with pytest.raises(CertificateError, match="another instance"):
                verify(found.certificate, instance)
    instance = family("uniform", n=8)
    sizes = configuration_bound(instance, workers=Workers([100, 100]), phases=2, iterations=100)
    assert sizes.value > 1.03 * bound(instance, workers=2).value


@pytest.mark.slow
def test_nested_pools_close_much_of_the_gap_of_unequal_memories():
    instance = family("uniform", n=300)
    workers = Workers([100] + 4 * [50])
    found = bound(instance, workers=workers)
    pool = bound(instance.replace(memory=300))
    assert found.method == "nested"
    assert found.value > 1.9 * pool.value


def test_one_worker_has_the_bound_of_one_worker():
    instance = family("mixed", n=80)
    alone, joint = bound(instance), bound(instance, workers=1)
    assert joint.value == alone.value
    assert joint.certificate.rows == (alone.certificate.prices,)
    with pytest.raises(CertificateError, match="for one worker"):
        verify(alone.certificate, instance, workers=2)
    assert verify(alone.certificate, instance, workers=1) == alone.certificate.value
    with pytest.raises(CertificateError, match="for several workers"):
        verify(joint.certificate, instance)


def test_bad_certificates_and_workers_are_refused():
    instance = Instance([6, 1], [2, 2], memory=9)
    proof = bound(instance, "lagrangian", workers=[9, 5]).certificate
    with pytest.raises(CertificateError, match="other workers"):
        verify(proof, instance, [5, 9])
    for change, message in (
        ({"denominator": 0}, "denominator is 0"),
        ({"prices": (-1, 0), "pools": ((0,), (1,))}, "price of step 1 is -1"),
        ({"prices": (1, 1, 0), "pools": ((0,), (1,))}, "the same steps"),
        ({"objective": "makespan"}, "makespan"),
    ):
        with pytest.raises(CertificateError, match=message):
            dataclasses.replace(proof, **change)
    file = '{"format": "optsched-joint-certificate", "denominator": 1, "fingerprint": "", '
    for text, message in (
        ('"pools": [], "prices": []}', "0 pools"),
        ('"pools": [[0]], "prices": []}', "1 pools, but prices of 0"),
        ('"pools": [[0], [1]], "prices": [[1, 1], [0]]}', "the same steps"),
    ):
        with pytest.raises(CertificateError, match=message):
            read_certificate(file + text)
    wrong = optsched.Certificate(1, (1,), proof.fingerprint, pools=((0, 2),))
    with pytest.raises(CertificateError, match="not there"):
        verify(wrong, instance, [9, 5])
    with pytest.raises(OptschedError, match="workers is 0"):
        bound(instance, workers=0)
    with pytest.raises(OptschedError, match="equal ones; pass their number"):
        bound(instance, workers=[9, 8], clock="llama-2-7b-a100")
