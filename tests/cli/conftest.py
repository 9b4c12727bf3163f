"""What the tests of the command line share."""

from __future__ import annotations

import sys

import pytest

from optsched.cli import main


@pytest.fixture
def optsched_command(capsys, monkeypatch):
    """Run the command line in this process: exit code, standard output, standard error."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["optsched", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return command
