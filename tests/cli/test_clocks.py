"""clock: what there is, fits, and logs beside their simulation."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from optsched import run
from optsched.clock import BatchContent, LinearClock, get_clock
from optsched.policies import get_policy
from optsched.workloads import family

CLOCK = get_clock("llama-3.1-8b-rtx4090")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A run of the simulator as LLMServingSim's authors write what they measure."""
    instance = family("mixed", n=60, memory=20_000, rate=4, seed=3, seconds_per_step=1e-6)
    made = run(instance, get_policy("vllm"), clock=CLOCK)
    rows = [
        {"input_toks": prompt, "output_toks": output, "arrival_time": 9.0 + come, "queued_ts": come,
         "first_token_ts": come + first, "last_token_ts": come + last}
        for prompt, output, come, first, last in zip(
            instance.prompts.tolist(), instance.outputs.tolist(), made.arrivals.tolist(),
            made.first_token_latencies.tolist(), made.latencies.tolist(), strict=True,
        )
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_all_clocks_are_listed_with_what_they_are(optsched_command):
    code, out, _ = optsched_command("clock", "--json", "-")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["llama-3.1-8b-rtx4090"]["gpu"] == "rtx4090-24gb"
    assert all(get_clock(name).constant == row["constant"] for name, row in rows.items())
    code, out, _ = optsched_command("clock")
    assert all(name in out for name in rows)
    assert "of vLLM 0.19.0: mean latency" in out


def test_batches_become_a_clock(optsched_command, tmp_path):
    rng = np.random.default_rng(1)
    prompts, decodes = rng.integers(0, 600, 500) * rng.integers(0, 2, 500), rng.integers(1, 99, 500)
    table = pd.DataFrame({"prefill_tokens": prompts, "decode_requests": decodes})
    table = table.assign(resident_tokens=300 * decodes, squared_prompts=prompts**2)
    table["seconds"] = [CLOCK(BatchContent(*row, 0)) for row in table.to_numpy().tolist()]
    table.to_csv(tmp_path / "batches.csv", index=False)
    out_file = tmp_path / "mine.json"
    code, out, _ = optsched_command(
        "clock", "fit", tmp_path / "batches.csv", "--out", out_file, "--json", "-"
    )
    assert code == 0
    found = json.loads(out)
    assert found.keys() == {"clock", "bias", "mean_error"}
    assert abs(found["bias"]) < 0.01
    assert LinearClock.from_json(out_file).name == "mine"


def test_lines_of_vllms_log_become_a_clock(optsched_command, tmp_path):
    lines = [
        f"(EngineCore pid=7) INFO 11-27 [core.py:1] Iteration({at}): {bool(p) + 0} context "
        f"requests, {p} context tokens, {d} generation requests, {d} generation tokens, iteration "
        f"elapsed time: {1000 * (0.01 + 1e-4 * p + 2e-4 * d):.2f} ms, GPU KV cache usage: 3.1%"
        for at, (p, d) in enumerate((at % 3 * (at % 500), 1 + at % 60) for at in range(600))
    ]
    (tmp_path / "vllm.log").write_text("\n".join(["INFO starting", *lines]))
    code, out, _ = optsched_command("clock", "fit", tmp_path / "vllm.log", "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert abs(found["bias"]) < 0.001
    assert found["clock"]["constant"] == pytest.approx(0.01, rel=0.02)


def test_a_log_scales_a_clock_and_is_met(optsched_command, log, tmp_path):
    slow = tmp_path / "slow.json"
    CLOCK.scaled(1.2).to_json(slow)
    engine = ("--memory", 20_000)
    code, out, _ = optsched_command(
        "clock", "fit", log, "--clock", slow, *engine, "--out", tmp_path / "mine.json"
    )
    assert code == 0
    assert "30 requests that were not fitted" in out
    code, out, _ = optsched_command(
        "clock", "check", tmp_path / "mine.json", log, *engine, "--json", "-"
    )
    found = json.loads(out)
    assert code == 0
    assert found.keys() == {"latency", "ttft", "tpot"}
    one, other = found["latency"]["mean"]
    assert other == pytest.approx(one, rel=0.02)
    code, out, _ = optsched_command("clock", "check", slow, log, *engine)
    assert code == 0
    assert "of the squared differences of latencies" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "nowhere.csv"], "cannot read batches from nowhere.csv"),
        (["fit", "LOG", "--layers", 3], "--layers 3 counts only for a folder of kernel times"),
        (["fit", "FOLDER"], "has the times of one layer; pass --layers N"),
        (["fit", "FOLDER", "--layers", 3], "has no dense.csv"),
        (["fit", "LOG", "--block-size", 4], "--block-size 4 counts only for a log and --clock"),
        (["check", "unit", "LOG", "--memory", 9999], "clock unit counts steps; a log needs one in"),
        (["check", "llama-2-7b-a100", "LOG"], "does not say how much the worker holds; pass the"),
    ],
)
def test_what_makes_no_clock_is_refused_in_one_sentence(
    optsched_command, log, tmp_path, words, sentence
):
    places = {"LOG": log, "FOLDER": tmp_path}
    code, _, err = optsched_command("clock", *(places.get(word, word) for word in words))
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
