"""Commands for models: a batch selected, a program written to a file, thresholds of WAIT."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import DONE, Output, check_writable, take
from optsched.cli.given import note_unless, only_for
from optsched.cli.optima import OBJECTIVES
from optsched.cli.options import (
    MEMORY,
    SKIP_INVALID,
    TICK,
    TRACE,
    Numbers,
    command,
    flag,
    option,
    path,
    read_instance,
    seeded,
)
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.models import BalanceState, StepGoals
    from optsched.models.fluid.nested import NestedWaitPlan
    from optsched.models.fluid.wait import WaitPlan
    from optsched.models.program import Program
    from optsched.workloads.request_types import RequestTypes


@command(
    TRACE,
    option("--method M", "dp", "How to select: dp, scaled-dp, swap, quantile or mip."),
    option(
        "--fit F",
        "peak",
        "What must fit: the sum of peaks, or the profile step by step (mip only).",
    ),
    option("--epsilon X", 0.1, "Relative error that scaled-dp may make."),
    option("--time-limit S", float, "Seconds that mip may take."),
    runs=("select trace.csv --memory 16492 --method dp",),
)
def select(
    instance: Instance,
    output: Output,
    method: str,
    fit: Any,
    time_limit: float | None,
    **params: Any,
) -> int:
    """Select the batch of least F that fits into the memory."""
    only_for("epsilon", method == "scaled-dp", "--method scaled-dp", "choose it")
    only_for("time_limit", method == "mip", "--method mip", "choose it")
    selection = optsched.BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
    with output.progress("selecting"):
        found = optsched.solve(
            selection, time_limit=time_limit, method=method, params=optsched.SolveParams(**params)
        )
    batch, seconds = found.require().answer, found.seconds
    requests, ratio = batch.requests.tolist(), float(batch.ratio)
    labels = ", ".join(map(instance.label, requests))
    output.say(f"F = {ratio:.6g} with {len(batch)} requests in {seconds:.3f} s: {labels}")
    content = {"requests": requests, "F": ratio, "seconds": seconds, "factor": batch.factor}
    output.result(content)
    return DONE


@command(
    TRACE,
    option(
        "--model M",
        ["hindsight", "relaxation", "batch", "balance"],
        "Which model: hindsight (OPT-IP), relaxation (Relax-LP), batch (selection of one), or "
        "balance (the first step of a cluster, (IO)); thresholds and throughput have --out "
        "for theirs.",
    ),
    option("--objective O", "total-latency", f"What hindsight minimises: {OBJECTIVES}"),
    option("--horizon T", int, "Last step (default: one that is proven to suffice)."),
    option("--size K", int, "Number of requests in the batch."),
    option(
        "--workers G",
        str,
        "balance: number of workers, all empty. hindsight: those among which requests are placed, "
        "their number or memories such as 100,50x4.",
    ),
    option("--slots B", int, "balance: requests that each of them may run."),
    option("--lookahead H", 20, "balance: steps to look ahead."),
    flag("--deadlines", "balance: keep deadlines (column deadline)."),
    flag("--tenants", "balance: share slots among tenants (column label, such as acme/17)."),
    option("--energy-price X", 0.0, "balance: tokens of imbalance that a joule is worth."),
    path("--out", "Write a file that ends in .mps or .lp.", required=True),
    runs=(
        "export family:uniform,n=8 --out program.lp",
        "export family:uniform,n=8 --workers 2 --out joint.mps",
        "export family:uniform,n=8 --model balance --workers 2 --slots 3 --out step.lp",
        "export trace.csv --memory 16492 --model balance --workers 2 --slots 3 "
        "--energy-price 1000 --out step.lp",
    ),
)
def export(
    instance: Instance,
    output: Output,
    model: str,
    objective: Any,
    horizon: int | None,
    size: int | None,
    out: str,
    seed: int,
    **cluster: Any,
) -> int:
    """Write a model to a file for another solver."""
    from optsched.models import HindsightProgram, LatencyRelaxation
    from optsched.optimum.solving import proven_horizon
    from optsched.workers import as_workers

    _check_out(out)
    _note_unused(model)
    program: Program
    if model == "batch":
        program = _batch(instance, size)
    elif model == "balance":
        program = _first_step(instance, **cluster)
    else:
        workers = as_workers(cluster["workers"] or 1, instance)
        end = proven_horizon(instance, objective, workers) if horizon is None else horizon
        if model == "relaxation":
            program = LatencyRelaxation(instance, end)
        else:
            program = HindsightProgram(instance, end, objective, workers=workers)
    linear = program.to_linear()
    with output.progress(f"writing {out}"):
        optsched.write_model(linear, out)
    output.say(f"{linear}\nwritten to {out}")
    rows, columns = linear.matrix.shape
    nonzeros = int(linear.matrix.nnz)
    output.result({"out": out, "rows": rows, "columns": columns, "nonzeros": nonzeros})
    return DONE


def _check_out(out: str | None) -> None:
    """Refuse a model's file that cannot be written, or has another ending."""
    from optsched.solvers.backends.files import ending_of

    check_writable(out)
    if out is not None:
        ending_of(out)


