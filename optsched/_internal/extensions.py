"""Ways up: to the room that draws and prints, and to what rooms above add.

A room says in its `__init__` what it adds; `optsched/__init__.py` lists the rooms that do.
"""

from __future__ import annotations

import re
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import lazy_loader

from optsched._internal.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes


_added: dict[str, dict[str, str]] = {}


def extend(kind: str, **places: str) -> None:
    """Add names of a kind, each with its place, "module:name"."""
    _added.setdefault(kind, {}).update(places)


def names(kind: str) -> list[str]:
    """Return the names that were added."""
    return list(_added.get(kind, {}))


def every(kind: str) -> list[Any]:
    """Return all that was added of a kind."""
    return [added(kind, name) for name in names(kind)]


def added(kind: str, name: str) -> Any:
    """Return what was added under a name."""
    module, _, attribute = _added[kind][name].partition(":")
    return getattr(import_module(module), attribute)


def attach(
    package: str, file: str, kind: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__`, `__all__` of a room: its names, and what rooms above add."""
    load, _, own = lazy_loader.attach_stub(package, file)

    def find(name: str) -> object:
        return added(kind, name) if name in names(kind) else load(name)

    return find, lambda: sorted([*own, *names(kind)]), own


def _view(name: str) -> Any:
    """Load a function of `optsched.report` when something is first looked at."""
    return getattr(import_module("optsched.report"), name)


def draw(plot: str, *arguments: Any, **how: Any) -> Axes:
    """Draw with the plot of that name."""
    return cast("Axes", _view(plot)(*arguments, **how))


def text(table: str, result: Any) -> str:
    """Return a result as the table of that name, as plain text."""
    return cast("str", _view("to_text")(_view(table)(result)))


def html(table: str, result: Any) -> str:
    """Return a result as the table of that name, for a notebook: the body of `_repr_html_`."""
    return cast("str", _view("to_html")(_view(table)(result)))


def write(page: str, path: str | Path, *arguments: Any) -> None:
    """Write the page of that name; the file is whole or not there."""
    write_whole(path, _view(page)(*arguments))


class Shown:
    """What a notebook shows as its text: a title, and a table of what its lines say."""

    def _repr_html_(self) -> str:
        return lines_as_html(str(self))


def lines_as_html(text: str) -> str:
    """Return a line, and below it a table of the others, whose cells are divided by blanks."""
    title, *lines = map(str.strip, text.splitlines())
    rows = [re.split(r"\s{2,}", line) if "  " in line else line.split(" ", 1) for line in lines]
    below = _view("to_html")(_view("lines_table")(rows)) if rows else ""
    return f"<div>{escape(title)}</div>{below}"
