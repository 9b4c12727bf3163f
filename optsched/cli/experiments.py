"""Commands that run many instances: regret and sweeps."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, Output, check_writable
from optsched.cli.given import only_for
from optsched.cli.options import HTML, JOBS, MEMORY, Numbers, command, flag, option, path

RESUME = flag("--resume", "Resume with what is in the folder.")


@command(
    click.Argument(["source"], metavar="TRACE"),
    MEMORY,
    option("--policies A,B", "mc-sf,area", "Online policies."),
    option(
        "--loads L,..",
        Numbers(float),
        "Loads: memory-time that arrives per step, as a share of the memory.",
        default="0.8,1.2",
    ),
    option(
        "--horizons T,..",
        Numbers(int),
        "Steps in which requests arrive (default: 100,1000,10000, or more if requests are rare).",
    ),
    option("--seeds K", 5, "Seeds per load and horizon."),
    option(
        "--clock C",
        str,
        "Measure horizons, regret and load (the work that arrives) on this clock, in seconds.",
    ),
    option(
        "--time-limit S", 0.0, "Seconds of hindsight search per instance of up to 20,000 requests."
    ),
    option(
        "--tolerance X",
        float,
        "Growth per tenfold horizon that still passes as bounded (default: 5 % of mean output).",
    ),
    flag("--threshold", "Find the load at which each policy becomes overloaded."),
    JOBS,
    RESUME,
    path("--out", "Keep each instance in this folder."),
    HTML,
    runs=(
        "regret family:equal-prompts --horizons 100,1000 --seeds 2",
        "regret trace.csv --memory 16492 --horizons 300,1000 --seeds 2 --html report.html",
        "regret trace.csv --memory 16492 --clock llama-2-70b-2xa100 --horizons 100,300 --seeds 2",
    ),
)
def regret(
    output: Output,
    source: str,
    policies: str,
    seeds: int,
    seed: int,
    threshold: bool,
    out: str | None,
    resume: bool,
    html: str | None,
    **options: Any,
) -> int:
    """Compare online policies with the optimum in hindsight."""
    from optsched.experiments.regrets import overload_threshold, regret_into
    from optsched.policies import split_names

    check_writable(html)
    only_for("resume", out is not None, "results that are kept in a folder", "name it with --out")
    in_steps = options["clock"] is None
    only_for("threshold time_limit", in_steps, "regret in steps, which --clock does not count")
    names = split_names(policies)
    options["seeds"] = range(seed, seed + seeds) if seeds > 0 else seeds
    with output.progress() as update:
        if out is None:
            result = optsched.regret(source, names, on_progress=update, **options)
        else:
            result = regret_into(out, source, names, resume=resume, on_progress=update, **options)
        code = DONE if result.status == "complete" else INTERRUPTED
        try:
            for name in names if threshold and code == DONE else ():
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
        rest = "" if out is None else "; --resume does the others"
        output.note(f"interrupted; {len(result.cells)} instances were finished{rest}")
    return code


@command(
    click.Argument(["config"]),
    path("--out", "Folder of the results (Parquet).", required=True),
    option(
        "--executor E",
        "local",
        "Where it runs: local (processes of this machine) or dask (a cluster).",
    ),
    option("--address TCP", str, "Dask scheduler, such as tcp://10.0.0.1:8786."),
    JOBS,
    RESUME,
    runs=(
        "sweep sweep.toml --out results",
        "sweep sweep.toml --out results --resume",
    ),
)
def sweep(config: str, output: Output, out: str, executor: Any, **options: Any) -> int:
    """Run the instances, policies and seeds of a TOML file."""
    if executor == "dask":
        with contextlib.suppress(ImportError):
            import distributed  # noqa: F401 - sets its loggers up
        # What matters comes as an error of ours, in one sentence.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with output.progress("reading the sweep") as update:
        result = optsched.sweep(config, out, executor, on_progress=update, **options)
    output.say(str(result))
    output.result(result.to_dict())
    if result.status == "interrupted":
        output.note(f"interrupted; --resume does the other {result.runs - result.done:,} runs")
        return INTERRUPTED
    return DONE