def _note_unused(model: str) -> None:
    """Note options of other models than the one that is written; refuse workers without one."""
    for names, *models in (
        ("size", "batch"),
        ("slots lookahead deadlines tenants energy_price", "balance"),
        ("objective", "hindsight"),
        ("horizon", "hindsight", "relaxation"),
    ):
        note_unless(model in models, names, f"--model {' or '.join(models)}")
    joint = model in ("hindsight", "balance")
    only_for("workers", joint, f"--model hindsight or balance, not {model}")


def _batch(instance: Instance, size: int | None) -> Program:
    """Return the selection of a batch of a given size."""
    from optsched.models import BatchSelection

    if size is None:
        raise OptschedError("a batch is selected for a given size; add --size K")
    return BatchSelection(instance.prompts, instance.outputs, instance.memory, size=size)


def _first_step(
    instance: Instance,
    workers: str | None,
    slots: int | None,
    lookahead: int,
    energy_price: float,
    **asked: bool,
) -> Program:
    """Return the step program of empty workers and the requests that arrive first."""
    import numpy as np

    from optsched.cluster import BalanceRouting, Cluster
    from optsched.cluster.service import energy_bonus
    from optsched.models import BalanceProgram, BalanceState

    if workers is None or slots is None:
        raise OptschedError("a step is that of a cluster; add --workers G and --slots B")
    if not workers.isdecimal():
        raise OptschedError(f"--workers is {workers!r}, but a step needs a number of equal workers")
    count = int(workers)
    for name, value, least in (
        ("workers", count, 1),
        ("slots", slots, 1),
        ("lookahead", lookahead, 0),
    ):
        if value < least:
            raise OptschedError(
                f"--{name} is {value}, but must be a whole number of at least {least}"
            )
    BalanceRouting(lookahead, energy_price=energy_price)  # refuses what a cluster does
    first = np.flatnonzero(instance.arrivals == instance.arrivals.min())
    waiting = instance.prompts[first]
    empty = np.zeros((count, lookahead + 1), dtype=np.int64)
    tokens = waiting[:, None] + np.arange(lookahead + 1)
    bonus = energy_bonus(Cluster(count, slots), empty, tokens, energy_price)
    state = BalanceState(empty, np.full(count, slots), waiting, bonus=bonus)
    return BalanceProgram(state, goals=_goals(instance, first, state, **asked))


def _goals(
    instance: Instance, first: IntArray, state: BalanceState, deadlines: bool, tenants: bool
) -> StepGoals | None:
    """Return the goals of the first step, in which no worker has any requests."""
    import numpy as np

    from optsched.cluster import service
    from optsched.models import StepGoals

    if not (deadlines or tenants):
        return None
    latest = tenant = short = None
    if deadlines:
        latest = service.require_deadlines(instance) - service.longest_outputs(instance)
        latest = latest[first] - instance.arrivals[first]
    if tenants:
        found = service.require_tenants(instance)
        tenant = found.number[first]
        demands = np.bincount(tenant, minlength=len(found.names))
        short = service.fair_slots(found.weights, demands, int(state.free.sum()))
    price = service.slot_price(state.alive, state.waiting)
    return StepGoals(latest, np.zeros(state.lookahead), tenant, short, price)


