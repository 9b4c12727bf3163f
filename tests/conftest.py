"""What all tests share."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import hypothesis
import pytest
from shared_data import data_folder

from optsched._internal.loading import shown_by

if TYPE_CHECKING:
    from pathlib import Path

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # that is wall time, as a deadline is
)
hypothesis.settings.load_profile("default")

shown_by(lambda _: None).__enter__()  # a first run would say on standard error that it compiles

# Started from a background shell, Python ignores Ctrl-C, and so do all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces and recordings; where there is none, tests that need it are skipped."""
    if (folder := data_folder()) is None:
        pytest.skip("no folder of real traces; set OPTSCHED_DATA to one")
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Let no test be skipped for which the data is there: nobody reads why."""
    report = yield
    if report.skipped and "shared_data" in item.fixturenames and data_folder() is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped, although its data is in {data_folder()}: {report.longrepr[2]}"
    return report


@pytest.fixture
def optsched_command(capsys, monkeypatch):
    """Run the command line in this process: exit code, standard output, standard error."""
    from optsched.cli import main

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["optsched", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return command
