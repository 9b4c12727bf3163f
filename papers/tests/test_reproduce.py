"""The command `reproduce`."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import optsched_papers as reproduction
from optsched_papers import TARGETS, CompetitiveRatio, stored
from optsched_papers.claims import LABELS


def test_list_names_all_targets_with_their_last_verdicts(optsched_command):
    code, out, _ = optsched_command("reproduce", "--list", "--json", "-")
    assert code == 0
    entries = json.loads(out)
    assert [entry["target"] for entry in entries] == list(TARGETS)
    fields = {"title", "version", "verdict", "reason", "holds_if", "quick"}
    assert all(fields <= set(entry) for entry in entries)
    assert {entry["verdict"] for entry in entries} <= {*LABELS, "not run"}
    code, out, _ = optsched_command("reproduce", "--list")
    assert code == 0
    *lines, _, count = out.splitlines()
    for line, entry in zip(lines, entries, strict=True):
        note = " (quick)" if entry["quick"] else ""
        assert line.split(maxsplit=1)[0] == entry["target"]
        assert f"{entry['qualified']}{note}" in line
        target = TARGETS[entry["target"]]
        texts = [each for each in (target.provided, target.unpublished) if each]
        rests = [each.split(":")[0] for each in texts if entry["reason"].startswith(each)]
        assert entry["qualified"] == ", ".join([entry["verdict"], *rests])
    assert count.startswith(f"{len(TARGETS)} targets: ")


def test_a_target_without_a_verdict_is_listed_as_not_run(optsched_command, monkeypatch):
    known = {"verdict": "reproduced", "reason": "all rows", "quick": False, "seed": 0, "seconds": 1}
    monkeypatch.setattr(stored, "last_verdicts", lambda: {"robust-fig-1": known})
    entries = json.loads(optsched_command("reproduce", "--list", "--json", "-")[1])
    found = {entry.pop("target"): entry for entry in entries}
    assert found["robust-fig-1"]["verdict"] == "reproduced"
    assert found["robust-fig-4"]["verdict"] == "not run"
    assert all(
        set(entry) == {"title", "version", "holds_if", "qualified", *known}
        for entry in found.values()
    )
    code, out, _ = optsched_command("reproduce", "--list")
    assert code == 0
    others = len(TARGETS) - 1
    assert out.splitlines()[-1] == f"{others + 1} targets: 1 reproduced, {others} not run"


def test_a_target_is_reproduced_into_a_folder(optsched_command, tmp_path):
    code, out, _ = optsched_command(
        "reproduce", "sorted-f-example-1", "--quick", "--out", tmp_path / "out", "--json", "-"
    )
    found = json.loads(out)
    assert (code, found["target"], found["verdict"]) == (0, "sorted-f-example-1", "reproduced")
    assert {"label", "paper", "ours", "low", "high", "verdict"} <= set(found["rows"][0])
    assert {"seed", "seconds", "settings", "versions", "quick"} <= set(found)
    for suffix in ("csv", "png", "json"):
        assert (tmp_path / "out" / f"sorted-f-example-1.{suffix}").stat().st_size


def test_ctrl_c_keeps_the_targets_that_are_done(optsched_command, tmp_path, monkeypatch):
    made = reproduction.reproduce_into

    def interrupted(names, *arguments, **options):
        made(names[:1], *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction, "reproduce_into", interrupted)
    names = ["sorted-f-example-1", "sorted-f-theorem-1"]
    path = tmp_path / "results.json"
    code, _, err = optsched_command(
        "reproduce", *names, "--quick", "--out", tmp_path / "out", "--json", path
    )
    sentence = "interrupted after 1 of 2 targets; the same command resumes where it stopped"
    assert (code, err) == (130, f"optsched: {sentence}\n")
    assert [each["target"] for each in json.loads(path.read_text())["targets"]] == names[:1]


def test_several_targets_come_as_a_list(optsched_command, tmp_path):
    twice = ["sorted-f-example-1"] * 2
    code, out, _ = optsched_command("reproduce", *twice, "--quick", "--out", tmp_path)
    assert code == 0
    assert out.count("Example 1") == 1


def test_bad_input_is_one_sentence(optsched_command, tmp_path):
    for arguments, sentence in (
        (["sorted-f-example-2", "--out", tmp_path / "o"], "did you mean 'sorted-f-example-1'?"),
        (["--out", tmp_path / "o"], "no target is named; name some, or all, or see --list"),
        (["sorted-f-example-1"], "there is no folder for the results; name one with --out"),
    ):
        code, _, error = optsched_command("reproduce", *arguments)
        assert code == 2
        assert sentence in error
        assert error.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_the_competitive_ratio_lies_between_bounds_that_are_rounded_outwards(optsched_command):
    code, out, _ = optsched_command("competitive-ratio", 2, "--json", "-")
    assert code == 0
    found = json.loads(out)
    best = max(CompetitiveRatio(2).quotient([a, b]) for a in range(60) for b in range(1, 60))
    assert found["at_least"] == pytest.approx(float(best), abs=1e-3)
    assert Fraction(found["at_most"]) >= best
    assert found["at_most"] - found["at_least"] < 1e-6
    assert found["trace_bound"] == 1.5
    code, out, _ = optsched_command("competitive-ratio", 30, "--lower", 30, "--prompt", 7)
    assert code == 0
    assert "at least    1.000000000000" in out
    assert "at most     1.000000000000" in out
    code, _, err = optsched_command("competitive-ratio", 3, "--lower", 4)
    assert code == 2
    assert "upper is 3, but must be from 4" in err
