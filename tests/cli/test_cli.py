"""The command line: JSON, exit codes, and one sentence for every bad input."""

import gzip
import json
import os
from importlib.metadata import EntryPoints

import pytest
from fresh import forked, imports
from tabled import tabled

import optsched.cli
from optsched import Instance, Schedule
from optsched.models import BalanceState

TRACE = "prompt_tokens,output_tokens\n63,1\n" + 21 * "1,2\n"


@pytest.fixture
def trace(tmp_path):
    """Sorted-F Example 1 as a file."""
    path = tmp_path / "example.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.mark.slow
def test_compare_gives_the_json_of_the_manual(optsched_json, trace, tmp_path):
    folder, page = tmp_path / "schedules", tmp_path / "report.html"
    content = optsched_json("compare", trace, "--memory", 64, "--html", page, "--schedules", folder)
    assert content["instance"]["requests"] == 22
    assert content["instance"]["memory"] == 64
    assert content["bound"]["value"] == 43
    totals = {entry["policy"]: entry["total_latency"] for entry in content["policies"]}
    assert totals == {
        "fcfs": 64,
        "mc-sf": 64,
        "mc-sf-total": 45,
        "area": 45,
        "sorted-f": 45,
        "area+window": 45,
    }
    for entry in content["policies"]:
        assert entry["gap"] == pytest.approx(1 - 43 / entry["total_latency"])
        assert {"mean_latency", "makespan", "peak_memory", "seconds"} <= set(entry)
        instance = optsched.read_trace(trace, 64)
        schedule = Schedule.from_json(folder / f"{entry['policy']}.json", instance)
        assert (schedule.total_latency, schedule.check()) == (entry["total_latency"], [])
    assert page.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_compare_prints_a_table_and_writes_json_to_a_file(optsched_command, trace, tmp_path):
    out_file = tmp_path / "out.json"
    code, out, _ = optsched_command(
        *("compare", trace, "--memory", 64, "--policies", "area,mc-sf", "--json", out_file)
    )
    assert code == 0
    assert "proven bound" in out
    assert "area" in out
    assert "sorted-f" not in out
    assert len(json.loads(out_file.read_text(encoding="utf-8"))["policies"]) == 2
    assert optsched_command("compare", trace, "--memory", 64, "--quiet")[1] == ""


def test_bound_and_its_certificate(optsched_command, refused, optsched_json, trace, tmp_path):
    certificate = tmp_path / "certificate.json"
    content = optsched_json("bound", trace, "--memory", 64, "--certificate", certificate)
    assert (content["value"], content["method"]) == (43, "lagrangian")
    proof = json.loads(certificate.read_text(encoding="utf-8"))
    assert all(type(price) is int for price in [proof["denominator"], *proof["prices"]])
    code, out, _ = optsched_command("check", trace, certificate, "--memory", 64)
    assert (code, "below 43.000" in out) == (0, True)
    proof["value"] = [46, 1]
    certificate.write_text(json.dumps(proof))
    found = optsched_json("check", trace, certificate, "--memory", 64, code=1)
    said = {"valid": False, "value": 43.0, "claimed": 46.0, "objective": "total-latency"}
    assert found == said
    code, out, _ = optsched_command("check", trace, certificate, "--memory", 64)
    assert (code, "claims 46.000" in out) == (1, True)
    assert "belongs to another instance" in refused("check", trace, certificate, "--memory", 65)


@pytest.mark.parametrize("clock", ["unit", "affine:0.1,0.001"])
@pytest.mark.parametrize("objective", ["total-latency", "weighted-latency", "makespan"])
def test_a_bound_and_its_certificate_say_what_they_bound(
    objective, clock, optsched_command, tmp_path
):
    """Every certificate was said to bound the total latency."""
    source, proof = ("family:uniform,n=20", "--clock", clock), tmp_path / "proof.json"
    command = ("bound", *source, "--objective", objective, "--certificate", proof)
    code, out, _ = optsched_command(*command)
    words = f"a {objective.replace('-', ' ')} below"
    assert (code, words in out, "per request" in out) == (0, True, objective != "makespan")
    code, out, _ = optsched_command("check", source[0], proof, *source[1:])
    assert (code, words in out) == (0, True)


def test_bound_speaks(optsched_command, trace):
    code, out, _ = optsched_command("bound", trace, "--memory", 64, "--method", "closed-form")
    assert code == 0
    assert "no schedule of example has a total latency below 42.9 steps (1.9 per request" in out


