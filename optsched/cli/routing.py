"""The command on workers that run each on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optsched
from optsched.cli.common import DONE, Output, check_writable, take
from optsched.cli.given import note_unless, only_for
from optsched.cli.options import HTML, INTERVALS, TRACE, command, flag, option
from optsched.cli.policies import note_unforeseen

if TYPE_CHECKING:
    import click

    from optsched.instance import Instance
    from optsched.simulate.replicas.result import RoutedRun

#: Options of `optsched cluster`, whose workers wait for each other.
_BARRIER = ("slots", "lookahead", "patience", "reveal", "steps", "drain", "dispatch", "drift")


def _barrier_option(name: str) -> click.Option:
    """Take an option of the other command, so that it can be refused in words."""
    if name == "drain":
        return flag(f"--{name}", "Of optsched cluster.", hidden=True)
    return option(f"--{name} X", str, "Of optsched cluster.", hidden=True)


@command(
    TRACE,
    option(
        "--workers G",
        str,
        "Number of workers, or their memories, such as 16492x2,4096x8 (then without --memory).",
        required=True,
    ),
    option(
        "--routers A,B",
        "round-robin,jsq,least-tokens,central",
        "Routers: round-robin, random, jsq, power-of-d, least-kv, least-tokens, least-work, "
        "vllm-dp, vllm-dp-tokens, central.",
    ),
    option("--policies P,Q", "fcfs,area", "Policies of the workers; each runs with each router."),
    option("--clock C", str, "How long batches take, as for compare. Default: steps."),
    INTERVALS,
    option("--time-limit S", 60.0, "In steps: seconds for all optima together."),
    HTML,
    [_barrier_option(name) for name in _BARRIER],
    runs=(
        "route trace.csv --memory 16492 --workers 2 --routers jsq --policies fcfs,area",
        "route family:chat-and-summaries,n=60 --workers 4 --time-limit 2 --html report.html",
    ),
)
def route(
    instance: Instance,
    output: Output,
    workers: str,
    routers: str,
    policies: str,
    html: str | None,
    **options: Any,
) -> int:
    """Prove what routers lose by placement and by order."""
    from optsched.policies import get_policies, split_names
    from optsched.workers import get_routers

    waiting = "workers that wait for each other, as in optsched cluster"
    only_for(" ".join(_BARRIER), False, waiting)
    take(options, *_BARRIER)
    check_writable(html)
    chosen = get_routers(routers.replace(" ", "").split(","))
    names = split_names(policies)
    note_unforeseen(get_policies(names))
    in_steps = options["clock"] is None
    note_unless(in_steps, "time_limit", "optima in steps, since a clock has a bound alone")
    with output.progress() as update:

        def show(run: RoutedRun) -> None:
            update(f"finished {run.router} with {run.policy}")

        found = optsched.routing_loss(instance, workers, chosen, names, on_result=show, **options)
    if html is not None:
        found.to_html(html)
    output.say(str(found))
    output.result(found.to_dict())
    return DONE
