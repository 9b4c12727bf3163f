"""The bound by stalls: never above the least over all sequences of batches, and exact integers."""

from dataclasses import replace

import numpy as np
import pytest
from brute_force_clocked import EXACT, drawn, least_latency
from effort import share
from installed import with_serving

from optsched import Instance, OptschedError, bound, read_certificate, run, verify
from optsched.clock import LinearClock
from optsched.errors import CertificateError
from optsched.problem.work import arrival_times

CLOCK = LinearClock("slow", 0.02, 0.0005, 0.001, 1e-6, 1e-9, 1e-7)


def busy(rng, count):
    """Draw requests of which many arrive before those before them have ended."""
    prompts, outputs = rng.integers(1, 400, count), rng.integers(1, 60, count)
    arrivals = np.sort(rng.integers(0, 4 * count, count))
    step = float(rng.choice([0.01, 0.1, 0.5]))
    return Instance(prompts, outputs, 4_000, arrivals, seconds_per_step=step)


@pytest.mark.parametrize("seed", range(share(120)))
def test_it_is_never_above_the_best_sequence_of_batches(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2 + seed % 2)
    storage = ("at-once", "next-batch")[seed // 2 % 2]
    found = bound(instance, "stalls", clock=clock, storage=storage)
    for preemption in ("recomputed", "resumed"):
        best = least_latency(
            instance,
            clock,
            arrival_times(instance, clock).tolist(),
            storage=storage,
            preemption=preemption,
        )
        assert found.value <= best + EXACT
        assert verify(found.certificate, instance) <= best + EXACT


@pytest.mark.parametrize("seed", range(share(40)))
def test_its_verifier_agrees_in_integers(seed):
    rng = np.random.default_rng(seed)
    instance = busy(rng, int(rng.integers(1, 60)))
    found = bound(instance, "stalls", clock=CLOCK)
    proven = verify(found.certificate, instance)
    assert found.value <= proven
    assert found.value == pytest.approx(float(proven), rel=1e-8)
    again = read_certificate(found.certificate.to_json())
    assert again == found.certificate
    assert verify(again, instance) == proven
    # Narrower cells prove more, and any width proves something.
    widths = [replace(found.certificate, stalls=found.certificate.stalls * by) for by in (0.25, 9)]
    finer, coarser = (verify(each, instance) for each in widths)
    assert coarser <= proven * (1 + 1e-12)
    assert proven <= finer * (1 + 1e-3)
    for policy in ("fcfs", "work", *with_serving("vllm")):
        assert finer <= sum(run(instance, policy, clock=CLOCK).latencies) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(share(20)))
def test_what_comes_later_is_counted_as_the_formula_says(seed):
    """Over all put-offs on a fine grid, term by term, what is added is no less than claimed."""
    rng = np.random.default_rng(seed)
    instance = busy(rng, 12)
    arrivals = arrival_times(instance, CLOCK, int(instance.arrivals[0]))
    constant, prefill, decode, resident, squared, held = CLOCK.coefficients
    least, prefills, total = [], [], 0.0
    for prompt, output in zip(instance.prompts, instance.outputs, strict=True):
        prefills.append(prefill * prompt + squared * prompt**2)
        own = constant + prefills[-1] + held * (prompt + 1)
        alone = own
        for tokens in range(prompt + 1, prompt + int(output)):
            decoding = min(decode + resident * tokens, prefill * tokens + squared * tokens**2)
            alone += constant + decoding + held * (tokens + 1)
        least.append((own, alone))
        total += alone
    longest = max(alone for _, alone in least)
    for k in range(len(instance)):
        costs = []
        for put_off in np.linspace(0, longest, 4_000):
            token = arrivals[k] + least[k][0] + put_off
            come = sum(prefills[j] for j in range(k + 1, 12) if arrivals[j] < token)
            stalled = sum(
                min(max(arrivals[i] + least[i][1] - arrivals[k] - put_off, 0), prefills[k])
                for i in range(k)
            )
            costs.append(max(0, put_off - come) + stalled)
        total += min(costs)
    assert bound(instance, "stalls", clock=CLOCK).value <= total * (1 + 1e-9)


def test_auto_takes_the_largest_and_other_worlds_are_refused():
    instance = busy(np.random.default_rng(1), 50)
    found = {name: bound(instance, name, clock=CLOCK).value for name in ("closed-form", "stalls")}
    assert bound(instance, clock=CLOCK).value >= max(found.values())
    assert found["stalls"] > found["closed-form"]
    for how in ({"workers": 2}, {"objective": "weighted-latency"}, {"objective": "makespan"}):
        with pytest.raises(OptschedError, match="stalls bound the total latency of one worker"):
            bound(instance, "stalls", clock=CLOCK, **how)
    with pytest.raises(OptschedError, match="in steps no prefill stalls"):
        bound(instance, "stalls")
    certificate = bound(instance, "stalls", clock=CLOCK).certificate
    for wrong in ({"workers": 2}, {"objective": "weighted-latency"}, {"stalls": -1.0}):
        with pytest.raises(CertificateError, match=r"stalls|cells"):
            replace(certificate, **wrong)


def test_where_thousands_may_stall_each_other_effort_stays_bounded():
    """It had been half a minute for 20,000 requests that arrive together."""
    widths = []
    for count in (100, 3_000, 40_000):
        instance = Instance([10] * count, [50] * count, 4_000, seconds_per_step=1.0)
        found = bound(instance, "stalls", clock=CLOCK)
        widths.append(found.certificate.stalls)
        alone = bound(instance.take(np.arange(1)), "stalls", clock=CLOCK).value
        assert found.value >= count * alone * (1 - 1e-6)
    assert widths[0] < widths[1]
    assert widths[2] == 0  # all count as alone


@pytest.mark.parametrize("narrow", [1e-7, 1e-12, 5e-324])
def test_cells_that_are_too_narrow_are_refused_at_once(narrow):
    instance = busy(np.random.default_rng(0), 40)
    proof = replace(bound(instance, "stalls", clock=CLOCK).certificate, stalls=narrow)
    with pytest.raises(CertificateError, match="narrower than one of 256 parts of the mean pref"):
        verify(proof, instance)
