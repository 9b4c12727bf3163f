"""What a serving engineer decides by: margins, rates, clients."""

import numpy as np
import pytest
from trace_samples import of_clients

import optsched
from optsched import Comparison, compare, run


@pytest.fixture
def lengths(tmp_path):
    return of_clients(tmp_path / "lengths.csv")


@pytest.mark.slow
def test_a_margin_is_that_of_the_tenths_of_the_log():
    rng = np.random.default_rng(2)
    outputs, arrivals = 1 + rng.exponential(200, 200).astype(int), np.arange(200) * 20_000
    log = optsched.Instance([200] * 200, outputs, 6000, arrivals, seconds_per_step=1e-6)
    both = ["vllm-v0", "mixed"]
    found = compare(log, [*both, "area"], clock="llama-2-7b-a100")
    assert isinstance(found, Comparison)
    margin = found.margin
    best, other = found.best_deployable.policy, margin["against"]
    assert {best, other} == set(both)
    apart = found[best].latencies - found[other].latencies
    assert margin["mean"] == pytest.approx(apart.mean())
    assert margin["low"] < margin["mean"] < margin["high"]
    means = apart.reshape(10, 20).mean(axis=1)
    reach = 2.2622 * means.std(ddof=1) / np.sqrt(10)  # Student's t of nine degrees
    assert margin["high"] - margin["low"] == pytest.approx(2 * reach, rel=1e-4)
    assert margin["p99"][1] == pytest.approx(np.percentile(found[other].latencies, 99))
    assert any(f"{-margin['mean']:.4g} s less than with {other}" in line for line in found.headline)
    assert compare(log.take(range(99)), both, clock="unit").margin is None


def test_a_rate_gives_arrivals_to_requests_without_any(optsched_json, refused, lengths):
    words = ("simulate", lengths, "--policy", "fcfs", "--memory", 9000, "--seed", 4)
    clocked = (*words, "--clock", "llama-2-7b-a100", "--rate", 2)
    first = optsched_json(*clocked)
    assert first["requests"] == 200
    assert 1.7 < 200 / first["makespan"] < 2.2
    assert optsched_json(*clocked) == first
    err = refused("simulate", "family:mixed,n=9,rate=2", "--policy", "fcfs", "--rate", 3)
    assert "--rate 3 counts only for a TRACE without arrivals; leave --rate out" in err


def test_what_a_log_has_measured_is_set_beside_the_comparison(optsched_command, tmp_path):
    log = tmp_path / "log.csv"
    rows = (f"{20 + i},5,{i}.0,{(i + 1) / 10},{i + 2}" for i in range(150))
    log.write_text("\n".join(["prompt,output,arrival_s,ttft_s,latency_s", *rows]), "utf-8")
    words = ("compare", log, "--memory", 900, "--clock", "llama-2-7b-a100", "--policies", "fcfs")
    columns = "prompt=prompt,output=output,arrival=arrival_s"
    both = f"{columns},ttft=ttft_s,latency=latency_s"
    out = optsched_command(*words, "--columns", both)[1]
    assert f"measured in {log}: latency mean 76.5 s, p99 149.5 s" in out
    assert f"measured in {log}: TTFT mean 7.55 s, p99 14.85 s" in out
    assert "mean 51.5 s" in optsched_command(*words, "--columns", both, "--limit", 100)[1]
    assert "measured in" not in optsched_command(*words, "--columns", columns)[1]


def test_clients_have_results_of_their_own(optsched_command, optsched_json, lengths):
    words = ("simulate", lengths, "--policy", "fcfs", "--memory", 9000)
    words += ("--columns", "client=client")
    clients = optsched_json(*words)["clients"]
    assert [each["requests"] for each in clients] == [67, 67, 66]
    trace = optsched.read_trace(lengths, 9000, columns={"client": "client"})
    alone = run(trace, "fcfs").latencies[trace.clients == 1]
    assert clients[1]["mean_latency"] == pytest.approx(alone.mean())
    _, out, _ = optsched_command(*words)
    assert "client 1: 67 of 67 requests, latency mean" in out
