"""Commands that run many instances: regret, sweeps, and the papers' tables and figures."""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import replace
from typing import Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, Output, check_writable
from optsched.cli.given import only_for
from optsched.cli.options import HTML, JOBS, MEMORY, Numbers, command, flag, option, path
from optsched.errors import OptschedError

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


def _list_targets(output: Output) -> None:
    """Print all targets with the verdicts on them that this version came with."""
    from optsched.papers import TARGETS
    from optsched.papers.stored import NOT_RUN, count_labels, last_verdicts

    last = last_verdicts()
    entries = [
        {"target": name, "title": target.title} | last.get(name, NOT_RUN)
        for name, target in TARGETS.items()
    ]
    for entry in entries:
        note = " (quick)" if entry["quick"] else ""
        output.say(f"{entry['target']:24} {entry['verdict'] + note:26} {entry['title']}")
    output.say(f"\n{len(entries)} targets: {count_labels(entries)}")
    output.result(entries)


@command(
    click.Argument(["names"], nargs=-1, metavar="NAME..."),
    flag("--list listing", "List all targets, with the last verdicts."),
    path("--out", "Folder of the results."),
    flag("--quick", "Seconds instead of minutes: fewer, smaller runs."),
    JOBS,
    flag("--overwrite", "Replace results that are in the folder."),
    runs=(
        "reproduce --list",
        "reproduce sorted-f-example-1 --quick --out results",
    ),
)
def reproduce(
    names: tuple[str, ...], output: Output, listing: bool, out: str | None, **options: Any
) -> int:
    """Regenerate tables and figures of the papers."""
    from optsched.papers import TARGETS, reproduce_into
    from optsched.papers.driver import describe, get_target

    if listing:
        if names:
            raise OptschedError(f"--list names all targets; leave {' '.join(names)} or --list out")
        only_for("out quick jobs overwrite", False, "runs of targets, and --list runs none")
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
            reproduce_into(chosen, out, on_progress=update, on_result=keep, **options)
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
def competitive_ratio(output: Output, upper: int, lower: int, prompt: int, seed: int) -> int:
    """Prove how much A_min can cost relative to H-SF."""
    from optsched.papers import CompetitiveRatio

    ratio = CompetitiveRatio(upper, lower, prompt)
    with output.progress("proving"):
        output.say(str(ratio))
    # The nearest float may lie beyond a proven bound; the next one does not.
    output.result(
        {
            "lower": lower,
            "upper": upper,
            "prompt": prompt,
            "at_least": math.nextafter(float(ratio.lower_bound), 0),
            "at_most": math.nextafter(float(ratio.upper_bound), math.inf),
            "eigenvalue": ratio.eigenvalue,
            "trace_bound": ratio.trace_bound,
        }
    )
    return DONE
