"""How results are shown: the only way to `optsched.report`, which loads when it is looked at."""

from __future__ import annotations

import re
from abc import abstractmethod
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from optsched._internal.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes


def _view(name: str) -> Any:
    """Load a function of `optsched.report` when something is first looked at."""
    return getattr(import_module("optsched.report"), name)


def draw(plot: str, *arguments: object, **how: Any) -> Axes:
    """Draw with the plot of that name."""
    axes = cast("Axes", _view(plot)(*arguments, **how))
    vars(axes.figure.figure)["shows"] = arguments[0]  # for `save_figure`
    return axes


def text(table: str, result: object) -> str:
    """Return a result as the table of that name, as plain text."""
    return cast("str", _view("to_text")(_view(table)(result)))


def html(table: str, result: object) -> str:
    """Return a result as the table of that name, for a notebook: the body of `_repr_html_`."""
    return cast("str", _view("to_html")(_view(table)(result)))


def write(page: str, path: str | Path, *arguments: object) -> None:
    """Write the page of that name; the file is whole or not there."""
    write_whole(path, _view(page)(*arguments))


class View:
    """A result that is shown as a table, a plot and a page of `optsched.report`."""

    @property
    @abstractmethod
    def _view(self) -> tuple[str, str, str]:
        """Names of table, plot and page."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot it, on the given axes or a new figure."""
        return draw(self._view[1], self, ax=ax)

    def to_html(self, path: str | Path) -> None:
        """Write it as one HTML file that needs no network."""
        write(self._view[2], path, self)

    def _repr_html_(self) -> str:
        return html(self._view[0], self)


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
