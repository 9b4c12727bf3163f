"""All commands of the command line, by name: those that the papers add, too."""

import click

from optsched.cli import cli

_CONTEXT = click.Context(cli)
COMMANDS = {name: cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)}
