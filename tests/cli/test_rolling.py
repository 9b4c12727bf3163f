"""`optsched rolling`: JSON as of compare with the counts, and one sentence for every bad input."""

import functools
import json
import signal

import pandas as pd
import pytest
from tabled import tabled

from optsched.rolling import planners

FAMILY = "family:exponential,n=40,load=0.9"


@pytest.fixture
def command(optsched_command):
    """Run the command in this process: exit code, standard output, standard error."""
    return functools.partial(optsched_command, "rolling")


def test_json_is_that_of_compare_and_the_counts(optsched_json):
    content = optsched_json("rolling", FAMILY)
    assert [entry["policy"] for entry in content["policies"]] == ["rolling", "area", "mc-sf"]
    counts = content["rolling"]
    assert counts["decisions"] == counts["planned"] + counts["fallbacks"] > 0
    compared = optsched_json("compare", FAMILY)
    assert set(compared) - {"left_out"} == set(content) - {"rolling"}
    assert set(compared["policies"][0]) == set(content["policies"][0])
    assert compared["bound"]["value"] == content["bound"]["value"]


def test_it_says_how_it_came_about(command):
    code, out, _ = command(FAMILY, "--budget", 0, "--fallback", "mc-sf", "--policies", "fcfs")
    assert code == 0
    assert "by the fallback mc-sf" in out
    assert "the budget is zero, so nothing was planned" in out
    assert "fcfs" in out


def test_it_runs_with_intervals(optsched_json):
    words = ("--intervals", "classes:10", "--length-estimate", "upper")
    content = optsched_json("rolling", FAMILY, *words)
    assert content["intervals"] == "classes:10"
    assert content["policies"][0]["preemptions"] == content["policies"][0]["evictions"] == 0


@tabled()
def test_bad_input_is_one_sentence(refused, sentence, options):
    assert sentence in refused("rolling", FAMILY, *options)


def test_the_command_writes_everything_and_ends_with_130(command, tmp_path, monkeypatch):
    calls = []

    def searched(window):
        calls.append(window)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return window.place(window.order), False

    monkeypatch.setitem(planners.PLANS, "hindsight", searched)
    json_path, html, log = tmp_path / "a.json", tmp_path / "a.html", tmp_path / "a.csv"
    code, out, err = command(
        *("family:uniform,n=60,load=1.2,seed=1", "--scenarios", 0, "--budget", 60),
        *("--json", json_path, "--html", html, "--log", log),
    )
    assert code == 130
    assert err == (
        "optsched: interrupted after 1 of 3 policies; the bound is that in closed form\n"
    )
    assert "4 planned by hindsight" in out
    content = json.loads(json_path.read_text(encoding="utf-8"))
    assert content["rolling"]["interrupted"] is True
    assert content["rolling"]["planned"] == 4
    assert content["rolling"]["after_interruption"] == content["rolling"]["decisions"] - 4
    assert [entry["policy"] for entry in content["policies"]] == ["rolling"]
    assert "rolling" in html.read_text(encoding="utf-8")
    assert len(pd.read_csv(log)) == 60


@pytest.mark.parametrize("option", ["--html", "--log"])
def test_what_cannot_be_written_is_refused_before_any_work(command, tmp_path, option):
    path = tmp_path / "nowhere" / "a.csv"
    code, out, err = command("family:uniform,n=9", option, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"optsched: cannot write {path}: there is no folder")
