"""What is imported by name when it is needed: rooms above, extras, code of the user's."""

from __future__ import annotations

import re
from abc import abstractmethod
from difflib import get_close_matches
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import lazy_loader

from optsched._internal.files import write_whole
from optsched.errors import OptschedError, PolicyError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pandas as pd
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


def draw(plot: str, *arguments: object, **how: Any) -> Axes:
    """Draw with the plot of that name."""
    return cast("Axes", _view(plot)(*arguments, **how))


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
        return draw(self._view[1], self, ax)

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


#: The extra that brings a package.
EXTRAS = {"distributed": "dask", "ipykernel": "notebooks", "pandas": "pandas", "pyarrow": "parquet"}


def need(package: str, purpose: str) -> Any:
    """Import a package that serves a purpose, or say what to install."""
    try:
        return import_module(package)
    except ImportError as error:
        raise OptschedError(
            f"{purpose} needs {package}, which cannot be imported ({error}); run pip install "
            f"'optsched[{EXTRAS[package]}]'"
        ) from None


def data_frame(data: object, **options: object) -> pd.DataFrame:
    """Make a table of pandas."""
    frame: pd.DataFrame = need("pandas", "a table of results").DataFrame(data, **options)
    return frame


def names_module(text: str, known: Iterable[str]) -> bool:
    """Say whether a text is "module:name", and not a known name with parameters."""
    module, colon, name = text.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and name.isidentifier() and module not in known


def imported(text: str, what: str, known: Iterable[str]) -> Any:
    """Return what a module of the user's has under a name, both written as "module:name"."""
    module, _, name = text.partition(":")
    try:
        found = import_module(module)
    except Exception as error:  # code of the user's raises anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            close = get_close_matches(module, known, n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            reason = (
                f"unknown {what} {text!r}: there is no module {error.name!r}{guess}: if it is "
                "yours, add its folder to PYTHONPATH"
            )
        else:
            reason = f"{what} {text!r}: module {module!r} fails when it is imported: {reason}"
        raise PolicyError(reason) from error
    if not hasattr(found, name):
        own = [each for each in vars(found) if not each.startswith("_")]
        raise PolicyError(f"module {module!r} has no {what} {name!r}: {nearest(name, own)}")
    return getattr(found, name)
