"""clock: what there is, fits, and logs beside their simulation."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kernel_times import profile
from tabled import tabled

from optsched import Instance, family, run
from optsched.clock import BatchContent, LinearClock, get_clock
from optsched.clock.hardware import memory_tokens
from optsched.policies import get_policy
from optsched_serving.clocks import clock

CLOCK = get_clock("llama-3.1-8b-rtx4090")


def write_log(path, instance, made):
    """Write a run of the simulator as LLMServingSim's authors write what they measure."""
    rows = [
        {"input_toks": prompt, "output_toks": output, "arrival_time": 9.0 + come, "queued_ts": come,
         "first_token_ts": come + first, "last_token_ts": come + last}
        for prompt, output, come, first, last in zip(
            instance.prompts.tolist(), instance.outputs.tolist(), made.arrivals.tolist(),
            made.first_token_latencies.tolist(), made.latencies.tolist(), strict=True,
        )
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A run as if it had been measured."""
    instance = family("mixed", n=60, memory=20_000, rate=4, seed=3, seconds_per_step=1e-6)
    made = run(instance, get_policy("vllm"), clock=CLOCK)
    return write_log(tmp_path_factory.mktemp("log") / "requests.jsonl", instance, made)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Runs of one engine and of two, in which the limit of requests at once counts."""
    many = {"n": 150, "memory": 100_000, "rate": 20, "seed": 3, "seconds_per_step": 1e-6}
    instance = family("chat-and-summaries", **many)
    engine = replace(get_policy("vllm"), max_num_seqs=24)
    folder = tmp_path_factory.mktemp("crowded")
    one = run(instance, engine, clock=CLOCK)
    two = run(instance, engine, clock=CLOCK, workers=2, router="vllm-dp")
    return [write_log(folder / f"{made.policy}-{at}.jsonl", instance, made)
            for at, made in enumerate((one, two))]  # fmt: skip


def test_all_clocks_are_listed_with_what_they_are(optsched_command, optsched_json):
    rows = {row["name"]: row for row in optsched_json("clock")}
    assert rows["llama-3.1-8b-rtx4090"]["gpu"] == "rtx4090-24gb"
    assert all(get_clock(name).constant == row["constant"] for name, row in rows.items())
    _, out, _ = optsched_command("clock")
    assert all(name in out for name in rows)
    assert "of vLLM 0.19.0: mean latency" in out


def batches():
    """Batches that the clock times."""
    rng = np.random.default_rng(1)
    prompts, decodes = rng.integers(0, 600, 500) * rng.integers(0, 2, 500), rng.integers(1, 99, 500)
    table = pd.DataFrame({"prefill_tokens": prompts, "decode_requests": decodes})
    table = table.assign(resident_tokens=300 * decodes, squared_prompts=prompts**2)
    table["seconds"] = [CLOCK(BatchContent(*row, 0)) for row in table.to_numpy().tolist()]
    return table


def vllms_log():
    """Lines as vLLM writes them, of a clock that is a sum."""
    return [
        f"(EngineCore pid=7) INFO 11-27 [core.py:1] Iteration({at}): {bool(p) + 0} context "
        f"requests, {p} context tokens, {d} generation requests, {d} generation tokens, iteration "
        f"elapsed time: {1000 * (0.01 + 1e-4 * p + 2e-4 * d):.2f} ms, GPU KV cache usage: 3.1%"
        for at, (p, d) in enumerate((at % 3 * (at % 500), 1 + at % 60) for at in range(600))
    ]


def test_batches_become_a_clock(optsched_json, tmp_path):
    batches().to_csv(tmp_path / "batches.csv", index=False)
    out_file = tmp_path / "mine.json"
    found = optsched_json("clock", "fit", tmp_path / "batches.csv", "--out", out_file)
    assert found.keys() == {"clock", "bias", "mean_error", "left_out"}
    assert abs(found["bias"]) < 0.01
    assert LinearClock.from_json(out_file).name == "mine"


def test_lines_of_vllms_log_become_a_clock(optsched_json, tmp_path):
    (tmp_path / "vllm.log").write_text("\n".join(["INFO starting", *vllms_log()]))
    found = optsched_json("clock", "fit", tmp_path / "vllm.log")
    assert abs(found["bias"]) < 0.001
    assert found["clock"]["constant"] == pytest.approx(0.01, rel=0.02)


def test_a_log_scales_a_clock_and_is_met(optsched_command, optsched_json, log, tmp_path):
    slow = tmp_path / "slow.json"
    CLOCK.scaled(1.2).to_json(slow)
    engine = ("--memory", 20_000)
    code, out, _ = optsched_command(
        "clock", "fit", log, "--clock", slow, *engine, "--out", tmp_path / "mine.json"
    )
    assert code == 0
    assert "30 requests that were not fitted" in out
    found = optsched_json("clock", "check", tmp_path / "mine.json", log, *engine)
    metrics = {"latency", "ttft", "tpot"}
    assert found.keys() == {*metrics, "verdict", "cause", "next", "left_out"}
    one, other = found["latency"]["mean"]
    assert other == pytest.approx(one, rel=0.02)
    code, out, _ = optsched_command("clock", "check", slow, log, *engine)
    assert code == 0
    assert "of the squared differences of latencies" in out


def checked(optsched_json, *words):
    """What `clock check` says of a log, without the pairs of numbers."""
    found = optsched_json("clock", "check", *words)
    return found["verdict"], found["cause"], found["next"]


def test_a_clock_that_holds_says_so_and_what_comes_next(optsched_command, optsched_json, log):
    words = (CLOCK.name, log, "--memory", 20_000)
    verdict, cause, following = checked(optsched_json, *words)
    assert (verdict, cause) == ("holds", None)
    assert following.startswith(f"optsched simulate {log} --policy vllm:area,load+plan+learned")
    _, out, _ = optsched_command("clock", "check", *words)
    assert out.splitlines()[-2:] == [
        "The clock holds: mean and p99 are within 5 % of what was measured.", f"Next: {following}"
    ]  # fmt: skip
    code, out, err = optsched_command(*shlex.split(following)[1:])
    assert code == 0, err
    assert "vllm:area,load+plan+learned" in out


def test_a_clock_of_another_gpu_is_off_by_a_factor_and_fitted_next(
    optsched_command, optsched_json, log, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    CLOCK.scaled(0.8).to_json("fast.json")
    verdict, cause, following = checked(optsched_json, "fast.json", log, "--memory", 20_000)
    assert verdict == "off"
    assert cause.startswith("All times are off by one factor: batches take 1.25 times as long")
    assert optsched_command(*shlex.split(following)[1:])[0] == 0
    assert checked(optsched_json, "mine.json", log, "--memory", 20_000)[0] == "holds"


def test_a_guessed_limit_is_the_first_suspect_and_corrected_next(
    optsched_command, optsched_json, crowded
):
    words = (CLOCK.name, crowded[0], "--memory", 100_000)
    verdict, cause, following = checked(optsched_json, *words)
    assert verdict == "off"
    assert cause.startswith("With max_num_seqs 24 in place of 256, which was guessed, mean and p99")
    assert following.endswith("--max-num-seqs 24")
    _, _, err = optsched_command("clock", "check", *words)
    assert "what counts was guessed: max_num_seqs 256" in err
    assert checked(optsched_json, *shlex.split(following)[3:])[0] == "holds"
    given = (*words, "--max-num-seqs", 12)
    verdict, cause, following = checked(optsched_json, *given)
    assert cause.startswith("With max_num_seqs 24 in place of 12, mean and p99 are within 5 %")
    assert following.endswith("--max-num-seqs 24")
    assert "--max-num-seqs 12" not in following
    assert "guessed" not in optsched_command("clock", "check", *given)[2]


def test_a_guessed_limit_that_is_reached_is_noted_where_the_clock_holds(optsched_command, tmp_path):
    instance = Instance([50] * 400, [200] * 400, 10**6, seconds_per_step=1e-6)
    path = tmp_path / "log.jsonl"
    write_log(path, instance, run(instance, get_policy("vllm"), clock=CLOCK))
    words = ("clock", "check", CLOCK.name, path, "--memory", 10**6)
    _, out, err = optsched_command(*words)
    assert "The clock holds" in out
    assert "what counts was guessed: max_num_seqs 256" in err
    _, _, err = optsched_command(*words, "--max-num-seqs", 256)
    assert "max_num_seqs" not in err
    _, _, err = optsched_command(*words, "--serve", "vllm serve MODEL --max-num-seqs 256")
    assert "max_num_seqs" not in err


def test_a_log_of_several_engines_is_checked_on_as_many(optsched_json, refused, crowded):
    words = (CLOCK.name, crowded[1], "--memory", 100_000, "--max-num-seqs", 24)
    verdict, cause, following = checked(optsched_json, *words)
    assert verdict == "off"
    assert cause.startswith("With workers 2 in place of 1, which was guessed, mean and p99 are")
    assert checked(optsched_json, *shlex.split(following)[3:]) == ("holds", None, None)
    sized = checked(optsched_json, *words[:2], *words[4:], "--workers", "100000x2")
    assert sized == ("holds", None, None)
    by_turns = (*words, "--workers", 2, "--router", "round-robin")
    found = [optsched_json("clock", "check", *each) for each in (by_turns, by_turns[:-2])]
    assert found[0]["ttft"] != found[1]["ttft"]
    assert found[0]["ttft"]["mean"][0] == found[1]["ttft"]["mean"][0]
    assert "--router jsq counts only with --workers" in refused(
        "clock", "check", *words, "--router", "jsq"
    )


def test_the_memory_of_a_log_follows_from_model_and_gpu(optsched_json, refused, log):
    words = ("--llm", "llama-3.1-8b", "--gpu", "rtx4090-24gb")
    found = optsched_json("clock", "check", CLOCK.name, log, *words)
    memory = memory_tokens("llama-3.1-8b", "rtx4090-24gb", 1, 0.9)
    typed = optsched_json("clock", "check", CLOCK.name, log, "--memory", memory)
    assert found["latency"] == typed["latency"]
    assert "--llm llama-3.1-8b counts only with --gpu" in refused(
        "clock", "check", CLOCK.name, log, *words[:2]
    )
    fitted = optsched_json("clock", "fit", log, *words)  # whose clock it scales
    assert abs(fitted["bias"]) < 0.02


def bench(at, **more):
    """A request as SGLang's and vLLM's benchmarks write it, without its start."""
    return {"input_lens": 300 + at, "output_lens": 40, "ttfts": 0.1, "itls": [0.015] * 39,
            "errors": ""} | more  # fmt: skip


def side_by_side(records):
    return json.dumps({name: [each[name] for each in records] for name in records[0]})


def test_a_log_without_arrivals_is_refused_or_a_closed_loop(refused, optsched_json, tmp_path):
    (tmp_path / "log.json").write_text(side_by_side([bench(at) for at in range(9)]))
    options = (tmp_path / "log.json", "--memory", 20_000)
    for verb in (("check", CLOCK.name), ("fit", "--clock", CLOCK.name)):
        assert "the log does not say when its requests arrived" in refused("clock", *verb, *options)
        optsched_json("clock", *verb, *options, "--concurrency", 3)
    line = ("clock", "check", CLOCK.name, *options, "--concurrency")
    means = [optsched_json(*line, count)["latency"]["mean"][1] for count in (1, 3)]
    alone = CLOCK(BatchContent(304, 0, 0, 304**2, 305)) + 39 * CLOCK(BatchContent(0, 1, 325, 0, 0))
    assert means[0] == pytest.approx(alone, rel=0.02)
    assert means[1] > means[0]
    timed = [bench(at, start_times=3.0 * at) for at in range(9)]
    (tmp_path / "log.json").write_text(side_by_side(timed))
    err = refused("clock", "check", CLOCK.name, *options, "--concurrency", 3)
    assert "the log says when requests arrived; leave the concurrency out" in err


def test_failed_and_impossible_requests_do_not_keep_a_log_from_being_used(
    refused, optsched_json, tmp_path
):
    records = [bench(at, start_times=3.0 * at) for at in range(9)]
    records[4] |= {"output_lens": 0, "errors": "Traceback", "ttfts": 0.0, "itls": []}
    (tmp_path / "log.json").write_text(side_by_side(records))
    options = (tmp_path / "log.json", "--memory", 20_000)
    for verb in (("check", CLOCK.name), ("fit", "--clock", CLOCK.name)):
        assert optsched_json("clock", *verb, *options)["left_out"] == {"failed": 1}
    records[5] |= {"ttfts": 0.0}
    (tmp_path / "log.json").write_text(side_by_side(records))
    for verb in (("check", CLOCK.name), ("fit", "--clock", CLOCK.name)):
        err = refused("clock", *verb, *options)
        assert "entry 6, column ttfts, value '0.0': is not after the arrival" in err
        found = optsched_json("clock", *verb, *options, "--skip-invalid")
        assert found["left_out"] == {"failed": 1, "invalid": 1}
    content = optsched_json("compare", *options, "--skip-invalid")
    assert content["left_out"] == {"failed": 1}


def test_a_simulation_beyond_what_was_fitted_says_so(optsched_command, tmp_path):
    batches().to_csv(tmp_path / "batches.csv", index=False)
    mine = tmp_path / "mine.json"
    code, _, _ = optsched_command("clock", "fit", tmp_path / "batches.csv", "--out", mine)
    assert code == 0
    assert {name: most for name, _, most in LinearClock.from_json(mine).fitted}["tokens"] < 700
    (tmp_path / "t.csv").write_text("prompt_tokens,output_tokens\n3000,20\n3000,20\n")
    for verb in (("simulate", "--policy", "fcfs"), ("compare", "--policies", "fcfs")):
        code, out, _ = optsched_command(
            verb[0], tmp_path / "t.csv", *verb[1:], "--memory", 9000, "--clock", mine
        )
        assert code == 0
        assert "of the batches leave what clock mine was fitted on, and are guesses: prefill" in out


def test_examples_run(optsched_command, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(log.read_text())
    (tmp_path / "vllm.log").write_text("\n".join(vllms_log()))
    (tmp_path / "profile").mkdir()
    profile(tmp_path / "profile")
    (tmp_path / "experts").mkdir()
    profile(tmp_path / "experts", [(n, k, n + k) for n in (1, 64, 2048) for k in (2, 4, 16)])
    batches().to_csv("batches.csv", index=False)
    (tmp_path / "recorded").mkdir()
    batches().to_csv("recorded/batches-0-1790000000.csv", index=False)
    columns = {"input_toks": "prompt_tokens", "output_toks": "output_tokens"}
    columns |= {each: each.replace("_ts", "_s") for each in ("first_token_ts", "last_token_ts")}
    requests = pd.read_json(log, lines=True).rename(columns=columns | {"queued_ts": "arrival_s"})
    requests = requests.drop(columns="arrival_time")
    requests.to_json("recorded/requests-0-1790000000.jsonl", orient="records", lines=True)
    for command in clock.commands.values():
        lines = [line.split() for line in command.epilog.splitlines() if "  optsched" in line]
        assert lines
        for words in lines:
            code, _, err = optsched_command(*words[1:])
            assert code == 0, (words, err)


@tabled()
def test_what_makes_no_clock_is_refused_in_one_sentence(refused, log, tmp_path, words, sentence):
    places = {"LOG": log, "FOLDER": tmp_path}
    assert sentence in refused("clock", *(places.get(word, word) for word in words))


def test_engines_that_share_experts_need_a_clock_of_theirs(
    refused, optsched_command, log, tmp_path
):
    words = ("clock", "check", "llama-3.1-8b-rtx4090", "log.jsonl", "--expert-parallel")
    assert "are several; pass --workers G as well" in refused(*words)
    error = refused(*words, "--workers", 2)
    assert "clock llama-3.1-8b-rtx4090 does not say what engines share; make one with" in error
    kernels = profile(tmp_path, [(n, k, n + k) for n in (1, 64) for k in (2, 4)])
    error = refused("clock", "fit", kernels, "--layers", 2, "--expert-ranks", 2)
    assert "ranks exchange activations; pass --hidden N of the model" in error
    mine, more = tmp_path / "mine.json", ("--layers", 2, "--hidden", 64, "--expert-ranks", 2)
    assert optsched_command("clock", "fit", kernels, *more, "--out", mine)[0] == 0
    assert LinearClock.from_json(mine).shared.name == "experts"
    words = ("clock", "check", mine, log, "--workers", 2, "--expert-parallel", "--json", "-")
    code, out, _ = optsched_command(*words, "--memory", 41_408)
    assert (code, json.loads(out)["verdict"]) == (0, "off")