def test_check_says_yes_or_no(optsched_command, refused, optsched_json, trace, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"starts": [2] + 21 * [0]}))
    content = optsched_json("check", trace, plan, "--memory", 64)
    assert (content["feasible"], content["total_latency"]) == (True, 45)
    err = refused("check", trace, plan, "--memory", 64, "--clock", "affine:1,1")
    assert "counts only for certificates" in err
    plan.write_text(json.dumps({"begin": [0]}))
    err = refused("check", trace, plan, "--memory", 64)
    assert "no key 'starts', as schedules have, and no 'prices'" in err
    plan.write_text(json.dumps({"starts": [0] + 21 * [0]}))
    found = optsched_json("check", trace, plan, "--memory", 64, code=1)
    violation = found["violations"][0]
    assert (violation["step"], violation["usage"], violation["limit"]) == (1, 106, 64)
    code, out, _ = optsched_command("check", trace, plan, "--memory", 64)
    assert (code, "infeasible, 1 violations" in out) == (1, True)


def test_check_prints_ten_violations_and_counts_the_rest(optsched_command, tmp_path):
    count = 40
    trace, plan = tmp_path / "t.csv", tmp_path / "p.json"
    trace.write_text("prompt_tokens,output_tokens\n" + count * "3,1\n")
    plan.write_text(json.dumps({"starts": [2 * (i // 2) for i in range(count)]}))
    code, out, _ = optsched_command("check", trace, plan, "--memory", 4)
    assert code == 1
    assert "and 10 more" in out


def test_solve_proves_an_optimum(optsched_command, optsched_json, trace):
    content = optsched_json("solve", trace, "--memory", 64)
    assert (content["status"], content["objective"], content["bound"]) == ("optimal", 45, 45)
    assert (content["gap"], content["proven_optimal"]) == (0, True)
    instance = optsched.read_trace(trace, 64)
    schedule = Schedule(instance, content["starts"])
    assert (schedule.total_latency, schedule.check()) == (45, [])
    code, out, _ = optsched_command(
        *("solve", trace, "--memory", 64, "--objective", "makespan", "--method", "highs")
    )
    assert code == 0
    assert "makespan 3, proven optimal" in out


def test_solve_says_no_to_impossible_deadlines(optsched_command, optsched_json, tmp_path):
    path = tmp_path / "due.csv"
    path.write_text("prompt_tokens,output_tokens,deadline\n5,2,2\n5,2,3\n")
    content = optsched_json("solve", path, "--memory", 9, code=1)
    assert (content["status"], content["starts"]) == ("infeasible", None)
    assert content["conflict"]["requests"] == ["0", "1"]
    code, out, _ = optsched_command("solve", path, "--memory", 9)
    assert (code, "not all requests can complete" in out) == (1, True)
    found = optsched_json("solve", path, "--memory", 9, "--lateness", "per-step", "--penalty", 2)
    assert found["objective"] == 2 + 4 + 2


def test_interrupted_solve_keeps_what_it_has(optsched_json, trace, monkeypatch):
    from optsched.optimum import stages as exact

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "solve_events", interrupted)
    content = optsched_json("solve", "family:uniform,n=11", "--method", "cp-sat", code=130)
    assert content["status"] == "interrupted"
    assert content["bound"] < content["objective"]


@pytest.mark.parametrize(
    "method", ["auto", "dp", "scaled-dp", "swap", "quantile", "mip", "highs", "cp-sat"]
)
def test_select_names_a_batch(optsched_command, optsched_json, trace, method):
    content = optsched_json("select", trace, "--memory", 64, "--method", method)
    assert content["F"] == pytest.approx(2 * 21 / 21**2)
    assert content["requests"] == list(range(1, 22))
    _, out, _ = optsched_command("select", trace, "--memory", 64, "--method", method)
    assert "F = 0.0952381 with 21 requests" in out


@pytest.mark.parametrize("ending", ["mps", "lp"])
@pytest.mark.parametrize("model", ["hindsight", "relaxation", "batch"])
def test_export_writes_what_can_be_read_again(optsched_json, trace, tmp_path, model, ending):
    path = tmp_path / f"model.{ending}"
    size = ("--size", 3) if model == "batch" else ()
    content = optsched_json("export", trace, "--memory", 64, "--model", model, *size, "--out", path)
    again = optsched.read_model(path)
    assert again.matrix.shape == (content["rows"], content["columns"])
    assert again.matrix.nnz == content["nonzeros"]


def test_the_first_step_of_a_cluster_is_exported_as_the_library_makes_it(
    optsched_command, refused, tmp_path
):
    path = tmp_path / "step.mps"
    code, _, _ = optsched_command(
        *("export", "family:uniform,n=9", "--model", "balance", "--workers", 3, "--slots", 2),
        *("--lookahead", 1, "--out", path),
    )
    assert code == 0
    state = BalanceState([[0, 0]] * 3, [2] * 3, optsched.family("uniform", n=9).prompts)
    assert optsched.solve(optsched.read_model(path)).objective == pytest.approx(
        optsched.solve(optsched.models.BalanceProgram(state)).objective
    )
    err = refused("export", "family:uniform,n=9", "--model", "balance", "--out", path)
    assert "add --workers G and --slots B" in err


def test_seed_seeds_a_family(optsched_json):
    def total(*arguments):
        content = optsched_json("compare", "family:uniform,n=20", "--policies", "area", *arguments)
        return content["policies"][0]["total_latency"]

    assert total() == total("--seed", 0) != total("--seed", 1)


def test_seconds_become_steps_with_a_note(optsched_command, tmp_path):
    path = tmp_path / "timed.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s\n3,2,0\n3,2,1.01\n")
    code, out, err = optsched_command(
        *("compare", path, "--memory", 9, "--seconds-per-step", 0.1, "--json", "-")
    )
    assert (code, json.loads(out)["instance"]["last_arrival"]) == (0, 11)
    assert "arrivals in seconds became steps of 0.1 s" in err


def test_limit_and_skip_invalid(optsched_command, refused, tmp_path):
    path = tmp_path / "partly.csv"
    path.write_text("prompt_tokens,output_tokens\n1,1\n1,0\n2,2\n")
    assert "partly.csv, line 3, column output_tokens" in refused("bound", path, "--memory", 9)
    code, _, err = optsched_command("bound", path, "--memory", 9, "--skip-invalid")
    assert code == 0
    assert "left out line 3, column output_tokens" in err
    assert "left out 1 rows, kept 2" in err
    assert optsched_command("bound", path, "--memory", 9, "--limit", 1)[0] == 0


@tabled((TRACE, 0, ["memory is 0"]), (TRACE, -4, ["memory is -4"]))
def test_bad_traces_get_one_sentence(refused, tmp_path, text, memory, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    err = refused("compare", path, "--memory", memory)
    for word in words:
        assert word in err


def test_truncated_gzip_is_refused(refused, tmp_path):
    path = tmp_path / "cut.csv.gz"
    whole = gzip.compress(("prompt_tokens,output_tokens\n" + 5000 * "12,34\n").encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut.csv.gz" in refused("compare", path, "--memory", 100)


@tabled()
def test_bad_arguments_get_one_sentence(refused, trace, tmp_path, arguments, words):
    filled = [part.format(trace=trace, dir=tmp_path) for part in arguments]
    assert words in refused(*filled)


def test_read_only_folder_is_refused(refused, trace, tmp_path, monkeypatch):
    def denied(**_):
        raise PermissionError(13, "Permission denied")

    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:  # who may write anywhere
        monkeypatch.setattr("tempfile.TemporaryFile", denied)
    err = refused("compare", trace, "--memory", 64, "--html", folder / "report.html")
    assert "Permission denied; choose" in err


def test_full_disk_is_one_sentence(optsched_command, trace):
    code, _, err = optsched_command("compare", trace, "--memory", 64, "--json", "/dev/full")
    assert (code, err.count("\n"), "No space left" in err) == (2, 1, True)


@pytest.mark.slow
def test_interpreter_stays_light():
    """Importing the package loads no solver, no compiler, no tables and no plots."""
    heavy = ["numba", "pandas", "matplotlib", "plotly", "highspy", "ortools", "pyomo"]
    heavy += ["pyarrow", "scipy", "rich", "click"]
    assert not imports("import optsched; optsched.Instance; optsched.Schedule", *heavy)


def test_version_and_help(optsched_command):
    assert optsched.__version__ in optsched_command("--version")[1]
    code, out, _ = optsched_command("--help")
    assert (code, "compare" in out) == (0, True)


def test_python_and_command_line_agree(optsched_json, trace):
    content = optsched_json("compare", trace, "--memory", 64)
    comparison = optsched.compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    from_cli = {e["policy"]: e["total_latency"] for e in content["policies"]}
    assert from_cli == comparison.to_pandas()["total_latency"].to_dict()


@pytest.mark.slow
def test_solve_explains_the_gap_or_says_why_not(optsched_command, optsched_json, tmp_path):
    proof, eight = tmp_path / "proof.json", "family:uniform,n=8"
    content = optsched_json("solve", eight, "--time-limit", 120, "--certificate", proof)
    assert content["proven_optimal"] is True
    explained = content["explanation"]
    parts = explained["order_regret"] + explained["waste"]
    assert parts == pytest.approx(explained["gap"])
    assert content["history"][-1][1] == content["objective"]
    assert optsched_command("check", eight, proof)[0] == 0
    path = tmp_path / "far.csv"
    path.write_text("prompt_tokens,output_tokens,arrival\n4,6,0\n4,6,0\n4,6,1000000000\n")
    code, out, err = optsched_command(
        *("solve", path, "--memory", 13, "--time-limit", 2, "--json", "-")
    )
    assert (code, json.loads(out)["explanation"]) == (0, None)
    assert "none for the makespan" in err


@pytest.mark.slow
def test_solve_writes_the_proof_of_its_bound_or_says_that_there_is_none(
    optsched_command, refused, optsched_json, tmp_path
):
    proof = tmp_path / "proof.json"
    trace = "family:uniform,n=30"
    code, out, err = optsched_command(
        *("solve", trace, "--time-limit", 6, "--certificate", proof, "--json", "-")
    )
    content = json.loads(out)
    assert (code, err) == (0, "")
    # Charges are there at once; whether configurations come in time depends on the machine.
    assert content["proof"] in ("sawtooth", "configuration")
    found = optsched_json("check", trace, proof)
    assert content["bound"] - 1 < found["value"] <= content["bound"]
    assert "belongs to another instance" in refused("check", "family:uniform,n=31", proof)
    code, out, err = optsched_command(
        *("solve", "family:uniform,n=7", "--time-limit", 9, "--certificate", proof)
    )
    assert ("by configuration" in out) or "leaves no certificate" in err
    assert optsched_command("check", "family:uniform,n=7", proof)[0] == 0


def test_without_arguments_the_command_explains_itself(optsched_command):
    """It had begun "optsched: Usage: ..." on standard error, as if something was wrong."""
    assert optsched_command() == optsched_command("--help")
    code, out, err = optsched_command()
    assert (code, out[:6], err) == (0, "Usage:", "")


def test_running_out_of_memory_is_one_sentence(refused, monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(optsched, "bound", fail)
    err = refused("bound", "family:uniform,n=10")
    assert err == "optsched: out of memory; take fewer requests (--limit) or steps\n"


@pytest.mark.slow
def test_a_first_call_says_once_that_kernels_are_compiled(tmp_path):
    """In notebooks and scripts too; on the command line not where all is to be quiet."""
    said = "optsched: compiling kernels, which takes a while once on this machine\n"
    code = "import optsched\nfrom optsched.cli.options import Output\n"
    call = "optsched.run(optsched.Instance([1, 2], [3, 4], 9), 'fcfs')"
    in_progress = f"with Output(None, {{}}).progress('running'): {call}"
    for place, line, words in (
        ("quiet", in_progress.format(True), ""),
        ("loud", call, said),
        ("loud", in_progress.format(False), ""),  # they are kept
    ):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / place)}
        assert forked(code + line, tmp_path, environment)[1] == words


def test_commands_of_the_papers_say_where_they_are_while_they_are_not_installed(
    optsched_command, monkeypatch
):
    monkeypatch.setattr(optsched.cli, "_added", lambda: EntryPoints(()))
    for name in ("check-certificate", "verify"):
        sentence = f"optsched: {name} is part of check: optsched check TRACE FILE\n"
        assert optsched_command(name)[2] == sentence
    for name in ("reproduce", "competitive-ratio"):
        sentence = f"{name} comes with the folder papers/ of the repository; install it from a"
        sentence += " checkout with python -m pip install ./papers"
        assert optsched_command(name, "--list") == (2, "", f"optsched: {sentence}\n")
        assert name not in optsched_command("--help")[1]


def test_parameters_of_a_family_are_no_options(optsched_command):
    code, _, err = optsched_command("compare", "family:uniform", "--n", "15")
    assert (code, "write it behind the family: family:uniform,n=X; see" in err) == (2, True)


def test_commands_of_other_packages_are_looked_up_only_where_they_are_asked_for(
    optsched_command, monkeypatch
):
    monkeypatch.setattr(optsched.cli, "_added", lambda: pytest.fail("looked up"))
    for line in (["--version"], ["policies"], ["families", "--help"]):
        assert optsched_command(*line)[0] == 0
