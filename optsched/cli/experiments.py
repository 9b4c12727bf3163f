"""Commands that run many instances: regret and sweeps."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, Output, take
from optsched.cli.options import CLOCK, HTML, JOBS, MEMORY, SEED, Numbers, command, flag, option


@command(
    click.Argument(["source"], metavar="TRACE"),
    MEMORY,
    option("--policies A,B", "mc-sf,area", "Online policies."),
    option(
        "--loads L,..",
        Numbers(float),
        "Memory-time that arrives per step and token of memory.",
        default="0.8,1.2",
    ),
    option(
        "--horizons T,..", Numbers(int), "Steps in which requests arrive (default: 100,1000,10000)."
    ),
    option("--seeds K", 5, "Seeds per load and horizon."),
    CLOCK[0],
    option("--time-limit S", 0.0, "Seconds of hindsight search per instance.", needs="no --clock"),
    option("--tolerance X", float, "Growth per tenfold horizon that still counts as bounded."),
    flag("--threshold", "Find the load that overloads each policy.", needs="no --clock"),
    JOBS,
    option("--keep-instances DIR", click.Path(), "Keep the result of each instance in a folder."),
    flag("--resume", "Resume with what is in the folder.", needs="--keep-instances"),
    SEED,
    HTML,
    runs=(
        "regret family:equal-prompts --horizons 100,300 --seeds 2",
        "regret trace.csv --memory 16492 --horizons 100,300 --seeds 2 --html report.html",
        "regret trace.csv --memory 16492 --clock llama-2-70b-2xa100 --horizons 10,30 --seeds 2",
    ),
)
def regret(
    output: Output, source: str, policies: str, seeds: int, seed: int, **options: Any
) -> int:
    """Compare online policies with the optimum in hindsight."""
    from optsched.experiments.regrets import overload_threshold, regret_into
    from optsched.policies import split_names

    names, threshold = split_names(policies), options.pop("threshold")
    folder, resume = take(options, "keep_instances", "resume").values()
    options["seeds"] = range(seed, seed + seeds) if seeds > 0 else seeds
    with output.progress() as update:
        if folder is None:
            result = optsched.regret(source, names, on_progress=update, **options)
        else:
            options |= {"resume": resume, "on_progress": update}
            result = regret_into(folder, source, names, **options)
        code = DONE if result.status == "complete" else INTERRUPTED
        try:
            for name in names if threshold and code == DONE else ():
                update(f"searching the threshold of {name}")
                first = range(seed, seed + 3)
                found = overload_threshold(source, name, memory=options["memory"], seeds=first)
                result = replace(result, thresholds=(*result.thresholds, found))
        except KeyboardInterrupt:
            code = INTERRUPTED
    output.show(result)
    if code == INTERRUPTED:
        rest = "" if folder is None else "; --resume does the others"
        output.note(f"interrupted; {len(result.cells)} instances were finished{rest}")
    return code


@command(
    click.Argument(["config"]),
    option("--out DIR", click.Path(), "Folder of the results (Parquet).", required=True),
    option("--executor", ["local", "dask"], "Processes of this machine, or a cluster."),
    option("--address TCP", str, "Dask scheduler, such as tcp://10.0.0.1:8786."),
    JOBS,
    flag("--resume", "Resume with what is in the folder."),
    SEED,
    HTML,
    runs=("sweep sweep.toml --out results", "sweep sweep.toml --out results --resume"),
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
    output.show(result)
    if result.status == "interrupted":
        output.note(f"interrupted; --resume does the other {result.runs - result.done:,} runs")
        return INTERRUPTED
    return DONE