@command(
    click.Argument(["types"], metavar="TYPES"),
    option("--clock C", str, "How long batches take, such as affine:D0,D1 (default: the file's)."),
    MEMORY,
    option("--batch-limit B", int, "Requests in a batch, at all stages."),
    option("--minimum-slack S", 0.0, "Seconds that a batch must spare."),
    option(
        "--objective O",
        ["memory", "slack"],
        "What to find: least memory, or largest slack within the limits.",
    ),
    option(
        "--method M",
        ["auto", "highs", "cp-sat"],
        "Solver of WAIT's program (auto: none for least memory, otherwise highs).",
    ),
    option("--thresholds N,..", Numbers(int), "Check these thresholds instead of computing some."),
    flag("--nested", "Nested WAIT: outputs are not known in advance."),
    option(
        "--segments S",
        Numbers(int, "types", "auto"),
        "Nested: one per output length (types), the best ones (auto), the best L (a number), "
        "or those that end at B1,B2,...",
        default="types",
    ),
    option("--margin X", float, "Nested: distance from equality in (10), 0 to 1."),
    option("--delta X", 0.01, "Nested: probability with which the memory may run out."),
    option(
        "--iterations K",
        10_000,
        "Nested: iterations for which the memory suffices with probability 1 - delta.",
    ),
    option("--prompt N", int, "Nested: prompt of all types (default: their mean)."),
    option("--classes K", int, "For a trace: number of types (default: all pairs)."),
    option("--rate X", float, "For a trace: requests per second (default: its own)."),
    SKIP_INVALID,
    path("--out", "Write the program to a file that ends in .mps or .lp as well."),
    runs=(
        "thresholds trace.csv --clock llama-2-7b-a100 --rate 2",
        "thresholds trace.csv --clock llama-2-7b-a100 --rate 2 --classes 4 --out wait.lp",
    ),
)
def thresholds(
    output: Output,
    types: str,
    clock: str | None,
    nested: bool,
    prompt: int | None,
    out: str | None,
    **options: Any,
) -> int:
    """Compute thresholds of WAIT or Nested WAIT."""
    from optsched.clock import get_clock
    from optsched.models.fluid.equilibrium import equilibrium

    _check_out(out)
    _refuse_unused_thresholds(nested, out, options)
    given, chosen, memory = _read(output, types, options)
    if clock is not None:
        chosen = get_clock(clock)
    if chosen is None:
        raise OptschedError(f"{types} names no clock; pass --clock, such as affine:0.0085,2.7e-7")
    if options["memory"] is None:
        options["memory"] = memory
    if nested and (prompt is not None or len(set(given.prompts.tolist())) > 1):
        given = given.with_one_prompt(prompt)
        if prompt is None:
            output.note(
                f"prompts differ; all types are taken to have their mean, {given.prompts[0]} "
                "tokens (--prompt sets another)"
            )
    balance = equilibrium(given, chosen)
    stable = balance.stable
    shares = zip(given.names, balance.loads.tolist(), balance.memories.tolist(), strict=True)
    content: dict[str, Any] = {
        "stable": stable,
        "load": balance.load,
        "iteration_time": balance.iteration_time if stable else None,
        "equilibrium_memory": balance.memory if stable else None,
        "throughput": balance.throughput if stable else None,
        "output_throughput": balance.output_throughput if stable else None,
        "types": [
            {"name": name, "load": load, "memory": memory if stable else None}
            for name, load, memory in shares
        ],
        **dict.fromkeys(("thresholds", "memory", "safety_stock")),
    }
    if stable:
        output.say(str(balance))
    try:
        balance.require_stable()
        with output.progress("finding thresholds"):
            plan = (_nested if nested else _wait)(given, chosen, options)
    except InfeasibleError:
        output.result(content)
        raise
    output.say(f"\n{plan}")
    if out is not None:
        optsched.write_model(plan.program.to_linear(), out)
    output.result(content | _content(plan))
    return DONE


@command(
    click.Argument(["types"], metavar="TYPES"),
    option("--clock C", str, "How long batches take, such as affine:D0,D1 (default: the file's)."),
    MEMORY,
    option(
        "--max-latency latency_s S",
        float,
        "Limit on the mean seconds from arrival to the last token.",
    ),
    option(
        "--max-ttft ttft_s S", float, "Limit on the mean seconds from arrival to the first token."
    ),
    option("--gap X", 1e-4, "Share by which the throughput may fall short of the best."),
    option("--classes K", int, "For a trace: number of types (default: all pairs)."),
    option("--rate X", float, "For a trace: requests per second (default: its own)."),
    SKIP_INVALID,
    path("--out", "Write the program at the best iteration time to a .mps or .lp file as well."),
    runs=(
        "throughput trace.csv --clock llama-2-7b-a100 --rate 20 --max-latency 2",
        "throughput trace.csv --clock llama-2-7b-a100 --rate 20 --classes 4 --out rates.lp",
    ),
)
def throughput(
    output: Output,
    types: str,
    clock: str | None,
    gap: float,
    out: str | None,
    **options: Any,
) -> int:
    """Find the most throughput under limits on latency."""
    from optsched.optimum.throughput import best_throughput

    _check_out(out)
    given, chosen, memory = _read(output, types, options)
    if clock is None and chosen is None:
        raise OptschedError(f"{types} names no clock; pass --clock, such as affine:0.0085,2.7e-7")
    limits = take(options, "memory", "latency_s", "ttft_s")
    if limits["memory"] is None:
        limits["memory"] = memory
    with output.progress("finding the iteration time"):
        plan = best_throughput(given, clock or chosen, gap=gap, **limits)  # type: ignore[arg-type]
    output.say(str(plan))
    if out is not None:
        optsched.write_model(plan.program.to_linear(), out)
    names = ("throughput", "bound", "gap", "iteration_s", "latency_s", "ttft_s", "memory")
    admitted = zip(given.names, given.rates.tolist(), plan.rates.tolist(), strict=True)
    output.result(
        {name: getattr(plan, name) for name in names}
        | {
            "types": [
                {"name": name, "rate": rate, "admitted": part} for name, rate, part in admitted
            ]
        }
    )
    return DONE


