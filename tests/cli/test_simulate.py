"""The command that runs one policy, and what policies may know in compare."""

import pandas as pd
from tabled import tabled

from optsched.policies import BASIC

FAMILY = "family:uniform,n=60,seed=3"


def test_simulate_gives_every_figure_and_a_log(optsched_json, tmp_path):
    log = tmp_path / "attempts.parquet"
    content = optsched_json(
        "simulate", FAMILY, "--policy", "a-min", "--intervals", "common:1,60", "--log", log
    )
    latency = {f"{of}_latency" for of in ("total", "mean", "p50", "p90", "p99")}
    first = {f"{of}_ttft" for of in ("mean", "p50", "p90", "p99")}
    others = {"throughput", "peak_memory", "evictions", "preempted_tokens", "loop"}
    assert latency | first | others <= set(content)
    table = pd.read_parquet(log)
    assert (~table["completed"]).sum() == content["evictions"] > 0
    assert table.loc[~table["completed"], "tokens"].sum() == content["preempted_tokens"]


def test_the_seed_decides_ties(optsched_json):
    def total(seed):
        arguments = ("--policy", "a-min", "--intervals", "common:1,60", "--seed", seed)
        return optsched_json("simulate", FAMILY, *arguments)

    assert total(1) == total(1)
    assert total(1) != total(2)


def test_a_loop_is_the_answer_no(optsched_json, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("prompt_tokens,output_tokens\n0,6\n0,6\n")
    content = optsched_json(
        "simulate", path, "--memory", 10, "--policy", "alpha-greedy:0.2", code=1
    )
    assert content["policy"] == "alpha-greedy:0.2"
    assert content["loop"] == {"step": 0, "period": 5, "requests": [0, 1]}
    assert content["total_latency"] is None


def test_compare_under_intervals_shows_preemptions(optsched_command, optsched_json):
    code, out, _ = optsched_command("compare", FAMILY, "--intervals", "common:1,60")
    assert code == 0
    assert "preempted" in out
    assert "outputs known as common:1,60" in out
    content = optsched_json("compare", FAMILY, "--intervals", "classes:10")
    names = [entry["policy"] for entry in content["policies"]]
    assert names == ["h-sf", "a-max", "a-min", "area-lower", "area-posterior", "area-chance"]
    assert content["intervals"] == "classes:10"
    assert all(entry["evictions"] >= 0 for entry in content["policies"])


def test_compare_takes_rules_parameters_and_loops(optsched_command, optsched_json, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("prompt_tokens,output_tokens\n0,6\n0,6\n")
    names = "fcfs,alpha-greedy:0.2,alpha-beta-clearing:0.1,0.5"
    content = optsched_json("compare", path, "--memory", 10, "--policies", names)
    assert [entry["policy"] for entry in content["policies"]] == [
        "fcfs",
        "alpha-beta-clearing:0.1,0.5",
    ]
    assert content["unfinished"][0]["loop"]["period"] == 5
    _, out, _ = optsched_command("compare", path, "--memory", 10, "--policies", names)
    assert "alpha-greedy:0.2 does not complete all: its run repeats itself" in out
    for rule in ("skip", "window"):
        found = optsched_json("compare", FAMILY, "--rule", rule)
        names = [entry["policy"] for entry in found["policies"]]
        assert names == [f"{name}+{rule}" for name in BASIC if "+" not in name]


@tabled()
def test_bad_input_gets_one_sentence(refused, arguments, message):
    assert message in refused(arguments[0], FAMILY, *arguments[1:])
