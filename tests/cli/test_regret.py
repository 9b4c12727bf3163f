"""`optsched regret`: JSON, report, Ctrl-C, and one sentence for every bad input."""

import json
import re

import pytest
from tabled import tabled

from optsched.experiments import regret_cells as regret_room

SMALL = ("--loads", "0.6,1.2", "--horizons", "60,120", "--seeds", 2, "--jobs", 1)


@pytest.mark.slow
def test_json_report_and_thresholds(optsched_json, tmp_path):
    page = tmp_path / "regret.html"
    content = optsched_json(
        *("regret", "family:equal-prompts", "--memory", 100, "--policies", "mc-sf,fcfs"),
        *("--html", page, "--threshold", *SMALL),
    )
    assert (content["memory"], content["status"]) == (100, "complete")
    assert len(content["cells"]) == 8
    assert len(content["intervals"]) == 8
    for entry in content["intervals"]:
        assert 0 <= entry["floor"] <= entry["low"] <= entry["high"] <= entry["ceiling"]
        assert 1 <= entry["ratio_low"] <= entry["ratio_high"]
        assert entry["worst_ratio"] >= entry["ratio_low"]
    assert {entry["verdict"] for entry in content["growth"]} == {"too few points"}  # two horizons
    assert [entry["policy"] for entry in content["thresholds"]] == ["mc-sf", "fcfs"]
    assert all(0.8 < entry["load"] < 1.02 for entry in content["thresholds"])
    text = page.read_text(encoding="utf-8")
    assert "http://" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert text.count('class="plot"') == 4


@pytest.mark.slow
def test_a_trace_is_resampled(optsched_command, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt_tokens,output_tokens\n3,4\n9,2\n2,8\n")
    small = ("--loads", "1.2", "--horizons", "60", "--seeds", 2, "--jobs", 1)
    arguments = ("regret", trace, "--memory", 60, *small, "--policies", "area", "--seed", 5)
    code, out, _ = optsched_command(*arguments)
    assert code == 0
    assert "area" in out
    again = optsched_command(*arguments)
    assert again[1] == out


def test_ctrl_c_keeps_what_is_finished(optsched_command, monkeypatch):
    original = regret_room.perform
    calls = []

    def stopped(task):
        calls.append(task)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(task)

    monkeypatch.setattr(regret_room, "perform", stopped)
    code, out, err = optsched_command("regret", "family:equal-prompts", *SMALL, "--json", "-")
    assert code == 130
    content = json.loads(out)
    assert content["status"] == "interrupted"
    assert len(content["cells"]) == 3
    assert "interrupted; 3 instances were finished" in err


@tabled()
def test_bad_input_gets_one_sentence(refused, arguments, message):
    err = refused("regret", *arguments)
    assert err.startswith("optsched: ")
    assert message in err


@pytest.mark.slow
def test_a_stopped_regret_is_resumed_and_extended(optsched_command, refused, tmp_path, monkeypatch):
    original, done = regret_room.perform, []

    def counted(task):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(task)
        return original(task)

    out = tmp_path / "kept"
    line = ("regret", "family:equal-prompts", *SMALL, "--keep-instances", out, "--json", "-")
    _, whole, _ = optsched_command(*line[:-4], "--json", "-")
    with monkeypatch.context() as patch:
        patch.setattr(regret_room, "perform", counted)
        code, _, err = optsched_command(*line)
        assert (code, "3 instances were finished; --resume does the others" in err) == (130, True)
        err = refused(*line)
        sentence = "holds 3 of the 8 instances of this regret already; resume it (--resume)"
        assert sentence in err
        assert len(done) == 3
        done.clear()
        code, _, _ = optsched_command(*line, "--resume")
        assert (code, len(done)) == (130, 3)  # the next three
    (out / ".load-0.6.tmp").write_text("half a file")
    code, resumed, _ = optsched_command(*line, "--resume")
    assert code == 0
    first, second = json.loads(whole), json.loads(resumed)
    for content in (first, second):
        for cell in content["cells"]:
            del cell["seconds"]
    assert first == second
    monkeypatch.setattr(regret_room, "perform", lambda task: pytest.fail("done again"))
    code, fewer, _ = optsched_command(*line, "--resume", "--loads", "0.6")
    assert (code, len(json.loads(fewer)["cells"])) == (0, 4)


@pytest.mark.slow
def test_a_folder_of_another_regret_is_refused(optsched_command, refused, tmp_path):
    line = ("regret", "family:equal-prompts", "--horizons", 60, "--seeds", 1, "--jobs", 1)
    out = ("--keep-instances", tmp_path / "kept")
    assert optsched_command(*line, *out)[0] == 0
    for options, sentence in (
        (("--policies", "area", *out, "--resume"), "another regret, which differs in policies"),
        (("--memory", 300, *out, "--resume"), "another regret, which differs in memory"),
        (("--keep-instances", tmp_path), "holds other files, but no regret; take an empty folder"),
        (("--resume",), "--resume counts only with --keep-instances; pass that"),
    ):
        assert sentence in refused(*line, *options)
