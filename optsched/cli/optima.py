"""Commands around optima, bounds and models."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

import optsched
from optsched._internal.numbers import at_least, proven, round_down
from optsched.cli import options as cli
from optsched.cli.options import Numbers, Options, Output, command, flag, option, take
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched import Instance, Optimum, RequestTypes
    from optsched.clock import Clock
    from optsched.models import NestedWaitPlan, Program, WaitPlan


@command(
    cli.TRACE,
    option("--method M", "auto", "How: auto, dp, scaled-dp, swap, quantile, highs or cp-sat."),
    option("--fit", ["peak", "profile"], "What must fit: peaks, or every step (by a solver)."),
    option("--epsilon X", 0.1, "Relative error of scaled-dp.", needs="--method scaled-dp"),
    option(
        "--time-limit S", float, "Seconds for a solver.", needs="--method auto highs cp-sat mip"
    ),
    runs=("select trace.csv --memory 16492 --method dp",),
)
def select(output: Output, given: Options) -> int:
    """Select the batch of least F that fits into the memory."""
    instance, fit = take(given, "instance fit").values()
    how = take(given, "method time_limit")
    if how["method"] == "mip":  # its name until version 0.2
        how["method"] = "highs"
    selection = optsched.models.BatchSelection(
        instance.prompts, instance.outputs, instance.memory, fit
    )
    with output.progress("selecting"):
        found = optsched.solve(selection, params=optsched.SolveParams(**given), **how)
    batch, seconds = found.require().answer, found.seconds
    requests, ratio = batch.requests.tolist(), float(batch.ratio)
    labels = ", ".join(map(instance.label, requests))
    output.say(f"F = {ratio:.6g} with {len(batch)} requests in {seconds:.3f} s: {labels}")
    output.result({"requests": requests, "F": ratio, "seconds": seconds, "factor": batch.factor})
    return cli.DONE


_EXPLAINED = 5_000  # requests up to which a gap is explained after Ctrl-C, too
_MODELS = ["hindsight", "relaxation", "batch", "balance"]
_HINDSIGHT, _STEP = "--model hindsight", "--model balance"
_IN_TIME, _ON_WORKERS = f"{_HINDSIGHT} relaxation", f"{_HINDSIGHT} balance"


@command(
    cli.TRACE,
    option("--model", _MODELS, "OPT-IP, Relax-LP, one batch, or the first step of a cluster (IO)."),
    option("--objective O", "total-latency", "What hindsight minimises.", beside=_HINDSIGHT),
    option("--last-step horizon T", int, "Last step (default: a proven one).", beside=_IN_TIME),
    option("--size K", int, "Number of requests in the batch.", beside="--model batch"),
    option("--workers G", str, "Number of workers, or memories (hindsight).", needs=_ON_WORKERS),
    option("--slots B", int, "Requests that each worker may run.", beside=_STEP),
    option("--lookahead H", 20, "Steps to look ahead.", beside=_STEP),
    option("--out FILE", cli.MODEL_FILE, "The .mps or .lp file to write.", required=True),
    runs=(
        "export family:uniform,n=8 --out program.lp",
        "export family:uniform,n=8 --workers 2 --out joint.mps",
        "export family:uniform,n=8 --model balance --workers 2 --slots 3 --out step.lp",
    ),
)
def export(output: Output, given: Options) -> int:
    """Write a model to a file for another solver."""
    from optsched.optimum.solving import proven_horizon
    from optsched.problem.workers import as_workers

    instance, model, objective = take(given, "instance model objective").values()
    size, end, out = take(given, "size horizon out").values()
    program: Program
    if model == "batch":
        if size is None:
            raise OptschedError("a batch is selected for a given size; add --size K")
        prompts, outputs = instance.prompts, instance.outputs
        program = optsched.models.BatchSelection(prompts, outputs, instance.memory, size=size)
    elif model == "balance":
        program = _first_step(instance, *take(given, "workers slots lookahead").values())
    else:
        workers = as_workers(given["workers"] or 1, instance)
        end = proven_horizon(instance, objective, workers) if end is None else end
        if model == "relaxation":
            program = optsched.models.LatencyRelaxation(instance, end)
        else:
            program = optsched.HindsightProgram(instance, end, objective, workers=workers)
    linear = program.to_linear()
    with output.progress(f"writing {out}"):
        optsched.write_model(linear, out)
    output.say(f"{linear}\nwritten to {out}")
    rows, columns = linear.matrix.shape
    nonzeros = int(linear.matrix.nnz)
    output.result({"out": out, "rows": rows, "columns": columns, "nonzeros": nonzeros})
    return cli.DONE


def _first_step(
    instance: Instance, workers: str | None, slots: int | None, lookahead: int
) -> Program:
    """Return the step program of empty workers and the requests that arrive first."""
    import numpy as np

    from optsched.simulate.cluster import BalanceRouting

    if workers is None or slots is None:
        raise OptschedError("a step is that of a cluster; add --workers G and --slots B")
    if not workers.isdecimal():
        raise OptschedError(f"--workers is {workers!r}, but a step needs a number of equal workers")
    count = optsched.Cluster(int(workers), slots).workers
    BalanceRouting(lookahead)  # refuses what a cluster does
    first = np.flatnonzero(instance.arrivals == instance.arrivals.min())
    waiting = instance.prompts[first]
    empty = np.zeros((count, lookahead + 1), dtype=np.int64)
    state = optsched.models.BalanceState(empty, np.full(count, slots), waiting)
    return optsched.models.BalanceProgram(state)


_TYPES = (
    click.Argument(["types"], metavar="TYPES"),
    cli.CLOCK[0],
    cli.MEMORY,
    option("--classes K", int, "For a trace: number of types (default: all pairs)."),
    option("--rate X", float, "For a trace: requests per second (default: its own)."),
    cli.SKIP_INVALID,
    cli.SEED,
    option("--export FILE", cli.MODEL_FILE, "Also write the program to a .mps or .lp file."),
)
_NESTED, _WAIT = {"needs": "--nested"}, {"needs": "no --nested"}


@command(
    _TYPES,
    option("--batch-limit B", int, "Requests in a batch, at all stages.", **_WAIT),
    option("--minimum-slack S", 0.0, "Seconds that a batch must spare."),
    option(
        "--objective", ["memory", "slack"], "Least memory, or largest slack within limits.", **_WAIT
    ),
    option(
        "--method",
        ["auto", "highs", "cp-sat"],
        "Solver of WAIT's program (auto: none for least memory, otherwise highs).",
        needs="no --nested,no --thresholds",
    ),
    option("--thresholds N,..", Numbers(int), "Check these thresholds instead of computing some."),
    flag("--nested", "Nested WAIT: outputs are not known in advance."),
    option(
        "--segments S",
        Numbers(int, "types", "auto"),
        "One per output length (types), the best (auto), the best L, or those ending at B1,B2,...",
        default="types",
        **_NESTED,
    ),
    option("--margin X", float, "Distance from equality in (10), 0 to 1.", **_NESTED),
    option("--delta X", 0.01, "Probability that the memory runs out.", **_NESTED),
    option("--iterations K", 10_000, "Iterations for which delta holds.", **_NESTED),
    option("--prompt N", int, "Prompt of all types (default: their mean).", **_NESTED),
    runs=(
        "thresholds trace.csv --clock llama-2-7b-a100 --rate 2",
        "thresholds trace.csv --clock llama-2-7b-a100 --rate 2 --classes 4 --export wait.lp",
    ),
)
def thresholds(output: Output, given: Options) -> int:
    """Compute thresholds of WAIT or Nested WAIT."""
    nested, prompt, export = take(given, "nested prompt export").values()
    _refuse_unused(export is not None, given)
    types, clock, given["memory"] = _read(output, given)
    if nested and (prompt is not None or len(set(types.prompts.tolist())) > 1):
        types = types.with_one_prompt(prompt)
        if prompt is None:
            output.note(
                f"prompts differ; all types are taken to have their mean, {types.prompts[0]} "
                "tokens (--prompt sets another)"
            )
    balance = optsched.models.equilibrium(types, clock)
    stable = balance.stable
    shares = zip(types.names, balance.loads.tolist(), balance.memories.tolist(), strict=True)
    content = {
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
            plan = (_nested if nested else _wait)(types, clock, given)
    except InfeasibleError:
        output.result(content)
        raise
    output.say(f"\n{plan}")
    if export is not None:
        optsched.write_model(plan.program.to_linear(), export)
    output.result(content | _content(plan))
    return cli.DONE


@command(
    _TYPES,
    option("--max-latency latency_s S", float, "Limit on the mean latency, in seconds."),
    option("--max-ttft ttft_s S", float, "Limit on the mean time to first token, in seconds."),
    option("--gap X", 1e-4, "Share by which the throughput may fall short of the best."),
    runs=(
        "throughput trace.csv --clock llama-2-7b-a100 --rate 20 --max-latency 2",
        "throughput trace.csv --clock llama-2-7b-a100 --rate 20 --classes 4 --export rates.lp",
    ),
)
def throughput(output: Output, given: Options) -> int:
    """Find the most throughput under limits on latency."""
    from optsched.optimum.throughput import best_throughput

    export = given.pop("export")
    types, clock, given["memory"] = _read(output, given)
    with output.progress("finding the iteration time"):
        plan = best_throughput(types, clock, **given)
    output.say(str(plan))
    if export is not None:
        optsched.write_model(plan.program.to_linear(), export)
    names = ("throughput", "bound", "gap", "iteration_s", "latency_s", "ttft_s", "memory")
    admitted = zip(types.names, types.rates.tolist(), plan.rates.tolist(), strict=True)
    rows = [{"name": name, "rate": rate, "admitted": part} for name, rate, part in admitted]
    output.result({name: getattr(plan, name) for name in names} | {"types": rows})
    return cli.DONE


def _read(output: Output, options: Options) -> tuple[RequestTypes, Clock, int | None]:
    """Take TYPES and how to read it out of the options; return types, their clock and memory."""
    from optsched._internal.arguments import MAX_TOKENS

    asked, how = take(options, "classes rate"), take(options, "skip_invalid")
    source, clock, memory, seed = take(options, "types clock memory seed").values()
    given: Clock | None = None
    if source.endswith(".toml"):
        cli.only_for(
            "classes rate skip_invalid", False, "for traces, and a TOML file has its own types"
        )
        types, given, of_file = optsched.workloads.read_types(source)
        memory = of_file if memory is None else memory
    else:
        instance = cli.read_instance(
            output, source, memory or MAX_TOKENS, seed=seed, seconds_per_step=cli.TICK, **how
        )
        types = optsched.RequestTypes.from_instance(instance, **asked)
    if clock is not None:
        given = optsched.get_clock(clock)
    if given is None:
        raise OptschedError(f"{source} names no clock; pass --clock, such as affine:0.0085,2.7e-7")
    return types, given, memory


def _refuse_unused(written: bool, options: Options) -> None:
    """Refuse what only serves to find thresholds that are named, or segments that are not."""
    found, segments = options["thresholds"] is None, options["segments"]
    named = "where thresholds are found, and --thresholds names them"
    cli.only_for("objective margin", found or written, named)
    cli.only_for("segments", found or segments != "auto", named)
    best = found and (segments == "auto" or isinstance(segments, int))
    cli.only_for(
        "minimum_slack", not best, "with segments that are named, and not with the best ones"
    )


def _wait(types: RequestTypes, clock: Clock, options: Options) -> WaitPlan:
    limits = [options[name] for name in ("memory", "batch_limit", "minimum_slack", "objective")]
    program = optsched.models.WaitThresholds(types, clock, *limits)
    if options["thresholds"] is not None:
        return program.plan(_several(options["thresholds"]))
    least, method = program.least_fixed_point(), options["method"]
    if options["objective"] == "memory" and method == "auto":
        return program.plan(least)
    params = optsched.SolveParams(start=least)
    found = optsched.solve(program, time_limit=None, method=method, params=params)
    return program.plan(least if found.answer is None else found.answer)


def _nested(types: RequestTypes, clock: Clock, options: Options) -> NestedWaitPlan:
    risk = {name: options[name] for name in ("delta", "iterations")}
    segments, margin, asked = (options[name] for name in ("segments", "margin", "thresholds"))
    if (segments == "auto" or isinstance(segments, int)) and asked is None:
        number = None if segments == "auto" else segments
        limits = {"margin": margin, "memory": options["memory"]}
        return optsched.models.design_segments(types, clock, segments=number, **limits, **risk)
    program = optsched.models.NestedWaitThresholds(
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


def _content(plan: WaitPlan | NestedWaitPlan) -> dict[str, object]:
    content = {
        "thresholds": plan.thresholds.tolist(),
        "memory": plan.memory,
        "safety_stock": 0,
        "batch_time": plan.iteration_time,
        "batch_size": plan.batch_size,
    }
    if isinstance(plan, optsched.models.WaitPlan):
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


@command(
    cli.TRACE,
    option(
        "--objective O",
        "total-latency",
        "What counts: total-latency, weighted-latency, makespan or late-requests.",
    ),
    option("--method M", "auto", "How to solve: auto, highs, cp-sat, exact or search."),
    option(
        "--time-limit S",
        60.0,
        "Seconds after which the best result so far is returned.",
        beside="no --work",
    ),
    option(
        "--work W",
        float,
        "Units of work in place of time: the same answer at any speed.",
        needs="--method search",
    ),
    option("--threads K", 1, "Number of threads."),
    option("--last-step horizon T", int, "Consider only schedules that complete by step T."),
    option("--lateness L", "forbidden", "Missed deadlines: forbidden, per-step or per-request."),
    option("--penalty P", 0.0, "Penalty of a missed deadline."),
    cli.WORKERS,
    option("--certificate FILE", cli.FILE, "Write the proof of the bound."),
    cli.HTML,
    runs=(
        "solve family:uniform,n=6",
        "solve trace.csv --memory 16492 --limit 8 --time-limit 20 --json result.json",
        "solve trace.csv --memory 16492 --time-limit 60 --certificate proof.json",
        "solve family:uniform,n=12 --workers 3 --time-limit 10",
        "solve family:chat-and-summaries,n=200,load=1.1 --method search --work 1",
    ),
)
def solve(output: Output, given: Options) -> int:
    """Find the best schedule and prove how good it is.

    What remains of the gap is explained by the requests that cause most of it. A time-out or Ctrl-C
    returns the best schedule and the best bound found so far.
    """
    instance, certificate = take(given, "instance certificate").values()
    due = instance.deadlines is not None
    cli.only_for("lateness penalty", due, "for requests with deadlines, which TRACE has not")
    how = take(given, "time_limit objective method workers")
    workers = how["workers"]
    if given["work"] is not None:
        how["time_limit"] = None
    with output.progress("solving") as update:
        try:
            wanted = optsched.SolveParams(on_progress=update, **given)
            result = optsched.solve(instance, params=wanted, **how)
        except InfeasibleError as error:
            update("looking for requests in conflict")
            conflict: dict[str, object] = {}
            output.say(str(error))
            if workers is None:
                conflict = _conflict(instance, output, given["horizon"], how["time_limit"])
            content = {"status": "infeasible", "message": str(error), "starts": None}
            output.result(content | conflict)
            return cli.NO
    answer, plan = result.to_dict(), result.schedule
    if workers is not None:
        answer |= {"workers": list(plan.workers.memories), "placement": plan.placement.tolist()}
    explanation = _explanation(result, output)
    output.show(result, {**answer, "explanation": explanation})
    if explanation is not None and not result.proven_optimal:  # else there is no gap to speak of
        output.say(str(explanation["sentence"]))
    if certificate is not None:
        _write_certificate(result, certificate, output)
    return cli.INTERRUPTED if result.status == "interrupted" else cli.DONE


def _write_certificate(result: Optimum, path: str, output: Output) -> None:
    proof = result.certificate or result.price_certificate
    if proof is None:
        output.note(f"no certificate was written: the bound is by {result.proof}")
        return
    proof.to_json(path)
    if result.certificate is None:
        output.note(
            f"the bound is by {result.proof}, which leaves no certificate; the one "
            f"written proves {proven(proof.value, digits=10)} by prices of memory"
        )


def _explanation(result: Optimum, output: Output) -> dict[str, object] | None:
    """Return where the gap to the bound by prices comes from; None where they cannot explain it."""
    if result.status == "interrupted" and len(result.schedule.instance) > _EXPLAINED:
        return None  # after Ctrl-C nobody waits for it
    try:
        explanation = result.explain()
    except OptschedError as error:
        if not result.proven_optimal:
            output.note(str(error))
        return None
    return {
        "gap": explanation.gap,
        "order_regret": explanation.order_regret,
        "waste": explanation.wasted_memory,
        "idle": explanation.idle,
        "heaviest": explanation.rows(cli.LISTED),
        "sentence": str(explanation),
    }


def _conflict(
    instance: Instance, output: Output, horizon: int | None, time_limit: float
) -> dict[str, object]:
    try:
        conflict = optsched.explain_infeasibility(instance, horizon, time_limit=time_limit)
    except OptschedError as undecided:
        output.note(str(undecided))
        return {}
    if conflict is None:
        return {}
    output.say(str(conflict))
    found = {
        "requests": list(conflict.requests),
        "steps": [[steps.start, steps.stop - 1] for steps in conflict.steps],
        "smallest": conflict.smallest,
        "message": str(conflict),
    }
    return {"conflict": found}


@command(
    cli.TRACE,
    option(
        "--method",
        ["auto", "closed-form", "lagrangian", "sawtooth", "path"],
        "How to find it (auto: the best of those that are quick; path: on a clock).",
    ),
    cli.OBJECTIVE,
    cli.CLOCK[0],
    option("--max-num-seqs B", int, "On a clock: maximum number of requests in a batch."),
    option("--storage", ["at-once", "next-batch"], "On a clock: when a new token takes memory."),
    cli.WORKERS,
    option("--certificate FILE", cli.FILE, "Write the proof in exact integers."),
    runs=(
        "bound trace.csv --memory 16492 --certificate proof.json",
        "bound trace.csv --memory 16492 --clock llama-2-70b-2xa100",
        "bound trace.csv --workers 16492x2,4096x8",
    ),
)
def bound(output: Output, given: Options) -> int:
    """Prove a lower bound on the cost of any schedule."""
    from optsched.bounds.on_clock import caveats
    from optsched.problem.work import load_on_clock
    from optsched.problem.workers import as_workers

    instance, certificate, _ = take(given, "instance certificate seed").values()
    clock, workers, objective = given["clock"], given["workers"], given["objective"]
    if certificate is not None and clock is None:
        proves = "sawtooth" if objective == "makespan" else "lagrangian"
        if given["method"] == "closed-form":
            raise OptschedError(f"the closed form has no certificate; use --method {proves}")
        given["method"] = given["method"].replace("auto", proves)
    with output.progress("finding a lower bound"):
        found = optsched.bound(instance, **given)
    if certificate is not None and found.certificate is not None:
        found.certificate.to_json(certificate)
    where, unit, shown = f"of {instance.name}", "steps", at_least
    content = {name: getattr(found, name) for name in ("value", "method", "seconds")}
    mean = Fraction(found.value) / len(instance)
    if workers is not None:
        where = f"{where} on workers {as_workers(workers, instance)}"
    if (linear := getattr(found, "clock", None)) is not None:
        where, unit, shown = f"{where} on the clock {clock}", linear.unit, proven
        load = load_on_clock(instance, linear)
        output.say(f"load {load}")
        for caveat in caveats(instance, linear):
            output.note(caveat)
        share = load.load if load is not None and load.span else None
        content["load"] = share
        if objective != "makespan":
            content["mean_latency"] = round_down(mean)
    cost, each = objective.replace("-", " "), f"{shown(mean)} per request; "
    output.say(
        f"no schedule {where} has a {cost} below {shown(found.value)} {unit} "
        f"({each * (cost != 'makespan')}{found.method}, {found.seconds:.3f} s)"
    )
    output.result(content | {"premises": found.premises.to_dict()})
    return cli.DONE


@command(
    cli.TRACE,
    click.Argument(["file"]),
    cli.WORKERS,
    cli.CLOCK[0],
    runs=(
        "compare trace.csv --memory 16492 --schedules plans",
        "check trace.csv plans/area.json --memory 16492",
        "bound trace.csv --memory 16492 --certificate proof.json",
        "check trace.csv proof.json --memory 16492",
    ),
)
def check(output: Output, given: Options) -> int:
    """Check a schedule, or the certificate of a bound."""
    from optsched._internal.files import read_object

    file = Path(given["file"])
    content, _ = read_object(file, OptschedError, "a schedule or a certificate")
    if "starts" not in content:
        if not {"prices", "format"} & set(content):
            raise OptschedError(f"{file} has no key 'starts', as schedules have, and no 'prices'")
        return _check_certificate(output, file, given)
    cli.only_for("clock", given["clock"] == "unit", "for certificates, and FILE is a schedule")
    plan = optsched.Schedule.from_json(file, given["instance"], given["workers"])
    violations = plan.check()
    output.say(str(plan))
    for violation in violations[: cli.LISTED]:
        output.say(f"  {violation}")
    if len(violations) > cli.LISTED:
        output.say(f"  ... and {len(violations) - cli.LISTED} more (--json lists them all)")
    listed = [dataclasses.asdict(each) | {"message": str(each)} for each in violations]
    output.result({"feasible": not violations, "violations": listed, **plan.metrics()})
    return cli.NO if violations else cli.DONE


def _check_certificate(output: Output, file: Path, given: Options) -> int:
    from optsched.certificates.capacity import CapacityCertificate
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.problem.work import going_on_from_a_cache

    claimed, unit, clock = optsched.read_certificate(file), "steps", given["clock"]
    in_steps = claimed.premises.clock is None
    if isinstance(claimed, ClockCertificate | CapacityCertificate) and not in_steps:
        if clock is None:
            raise OptschedError(f"{file} proves a bound on a clock; name it with --clock")
        named = optsched.get_clock(clock)
        # What went on from a prefix cache is charged less, on a clock that is never slower.
        known = (named, going_on_from_a_cache(named)) if isinstance(named, LinearClock) else ()
        if claimed.clock not in [tuple(each.coefficients.tolist()) for each in known]:
            raise OptschedError(f"{file} is for another clock than {clock}")
        unit = claimed.unit
    elif clock != "unit" and cli.typed("clock"):
        raise OptschedError(f"{file} proves a bound in steps; leave --clock out")
    with output.progress("verifying the certificate"):
        value = optsched.verify(claimed, given["instance"], given["workers"])
    if isinstance(claimed, CapacityCertificate):
        enough = value > claimed.workers - 1
        goals = " and ".join(goal.said(unit) for goal in claimed.goals)
        said = f"fewer than {math.ceil(value):,} workers never meet {goals}"
        output.say(f"the certificate proves that {said}")
        if not enough:
            output.say(f"but the certificate claims {claimed.workers:,}")
        output.result({"valid": enough, "value": float(value), "claimed": claimed.workers})
        return cli.DONE if enough else cli.NO
    valid, premises = value >= claimed.value, claimed.premises
    claim = premises.says(proven(value, decimals=3), unit)
    output.say(f"the certificate proves that {claim}")
    if not valid:
        output.say(f"but the certificate claims {proven(claimed.value, up=True, decimals=3)}")
    numbers = {"value": float(value), "claimed": float(claimed.value)}
    output.result({"valid": valid, **numbers, "objective": premises.objective})
    return cli.DONE if valid else cli.NO
