"""Bounds on a clock: never above the least latency over all sequences of batches."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from brute_force_clocked import EXACT, certificate_of, drawn, least_latency, least_latency_of_pool
from effort import share
from installed import ENGINE, with_serving

from optsched import Instance, bound, compare, family, get_clock, read_certificate, run, verify
from optsched.bounds import on_clock
from optsched.bounds.on_clock import is_decoding_cheapest, least_work, machine_bound, share_of
from optsched.certificates.on_clock import verify_on_clock
from optsched.clock import FunctionClock, LinearClock
from optsched.errors import CertificateError, OptschedError, PolicyError
from optsched.policies import get_policy
from optsched.problem.work import arrival_times


def searched(instance, clock, weights, **options):
    """Return prices after little work, so that tests are quick."""
    given = certificate_of(instance, clock, **options)
    return on_clock.price_on_clock(instance, clock, given, weights, work=1e6)


@pytest.mark.parametrize("seed", range(share(40)))
def test_no_bound_is_above_the_best_sequence_of_batches(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2 + seed % 2)
    arrivals = arrival_times(instance, clock).tolist()
    for weights, objective in ((None, "total-latency"), (instance.weights, "weighted-latency")):
        best = least_latency(instance, clock, arrivals, weights)
        used = np.ones(len(instance)) if weights is None else weights
        claim = machine_bound(instance, clock, used)
        proven = verify_on_clock(certificate_of(instance, clock, objective=objective), instance)
        assert claim <= proven <= best + EXACT
        assert claim == pytest.approx(float(proven), rel=1e-9, abs=1e-9)
        priced = searched(instance, clock, used, objective=objective)
        proven = verify_on_clock(priced, instance)
        assert priced.value <= proven <= best + EXACT
        assert float(priced.value) == pytest.approx(float(proven), rel=1e-6, abs=1e-6)


@pytest.mark.slow("7")
@pytest.mark.parametrize("seed", range(share(60)))
def test_no_bound_on_the_makespan_is_above_the_best_sequence_of_batches(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2 + seed % 2)
    arrivals = arrival_times(instance, clock).tolist()
    how = ({}, {"max_num_seqs": 1}, {"max_num_seqs": 2}, {"storage": "next-batch"})[seed % 4]
    found = bound(instance, objective="makespan", clock=clock, **how)
    for preemption in ("recomputed", "resumed"):
        best = least_latency(instance, clock, arrivals, preemption=preemption, makespan=True, **how)
        proven = verify_on_clock(found.certificate, instance)
        assert found.value <= proven <= best + EXACT
    assert found.value == pytest.approx(float(proven), rel=1e-6, abs=1e-6)
    again = read_certificate(found.certificate.to_json())
    assert verify_on_clock(again, instance) == proven


@pytest.mark.parametrize("policy", ["fcfs", "area", *with_serving("vllm")])
def test_no_run_ends_before_the_bound_on_the_makespan(policy):
    for load, since in ((None, 0), (0.5, 0), (1.1, 1_700_000_000)):
        made = family("chat-and-summaries", n=60, seed=3, load=load)
        instance = made.replace(arrivals=made.arrivals + since, seconds_per_step=0.05)
        found = bound(instance, objective="makespan", clock="llama-2-70b-2xa100")
        assert found.method == "closed-form"
        assert found.value <= run(instance, policy, clock="llama-2-70b-2xa100").makespan
        assert found.value <= verify_on_clock(found.certificate, instance)


@pytest.mark.parametrize("seed", range(12))
def test_a_pool_is_bounded_by_one_fast_machine(seed):
    instance, clock = drawn(np.random.default_rng(seed))
    arrivals = arrival_times(instance, clock).tolist()
    best = least_latency_of_pool(instance, clock, arrivals, workers=2)
    claim = machine_bound(instance, clock, np.ones(len(instance)), workers=2)
    proven = verify_on_clock(certificate_of(instance, clock, workers=2), instance)
    assert claim <= proven <= best + EXACT
    priced = searched(instance, clock, np.ones(len(instance)), workers=2)
    assert priced.value <= verify_on_clock(priced, instance) <= best + EXACT


@pytest.mark.parametrize("seed", range(share(30)))
def test_no_bound_is_above_the_best_batches_of_limited_size(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng)
    limit, part = int(rng.integers(1, 3)), int(rng.integers(0, 17))
    arrivals = arrival_times(instance, clock).tolist()
    fields = {"objective": "weighted-latency", "max_num_seqs": limit, "by_requests": part}
    best = least_latency(instance, clock, arrivals, instance.weights, limit)
    given = certificate_of(instance, clock, **fields)
    claim = machine_bound(instance, clock, instance.weights, 1, share_of(instance, limit, part))
    proven = verify_on_clock(given, instance)
    assert claim <= proven <= best + EXACT
    assert claim == pytest.approx(float(proven), rel=1e-9, abs=1e-9)
    priced = searched(instance, clock, instance.weights, **fields)
    assert priced.value <= verify_on_clock(priced, instance) <= best + EXACT
    found = bound(instance, "closed-form", "weighted-latency", clock=clock, max_num_seqs=limit)
    assert claim <= found.value <= best + EXACT


def test_a_limit_of_requests_proves_more_where_it_binds(served):
    instance, clock = served
    at_once = instance.replace(arrivals=np.zeros(len(instance), dtype=np.int64))
    free, wide, four = (
        bound(at_once, clock=clock, max_num_seqs=limit) for limit in (None, 10_000, 4)
    )
    assert free.value <= wide.value <= 1.01 * free.value
    assert four.value > 1.5 * free.value
    assert verify(read_certificate(four.certificate.to_json()), at_once) >= four.value
    engine = replace(get_policy(ENGINE), max_num_seqs=4)
    assert four.value <= run(at_once, engine, clock=clock).total_latency


def test_alone_a_request_is_bounded_by_its_latency():
    clock = get_clock("llama-2-70b-2xa100")
    instance = Instance([700], [90], memory=2000, seconds_per_step=0.05)
    best = least_latency(Instance([3], [3], 9), clock, [0.0])
    assert machine_bound(Instance([3], [3], 9), clock, np.ones(1)) == pytest.approx(best)
    alone = least_work(instance, clock).own[0]
    assert machine_bound(instance, clock, np.ones(1)) == pytest.approx(alone)


def test_the_condition_on_recomputing_is_that_no_token_is_cheaper_prefilled():
    one = Instance([0], [2], memory=9)
    assert is_decoding_cheapest(one, LinearClock("even", 1, 0.2, 0.2))
    assert not is_decoding_cheapest(one, LinearClock("dear to decode", 1, 0.1, 0.2))
    assert not is_decoding_cheapest(one, LinearClock("dear to read", 1, 0.1, 0, 0.2))
    for name in ("llama-2-70b-2xa100", "llama-2-7b-a100"):
        assert is_decoding_cheapest(family("chat-and-summaries", n=50), get_clock(name))


def test_the_verifier_agrees_on_a_larger_instance():
    clock = get_clock("llama-2-7b-a100")
    instance = family("chat-and-summaries", n=300, rate=3, seed=2).replace(seconds_per_step=0.03)
    claim = machine_bound(instance, clock, np.ones(300))
    proven = verify_on_clock(certificate_of(instance, clock), instance)
    assert isinstance(proven, Fraction)
    assert claim <= proven
    assert claim == pytest.approx(float(proven), rel=1e-9)


@pytest.mark.parametrize("seed", range(share(40)))
def test_whatever_the_prices_are_they_prove_no_more_than_the_best(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2)
    arrivals = arrival_times(instance, clock).tolist()
    best = least_latency(instance, clock, arrivals)
    rows = [tuple(rng.integers(0, 4, rng.integers(0, 9)).tolist()) for _ in arrivals]
    certificate = certificate_of(
        instance,
        clock,
        width=float(rng.choice([0.25, 1.0, 2.0])),
        denominator=int(rng.integers(1, 9)),
        memory_prices=tuple(rng.integers(0, 4, 9).tolist()),
        begins=tuple(rng.integers(0, 3, len(arrivals)).tolist()),
        prices=tuple(rows),
    )
    assert verify_on_clock(certificate, instance) <= best + EXACT


@pytest.fixture(scope="module")
def served():
    """A load at which requests queue, but not much."""
    instance = family("chat-and-summaries", n=150, rate=0.05, seed=3)
    return instance.replace(seconds_per_step=0.05), get_clock("llama-2-70b-2xa100")


@pytest.mark.slow
def test_prices_prove_more_than_the_machine_where_it_is_not_overloaded(served):
    instance, clock = served
    methods = "closed-form", "lagrangian", "auto"
    closed, priced, best = (bound(instance, method, clock=clock) for method in methods)
    assert priced.method == "lagrangian"
    assert min(best.value, priced.value) > 1.02 * closed.value
    for found in (closed, priced, best):
        again = read_certificate(found.certificate.to_json())
        assert again == found.certificate
        assert verify(again, instance) >= found.value
    assert best.value <= run(instance, "work", clock=clock).total_latency


def test_a_comparison_on_a_clock_has_a_bound_and_gaps(served):
    instance, clock = served
    compared = compare(instance, ["fcfs", "work"], clock=clock)
    content = compared.to_dict()
    assert content["bound"]["value"] == compared.bound.value
    for entry in content["policies"]:
        total = len(instance) * entry["mean_latency"]
        assert entry["gap"] == pytest.approx((total - compared.bound.value) / total)
        assert entry["gap"] > 0
    assert "proven bound" in str(compared)
    assert compare(instance, "fcfs", clock=clock, warm_up=5.0).gap("fcfs") is None
    by_function = compare(instance, "fcfs", clock=lambda batch: clock(batch))
    assert (by_function.bound, by_function.to_dict()["bound"]) == (None, None)
    assert "proven bound" not in str(by_function)


def test_in_steps_work_is_the_order_of_memory_time(served):
    instance = family("uniform", n=200, seed=1)
    assert (run(instance, "work").schedule.starts == run(instance, "area").schedule.starts).all()
    with pytest.raises(PolicyError, match="weighted sum of what is in a batch, but"):
        run(instance, "work", clock=lambda batch: 1.0)


def test_what_cannot_be_bounded_is_refused():
    instance = Instance([2, 3], [2, 2], memory=9)
    free = LinearClock("free", 0, 0.1, 0.1)
    assert bound(instance, clock=free).method == "closed-form"
    for problem, message in (
        (lambda: bound(instance, clock=FunctionClock(lambda _: 1.0)), "is a function, of which no"),
        (lambda: bound(instance, "lagrangian", clock=free), "has no constant, without which"),
        (
            lambda: bound(instance, "lagrangian", "makespan", clock="unit"),
            "makespan has no Lagrangian bound",
        ),
        (
            lambda: bound(instance, clock="unit", workers=0),
            "workers is 0, but must be a whole number",
        ),
        (lambda: bound(instance, max_num_seqs=4), "bounds in steps know no limit of a batch"),
        (lambda: bound(instance, clock="unit", max_num_seqs=0), "must hold at least 1 request"),
    ):
        with pytest.raises(OptschedError, match=message):
            problem()
    good = bound(instance, clock="unit").certificate
    for change, message in (
        ({"clock": (1.0,)}, "a clock is six numbers"),
        ({"width": 0.0}, "must be positive"),
        ({"objective": "energy"}, "prove anything about 'energy'"),
        ({"prices": ((-1,),), "begins": (0,)}, "a price or a bin is negative"),
        ({"by_requests": 1}, "1 sixteenths of the constant cannot be shared by requests"),
        ({"begins": (0, 1, 2)}, "rows of prices begin 3"),
    ):
        with pytest.raises(CertificateError, match=message):
            replace(good, **change)
    with pytest.raises(CertificateError, match="another instance"):
        verify(good, instance.replace(memory=10))


def test_weights_and_a_limit_of_requests_change_the_order_of_work():
    clock = get_clock("llama-2-70b-2xa100")
    same = Instance([50, 50, 500], [10, 10, 3], 9000, weights=[1.0, 4.0, 1.0], seconds_per_step=0.1)
    first = {
        name: get_policy(name).order(same, clock).tolist()
        for name in ("work", "work:weighted", "work:1", "work:weighted,1")
    }
    assert first["work"] == [0, 1, 2]
    assert first["work:weighted"] == [1, 0, 2]
    # If every request takes whole batches, the number of its tokens is what counts.
    assert first["work:1"] == [2, 0, 1]
    assert first["work:weighted,1"] == [1, 2, 0]
    for wrong in ("work:", "work:0", "work:-1", "work:weights", "work:weighted,0"):
        with pytest.raises(PolicyError, match="should read work:weighted, work:B"):
            get_policy(wrong)


def test_with_forecasts_the_expected_work_is_the_order():
    requests = family("chat-and-summaries", n=60, seed=5).replace(seconds_per_step=0.05)
    known = {"intervals": "relative:0.4", "seed": 2}
    in_steps = [run(requests, name, **known) for name in ("area-posterior", "work-posterior")]
    assert in_steps[0].total_latency == in_steps[1].total_latency
    with pytest.raises(PolicyError, match="weighted sum of what is in a batch, but"):
        run(requests, "work-posterior", clock=lambda batch: 1.0, **known)
    # Where all are equally long, a clock on which only prefill takes time orders by prompts.
    equal = Instance([9, 3, 6], [2, 2, 2], memory=11, seconds_per_step=1.0)
    prefill = LinearClock("prefill", 1e-6, 1.0)
    found = run(equal, "work-posterior", clock=prefill, intervals="exact")
    assert np.argsort(found.completions).tolist() == [1, 2, 0]


#: Every way to form batches: orders, thresholds, engines, batches as large as the flow.
ON_CLOCKS = (
    *("fcfs", "mc-sf", "mc-sf-total", "area", "work", "sorted-f", "work+window"),
    *("alpha-greedy", "alpha-beta-clearing", "mixed", "sarathi", "vllm-v0"),
    *with_serving("vllm", "vllm:work"),
    *("wait", "nested-wait"),
)


@pytest.mark.parametrize("seed", range(12))
def test_no_policy_on_a_clock_is_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    count, memory = int(rng.integers(2, 14)), 96
    prompts, outputs = rng.integers(1, 33, count), rng.integers(1, 25, count)
    arrivals = np.sort(rng.integers(0, rng.choice([1, 6, 60]), count))
    requests = Instance(prompts, outputs, memory, arrivals, seconds_per_step=0.37)
    numbers = rng.choice([0.0, 0.001, 0.01, 0.1], 6)
    numbers[0] = rng.choice([0.01, 0.1, 1.0])
    clock = LinearClock("drawn", *numbers.tolist())
    bounds = {method: bound(requests, method, clock=clock) for method in ("closed-form", "auto")}
    # The last two go by rates, which requests that all come at once do not have.
    named, ended = ON_CLOCKS if np.ptp(arrivals) else ON_CLOCKS[:-2], set()
    for policy in named:
        result = run(requests, policy, clock=clock, seed=seed)
        if not result.unfinished:  # thresholds may preempt the same requests forever
            ended.add(policy)
            for method, found in bounds.items():
                assert found.value <= result.total_latency * (1 + EXACT), (policy, method)
    assert set(named) - ended <= {"alpha-greedy", "alpha-beta-clearing"}


def test_a_certificate_has_no_more_bins_than_a_verifier_goes_through(served):
    """A price far away took memory without end to verify."""
    requests, clock = served
    given = certificate_of(requests, clock)
    last = 2**24 - 1
    replace(given, begins=(last,), prices=((1,),))
    for begin, prices in ((last, (1, 1)), (2**24, (1,)), (10**30, (1,))):
        with pytest.raises(CertificateError, match="beyond bin 16777216; cut time into fewer"):
            replace(given, begins=(begin,), prices=(prices,))


def test_where_nothing_is_charged_the_bound_is_nothing():
    """On a clock without a constant no machine is needed for a token without a prompt."""
    free = LinearClock("free", 0, 1.0, 1.0)
    found = bound(Instance([0, 0], [1, 1], memory=9), clock=free)
    assert (found.value, verify(found.certificate, Instance([0, 0], [1, 1], memory=9))) == (0, 0)
    mixed = Instance([0, 4], [1, 1], memory=9)
    assert 3.9 < bound(mixed, clock=free).value <= 4


def test_memory_beyond_all_needs_is_no_trouble():
    instance = family("uniform", n=12, seed=3).replace(memory=10**9)
    found = bound(instance, "lagrangian", clock="unit")
    assert verify(found.certificate, instance) >= found.value
    assert 0 < found.value <= run(instance, "work", clock="unit").total_latency


@pytest.mark.parametrize("seed", range(share(100)))
def test_fresh_certificates_prove_what_they_claim_whatever_the_weights_are(seed):
    """Of weights of 0.1, prices proved 11 % less; of 1e15, and of 1e-30 beside 1e30, nothing."""
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2 + seed % 5)
    powers = rng.uniform(-100, 100) + rng.uniform(0, 1, len(instance)) * rng.choice([0, 1, 60])
    instance = instance.replace(weights=10.0 ** (powers * rng.choice([0.005, 0.2, 1])))
    for method in ("closed-form", "lagrangian", "auto"):
        found = bound(instance, method, "weighted-latency", clock=clock)
        proven = verify(found.certificate, instance)
        assert found.value <= found.certificate.value <= proven
        again = read_certificate(found.certificate.to_json())
        assert again == found.certificate
        assert verify(again, instance) == proven


@pytest.mark.parametrize("power", [-300, -1, 1, 300])
def test_weights_times_a_power_of_two_are_a_bound_times_that_power(power):
    instance, clock = drawn(np.random.default_rng(3), most=5)
    weights = np.linspace(1, 1.9, len(instance))
    bounds, proofs = [], []
    for times in (1.0, 2.0**power):
        weighted = instance.replace(weights=times * weights)
        found = bound(weighted, "lagrangian", "weighted-latency", clock=clock)
        bounds.append(found.certificate.value)
        proofs.append(verify(found.certificate, weighted))
    assert bounds[1] == bounds[0] * Fraction(2) ** power
    assert float(proofs[1] / Fraction(2) ** power) == pytest.approx(float(proofs[0]), rel=1e-12)
