"""What a command line gives: instances, clocks, files."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from optsched._internal.files import is_replaced, write_whole
from optsched._internal.loading import COMPILING, shown_by
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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


_NOTES = "optsched.notes"  # under which a context keeps them


class Option(click.Option):
    """An option that may count only beside another one: "--nested", "--method a b", "no --clock".

    Without what it `needs` it is refused, without what it counts `beside` that is noted: a script
    may go through policies or models with the same options.
    """

    def __init__(self, *given: Any, needs: str = "", beside: str = "", **more: Any) -> None:
        super().__init__(*given, **more)
        self.needs, self.beside = needs, beside

    def shown(self, value: Any = None) -> str:
        """Return the option as it was typed, with its value; without one, its name."""
        name = next(name for name in reversed(self.opts) if name.startswith("--"))
        if value is None:
            return name
        if isinstance(value, bool):
            return self.opts[-1] if value else self.secondary_opts[-1]
        values = value if isinstance(value, list) else [value]
        shown = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
        return f"{name} {','.join(shown)}"


def check_conditions(values: dict[str, Any]) -> None:
    """Refuse or note options whose conditions are not met by what was typed, and what follows."""
    _check_files()
    context = click.get_current_context()
    values = context.params | values
    unmet: dict[tuple[str, bool], str] = {}
    for option in context.command.params:
        if isinstance(option, Option):
            for condition in filter(None, f"{option.needs},{option.beside}".split(",")):
                if not _is_met(condition, values):
                    key = condition, condition in option.needs
                    unmet[key] = f"{unmet.get(key, '')} {option.name}"
    for (condition, refused), names in unmet.items():
        without = condition.startswith("no ")
        name, *choices = condition.removeprefix("no ").split()
        purpose = f"with{'out' if without else ''} {name} {' or '.join(choices)}".rstrip()
        if refused:
            only_for(names, False, purpose, "" if without else "pass that")
        else:
            note_unless(False, names, purpose)


def _is_met(condition: str, values: dict[str, Any]) -> bool:
    name, *wanted = condition.removeprefix("no ").split()
    value = values[name.removeprefix("--").replace("-", "_")]
    if wanted:
        return not set(wanted).isdisjoint(str(value).replace(" ", "").split(","))
    return (value not in (None, False)) != condition.startswith("no ")


def _check_files() -> None:
    """Refuse an output that would replace an input, or another output, also through a link."""
    context, known = click.get_current_context(), dict[object, str]()
    for each in sorted(context.command.params, key=lambda each: isinstance(each.type, click.Path)):
        if not isinstance(value := context.params[each.name], str):
            continue
        written = isinstance(each.type, click.Path) and value != "-"
        paths = [Path(value)] if written else _files_in(value)
        if each.name == "schedules":
            from optsched.policies import POLICIES

            names = (*POLICIES, *str(context.params["policies"]).split(","))
            paths = [Path(value, f"{name}.json") for name in names]
        for path in paths:
            name = f"{each.opts[-1]} {path}" if written else str(path)
            other = known.setdefault(_identity(path), name)
            if written and other != name and is_replaced(path):
                raise OptschedError(f"{name} is the same file as {other}; write to another one")


def _files_in(text: str) -> Iterator[Path]:
    """List what may be files in a value that was typed, and in the TOML file that it names."""
    yield from map(Path, {text, *text.split(",")})
    if text.endswith(".toml"):
        with suppress(OSError, ValueError):
            for each in re.findall("""["']([^"'\n]+)""", Path(text).read_text(encoding="utf-8")):
                yield from (Path(each), Path(text).parent / each)


def _identity(path: Path) -> object:
    """Return what is equal for two names of one file, which need not be there."""
    with suppress(OSError, ValueError):
        return path.stat().st_dev, path.stat().st_ino
    with suppress(ValueError):
        return os.path.realpath(path)
    return path


def only_for(names: str, used: bool, purpose: str, remedy: str = "") -> None:
    """Refuse those of some options that were typed, unless they are used.

    `purpose` completes "--name VALUE counts only ..."; `remedy` says how to come to use them.
    """
    if used or not (found := typed(names)):
        return
    flags = " and ".join(each.partition(" ")[0] for each in found)
    remedy = remedy and f"{remedy}, or "
    raise OptschedError(f"{_listed(found)} only {purpose}; {remedy}leave {flags} out")


def note_unless(used: bool, names: str, purpose: str) -> None:
    """Note those of some options that were typed, unless they are used."""
    if not used and (found := typed(names)):
        effect = "has" if len(found) == 1 else "have"
        notes().append(f"{_listed(found)} only {purpose}, and {effect} no effect here")


def note_twice(order: Sequence[click.Parameter]) -> None:
    """Note the options with a value, or with an opposite, that were typed more than once."""
    for each, count in Counter(order).items():
        if count < 2 or not isinstance(each, Option) or each.multiple:
            continue
        if each.secondary_opts or not each.is_flag:
            notes().append(f"{each.shown()} was given twice; the last one counts")


def notes() -> list[str]:
    """Return all notes on this command line."""
    found: list[str] = click.get_current_context().meta.setdefault(_NOTES, [])
    return found


def _listed(found: Sequence[str]) -> str:
    return f"{' and '.join(found)} {'counts' if len(found) == 1 else 'count'}"


def typed(names: str) -> list[str]:
    """Return those of some options that were typed, each with its value."""
    context, wanted = click.get_current_context(), names.split()
    return [
        each.shown(context.params[each.name])
        for each in context.command.params
        if isinstance(each, Option)
        and each.name in wanted
        and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    ]
