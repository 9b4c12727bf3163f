"""The short form of the campaign: some cases of every part, and none may find anything."""

from __future__ import annotations

import ctypes
import time

import pytest

from campaign import agreement, case, certificates, command_line, kills, limits, readers
from optsched.cli import cli

#: Cases of each part, for some ten seconds of computing each at most. Coverage is not looked at
#: where other tests reach every line: it makes loops in Python half as slow again.
CASES = [
    pytest.param(readers, 600, marks=pytest.mark.no_cover),
    (command_line, 150),
    pytest.param(agreement, 200, marks=pytest.mark.no_cover),
    pytest.param(certificates, 40, marks=pytest.mark.no_cover),
    (limits, 30),
]


@pytest.mark.parametrize(("part", "cases"), CASES, ids=lambda each: getattr(each, "TITLE", None))
def test_nothing_is_found(part, cases, tmp_path):
    findings = []
    for number in range(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = part.case(number, folder)
        findings += [f"case {number}: {finding}" for finding in outcome.findings]
    assert findings == []


def test_every_list_of_values_is_of_an_option():
    options = {option.name for command in cli.commands.values() for option in command.params}
    assert set(command_line.VALUES) <= options


@pytest.mark.parametrize("kind", ["_solver_child", "_exact_solve", "_sweep_worker", "_sweep_main"])
def test_nothing_is_lost_by_kills(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "KINDS", {getattr(kills, kind): 1})
    assert kills.case(1, tmp_path).findings == []


def test_a_large_trace_is_read_compared_and_bounded(tmp_path):
    outcome = limits.large_trace(20_000, tmp_path)
    assert (outcome.inputs, outcome.findings) == (1, [])


def test_an_alarm_lost_in_a_callback_is_no_failure():
    # pytest makes a failure of what is raised where nothing can catch it.
    wait = ctypes.CFUNCTYPE(None)(lambda: time.sleep(0.2))
    with case.within(0.05, KeyboardInterrupt):
        wait()
