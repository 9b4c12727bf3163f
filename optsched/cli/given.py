"""What was typed: an option without any effect is refused, and one given twice is noted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Under which a context keeps the options that were typed more than once.
TWICE = "optsched.typed_twice"


def only_for(names: str, used: bool, purpose: str, remedy: str = "") -> None:
    """Refuse those of some options that were typed, unless they are used.

    `purpose` completes "--name VALUE is for ..."; `remedy` says how to come to use them.
    """
    if used or not (typed := [each for each in map(_typed, names.split()) if each]):
        return
    flags = " and ".join(each.partition(" ")[0] for each in typed)
    verb, remedy = "is" if len(typed) == 1 else "are", remedy and f"{remedy}, or "
    raise OptschedError(f"{' and '.join(typed)} {verb} for {purpose}; {remedy}leave {flags} out")


def is_given(name: str) -> bool:
    """Whether an option was typed."""
    context = click.get_current_context()
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _typed(name: str) -> str:
    """Return an option as it was typed, with its value; nothing if it was not."""
    context = click.get_current_context()
    option = next((each for each in context.command.params if each.name == name), None)
    if option is None or not is_given(name):
        return ""
    value = context.params[name]
    if isinstance(value, bool):
        return option.opts[-1] if value else option.secondary_opts[-1]
    values = value if isinstance(value, list) else [value]
    shown = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
    return f"{_flag(option)} {','.join(shown)}"


def typed_twice(order: Sequence[click.Parameter]) -> list[str]:
    """Return the options with a value, or with an opposite, that were typed more than once."""
    return [
        _flag(each)
        for each, count in Counter(order).items()
        if count > 1
        and isinstance(each, click.Option)
        and (not each.is_flag or each.secondary_opts)
    ]


def _flag(option: click.Parameter) -> str:
    return next(name for name in reversed(option.opts) if name.startswith("--"))
