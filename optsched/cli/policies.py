"""Commands that run policies, on one worker and on several, and experiments."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched._internal import rooms
from optsched._internal.numbers import number
from optsched.cli import options as cli
from optsched.cli.options import Numbers, Options, Output, Written, command, flag, option, take
from optsched.errors import OptschedError, is_interrupt, require_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched import Comparison, Instance, RunSettings
    from optsched.policies import Policy
    from optsched.problem.costs import ScheduleObjective
    from optsched.problem.execution import Run
    from optsched.simulate.cluster.routing import Routing


def _check_folder(name: str) -> None:
    folder = next(each for each in (Path(name), *Path(name).absolute().parents) if each.exists())
    if not folder.is_dir():
        raise OptschedError(f"cannot write schedules into {name}: {folder} is not a folder")
    cli.check_writable(folder / "schedule.json")


@command(
    cli.TRACE,
    option("--policies A,B", str, "Policies to compare, or module:name (default: the quick ones)."),
    option(
        "--objective O",
        str,
        "What ranks and bounds: total-latency, weighted-latency, makespan or late-requests "
        "(default: weighted where TRACE has weights, late where it has deadlines, in steps).",
    ),
    option(
        "--slo S",
        str,
        "Show the share within ttft:p99<=2s, 40steps ...; repeatable.",
        multiple=True,
    ),
    option("--seeds K", int, "Compare on a family under K seeds, from --seed on: with intervals."),
    option("--baseline P", str, "Show differences to this policy.", needs="--seeds"),
    cli.KNOWLEDGE,
    cli.CLOCK,
    cli.SERVE,
    cli.HTML,
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
def compare(output: Output, given: Options) -> int:
    """Compare policies with each other and with a proven bound."""
    from optsched.bounds.on_clock import caveats
    from optsched.experiments.comparison import compared
    from optsched.experiments.results import ClockComparison

    instance, several = given.pop("instance"), given.pop("several", None)
    policies, schedules, baseline = take(given, "policies schedules baseline").values()
    how = take(given, "warm_up objective slo")
    settings = _settings(given)
    asked = None if policies is None else optsched.policies.split_names(policies)
    listed = compared(asked, settings, several or [instance])
    of_server = cli.SERVED in click.get_current_context().meta and "vllm" in rooms.names("policy")
    if asked is None and settings.clock is not None and of_server:
        listed += optsched.policies.get_policies(_OF_SERVER)
    chosen = as_served(listed)
    note_unforeseen(chosen)
    if several is not None:
        if baseline is not None:
            require_known("baseline", baseline, [policy.name for policy in chosen])
        return _replicated(several, chosen, settings, output, how, baseline)
    comparison, code = compared_until_interrupted(instance, chosen, settings, output, **how)
    if schedules is not None:
        Path(schedules).mkdir(parents=True, exist_ok=True)
        for schedule in comparison.schedules:
            schedule.to_json(Path(schedules, f"{schedule.policy}.json"))
    if isinstance(comparison, ClockComparison) and comparison.bound is not None:
        for caveat in caveats(instance, comparison.bound.clock):
            output.note(caveat)
    output.show(comparison, comparison.to_dict() | {"left_out": dict(cli.left_out())})
    if settings.clock is not None:
        _say_measured(instance, output)
    able = comparison.best_deployable
    for policy in chosen:
        options = getattr(policy, "serving_options", None)
        if able is not None and able.policy == policy.name and options is not None:
            margin = comparison.margin
            if margin and margin["against"] == "vllm" and margin["low"] <= 0 <= margin["high"]:
                output.say("Stay with vLLM as it is, or compare on more requests.")
                continue
            output.say(options(given["clock"], _server()))
            if getattr(policy, "fair", False) and instance.weights is not None:
                output.say('In place of true say the weights of clients, such as {"a": 2}.')
    return code


def _server() -> str:
    """Return the command by which vLLM is started: the one of --serve, or one for as many GPUs."""
    context = click.get_current_context()
    shared = f" --tensor-parallel-size {gpus}" if (gpus := context.params["gpus"]) > 1 else ""
    return str(context.meta.get(cli.LINE, f"vllm serve MODEL{shared}"))


def _say_measured(instance: Instance, output: Output) -> None:
    import numpy as np

    given = click.get_current_context().params
    how = {name: given[name] for name in ("columns", "time_unit")}
    how["note"] = how["left_out"] = None  # it was read, and said so, before
    if given["trace"].startswith("family:") or given["skip_invalid"] or given["rate"] is not None:
        return  # or they are not those requests, or did not arrive so
    try:
        for limit in (100, given["limit"]):  # most logs measure nothing: their head says so
            how["limit"] = limit
            log = optsched.workloads.read_measured(given["trace"], instance.memory, **how)[1]
    except OptschedError:
        return
    for name, times in (("latency", log.latency), ("TTFT", log.first_token)):
        if len(known := times[np.isfinite(times)]):
            mean, tail = number(known.mean()), number(np.percentile(known, 99))
            output.say(f"measured in {given['trace']}: {name} mean {mean} s, p99 {tail} s")


def _replicated(
    instances: list[Instance],
    chosen: Sequence[Policy],
    settings: RunSettings,
    output: Output,
    how: Options,
    baseline: str | None,
) -> int:
    """Compare on several instances, or on those that are finished when Ctrl-C ends the rest."""
    from optsched.experiments.comparison import Replications

    parts: list[Comparison] = []
    code = cli.DONE
    for seed, instance in enumerate(instances, settings.seed):
        own = dataclasses.replace(settings, seed=seed)
        try:
            part, code = compared_until_interrupted(instance, chosen, own, output, **how)
        except BaseException as error:
            if not parts or not is_interrupt(error):
                raise
            code = cli.INTERRUPTED
        if code == cli.INTERRUPTED and parts:
            output.note(f"finished {len(parts)} of {len(instances)} instances")
            break
        parts.append(part)
    output.show(Replications(tuple(parts), baseline))
    return code


def _settings(options: Options) -> RunSettings:
    given = {name: value for name, value in options.items() if value is not None}
    return optsched.RunSettings(**given)


def compared_until_interrupted(
    traces: Instance | list[Instance],
    chosen: Sequence[Policy] | Sequence[Routing],
    settings: RunSettings,
    output: Output,
    warm_up: float | None = None,
    objective: ScheduleObjective | None = None,
    slo: Sequence[str] = (),
) -> tuple[Comparison, int]:
    """Compare policies, or what is finished of them when Ctrl-C ends the rest."""
    from optsched.experiments.comparison import goodput_of, objective_of
    from optsched.experiments.results import beside
    from optsched.experiments.side_by_side import Comparison

    several = isinstance(traces, list)  # on a cluster
    count, what = (len(chosen) * len(traces), "runs") if several else (len(chosen), "policies")
    runs: dict[str, list[Run]] = {}
    seconds: list[float] = []

    def keep(run: Run, taken: float) -> None:
        runs.setdefault(run.policy, []).append(run)
        seconds.append(taken)
        update(f"finished {len(seconds)} of {count} {what}")

    def report(done: int, requests: int) -> None:
        plans = "" if several else " (Ctrl-C: no more plans)"  # of a rolling horizon
        update(f"{done:,} of {requests:,} requests{plans}")

    how: Options = {"warm_up": warm_up, "on_result": keep, "on_progress": report}
    how |= {"objective": objective, "slo": slo}
    with output.progress() as update:
        try:
            whole = optsched.compare(traces, chosen, settings, **how)
            assert isinstance(whole, Comparison)
            if slo:
                update("bounding the share within the objectives")
                _ = whole.attained_bound
            return whole, cli.DONE
        except BaseException as error:
            if not seconds or not is_interrupt(error):
                raise
    note = f"interrupted after {len(seconds)} of {count} {what}"
    if several:
        # Traces that all policies have run on; of the first one those that are done.
        done = len(seconds) // len(chosen) or 1
        runs = {policy: each[:done] for policy, each in runs.items()}
    output.note(note if several else f"{note}; the bound is that in closed form")
    known = objective_of(traces if isinstance(traces, list) else [traces], settings, objective)
    found = beside(runs, seconds, settings, warm_up, known, goodput_of(slo, settings))
    return found.bounded(method="closed-form"), cli.INTERRUPTED


def note_unforeseen(policies: Sequence[Policy]) -> None:
    """Note intervals for which no policy asks, and refuse what is likely where none does."""
    look = any(each.foresees != "nothing" or each.needs.knows != "either" for each in policies)
    cli.note_unless(look, "intervals", "for policies that foresee outputs, such as a-min")
    asks = any(each.foresees == "beliefs" for each in policies)
    cli.only_for(
        "history log_error", asks, "for policies that ask what is likely, such as area-chance"
    )


def _switch(name: str, text: str) -> cli.Option:
    return flag(f"--{name}/--no-{name}", text, default=None)


ENGINE = (
    cli.SERVE,
    option("--num-gpu-blocks N", int, "Blocks of KV cache of vllm, instead of --memory."),
    option("--block-size T", int, "Tokens per block (default: 16 for vllm, otherwise 1)."),
    option("--max-num-seqs B", int, "Maximum number of requests that an engine runs at once."),
    option("--max-num-batched-tokens B", int, "Maximum number of tokens in a batch of an engine."),
    option("--scheduling-policy P", str, "Order of vllm: fcfs, or priority (a column of TRACE)."),
    option("--watermark X", float, "Share of memory that admissions to an engine leave free."),
    _switch("scheduler-reserve-full-isl", "Whether vllm admits only prompts that fit whole."),
    _switch("async-scheduling", "Whether vllm forms a batch while the one before it runs."),
    _switch("enable-prefix-caching", "Whether vllm finds the blocks of requests that begin alike."),
)
ENGINE_NAMES = cli.names_of(ENGINE[1:])


@command(
    cli.TRACE,
    option(
        "--policy P", str, "Such as a-min, alpha-greedy:0.2 or wait:100=12,500=4.", required=True
    ),
    cli.KNOWLEDGE,
    cli.CLOCK,
    *ENGINE,
    cli.HTML,
    cli.LOG,
    option("--batches FILE", Written(cli.check_log), "Write each batch of vllm, as --log does."),
    runs=(
        "simulate trace.csv --memory 16492 --policy area --log attempts.csv",
        "simulate family:uniform,n=50 --policy a-min --intervals relative:0.5",
        "simulate trace.csv --memory 16480 --policy sarathi --clock llama-2-70b-2xa100",
    ),
)
def simulate(output: Output, given: Options) -> int:
    """Run one policy and record everything that happened."""
    instance: Instance = given.pop("instance")
    policy, log, batches = take(given, "policy log batches").values()
    chosen = of_engine(optsched.policies.get_policy(policy), given)
    cli.only_for("batches", chosen.needs.kind == "vllm", f"for the policy vllm, not {policy}")
    note_unforeseen([chosen])
    warm_up = given.pop("warm_up")
    with output.progress(f"running {chosen.name}"):
        run = optsched.run(instance, chosen, _settings(given))
        metrics = run.metrics(**{} if warm_up is None else {"warm_up": warm_up})
    if log is not None:
        run.to_log(log)
    if batches is not None:
        run.to_batches(batches)
    if clients := run.by_client():
        metrics["clients"] = clients
    output.show(run, metrics)
    for each in sorted(clients, key=lambda client: -client["requests"])[: cli.LISTED]:
        if each["completed"]:
            output.say(
                f"  client {each['client']}: {each['completed']:,} of {each['requests']:,} "
                f"requests, latency mean {number(each['mean_latency'])}, "
                f"p99 {number(each['p99_latency'])} {run.unit}"
            )
    if run.decisions is not None and run.decisions.interrupted:
        return cli.INTERRUPTED
    return cli.DONE if run.loop is None and run.stall is None else cli.NO


#: What a server can do: its own order, and the plugin's by default.
_OF_SERVER = ("vllm", "vllm:area,load+plan+learned")


def as_served(policies: Iterable[Any]) -> list[Any]:
    """Return policies, that of vLLM with what its server was told, or does on the GPU."""
    served, made = click.get_current_context().meta.get(cli.SERVED, {}), list(policies)
    of_vllm = [each.needs.kind == "vllm" for each in made]
    cli.note_unless(any(of_vllm), "serve", "for the policy vllm, but for the memory that it says")
    return [
        dataclasses.replace(each, **served) if engine else each
        for each, engine in zip(made, of_vllm, strict=True)
    ]


def of_engine(policy: Policy, options: Options) -> Policy:
    """Take out of the options what only some policies have; return a policy with what was set."""
    settings = take(options, ENGINE_NAMES)
    settings = {name: value for name, value in settings.items() if value is not None}
    (chosen,) = as_served([policy])
    of_policy = {field.name for field in dataclasses.fields(chosen)}
    if getattr(policy, "order", None) is not None:
        of_policy -= {"scheduling_policy"}  # the order is that
    foreign = " ".join(settings.keys() - of_policy)
    named = f"for engines such as vllm, and {policy.name} has no such setting"
    cli.only_for(foreign, not foreign, named)
    found: Policy = dataclasses.replace(chosen, **settings)
    return found


@command(
    cli.TRACE,
    option(
        "--planner model P",
        "hindsight",
        "What plans: hindsight, beam, hindsight-exact, relax-lp or batch.",
    ),
    option("--method M", "auto", "What solves it: auto, highs, cp-sat, or dp for batch."),
    option("--window N", 64, "Maximum number of requests planned at once."),
    option("--horizon T", int, "Steps whose memory is planned (default: no limit)."),
    option("--every replan_interval K", 1, "Minimum number of steps between plans."),
    option(
        "--work W",
        float,
        "Units of work for a decision (default: 0.0015; solvers go by time).",
        beside="no --budget",
    ),
    option("--budget S", float, "Seconds for a decision, in place of work; 0: fallback alone."),
    option("--fallback P", "area", "Order without a plan: area, mc-sf, mc-sf-total or fcfs."),
    option("--scenarios N", 8, "Simulated arrivals on which a plan must not lose to the fallback."),
    cli.INTERVALS,
    option(
        "--length-estimate R",
        "posterior",
        "Estimate of outputs in intervals: lower, upper or posterior.",
        needs="--intervals",
    ),
    option("--policies A,B", str, "Policies to compare it with (default: suitable ones)."),
    cli.HTML,
    cli.LOG,
    runs=(
        "rolling trace.csv --memory 16492",
        "rolling family:uniform,n=50 --window 16 --work 0.01 --html report.html",
    ),
)
def rolling(output: Output, given: Options) -> int:
    """Plan a window of waiting requests, and keep replanning."""
    instance, policies, log = take(given, "instance policies log").values()
    known = _settings(take(given, "intervals seed"))
    policy = optsched.RollingPolicy(**given)
    planned = "where a rolling horizon plans, for which --budget 0 leaves no time"
    cli.only_for("model method window horizon scenarios", policy.seconds > 0, planned)
    names = ["a-min", "area-posterior"]
    if policies is not None:
        names = optsched.policies.split_names(policies)
    elif known.intervals is None:
        names = list(dict.fromkeys([given["fallback"], "mc-sf", "area"]))
    chosen = [policy, *optsched.policies.get_policies(names)]
    comparison, code = compared_until_interrupted(instance, chosen, known, output)
    run = next(iter(comparison))
    if log is not None:
        run.to_log(log)
    output.show(comparison, {**comparison.to_dict(), "rolling": run.decisions.to_dict()})
    output.say(f"\nrolling: {run.decisions}")
    return code


@command(
    click.Argument(["source"], metavar="TRACE"),
    cli.MEMORY,
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
    cli.CLOCK[0],
    option("--time-limit S", 0.0, "Seconds of hindsight search per instance.", needs="no --clock"),
    flag("--threshold", "Find the load that overloads each policy.", needs="no --clock"),
    cli.JOBS,
    option("--keep-instances DIR", click.Path(), "Keep the result of each instance in a folder."),
    flag("--resume", "Resume with what is in the folder.", needs="--keep-instances"),
    cli.SEED,
    cli.HTML,
    runs=(
        "regret family:equal-prompts --horizons 100,300 --seeds 2",
        "regret trace.csv --memory 16492 --horizons 100,300 --seeds 2 --html report.html",
        "regret trace.csv --memory 16492 --clock llama-2-70b-2xa100 --horizons 10,30 --seeds 2",
    ),
)
def regret(output: Output, given: Options) -> int:
    """Compare online policies with the optimum in hindsight."""
    from optsched.experiments.regret_cells import overload_threshold

    source, policies, seed, threshold = take(given, "source policies seed threshold").values()
    names, seeds = optsched.policies.split_names(policies), given["seeds"]
    given["seeds"] = range(seed, seed + seeds) if seeds > 0 else seeds
    with output.progress() as update:
        result = optsched.regret(source, names, on_progress=update, **given)
        code = cli.DONE if result.status == "complete" else cli.INTERRUPTED
        try:
            for name in names if threshold and code == cli.DONE else ():
                update(f"searching the threshold of {name}")
                first = range(seed, seed + 3)
                found = overload_threshold(source, name, memory=given["memory"], seeds=first)
                result = replace(result, thresholds=(*result.thresholds, found))
        except KeyboardInterrupt:
            code = cli.INTERRUPTED
    output.show(result)
    if code == cli.INTERRUPTED:
        rest = "" if given["keep_instances"] is None else "; --resume does the others"
        output.note(f"interrupted; {len(result.cells)} instances were finished{rest}")
    return code


@command(
    click.Argument(["config"]),
    option("--out DIR", click.Path(), "Folder of the results (Parquet).", required=True),
    option("--executor", ["local", "dask"], "Processes of this machine, or a cluster."),
    option("--address TCP", str, "Dask scheduler, such as tcp://10.0.0.1:8786."),
    cli.JOBS,
    flag("--resume", "Resume with what is in the folder."),
    cli.SEED,
    cli.HTML,
    runs=("sweep sweep.toml --out results", "sweep sweep.toml --out results --resume"),
)
def sweep(output: Output, given: Options) -> int:
    """Run the instances, policies and seeds of a TOML file."""
    if given["executor"] == "dask":
        with contextlib.suppress(ImportError):
            import distributed  # noqa: F401 - sets its loggers up
        # What matters comes as an error of ours, in one sentence.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with output.progress("reading the sweep") as update:
        result = optsched.sweep(**given, on_progress=update)
    output.show(result)
    if result.status == "interrupted":
        output.note(f"interrupted; --resume does the other {result.runs - result.done:,} runs")
        return cli.INTERRUPTED
    return cli.DONE


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
    option("--seeds N", 1, "Traces drawn from a family; all policies run on the same ones."),
    cli.HTML,
    cli.READING,
    runs=(
        "cluster trace.csv --workers 2 --slots 4",
        "cluster family:lognormal,n=600 --workers 4 --slots 16 --steps 200 --html report.html",
    ),
)
def cluster(output: Output, given: Options) -> int:
    """Route requests to workers that wait for the slowest."""
    warm_up = given.pop("warm_up")
    names = "workers slots overhead_s slowness memory"
    facts = optsched.Cluster(**take(given, names))
    chosen = _routings(take(given, f"policies {cli.names_of(_OF_BF_IO)}"))
    read = take(given, "trace seeds limit skip_invalid")
    traces = _traces(output, given["seed"], read)
    settings = optsched.RunSettings(cluster=facts, record_loads=output.html is not None, **given)
    comparison, code = compared_until_interrupted(traces, chosen, settings, output, warm_up)
    if output.html is not None:
        _write_report(output, comparison, output.html, given)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


def _routings(how: Options) -> list[Routing]:
    from optsched.simulate.cluster import get_routing

    names = [name.strip() for name in how.pop("policies").split(",")]
    cli.note_unless("bf-io" in names, " ".join(how), "for the policy bf-io")
    lookahead = how.pop("lookahead")
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


def _traces(output: Output, seed: int, how: Options) -> list[Instance]:
    from optsched._internal.arguments import MAX_TOKENS

    trace, seeds = take(how, "trace seeds").values()
    # The memory of an instance is that of one worker alone; here the cluster has its own.
    memory = None if trace.startswith("family:") else MAX_TOKENS
    how |= {"memory": memory, "seconds_per_step": cli.TICK}
    drawn = [seed] if seeds == 1 else cli.seeds_of(trace, seed, seeds)
    return [cli.read_instance(output, trace, seed=each, **how) for each in drawn]


def _write_report(output: Output, comparison: Comparison, html: str, how: Options) -> None:
    from optsched._internal.views import write
    from optsched.experiments.comparison import compare_lookaheads
    from optsched.experiments.results import ClusterComparison
    from optsched.simulate.cluster import BalanceRouting

    assert isinstance(comparison, ClusterComparison)
    lookaheads = None
    baselines = [run.policy for run in comparison if run.lookahead is None]
    if len(baselines) < len(comparison):
        how = {"baselines": baselines, "warm_up": comparison.warm_up, **how}
        with output.progress(f"running {BalanceRouting().name} with other lookaheads"):
            lookaheads = compare_lookaheads(comparison.instance, comparison.cluster, **how)
    write("cluster_page", html, comparison, lookaheads)


@command(
    cli.TRACE,
    option(
        "--workers G", str, "Number of workers, or memories such as 16492x2,4096x8.", required=True
    ),
    option(
        "--routers A,B",
        "round-robin,jsq,least-tokens",
        "Also random, power-of-d, least-kv, least-work, vllm-dp, vllm-dp-tokens, by-cost, "
        "by-cost-known; jsq@0.1 sees counts every 0.1 s.",
    ),
    option("--policies P,Q", "fcfs,area", "Policies of the workers; each runs with each router."),
    cli.CLOCK[0],
    cli.SERVE,
    cli.INTERVALS,
    option("--time-limit S", 60.0, "Seconds for all optima together.", beside="no --clock"),
    cli.HTML,
    runs=(
        "route trace.csv --memory 16492 --workers 2 --routers jsq --policies fcfs,area",
        "route family:chat-and-summaries,n=60 --workers 4 --time-limit 2 --html report.html",
    ),
)
def route(output: Output, given: Options) -> int:
    """Prove what routers lose by placement and by order."""
    from optsched.problem.workers import get_routers

    given["routers"] = get_routers(given["routers"].replace(" ", "").split(","))
    names = optsched.policies.split_names(given.pop("policies"))
    served = as_served(optsched.policies.get_policies(names))
    note_unforeseen(served)
    with output.progress() as update:
        given["on_result"] = lambda run: update(f"finished {run.router} with {run.policy}")
        output.show(optsched.routing_loss(**given, policies=served))
    return cli.DONE
