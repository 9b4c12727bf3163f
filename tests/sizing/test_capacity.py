"""At most: what was simulated meets the objectives, in Python and on the command line."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from brute_force_capacity import ROUNDING
from twins import twin_of

import optsched
from optsched import Instance, Slo, capacity, run
from optsched.errors import OptschedError
from optsched.sizing.upper import Attempt, fewest

TRACE = optsched.family("uniform", n=60, seed=2, load=2.5)


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
        number, attempts = fewest(tried, 1, 20, guess)
        assert number in (3, 5)
        assert attempts[number].met
        assert number == 3 or not attempts[4].met
        assert {number + 1, number + 2} <= attempts.keys()
    assert fewest(lambda _: Attempt(0, 1, 0.0), 1, 9, 3)[0] is None


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
    assert optsched_command(*given[:-1], "latency:max<=2")[0] == 1
