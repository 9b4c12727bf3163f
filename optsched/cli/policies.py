"""Commands that run policies: side by side, one by itself, and a rolling horizon."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, NO, Finished, Output, check_writable, take
from optsched.cli.given import note_unless, only_for
from optsched.cli.options import (
    CLOCK,
    HTML,
    INTERVALS,
    KNOWLEDGE,
    LOG,
    TRACE,
    command,
    option,
    path,
    switch,
)
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.instance import Instance
    from optsched.policies import Policy


@command(
    TRACE,
    option("--policies A,B", str, "Names of policies (default: the quick ones)."),
    KNOWLEDGE,
    CLOCK,
    HTML,
    path("--schedules", "Write POLICY.json for each into this folder."),
    runs=(
        "compare trace.csv --memory 16492 --html report.html",
        "compare family:uniform,n=100 --policies mc-sf,area,rolling",
        "compare trace.csv --memory 16492 --clock llama-2-70b-2xa100",
    ),
)
def compare(
    instance: Instance, output: Output, policies: str | None, html: str | None, **known: Any
) -> int:
    """Compare policies with each other and with a proven bound."""
    from optsched.comparison import Comparison
    from optsched.comparison.comparing import compared
    from optsched.policies import split_names
    from optsched.simulate import RunSettings
    from optsched.simulate.dispatch import prepared
    from optsched.solvers.bounds.on_clock import caveats

    schedules = known.pop("schedules")
    timed = _on_clock(known)
    only_for("schedules", not timed, "comparisons in steps")
    warm_up = known.pop("warm_up", None)
    settings = RunSettings(**known)
    chosen = compared(None if policies is None else split_names(policies), settings)
    note_unforeseen(chosen)
    check_writable(html)
    for each in chosen:
        prepared(instance, each, settings.of(each))
    folder = _folder(schedules)
    comparison: Comparison | None = None
    with output.progress() as update, Finished(len(chosen), "policies", update) as done:
        comparison = optsched.compare(
            instance, chosen, settings, warm_up=warm_up, on_result=done.add
        )
    if done.code == INTERRUPTED:
        output.note(f"interrupted after {done}; the bound is that in closed form")
    if comparison is None:
        runs = {run.policy: [run] for run in done.results}
        comparison = Comparison(runs, tuple(done.seconds), settings, warm_up or 0.0)
        comparison = comparison.bounded(method="closed-form")
    if folder is not None:
        for schedule in comparison.schedules:
            schedule.to_json(folder / f"{schedule.policy}.json")
    if html is not None:
        comparison.to_html(html)
    output.say(str(comparison))
    if timed and comparison.bound is not None:
        for caveat in caveats(instance, comparison.bound.clock):
            output.note(caveat)
    output.result(comparison.to_dict())
    return done.code


def _on_clock(options: dict[str, Any]) -> bool:
    """Whether a clock is asked for; what is for clocks alone is left out without one."""
    timed = options["clock"] is not None
    only_for("until warm_up", timed, "runs on a clock", "add --clock, such as unit")
    if timed:
        if options["until"] == math.inf:
            raise OptschedError("--until is inf, but must be a time; leave it out to serve all")
        options["until"] = math.inf if options["until"] is None else options["until"]
        if not 0 <= (warm_up := options["warm_up"]) < options["until"]:
            wish = "but must be a time from 0 to the end of the run"
            raise OptschedError(f"warm_up is {warm_up:g}, {wish}")
        return True
    for name in ("clock", "until", "warm_up"):
        del options[name]
    return False


def note_unforeseen(policies: Sequence[Policy]) -> None:
    """Note intervals for which no policy asks, and refuse what is likely where none does."""
    look = any(each.foresees != "nothing" or each.needs.knows != "either" for each in policies)
    note_unless(look, "intervals", "policies that foresee outputs, such as a-min")
    asks = any(each.foresees == "beliefs" for each in policies)
    only_for("history log_error", asks, "policies that ask what is likely, such as area-chance")


def _folder(name: str | None) -> Path | None:
    if name is None:
        return None
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise OptschedError(f"cannot write schedules into {folder}: it is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "schedule.json")
    return folder


_ENGINE = (
    option("--num-gpu-blocks N", int, "Blocks of KV cache of vllm, instead of --memory."),
    option("--block-size T", int, "Tokens per block (default: 16 for vllm, otherwise 1)."),
    option("--max-num-seqs B", int, "Maximum number of requests that an engine runs at once."),
    option("--max-num-batched-tokens B", int, "Maximum number of tokens in a batch of an engine."),
    option(
        "--scheduling-policy P",
        click.Choice(["fcfs", "priority"]),
        "Order of vllm: fcfs (default), or priority, by the column priority of TRACE.",
    ),
    option("--watermark X", float, "Share of memory that admissions to an engine leave free."),
    switch(
        "scheduler-reserve-full-isl",
        "Whether vllm admits a prompt only if all of it fits (default: on).",
    ),
    switch(
        "async-scheduling",
        "Whether vllm forms a batch while the one before it runs (default: on).",
    ),
)


@command(
    TRACE,
    option(
        "--policy P",
        str,
        "Name of a policy, such as a-min, or wait:100=12,500=4 with your own thresholds.",
        required=True,
    ),
    KNOWLEDGE,
    CLOCK,
    *_ENGINE,
    option("--alpha X", float, "Share of memory that alpha-... policies protect."),
    option("--beta X", float, "Probability that alpha-beta-clearing preempts a request."),
    HTML,
    LOG,
    path("--batches", "Write a row per batch of vllm to a .csv, .csv.gz or .parquet."),
    runs=(
        "simulate trace.csv --memory 16492 --policy area --log attempts.csv",
        "simulate family:uniform,n=50 --policy a-min --intervals relative:0.5",
        "simulate trace.csv --num-gpu-blocks 1031 --policy vllm --clock llama-2-70b-2xa100",
    ),
)
def simulate(
    instance: Instance,
    output: Output,
    policy: str,
    html: str | None,
    log: str | None,
    batches: str | None,
    **known: Any,
) -> int:
    """Run one policy and record everything that happened."""
    check_writable(html)
    check_log(log)
    check_log(batches)
    chosen = _with_settings(policy, known)
    only_for("batches", chosen.needs.kind == "vllm", f"the policy vllm, not {policy}")
    note_unforeseen([chosen])
    measured = take(known, "warm_up") if _on_clock(known) else {}
    with output.progress(f"running {chosen.name}"):
        run = optsched.run(instance, chosen, **known)
        metrics = run.metrics(**measured)
    if log is not None:
        run.to_log(log)
    if batches is not None:
        run.to_batches(batches)
    if html is not None:
        run.to_html(html)
    output.say(str(run))
    output.result(metrics)
    if run.decisions is not None and run.decisions.interrupted:
        return INTERRUPTED
    return DONE if run.loop is None and run.stall is None else NO


def check_log(log: str | None) -> None:
    """Refuse a log that cannot be written."""
    from optsched.execution import check_log_name

    if log is not None:
        check_log_name(log)
        check_writable(log)


def _with_settings(name: str, options: dict[str, Any]) -> Policy:
    """Take what only some policies have out of the options, and set it."""
    from optsched.policies import get_policy

    policy: Any = get_policy(name)
    shares = take(options, "alpha", "beta")
    settings = take(options, *(str(each.name) for each in _ENGINE))
    settings = {name: value for name, value in settings.items() if value is not None}
    protects = policy.needs.kind == "threshold"
    only_for("alpha beta", protects, f"policies that protect memory, and {name} has no such share")
    if any(share is not None for share in shares.values()):
        policy = policy.with_parameters(**shares)
    of_policy = {field.name for field in dataclasses.fields(policy)}
    if getattr(policy, "order", None) is not None:
        of_policy -= {"scheduling_policy"}  # the order is that
    foreign = " ".join(setting for setting in settings if setting not in of_policy)
    only_for(foreign, not foreign, f"engines that have it, such as vllm, and {name} has not")
    return dataclasses.replace(policy, **settings)  # type: ignore[no-any-return]


@command(
    TRACE,
    option(
        "--model M",
        "hindsight",
        "What plans a window: hindsight, beam, hindsight-exact, relax-lp or batch.",
    ),
    option("--window N", 64, "Maximum number of requests planned at once."),
    option("--horizon T", int, "Steps whose memory is planned (default: no limit)."),
    option(
        "--every --replan-interval replan_interval K", 1, "Minimum number of steps between plans."
    ),
    option("--budget S", 0.02, "Seconds for a decision; 0 leaves all to the fallback."),
    option(
        "--fallback P",
        "area",
        "Order used where there is no plan: area, mc-sf, mc-sf-total or fcfs.",
    ),
    option(
        "--scenarios N",
        8,
        "Simulated arrival scenarios per plan, on which it must not lose to the fallback; 0: none.",
    ),
    INTERVALS,
    option(
        "--length-estimate R",
        "posterior",
        "Length estimate of outputs in intervals: lower, upper or posterior.",
    ),
    option("--policies A,B", str, "Policies to compare it with (default: suitable ones)."),
    HTML,
    LOG,
    runs=(
        "rolling trace.csv --memory 16492",
        "rolling family:uniform,n=50 --window 16 --budget 0.05 --html report.html",
    ),
)
def rolling(
    instance: Instance,
    output: Output,
    policies: str | None,
    html: str | None,
    log: str | None,
    seed: int,
    intervals: str | None,
    **settings: Any,
) -> int:
    """Plan a window of waiting requests, and keep replanning."""
    from optsched.comparison import Comparison
    from optsched.policies import RollingPolicy, split_names
    from optsched.simulate import RunSettings

    policy = RollingPolicy(**settings)
    planned = "rolling horizons that plan, for which --budget 0 leaves no time"
    only_for("model window horizon scenarios", policy.budget > 0, planned)
    only_for("length_estimate", intervals is not None, "outputs in intervals", "add --intervals")
    check_writable(html)
    check_log(log)
    names = ["a-min", "area-posterior"]
    if policies is not None:
        names = split_names(policies)
    elif intervals is None:
        names = list(dict.fromkeys([settings["fallback"], "mc-sf", "area"]))
    known = RunSettings(intervals=intervals, seed=seed)
    comparison: Comparison | None = None
    with output.progress() as update, Finished(len(names) + 1, "policies", update) as done:
        comparison = optsched.compare(
            instance,
            [policy, *names],
            known,
            on_result=done.add,
            on_progress=lambda started, count: update(
                f"rolling horizon: {started:,} of {count:,} requests started "
                "(Ctrl-C: no more plans)"
            ),
        )
    execution = done.results[0]
    decisions = execution.decisions
    if done.code == INTERRUPTED:
        output.note(f"interrupted after {decisions.counts.planned:,} planned decisions and {done}")
    if comparison is None:
        runs = {run.policy: [run] for run in done.results}
        comparison = Comparison(runs, tuple(done.seconds), known).bounded(method="closed-form")
    if log is not None:
        execution.to_log(log)
    if html is not None:
        comparison.to_html(html)
    output.say(f"{comparison}\n\nrolling: {decisions}")
    output.result({**comparison.to_dict(), "rolling": decisions.to_dict()})
    return done.code
