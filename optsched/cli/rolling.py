"""The command that runs a rolling horizon beside its fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    INTERRUPTED,
    Output,
    check_writable,
    shared_options,
    trace_options,
)
from optsched.cli.presentation import command, examples

if TYPE_CHECKING:
    from optsched.execution import Execution
    from optsched.instance import Instance


@command(
    epilog=examples(
        "rolling trace.csv --memory 16492",
        "rolling family:uniform,n=50 --window 16 --budget 0.05 --html report.html",
    )
)
@shared_options
@trace_options
@click.option(
    "--model",
    default="hindsight",
    show_default=True,
    metavar="M",
    help="What plans a window: hindsight, hindsight-exact, relax-lp or batch.",
)
@click.option(
    "--window",
    type=int,
    default=64,
    show_default=True,
    metavar="N",
    help="Requests planned at most.",
)
@click.option(
    "--horizon", type=int, metavar="T", help="Steps whose memory is planned (default: no limit)."
)
@click.option(
    "--every",
    "--replan-interval",
    "replan_interval",
    type=int,
    default=1,
    show_default=True,
    metavar="K",
    help="Steps between reviews at least.",
)
@click.option(
    "--budget",
    type=float,
    default=0.02,
    show_default=True,
    metavar="S",
    help="Seconds for a decision; 0 leaves all to the fallback.",
)
@click.option(
    "--fallback",
    default="area",
    show_default=True,
    metavar="P",
    help="Order where there is no plan: area, mc-sf, mc-sf-total or fcfs.",
)
@click.option(
    "--scenarios",
    type=int,
    default=8,
    show_default=True,
    metavar="N",
    help="Possible arrivals on which plans are compared with the fallback; 0 trusts the plan.",
)
@click.option(
    "--intervals",
    metavar="I",
    help="What is known of outputs: exact, common:L,U, classes:W, relative:X or column.",
)
@click.option(
    "--length-estimate",
    default="posterior",
    show_default=True,
    metavar="R",
    help="Length estimate of outputs in intervals: lower, upper or posterior.",
)
@click.option("--policies", metavar="A,B", help="Policies beside it (default: suitable ones).")
@click.option("--html", type=click.Path(), help="Write a report that needs no network.")
@click.option("--log", type=click.Path(), help="Write all attempts to a .csv, .csv.gz or .parquet.")
def rolling(
    instance: Instance,
    output: Output,
    policies: str | None,
    intervals: str | None,
    fallback: str,
    html: str | None,
    log: str | None,
    **settings: Any,
) -> int:
    """Plan a window of waiting requests, again and again."""
    from optsched.comparison.steps import StepComparison, load_kernels
    from optsched.execution import check_log_name
    from optsched.policies import RollingPolicy, get_policies, split_names
    from optsched.simulate.dispatch import check_knowledge

    seed = click.get_current_context().params["seed"]
    policy = RollingPolicy(fallback=fallback, **settings)
    if html is not None:
        check_writable(html)
    if log is not None:
        check_log_name(log)
        check_writable(log)
    names = ["a-min", "area-posterior"]
    if policies is not None:
        names = split_names(policies)
    elif intervals is None:
        names = list(dict.fromkeys([fallback, "mc-sf", "area"]))
    others = get_policies(names)
    for other in others:
        check_knowledge(other, intervals)
    unfinished: tuple[Execution, ...] = ()
    with output.progress("loading kernels (compiling them, the first time)") as update:
        load_kernels(others, intervals)
        proven = optsched.bound(instance, "closed-form")
        update("rolling horizon")
        execution = optsched.run(
            instance,
            policy,
            intervals=intervals,
            seed=seed,
            on_progress=lambda started, count: update(
                f"rolling horizon: {started:,} of {count:,} requests started "
                "(Ctrl-C: no more plans)"
            ),
        )
        decisions = execution.decisions
        interrupted: bool = decisions.interrupted
        runs, times = [execution], [decisions.seconds]

        def keep(run: Execution, seconds: float) -> None:
            runs.append(run)
            times.append(seconds)

        if not interrupted:
            update("the policies beside it")
            try:
                beside = optsched.compare(
                    instance, others, intervals=intervals, seed=seed, bound=proven, on_result=keep
                )
                unfinished = beside.incomplete
                update("finding a lower bound")
                proven = optsched.bound(instance)
            except KeyboardInterrupt:
                interrupted = True
    if interrupted:
        done = f"{len(runs)} of {len(others) + 1} policies"
        output.note(f"interrupted after {decisions.counts.planned:,} planned decisions and {done}")
    comparison = StepComparison(instance, proven, tuple(runs), tuple(times), unfinished, intervals)
    if log is not None:
        execution.to_log(log)
    if html is not None:
        comparison.to_html(html)
    output.say(f"{comparison}\n\nrolling: {decisions}")
    output.result({**comparison.to_dict(), "rolling": decisions.to_dict()})
    return INTERRUPTED if interrupted else DONE
