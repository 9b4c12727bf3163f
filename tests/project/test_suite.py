"""The suite itself: it uses the data that is there, and hears Ctrl-C however it was started."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import shared_data
from fresh import printed

TESTS = Path(__file__).resolve().parents[1]


def test_one_place_decides_where_the_data_is(tmp_path, monkeypatch):
    """It had been two, and 48 recordings of vLLM were never held against anything."""
    serving = TESTS.parent / "serving" / "tests"
    here = {Path(__file__), Path(shared_data.__file__), serving / "test_benchmarks.py"}
    for path in [*TESTS.rglob("*.py"), *serving.rglob("*.py"), TESTS.parent / "conftest.py"]:
        text = path.read_text(encoding="utf-8")
        assert path in here or 'OPTSCHED_DATA"' not in text, path
    monkeypatch.delenv("OPTSCHED_DATA", raising=False)
    assert shared_data.data_folder(tmp_path) == tmp_path
    assert shared_data.data_folder(tmp_path / "missing") is None
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("OPTSCHED_DATA", str(tmp_path / "named"))
    assert shared_data.data_folder(tmp_path) == tmp_path / "named"
    monkeypatch.setenv("OPTSCHED_DATA", str(tmp_path / "missing"))
    with pytest.raises(
        FileNotFoundError, match=r"OPTSCHED_DATA is .*missing, but there is no such"
    ):
        shared_data.data_folder(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_what_needs_the_data_is_not_skipped_where_it_is_there(
    there, tmp_path, monkeypatch, request
):
    plugins = request.config.pluginmanager
    conftest = next(each for each in plugins.get_plugins() if hasattr(each, "data_folder"))
    monkeypatch.setattr(conftest, "data_folder", lambda: tmp_path if there else None)
    for fixtures, expected in (([], "skipped"), (["shared_data"], "failed")):
        item = SimpleNamespace(fixturenames=fixtures)
        report = SimpleNamespace(
            when="call", skipped=True, outcome="skipped", longrepr=("", 0, "why")
        )
        hook = conftest.pytest_runtest_makereport(item)
        next(hook)
        with pytest.raises(StopIteration):
            hook.send(report)
        assert report.outcome == (expected if there else "skipped")


@pytest.mark.slow
def test_ctrl_c_is_heard_where_the_suite_was_started_without():
    """From a background shell; a test that waited for Ctrl-C never ended."""
    conftest = str(TESTS.parent / "conftest.py")
    code = f"import runpy, signal; runpy.run_path({conftest!r}); "
    code += "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        assert printed(code, env=environment) == "True"
    finally:
        signal.signal(signal.SIGINT, before)


SUITE = """
import effort, pytest
from hypothesis import given, strategies

TRIED = []

@given(strategies.integers())
def test_property(number):
    TRIED.append("property")

@pytest.mark.few
@given(strategies.integers())
def test_few(number):
    TRIED.append("few")

@pytest.mark.few
def test_loop():
    TRIED.extend(effort.share(50) * ["loop"])

@pytest.mark.slow("1")
@pytest.mark.parametrize("case", [0, 1])
def test_partly(case):
    TRIED.append(f"case {case}")

@pytest.mark.slow
def test_slow():
    TRIED.append("slow")

@pytest.mark.long
def test_long():
    TRIED.append("long")

@pytest.mark.few
def test_last():
    from collections import Counter
    print(sorted(Counter(TRIED).items()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "tried"),
    [
        ("--quick", {"case 0": 1, "few": 3, "loop": 3, "property": 20}),
        ("--rest", {"case 1": 1, "few": 20, "loop": 10, "slow": 1}),
        (
            "-mnot long",
            {"case 0": 1, "case 1": 1, "few": 20, "loop": 10, "property": 20, "slow": 1},
        ),
    ],
)
def test_each_half_of_the_suite_runs_what_it_says(option, tried, tmp_path):
    """What `make test` leaves out or reduces, CI runs whole, and nothing twice."""
    (tmp_path / "test_halves.py").write_text(SUITE)
    # That of serving is a conftest, too.
    own = ["-c", "pyproject.toml", "--override-ini", "pythonpath=tests", "--rootdir", "."]
    own += ["-p", "conftest", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *own, "-n0", "-sq", option, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    found = re.search(r"\[\(.*\)\]", run.stdout)
    assert found, run.stdout + run.stderr
    assert dict(ast.literal_eval(found[0])) == tried
