"""The one way up from a result to the room that draws and prints it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from optsched._internal.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes


def _view(name: str) -> Any:
    """Load a function of `optsched.report` when something is first looked at."""
    return getattr(import_module("optsched.report"), name)


def draw(plot: str, *arguments: Any) -> Axes:
    """Draw with the plot of that name."""
    return cast("Axes", _view(plot)(*arguments))


def text(table: str, result: Any) -> str:
    """Return a result as the table of that name, as plain text."""
    return cast("str", _view("to_text")(_view(table)(result)))


def html(table: str, result: Any) -> str:
    """Return a result as the table of that name, for a notebook: the body of `_repr_html_`."""
    return cast("str", _view("to_html")(_view(table)(result)))


def write(page: str, path: str | Path, *arguments: Any) -> None:
    """Write the page of that name; the file is whole or not there."""
    write_whole(path, _view(page)(*arguments))
