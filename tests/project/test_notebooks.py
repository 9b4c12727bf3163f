"""The notebooks run from top to bottom; each asserts its own headline."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The first shows that notebooks run; the others call what tests of their rooms call as well.
LONG = [pytest.param(path, marks=pytest.mark.long) for path in NOTEBOOKS[1:]]
HELPERS = [str(ROOT / each) for each in ("tests", "papers", "papers/tests")]
BEGIN = """import os, sys
os.chdir({folder!r})
sys.path += {helpers!r}
"""
# The tests of the papers reproduce the same targets: what they have finished is not done again.
SHARE_CELLS = """import quick_targets
quick_targets.share_with_notebooks()
"""


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks, which imports once; each begins with an empty namespace."""
    # The kernel listens on this machine only; that it does so unencrypted is no concern here.
    with warnings.catch_warnings(action="ignore"):
        manager = jupyter_client.KernelManager(kernel_name="python3")
        manager.client_class = "jupyter_client.asynchronous.AsyncKernelClient"
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", [NOTEBOOKS[0], *LONG], ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_notebook_runs(path, tmp_path, kernel):
    notebook = nbformat.read(path, as_version=4)
    begin = BEGIN.format(helpers=HELPERS, folder=str(tmp_path))
    if "optsched_papers" in path.read_text(encoding="utf-8"):
        begin += SHARE_CELLS
    begin += "get_ipython().run_line_magic('reset', '-f')"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    client.execute()
    client.kc.stop_channels()
    del notebook.cells[0]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any("assert" in cell.source for cell in code)
    assert all(cell.execution_count for cell in code if cell.source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_finds_what_it_imports(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    body = [node for source in code for node in ast.parse(source).body]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    exec(compile(ast.Module(imports, []), path.name, "exec"), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small_and_without_errors(path):
    assert path.stat().st_size < 300_000
    outputs = [
        output
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
    ]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
