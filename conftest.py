"""What the tests and the examples in docstrings share."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import effort
import first_kernels
import hypothesis
import pytest
from installed import PAPERS, SERVING
from numba.core import event
from shared_data import data_folder

from optsched._internal.aside import shown_by

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.append(str(Path(__file__).parent))  # where child processes find functions of tests
hypothesis.settings.register_profile(
    "thorough",  # what make test-long asks for; tests/effort.py scales what a test asks for alike
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
        self._since = self.spent = 0.0  # CPU seconds of compilation

    def on_start(self, event: Any) -> None:
        """Suspend the tracer where the outermost compilation begins."""
        if not self._depth:
            self._trace, self._since = sys.gettrace(), time.thread_time()
            sys.settrace(None)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Set the tracer again where it ends."""
        self._depth -= 1
        if not self._depth:
            self.spent += time.thread_time() - self._since
            sys.settrace(self._trace)


_untraced = _Untraced()
event.register("numba:compile", _untraced)
_BEGAN = pytest.StashKey[float]()
_SLOW_S = 0.5

# What cannot be imported without serving.
collect_ignore = [] if SERVING else ["optsched/vllm.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two halves of the suite: `make test`, and what CI runs besides."""
    parser.addoption("--quick", action="store_true", help="quick tests of the core, few of some")
    parser.addoption("--rest", action="store_true", help="what --quick leaves out, but long tests")


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder for cells of the papers' targets, which the tests of this session share."""
    if not hasattr(config, "workerinput"):  # set in the processes that pytest-xdist starts
        folder = tempfile.TemporaryDirectory(prefix="optsched-cells-")
        os.environ["OPTSCHED_TEST_CELLS"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile kernels once, in as many processes as will run tests, before these start."""
    if not hasattr(session.config, "workerinput") and session.config.getoption("tx", None):
        first_kernels.compile_all()


def _marked(item: pytest.Item, name: str) -> bool:
    """Tell whether a test is marked; a mark with patterns is about those of its cases alone."""
    marks = list(item.iter_markers(name))
    case = item.callspec.id if hasattr(item, "callspec") else ""
    return any(not mark.args or any(fnmatchcase(case, ids) for ids in mark.args) for mark in marks)


def _quick(item: pytest.Item) -> bool:
    """Tell whether `make test` runs a test: one of the core, neither slow nor long."""
    apart = item.nodeid.startswith(("papers/", "serving/"))
    return not (apart or _marked(item, "slow") or item.get_closest_marker("long"))


def _rest(item: pytest.Item) -> bool:
    """Tell whether CI runs a test after `make test`."""
    in_full = not _quick(item) or item.get_closest_marker("few")
    return bool(in_full and not item.get_closest_marker("long"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose a half of the suite, and reduce the tests of which few cases are enough."""
    quick = config.getoption("quick")
    if quick or config.getoption("rest"):
        chosen = _quick if quick else _rest
        config.hook.pytest_deselected(items=[item for item in items if not chosen(item)])
        items[:] = filter(chosen, items)
    for name in [name for name, there in (("papers", PAPERS), ("serving", SERVING)) if not there]:
        for item in items:
            if _marked(item, name):
                item.add_marker(pytest.mark.skip(reason=f"optsched-{name} is not installed"))
    if quick:
        for item in items:
            if item.get_closest_marker("few") and hasattr(item.obj, "hypothesis"):
                effort.reduce(item.obj)


def _cpu_seconds() -> float:
    """Return CPU seconds of this process and its children, those of compilation left out."""
    return sum(os.times()[:4]) - _untraced.spent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test, and let it know whether few of its cases are tried."""
    effort.few = item.config.getoption("quick") and item.get_closest_marker("few") is not None
    item.stash[_BEGAN] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Keep what a test took; let none be skipped for which the data is there: nobody reads why."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append(("cpu_s", round(_cpu_seconds() - item.stash[_BEGAN], 2)))
    if report.skipped and "shared_data" in item.fixturenames and data_folder() is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped, although its data is in {data_folder()}: {report.longrepr[2]}"
    return report


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> None:
    """Name what fails at once: a run that is killed comes to no summary."""
    if report.failed:
        config.get_terminal_writer().line(f"\n{report.nodeid} failed")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name tests that take more than half a CPU second and are not marked as slow."""
    if not config.getoption("quick"):
        return
    took = {each.nodeid: dict(each.user_properties) for each in terminalreporter.getreports("")}
    heavy = [name for name, each in took.items() if each.get("cpu_s", 0) > _SLOW_S]
    terminalreporter.section(f"{len(heavy)} unmarked tests took more than {_SLOW_S} CPU seconds")
    for name in sorted(heavy, key=lambda name: -took[name]["cpu_s"]):
        terminalreporter.line(f"{took[name]['cpu_s']:6.2f} {name}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Leave what is imported and collected out of all garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(parent: pytest.Collector) -> Iterator[object]:
    """Look for examples in the packages alone: tests have none, and to look takes seconds."""
    found = yield
    of_tests = "tests" in parent.nodeid.split("/")
    return [each for each in found if type(each) is pytest.Module or not of_tests]


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


@pytest.fixture
def benchmark(monkeypatch):
    """Import modules of benchmarks/ as its scripts do; calls are timed once, however short."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "benchmarks"))
    monkeypatch.setattr(importlib.import_module("timing"), "LEAST", 1e-6)
    return importlib.import_module


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


@pytest.fixture
def optsched_json(optsched_command):
    """Run the command line with `--json -`: what it writes; it ends with this code."""

    def command(*arguments, code=0):
        found, out, err = optsched_command(*arguments, "--json", "-")
        assert found == code, err
        return json.loads(out)

    return command


@pytest.fixture
def refused(optsched_command):
    """Run a command line that is refused: the one sentence that it says, beside no result."""

    def command(*arguments):
        code, out, err = optsched_command(*arguments)
        assert (code, out, err.count("\n"), err[:10]) == (2, "", 1, "optsched: "), err
        return err

    return command
