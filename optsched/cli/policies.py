"""Commands that run policies, on one worker and on several, and experiments."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched._internal.numbers import number
from optsched.cli.options import (
    CLOCK,
    DONE,
    HTML,
    INTERRUPTED,
    INTERVALS,
    JOBS,
    KNOWLEDGE,
    LISTED,
    LOG,
    MEMORY,
    NO,
    OF_GPU,
    READING,
    SEED,
    TICK,
    TRACE,
    Numbers,
    Output,
    Written,
    check_log,
    check_writable,
    command,
    flag,
    note_unless,
    only_for,
    option,
    read_instance,
    seeds_of,
    take,
)
from optsched.errors import OptschedError, is_interrupt, require_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.experiments.results import ClusterComparison
    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.simulate import RunSettings
    from optsched.simulate.cluster.routing import Routing
    from optsched.simulate.dispatch import RoutedRun


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
    from optsched.experiments.comparison import compared
    from optsched.policies import split_names

    warm_up = known.pop("warm_up")
    settings = _settings(known)
    chosen = [
        on_its_gpu(policy)
        for policy in compared(None if policies is None else split_names(policies), settings)
    ]
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
    if settings.clock is not None:
        _say_measured(instance, output)
    able = comparison.best_deployable
    for policy in chosen:
        options = getattr(policy, "serving_options", None)
        if able is not None and able.policy == policy.name and options is not None:
            output.say(options(known["clock"]))
            if getattr(policy, "fair", False) and instance.weights is not None:
                output.say('In place of true say the weights of clients, such as {"a": 2}.')
    return code


def _say_measured(instance: Instance, output: Output) -> None:
    """Say what the log has measured of its requests, if it has."""
    import numpy as np

    from optsched.workloads import read_measured

    given = click.get_current_context().params
    how = {name: given[name] for name in ("columns", "time_unit")}
    if given["trace"].startswith("family:") or given["skip_invalid"] or given["rate"] is not None:
        return  # or they are not those requests, or did not arrive so
    try:
        for limit in (100, given["limit"]):  # most logs measure nothing: their head says so
            log = read_measured(given["trace"], instance.memory, limit=limit, **how)[1]
    except OptschedError:
        return
    for name, times in (("latency", log.latency), ("TTFT", log.first_token)):
        if len(known := times[np.isfinite(times)]):
            mean, tail = number(known.mean()), number(np.percentile(known, 99))
            output.say(f"measured in {given['trace']}: {name} mean {mean} s, p99 {tail} s")


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
    from optsched.experiments.results import ClusterComparison, Comparison

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
_LONG, _PARTS = "long-prefill-token-threshold-adaptive", "enable-chunked-prefill"
ENGINE = (
    option("--num-gpu-blocks N", int, "Blocks of KV cache of vllm, instead of --memory."),
    option("--block-size T", int, "Tokens per block (default: 16 for vllm, otherwise 1)."),
    option("--max-num-seqs B", int, "Maximum number of requests that an engine runs at once."),
    option("--max-num-active-seqs B", int, "The same of vllm, where it is less."),
    option("--max-num-batched-tokens B", int, "Maximum number of tokens in a batch of an engine."),
    option("--max-model-len T", int, "Most tokens of a request of vllm; longer ones are refused."),
    option("--long-prefill-token-threshold T", int, "Most tokens of a request in a batch of vllm."),
    flag(f"--{_LONG}/--no-{_LONG}", "Whether that is never less than a fair share.", default=None),
    option("--prefill-schedule-interval N", int, "Batches of vllm from prompts to prompts."),
    flag(f"--{_PARTS}/--no-{_PARTS}", "Whether vllm computes prompts in parts.", default=None),
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
    if clients := run.by_client():
        metrics["clients"] = clients
    output.show(run, metrics)
    for each in sorted(clients, key=lambda client: -client["requests"])[:LISTED]:
        if each["completed"]:
            output.say(
                f"  client {each['client']}: {each['completed']:,} of {each['requests']:,} "
                f"requests, latency mean {number(each['mean_latency'])}, "
                f"p99 {number(each['p99_latency'])} {run.unit}"
            )
    if run.decisions is not None and run.decisions.interrupted:
        return INTERRUPTED
    return DONE if run.loop is None and run.stall is None else NO


def on_its_gpu(policy: Any) -> Policy:
    """Return a policy, that of vLLM with what it does on the GPU that was named."""
    if policy.needs.kind == "vllm":
        policy = dataclasses.replace(policy, **click.get_current_context().meta.get(OF_GPU, {}))
    return policy  # type: ignore[no-any-return]


def of_engine(policy: Any, options: dict[str, Any]) -> Policy:
    """Return a policy with what the options set of what only some policies have."""
    settings = {str(each.name): options[str(each.name)] for each in ENGINE}
    settings = {name: value for name, value in settings.items() if value is not None}
    policy = on_its_gpu(policy)
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
    option("--method M", "auto", "What solves it: auto, highs, cp-sat, or dp for batch."),
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
    only_for("model method window horizon scenarios", policy.budget > 0, planned)
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
    from optsched.experiments.regret import regret_into
    from optsched.experiments.regret_cells import overload_threshold
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


_WHOLE_NUMBERS = Numbers(int)
_OF_BF_IO = (
    option(
        "--lookahead H",
        Numbers(int, "adaptive"),
        "Steps to look ahead: one number, several, or adaptive.",
        default="20",
    ),
    option("--method", ["swap", "greedy", "highs", "cp-sat"], "How bf-io solves a step."),
    option("--time-limit S", float, "Seconds per step that highs and cp-sat may take."),
    option("--patience N", int, "Most steps that a request waits.", needs="--dispatch pool"),
)


@command(
    click.Argument(["trace"]),
    option("--workers G", int, "Number of workers.", required=True),
    option(
        "--slots B",
        _WHOLE_NUMBERS,
        "Requests per worker: one number, or one for each.",
        required=True,
    ),
    option(
        "--policies A,B", "fcfs,jsq,lpt,bf-io", "Routing policies; also round-robin and power-of-d."
    ),
    _OF_BF_IO,
    option("--reveal R", 128, "Maximum number of waiting requests that the router sees."),
    option("--steps K", int, "Stop after K steps (default: when done)."),
    flag("--drain", "After --steps reveal no more requests, but finish those in view."),
    option("--warm-up N", int, "Steps left out of the metrics (default: up to 300)."),
    option("--dispatch", ["pool", "instant"], "Route when a slot is free, or on arrival."),
    option("--drift D", Numbers(float), "Tokens gained per step (several: by age).", default="1"),
    option(
        "--memory M", _WHOLE_NUMBERS, "Tokens that a worker holds: one number, or one for each."
    ),
    option(
        "--slowness A",
        _WHOLE_NUMBERS,
        "Relative time per token: one number, or one for each.",
        default="1",
    ),
    option("--overhead overhead_s S", 5e-3, "Seconds of a step in addition to its tokens."),
    option("--seconds-per-token S", 9.2e-8, "Seconds per token of the fullest worker."),
    option("--seeds N", 1, "Traces drawn from a family; all policies run on the same ones."),
    HTML,
    READING,
    runs=(
        "cluster trace.csv --workers 2 --slots 4",
        "cluster family:lognormal,n=600 --workers 4 --slots 16 --steps 200 --html report.html",
    ),
)
def cluster(output: Output, warm_up: int | None, **options: Any) -> int:
    """Route requests to workers that wait for the slowest."""
    from optsched.simulate import RunSettings
    from optsched.simulate.cluster import Cluster

    facts = Cluster(
        **take(options, "workers", "slots", "overhead_s", "seconds_per_token", "slowness", "memory")
    )
    chosen = _routings(**take(options, "policies", *(str(each.name) for each in _OF_BF_IO)))
    read = take(options, "trace", "seeds", "limit", "skip_invalid")
    traces = _traces(output, seed=options["seed"], **read)
    settings = RunSettings(cluster=facts, record_loads=output.html is not None, **options)
    comparison, code = compared_until_interrupted(traces, chosen, settings, output, warm_up)
    if output.html is not None:
        _write_report(output, comparison, output.html, options)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


def _routings(policies: str, lookahead: Any, **how: Any) -> list[Routing]:
    """Return the policies, with one BF-IO for each lookahead."""
    from optsched.simulate.cluster import get_routing

    names = [name.strip() for name in policies.split(",")]
    note_unless("bf-io" in names, " ".join(["lookahead", *how]), "for the policy bf-io")
    windows = lookahead if isinstance(lookahead, list) else [lookahead]
    routings: list[Routing] = []
    for name in names:
        if name != "bf-io":
            routings.append(get_routing(name))
            continue
        for window in windows:
            shown = "bf-io" if len(windows) == 1 else f"bf-io H={window}"
            routings.append(get_routing(name, lookahead=window, name=shown, **how))
    return routings


def _traces(output: Output, trace: str, seed: int, seeds: int, **how: Any) -> list[Instance]:
    from optsched._internal.arguments import MAX_TOKENS

    # The memory of an instance is that of one worker alone; here the cluster has its own.
    memory = None if trace.startswith("family:") else MAX_TOKENS
    how |= {"memory": memory, "seconds_per_step": TICK}
    drawn = [seed] if seeds == 1 else seeds_of(trace, seed, seeds)
    return [read_instance(output, trace, seed=each, **how) for each in drawn]


def _write_report(
    output: Output, comparison: ClusterComparison, html: str, options: dict[str, Any]
) -> None:
    from optsched._internal.extensions import write
    from optsched.experiments.comparison import compare_lookaheads
    from optsched.simulate.cluster import BalanceRouting

    lookaheads = None
    baselines = [run.policy for run in comparison if run.lookahead is None]
    if len(baselines) < len(comparison):
        instance = next(iter(comparison)).instance
        with output.progress(f"running {BalanceRouting().name} with other lookaheads"):
            lookaheads = compare_lookaheads(
                instance,
                comparison.cluster,
                baselines=baselines,
                warm_up=comparison.warm_up,
                **options,
            )
    write("cluster_page", html, comparison, lookaheads)


@command(
    TRACE,
    option(
        "--workers G", str, "Number of workers, or memories such as 16492x2,4096x8.", required=True
    ),
    option(
        "--routers A,B",
        "round-robin,jsq,least-tokens",
        "Also random, power-of-d, least-kv, least-work, vllm-dp, vllm-dp-tokens.",
    ),
    option("--policies P,Q", "fcfs,area", "Policies of the workers; each runs with each router."),
    CLOCK[0],
    INTERVALS,
    option("--time-limit S", 60.0, "Seconds for all optima together.", beside="no --clock"),
    HTML,
    runs=(
        "route trace.csv --memory 16492 --workers 2 --routers jsq --policies fcfs,area",
        "route family:chat-and-summaries,n=60 --workers 4 --time-limit 2 --html report.html",
    ),
)
def route(
    instance: Instance, output: Output, workers: str, routers: str, policies: str, **options: Any
) -> int:
    """Prove what routers lose by placement and by order."""
    from optsched.policies import get_policies, split_names
    from optsched.problem.workers import get_routers

    chosen = get_routers(routers.replace(" ", "").split(","))
    served = [on_its_gpu(policy) for policy in get_policies(split_names(policies))]
    note_unforeseen(served)
    with output.progress() as update:

        def show(run: RoutedRun) -> None:
            update(f"finished {run.router} with {run.policy}")

        found = optsched.routing_loss(instance, workers, chosen, served, on_result=show, **options)
    output.show(found)
    return DONE


@command(
    TRACE,
    option(
        "--slo S",
        str,
        "An objective, such as ttft:p99<=2s, 500ms or 40steps; may be repeated.",
        multiple=True,
        required=True,
    ),
    option("--policies P,Q", str, "Policies of the workers; each runs with each router."),
    option("--routers A,B", "least-tokens", "Routers, as of route."),
    option("--workers G", int, "Simulate only so many workers."),
    option("--loads X,Y", Numbers(float), "The same where all arrive so many times as fast."),
    option("--cost-per-hour cost C", float, "Cost of a worker per hour, for the table."),
    option("--seeds K", int, "Meet the objectives on a family under K seeds, from --seed on."),
    flag("--at-least-only", "Only prove how many workers anyone needs."),
    INTERVALS,
    CLOCK[0],
    *ENGINE,
    option("--certificate FILE", Written(check_writable), "Write the proof, for check."),
    HTML,
    runs=(
        "capacity trace.csv --memory 16492 --slo 'latency:p90<=900steps'",
        "capacity trace.csv --memory 16492 --clock llama-2-70b-2xa100 --policies work "
        "--slo 'ttft:p90<=9s' --slo 'latency:mean<=90s'",
        "capacity family:uniform,n=40,load=2 --slo 'latency:max<=120steps' --loads 2 "
        "--html report.html",
    ),
)
def capacity(
    instance: Instance,
    output: Output,
    slo: tuple[str, ...],
    policies: str | None,
    routers: str,
    loads: float | list[float] | None,
    certificate: str | None,
    several: list[Instance] | None = None,
    **options: Any,
) -> int:
    """Find how many workers a trace needs: at least, at most."""
    from optsched.policies import get_policies, split_names
    from optsched.problem.workers import get_routers
    from optsched.serving.capacity.capacity import IN_STEPS, ON_CLOCK

    timed = options["clock"] is not None
    names = (ON_CLOCK if timed else IN_STEPS) if policies is None else split_names(policies)
    limit = options.get("max_num_seqs")
    chosen = get_policies(names)
    engines = [each.needs.kind in ("vllm", "engine") for each in chosen]
    chosen = [
        of_engine(each, options) if engine or not any(engines) else each
        for each, engine in zip(chosen, engines, strict=True)
    ]
    take(options, *(str(each.name) for each in ENGINE))
    note_unforeseen(chosen)
    speeds = [] if loads is None else loads if isinstance(loads, list) else [loads]
    with output.progress() as update:
        found = optsched.capacity(
            several or instance,
            slo,
            chosen,
            get_routers(routers.replace(" ", "").split(",")),
            loads=speeds,
            max_num_seqs=limit,
            on_progress=update,
            **options,
        )
    if certificate is not None and found.certificate is not None:
        found.certificate.to_json(certificate)
    elif certificate is not None:
        why = "no number of workers is enough" if not found.possible else "nothing is proven"
        output.note(f"{certificate} is not written, because {why}")
    content = found.to_dict()
    for entry in content["plans"]:
        entry["command"] = _again(**take(dict(entry), "policy", "router", "workers"))
    if found.interrupted:
        output.note("interrupted; this is what was known by then")
    output.show(found, content)
    if found.interrupted:
        return INTERRUPTED
    enough = found.possible if options["at_least_only"] else found.at_most is not None
    return DONE if enough else NO


def _again(policy: str, router: str, workers: int | None) -> str | None:
    """Return the command that simulates what decides."""
    if workers is None:
        return None
    words, skipped = [], {"--policies", "--routers", "--workers", "--loads", "--html", "--json"}
    skipped |= {"--certificate", "--cost-per-hour"}
    given = iter(sys.argv[1:])
    for word in given:
        if word in skipped:
            next(given, None)
        elif word.partition("=")[0] not in skipped:
            words.append(word)
    chosen = ["--policies", policy, "--routers", router, "--workers", str(workers)]
    return shlex.join(["optsched", *words, *chosen])
