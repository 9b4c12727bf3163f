"""Commands that find optima, select batches and write models to files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

import optsched
from optsched.cli.common import (
    DONE,
    INTERRUPTED,
    LISTED,
    NO,
    Output,
    check_writable,
    shared_options,
    trace_options,
)
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched.instance import Instance


@click.command()
@shared_options
@trace_options
@click.option("--objective", default="total-latency", show_default=True, help="What to minimise.")
@click.option(
    "--method", default="auto", show_default=True, help="auto, highs, cp-sat, exact, search."
)
@click.option("--time-limit", type=float, default=60.0, show_default=True, metavar="S")
@click.option("--threads", type=int, default=1, show_default=True, metavar="K")
@click.option("--horizon", type=int, metavar="T", help="Only schedules complete by step T.")
@click.option(
    "--lateness",
    default="forbidden",
    show_default=True,
    help="Deadlines: forbidden to miss, or a penalty per-step or per-request.",
)
@click.option("--penalty", type=float, default=0.0, metavar="P", help="Price of being late.")
def solve(instance: Instance, output: Output, time_limit: float, **options: Any) -> int:
    """Find the best schedule in hindsight, and prove how good it is."""
    seed = click.get_current_context().params["seed"]
    with output.progress("solving") as update:
        try:
            result = optsched.solve(
                instance,
                time_limit=time_limit,
                seed=seed,
                on_progress=lambda progress: update(str(progress)),
                **options,
            )
        except InfeasibleError as error:
            update("looking for the smallest conflict")
            return _say_infeasible(instance, output, error, options["horizon"], time_limit)
    output.say(str(result))
    output.result(result.to_dict())
    return INTERRUPTED if result.status == "interrupted" else DONE


def _say_infeasible(
    instance: Instance,
    output: Output,
    error: InfeasibleError,
    horizon: int | None,
    time_limit: float,
) -> int:
    """Name the requests and steps in conflict, as far as they are found in time."""
    content: dict[str, Any] = {"status": "infeasible", "message": str(error), "starts": None}
    output.say(str(error))
    try:
        conflict = optsched.explain_infeasibility(instance, horizon, time_limit=time_limit)
    except OptschedError as undecided:
        output.note(str(undecided))
    else:
        if conflict is not None:
            output.say(str(conflict))
            content["conflict"] = {
                "requests": list(conflict.requests),
                "steps": [[steps.start, steps.stop - 1] for steps in conflict.steps],
                "smallest": conflict.smallest,
                "message": str(conflict),
            }
    output.result(content)
    return NO


@click.command()
@shared_options
@trace_options
@click.option("--time-limit", type=float, default=60.0, show_default=True, metavar="S")
@click.option("--threads", type=int, default=1, show_default=True, metavar="K")
@click.option("--certificate", type=click.Path(), help="Write the proof of the bound.")
def hindsight(
    instance: Instance, output: Output, time_limit: float, threads: int, certificate: str | None
) -> int:
    """Close in on the least total latency, and explain the gap that is left."""
    if certificate is not None:
        check_writable(certificate)
    seed = click.get_current_context().params["seed"]
    with output.progress("solving") as update:
        result = optsched.hindsight(
            instance,
            time_limit,
            threads=threads,
            seed=seed,
            on_progress=lambda progress: update(str(progress)),
        )
    output.say(str(result))
    if certificate is not None:
        proof = result.certificate or result.prices
        if proof is None:
            output.note(f"no certificate was written: the bound is by {result.proof}")
        else:
            proof.to_json(certificate)
            if result.certificate is None:
                output.note(
                    f"the bound is by {result.proof}, which leaves no certificate; the one "
                    f"written proves {float(proof.value):,.10g} by prices of memory"
                )
    content = {**result.to_dict(), "explanation": None}
    try:
        explanation = result.explain()
    except OptschedError as error:  # too many steps for prices; the answer stands
        output.note(str(error))
    else:
        output.say(str(explanation))
        content["explanation"] = {
            "gap": explanation.gap,
            "order_regret": explanation.order_regret,
            "waste": explanation.wasted_memory,
            "heaviest": explanation.to_pandas().head(LISTED).reset_index().to_dict("records"),
            "sentence": str(explanation),
        }
    output.result(content)
    return INTERRUPTED if result.status == "interrupted" else DONE


@click.command()
@shared_options
@trace_options
@click.option(
    "--method", default="dp", show_default=True, help="dp, scaled-dp, swap, quantile, mip."
)
@click.option("--fit", default="peak", show_default=True, help="peak, or profile (mip only).")
@click.option("--epsilon", type=float, default=0.1, show_default=True, help="For scaled-dp.")
@click.option("--time-limit", type=float, metavar="S", help="For mip.")
def select(instance: Instance, output: Output, **options: Any) -> int:
    """Select the batch of least F (sum of outputs over squared size) that fits."""
    seed = click.get_current_context().params["seed"]
    began = time.perf_counter()
    with output.progress("selecting"):
        batch = optsched.select(instance, seed=seed, **options)
    seconds = time.perf_counter() - began
    labels = [instance.label(request) for request in batch.requests.tolist()]
    ratio = float(batch.ratio)
    output.say(
        f"F = {ratio:.6g} with {len(batch)} requests in {seconds:.3f} s: {', '.join(labels)}"
    )
    content = {"requests": batch.requests.tolist(), "F": ratio, "seconds": seconds}
    output.result({**content, "factor": batch.factor})
    return DONE


@click.command()
@shared_options
@trace_options
@click.option(
    "--model",
    "name",
    type=click.Choice(["hindsight", "relaxation", "batch"]),
    default="hindsight",
    show_default=True,
    help="OPT-IP, Relax-LP, or the selection of a batch.",
)
@click.option("--objective", default="total-latency", show_default=True, help="For hindsight.")
@click.option("--horizon", type=int, metavar="T", help="Last step (default: one that is proven).")
@click.option("--size", type=int, metavar="K", help="Requests of the batch.")
@click.option("--out", required=True, type=click.Path(), help="File that ends in .mps or .lp.")
def export(
    instance: Instance,
    output: Output,
    name: str,
    objective: Any,
    horizon: int | None,
    size: int | None,
    out: str,
) -> int:
    """Write a model for another solver, with readable names of rows and columns."""
    from optsched.models import BatchSelection, HindsightProgram, LatencyRelaxation
    from optsched.solving import proven_horizon

    check_writable(out)
    if name == "batch":
        if size is None:
            raise OptschedError("a batch is selected for a given size; add --size K")
        model = BatchSelection(instance.prompts, instance.outputs, instance.memory).lower(size)
    else:
        end = proven_horizon(instance, objective) if horizon is None else horizon
        if name == "relaxation":
            model = LatencyRelaxation(instance, end).lower()
        else:
            model = HindsightProgram(instance, end, objective).lower()
    with output.progress(f"writing {out}"):
        optsched.write_model(model, out)
    output.say(f"{model}\nwritten to {out}")
    rows, columns = model.matrix.shape
    output.result({"out": out, "rows": rows, "columns": columns, "nonzeros": int(model.matrix.nnz)})
    return DONE
