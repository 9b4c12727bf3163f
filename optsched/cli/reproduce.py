"""The command that regenerates the papers' tables and figures."""

from __future__ import annotations

from typing import Any

import click

from optsched.cli.common import DONE, INTERRUPTED, Output, shared_options
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
@click.option("--quick", is_flag=True, help="Seconds instead of minutes: fewer, smaller runs.")
@click.option("--jobs", type=int, metavar="K", help="Processes (default: all cores).")
@click.option("--overwrite", is_flag=True, help="Replace results that are in the folder.")
def reproduce(
    names: tuple[str, ...], output: Output, listing: bool, out: str | None, **options: Any
) -> int:
    """Regenerate tables and figures of the papers."""
    from optsched.papers import TARGETS, reproduce_into
    from optsched.papers.driver import describe

    if listing:
        for name, target in TARGETS.items():
            output.say(f"{name:28} {target.title}")
        output.result([{"target": name, "title": each.title} for name, each in TARGETS.items()])
        return DONE
    if not names:
        raise OptschedError("no target is named; name some, or all, or see --list")
    if out is None:
        raise OptschedError("there is no folder for the results; name one with --out")
    chosen = list(TARGETS) if names == ("all",) else list(dict.fromkeys(names))
    results: list[dict[str, Any]] = []

    def keep(result: dict[str, Any]) -> None:
        results.append(result)
        output.say(describe(result) + "\n")

    code = DONE
    with output.progress(f"reproducing {chosen[0]}") as update:
        try:
            reproduce_into(
                chosen,
                out,
                on_progress=lambda progress: update(str(progress)),
                on_result=keep,
                **options,
            )
        except KeyboardInterrupt:
            code = INTERRUPTED
            done = f"{len(results)} of {len(chosen)} targets"
            output.note(f"interrupted after {done}; the same command resumes where it stopped")
    if code == DONE or results:
        output.result(results[0] if len(chosen) == 1 else {"targets": results})
    return code
