"""`optsched thresholds`: the JSON of the manual, and one sentence for every bad input."""

import json

import pytest

LOW_DEMAND = """
d0 = 0.0085
d1 = 2.7e-7
[[type]]
prompt = 10
output = 10
rate = 1000
[[type]]
prompt = 10
output = 20
rate = 1000
"""
SYNTHETIC = "d0 = 0.0085\nd1 = 2.7e-7\n" + "".join(
    f"[[type]]\nprompt = 10\noutput = {output}\nrate = {output}\n" for output in (20, 40, 80, 160)
)


@pytest.fixture
def thresholds(optsched_command, tmp_path):
    """Run the command on a file with this text: exit code, JSON or None, standard error."""

    def command(text, *arguments):
        path = tmp_path / "types.toml"
        path.write_text(text)
        code, out, err = optsched_command("thresholds", path, "--json", "-", *arguments)
        return code, json.loads(out) if out else None, err

    return command


def test_low_demand(thresholds):
    code, content, err = thresholds(LOW_DEMAND)
    assert (code, err) == (0, "")
    assert content["stable"] is True
    assert content["load"] == pytest.approx(0.15795)
    assert content["iteration_time"] == pytest.approx(0.0085 / (1 - 0.15795))
    assert content["equilibrium_memory"] == pytest.approx(5905.23, abs=0.01)
    assert content["throughput"] == 32_000
    assert (content["thresholds"], content["memory"]) == ([11, 11], 6435)
    assert content["safety_stock"] == 0


def test_slack_and_another_clock(thresholds):
    code, content, _ = thresholds(LOW_DEMAND, "--memory", 8000, "--objective", "slack")
    assert (code, content["thresholds"], content["memory"]) == (0, [13, 13], 7605)
    _, content, _ = thresholds(LOW_DEMAND, "--clock", "affine:0.0085,1e-6")
    assert content["thresholds"] == [21, 21]


@pytest.mark.slow("cp-sat")
@pytest.mark.parametrize("method", ["highs", "cp-sat"])
def test_any_solver_finds_them(thresholds, method):
    how = ("--method", method)
    code, content, err = thresholds(LOW_DEMAND, "--memory", 8000, "--objective", "slack", *how)
    assert (code, err, content["thresholds"]) == (0, "", [13, 13])
    _, content, _ = thresholds(LOW_DEMAND, *how)
    assert content["thresholds"] == [11, 11]


@pytest.mark.slow
def test_nested(thresholds):
    code, content, _ = thresholds(
        SYNTHETIC, "--nested", "--thresholds", "60,57,50,34", "--iterations", 242
    )
    assert code == 0
    assert content["memory_terms"] == [567_330, 7_270, 10_371]
    assert (content["memory"], content["safety_stock"]) == (567_330, 17_641)
    assert content["memory_bound"] == 584_971
    _, free, _ = thresholds(SYNTHETIC, "--nested")
    assert free["memory_bound"] < content["memory_bound"]
    _, wide, _ = thresholds(SYNTHETIC, "--nested", "--margin", 0.3)
    assert wide["memory_bound"] > free["memory_bound"]


@pytest.mark.slow
def test_segments(thresholds):
    _, best, _ = thresholds(SYNTHETIC, "--nested", "--segments", "auto")
    _, three, _ = thresholds(SYNTHETIC, "--nested", "--segments", 3)
    assert best["borders"] == three["borders"] == [40, 80, 160]
    _, own, _ = thresholds(SYNTHETIC, "--nested", "--segments", "40,160")
    assert own["borders"] == [40, 160]
    assert own["memory_bound"] > best["memory_bound"]


def test_overload_is_a_no_with_the_load_in_the_json(thresholds):
    code, content, err = thresholds(LOW_DEMAND.replace("1000", "8000"))
    assert code == 1
    assert content["stable"] is False
    assert content["load"] == pytest.approx(1.2636)
    assert content["thresholds"] is content["iteration_time"] is None
    assert err == (
        "optsched: the load is 1.264, 0.264 above 1, where any policy falls behind; type 2 "
        "contributes most, 0.9072: lower the rates or use a faster clock\n"
    )


