"""`models` and `solvers` at the top of a checkout are those of the package, not a second copy."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest
from fresh import printed

import optsched
from optsched import Instance, solve
from optsched.models.program import Program

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("models", "solvers")


@pytest.fixture(autouse=True)
def _at_the_top(monkeypatch):
    """Import from the root, and forget what was imported there."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.split(".")[0] in NAMES:
            del sys.modules[name]


def table(name):
    """Return the docstring of a file at the top, and the words of its table in backquotes."""
    text = ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text("utf-8")))
    return text, re.findall(r"`(\w+)`", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_module_there_is_that_of_the_package(name):
    package = importlib.import_module(f"optsched.{name}")
    assert importlib.import_module(name) is package
    found = [each.name for each in pkgutil.walk_packages(package.__path__, f"{name}.")]
    assert len(found) > 5
    for module in found:
        assert importlib.import_module(module) is importlib.import_module(f"optsched.{module}")
    assert sorted(dir(importlib.import_module(name))) == sorted(dir(package))
    with pytest.raises(ModuleNotFoundError, match=f"No module named 'optsched.{name}.none'"):
        importlib.import_module(f"{name}.none")


def test_a_horizon_that_is_too_short_is_not_called_optimal():
    """It said "10, proven optimal"; the optimum is 9."""
    import models

    short = models.HindsightProgram(Instance([4, 3, 2, 1], [1, 1, 4, 1], 8), horizon=4)
    assert solve(short, method="highs").status != "optimal"
    assert solve(short.instance).objective == 9


def test_the_tables_name_every_program_and_files_that_are_there():
    text, names = table("models")
    programs = {
        name
        for name in optsched.models.__all__
        if inspect.isclass(each := getattr(optsched.models, name)) and issubclass(each, Program)
    }
    missing = programs - {"Program", "WholeThresholds"} - set(names)  # a form of WaitThresholds
    assert missing == set()
    for name in names:
        assert hasattr(optsched.models, name) or name == "models"
    for name in NAMES:
        text, _ = table(name)
        files = re.findall(r"(?<![/\w])(\w+(?:/\w+)*\.py)", text)
        assert len(files) > 5
        for file in files:
            assert (ROOT / "optsched" / name / file).is_file(), file


@pytest.mark.slow
def test_in_a_new_process_neither_order_of_imports_makes_a_copy():
    check = (
        "import models.fluid.wait as w, optsched.models.fluid.wait as v, optsched; "
        "import solvers.backends.driver as d, optsched.solvers.backends.driver as e; "
        "from models import linear; "
        "print(w is v, d is e, linear.LinearModel is optsched.LinearModel)"
    )
    for first in ("", "import optsched; "):
        assert printed(f"{first}{check}", cwd=ROOT) == "True True True"
