"""Commands for models: a batch selected, a program written to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optsched
from optsched.cli.common import DONE, Output
from optsched.cli.options import PROGRAM, TRACE, command, flag, option
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.instance import Instance
    from optsched.models import BalanceState, StepGoals
    from optsched.models.program import Program


@command(
    TRACE,
    option("--method M", "dp", "How to select: dp, scaled-dp, swap, quantile or mip."),
    option("--fit", ["peak", "profile"], "What must fit: peaks, or every step (mip only)."),
    option("--epsilon X", 0.1, "Relative error of scaled-dp.", needs="--method scaled-dp"),
    option("--time-limit S", float, "Seconds that mip may take.", needs="--method mip"),
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
    selection = optsched.BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
    with output.progress("selecting"):
        found = optsched.solve(
            selection, time_limit=time_limit, method=method, params=optsched.SolveParams(**params)
        )
    batch, seconds = found.require().answer, found.seconds
    requests, ratio = batch.requests.tolist(), float(batch.ratio)
    labels = ", ".join(map(instance.label, requests))
    output.say(f"F = {ratio:.6g} with {len(batch)} requests in {seconds:.3f} s: {labels}")
    output.result({"requests": requests, "F": ratio, "seconds": seconds, "factor": batch.factor})
    return DONE


_STEP = "--model balance"


@command(
    TRACE,
    option(
        "--model",
        ["hindsight", "relaxation", "batch", "balance"],
        "OPT-IP, Relax-LP, the selection of one batch, or the first step of a cluster (IO).",
    ),
    option(
        "--objective O",
        "total-latency",
        "What hindsight minimises, as for solve.",
        beside="--model hindsight",
    ),
    option(
        "--last-step horizon T",
        int,
        "Last step (default: one that is proven to suffice).",
        beside="--model hindsight relaxation",
    ),
    option("--size K", int, "Number of requests in the batch.", beside="--model batch"),
    option(
        "--workers G",
        str,
        "Number of workers; for hindsight also memories such as 100,50x4.",
        needs="--model hindsight balance",
    ),
    option("--slots B", int, "Requests that each worker may run.", beside=_STEP),
    option("--lookahead H", 20, "Steps to look ahead.", beside=_STEP),
    flag("--deadlines", "Keep deadlines (column deadline).", beside=_STEP),
    flag("--tenants", "Share slots among tenants (column label: acme/17).", beside=_STEP),
    option("--energy-price X", 0.0, "Tokens of imbalance that a joule is worth.", beside=_STEP),
    PROGRAM,
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
    from optsched.models import BatchSelection, HindsightProgram, LatencyRelaxation
    from optsched.optimum.solving import proven_horizon
    from optsched.workers import as_workers

    program: Program
    if model == "batch":
        if size is None:
            raise OptschedError("a batch is selected for a given size; add --size K")
        prompts, outputs = instance.prompts, instance.outputs
        program = BatchSelection(prompts, outputs, instance.memory, size=size)
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
    cluster, count = Cluster(int(workers), slots), int(workers)
    BalanceRouting(lookahead, energy_price=energy_price)  # refuses what a cluster does
    first = np.flatnonzero(instance.arrivals == instance.arrivals.min())
    waiting = instance.prompts[first]
    empty = np.zeros((count, lookahead + 1), dtype=np.int64)
    tokens = waiting[:, None] + np.arange(lookahead + 1)
    bonus = energy_bonus(cluster, empty, tokens, energy_price)
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
