"""The command that compares online policies with the optimum in hindsight."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, Output, check_writable, shared_options
from optsched.cli.presentation import command, examples
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)


def _numbers(text: str, option: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise OptschedError(f"{option} is {text!r}, but must be {what} with commas") from None


@command(
    epilog=examples(
        "regret family:equal-prompts --horizons 100,1000 --seeds 2",
        "regret trace.csv --memory 16492 --horizons 300,1000 --seeds 2 --html report.html",
    )
)
@shared_options
@click.argument("source", metavar="TRACE")
@click.option(
    "--memory", type=int, metavar="M", help="Tokens that the KV cache of the worker holds."
)
@click.option(
    "--policies", default="mc-sf,area", show_default=True, metavar="A,B", help="Online policies."
)
@click.option(
    "--loads",
    default="0.8,1.2",
    show_default=True,
    metavar="L,..",
    help="Loads: memory-time that arrives per step over the memory.",
)
@click.option(
    "--horizons",
    metavar="T,..",
    help="Steps in which requests arrive (default: 100,1000,10000, or more if requests are rare).",
)
@click.option(
    "--seeds",
    type=int,
    default=5,
    show_default=True,
    metavar="K",
    help="Seeds per load and horizon.",
)
@click.option(
    "--time-limit",
    type=float,
    default=0.0,
    show_default=True,
    metavar="S",
    help="Seconds of hindsight search per instance of up to 20,000 requests.",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="X",
    help="Growth per tenfold horizon that does not count (default: 5 % of the mean output).",
)
@click.option(
    "--threshold", is_flag=True, help="Find the load at which each policy becomes overloaded."
)
@click.option("--jobs", type=int, metavar="K", help="Processes (default: all cores).")
@click.option("--html", type=click.Path(), help="Write a report that needs no network.")
def regret(
    output: Output,
    source: str,
    policies: str,
    loads: str,
    horizons: str | None,
    seeds: int,
    seed: int,
    threshold: bool,
    html: str | None,
    **options: Any,
) -> int:
    """Compare online policies with the optimum in hindsight."""
    from optsched.experiments.regrets import overload_threshold

    if html is not None:
        check_writable(html)
    names = policies.split(",")
    all_seeds = range(seed, seed + seeds) if seeds > 0 else seeds
    with output.progress("loading kernels (compiling them, the first time)") as update:
        result = optsched.regret(
            source,
            names,
            _numbers(loads, "--loads", float),
            None if horizons is None else _numbers(horizons, "--horizons", int),
            all_seeds,
            on_progress=lambda progress: update(str(progress)),
            **options,
        )
        code = DONE if result.status == "complete" else INTERRUPTED
        try:
            for name in names if threshold and code == DONE else []:
                update(f"searching the threshold of {name}")
                first = range(seed, seed + 3)
                found = overload_threshold(source, name, memory=options["memory"], seeds=first)
                result = replace(result, thresholds=(*result.thresholds, found))
        except KeyboardInterrupt:
            code = INTERRUPTED
    if html is not None:
        result.to_html(html)
    output.say(str(result))
    output.result(result.to_dict())
    if code == INTERRUPTED:
        output.note(f"interrupted; {len(result.cells)} instances were finished")
    return code
