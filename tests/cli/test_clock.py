"""compare and simulate on a clock."""

import json
import re

import pandas as pd
import pytest
from installed import with_serving
from tabled import tabled

import optsched
from optsched import read_trace, run

TRACE = "family:mixed,n=40,rate=20"


def test_compare_on_a_clock(optsched_json):
    result = optsched_json("compare", TRACE, "--clock", "affine:0.01,0.001")
    assert result["bound"]["mean_latency"] == pytest.approx(result["bound"]["value"] / 40)
    assert all(0 <= row["gap"] < 1 for row in result["policies"])
    assert result["load"] > 0
    assert result["clock"] == {"name": "affine:0.01,0.001", "unit": "s"}
    assert [row["policy"] for row in result["policies"]][-1] == "mixed"
    for row in result["policies"]:
        assert row["unfinished"] == 0
        assert 0 < row["mean_ttft"] <= row["mean_latency"]
    assert 1 < result["instance"]["last_arrival"] < 4  # 40 requests at 20 per second


def test_an_interrupt_keeps_what_is_there(optsched_command, monkeypatch):
    from optsched.experiments import comparison as comparing

    original = comparing.run

    def interrupted(instance, policy, settings, **options):
        if policy.name == "mc-sf" and len(instance) == 40:
            raise KeyboardInterrupt
        return original(instance, policy, settings, **options)

    monkeypatch.setattr(comparing, "run", interrupted)
    code, out, err = optsched_command("compare", TRACE, "--clock", "unit", "--json", "-")
    assert code == 130
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["fcfs"]
    assert "interrupted after 1 of 8 policies; the bound is that in closed form" in err


def test_simulate_on_a_clock_writes_a_log(optsched_command, tmp_path):
    log = tmp_path / "log.csv"
    code, out, _ = optsched_command(
        "simulate", TRACE, "--policy", "sarathi", "--clock", "llama-2-7b-a100",
        "--max-num-seqs", 4, "--max-num-batched-tokens", 16, "--log", log,
    )  # fmt: skip
    assert code == 0
    assert re.search(r"sarathi \(told .*\) on llama-2-7b-a100", out)
    frame = pd.read_csv(log)
    assert (frame["completion"] - frame["arrival"]).to_numpy() == pytest.approx(
        frame["latency"].to_numpy()
    )


def test_a_run_that_is_stopped_counts_what_is_unfinished(optsched_json):
    result = optsched_json(
        *("simulate", TRACE, "--policy", "fcfs", "--clock", "affine:0.01,0.001", "--until", 0.5),
        *("--warm-up", 0.1),
    )
    assert result["completed"] + result["unfinished"] == 40
    assert result["unfinished"] > 0
    trace = read_trace(TRACE + ",seed=0,seconds_per_step=1e-6")
    begin, end = run(trace, "fcfs", clock="affine:0.01,0.001", until=0.5).log.spans[-1]
    assert begin < 0.5 <= end == result["makespan"]  # the batch that runs then is run to its end


def test_a_loop_on_a_clock_is_answered_no(optsched_json, tmp_path):
    trace = tmp_path / "loop.csv"
    trace.write_text("prompt_tokens,output_tokens\n1,6\n1,6\n")
    content = optsched_json(
        *("simulate", trace, "--memory", 10, "--policy", "alpha-greedy:0.1"),
        *("--clock", "affine:0.5,0.1"),
        code=1,
    )
    assert content["loop"]["requests"] == [0, 1]


@tabled()
def test_bad_input_is_one_sentence(refused, arguments, words):
    assert words in refused("simulate", TRACE, *arguments)


def test_steps_without_a_length_are_refused(optsched_command, refused, tmp_path):
    trace = tmp_path / "steps.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival\n1,2,0\n1,2,7\n")
    options = ["--memory", 10, "--policy", "fcfs", "--clock", "affine:1,1"]
    assert "arrivals count steps" in refused("simulate", trace, *options)
    options += ["--seconds-per-step", 0.5, "--json", "-"]
    code, out, err = optsched_command("simulate", trace, *options)
    found = run(read_trace(trace, 10).replace(seconds_per_step=0.5), "fcfs", clock="affine:1,1")
    assert (code, err, json.loads(out)["makespan"]) == (0, "", found.makespan)


