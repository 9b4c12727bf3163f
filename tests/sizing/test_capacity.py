"""At most: what was simulated meets the objectives, in Python and on the command line."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from brute_force_capacity import ROUNDING
from effort import share
from twins import twin_of

import optsched
from optsched import Instance, Slo, capacity, read_certificate, run, verify
from optsched.clock import LinearClock
from optsched.errors import CertificateError, OptschedError
from optsched.sizing.search import cheapest, fewest
from optsched.sizing.upper import Attempt

TRACE = optsched.family("uniform", n=60, seed=2, load=2.5)
CLOCK = LinearClock("fast", 0.3, 0.002, 0.004, 0.0002)
SLOW = LinearClock("slow", 0.5, 0.003, 0.006, 0.0003)


def attained(instance, slo, latencies):
    """Return whether enough latencies are within a limit, counted one by one."""
    limit = slo.limits["latency"] * (1 + ROUNDING)
    return sum(latency > limit for latency in latencies) <= slo.misses(len(instance))


def test_literal_twins_confirm_the_answer_and_that_one_less_falls_short():
    slo = Slo("latency:p90<=70")
    found = capacity(TRACE, slo, ["fcfs", "area"], ["round-robin", "least-tokens"])
    assert 1 < found.at_least <= found.at_most
    for plan in found.plans:
        for workers, met in ((plan.workers, True), (plan.workers - 1, False)):
            routed = run(TRACE, plan.policy, workers=workers, router=plan.router)
            latencies = np.zeros(len(TRACE))
            for worker in range(workers):
                some = routed.requests_on(worker)
                if len(some):
                    own = TRACE.take(some)
                    twin = twin_of(own, plan.policy)
                    assert twin is not None
                    assert not twin.differs(routed.on(worker))
                    latencies[some] = routed.on(worker).latencies
            assert attained(TRACE, slo, latencies.tolist()) == met


def test_more_workers_need_not_be_better_and_the_answer_says_so():
    enough = {3: True, 4: False, 5: True, 6: True, 7: True}

    def tried(count):
        return Attempt(int(enough.get(count, count > 7)), 1, 0.0)

    for guess in range(1, 12):
        attempts = {}
        fewest(tried, 1, 20, guess, attempts)
        number = min(count for count, each in attempts.items() if each.met)
        assert number in (3, 5)
        assert attempts[number].met
        assert number == 3 or not attempts[4].met
        assert {number + 1, number + 2} <= attempts.keys()
    none = {}
    fewest(lambda _: Attempt(0, 1, 0.0), 1, 9, 3, none)
    assert not any(each.met for each in none.values())


def test_the_cheapest_fleet_is_found_where_more_is_never_worse():
    rng = np.random.default_rng(5)
    for _ in range(share(300)):
        costs = tuple(Fraction(int(n), 4) for n in rng.integers(1, 20, 2))
        weights, needed = rng.integers(1, 9, 2).tolist(), int(rng.integers(1, 60))
        fleets = {
            (a, b): a * costs[0] + b * costs[1]
            for a in range(1, 80)
            for b in range(1, 80)
            if a * weights[0] + b * weights[1] >= needed
        }
        low = min(fleets.values()) * Fraction(int(rng.integers(1, 5)), 4)
        high = low * Fraction(int(rng.integers(4, 9)), 4) + Fraction(1, 8)
        tried = {}

        def enough(fleet, tried=tried, weights=weights, needed=needed):
            tried[fleet] = fleet[0] * weights[0] + fleet[1] * weights[1] >= needed
            return tried[fleet]

        cheapest(enough, costs, low, high)
        met = [fleets[fleet] for fleet, good in tried.items() if good]
        cheaper = [price for price in fleets.values() if low <= price < high]
        assert min(met, default=None) == min(cheaper, default=None)


@pytest.mark.parametrize(
    ("clocks", "limit", "cost"), [((None, None), 60, 5.5), ((CLOCK, SLOW), 30, 3)]
)
def test_no_fleet_of_two_kinds_is_cheaper_than_the_one_found(clocks, limit, cost):
    trace = optsched.family("uniform", n=90, seed=3, load=7).replace(seconds_per_step=0.5)
    slo = f"latency:p90<={limit}"
    found = capacity(trace, slo, "area", clock=clocks[0], cost=4, kinds=[(130, clocks[1], cost)])
    pure = min(each.price[1] for each in (found, *found.kinds))
    met = {}
    for a, b in itertools.product(range(1, 10), range(1, 9)):
        if 4 * a + cost * b < pure:
            memories = [trace.memory] * a + [130] * b
            options = {} if clocks[0] is None else {"clock": [CLOCK] * a + [SLOW] * b}
            routed = run(trace, "area", workers=memories, **options)
            met[a, b] = attained(trace, Slo(slo), routed.latencies.tolist())
    (mix,) = found.mixes
    assert mix.met
    assert met[mix.workers]
    assert mix.cost == min(4 * a + cost * b for (a, b), each in met.items() if each)
    assert found.fleet is None or found.fleet.cost <= mix.cost
    assert len(mix.attempts) < len(met)
    assert f"{mix.workers[0]} x {trace.memory} + {mix.workers[1]} x 130" in str(found)


def test_no_number_of_workers_serves_a_request_that_is_late_alone():
    found = capacity(Instance([5, 5], [4, 9], memory=20), "latency:max<=5")
    assert (found.at_least, found.at_most, found.impossible) == (None, None, (1,))
    assert "1 request is late even alone on an idle worker: 1." in found.answer
    half = capacity(Instance([5, 5], [4, 9], memory=20), "latency:p50<=5")
    assert (half.at_least, half.impossible) == (1, (1,))


def test_several_instances_must_all_meet_the_objectives():
    several = [optsched.family("uniform", n=40, seed=seed, load=2) for seed in range(3)]
    together = capacity(several, "latency:p90<=70", "area")
    apart = [capacity(each, "latency:p90<=70", "area").at_most for each in several]
    assert together.at_most == max(apart)
    assert together.plans[0].attempts[together.at_most].held == 3


def test_the_proof_of_several_instances_is_about_the_instance_that_is_named():
    several = [
        optsched.family("uniform", n=40, seed=seed, load=load) for seed, load in ((0, 1), (1, 6))
    ]
    found = capacity(several, "latency:p90<=70", at_least_only=True)
    assert found.instance == several[1]
    assert found.at_least - 1 < optsched.verify(found.certificate, several[1])
    long = Instance([5], [4], memory=20, name="long")
    hopeless = capacity([Instance([5], [1], memory=20), long], "latency:max<=2", "fcfs")
    assert (hopeless.at_least, hopeless.instance.name) == (None, "long")


def test_nothing_is_proven_on_a_clock_that_is_a_function():
    requests = Instance([5] * 8, [4] * 8, memory=18, seconds_per_step=0.1)
    found = capacity(requests, "latency:max<=3", "area", clock=lambda _: 0.5)
    assert (found.impossible, found.certificate, found.at_least) == ((), None, 1)
    assert (found.at_most, found.unit, found.estimate) == (4, "s", None)
    assert "No bound is known on a clock that is a function" in " ".join(found.answer)


@pytest.mark.parametrize("clock", [None, "affine:0.2,0.001"])
def test_the_estimate_is_the_stability_condition_counted_batch_by_batch(clock):
    trace = TRACE.replace(seconds_per_step=0.5)
    found = capacity(trace, "latency:max<=1e9", at_least_only=True, clock=clock)
    held = sum(
        sum(prompt + made for made in range(1, output + 1))
        for prompt, output in zip(trace.prompts.tolist(), trace.outputs.tolist(), strict=True)
    )  # tokens times batches
    each, step = (1.0, 1.0) if clock is None else (0.2 + 0.001 * trace.memory, 0.5)  # full
    first = 0 if clock is None else trace.arrivals[0]
    rate = len(trace) / (step * float(trace.arrivals[-1] - first))
    assert found.estimate == pytest.approx(rate * each * held / len(trace) / trace.memory)
    assert "Estimate, no bound" in " ".join(found.answer)


def test_a_faster_trace_needs_more_and_what_is_wrong_is_refused():
    found = capacity(TRACE, "latency:p90<=70", "area", loads=[0.5, 2], cost=2.5)
    half, twice = found.loads.values()
    assert half.at_most < found.at_most < twice.at_most
    assert found.to_dict()["plans"][0]["cost_per_hour"] == 2.5 * found.at_most
    for wrong in ({"workers": 0}, {"loads": [0.0]}, {"router": "jsq"}, {"max_num_seqs": 4}):
        with pytest.raises(OptschedError):
            capacity(TRACE, "latency:p90<=70", "area", **wrong)


def test_ctrl_c_returns_what_is_known():
    def stop(news):
        if "area" in news:
            raise KeyboardInterrupt

    found = capacity(TRACE, "latency:p90<=70", ["fcfs", "area"], on_progress=stop)
    assert found.interrupted
    assert [plan.policy for plan in found.plans] == ["fcfs"]
    assert found.at_least > 1
    told = []

    def stop_later(news):
        told.append(news)
        if len(told) == 4:  # the proof, and two numbers of workers
            raise KeyboardInterrupt

    found = capacity(TRACE, "latency:p90<=70", "fcfs", on_progress=stop_later)
    assert (found.interrupted, len(found.plans[0].attempts)) == (True, 2)


def test_pictures_and_tables_show_all_plans():
    found = capacity(TRACE, "latency:p90<=70", ["fcfs", "area"], loads=[2])
    labels = [line.get_label() for line in found.plot().get_lines()]
    assert {"fcfs", "area"} <= set(labels)
    assert len(found.plot_growth().get_lines()) == 3
    assert "least-tokens, area" in str(found)
    assert "least-tokens, area" in found._repr_html_()


def test_the_command_line_finds_proves_checks_and_runs_again(optsched_command, tmp_path):
    trace, proof, page = tmp_path / "trace.csv", tmp_path / "proof.json", tmp_path / "page.html"
    TRACE.to_csv(trace)
    given = ["capacity", trace, "--memory", TRACE.memory, "--slo", "latency:p90<=70"]
    code, out, err = optsched_command(
        *given, "--policies", "area", "--certificate", proof, "--html", page, "--json", "-"
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert 1 < found["at_least"] <= found["at_most"] == found["plans"][0]["workers"]
    code, out, _ = optsched_command("check", trace, proof, "--memory", TRACE.memory)
    assert code == 0
    assert f"fewer than {found['at_least']} workers never meet latency <= 70" in out
    command = shlex.split(found["plans"][0]["command"])[1:]
    code, out, _ = optsched_command(*command, "--json", "-")
    again = json.loads(out)
    assert again["plans"][0]["attempts"] == [
        each for each in found["plans"][0]["attempts"] if each["workers"] == found["at_most"]
    ]
    assert page.read_text().count("least-tokens, area")
    assert page.read_text().count("proven too few")
    assert optsched_command(*given[:-1], "latency:max<=2")[0] == 1


def test_kinds_of_workers_are_compared_by_cost(optsched_command, tmp_path):
    trace, proof = tmp_path / "trace.csv", tmp_path / "proof.json"
    TRACE.to_csv(trace)
    given = ["capacity", trace, "--memory", TRACE.memory, "--slo", "latency:p90<=70"]
    given += ["--policies", "area", "--cost-per-hour", 3, "--kind", f"{2 * TRACE.memory},4"]
    code, out, _ = optsched_command(*given, "--certificate", proof, "--json", "-")
    found = json.loads(out)
    (larger,) = found["kinds"]
    assert code == 0
    assert larger["at_most"] < found["at_most"]
    assert f"at least {3 * found['at_least']}, at most {3 * found['at_most']} per hour" in str(
        found["answer"]
    )
    command = shlex.split(larger["plans"][0]["command"])[1:]
    again = json.loads(optsched_command(*command, "--json", "-")[1])
    assert again["at_most"] == larger["at_most"]
    code, out, _ = optsched_command("check", trace, proof, "--memory", TRACE.memory)
    claimed = read_certificate(proof)
    assert code == 0
    assert f"together never meet latency <= 70 for all but {len(TRACE) // 10} requests" in out
    assert 3 < claimed.cost <= min(3 * found["at_least"], 4 * larger["at_least"])
    fleet = ["--workers", "2,1", "--json", "-"]
    code, out, _ = optsched_command(*given, *fleet)
    (mix,) = json.loads(out)["mixes"]
    assert (code, mix["workers"], mix["cost_per_hour"]) == (0, [2, 1], 10)
    again = json.loads(optsched_command(*shlex.split(mix["command"])[1:], "--json", "-")[1])
    assert again["mixes"][0]["attempts"] == mix["attempts"]
    for few in ("2,1,1", "0,0", "2,-1"):
        code, _, err = optsched_command(*given, "--workers", few)
        assert (code, err.count("\n")) == (2, 1)
    for wrong in ("70", "70,0", "70,unit,4", "x,4"):
        code, _, err = optsched_command(*given, "--kind", wrong)
        assert (code, err.count("\n")) == (2, 1)
    with pytest.raises(CertificateError):
        verify(replace(claimed, memories=(TRACE.memory, TRACE.memory)), TRACE)
