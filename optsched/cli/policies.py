"""Commands that run policies: side by side, one by itself, and a rolling horizon."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optsched
from optsched.cli.common import DONE, INTERRUPTED, NO, Output, check_writable, take
from optsched.cli.given import note_unless, only_for
from optsched.cli.options import (
    CLOCK,
    HTML,
    INTERVALS,
    KNOWLEDGE,
    LOG,
    TRACE,
    Written,
    check_log,
    command,
    flag,
    option,
)
from optsched.errors import OptschedError, is_interrupt, require_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.simulate import RunSettings


def _check_folder(name: str) -> None:
    """Refuse a folder that is none, or that cannot be made."""
    folder = next(each for each in (Path(name), *Path(name).absolute().parents) if each.exists())
    if not folder.is_dir():
        raise OptschedError(f"cannot write schedules into {name}: {folder} is not a folder")
    check_writable(folder / "schedule.json")


@command(
    TRACE,
    option("--policies A,B", str, "Policies to compare, or module:name (default: the quick ones)."),
    option("--seeds K", int, "Compare on a family under K seeds, from --seed on: with intervals."),
    option("--baseline P", str, "Show differences to this policy.", needs="--seeds"),
    KNOWLEDGE,
    CLOCK,
    HTML,
    option(
        "--schedules DIR",
        Written(_check_folder),
        "Write DIR/POLICY.json.",
        needs="no --clock,no --seeds",
    ),
    runs=(
        "compare trace.csv --memory 16492 --html report.html",
        "compare family:uniform,n=100 --policies mc-sf,area,rolling",
        "compare trace.csv --memory 16492 --clock llama-2-70b-2xa100",
        "compare family:uniform,n=100,load=1.1 --policies mc-sf,area --seeds 5 --baseline mc-sf",
    ),
)
def compare(
    instance: Instance,
    output: Output,
    policies: str | None,
    schedules: str | None,
    baseline: str | None,
    several: list[Instance] | None = None,
    **known: Any,
) -> int:
    """Compare policies with each other and with a proven bound."""
    from optsched.bounds.on_clock import caveats
    from optsched.experiments.comparison.comparing import compared
    from optsched.policies import split_names

    warm_up = known.pop("warm_up")
    settings = _settings(known)
    chosen = compared(None if policies is None else split_names(policies), settings)
    note_unforeseen(chosen)
    if several is not None:
        if baseline is not None:
            require_known("baseline", baseline, [policy.name for policy in chosen])
        return _replicated(several, chosen, settings, output, warm_up, baseline)
    comparison, code = compared_until_interrupted(instance, chosen, settings, output, warm_up)
    if schedules is not None:
        Path(schedules).mkdir(parents=True, exist_ok=True)
        for schedule in comparison.schedules:
            schedule.to_json(Path(schedules, f"{schedule.policy}.json"))
    if settings.clock is not None and comparison.bound is not None:
        for caveat in caveats(instance, comparison.bound.clock):
            output.note(caveat)
    output.show(comparison)
    return code


def _replicated(
    instances: list[Instance],
    chosen: Sequence[Any],
    settings: RunSettings,
    output: Output,
    warm_up: float | None,
    baseline: str | None,
) -> int:
    """Compare on several instances, or on those that are finished when Ctrl-C ends the rest."""
    from optsched.experiments.comparison import Replications

    parts: list[Any] = []
    code = DONE
    for seed, instance in enumerate(instances, settings.seed):
        own = dataclasses.replace(settings, seed=seed)
        try:
            part, code = compared_until_interrupted(instance, chosen, own, output, warm_up)
        except BaseException as error:
            if not parts or not is_interrupt(error):
                raise
            code = INTERRUPTED
        if code == INTERRUPTED and parts:
            output.note(f"finished {len(parts)} of {len(instances)} instances")
            break
        parts.append(part)
    output.show(Replications(tuple(parts), baseline))
    return code


def _settings(options: dict[str, Any]) -> RunSettings:
    """Make settings of the options that were given."""
    from optsched.simulate import RunSettings

    return RunSettings(**{name: value for name, value in options.items() if value is not None})


def compared_until_interrupted(
    traces: Any,
    chosen: Sequence[Any],
    settings: RunSettings,
    output: Output,
    warm_up: float | None = None,
) -> tuple[Any, int]:
    """Compare policies, or what is finished of them when Ctrl-C ends the rest."""
    from optsched.experiments.comparison import ClusterComparison, Comparison

    clustered = settings.cluster is not None
    count, what = (len(chosen) * len(traces), "runs") if clustered else (len(chosen), "policies")
    results: list[Any] = []
    seconds: list[float] = []

    def keep(run: Any, taken: float) -> None:
        results.append(run)
        seconds.append(taken)
        update(f"finished {len(results)} of {count} {what}")

    def report(done: int, requests: int) -> None:
        plans = "" if clustered else " (Ctrl-C: no more plans)"  # of a rolling horizon
        update(f"{done:,} of {requests:,} requests{plans}")

    how: Any = {"warm_up": warm_up, "on_result": keep, "on_progress": report}
    with output.progress() as update:
        try:
            return optsched.compare(traces, chosen, settings, **how), DONE
        except BaseException as error:
            if not results or not is_interrupt(error):
                raise
    # Traces that all policies have run on; of the first one those that are done.
    whole = len(results) // len(chosen) * len(chosen) or None
    runs: dict[str, list[Any]] = {}
    for run in results[:whole]:
        runs.setdefault(run.policy, []).append(run)
    note = f"interrupted after {len(results)} of {count} {what}"
    if clustered:
        output.note(note)
        return ClusterComparison(runs, tuple(seconds), settings, warm_up), INTERRUPTED
    output.note(f"{note}; the bound is that in closed form")
    comparison = Comparison(runs, tuple(seconds), settings, warm_up or 0.0)
    return comparison.bounded(method="closed-form"), INTERRUPTED


def note_unforeseen(policies: Sequence[Policy]) -> None:
    """Note intervals for which no policy asks, and refuse what is likely where none does."""
    look = any(each.foresees != "nothing" or each.needs.knows != "either" for each in policies)
    note_unless(look, "intervals", "for policies that foresee outputs, such as a-min")
    asks = any(each.foresees == "beliefs" for each in policies)
    only_for("history log_error", asks, "for policies that ask what is likely, such as area-chance")


_WHOLE = "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl"
_ASYNC = "--async-scheduling/--no-async-scheduling"
_CACHE = "--enable-prefix-caching/--no-enable-prefix-caching"
ENGINE = (
    option("--num-gpu-blocks N", int, "Blocks of KV cache of vllm, instead of --memory."),
    option("--block-size T", int, "Tokens per block (default: 16 for vllm, otherwise 1)."),
    option("--max-num-seqs B", int, "Maximum number of requests that an engine runs at once."),
    option("--max-num-batched-tokens B", int, "Maximum number of tokens in a batch of an engine."),
    option("--scheduling-policy P", str, "Order of vllm: fcfs, or priority (a column of TRACE)."),
    option("--watermark X", float, "Share of memory that admissions to an engine leave free."),
    flag(_WHOLE, "Whether vllm admits only prompts that fit whole.", default=None),
    flag(_ASYNC, "Whether vllm forms a batch while the one before it runs.", default=None),
    flag(_CACHE, "Whether vllm finds the blocks of requests that begin alike.", default=None),
)


@command(
    TRACE,
    option(
        "--policy P", str, "Such as a-min, alpha-greedy:0.2 or wait:100=12,500=4.", required=True
    ),
    KNOWLEDGE,
    CLOCK,
    *ENGINE,
    HTML,
    LOG,
    option("--batches FILE", Written(check_log), "Write each batch of vllm, as --log does."),
    option("--hash-block T", int, "Tokens per id of the column hash_ids (Mooncake: 512)."),
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
    log: str | None,
    batches: str | None,
    hash_block: int | None,
    **known: Any,
) -> int:
    """Run one policy and record everything that happened."""
    from optsched.policies import get_policy

    chosen = of_engine(get_policy(policy), known)
    take(known, *(str(each.name) for each in ENGINE))
    only_for("hash_block", instance.hash_ids is not None, "for a TRACE with hash_ids")
    if hash_block is not None:
        instance = instance.replace(hash_block=hash_block)
    only_for("batches", chosen.needs.kind == "vllm", f"for the policy vllm, not {policy}")
    note_unforeseen([chosen])
    warm_up = known.pop("warm_up")
    with output.progress(f"running {chosen.name}"):
        run = optsched.run(instance, chosen, _settings(known))
        metrics = run.metrics(**{} if warm_up is None else {"warm_up": warm_up})
    if log is not None:
        run.to_log(log)
    if batches is not None:
        run.to_batches(batches)
    output.show(run, metrics)
    if run.decisions is not None and run.decisions.interrupted:
        return INTERRUPTED
    return DONE if run.loop is None and run.stall is None else NO


def of_engine(policy: Any, options: dict[str, Any]) -> Policy:
    """Return a policy with what the options set of what only some policies have."""
    settings = {str(each.name): options[str(each.name)] for each in ENGINE}
    settings = {name: value for name, value in settings.items() if value is not None}
    of_policy = {field.name for field in dataclasses.fields(policy)}
    if getattr(policy, "order", None) is not None:
        of_policy -= {"scheduling_policy"}  # the order is that
    foreign = " ".join(settings.keys() - of_policy)
    named = f"for engines such as vllm, and {policy.name} has no such setting"
    only_for(foreign, not foreign, named)
    return dataclasses.replace(policy, **settings)  # type: ignore[no-any-return]


@command(
    TRACE,
    option(
        "--planner model P",
        "hindsight",
        "What plans: hindsight, beam, hindsight-exact, relax-lp or batch.",
    ),
    option("--window N", 64, "Maximum number of requests planned at once."),
    option("--horizon T", int, "Steps whose memory is planned (default: no limit)."),
    option("--every replan_interval K", 1, "Minimum number of steps between plans."),
    option("--budget S", 0.02, "Seconds for a decision; 0 leaves all to the fallback."),
    option("--fallback P", "area", "Order without a plan: area, mc-sf, mc-sf-total or fcfs."),
    option("--scenarios N", 8, "Simulated arrivals on which a plan must not lose to the fallback."),
    INTERVALS,
    option(
        "--length-estimate R",
        "posterior",
        "Estimate of outputs in intervals: lower, upper or posterior.",
        needs="--intervals",
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
    log: str | None,
    seed: int,
    intervals: str | None,
    **settings: Any,
) -> int:
    """Plan a window of waiting requests, and keep replanning."""
    from optsched.policies import RollingPolicy, get_policies, split_names

    policy = RollingPolicy(**settings)
    planned = "where a rolling horizon plans, for which --budget 0 leaves no time"
    only_for("model window horizon scenarios", policy.budget > 0, planned)
    names = ["a-min", "area-posterior"]
    if policies is not None:
        names = split_names(policies)
    elif intervals is None:
        names = list(dict.fromkeys([settings["fallback"], "mc-sf", "area"]))
    known = _settings({"intervals": intervals, "seed": seed})
    chosen = [policy, *get_policies(names)]
    comparison, code = compared_until_interrupted(instance, chosen, known, output)
    run = next(iter(comparison))
    if log is not None:
        run.to_log(log)
    output.show(comparison, {**comparison.to_dict(), "rolling": run.decisions.to_dict()})
    output.say(f"\nrolling: {run.decisions}")
    return code
