"""`optsched cluster`: JSON, report, and one sentence for every bad input."""

from tabled import tabled

CLUSTER = ("cluster", "--workers", 4, "--slots", 8, "--policies", "fcfs,bf-io")


def test_json_has_the_names_of_the_manual(optsched_json):
    content = optsched_json(*CLUSTER, "family:uniform,n=300", "--steps", 100)
    policies = content["policies"]
    assert [entry["policy"] for entry in policies] == ["fcfs", "bf-io"]
    for entry in policies:
        assert set(entry) >= {
            *("imbalance_tokens", "imbalance_ms", "throughput", "tpot", "energy_joule"),
            *("max_wait_steps", "stuck"),
        }
    assert policies[1]["imbalance_tokens"] < policies[0]["imbalance_tokens"]


def test_a_csv_runs_to_its_end_without_steps(optsched_json, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival\n" + "9,4,0\n3,2,5\n" * 1)
    content = optsched_json(
        *("cluster", trace, "--workers", 2, "--slots", "1,2", "--policies", "jsq"),
        *("--memory", "20,30", "--drift", "1,0", "--slowness", "1,2"),
    )
    assert content["policies"][0]["completed"] == 2
    assert content["cluster"]["slots"] == [1, 2]


def test_several_windows_and_seeds_and_a_report(optsched_command, tmp_path):
    page = tmp_path / "report.html"
    code, out, _ = optsched_command(
        *CLUSTER,
        "family:uniform,n=200",
        *("--lookahead", "0,5", "--seeds", 2, "--dispatch", "instant"),
        *("--steps", 40, "--drain", "--html", page),
    )
    assert code == 0
    assert "bf-io H=5" in out
    assert page.stat().st_size < 6_000_000
    assert "bf-io H=0" in page.read_text(encoding="utf-8")


def test_a_rule_that_draws_workers_draws_by_the_seed(optsched_json, tmp_path):
    """It drew by the seed 0, whatever was asked for."""
    trace, loads = tmp_path / "trace.csv", []
    trace.write_text("prompt_tokens,output_tokens\n" + "".join(f"{i},9\n" for i in range(1, 60)))
    for seed in (0, 0, 1):
        content = optsched_json(
            *("cluster", trace, "--workers", 6, "--slots", 4, "--policies", "power-of-d"),
            *("--seed", seed),
        )
        loads.append(content["policies"][0]["imbalance_tokens"])
    assert loads[0] == loads[1] != loads[2]


def test_an_adaptive_window(optsched_command):
    code, out, _ = optsched_command(*CLUSTER, "family:uniform", "--lookahead", "adaptive")
    assert code == 0
    assert "bf-io" in out


@tabled()
def test_bad_input_gets_one_sentence_and_code_2(refused, options, message):
    assert message in refused(*CLUSTER, "family:uniform", *options)


def test_the_table_has_what_the_trace_has(optsched_command, tmp_path):
    trace = tmp_path / "due.csv"
    rows = [f"{9 + i},2,{30 - 4 * i}" for i in range(8)]
    trace.write_text("\n".join(["prompt_tokens,output_tokens,deadline", *rows]) + "\n")
    code, out, _ = optsched_command("cluster", trace, "--workers", 2, "--slots", 2)
    assert code == 0
    assert "missed" in out
    code, out, _ = optsched_command(*CLUSTER, "family:uniform,n=40")
    assert "missed" not in out
