"""How commands show themselves: sections, examples, and errors in the words of the options."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import click

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "Policies": ("compare", "simulate", "rolling", "regret", "sweep"),
    "Optima and proofs": ("solve", "bound", "check", "check-certificate"),
    "Models": ("select", "export", "thresholds"),
    "Clusters": ("cluster",),
    "What there is": ("policies", "families"),
    "Papers and this installation": ("reproduce", "doctor"),
}
OPTIONS = {
    "Trace (a CSV file, or family:NAME,n=..; see optsched --help)": (
        "memory",
        "limit",
        "seconds_per_step",
        "skip_invalid",
    ),
    "Results": ("html", "schedules", "log", "certificate", "out", "json_path", "quiet"),
}
_SECTION = {name: section for section, names in OPTIONS.items() for name in names}


def _place(parameter: click.Parameter) -> tuple[int, int]:
    """Say where a parameter stands: a command's own first, the seed last among them."""
    name = parameter.name or ""
    if (section := _SECTION.get(name)) is not None:
        return 1 + list(OPTIONS).index(section), OPTIONS[section].index(name)
    return 0, int(name == "seed")


def examples(*lines: str) -> str:
    """Write an epilog of command lines, which the tests run."""
    return "\n".join(["\b", "Examples:", *(f"  optsched {line}" for line in lines)])


class _Examples(click.Command):
    """A command that ends with its examples, one a line however narrow the terminal."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.epilog:
            formatter.write("\n" + self.epilog.removeprefix("\b\n") + "\n")


class Command(_Examples):
    """A command whose options stand in sections, its own ones first."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.sort(key=_place)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                section = _SECTION.get(parameter.name or "", "Options")
                sections.setdefault(section, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error names options, where Python has arguments of these names."""
        try:
            return super().invoke(ctx)
        except OptschedError as error:
            error.args = (_in_options(str(error), self.params), *error.args[1:])
            raise


def _in_options(sentence: str, parameters: Sequence[click.Parameter]) -> str:
    for parameter in parameters:
        if isinstance(parameter, click.Option) and parameter.name:
            argument = rf"(?:^|(?<=\()){re.escape(parameter.name)}(?= is | leaves |\))"
            sentence = re.sub(argument, parameter.opts[-1], sentence)
    return sentence


class Group(_Examples, click.Group):
    """Commands in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each command."""
        for section, names in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(100)) for name in names]
                )


command = functools.partial(click.command, cls=Command)
