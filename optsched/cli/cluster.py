"""The command on a cluster whose workers wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    INTERRUPTED,
    Output,
    check_writable,
    read_instance,
    shared_options,
)
from optsched.cli.presentation import command, examples
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched.cluster import ClusterRun
    from optsched.cluster.routing import Routing
    from optsched.comparison import ClusterComparison
    from optsched.instance import Instance


def _numbers(text: str, option: str) -> int | list[int]:
    """Read one whole number, or several with commas between them."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptschedError(
            f"{option} is {text!r}, but must be a whole number, or several with commas"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


@command(
    epilog=examples(
        "cluster trace.csv --workers 2 --slots 4",
        "cluster family:lognormal,n=600 --workers 4 --slots 16 --steps 200 --html report.html",
    )
)
@shared_options
@click.argument("trace")
@click.option("--workers", type=int, required=True, metavar="G", help="Number of workers.")
@click.option(
    "--slots",
    required=True,
    metavar="B",
    help="Requests per worker; or one number per worker with commas.",
)
@click.option(
    "--policies",
    default="fcfs,jsq,lpt,bf-io",
    show_default=True,
    metavar="A,B",
    help="Routing policies: fcfs, jsq, round-robin, power-of-d, lpt, bf-io.",
)
@click.option(
    "--lookahead",
    default="20",
    show_default=True,
    metavar="H",
    help="Lookahead of bf-io in steps; several separated by commas; or adaptive.",
)
@click.option("--patience", type=int, metavar="N", help="Steps that bf-io lets a request wait.")
@click.option(
    "--reveal", type=int, default=128, show_default=True, metavar="R", help="Requests in view."
)
@click.option("--steps", type=int, metavar="K", help="Stop after K steps (default: when done).")
@click.option("--drain", is_flag=True, help="After K steps reveal no more, but finish all in view.")
@click.option("--warm-up", type=int, metavar="N", help="Steps not measured (default: up to 300).")
@click.option(
    "--dispatch",
    type=click.Choice(["pool", "instant"]),
    default="pool",
    show_default=True,
    metavar="D",
    help="When a request is routed: when a slot is free (pool), or on arrival (instant).",
)
@click.option(
    "--drift",
    default="1",
    show_default=True,
    metavar="D",
    help="Tokens that a request gains per step; several with commas: by its age.",
)
@click.option("--memory", metavar="M", help="Tokens that a worker holds; or one number per worker.")
@click.option(
    "--slowness",
    default="1",
    show_default=True,
    metavar="A",
    help="Time per token, relative; or one number per worker.",
)
@click.option(
    "--overhead",
    type=float,
    default=5e-3,
    show_default=True,
    metavar="S",
    help="Seconds that a step takes beside its tokens (C in BF-IO).",
)
@click.option(
    "--seconds-per-token",
    type=float,
    default=9.2e-8,
    show_default=True,
    metavar="S",
    help="Seconds per token of the fullest worker (t_l in BF-IO).",
)
@click.option(
    "--seeds",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Traces drawn from a family; all policies run on the same ones.",
)
@click.option("--html", type=click.Path(), help="Write a report that needs no network.")
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
def cluster(
    output: Output,
    trace: str,
    workers: int,
    slots: str,
    policies: str,
    lookahead: str,
    patience: int | None,
    warm_up: int | None,
    drift: str,
    memory: str | None,
    slowness: str,
    overhead: float,
    seconds_per_token: float,
    html: str | None,
    seed: int,
    seeds: int,
    limit: int | None,
    seconds_per_step: float,
    skip_invalid: bool,
    **options: Any,
) -> int:
    """Route requests to workers that wait for the slowest."""
    from optsched.cluster import Cluster
    from optsched.comparison import ClusterComparison

    if html is not None:
        check_writable(html)
    facts = Cluster(
        workers,
        _numbers(slots, "--slots"),
        overhead,
        seconds_per_token,
        _numbers(slowness, "--slowness"),
        None if memory is None else _numbers(memory, "--memory"),
    )
    chosen = _routings(policies, lookahead, patience)
    traces = _traces(output, trace, seed, seeds, limit, seconds_per_step, skip_invalid)
    options["drift"] = _numbers(drift, "--drift")
    done: list[ClusterRun] = []
    code = DONE
    with output.progress("loading kernels (compiling them, the first time)") as update:

        def keep(run: ClusterRun, _: float) -> None:
            done.append(run)
            update(f"ran {len(done)} of {len(chosen) * len(traces)} policies and traces")

        try:
            comparison = optsched.compare(
                traces,
                chosen,
                cluster=facts,
                warm_up=warm_up,
                on_result=keep,
                record_loads=html is not None,
                **options,
            )
        except KeyboardInterrupt:
            code = INTERRUPTED
            output.note(f"interrupted after {len(done)} of {len(chosen) * len(traces)} runs")
            whole = len(done) // len(chosen) * len(chosen) or len(done)
            if not whole:
                return code
            runs: dict[str, list[ClusterRun]] = {run.policy: [] for run in done[:whole]}
            for run in done[:whole]:
                runs[run.policy].append(run)
            comparison = ClusterComparison(facts, runs, warm_up)
    if html is not None:
        _write_report(output, comparison, html, warm_up, options)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


def _routings(policies: str, lookahead: str, patience: int | None) -> list[Routing]:
    from optsched.cluster import get_routing

    windows: list[Any] = [lookahead]
    if lookahead != "adaptive":
        numbers = _numbers(lookahead, "--lookahead")
        windows = [numbers] if isinstance(numbers, int) else numbers
    routings: list[Routing] = []
    for name in policies.split(","):
        if name != "bf-io":
            routings.append(get_routing(name))
            continue
        for window in windows:
            shown = "bf-io" if len(windows) == 1 else f"bf-io H={window}"
            routings.append(get_routing(name, lookahead=window, patience=patience, name=shown))
    return routings


def _traces(
    output: Output,
    trace: str,
    seed: int,
    seeds: int,
    limit: int | None,
    seconds_per_step: float,
    skip_invalid: bool,
) -> list[Instance]:
    from optsched._internal.arrays import MAX_TOKENS

    family = trace.startswith("family:")
    if seeds < 1 or (seeds > 1 and (not family or "seed=" in trace)):
        raise OptschedError(
            f"--seeds is {seeds}, but only a family without a seed of its own has several; leave "
            "it out"
        )
    names = [f"{trace},seed={seed + number}" for number in range(seeds)]
    if not family or "seed=" in trace:
        names = [trace]
    # The memory of an instance is that of one worker alone; here the cluster has its own.
    memory = None if family else MAX_TOKENS
    return [
        read_instance(output, name, memory, limit, seconds_per_step, skip_invalid) for name in names
    ]


def _write_report(
    output: Output,
    comparison: ClusterComparison,
    html: str,
    warm_up: int | None,
    options: dict[str, Any],
) -> None:
    from optsched._internal.views import write
    from optsched.cluster import BalanceRouting
    from optsched.comparison.cluster import compare_lookaheads

    lookaheads = None
    first = next(iter(comparison.runs.values()))[0].instance
    if any(runs[0].lookahead is not None for runs in comparison.runs.values()):
        baselines = [name for name, runs in comparison.runs.items() if runs[0].lookahead is None]
        with output.progress(f"running {BalanceRouting().name} with other lookaheads"):
            lookaheads = compare_lookaheads(
                first, comparison.cluster, baselines=baselines, warm_up=warm_up, **options
            )
    write("cluster_page", html, comparison, lookaheads)
