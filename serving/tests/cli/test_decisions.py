"""What a serving engineer decides by: margins, how to serve so, and GPUs."""

import json

import numpy as np
import pytest
from trace_samples import of_clients

import optsched
from optsched import Comparison, compare
from optsched.policies import get_policy
from optsched_serving.plugin.plan import Settings

GPU = ("--llm", "llama-3.1-8b", "--gpu", "rtx4090-24gb")


@pytest.fixture
def lengths(tmp_path):
    return of_clients(tmp_path / "lengths.csv")


@pytest.mark.slow
def test_a_margin_is_that_of_the_tenths_of_the_log():
    rng = np.random.default_rng(2)
    outputs, arrivals = 1 + rng.exponential(200, 200).astype(int), np.arange(200) * 20_000
    log = optsched.Instance([200] * 200, outputs, 6000, arrivals, seconds_per_step=1e-6)
    both = ["vllm", "vllm:area+plan+learned"]
    found = compare(log, [*both, "vllm:area+plan"], clock="llama-2-7b-a100")
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


def test_the_best_says_how_to_serve_so_where_it_is_no_chance(optsched_command, lengths):
    options = (*GPU, "--rate", 40, "--policies", "vllm,vllm:work+plan+learned")
    code, few, _ = optsched_command("compare", lengths, *options)
    assert code == 0
    assert "which may be chance" in few
    assert "Stay with vLLM as it is, or compare on more requests." in few
    assert "--additional-config" not in few
    code, out, _ = optsched_command("compare", "family:chat-and-summaries,n=1000,seed=1", *options)
    assert code == 0
    assert "may be chance" not in out
    settings = json.loads(out.split("--additional-config '")[1].split("'")[0])
    assert settings == {
        "optsched": {"order": "work", "aging": None, "clock": "llama-3.1-8b-rtx4090"}
    }
    served = Settings().updated(settings["optsched"])
    assert served.policy().name == "work"


@pytest.mark.parametrize("limit", [" --max-num-seqs 8", ""])
def test_what_a_server_can_do_is_compared_where_one_is_named(optsched_json, lengths, limit):
    line = f"vllm serve meta-llama/Llama-3.1-8B{limit}"
    of_server = {"vllm", "vllm:area,load+plan+learned"}
    told = optsched_json("compare", lengths, "--serve", line, "--gpu", "h100-80gb", "--rate", 40)
    assert of_server <= {each["policy"] for each in told["policies"]}
    plain = optsched_json("compare", lengths, *GPU, "--rate", 40)
    assert of_server <= {each["policy"] for each in plain["policies"]}
    steps = optsched_json("compare", lengths, "--memory", 9999)
    assert not of_server & {each["policy"] for each in steps["policies"]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm", "with vLLM as it is"),
        ("vllm+fair", """OrderedScheduler --additional-config '{"optsched": {"fair": true}}'."""),
        ("vllm:area,load+plan+learned", "PlannedScheduler --additional-config '{"),
        ("vllm:edf", """{"order": "edf", "aging": null}}'. Say in the setting "objective", """),
    ],
)
def test_each_engine_has_its_options(name, words):
    assert words in get_policy(name).serving_options()


def test_weights_are_in_what_is_advised(optsched_command, tmp_path):
    log = tmp_path / "log.csv"
    rows = (f"20,5,{i / 10},{i % 2},{1 + i % 2}" for i in range(60))
    log.write_text("\n".join(["prompt_tokens,output_tokens,arrival_s,client,weight", *rows]))
    words = ("compare", log, "--memory", 900, "--clock", "llama-2-7b-a100")
    out = optsched_command(*words, "--policies", "vllm+fair")[1]
    assert out.rstrip().endswith('In place of true say the weights of clients, such as {"a": 2}.')
    assert "In place of true" not in optsched_command(*words, "--policies", "vllm")[1]


def test_a_gpu_sets_it_in_comparisons_too(optsched_json, lengths):
    words = (lengths, "--rate", 900, "--llm", "llama-3.1-8b", "--gpu", "h100-80gb")
    one = optsched_json("simulate", *words, "--policy", "vllm")
    several = optsched_json("compare", *words, "--policies", "vllm")
    routed = optsched_json("route", *words, "--workers", 1, "--policies", "vllm")
    means = one["mean_latency"], several["policies"][0]["mean_latency"]
    assert means[0] == means[1] == pytest.approx(routed["routers"][0]["mean_latency"])


def test_a_gpu_sets_what_vllm_serves_with(optsched_json, lengths):
    words = ("simulate", lengths, "--policy", "vllm", "--rate", 900, "--llm", "llama-3.1-8b")
    words += ("--gpu",)
    small = optsched_json(*words, "rtx4090-24gb")
    large = optsched_json(*words, "h100-80gb")
    few = optsched_json(*words, "h100-80gb", "--max-num-seqs", 8)
    assert few["mean_decodes"] <= 8 < small["mean_decodes"] < large["mean_decodes"]
    less = optsched_json(*words, "rtx4090-24gb", "--gpu-memory-utilization", 0.75)
    assert less["peak_memory"] < small["peak_memory"]


def test_compare_takes_an_objective_and_slos(optsched_json, optsched_command):
    asked = ("family:uniform,n=60,load=1.3", "--policies", "fcfs,area")
    content = optsched_json(
        "compare", *asked, "--objective", "makespan", "--slo", "latency:p90<=60steps"
    )
    assert content["objective"] == content["bounds"][0]["premises"]["objective"] == "makespan"
    assert all(each["attained"] <= content["attained_bound"] for each in content["policies"])
    code, _, err = optsched_command("compare", *asked, "--objective", "late-requests")
    assert code == 2
    assert "late-requests, but the requests have no deadlines; add them" in err
