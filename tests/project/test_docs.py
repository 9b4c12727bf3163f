"""What README and docs tell the reader to type works, and their links lead somewhere."""

import ast
import builtins
import dis
import doctest
import functools
import importlib
import inspect
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from optsched import report

mpl.use("Agg")

ROOT = Path(__file__).resolve().parents[2]
SITE = {"docs": ROOT / "docs", "serving": ROOT / "serving/docs", "papers": ROOT / "papers/docs"}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in SITE for page in sorted(SITE[name].rglob("*.md"))),
]
COPIES = {ROOT / "docs" / name for name in ("_build", "serving", "papers")}
PAGES = [page for page in PAGES if not COPIES & {*page.parents}]
APART = [*ROOT.glob("benchmarks/*.md"), *ROOT.glob("tests/**/*.md")]  # beside what they are of
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Pages whose code takes more than three seconds; tests of the rooms call what it calls.
LONG = {"docs/fluid.md", "docs/gallery.md", "docs/uncertainty.md", "docs/workers.md"}
CODE = re.compile(r"```.*?```|`[^`\n]+`", flags=re.DOTALL)


def _ids(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


@functools.cache
def _text(page):
    """Return a page, or what a notebook says beside its code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@functools.cache
def _anchors(page):
    """Name the headings of a page as GitHub and the site do."""
    headings = re.findall(
        r"^#+ +(.+)$", re.sub(r"```.*?```", "", _text(page), flags=re.DOTALL), re.M
    )
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


WITH_CODE = [
    pytest.param(page, id=name, marks=[pytest.mark.long] * (name in LONG))
    for name, page in zip(_ids(PAGES), PAGES, strict=True)
    if "```python" in _text(page)
]


@pytest.mark.slow
@pytest.mark.serving("docs/seconds.md", "docs/gallery.md", "serving/*")
@pytest.mark.parametrize("page", WITH_CODE)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", _text(page), flags=re.DOTALL):
        exec(compile(block, f"{page.name}: {block.splitlines()[0]}", "exec"), namespace)
        pyplot.close("all")
    for name, each in namespace.items():  # what no block calls must be complete, too
        code = getattr(each, "__code__", None)
        if code is not None and code.co_filename.startswith(page.name):
            missing = _globals_of(code) - namespace.keys() - vars(builtins).keys()
            assert not missing, f"{page.name}: {name} reads {missing}"


def _globals_of(code):
    """Return the names that code reads from around it, inner functions included."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if hasattr(each, "co_consts"))
    return own.union(*map(_globals_of, inner))


def test_the_page_on_solve_lists_its_stages():
    from optsched.optimum.plan import STAGES

    page = (ROOT / "docs/how-solve-works.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {each.what} | {each.when} | {each.budget} |" for each in STAGES]


def _imported(code):
    """Name what code takes from optsched, with its module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("optsched"):
            yield from ((node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "optsched":
            yield "optsched", node.attr


def _examples():
    """Return the code of all pages but those of papers, and the examples of all docstrings."""
    for page in PAGES:
        if SITE["papers"] not in page.parents:
            yield from re.findall(r"```python\n(.*?)```", _text(page), re.DOTALL)
    for file in [*ROOT.glob("optsched/**/*.py"), *ROOT.glob("serving/optsched_serving/**/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
                yield "".join(each.source for each in found)


@pytest.mark.serving
def test_the_reference_has_all_that_pages_and_examples_use():
    listed = r"^\.\. auto\w+:: ([\w.]+)$"
    known = {
        name.split(".")[-1] for page in PAGES for name in re.findall(listed, _text(page), re.M)
    }
    used = {
        (module, name)
        for code in _examples()
        for module, name in _imported(code)
        if "_internal" not in module and not module.startswith("optsched_papers")
    }
    missing = [
        f"{module}.{name}"
        for module, name in sorted(used)
        if name not in known
        and not inspect.ismodule(getattr(importlib.import_module(module), name, None))
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing


def test_links_lead_somewhere():
    lost = []
    for page in [*PAGES, *APART, *NOTEBOOKS]:
        for target in re.findall(r"\]\(([^)\s]+)", CODE.sub("", _text(page))):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            known = found.exists() and (not anchor or anchor in _anchors(found))
            if "://" not in target and not known:
                lost.append(f"{page.name} links to {target}")
    assert lost == []


def _on_site(page):
    """Return where a page stands on the site, below docs."""
    name, folder = next(each for each in SITE.items() if each[1] in page.parents)
    return Path("" if name == "docs" else name, page.relative_to(folder))


def test_every_page_is_in_the_contents():
    pages = {_on_site(page): page for page in PAGES if page.parent != ROOT}
    patterns = [
        (place.parent / name).as_posix()
        for place, page in pages.items()
        for contents in re.findall(r"```{toctree}\n(.*?)```", _text(page), flags=re.DOTALL)
        for name in contents.splitlines()
        if name and name[0] != ":"
    ]
    listed = {page for page in pages if any(page.with_suffix("").match(each) for each in patterns)}
    # What is not on the site is named in its settings, and a page of the site links to it.
    settings = _text(ROOT / "docs" / "conf.py")
    apart = ast.literal_eval(re.search(r"^APART = (.+)$", settings, re.MULTILINE)[1])
    missing = {page for page in pages if any(page.match(each) for each in apart)}
    assert missing == pages.keys() - (listed - missing) - {Path("index.md")}
    links = {
        (page.parent / target.partition("#")[0]).resolve()
        for place, page in pages.items()
        if place not in missing
        for target in re.findall(r"\]\(([^)\s]+)", _text(page))
    }
    assert {pages[each] for each in missing} <= links


def test_every_picture_is_shown():
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for folder in SITE.values():
        for picture in (folder / "images").glob("*.png"):
            assert f"images/{picture.name})" in shown


def test_the_gallery_shows_every_plot_by_the_code_above_it():
    pages = ROOT / "docs/gallery.md", ROOT / "serving/docs/capacity.md"
    page = "".join(each.read_text(encoding="utf-8") for each in pages)
    assert not [name for name in report.__all__ if name.startswith("plot_") and name not in page]
    folders = [each.parent / "images" for each in pages]
    pictures = sorted(each.name for folder in folders for each in folder.glob("gallery-*.png"))
    drawn = re.findall(r"```\n\n!\[.+\]\(images/(.*)\)", page)
    assert sorted(drawn) == pictures
