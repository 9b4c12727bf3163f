"""The command `capacity`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import optsched
from optsched.cli import options as cli
from optsched.cli.options import Numbers, Options, Output, command, flag, option, take
from optsched.cli.policies import ENGINE, ENGINE_NAMES, note_unforeseen, of_engine

if TYPE_CHECKING:
    from collections.abc import Sequence


@command(
    cli.TRACE,
    option(
        "--slo S",
        str,
        "An objective, such as ttft:p99<=2s, 500ms or 40steps; may be repeated.",
        multiple=True,
        required=True,
    ),
    option(
        "--policies P,Q",
        str,
        "Policies of the workers; each runs with each router (default: vllm, what its plugin ships "
        "and two that know outputs; in steps fcfs and area).",
    ),
    option("--routers A,B", "least-tokens", "Routers, as of route."),
    option("--workers G", int, "Simulate only so many workers."),
    option("--loads X,Y", Numbers(float), "The same where all arrive so many times as fast."),
    option("--cost-per-hour cost C", float, "Cost of a worker per hour, for the table."),
    option("--seeds K", int, "Meet the objectives on a family under K seeds, from --seed on."),
    flag("--at-least-only", "Only prove how many workers any scheduler needs."),
    cli.INTERVALS,
    cli.CLOCK[0],
    *ENGINE,
    option("--certificate FILE", cli.FILE, "Write the proof, for check."),
    cli.HTML,
    runs=(
        "capacity trace.csv --memory 16492 --slo 'latency:p90<=900steps'",
        "capacity trace.csv --memory 16492 --clock llama-2-70b-2xa100 --policies work "
        "--slo 'ttft:p90<=9s' --slo 'latency:mean<=90s'",
        "capacity family:uniform,n=40,load=2 --slo 'latency:max<=120steps' --loads 2 "
        "--html report.html",
    ),
)
def capacity(output: Output, given: Options) -> int:
    """Find how many workers a trace needs: at least, at most."""
    from optsched.problem.workers import get_routers
    from optsched_serving.capacity.capacity import IN_STEPS, ON_CLOCK

    instance, several, slo = given.pop("instance"), given.pop("several", None), given.pop("slo")
    policies, loads, certificate = take(given, "policies loads certificate").values()
    names: Sequence[str] = IN_STEPS if given["clock"] is None else ON_CLOCK
    if policies is not None:
        names = optsched.policies.split_names(policies)
    chosen = optsched.policies.get_policies(names)
    engines = [each.needs.kind in ("vllm", "engine") for each in chosen]
    how = take(given, ENGINE_NAMES)
    chosen = [
        of_engine(each, dict(how)) if engine or not any(engines) else each
        for each, engine in zip(chosen, engines, strict=True)
    ]
    note_unforeseen(chosen)
    given["routers"] = get_routers(given["routers"].replace(" ", "").split(","))
    given["loads"] = [] if loads is None else loads if isinstance(loads, list) else [loads]
    given["max_num_seqs"] = how["max_num_seqs"]
    with output.progress() as update:
        found = optsched.capacity(several or instance, slo, chosen, on_progress=update, **given)
        update("bounding the share within the objectives")
        content = found.to_dict()
    if certificate is not None and found.certificate is not None:
        found.certificate.to_json(certificate)
    elif certificate is not None:
        why = "no number of workers is enough" if not found.possible else "nothing is proven"
        output.note(f"{certificate} is not written, because {why}")
    for entry in content["plans"]:
        entry["command"] = _again(**take(dict(entry), "policy router workers"))
    if found.interrupted:
        output.note("interrupted; this is what was known by then")
    output.show(found, content)
    if found.interrupted:
        return cli.INTERRUPTED
    enough = found.possible if given["at_least_only"] else found.at_most is not None
    return cli.DONE if enough else cli.NO


def _again(policy: str, router: str, workers: int | None) -> str | None:
    if workers is None:
        return None
    skipped = {"--policies", "--routers", "--workers", "--loads", "--html", "--json"}
    words = cli.words_without(skipped | {"--certificate", "--cost-per-hour"})
    chosen = ["--policies", policy, "--routers", router, "--workers", str(workers)]
    return shlex.join(["optsched", *words, *chosen])
