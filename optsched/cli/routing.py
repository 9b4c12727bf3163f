"""The command on workers that run each on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optsched
from optsched.cli.common import DONE, Output
from optsched.cli.options import CLOCK, HTML, INTERVALS, TRACE, command, option
from optsched.cli.policies import note_unforeseen

if TYPE_CHECKING:
    from optsched.instance import Instance
    from optsched.simulate.replicas.result import RoutedRun


@command(
    TRACE,
    option(
        "--workers G", str, "Number of workers, or memories such as 16492x2,4096x8.", required=True
    ),
    option(
        "--routers A,B",
        "round-robin,jsq,least-tokens,central",
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
    from optsched.workers import get_routers

    chosen = get_routers(routers.replace(" ", "").split(","))
    names = split_names(policies)
    note_unforeseen(get_policies(names))
    with output.progress() as update:

        def show(run: RoutedRun) -> None:
            update(f"finished {run.router} with {run.policy}")

        found = optsched.routing_loss(instance, workers, chosen, names, on_result=show, **options)
    output.show(found)
    return DONE
