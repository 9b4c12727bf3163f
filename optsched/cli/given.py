"""What was typed: an option without effect is refused or noted, and one given twice noted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTES = "optsched.notes"  # under which a context keeps them


def only_for(names: str, used: bool, purpose: str, remedy: str = "") -> None:
    """Refuse those of some options that were typed, unless they are used.

    For lines that contradict themselves. Where a script may go through policies, methods or traces
    with the same options, `note_unless` says that one does not count.
    `purpose` completes "--name VALUE is for ..."; `remedy` says how to come to use them.
    """
    if used or not (typed := [each for each in map(_typed, names.split()) if each]):
        return
    flags = " and ".join(each.partition(" ")[0] for each in typed)
    remedy = remedy and f"{remedy}, or "
    raise OptschedError(f"{_named(typed)} for {purpose}; {remedy}leave {flags} out")


def note_unless(used: bool, names: str, purpose: str) -> None:
    """Note those of some options that were typed, unless they are used."""
    if not used and (typed := [each for each in map(_typed, names.split()) if each]):
        effect = "has" if len(typed) == 1 else "have"
        _notes().append(f"{_named(typed)} for {purpose}, and {effect} no effect here")


def note_twice(order: Sequence[click.Parameter]) -> None:
    """Note the options with a value, or with an opposite, that were typed more than once."""
    for each, count in Counter(order).items():
        switch = isinstance(each, click.Option) and each.is_flag and not each.secondary_opts
        if count > 1 and isinstance(each, click.Option) and not switch:
            _notes().append(f"{_flag(each)} was given twice; the last one counts")


def taken_notes() -> list[str]:
    """Return all notes on this command line, and forget them."""
    notes = _notes()
    taken = notes.copy()
    notes.clear()
    return taken


def _notes() -> list[str]:
    notes: list[str] = click.get_current_context().meta.setdefault(_NOTES, [])
    return notes


def _named(typed: Sequence[str]) -> str:
    return f"{' and '.join(typed)} {'is' if len(typed) == 1 else 'are'}"


def _typed(name: str) -> str:
    """Return an option as it was typed, with its value; nothing if it was not."""
    context = click.get_current_context()
    option = next((each for each in context.command.params if each.name == name), None)
    if option is None or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return ""
    value = context.params[name]
    if isinstance(value, bool):
        return option.opts[-1] if value else option.secondary_opts[-1]
    values = value if isinstance(value, list) else [value]
    shown = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
    return f"{_flag(option)} {','.join(shown)}"


def _flag(option: click.Parameter) -> str:
    return next(name for name in reversed(option.opts) if name.startswith("--"))
