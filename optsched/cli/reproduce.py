"""The command that makes the papers' tables and figures anew."""

from __future__ import annotations

from typing import Any

import click

from optsched.cli.common import DONE, Output, shared_options
from optsched.cli.presentation import command, examples
from optsched.errors import OptschedError


@command(
    epilog=examples(
        "reproduce --list",
        "reproduce sorted-f-example-1 --quick --out results",
    )
)
@shared_options
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--list", "listing", is_flag=True, help="List all targets.")
@click.option("--out", type=click.Path(), help="Folder of the results.")
@click.option("--quick", is_flag=True, help="Seconds in place of minutes: fewer, smaller runs.")
@click.option("--workers", type=int, metavar="K", help="Processes (default: all cores).")
@click.option("--overwrite", is_flag=True, help="Replace results that are in the folder.")
def reproduce(
    names: tuple[str, ...], output: Output, listing: bool, out: str | None, **options: Any
) -> int:
    """Make tables and figures of the papers anew.

    NAME is one that --list shows, or all. Each gets a table (CSV), a plot (PNG) and the paper's
    values beside ours with verdicts (JSON); index.html shows them all. Ctrl-C loses no finished
    part: the same command goes on where it stopped.
    """
    from optsched.reproduction import TARGETS, reproduce_into
    from optsched.reproduction.driver import describe

    if listing:
        for name, target in TARGETS.items():
            output.say(f"{name:28} {target.title}")
        output.result([{"target": name, "title": each.title} for name, each in TARGETS.items()])
        return DONE
    if not names:
        raise OptschedError("no target is named; name some, or all, or see --list")
    if out is None:
        raise OptschedError("there is no place for the results; name a folder with --out")
    chosen = list(TARGETS) if names == ("all",) else list(dict.fromkeys(names))
    with output.progress(f"reproducing {chosen[0]}") as update:
        results = reproduce_into(
            chosen,
            out,
            on_progress=update,
            on_result=lambda result: output.say(describe(result) + "\n"),
            **options,
        )
    output.result(results[0] if len(results) == 1 else {"targets": results})
    return DONE
