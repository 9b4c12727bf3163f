"""docs/architecture.md names every module, and imports go the way it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "optsched"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = {
    path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
}
LISTED, FLOORS = re.findall(r"^```\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def imports(path, *, when_loaded=True):
    """Give the modules that a file imports, not those for types alone."""

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if when_loaded and isinstance(child, ast.FunctionDef):
                continue
            if isinstance(child, ast.ImportFrom) and child.module:
                yield child.module
            yield from visit(child)

    return {name for name in visit(ast.parse(path.read_text())) if name.startswith("optsched.")}


def test_the_list_names_every_module_once_and_nothing_else():
    listed = re.findall(r"^  (\w+)(?:\.pyi?|/)\s", LISTED, flags=re.MULTILINE)
    assert sorted(listed) == sorted(MODULES | {"data"})


@pytest.mark.parametrize("room", ["models", "solvers", "simulate"])
def test_crowded_rooms_are_told_file_by_file(room):
    table = PAGE.split(f"\n`{room}/`, by")[1].split("\n`")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)))
    there = [path.stem for path in (HOUSE / room).glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)


def test_imports_stay_on_their_floor_or_go_down():
    floor_of, floor = {}, 0
    for line in FLOORS.splitlines():
        floor += not line.startswith(" ")
        floor_of |= dict.fromkeys(line.split()[not line.startswith(" ") :], floor)
    assert set(floor_of) == MODULES - {"__init__"}
    for path in sorted(HOUSE.rglob("*.py")):
        here = path.relative_to(HOUSE).with_suffix("").parts[0]
        for name in imports(path):
            assert floor_of[here] <= floor_of[name.split(".")[1]], f"{path} imports {name}"


@pytest.mark.parametrize(
    ("room", "forbidden"), [("models", "solvers"), ("policies", "simulate"), ("models", "policies")]
)
def test_what_is_never_imported(room, forbidden):
    for path in (HOUSE / room).rglob("*.py"):
        used = {name.split(".")[1] for name in imports(path, when_loaded=False)}
        assert forbidden not in used, f"{path} imports optsched.{forbidden}"


def test_solvers_know_no_model_of_a_paper_but_those_named():
    knowing = {
        path.stem
        for path in (HOUSE / "solvers").glob("*.py")
        for name in imports(path, when_loaded=False)
        if name.startswith("optsched.models.") and name != "optsched.models.linear"
    }
    assert knowing == {"balance", "batch", "expected_starts"}
