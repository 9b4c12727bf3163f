"""Commands that find optima, select batches and write models to files."""

from __future__ import annotations

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
from optsched.cli.presentation import command, examples
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.optimum.result import Optimum

_TIME_LIMIT = click.option(
    "--time-limit",
    type=float,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds after which the best is kept.",
)
_THREADS = click.option(
    "--threads", type=int, default=1, show_default=True, metavar="K", help="Threads to work on."
)


@command(
    epilog=examples(
        "solve family:uniform,n=6",
        "solve trace.csv --memory 16492 --limit 8 --time-limit 20 --json result.json",
        "solve trace.csv --memory 16492 --time-limit 60 --certificate proof.json",
    )
)
@shared_options
@trace_options
@click.option(
    "--objective",
    default="total-latency",
    show_default=True,
    metavar="O",
    help="What to minimise: total-latency, weighted-latency or makespan.",
)
@click.option(
    "--method",
    default="auto",
    show_default=True,
    metavar="M",
    help="How to solve: auto, highs, cp-sat, exact or search.",
)
@_TIME_LIMIT
@_THREADS
@click.option("--horizon", type=int, metavar="T", help="Only schedules complete by step T.")
@click.option(
    "--lateness",
    default="forbidden",
    show_default=True,
    metavar="L",
    help="Missed deadlines: forbidden, or a penalty per-step or per-request.",
)
@click.option(
    "--penalty", type=float, default=0.0, metavar="P", help="Penalty of a missed deadline."
)
@click.option("--certificate", type=click.Path(), help="Write the proof of the bound.")
def solve(
    instance: Instance,
    output: Output,
    time_limit: float,
    objective: Any,
    method: str,
    certificate: str | None,
    **options: Any,
) -> int:
    """Find the best schedule and prove how good it is.

    The gap that is left is explained: the requests that carry most of it. Time limit and Ctrl-C end
    the search, and keep the best schedule and the best bound.
    """
    if certificate is not None:
        check_writable(certificate)
    seed = click.get_current_context().params["seed"]
    with output.progress("solving") as update:
        try:
            result = optsched.solve(
                instance,
                time_limit=time_limit,
                objective=objective,
                method=method,
                params=optsched.SolveParams(
                    seed=seed,
                    on_progress=lambda progress: update(str(progress)),
                    **options,
                ),
            )
        except InfeasibleError as error:
            update("looking for the smallest conflict")
            return _say_infeasible(instance, output, error, options["horizon"], time_limit)
    output.say(str(result))
    if certificate is not None:
        _write_certificate(result, certificate, output)
    output.result({**result.to_dict(), "explanation": _explanation(result, output)})
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
            f"written proves {float(proof.value):,.10g} by prices of memory"
        )


def _explanation(result: Optimum, output: Output) -> dict[str, Any] | None:
    """Return where the gap comes from; None where prices cannot explain it."""
    try:
        explanation = result.explain()
    except OptschedError as error:
        output.note(str(error))
        return None
    output.say(str(explanation))
    return {
        "gap": explanation.gap,
        "order_regret": explanation.order_regret,
        "waste": explanation.wasted_memory,
        "heaviest": explanation.to_pandas().head(LISTED).reset_index().to_dict("records"),
        "sentence": str(explanation),
    }


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


@command(
    epilog=examples(
        "select trace.csv --memory 16492 --method dp",
    )
)
@shared_options
@trace_options
@click.option(
    "--method",
    default="dp",
    show_default=True,
    metavar="M",
    help="How to select: dp, scaled-dp, swap, quantile or mip.",
)
@click.option(
    "--fit",
    default="peak",
    show_default=True,
    metavar="F",
    help="What must fit: the sum of peaks, or the profile step by step (mip only).",
)
@click.option(
    "--epsilon",
    type=float,
    default=0.1,
    show_default=True,
    metavar="X",
    help="Relative error that scaled-dp may make.",
)
@click.option("--time-limit", type=float, metavar="S", help="Seconds that mip may take.")
def select(
    instance: Instance,
    output: Output,
    method: str,
    fit: Any,
    epsilon: float,
    time_limit: float | None,
) -> int:
    """Select the batch of least F that fits into the memory."""
    seed = click.get_current_context().params["seed"]
    selection = optsched.BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
    params = optsched.SolveParams(seed=seed, epsilon=epsilon)
    with output.progress("selecting"):
        found = optsched.solve(selection, time_limit=time_limit, method=method, params=params)
    batch = found.require().answer
    labels = [instance.label(request) for request in batch.requests.tolist()]
    ratio = float(batch.ratio)
    output.say(
        f"F = {ratio:.6g} with {len(batch)} requests in {found.seconds:.3f} s: {', '.join(labels)}"
    )
    content = {"requests": batch.requests.tolist(), "F": ratio, "seconds": found.seconds}
    output.result({**content, "factor": batch.factor})
    return DONE


@command(
    epilog=examples(
        "export family:uniform,n=8 --out program.lp",
    )
)
@shared_options
@trace_options
@click.option(
    "--model",
    "name",
    type=click.Choice(["hindsight", "relaxation", "batch"]),
    default="hindsight",
    show_default=True,
    metavar="M",
    help="Which model: hindsight (OPT-IP), relaxation (Relax-LP), or batch (selection of one).",
)
@click.option(
    "--objective",
    default="total-latency",
    show_default=True,
    metavar="O",
    help="What hindsight minimises: total-latency, weighted-latency or makespan.",
)
@click.option("--horizon", type=int, metavar="T", help="Last step (default: one that is proven).")
@click.option("--size", type=int, metavar="K", help="Number of requests in the batch.")
@click.option(
    "--out", required=True, type=click.Path(), help="Write a file that ends in .mps or .lp."
)
def export(
    instance: Instance,
    output: Output,
    name: str,
    objective: Any,
    horizon: int | None,
    size: int | None,
    out: str,
) -> int:
    """Write a model to a file for another solver."""
    from optsched.models import BatchSelection, HindsightProgram, LatencyRelaxation
    from optsched.optimum.solving import proven_horizon

    check_writable(out)
    if name == "batch":
        if size is None:
            raise OptschedError("a batch is selected for a given size; add --size K")
        batch = BatchSelection(instance.prompts, instance.outputs, instance.memory, size=size)
        model = batch.to_linear()
    else:
        end = proven_horizon(instance, objective) if horizon is None else horizon
        if name == "relaxation":
            model = LatencyRelaxation(instance, end).to_linear()
        else:
            model = HindsightProgram(instance, end, objective).to_linear()
    with output.progress(f"writing {out}"):
        optsched.write_model(model, out)
    output.say(f"{model}\nwritten to {out}")
    rows, columns = model.matrix.shape
    output.result({"out": out, "rows": rows, "columns": columns, "nonzeros": int(model.matrix.nnz)})
    return DONE
