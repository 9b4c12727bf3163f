"""The command `doctor`, and what a shell and `python -m` need."""

import os
import subprocess
import sys

from fresh import printed

from optsched import solve
from optsched.cli.installation import OPTIMUM, Finding, package, small


def test_doctor_finds_everything_in_order(optsched_json):
    found = optsched_json("doctor")
    assert found["ok"]
    names = [finding["name"] for finding in found["findings"]]
    assert {"python", "highspy", "ortools", "HiGHS", "CP-SAT", "kernels"} <= set(names)


def test_a_solver_with_wrong_optima_is_found_out(optsched_command, monkeypatch):
    monkeypatch.setattr("optsched.cli.installation.OPTIMUM", 24)
    code, out, _ = optsched_command("doctor")
    assert code == 1
    assert out.count("FAIL") == 4  # HiGHS, CP-SAT, branch and bound, child process
    assert "the optimum is 24, but it says 25" in out


def test_what_is_missing_says_how_to_get_it():
    found = package("no-such-package")
    assert found == Finding("no-such-package", False, "not installed; pip install no-such-package")


def test_the_optimum_is_right():
    assert solve(small(), method="cp-sat").objective == OPTIMUM


def test_the_shell_completes_commands():
    environment = os.environ | {
        "_OPTSCHED_COMPLETE": "bash_complete",
        "COMP_WORDS": "optsched comp",
        "COMP_CWORD": "1",
    }
    script = "import sys; sys.argv = ['optsched']; from optsched.cli import main; main()"
    assert "compare" in printed(script, env=environment, timeout=60)


def test_the_package_is_a_program():
    answer = subprocess.run(
        [sys.executable, "-m", "optsched", "--version"], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0
    assert answer.stdout.startswith("optsched, version ")