def test_model_and_gpu_say_memory_and_clock(refused, optsched_json):
    family = "family:exponential,n=20,rate=5"
    hardware = ["--llm", "llama-2-70b", "--gpu", "a100-80gb", "--gpus", 2]
    content = optsched_json("simulate", family, "--policy", "fcfs", *hardware)
    assert content["clock"] == "llama-2-70b-2xa100-hinges"
    found = optsched_json("compare", family, "--policies", "fcfs", *hardware)
    assert found["instance"]["memory"] == 50859
    err = refused("simulate", family, "--policy", "fcfs", *hardware[:2])
    assert "--llm llama-2-70b counts only with --gpu" in err


@pytest.mark.parametrize(
    "command",
    [
        "compare --policies fcfs",
        "simulate --policy sarathi",
        "bound",
        *with_serving("simulate --policy vllm", "capacity --slo ttft:p99<=2 --policies vllm"),
        "route --workers 2 --policies fcfs",
    ],
)
def test_hardware_without_a_clock_is_refused_and_unit_counts_in_steps(
    optsched_command, refused, command
):
    name, *others = command.split()
    given = [name, "family:exponential,n=20,rate=5", *others, "--llm", "llama-3-8b"]
    given += ["--gpu", "h100-80gb"]
    err = refused(*given)
    assert "--clock is not known of llama-3-8b on 1 h100-80gb; did you mean 'llama-3.1-8b" in err
    if name == "capacity":
        given[given.index("ttft:p99<=2")] = "ttft:p99<=2steps"
    code, _, err = optsched_command(*given, "--clock", "unit", "--json", "-")
    assert code == 0, err


def test_what_counts_in_steps_alone_takes_any_hardware(optsched_command, tmp_path):
    given = ["family:exponential,n=6", "--llm", "llama-3-8b", "--gpu", "h100-80gb"]
    proof, plans = tmp_path / "proof.json", tmp_path / "plans"
    assert optsched_command("solve", *given, "--certificate", proof)[0] == 0
    memory = optsched.clock.hardware.memory_tokens("llama-3-8b", "h100-80gb", share=0.9)
    compared = ["compare", given[0], "--memory", memory, "--policies", "fcfs"]
    assert optsched_command(*compared, "--schedules", plans)[0] == 0
    for made in (proof, plans / "fcfs.json"):
        found = ["check", given[0], made, *given[1:], "--clock", "unit"]
        assert optsched_command(*found)[0] == 0


def test_a_bound_says_where_recomputing_may_be_cheaper_than_decoding(optsched_command, tmp_path):
    note = "on this clock prefilling tokens again may take less than decoding them"
    clock = tmp_path / "clock.json"
    for prefill, cheaper in ((1e-3, False), (1e-5, True)):
        numbers = {"constant": 0.01, "prefill_tokens": prefill, "decode_requests": 1e-3}
        clock.write_text(json.dumps({"name": "mine"} | numbers))
        code, out, err = optsched_command("bound", TRACE, "--clock", clock)
        assert (code, note in " ".join((out + err).split())) == (0, cheaper)


def test_what_weakens_a_bound_on_a_clock_is_said(optsched_command, refused):
    for command in (("bound", TRACE), ("compare", TRACE, "--policies", "work")):
        code, _, err = optsched_command(*command, "--clock", "affine:0,0.001")
        assert code == 0
        assert "this clock has no constant, without which prices prove nothing" in err
        code, _, err = optsched_command(*command, "--clock", "affine:0.1,0.001")
        assert "prefilling tokens again may take less than decoding" not in err
    err = refused("bound", TRACE, "--clock", "affine:0,1", "--method", "lagrangian")
    assert "has no constant, without which prices prove nothing" in err


def test_a_limit_of_requests_needs_a_clock_and_is_in_the_proof(optsched_command, refused, tmp_path):
    err = refused("bound", TRACE, "--max-num-seqs", 4)
    assert "--max-num-seqs is 4, but bounds in steps know no limit of a batch" in err
    proof = tmp_path / "proof.json"
    clock = ("--clock", "llama-2-7b-a100")
    code, _, _ = optsched_command(
        "bound", TRACE, *clock, "--max-num-seqs", 4, "--certificate", proof
    )
    assert code == 0
    code, out, _ = optsched_command("check", TRACE, proof, *clock)
    assert code == 0
    assert "no schedule with at most 4 requests in a batch has a total latency" in out


def test_regret_on_a_clock(optsched_command):
    code, out, _ = optsched_command(
        *("regret", "family:chat-and-summaries", "--clock", "llama-2-70b-2xa100"),
        *("--horizons", "60", "--loads", "0.8", "--seeds", 1, "--policies", "work"),
    )
    assert code == 0
    assert "in s per request" in out