def _read(
    output: Output, source: str, options: dict[str, Any]
) -> tuple[RequestTypes, Clock | None, int | None]:
    """Read types, from a TOML file with the clock and the memory that it names."""
    from optsched._internal.arrays import MAX_TOKENS
    from optsched.workloads.request_types import RequestTypes, read_types

    asked = take(options, "classes", "rate")
    skip_invalid, seed = options.pop("skip_invalid"), options.pop("seed")
    if source.endswith(".toml"):
        only_for("classes rate skip_invalid", False, "traces, and a TOML file has its own types")
        return read_types(source)
    memory = options["memory"] or MAX_TOKENS
    if source.startswith("family:"):
        source = seeded(source, seed)
    instance = read_instance(
        output, source, memory, skip_invalid=skip_invalid, seconds_per_step=TICK
    )
    return RequestTypes.from_instance(instance, **asked), None, None


def _refuse_unused_thresholds(nested: bool, out: str | None, options: dict[str, Any]) -> None:
    """Refuse options of the other kind of thresholds, and those that only serve to find them."""
    only_for("segments margin delta iterations prompt", nested, "Nested WAIT", "add --nested")
    only_for("batch_limit objective method", not nested, "WAIT, and not for Nested WAIT")
    found, written = options["thresholds"] is None, out is not None
    best = options["segments"] == "auto"
    named = "thresholds that are found, and --thresholds names them"
    only_for("method", found, named)
    only_for("objective margin", found or written, named)
    only_for("segments", found or not best, named)
    best = found and (best or isinstance(options["segments"], int))
    only_for("minimum_slack", not best, "segments that are named, and not for the best ones")


def _wait(types: RequestTypes, clock: Clock, options: dict[str, Any]) -> WaitPlan:
    from optsched.models.fluid.wait import WaitThresholds

    limits = [options[name] for name in ("memory", "batch_limit", "minimum_slack", "objective")]
    program = WaitThresholds(types, clock, *limits)
    if options["thresholds"] is not None:
        return program.plan(_several(options["thresholds"]))
    least, method = program.least_fixed_point(), options["method"]
    if options["objective"] == "memory" and method == "auto":
        return program.plan(least)
    params = optsched.SolveParams(start=least)
    found = optsched.solve(program, time_limit=None, method=method, params=params)
    return program.plan(least if found.answer is None else found.answer)


def _nested(types: RequestTypes, clock: Clock, options: dict[str, Any]) -> NestedWaitPlan:
    from optsched.models.fluid.nested import NestedWaitThresholds
    from optsched.models.fluid.segments import design_segments

    risk = {name: options[name] for name in ("delta", "iterations")}
    segments, margin, asked = (options[name] for name in ("segments", "margin", "thresholds"))
    if (segments == "auto" or isinstance(segments, int)) and asked is None:
        number = None if segments == "auto" else segments
        limits = {"margin": margin, "memory": options["memory"]}
        return design_segments(types, clock, segments=number, **limits, **risk)
    program = NestedWaitThresholds(
        types,
        clock,
        None if segments == "types" else _several(segments),  # type: ignore[arg-type]
        margin=0.05 if margin is None else margin,
        minimum_slack=options["minimum_slack"],
        memory=options["memory"],
    )
    if asked is not None:
        return program.plan(_several(asked), **risk)
    if margin is None:
        return program.best_margin(**risk)
    return program.plan(program.least_fixed_point(), **risk)


def _several(numbers: int | list[int]) -> list[int]:
    return numbers if isinstance(numbers, list) else [numbers]


def _content(plan: WaitPlan | NestedWaitPlan) -> dict[str, Any]:
    from optsched.models.fluid.wait import WaitPlan

    content: dict[str, Any] = {
        "thresholds": plan.thresholds.tolist(),
        "memory": plan.memory,
        "safety_stock": 0,
        "batch_time": plan.iteration_time,
        "batch_size": plan.batch_size,
    }
    if isinstance(plan, WaitPlan):
        return content | {"slacks": plan.slacks.tolist()}
    names = ("safety_stock", "memory_bound", "slack", "delta", "iterations")
    return (
        content
        | {name: getattr(plan, name) for name in names}
        | {
            "memory_terms": [plan.memory, plan.queue_memory, plan.rare_memory],
            "borders": plan.program.last_stages.tolist(),
            "decays": [decay if decay < math.inf else None for decay in plan.decays[1:].tolist()],
        }
    )
