"""The short form of the campaign: some cases of every part, and none may find anything."""

import ctypes
import os
import signal
import time
from dataclasses import replace

import pytest
from all_commands import COMMANDS
from effort import share

import campaign.__main__
from campaign import (
    agreement,
    case,
    certificates,
    clocks,
    command_line,
    kills,
    limits,
    models,
    pool,
    readers,
    regrets,
)

#: Cases of each part. Coverage is not looked at where other tests reach every line.
CASES = [
    pytest.param(readers, 600, marks=pytest.mark.no_cover),
    (command_line, 150),
    pytest.param(models, 400, marks=pytest.mark.no_cover),
    pytest.param(agreement, 120, marks=pytest.mark.no_cover),
    pytest.param(certificates, 40, marks=pytest.mark.no_cover),
    pytest.param(clocks, 20, marks=pytest.mark.no_cover),
    pytest.param(regrets, 8, marks=pytest.mark.no_cover),
    (limits, 30),
]


@pytest.mark.few
@pytest.mark.parametrize(("part", "cases"), CASES, ids=lambda each: getattr(each, "TITLE", None))
def test_nothing_is_found(part, cases, tmp_path):
    findings = []
    for number in range(share(cases)):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = part.case(number, folder)
        findings += [f"case {number}: {finding}" for finding in outcome.findings]
    assert findings == []


@pytest.mark.papers
def test_every_list_of_values_is_of_an_option():
    options = {option.name for command in COMMANDS.values() for option in command.params}
    assert set(command_line.VALUES) <= options


@pytest.mark.long  # tests of each room kill something once
@pytest.mark.parametrize(
    "kind", ["_solver_child", "_exact_solve", "_sweep_worker", "_sweep_main", "_named_file"]
)
def test_nothing_is_lost_by_kills(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "KINDS", {getattr(kills, kind): 1})
    assert kills.case(1, tmp_path).findings == []


def test_a_large_trace_is_read_compared_and_bounded(tmp_path):
    outcome = limits.large_trace(20_000, tmp_path)
    assert (outcome.inputs, outcome.findings) == (1, [])


def _dies(seed, folder):
    if seed % pool.CASES == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = case.Outcome(inputs=1)
    outcome.check(seed % pool.CASES != 5, "five")
    return outcome


def test_a_campaign_goes_on_where_it_ended_and_counts_each_case_once(tmp_path, monkeypatch):
    parts = {"a": case.Part(_dies, goal=12, batch=2), "b": case.Part(_dies, goal=2, batch=1)}
    monkeypatch.setattr(campaign.__main__, "PARTS", parts)
    path = tmp_path / "state.json"
    for goal in (8, 12):
        parts["a"] = replace(parts["a"], goal=goal)
        state = campaign.__main__.State(path, 7)
        campaign.__main__.run(state, list(parts), 60, jobs=1)
    again = campaign.__main__.State(path, 7)
    assert again.totals == state.totals
    assert (again.done["b"], again.totals["b"].inputs) == ({0, 1}, 2)
    # The batch of the case that dies counts none of its inputs; another is tried for them.
    assert again.done["a"] == set(range(7))
    assert again.totals["a"].inputs == 12
    assert sorted(again.totals["a"].findings) == ["batch 1 of a: exit code -9", "case 5: five"]


def test_an_alarm_lost_in_a_callback_is_no_failure():
    # pytest makes a failure of what is raised where nothing can catch it.
    wait = ctypes.CFUNCTYPE(None)(lambda: time.sleep(0.2))
    with case.within(0.05, KeyboardInterrupt):
        wait()
