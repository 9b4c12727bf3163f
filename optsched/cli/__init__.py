"""The command line: one command per question, JSON for machines, sentences for people."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn

import click

import optsched
from optsched._internal.rooms import elsewhere
from optsched.cli import installation, optima, policies
from optsched.cli.options import BAD_INPUT, DONE, INTERRUPTED, NO, Examples, examples
from optsched.errors import InfeasibleError, OptschedError, is_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoints

_SECTIONS = {
    "Policies": (
        policies.compare,
        policies.simulate,
        policies.rolling,
        policies.regret,
        policies.sweep,
    ),
    "Optima and proofs": (optima.solve, optima.bound, optima.check),
    "Models": (optima.select, optima.export, optima.thresholds, optima.throughput),
    "Several workers": (policies.route, policies.cluster),
    "What there is": (installation.policies, installation.families, installation.library),
    "This installation": (installation.doctor,),
}
_ADDED = "optsched.commands"  # entry points with commands of other distributions
_HEADINGS = {"optsched-serving": "Serving", "optsched-papers": "Papers"}


def _added() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=_ADDED)


class _Group(Examples, click.Group):
    """Commands in sections, and those that other distributions add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(each.name for each in _added())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if (ours := super().get_command(ctx, name)) is not None:
            return ours
        for each in _added().select(name=name):
            command: click.Command = each.load()
            return command
        if name in ("check-certificate", "verify"):  # as it was called, and as Python calls it
            raise OptschedError(f"{name} is part of check: optsched check TRACE FILE")
        if sentence := elsewhere(name):
            raise OptschedError(sentence)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Command]] = {k: [*of] for k, of in _SECTIONS.items()}
        for each in sorted(_added(), key=lambda each: each.name):
            name = "" if each.dist is None else each.dist.name
            if command := self.get_command(ctx, each.name):
                sections.setdefault(_HEADINGS.get(name, name), []).append(command)
        for section, commands in sections.items():
            with formatter.section(section):
                formatter.write_dl([(str(c.name), c.get_short_help_str(100)) for c in commands])


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        [
            "compare family:chat-and-summaries,n=500 --html report.html",
            "compare trace.csv --memory 16492",
            "compare --help",
        ]
    ),
)
@click.version_option(optsched.__version__, prog_name="optsched")
def cli() -> None:
    """Scheduling of LLM inference: policies, bounds and optima."""


for command in (command for section in _SECTIONS.values() for command in section):
    cli.add_command(command)


def main(begin: Callable[[], object] = lambda: None) -> NoReturn:
    """Run the command line and end the process with one of the four exit codes.

    `begin` lets Ctrl-C raise KeyboardInterrupt, from where it is heard on.
    """
    code, sentence = BAD_INPUT, None
    try:
        begin()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # whose encoding may not have every character
                stream.reconfigure(errors="replace")
        code = cli.main(sys.argv[1:] or ["--help"], "optsched", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, SystemError, RuntimeError) as stop:  # click.Abort is one of them
        if not isinstance(stop, click.Abort) and not is_interrupt(stop):
            raise
        code, sentence = INTERRUPTED, "interrupted"
    except click.ClickException as error:
        sentence = error.format_message()
        if spaced := re.search(r"\S+(, [^\s-]\S*)+", " ".join(sys.argv[1:])):
            sentence = f"a list has no spaces; write {spaced[0].replace(', ', ',')}"
        elif isinstance(error, click.UsageError) and error.ctx is not None:
            sentence = f"{sentence.rstrip('.')}; see {error.ctx.command_path} --help"
    except OptschedError as error:
        code, sentence = NO if isinstance(error, InfeasibleError) else BAD_INPUT, str(error)
    except MemoryError:
        sentence = "out of memory; take fewer requests (--limit) or steps"
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except FileNotFoundError as error:
        sentence = f"there is no {error.filename}; check its name"
    except OSError as error:
        where = error.filename or "standard output"
        sentence = f"cannot use {where}: {error.strerror or error}"
    if sentence is not None:
        click.echo(f"optsched: {sentence}", err=True)
    sys.exit(code)
