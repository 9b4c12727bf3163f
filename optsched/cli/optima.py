"""Commands that find optima and bounds, and check what others claim."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched._internal.numbers import at_least, proven
from optsched.cli.common import DONE, INTERRUPTED, LISTED, NO, Output, check_writable, take
from optsched.cli.given import only_for, typed
from optsched.cli.options import CLOCK, HTML, OBJECTIVE, TRACE, WORKERS, Written, command, option
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched.optimum.result import Optimum
    from optsched.problem.instance import Instance


@command(
    TRACE,
    OBJECTIVE,
    option("--method M", "auto", "How to solve: auto, highs, cp-sat, exact or search."),
    option(
        "--time-limit S",
        60.0,
        "Seconds after which the best result so far is returned.",
        beside="no --work",
    ),
    option(
        "--work S",
        float,
        "Seconds of work on a slow core, in place of time: the same answer at any speed.",
        needs="--method search",
    ),
    option("--threads K", 1, "Number of threads."),
    option("--last-step horizon T", int, "Consider only schedules that complete by step T."),
    option("--lateness L", "forbidden", "Missed deadlines: forbidden, per-step or per-request."),
    option("--penalty P", 0.0, "Penalty of a missed deadline."),
    WORKERS,
    option("--certificate FILE", Written(check_writable), "Write the proof of the bound."),
    HTML,
    runs=(
        "solve family:uniform,n=6",
        "solve trace.csv --memory 16492 --limit 8 --time-limit 20 --json result.json",
        "solve trace.csv --memory 16492 --time-limit 60 --certificate proof.json",
        "solve family:uniform,n=12 --workers 3 --time-limit 10",
        "solve family:chat-and-summaries,n=200,load=1.1 --method search --work 1",
    ),
)
def solve(instance: Instance, output: Output, certificate: str | None, **params: Any) -> int:
    """Find the best schedule and prove how good it is.

    What remains of the gap is explained by the requests that cause most of it. A time-out or Ctrl-C
    returns the best schedule and the best bound found so far.
    """
    due = instance.deadlines is not None
    only_for("lateness penalty", due, "for requests with deadlines, which TRACE has not")
    how = take(params, "time_limit", "objective", "method", "workers")
    workers = how["workers"]
    if params["work"] is not None:
        how["time_limit"] = None
    with output.progress("solving") as update:
        try:
            wanted = optsched.SolveParams(on_progress=update, **params)
            result = optsched.solve(instance, params=wanted, **how)
        except InfeasibleError as error:
            update("looking for requests in conflict")
            content = {"status": "infeasible", "message": str(error), "starts": None}
            output.say(str(error))
            if workers is None:
                content |= _conflict(instance, output, params["horizon"], how["time_limit"])
            output.result(content)
            return NO
    answer, plan = result.to_dict(), result.schedule
    if workers is not None:
        answer |= {"workers": list(plan.workers.memories), "placement": plan.placement.tolist()}
    explanation = _explanation(result, output)
    output.show(result, {**answer, "explanation": explanation})
    if explanation is not None and not result.proven_optimal:  # else there is no gap to speak of
        output.say(explanation["sentence"])
    if certificate is not None:
        _write_certificate(result, certificate, output)
    return INTERRUPTED if result.status == "interrupted" else DONE


def _write_certificate(result: Optimum, path: str, output: Output) -> None:
    """Write the proof of the bound, or the best one of a lower bound."""
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


def _explanation(result: Optimum, output: Output) -> dict[str, Any] | None:
    """Return where the gap to the bound by prices comes from; None where they cannot explain it."""
    try:
        explanation = result.explain()
    except OptschedError as error:
        output.note(str(error))
        return None
    return {
        "gap": explanation.gap,
        "order_regret": explanation.order_regret,
        "waste": explanation.wasted_memory,
        "idle": explanation.idle,
        "heaviest": explanation.rows(LISTED),
        "sentence": str(explanation),
    }


def _conflict(
    instance: Instance, output: Output, horizon: int | None, time_limit: float
) -> dict[str, Any]:
    """Name the requests and steps in conflict, as far as they are found in time."""
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
    TRACE,
    option(
        "--method",
        ["auto", "closed-form", "lagrangian", "sawtooth"],
        "How to find it (auto: the better of closed-form and lagrangian).",
    ),
    CLOCK[0],
    option("--max-num-seqs B", int, "On a clock: maximum number of requests in a batch."),
    option("--storage", ["at-once", "next-batch"], "On a clock: when a new token takes memory."),
    WORKERS,
    option("--certificate FILE", Written(check_writable), "Write the proof in exact integers."),
    runs=(
        "bound trace.csv --memory 16492 --certificate proof.json",
        "bound trace.csv --memory 16492 --clock llama-2-70b-2xa100",
        "bound trace.csv --workers 16492x2,4096x8",
    ),
)
def bound(
    instance: Instance, output: Output, certificate: str | None, seed: int, **how: Any
) -> int:
    """Prove a lower bound on the total latency of any schedule."""
    from optsched._internal.exact import round_down
    from optsched.bounds.on_clock import caveats
    from optsched.clock import get_clock
    from optsched.problem.work import load_on_clock
    from optsched.problem.workers import as_workers

    clock, workers = how["clock"], how["workers"]
    if certificate is not None and clock is None:
        if how["method"] == "closed-form":
            raise OptschedError("the closed form has no certificate; use --method lagrangian")
        how["method"] = how["method"].replace("auto", "lagrangian")
    with output.progress("finding a lower bound"):
        found: Any = optsched.bound(instance, **how)
    if certificate is not None and found.certificate is not None:
        found.certificate.to_json(certificate)
    where, unit, shown = f"of {instance.name}", "steps", at_least
    content = {name: getattr(found, name) for name in ("value", "method", "seconds")}
    mean = Fraction(found.value) / len(instance)
    if workers is not None:
        where = f"{where} on workers {as_workers(workers, instance)}"
    if clock is not None:
        linear: Any = get_clock(clock)
        where, unit, shown = f"{where} on the clock {clock}", linear.unit, proven
        load: Any = load_on_clock(instance, linear)  # there is one, since the clock is a sum
        output.say(f"load {load}")
        for caveat in caveats(instance, linear):
            output.note(caveat)
        content |= {"mean_latency": round_down(mean), "load": load.load if load.span else None}
    output.say(
        f"no schedule {where} has a total latency below {shown(found.value)} {unit} "
        f"({shown(mean)} per request; {found.method}, {found.seconds:.3f} s)"
    )
    output.result(content | {"premises": found.premises.to_dict()})
    return DONE


@command(
    TRACE,
    click.Argument(["file"]),
    WORKERS,
    CLOCK[0],
    runs=(
        "compare trace.csv --memory 16492 --schedules plans",
        "check trace.csv plans/area.json --memory 16492",
        "bound trace.csv --memory 16492 --certificate proof.json",
        "check trace.csv proof.json --memory 16492",
    ),
)
def check(
    instance: Instance,
    output: Output,
    file: str,
    workers: str | None,
    clock: str | None,
    seed: int,
) -> int:
    """Check a schedule, or the certificate of a bound."""
    from optsched._internal.json import read_object

    content, _ = read_object(Path(file), OptschedError, "a schedule or a certificate")
    if "starts" not in content:
        if not {"prices", "format"} & set(content):
            raise OptschedError(f"{file} has no key 'starts', as schedules have, and no 'prices'")
        return _check_certificate(instance, output, file, workers, clock)
    only_for("clock", clock == "unit", "for certificates, and FILE is a schedule")
    plan = optsched.Schedule.from_json(Path(file), instance, workers)
    violations = plan.check()
    output.say(str(plan))
    for violation in violations[:LISTED]:
        output.say(f"  {violation}")
    if len(violations) > LISTED:
        output.say(f"  ... and {len(violations) - LISTED} more (--json lists them all)")
    listed = [dataclasses.asdict(each) | {"message": str(each)} for each in violations]
    output.result({"feasible": not violations, "violations": listed, **plan.metrics()})
    return NO if violations else DONE


def _check_certificate(
    instance: Instance, output: Output, file: str, workers: str | None, clock: str | None
) -> int:
    from optsched.certificates.capacity import CapacityCertificate
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import get_clock

    claimed, unit = optsched.read_certificate(Path(file)), "steps"
    in_steps = claimed.premises.clock is None
    if isinstance(claimed, ClockCertificate | CapacityCertificate) and not in_steps:
        if clock is None:
            raise OptschedError(f"{file} proves a bound on a clock; name it with --clock")
        coefficients = get_clock(clock).coefficients
        if coefficients is None or claimed.clock != tuple(coefficients.tolist()):
            raise OptschedError(f"{file} is for another clock than {clock}")
        unit = claimed.unit
    elif clock != "unit" and typed("clock"):
        raise OptschedError(f"{file} proves a bound in steps; leave --clock out")
    with output.progress("verifying the certificate"):
        value = optsched.verify(claimed, instance, workers)
    if isinstance(claimed, CapacityCertificate):
        enough = value > claimed.workers - 1
        goals = " and ".join(goal.said(unit) for goal in claimed.goals)
        said = f"fewer than {math.ceil(value):,} workers never meet {goals}"
        output.say(f"the certificate proves that {said}")
        if not enough:
            output.say(f"but the certificate claims {claimed.workers:,}")
        output.result({"valid": enough, "value": float(value), "claimed": claimed.workers})
        return DONE if enough else NO
    valid, premises = value >= claimed.value, claimed.premises
    batches = f" with at most {premises.max_num_seqs} requests in a batch"
    batches *= premises.max_num_seqs is not None
    if premises.storage != "at-once":
        batches += " whose tokens take memory one batch later"
    output.say(
        f"the certificate proves that no schedule{batches} has a total latency below "
        f"{proven(value, decimals=3)} {unit}"
    )
    if not valid:
        output.say(f"but the certificate claims {proven(claimed.value, up=True, decimals=3)}")
    output.result({"valid": valid, "value": float(value), "claimed": float(claimed.value)})
    return DONE if valid else NO
