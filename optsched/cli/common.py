"""What all commands share: where output goes, and how a trace is given."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.instance import Instance

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
TICK = 1e-6  # seconds of a step where arrivals must stay precise
IDLE = 100_000  # steps before the first arrival that are nothing unusual
UNLOADED = 0.01  # load below which the unit of arrivals is doubtful
LISTED = 10  # rows left out or violations that are printed; JSON has all violations

Command = TypeVar("Command", bound=Callable[..., Any])


class Output:
    """Where results go: JSON to a file or to standard output, sentences to the terminal."""

    def __init__(self, json_path: str | None, quiet: bool) -> None:
        self._json = json_path
        self._quiet = quiet
        if json_path not in (None, "-"):
            check_writable(json_path)

    def say(self, text: str) -> None:
        """Print for a person, unless standard output belongs to JSON or quiet was asked for."""
        if self._json != "-" and not self._quiet:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print beside the result, on standard error."""
        if not self._quiet:
            click.echo(f"optsched: {text}", err=True)

    def result(self, content: dict[str, Any] | list[Any]) -> None:
        """Write the result as JSON where it was asked for."""
        if self._json == "-":
            click.echo(json.dumps(content))
        elif self._json is not None:
            Path(self._json).write_text(json.dumps(content) + "\n", encoding="utf-8")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is running while it runs, on a terminal only; gives a function to change it."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console

        with Console(stderr=True).status(text) as status:
            yield status.update


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written before any work is done for it."""
    path = Path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise OptschedError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise OptschedError(f"cannot write {path}: there is no folder {folder}; create it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OptschedError(f"cannot write {path}: no permission; choose another place")


def shared_options(function: Command) -> Command:
    """Add the options that all commands have, and pass on an `Output`."""

    @click.option(
        "--json",
        "json_path",
        metavar="OUT",
        help="Write the result as JSON ('-': to standard output, and nothing else).",
    )
    @click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of all randomness.",
    )
    @click.option("--quiet", is_flag=True, help="Print no table and no notes.")
    @functools.wraps(function)
    def command(*args: Any, json_path: str | None, quiet: bool, **options: Any) -> Any:
        return function(*args, output=Output(json_path, quiet), **options)

    return command  # type: ignore[return-value]


def read_instance(
    output: Output,
    trace: str,
    memory: int | None,
    limit: int | None,
    seconds_per_step: float,
    skip_invalid: bool,
) -> Instance:
    """Read a trace, and note what was left out or converted."""
    from optsched.workloads import read_trace, read_trace_skipping

    with output.progress(f"reading {trace}"):
        if skip_invalid:
            instance, skipped = read_trace_skipping(
                trace, memory, limit=limit, seconds_per_step=seconds_per_step
            )
            for row in skipped[:LISTED]:
                output.note(f"left out {row}")
            output.note(f"left out {len(skipped)} rows, kept {len(instance)}")
        else:
            instance = read_trace(trace, memory, limit=limit, seconds_per_step=seconds_per_step)
    if instance.seconds_per_step not in (None, TICK):
        output.note(f"arrivals in seconds became steps of {instance.seconds_per_step:g} s")
    return instance


def _note_odd_arrivals(output: Output, instance: Instance) -> None:
    """Say where arrivals look like times of day or milliseconds: they are taken as they are."""
    first, last = int(instance.arrivals[0]), int(instance.arrivals[-1])
    idle = IDLE if instance.seconds_per_step is None else 3600 / instance.seconds_per_step
    if first > max(last - first, idle):
        output.note(
            f"the first request arrives at step {first:,}; where these are times of day, subtract "
            "the first one"
        )
    elif last > 0 and instance.seconds_per_step != TICK and instance.load < UNLOADED:
        output.note(
            f"the load is {instance.load:.2g}: hardly any requests meet; arrival counts steps, "
            "arrival_s seconds"
        )


def knowledge_options(function: Command) -> Command:
    """Add what policies may know of the outputs, and by which rule they admit."""
    intervals = click.option(
        "--intervals",
        metavar="I",
        help="What policies may know of outputs: exact, common:L,U, classes:W, relative:X or "
        "column (output_lower, output_upper of TRACE). Default: the outputs.",
    )
    rule = click.option(
        "--rule",
        type=click.Choice(["prefix", "skip", "backfill"]),
        default="prefix",
        show_default=True,
        metavar="R",
        help="When a request does not fit: prefix (none passes it), skip or backfill.",
    )
    return intervals(rule(function))


def clock_options(function: Command) -> Command:
    """Add how long batches take, and which part of a run counts."""
    clock = click.option(
        "--clock",
        metavar="C",
        help="How long batches take: unit, affine:D0,D1, llama-2-70b-2xa100 or llama-2-7b-a100. "
        "Default: steps.",
    )
    until = click.option(
        "--until", type=float, metavar="T", help="On a clock: form no batch from time T on."
    )
    warm_up = click.option(
        "--warm-up",
        type=float,
        default=0.0,
        metavar="T",
        help="On a clock: leave what is before time T out of the metrics.",
    )
    return clock(until(warm_up(function)))


def check_clock_options(clock: str | None, until: float | None, warm_up: float) -> None:
    """Refuse times without a clock, which would have no effect."""
    if clock is None and (until is not None or warm_up):
        raise OptschedError("--until and --warm-up are times on a clock; add --clock")


def trace_options(function: Command) -> Command:
    """Add TRACE and how to read it, and pass on the instance."""

    @click.argument("trace")
    @click.option(
        "--memory", type=int, metavar="M", help="Tokens that the KV cache of the worker holds."
    )
    @click.option("--limit", type=int, metavar="N", help="Take only the first N requests.")
    @click.option(
        "--seconds-per-step",
        type=float,
        default=0.05,
        show_default=True,
        metavar="S",
        help="Length of a step where arrivals are in seconds.",
    )
    @click.option("--skip-invalid", is_flag=True, help="Skip bad rows, and list them.")
    @functools.wraps(function)
    def command(
        *args: Any,
        output: Output,
        trace: str,
        memory: int | None,
        limit: int | None,
        seconds_per_step: float,
        skip_invalid: bool,
        seed: int,
        **options: Any,
    ) -> Any:
        on_clock = options.get("clock") not in (None, "unit")
        if trace.startswith("family:"):
            trace += "" if "seed=" in trace else f",seed={seed}"
            if on_clock and "seconds_per_step=" not in trace:
                trace += f",seconds_per_step={TICK!r}"  # so that a rate is per second
        if on_clock:
            seconds_per_step = TICK
        instance = read_instance(output, trace, memory, limit, seconds_per_step, skip_invalid)
        if not trace.startswith("family:"):
            _note_odd_arrivals(output, instance)
        return function(*args, instance=instance, output=output, **options)

    return command  # type: ignore[return-value]
