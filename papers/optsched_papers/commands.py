"""The commands that the papers add to `optsched`: reproduce and competitive-ratio."""

from __future__ import annotations

import math
from typing import Any

import click

from optsched.cli.options import (
    DONE,
    INTERRUPTED,
    JOBS,
    Options,
    Output,
    command,
    flag,
    only_for,
    option,
    take,
)
from optsched.errors import OptschedError


def _list_targets(output: Output) -> None:
    """Print all targets with the verdicts on them that this version came with."""
    from optsched_papers import TARGETS
    from optsched_papers.stored import NOT_RUN, count_labels, last_verdicts

    last = last_verdicts()
    entries = [
        {"target": name, "title": target.title, "version": target.version}
        | (found := last.get(name, NOT_RUN))
        | {"qualified": target.qualified(found["verdict"], found["reason"])}
        | {"holds_if": target.holds_if}
        for name, target in TARGETS.items()
    ]
    for entry in entries:
        note = " (quick)" if entry["quick"] else ""
        output.say(f"{entry['target']:24} {entry['qualified'] + note:33} {entry['title']}")
    output.say(f"\n{len(entries)} targets: {count_labels(entries)}")
    output.result(entries)


@command(
    click.Argument(["names"], nargs=-1, metavar="NAME..."),
    flag("--list listing", "List all targets, with the last verdicts."),
    option("--out DIR", click.Path(), "Folder of the results."),
    flag("--quick", "Seconds instead of minutes: fewer, smaller runs."),
    JOBS,
    option("--seed N", 0, "Seed of all randomness."),
    flag("--overwrite", "Replace results that are in the folder.", is_eager=True),
    runs=("reproduce --list", "reproduce sorted-f-example-1 --quick --out results"),
)
def reproduce(output: Output, given: Options) -> int:
    """Regenerate tables and figures of the papers."""
    from optsched_papers import TARGETS, reproduce_into
    from optsched_papers.driver import describe, get_target

    names, listing, out = take(given, "names listing out").values()
    if listing:
        if names:
            raise OptschedError(f"--list names all targets; leave {' '.join(names)} or --list out")
        only_for("out quick jobs seed overwrite", False, "where targets run, and --list runs none")
        _list_targets(output)
        return DONE
    if not names:
        raise OptschedError("no target is named; name some, or all, or see --list")
    chosen = list(TARGETS) if names == ("all",) else list(dict.fromkeys(names))
    for name in chosen:
        get_target(name)
    if out is None:
        raise OptschedError("there is no folder for the results; name one with --out")
    results: list[dict[str, Any]] = []

    def keep(result: dict[str, Any]) -> None:
        results.append(result)
        output.say(describe(result) + "\n")

    code = DONE
    with output.progress(f"reproducing {chosen[0]}") as update:
        try:
            reproduce_into(chosen, out, on_progress=update, on_result=keep, **given)
        except KeyboardInterrupt:
            code = INTERRUPTED
            done = f"{len(results)} of {len(chosen)} targets"
            output.note(f"interrupted after {done}; the same command resumes where it stopped")
    if code == DONE or results:
        output.result(results[0] if len(chosen) == 1 else {"targets": results})
    return code


@command(
    click.Argument(["upper"], type=int, metavar="U"),
    option("--lower L", 1, "Shortest output that may occur."),
    option("--prompt S", 0, "Prompt of all requests, in tokens."),
    runs=("competitive-ratio 1000", "competitive-ratio 1000 --lower 10 --prompt 41"),
)
def competitive_ratio(output: Output, given: Options) -> int:
    """Prove how much A_min can cost relative to H-SF."""
    from optsched_papers import CompetitiveRatio

    ratio = CompetitiveRatio(**given)
    with output.progress("proving"):
        output.say(str(ratio))
    # The nearest float may lie beyond a proven bound; the next one does not.
    output.result(
        take(given, "lower upper prompt")
        | {
            "at_least": math.nextafter(float(ratio.lower_bound), 0),
            "at_most": math.nextafter(float(ratio.upper_bound), math.inf),
            "eigenvalue": ratio.eigenvalue,
            "trace_bound": ratio.trace_bound,
        }
    )
    return DONE
