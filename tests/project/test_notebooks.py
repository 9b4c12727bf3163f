"""The notebooks, and what runs them: `make docs` runs all, and here they meet real data.

Each asserts its own headline.
"""

import ast
import importlib.util
import sys
from pathlib import Path

import nbformat
import pytest
from installed import SERVING

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ON_REAL_DATA = [
    path
    for path in NOTEBOOKS
    if "`OPTSCHED_DATA`" in path.read_text("utf-8") and (SERVING or path.stem != "09_vllm")
]


@pytest.fixture(scope="module")
def execute():
    """What `make docs` runs before Sphinx, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("execute", ROOT / "docs" / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("path", ON_REAL_DATA, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_notebook_holds_on_real_data(path, execute, shared_data):
    execute.run(nbformat.read(path, as_version=4), OPTSCHED_DATA=str(shared_data))


@pytest.mark.papers("11_*", "12_*", "13_*", "14_*", "15_*")
@pytest.mark.serving("16_*", "17_*")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_finds_what_it_imports(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    body = [node for source in code for node in ast.parse(source).body]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    exec(compile(ast.Module(imports, []), path.name, "exec"), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_asserts_and_shows_what_it_says(path):
    """Its committed outputs are those of one run from top to bottom, small, without errors."""
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any("assert" in cell.source for cell in code)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [
        each for each in outputs if each.output_type == "error" or "stderr" in each.values()
    ]


def _notebook(*sources):
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _shown(text, page=None):
    """A notebook that has shown a text, and perhaps a page beside it."""
    notebook = _notebook("")
    output = nbformat.v4.new_output("stream", text=text)
    if page is not None:
        data = {"text/plain": text, "text/html": page}
        output = nbformat.v4.new_output("display_data", data=data)
    notebook.cells[0].outputs = [output]
    return notebook


def test_heads_of_tables_are_found(execute):
    of_ours = (
        "title: 3 requests\n\n  policy (best)   mean   p99\n ────────────\n  area    1.5  20%\n"
    )
    assert list(execute.columns(_shown(of_ours))) == [("policy (best)", "mean", "p99")]
    of_pandas = "    rough, mean  p99\nname       \nfcfs  1,000.0  -2e-05\n\nno  table\nis here"
    assert list(execute.columns(_shown(of_pandas))) == [("rough, mean", "p99")]
    page = "<table><thead>\n<tr><th></th><th a='b'>a &lt; b</th></tr></thead><td>1</td></table>"
    assert list(execute.columns(_shown(of_ours, page))) == [("", "a < b")]


def test_other_columns_are_told_and_other_numbers_are_not(execute):
    known, path = _shown("a  b\n1  2\n"), Path("x.ipynb")
    assert list(execute.compare(path, known, _shown("a  b\n3  400.5\n"))) == []
    (said,) = execute.compare(path, known, _shown("a  c\n1  2\n"))
    assert said == "x.ipynb shows a table of ('a', 'c'), where ('a', 'b') is committed"
    (said,) = execute.compare(path, known, _shown("nothing"))
    assert said == "x.ipynb shows 0 tables, where 1 are committed"


def test_outputs_are_of_the_code_that_is_there(execute, tmp_path):
    stamps = [execute.stamp([tmp_path])]
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.json", "2")):
        (tmp_path / name).write_text(text)
        stamps.append(execute.stamp([tmp_path]))
    assert len({*stamps}) == 4
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("")
    assert execute.stamp([tmp_path]) == stamps[-1]
    assert all((folder / "__init__.py").exists() for folder in execute.SOURCES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_notebooks_are_run_once_written_and_compared(execute, tmp_path, monkeypatch, capfd):
    """As `make notebooks` and `make docs` do, with a failure that comes and goes."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, path in (("NOTEBOOKS", folder), ("KEPT", tmp_path / "kept")):
        monkeypatch.setattr(execute, name, path)
    aside = "print('compiling', file=sys.stderr, flush=True)"
    table = f"import sys\nprint('a  b', flush=True)\n{aside}\nprint('1  2')"
    gone = "from IPython.display import display\ndisplay({'text/plain': ''}, raw=True)"
    runs = f"open({str(tmp_path / 'runs')!r}, 'a').write('1')"
    good, bad = folder / "good.ipynb", folder / "bad.ipynb"
    nbformat.write(_notebook(table, gone, runs), good)
    nbformat.write(_notebook("open('here', 'w')", "assert 1 > 2, 'as it must'"), bad)
    before = good.read_bytes()
    with pytest.raises(SystemExit, match=r"bad.ipynb fails: (?s:.*) as it must"):
        execute.main(write=True)
    assert good.read_bytes() == before
    nbformat.write(_notebook("print('x  y')\nprint('1  2')"), bad)
    with pytest.raises(SystemExit) as ended:
        execute.main(write=True)
    assert ended.value.code is None
    assert (tmp_path / "runs").read_text() == "1"  # not again
    assert "bad.ipynb took" in capfd.readouterr().out
    outputs = [cell.outputs for cell in nbformat.read(good, as_version=4).cells]
    assert [[each.text for each in of_cell] for of_cell in outputs[:2]] == [["a  b\n1  2\n"], []]
    for committed, said in (("x  y", None), ("x  z", "'x', 'y'(?s:.*)make notebooks")):
        bad.write_text(bad.read_text().replace('"x  y', f'"{committed}'))
        with pytest.raises(SystemExit, match=said) as ended:
            execute.main(write=False)
        assert bool(ended.value.code) == bool(said)
    (tmp_path / "kept" / "of-older-code").mkdir()
    with pytest.raises(SystemExit):
        execute.main(write=True)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [execute.stamp()]
    assert sys.modules.get("execute") is None
