"""The command on a cluster whose workers wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import INTERRUPTED, Finished, Output, check_writable, take
from optsched.cli.given import note_unless, only_for
from optsched.cli.options import (
    HTML,
    READING,
    TICK,
    Numbers,
    command,
    flag,
    option,
    read_instance,
    seeded,
)
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched.cluster import ClusterRun
    from optsched.cluster.routing import Routing
    from optsched.comparison import ClusterComparison
    from optsched.instance import Instance

_WHOLE = Numbers(int)
_GOALS = ("deadlines", "tenants", "energy_price")
_OF_BF_IO = ("lookahead", "patience", "method", "time_limit", *_GOALS)


@command(
    click.Argument(["trace"]),
    option("--workers G", int, "Number of workers.", required=True),
    option(
        "--slots B",
        _WHOLE,
        "Requests per worker: one number, or one per worker separated by commas.",
        required=True,
    ),
    option(
        "--policies A,B",
        "fcfs,jsq,lpt,bf-io",
        "Routing policies: fcfs, jsq, round-robin, power-of-d, lpt, bf-io.",
    ),
    option(
        "--lookahead H",
        Numbers(int, "adaptive"),
        "Lookahead of bf-io in steps: one number, several separated by commas, or adaptive.",
        default="20",
    ),
    option(
        "--method M",
        ["swap", "greedy", "highs", "cp-sat"],
        "How bf-io solves a step; highs and cp-sat prove the assignment optimal.",
    ),
    option("--time-limit S", float, "Seconds per step that highs and cp-sat may take."),
    option("--patience N", int, "Steps that bf-io lets a request wait (from the pool)."),
    flag("--deadlines", "Let bf-io meet deadlines (column deadline) where possible."),
    flag("--tenants", "Let bf-io share slots among tenants (column label, such as acme/17)."),
    option(
        "--energy-price X", 0.0, "Tokens of imbalance that a joule is worth to bf-io (linearised)."
    ),
    option("--reveal R", 128, "Maximum number of waiting requests that the router sees."),
    option("--steps K", int, "Stop after K steps (default: when done)."),
    flag("--drain", "After --steps reveal no more requests, but finish those in view."),
    option("--warm-up N", int, "Steps left out of the metrics (default: up to 300)."),
    option(
        "--dispatch D",
        ["pool", "instant"],
        "When a request is routed: when a slot is free (pool), or on arrival (instant).",
    ),
    option(
        "--drift D",
        Numbers(float),
        "Tokens that a request gains per step, such as 0.5; several with commas go by its age.",
        default="1",
    ),
    option("--memory M", _WHOLE, "Tokens that a worker holds; or one number per worker."),
    option(
        "--slowness A",
        _WHOLE,
        "Relative time per token: one number, or one per worker.",
        default="1",
    ),
    option(
        "--overhead overhead_s S",
        5e-3,
        "Seconds that a step takes on top of its tokens (C in BF-IO).",
    ),
    option(
        "--seconds-per-token S", 9.2e-8, "Seconds per token of the fullest worker (t_l in BF-IO)."
    ),
    option("--seeds N", 1, "Traces drawn from a family; all policies run on the same ones."),
    HTML,
    [each for each in READING if each.name != "seconds_per_step"],  # seconds stay seconds
    runs=(
        "cluster trace.csv --workers 2 --slots 4",
        "cluster family:lognormal,n=600 --workers 4 --slots 16 --steps 200 --html report.html",
    ),
)
def cluster(output: Output, html: str | None, warm_up: int | None, **options: Any) -> int:
    """Route requests to workers that wait for the slowest."""
    from optsched.cluster import Cluster
    from optsched.comparison import ClusterComparison
    from optsched.simulate import RunSettings

    check_writable(html)
    _note_unused(options)
    facts = Cluster(
        **take(options, "workers", "slots", "overhead_s", "seconds_per_token", "slowness", "memory")
    )
    chosen = _routings(**take(options, "policies", *_OF_BF_IO))
    reading = ("trace", "seed", "seeds", "limit", "skip_invalid")
    traces = _traces(output, **take(options, *reading))
    settings = RunSettings(cluster=facts, record_loads=html is not None, **options)
    count = len(chosen) * len(traces)
    comparison: ClusterComparison | None = None
    with output.progress() as update, Finished(count, "runs", update) as done:
        comparison = optsched.compare(traces, chosen, settings, warm_up=warm_up, on_result=done.add)
    if done.code == INTERRUPTED:
        output.note(f"interrupted after {done}")
    if comparison is None:
        # Traces that all policies have run on; of the first one those that are done.
        whole = len(done.results) // len(chosen) * len(chosen) or None
        runs: dict[str, list[ClusterRun]] = {}
        for run in done.results[:whole]:
            runs.setdefault(run.policy, []).append(run)
        comparison = ClusterComparison(runs, tuple(done.seconds), settings, warm_up)
    if html is not None:
        _write_report(output, comparison, html, options)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return done.code


def _note_unused(options: dict[str, Any]) -> None:
    """Note options that count only beside others, or refuse them."""
    from optsched.cluster.routing import SOLVERS

    bf_io = "bf-io" in [name.strip() for name in options["policies"].split(",")]
    note_unless(bf_io, " ".join(_OF_BF_IO), "the policy bf-io")
    solved = options["method"] in SOLVERS or not bf_io
    only_for("time_limit", solved, "the methods highs and cp-sat", "pass one as --method")
    pool = options["dispatch"] == "pool"
    only_for("patience", pool, "requests that wait until they are routed", "take --dispatch pool")


def _routings(policies: str, lookahead: Any, **how: Any) -> list[Routing]:
    """Return the policies, with one BF-IO for each lookahead."""
    from optsched.cluster import get_routing

    windows = lookahead if isinstance(lookahead, list) else [lookahead]
    routings: list[Routing] = []
    for name in map(str.strip, policies.split(",")):
        if name != "bf-io":
            routings.append(get_routing(name))
            continue
        for window in windows:
            shown = "bf-io" if len(windows) == 1 else f"bf-io H={window}"
            routings.append(get_routing(name, lookahead=window, name=shown, **how))
    return routings


def _traces(output: Output, trace: str, seed: int, seeds: int, **how: Any) -> list[Instance]:
    from optsched._internal.arrays import MAX_TOKENS

    family = trace.startswith("family:")
    one = not family or "seed=" in trace
    if seeds < 1 or (seeds > 1 and one):
        raise OptschedError(
            f"--seeds is {seeds}, but only a family without a seed of its own has several; leave "
            "it out"
        )
    names = [seeded(trace, seed + number) for number in range(seeds)] if family else [trace]
    # The memory of an instance is that of one worker alone; here the cluster has its own.
    how["seconds_per_step"] = TICK
    return [read_instance(output, name, None if family else MAX_TOKENS, **how) for name in names]


def _write_report(
    output: Output, comparison: ClusterComparison, html: str, options: dict[str, Any]
) -> None:
    from optsched._internal.views import write
    from optsched.cluster import BalanceRouting
    from optsched.comparison import compare_lookaheads

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
