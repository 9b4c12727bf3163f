"""Who uses the package sees its types, also where its installation is editable."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fresh import printed

ROOT = Path(__file__).parents[2]

USER = """
import optsched
from optsched.models import HindsightProgram

instance = optsched.family("uniform", n=3)
reveal_type(instance)
reveal_type(optsched.solve(HindsightProgram(instance)).objective)
reveal_type(optsched.compare(instance, "fcfs").best)
reveal_type(optsched.compare(instance, "fcfs", clock="unit").bound)
reveal_type(optsched.compare([instance], cluster=optsched.Cluster(1, 1)))
reveal_type(optsched.compare([instance], ["fcfs"], clock="unit", seed=1))
comparison: optsched.Comparison = optsched.compare(instance, None, optsched.RunSettings())
instance.nonsense
"""


@pytest.mark.slow
def test_a_users_file_is_checked_and_nothing_else_is_importable(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    if (checked := ROOT / ".mypy_cache").exists():  # by `make check`, with the same switches
        shutil.copytree(checked, tmp_path / "cache")
    own = [
        "--strict",
        "--warn-unreachable",
        "--python-executable",
        sys.executable,
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *own, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert 'Revealed type is "optsched.problem.instance.Instance"' in run.stdout
    assert 'Revealed type is "float | None"' in run.stdout, run.stdout
    for kind in (
        "optsched.problem.execution.Execution",
        "optsched.bounds.bound.ClockBound | None",
        "optsched.experiments.results.ClusterComparison",
        "optsched.experiments.comparison.Replications",
    ):
        assert f'Revealed type is "{kind}"' in run.stdout, run.stdout
    assert '"Instance" has no attribute "nonsense"' in run.stdout
    assert "Found 1 error" in run.stdout
    code = "from importlib.util import find_spec; "
    code += (
        "print([name for name in ('tests', 'benchmarks', 'docs', 'conftest') if find_spec(name)])"
    )
    assert printed(code, cwd=tmp_path, env={}) == "[]"