def test_types_of_a_trace(optsched_command, refused, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens\n" + 10 * "5,2\n" + 10 * "9,30\n")
    line = ("thresholds", path, "--json", "-", "--clock", "llama-2-7b-a100")
    code, out, err = optsched_command(*line, "--rate", 8, "--classes", 2)
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert [entry["name"] for entry in content["types"]] == ["5+2", "9+30"]
    assert content["throughput"] == 4 * 2 + 4 * 30
    code, out, err = optsched_command(*line, "--rate", 8, "--nested")
    assert code == 0
    assert "all types are taken to have their mean, 7 tokens" in err
    assert "does not say how many requests arrive per second" in refused(*line)


@pytest.mark.parametrize(
    ("text", "arguments", "code", "words"),
    [
        (LOW_DEMAND.replace("rate = 1000", "rate = 0"), (), 2, "type 1: rate is 0"),
        (LOW_DEMAND.replace("d0", "d_0"), (), 2, "unknown entry 'd_0': did you mean 'd0'?"),
        (LOW_DEMAND.split("7\n", 1)[1], (), 2, "names no clock; pass --clock"),
        (LOW_DEMAND, ("--clock", "affine:0,0"), 2, "would take no time"),
        (LOW_DEMAND, ("--memory", 29), 2, "one request of type 2 needs 30 tokens"),
        (LOW_DEMAND, ("--memory", 6000), 1, "need 6,435 tokens, but the memory is 6,000; type 2"),
        (LOW_DEMAND, ("--batch-limit", 20), 1, "need 352 requests per batch, but the batch limit"),
        (LOW_DEMAND, ("--thresholds", "10,11"), 1, "break (9) for type 1"),
        (
            LOW_DEMAND,
            ("--thresholds", "a"),
            2,
            "--thresholds is 'a', but must be a whole number, or",
        ),
        (LOW_DEMAND, ("--objective", "slack"), 2, "the slack grows without end unless"),
        (
            LOW_DEMAND,
            ("--classes", 3),
            2,
            "--classes 3 counts only for traces, and a TOML file has",
        ),
        (SYNTHETIC, ("--nested", "--thresholds", "60,56,48,32"), 1, "(10) holds with equality"),
        (SYNTHETIC, ("--nested", "--thresholds", "60,40,48,32"), 1, "(10) is broken for segment 2"),
        (SYNTHETIC, ("--nested", "--memory", 9000), 1, "but the memory is 9,000"),
        (
            SYNTHETIC,
            ("--nested", "--segments", "many"),
            2,
            "--segments is 'many', but must be a whole",
        ),
        (SYNTHETIC, ("--nested", "--segments", "40"), 2, "there are 4 borders to choose from"),
        (SYNTHETIC, ("--nested", "--delta", 2), 2, "delta is 2.0"),
        ("[[type]\n", (), 2, "is not valid TOML"),
    ],
)
def test_bad_input_gets_one_sentence(thresholds, text, arguments, code, words):
    found, content, err = thresholds(text, *arguments)
    assert found == code
    assert words in err
    assert err.startswith("optsched: ")
    assert err.count("\n") == 1
    assert content is None or content["thresholds"] is None


@pytest.mark.parametrize("nested", [False, True])
def test_the_program_is_exported_and_another_solver_finds_the_same(thresholds, tmp_path, nested):
    from optsched.solvers import read_model, solve_linear

    text = SYNTHETIC if nested else LOW_DEMAND
    out = tmp_path / "wait.mps"
    code, content, _ = thresholds(text, "--export", out, *["--nested"] * nested)
    assert code == 0
    found = solve_linear(read_model(out), "highs")
    assert found.status == "optimal"
    own = sum(
        cost * count
        for cost, count in zip(read_model(out).cost, content["thresholds"], strict=True)
    )
    assert found.objective == pytest.approx(own)
    code, _, err = thresholds(text, "--export", tmp_path / "wait.txt")
    assert (code, ".mps" in err) == (2, True)


def test_throughput_under_a_limit_on_latency(optsched_command, refused, optsched_json, tmp_path):
    path = tmp_path / "types.toml"
    path.write_text(LOW_DEMAND)
    found = optsched_json("throughput", path, "--max-latency", 0.15)
    assert found["throughput"] <= found["bound"] < 32_000
    assert found["latency_s"] <= 0.15 * (1 + 1e-9)
    assert found["gap"] <= 1e-4
    assert [entry["rate"] for entry in found["types"]] == [1000, 1000]
    code, out, _ = optsched_command("throughput", path)
    assert code == 0
    assert "throughput      32,000.0 stages per second" in out
    assert "the limits leave" in refused("throughput", path, "--max-ttft", 0.001)


def test_the_program_of_the_throughput_is_exported(optsched_command, refused, tmp_path):
    from optsched.solvers import read_model, solve_linear

    path, out = tmp_path / "types.toml", tmp_path / "rates.lp"
    path.write_text(LOW_DEMAND)
    command = ("throughput", path, "--max-latency", 0.15, "--json", "-", "--export")
    code, text, _ = optsched_command(*command, out)
    assert code == 0
    assert solve_linear(read_model(out), "highs").objective == pytest.approx(
        json.loads(text)["throughput"]
    )
    assert ".mps" in refused(*command, tmp_path / "rates.txt")


def test_thresholds_of_ones_own_are_run(optsched_command):
    """As `thresholds` finds them, with the outputs that they are for."""
    command = ("simulate", "family:uniform,n=60", "--clock", "affine:0.0085,2.7e-7", "--json", "-")
    runs = []
    for policy in ("wait:25=3,60=4", "nested-wait:25=3,60=2"):
        code, text, _ = optsched_command(*command, "--policy", policy)
        assert code == 0
        runs.append(json.loads(text))
    assert runs[0] != runs[1]
