"""The commands on several workers: each on its own, or waiting for each other."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import DONE, INTERRUPTED, NO, Output, check_writable, take
from optsched.cli.given import note_unless
from optsched.cli.options import (
    CLOCK,
    HTML,
    INTERVALS,
    READING,
    TICK,
    TRACE,
    Numbers,
    Written,
    command,
    flag,
    option,
    read_instance,
    seeds_of,
)
from optsched.cli.policies import ENGINE, compared_until_interrupted, note_unforeseen, of_engine

if TYPE_CHECKING:
    from optsched.experiments.comparison import ClusterComparison
    from optsched.problem.instance import Instance
    from optsched.simulate.cluster.routing import Routing
    from optsched.simulate.replicas.result import RoutedRun

_WHOLE = Numbers(int)
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
    flag("--deadlines", "Let bf-io meet deadlines (column deadline) where possible."),
    flag("--tenants", "Let bf-io share slots among tenants (column label, such as acme/17)."),
    option("--energy-price X", 0.0, "Tokens of imbalance that a joule is worth to bf-io."),
)


@command(
    click.Argument(["trace"]),
    option("--workers G", int, "Number of workers.", required=True),
    option("--slots B", _WHOLE, "Requests per worker: one number, or one for each.", required=True),
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
    option("--memory M", _WHOLE, "Tokens that a worker holds: one number, or one for each."),
    option(
        "--slowness A", _WHOLE, "Relative time per token: one number, or one for each.", default="1"
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
    from optsched._internal.arrays import MAX_TOKENS

    # The memory of an instance is that of one worker alone; here the cluster has its own.
    memory = None if trace.startswith("family:") else MAX_TOKENS
    how |= {"memory": memory, "seconds_per_step": TICK}
    drawn = [seed] if seeds == 1 else seeds_of(trace, seed, seeds)
    return [read_instance(output, trace, seed=each, **how) for each in drawn]


def _write_report(
    output: Output, comparison: ClusterComparison, html: str, options: dict[str, Any]
) -> None:
    from optsched._internal.views import write
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
    names = split_names(policies)
    note_unforeseen(get_policies(names))
    with output.progress() as update:

        def show(run: RoutedRun) -> None:
            update(f"finished {run.router} with {run.policy}")

        found = optsched.routing_loss(instance, workers, chosen, names, on_result=show, **options)
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
