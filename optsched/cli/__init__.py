"""The command line: one command per question, JSON for machines, sentences for people."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

import optsched
from optsched.cli import (
    cluster,
    doctor,
    listing,
    optima,
    policies,
    regret,
    reproduce,
    rolling,
    simulate,
    sweep,
    thresholds,
)
from optsched.cli.common import BAD_INPUT, DONE, INTERRUPTED, NO
from optsched.cli.presentation import Group, examples
from optsched.errors import InfeasibleError, OptschedError, is_interrupt


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "compare family:chat-and-summaries,n=500 --html report.html",
        "compare trace.csv --memory 16492",
        "compare --help",
    ),
)
@click.version_option(optsched.__version__, prog_name="optsched")
def cli() -> None:
    """Scheduling of LLM inference: policies, bounds and optima."""


for module in (
    policies,
    optima,
    cluster,
    simulate,
    rolling,
    thresholds,
    sweep,
    regret,
    reproduce,
    doctor,
    listing,
):
    for command in vars(module).values():
        if isinstance(command, click.Command):
            cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and end the process with one of the four exit codes."""
    try:
        code = cli.main(sys.argv[1:] or ["--help"], "optsched", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt, SystemError) as stop:
        if isinstance(stop, SystemError) and not is_interrupt(stop):
            raise
        click.echo("optsched: interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        click.echo(f"optsched: {_sentence(error)}", err=True)
        code = BAD_INPUT
    except OptschedError as error:
        click.echo(f"optsched: {error}", err=True)
        code = NO if isinstance(error, InfeasibleError) else BAD_INPUT
    except MemoryError:
        click.echo("optsched: out of memory; take fewer requests (--limit) or steps", err=True)
        code = BAD_INPUT
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except FileNotFoundError as error:
        click.echo(f"optsched: there is no {error.filename}; check its name", err=True)
        code = BAD_INPUT
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        click.echo(f"optsched: cannot use{where}: {error.strerror or error}", err=True)
        code = BAD_INPUT
    sys.exit(code)


def _sentence(error: click.ClickException) -> str:
    """Say what is wrong with the command line, and where its help is."""
    message = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message.rstrip('.')}; see {error.ctx.command_path} --help"
    return message
