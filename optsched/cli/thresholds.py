"""The command for thresholds: equilibrium, WAIT and Nested WAIT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from optsched.cli.common import DONE, Output, shared_options
from optsched.cli.presentation import command, examples
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from optsched.clock import Clock
    from optsched.models.fluid.nested import NestedWaitPlan
    from optsched.models.fluid.wait import WaitPlan
    from optsched.workloads.request_types import RequestTypes


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Whole numbers with commas between them."""

    name = "N,N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """Split and convert."""
        try:
            return [int(number) for number in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} must be whole numbers with commas between them", param, ctx)


@command(
    epilog=examples(
        "thresholds trace.csv --clock llama-2-7b-a100 --rate 2",
    )
)
@shared_options
@click.argument("types", metavar="TYPES")
@click.option(
    "--clock",
    metavar="C",
    help="How long batches take, such as affine:D0,D1 (default: the file's).",
)
@click.option(
    "--memory", type=int, metavar="M", help="Tokens that the KV cache of the worker holds."
)
@click.option("--batch-limit", type=int, metavar="B", help="Requests in a batch, at all stages.")
@click.option(
    "--minimum-slack",
    type=float,
    default=0.0,
    show_default=True,
    metavar="S",
    help="Seconds that a batch must spare.",
)
@click.option(
    "--objective",
    type=click.Choice(["memory", "slack"]),
    default="memory",
    show_default=True,
    metavar="O",
    help="What to find: least memory, or largest slack within the limits.",
)
@click.option(
    "--thresholds", type=Numbers(), metavar="N,..", help="Check these instead of computing some."
)
@click.option("--nested", is_flag=True, help="Nested WAIT: outputs are not known in advance.")
@click.option(
    "--segments",
    metavar="S",
    default="types",
    show_default=True,
    help="Nested: one per output length (types), the best ones (auto), the best L (a number), "
    "or those that end at B1,B2,...",
)
@click.option(
    "--margin", type=float, metavar="X", help="Nested: distance from equality in (10), 0 to 1."
)
@click.option(
    "--delta", type=float, default=0.01, show_default=True, metavar="X", help="Nested: risk taken."
)
@click.option(
    "--iterations",
    type=int,
    default=10_000,
    show_default=True,
    metavar="K",
    help="Nested: iterations for which the memory suffices with probability 1 - delta.",
)
@click.option(
    "--prompt",
    type=int,
    metavar="N",
    help="Nested: prompt of all types (default: their mean).",
)
@click.option(
    "--classes",
    type=int,
    metavar="K",
    help="For a trace: number of types (default: all pairs).",
)
@click.option(
    "--rate",
    type=float,
    metavar="X",
    help="For a trace: requests per second (default: its own).",
)
def thresholds(output: Output, types: str, clock: str | None, **options: Any) -> int:
    """Compute thresholds of WAIT or Nested WAIT."""
    from optsched.clock import get_clock
    from optsched.models.fluid.equilibrium import equilibrium

    given, own_clock, own_memory = _read(types, options)
    if clock is None and own_clock is None:
        raise OptschedError(f"{types} names no clock; pass --clock, such as affine:0.0085,2.7e-7")
    chosen = own_clock if clock is None else get_clock(clock)
    assert chosen is not None
    if options["memory"] is None:
        options["memory"] = own_memory
    if options["nested"]:
        given = _one_prompt(given, options["prompt"], output)
    balance = equilibrium(given, chosen)
    stable = balance.stable
    content: dict[str, Any] = {
        "stable": stable,
        "load": balance.load,
        "iteration_time": balance.iteration_time if stable else None,
        "equilibrium_memory": balance.memory if stable else None,
        "throughput": balance.throughput if stable else None,
        "output_throughput": balance.output_throughput if stable else None,
        "types": [
            {"name": name, "load": load, "memory": memory if stable else None}
            for name, load, memory in zip(
                given.names, balance.loads.tolist(), balance.memories.tolist(), strict=True
            )
        ],
        "thresholds": None,
        "memory": None,
        "safety_stock": None,
    }
    if stable:
        output.say(str(balance))
    try:
        balance.require_stable()
        with output.progress("finding thresholds"):
            plan = (
                _nested(given, chosen, options)
                if options["nested"]
                else _wait(given, chosen, options)
            )
    except InfeasibleError:
        output.result(content)
        raise
    output.say(f"\n{plan}")
    output.result(content | _content(plan))
    return DONE


def _read(source: str, options: dict[str, Any]) -> tuple[RequestTypes, Clock | None, int | None]:
    from optsched._internal.arrays import MAX_TOKENS
    from optsched.workloads import read_trace
    from optsched.workloads.request_types import RequestTypes, read_types

    if source.endswith(".toml"):
        if options["classes"] is not None or options["rate"] is not None:
            raise OptschedError("--classes and --rate are for traces; a TOML file has its own")
        return read_types(source)
    instance = read_trace(source, options["memory"] or MAX_TOKENS)
    return (
        RequestTypes.from_instance(instance, options["classes"], options["rate"]),
        None,
        None,
    )


def _one_prompt(types: RequestTypes, prompt: int | None, output: Output) -> RequestTypes:
    if prompt is None:
        if len(set(types.prompts.tolist())) == 1:
            return types
        mean = types.with_one_prompt()
        output.note(
            f"prompts differ; all types are taken to have their mean, {mean.prompts[0]} tokens "
            "(--prompt sets another)"
        )
        return mean
    return types.with_one_prompt(prompt)


def _wait(types: RequestTypes, clock: Clock, options: dict[str, Any]) -> WaitPlan:
    from optsched.models.fluid.wait import WaitThresholds
    from optsched.optimum.params import SolveParams
    from optsched.optimum.solving import solve

    program = WaitThresholds(
        types,
        clock,
        options["memory"],
        options["batch_limit"],
        options["minimum_slack"],
        options["objective"],
    )
    if options["thresholds"] is not None:
        return program.plan(options["thresholds"])
    least = program.least_fixed_point()
    if options["objective"] == "memory":
        return program.plan(least)
    found = solve(program, time_limit=None, params=SolveParams(start=least))
    return program.plan(least if found.answer is None else found.answer)


def _nested(types: RequestTypes, clock: Clock, options: dict[str, Any]) -> NestedWaitPlan:
    from optsched.models.fluid.nested import NestedWaitThresholds
    from optsched.models.fluid.segments import design_segments

    risk = {"delta": options["delta"], "iterations": options["iterations"]}
    segments, margin = options["segments"], options["margin"]
    if (segments == "auto" or segments.isdigit()) and options["thresholds"] is None:
        number = None if segments == "auto" else int(segments)
        return design_segments(
            types, clock, segments=number, margin=margin, memory=options["memory"], **risk
        )
    borders = None if segments == "types" else Numbers().convert(segments, None, None)
    program = NestedWaitThresholds(
        types,
        clock,
        borders,  # type: ignore[arg-type]
        margin=0.05 if margin is None else margin,
        minimum_slack=options["minimum_slack"],
        memory=options["memory"],
    )
    if options["thresholds"] is not None:
        return program.plan(options["thresholds"], **risk)
    if margin is None:
        return program.best_margin(**risk)
    return program.plan(program.least_fixed_point(), **risk)


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
    return content | {
        "safety_stock": plan.safety_stock,
        "memory_bound": plan.memory_bound,
        "memory_terms": [plan.memory, plan.queue_memory, plan.rare_memory],
        "borders": plan.program.last_stages.tolist(),
        "decays": [decay if decay < float("inf") else None for decay in plan.decays[1:].tolist()],
        "slack": plan.slack,
        "delta": plan.delta,
        "iterations": plan.iterations,
    }
