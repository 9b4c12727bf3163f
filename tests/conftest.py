"""What all tests share."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # that is wall time, as a deadline is
)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces; tests that need them are skipped where it is absent."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("OPTSCHED_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no folder of real traces; set OPTSCHED_DATA to one")
    return folder


@pytest.fixture
def optsched_command(capsys, monkeypatch):
    """Run the command line in this process: exit code, standard output, standard error."""
    from optsched.cli import main

    # A first run would say on standard error that it compiles.
    monkeypatch.setattr("optsched.cli.common.compilations", lambda *_: nullcontext())

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["optsched", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return command
