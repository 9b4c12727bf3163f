"""The command that runs a file of instances, policies and seeds."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, Output, shared_options
from optsched.cli.presentation import command, examples


@command(
    epilog=examples(
        "sweep sweep.toml --out results",
        "sweep sweep.toml --out results --resume",
    )
)
@shared_options
@click.argument("config")
@click.option("--out", required=True, type=click.Path(), help="Folder of the results (Parquet).")
@click.option(
    "--executor",
    default="local",
    show_default=True,
    metavar="E",
    help="Where it runs: local (processes of this machine) or dask (a cluster).",
)
@click.option("--address", metavar="TCP", help="Dask scheduler, such as tcp://10.0.0.1:8786.")
@click.option(
    "--jobs", type=int, metavar="K", help="Processes of this machine (default: all cores)."
)
@click.option("--resume", is_flag=True, help="Resume with what is in the folder.")
def sweep(config: str, output: Output, out: str, executor: Any, seed: int, **options: Any) -> int:
    """Run instances x policies x seeds of a TOML file."""
    if executor == "dask":
        with contextlib.suppress(ImportError):
            import distributed  # noqa: F401 - sets its loggers up
        # What matters comes as an error of ours, in one sentence.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with output.progress("reading the sweep") as update:
        result = optsched.sweep(
            config,
            out,
            executor,
            seed=seed,
            on_progress=lambda progress: update(str(progress)),
            **options,
        )
    output.say(str(result))
    output.result(result.to_dict())
    if result.status == "interrupted":
        output.note(f"interrupted; --resume does the other {result.runs - result.done:,} runs")
        return INTERRUPTED
    return DONE
