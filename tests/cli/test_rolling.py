"""`optsched rolling`: JSON as of compare with the counts, and one sentence for every bad input."""

from __future__ import annotations

import json
import sys

import pytest

from optsched.cli import main

FAMILY = "family:exponential,n=40,load=0.9"


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command line in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["optsched", "rolling", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def test_json_is_that_of_compare_and_the_counts(command, capsys, monkeypatch):
    code, out, _ = command(FAMILY, "--json", "-")
    content = json.loads(out)
    assert code == 0
    assert [entry["policy"] for entry in content["policies"]] == ["rolling", "area", "mc-sf"]
    counts = content["rolling"]
    assert counts["decisions"] == counts["planned"] + counts["fallbacks"] > 0
    monkeypatch.setattr(sys, "argv", ["optsched", "compare", FAMILY, "--json", "-"])
    with pytest.raises(SystemExit):
        main()
    compared = json.loads(capsys.readouterr().out)
    assert set(compared) == set(content) - {"rolling"}
    assert set(compared["policies"][0]) == set(content["policies"][0])
    assert compared["bound"]["value"] == content["bound"]["value"]


def test_it_says_how_it_came_about(command):
    code, out, _ = command(FAMILY, "--budget", 0, "--fallback", "mc-sf", "--policies", "fcfs")
    assert code == 0
    assert "by the fallback mc-sf" in out
    assert "the budget is zero, so nothing was planned" in out
    assert "fcfs" in out


def test_it_runs_with_intervals(command):
    code, out, _ = command(FAMILY, "--intervals", "classes:10", "--reading", "upper", "--json", "-")
    content = json.loads(out)
    assert code == 0
    assert content["intervals"] == "classes:10"
    assert content["policies"][0]["evictions"] == 0


BAD = {
    "unknown model 'hindsite' of a rolling horizon: did you mean 'hindsight'?": (
        "--model",
        "hindsite",
    ),
    "a window of 3 steps is shorter than one output: request ": ("--horizon", 3),
    "the budget of a decision is -1.0 seconds, but must be a number from 0 on": ("--budget", -1),
    "unknown fallback 'aera': did you mean 'area'?": ("--fallback", "aera"),
    "unknown reading 'middle'": ("--reading", "middle"),
    "unknown policy 'best'": ("--policies", "best"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_is_one_sentence(command, sentence):
    code, out, err = command(FAMILY, *BAD[sentence])
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
