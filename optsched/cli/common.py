"""What all commands share: exit codes, and where output goes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optsched._internal.files import is_replaced, write_whole
from optsched._internal.loading import COMPILING, shown_by
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
LISTED = 10  # rows left out or violations that are printed; JSON has all violations


class Output:
    """Where results go: JSON to a file or to standard output, sentences to the terminal."""

    def __init__(self, json_path: str | None, quiet: bool, html: str | None = None) -> None:
        self._json, self._quiet, self.html = json_path, quiet, html

    def say(self, text: str) -> None:
        """Print for a person, unless standard output belongs to JSON or quiet was asked for."""
        if self._json != "-" and not self._quiet:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print beside the result, on standard error."""
        if not self._quiet:
            click.echo(f"optsched: {text}", err=True)

    def result(self, content: dict[str, Any] | list[Any]) -> None:
        """Write the result as JSON where it was asked for."""
        if self._json == "-":
            click.echo(json.dumps(content))
        elif self._json is not None:
            write_whole(self._json, json.dumps(content) + "\n")

    def show(self, result: Any, content: dict[str, Any] | None = None) -> None:
        """Write a result in all ways that were asked for."""
        if self.html is not None:
            result.to_html(self.html)
        self.say(str(result))
        self.result(result.to_dict() if content is None else content)

    @contextmanager
    def progress(self, text: str = "loading kernels") -> Iterator[Callable[[Any], None]]:
        """Show what is running while it runs, on a terminal only; yields what changes it."""
        if self._quiet:
            with shown_by(lambda: None):
                yield lambda _: None
        elif sys.stderr.isatty():
            from rich.console import Console

            status = Console(stderr=True).status(text)
            with status, shown_by(lambda: status.update(COMPILING)):
                yield lambda news: status.update(str(news))
        else:
            yield lambda _: None


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written before any work is done for it."""
    if (wrong := _why_not(Path(path))) is not None:
        raise OptschedError(f"cannot write {path or repr(path)}: {wrong}")


def _why_not(path: Path) -> str | None:
    """Say why a path cannot be written and what to do; None if it can."""
    if "\0" in str(path):
        return "a name holds no NUL; take it out"
    folder = path.absolute().parent
    if path.is_dir():
        return "it is a folder; name a file in it"
    if not folder.is_dir():
        return f"there is no folder {folder}; create it first"
    if path.exists() and not os.access(path, os.W_OK):
        return "no permission; choose another place"
    if is_replaced(path):
        try:  # what is no permission, such as a file system that is read-only, shows only so
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
        except (OSError, RuntimeError) as error:  # such as links that lead to each other
            return f"{getattr(error, 'strerror', error)}; choose another place"
    return None


def take(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take options out of others."""
    return {name: options.pop(name) for name in names}
