"""docs/architecture.md names every room, and imports go down only."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "optsched"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = {
    path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
}
LISTED, FLOORS = re.findall(r"^```\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
FLOOR_OF = {
    room: -height for height, line in enumerate(FLOORS.splitlines()) for room in line.split()
}


def imports(source):
    """Return what a source imports from optsched, with its module, wherever the import stands."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("optsched.")}


def rooms_that(source):
    """Return the rooms that a source imports from."""
    return {name.split(".")[1] for name in imports(source)} & ROOMS


def test_every_kind_of_import_is_seen():
    source = "import optsched.cli.main\ndef f():\n    import optsched.report.pages as p\n"
    source += "if TYPE_CHECKING:\n    from optsched.problem.instance import Instance\n"
    source += "from optsched import models\n"
    assert rooms_that(source) == {"cli", "report", "problem", "models"}


def test_the_list_names_every_room_once_and_nothing_else():
    listed = re.findall(r"^  (\w+)(?:\.pyi?|/)\s", LISTED, flags=re.MULTILINE)
    assert sorted(listed) == sorted(ROOMS | {"data"})


def test_every_room_stands_on_one_floor():
    assert sorted(FLOORS.split()) == sorted(ROOMS - {"__init__"})


@pytest.mark.parametrize("room", sorted(ROOMS - {"__init__"}))
def test_imports_go_down_only(room):
    files = sorted((HOUSE / room).rglob("*.py")) or [HOUSE / f"{room}.py"]
    for path in files:
        for other in rooms_that(path.read_text(encoding="utf-8")) - {room}:
            assert FLOOR_OF[other] < FLOOR_OF[room], f"{path} imports optsched.{other}"


def test_the_toolkit_imports_no_other_distribution():
    for path in HOUSE.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            other = re.search(r"import .*optsched_|from optsched_", line)
            assert not other or path == HOUSE / "vllm.py", path


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle():
    paths = list(HOUSE.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    modules = {
        name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)
    }
    graph = {
        module: {
            name if name in modules else name.rpartition(".")[0]
            for name in imports(path.read_text(encoding="utf-8"))
        }
        for module, path in modules.items()
    }
    assert list(graphlib.TopologicalSorter(graph).static_order())  # refuses circles
