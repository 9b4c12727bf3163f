"""Commands that compare policies, bound them, and check what others claim."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    INTERRUPTED,
    LISTED,
    NO,
    Output,
    check_clock_options,
    check_writable,
    clock_options,
    knowledge_options,
    shared_options,
    trace_options,
)
from optsched.cli.presentation import command, examples
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched.execution import Execution
    from optsched.instance import Instance
    from optsched.simulate.seconds.execution import ClockedRun


@command(
    epilog=examples(
        "compare trace.csv --memory 16492 --html report.html",
        "compare family:uniform,n=100 --policies mc-sf,area,rolling",
        "compare trace.csv --memory 16492 --clock llama-2-70b-2xa100",
    )
)
@shared_options
@trace_options
@click.option("--policies", metavar="A,B", help="Names of policies (default: the quick ones).")
@knowledge_options
@clock_options
@click.option("--html", type=click.Path(), help="Write a report that needs no network.")
@click.option("--schedules", type=click.Path(), help="Write POLICY.json for each into this folder.")
def compare(
    instance: Instance,
    output: Output,
    policies: str | None,
    intervals: str | None,
    rule: Any,
    clock: str | None,
    until: float | None,
    warm_up: float,
    html: str | None,
    schedules: str | None,
) -> int:
    """Compare policies with each other and with a proven bound."""
    check_clock_options(clock, until, warm_up)
    if clock is not None:
        if html is not None or schedules is not None:
            raise OptschedError(
                "--html and --schedules are for comparisons in steps; leave --clock"
            )
        names = None if policies is None else policies
        knowledge = {"intervals": intervals, "rule": rule}
        return _compare_on_clock(instance, output, clock, names, until, warm_up, knowledge)
    from optsched.comparison.steps import UNDER_INTERVALS, StepComparison, load_kernels
    from optsched.policies import get_policies, split_names
    from optsched.simulate.dispatch import check_knowledge

    if policies is None:
        chosen = get_policies(None if intervals is None else UNDER_INTERVALS)
    else:
        chosen = get_policies(split_names(policies))
    for policy in chosen:
        check_knowledge(policy, intervals, rule)
    if html is not None:
        check_writable(html)
    if schedules is not None:
        folder = Path(schedules)
        if folder.exists() and not folder.is_dir():
            raise OptschedError(f"cannot write schedules into {folder}: it is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder / "schedule.json")
    runs: list[Execution] = []
    times: list[float] = []
    comparison: StepComparison | None = None
    code = DONE
    with output.progress("loading kernels (compiling them, the first time)") as update:
        load_kernels(chosen, intervals, rule)
        quick = optsched.bound(instance, "closed-form")

        def keep(run: Execution, seconds: float) -> None:
            runs.append(run)
            times.append(seconds)
            update(f"ran {len(runs)} of {len(chosen)} policies")

        try:
            comparison = optsched.compare(
                instance,
                chosen,
                intervals=intervals,
                rule=rule,
                seed=click.get_current_context().params["seed"],
                bound=quick,
                on_result=keep,
            )
            update("finding a lower bound")
            comparison = replace(comparison, bound=optsched.bound(instance))
        except KeyboardInterrupt:
            code = INTERRUPTED
            done = f"{len(runs)} of {len(chosen)} policies"
            output.note(f"interrupted after {done}; the bound is that in closed form")
            if not runs:
                return code
            if comparison is None:
                comparison = StepComparison(
                    instance, quick, tuple(runs), tuple(times), intervals=intervals
                )
    if schedules is not None:
        for schedule in comparison.schedules:
            schedule.to_json(folder / f"{schedule.policy}.json")
    if html is not None:
        comparison.to_html(html)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


def _compare_on_clock(
    instance: Instance,
    output: Output,
    clock: str,
    policies: str | None,
    until: float | None,
    warm_up: float,
    knowledge: dict[str, Any],
) -> int:
    from optsched.comparison import ClockComparison
    from optsched.policies import split_names

    runs: list[ClockedRun] = []
    times: list[float] = []
    code = DONE
    with output.progress("running policies") as update:

        def keep(run: ClockedRun, seconds: float) -> None:
            runs.append(run)
            times.append(seconds)
            update(f"ran {run.policy}")

        try:
            optsched.compare(
                instance,
                None if policies is None else split_names(policies),
                clock=clock,
                until=math.inf if until is None else until,
                seed=click.get_current_context().params["seed"],
                on_result=keep,
                **knowledge,
            )
        except KeyboardInterrupt:
            code = INTERRUPTED
            output.note(f"interrupted after {len(runs)} policies")
            if not runs:
                return code
    comparison = ClockComparison(instance, runs[0].clock, tuple(runs), tuple(times), warm_up)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


@command(
    epilog=examples(
        "bound trace.csv --memory 16492 --certificate proof.json",
    )
)
@shared_options
@trace_options
@click.option(
    "--method",
    type=click.Choice(["auto", "closed-form", "lagrangian"]),
    default="auto",
    show_default=True,
    metavar="M",
    help="How to find it: closed-form, lagrangian, or the better of both (auto).",
)
@click.option("--certificate", type=click.Path(), help="Write the proof, in exact integers.")
def bound(instance: Instance, output: Output, method: Any, certificate: str | None) -> int:
    """Prove a lower bound on the total latency of any schedule."""
    if certificate is not None:
        check_writable(certificate)
        if method == "closed-form":
            raise OptschedError("the closed form has no certificate; use --method lagrangian")
        method = "lagrangian"
    with output.progress("finding a lower bound"):
        proven = optsched.bound(instance, method)
    if certificate is not None and proven.certificate is not None:
        proven.certificate.to_json(certificate)
    output.say(
        f"no schedule of {instance.name} has a total latency below {proven.value:,.1f} steps "
        f"({proven.value / len(instance):,.1f} per request; {proven.method}, "
        f"{proven.seconds:.3f} s)"
    )
    content = {"value": proven.value, "method": proven.method, "seconds": proven.seconds}
    output.result(content)
    return DONE


@command(
    epilog=examples(
        "compare trace.csv --memory 16492 --schedules plans",
        "check trace.csv plans/area.json --memory 16492",
    )
)
@shared_options
@trace_options
@click.argument("schedule")
def check(instance: Instance, output: Output, schedule: str) -> int:
    """Check that a schedule of TRACE is feasible."""
    plan = optsched.Schedule.from_json(Path(schedule), instance)
    violations = plan.check()
    output.say(str(plan))
    for violation in violations[:LISTED]:
        output.say(f"  {violation}")
    if len(violations) > LISTED:
        output.say(f"  ... and {len(violations) - LISTED} more (--json lists them all)")
    output.result(
        {
            "feasible": not violations,
            "violations": [
                {
                    "kind": violation.kind,
                    "request": violation.request,
                    "label": violation.label,
                    "step": violation.step,
                    "usage": violation.usage,
                    "limit": violation.limit,
                    "last_step": violation.last_step,
                }
                for violation in violations
            ],
            **plan.metrics(),
        }
    )
    return NO if violations else DONE


@command(
    "check-certificate",
    epilog=examples(
        "bound trace.csv --memory 16492 --certificate proof.json",
        "check-certificate trace.csv proof.json --memory 16492",
    ),
)
@shared_options
@trace_options
@click.argument("certificate")
def check_certificate(instance: Instance, output: Output, certificate: str) -> int:
    """Check the certificate of a bound in exact integers."""
    claimed = optsched.read_certificate(Path(certificate))
    with output.progress("verifying the certificate"):
        proven = optsched.verify(claimed, instance)
    valid = proven >= claimed.value
    output.say(f"the prices prove that no schedule has a total latency below {float(proven):,.3f}")
    if not valid:
        output.say(f"but the certificate claims {float(claimed.value):,.3f}")
    output.result({"valid": valid, "value": float(proven), "claimed": float(claimed.value)})
    return DONE if valid else NO
