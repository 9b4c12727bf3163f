"""How the documentation site is built: `make docs`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click

sys.path.insert(0, str(Path(__file__).parent))
from execute import KEPT, runnable, stamp

import optsched
from optsched._internal.numbers import proven
from optsched.cli import options

project = "optsched"
author = "The optsched developers"
project_copyright = "the optsched developers; MIT licence"
version = release = optsched.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx-mathjax-offline",  # pages show formulas without a network
    "sphinx_copybutton",
]
# What developers or few readers want stays in the repository alone.
APART = ["architecture.md", "papers/errata-by-paper.md", "papers/results/*.md"]
exclude_patterns = ["_build", "jupyter_execute", *APART]
html_theme = "furo"
html_title = f"optsched {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
# What is shown was computed by this code: `execute.py` has run the notebooks, several at once.
nb_execution_mode = "cache"
nb_execution_cache_path = str(KEPT / stamp())
nb_execution_raise_on_error = True
nb_merge_streams = True

smartquotes_action = "qe"  # two dashes are those of an option

suppress_warnings = ["ref.python"]  # fields of one name, such as `memories`, in several classes

autosummary_generate = True
autodoc_typehints = "none"  # signatures carry them
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
napoleon_custom_sections = [("Yields", "returns_style")]

# What is shown of a public name is where users import it from, not where it is defined.
add_module_names = False

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
#: Folders of the site, and those of the repository that they show if their package is there.
_FOLDERS = {
    "notebooks": (_ROOT / "notebooks", "optsched"),
    "serving": (_ROOT / "serving/docs", "optsched_serving"),
    "papers": (_ROOT / "papers/docs", "optsched_papers"),
}


def _copy_pages(_: object) -> None:
    """Bring in what stands beside docs, where Sphinx finds it."""
    for name, (source, package) in _FOLDERS.items():
        known = runnable() if name == "notebooks" else source.rglob("*.*")
        files = {each.relative_to(source) for each in known if find_spec(package)}
        for file in files:
            copy = _HERE / name / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists() or copy.read_bytes() != (source / file).read_bytes():
                shutil.copyfile(source / file, copy)
        for copy in (_HERE / name).rglob("*.*"):
            if copy.relative_to(_HERE / name) not in files:
                copy.unlink()


_LINK = re.compile(r"(?<!!)\[([^]]+)\]\(([^)\s:#]+\.\w+)(#[\w-]+)?\)")


def _link_pages(_: object, page: str, source: list[str]) -> None:
    """Let links in the repository lead to pages of the site, or to the file of one apart."""
    shown = _HERE / page
    own = _FOLDERS[page.split("/")[0]][0] if page.split("/")[0] in _FOLDERS else None
    written = shown if own is None else own / shown.relative_to(_HERE / page.split("/")[0])

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found.groups()
        target = (written.parent / path).resolve()
        for name, (folder, _) in _FOLDERS.items():
            if not target.is_relative_to(folder):
                continue
            if (copy := _HERE / name / target.relative_to(folder)).exists():
                target = copy
        place = os.path.relpath(target, shown.parent)
        apart = any(target.match(f"docs/{each}") for each in APART)
        if target.suffix in (".md", ".ipynb") and target.is_relative_to(_HERE) and not apart:
            return f"[{text}]({place}{anchor or ''})"
        # A target of the papers by its name is one of many, and named alone.
        return f"`{text}`" if anchor == f"#{text}" else f"[{text}](path:{place})"

    text = _LINK.sub(link, source[0])
    for name, (_, package) in _FOLDERS.items():  # of what is not installed there are no pages
        text = text if find_spec(package) else text.replace(f"\n{name}/*\n", "\n")
    source[0] = text


def _set_examples(_: object, __: object, epilog: list[str]) -> None:
    """Show the examples of a command as code."""
    if epilog:
        lines = [line.strip("| ") for line in epilog]  # of a block of lines, so far
        epilog[:] = [".. rubric:: Examples", "", ".. code-block:: text", ""]
        epilog += [f"    {line}" for line in lines if line.startswith("optsched ")]


_SHARED = {
    "All commands": options.ALL,
    "Commands with TRACE": options.TRACE[1:],
    "What policies may know (`compare`, `simulate`, `rolling`)": options.KNOWLEDGE,
    "On a clock (`compare`, `simulate`)": options.CLOCK,
    "Reports, logs, processes": (options.HTML, options.LOG, options.JOBS),
}


def _list_shared_options(_: object, page: str, source: list[str]) -> None:
    """Write what several commands take once, in the place of a mark."""
    if page != "reference/cli":
        return
    lines = ["| option | |", "|---|---|"]
    for title, group in _SHARED.items():
        lines.append(f"| **{title}** | |")
        for option in group:
            assert isinstance(option, click.Option)
            default = f" Default: {option.default}." if option.show_default else ""
            shown = option.opts[0] + ("" if option.is_flag else f" {option.metavar}")
            lines.append(f"| `{shown}` | {option.help}{default} |")
    source[0] = source[0].replace("SHARED_OPTIONS", "\n".join(lines))


def _list_records(_: object, page: str, source: list[str]) -> None:
    """Write what is known of the instances of the library in the place of a mark."""
    if page != "library":
        return
    lines = ["| instance | best known | found by | bound | proven by | gap |"]
    lines.append("|---|--:|---|--:|---|--:|")
    for each in optsched.library().values():
        unit = "" if each.clock is None else " s"
        cells = [
            *(f"`{each.name}`", f"{each.objective:,.10g}{unit}", str(each.schedule_by)),
            *(f"{proven(each.bound, digits=10)}{unit}", str(each.bound_by), each.standing),
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("optimal |", "**optimal** |"))
    source[0] = source[0].replace("<!-- RECORDS -->", "\n".join(lines))


def _leave_out_shared_options(_: object, context: click.Context, lines: list[str]) -> None:
    """Name the options of a command that stand in the table of shared ones."""
    table = [option for group in _SHARED.values() for option in group]
    shared = [each.opts[0] for each in context.command.params if each in table]
    shown, own = True, []
    for line in lines:
        if line.startswith(".. option:: "):
            shown = line.split()[2].rstrip(",") not in shared
        if shown:
            own.append(line)
    if shared:
        names = ", ".join(f"``{name}``" for name in sorted(shared))
        own += ["", f"Shared: {names}.", ""]
    lines[:] = own


def _describe_data(_: object, what: str, name: str, *rest: object) -> None:
    """Say what a mapping holds instead of what a dictionary is."""
    if what == "data" and name in ("optsched.POLICIES", "optsched.problem.workers.ROUTERS"):
        lines = cast("list[str]", rest[-1])
        lines[:] = [f"All {name.rpartition('.')[2].lower()} that have a name, by that name.", ""]


def setup(app: object) -> None:
    """Register these with Sphinx."""
    app.connect("builder-inited", _copy_pages)  # type: ignore[attr-defined]
    app.connect("source-read", _link_pages)  # type: ignore[attr-defined]
    app.connect("source-read", _list_shared_options)  # type: ignore[attr-defined]
    app.connect("source-read", _list_records)  # type: ignore[attr-defined]
    app.connect("sphinx-click-process-options", _leave_out_shared_options)  # type: ignore[attr-defined]
    app.connect("sphinx-click-process-epilog", _set_examples)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", _describe_data)  # type: ignore[attr-defined]
