"""What the tests and the examples in docstrings share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from numba.core import event
from shared_data import data_folder

from optsched._internal.aside import shown_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

hypothesis.settings.register_profile(
    "thorough",  # what make test-all asks for; tests/effort.py scales what a test asks for alike
    max_examples=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # that is wall time, as a deadline is
)
hypothesis.settings.register_profile(
    "default", hypothesis.settings.get_profile("thorough"), max_examples=20
)
hypothesis.settings.load_profile("default")

# Started from a background shell, Python ignores Ctrl-C, and so do all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Untraced(event.Listener):  # type: ignore[misc]
    """Suspend coverage while numba compiles: it would trace the compiler, half as slow again."""

    def __init__(self) -> None:
        self._depth = 0
        self._trace: Any = None

    def on_start(self, event: Any) -> None:
        """Suspend the tracer where the outermost compilation begins."""
        if not self._depth:
            self._trace = sys.gettrace()
            sys.settrace(None)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Set the tracer again where it ends."""
        self._depth -= 1
        if not self._depth:
            sys.settrace(self._trace)


event.register("numba:compile", _Untraced())


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder for cells of the papers' targets, which the tests of this session share."""
    if not hasattr(config, "workerinput"):  # set in the processes that pytest-xdist starts
        folder = tempfile.TemporaryDirectory(prefix="optsched-cells-")
        os.environ["OPTSCHED_TEST_CELLS"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of garbage collections from now on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compile_quietly() -> Iterator[None]:
    """Say nothing on standard error: which test compiles depends on those before."""
    with shown_by(lambda: None):
        yield


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close what was drawn: matplotlib warns of more than twenty open figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


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
