"""The command line: one command per question, JSON for machines, sentences for people."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

import optsched
from optsched.errors import InfeasibleError, OptschedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.comparison import PolicyResult
    from optsched.instance import Instance

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
LISTED = 10  # rows left out or violations that are printed; JSON has all violations

Command = TypeVar("Command", bound=Callable[..., Any])


class Output:
    """Where results go: JSON to a file or to standard output, sentences to the terminal."""

    def __init__(self, json_path: str | None, quiet: bool) -> None:
        self._json = json_path
        self._quiet = quiet
        if json_path not in (None, "-"):
            check_writable(json_path)

    def say(self, text: str) -> None:
        """Print for a person, unless standard output belongs to JSON or quiet was asked for."""
        if self._json != "-" and not self._quiet:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print beside the result, on standard error."""
        if not self._quiet:
            click.echo(f"optsched: {text}", err=True)

    def result(self, content: dict[str, Any]) -> None:
        """Write the result as JSON where it was asked for."""
        if self._json == "-":
            click.echo(json.dumps(content))
        elif self._json is not None:
            Path(self._json).write_text(json.dumps(content) + "\n", encoding="utf-8")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is running while it runs, on a terminal only; gives a function to change it."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console

        with Console(stderr=True).status(text) as status:
            yield status.update


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written before any work is done for it."""
    path = Path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise OptschedError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise OptschedError(f"cannot write {path}: there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OptschedError(f"cannot write {path}: no permission; choose another place")


def shared_options(function: Command) -> Command:
    """Add the options that all commands have, and pass on an `Output`."""

    @click.option(
        "--json", "json_path", metavar="OUT", help="Write JSON to OUT ('-': stdout only)."
    )
    @click.option("--seed", type=int, default=0, show_default=True, help="Seed of all randomness.")
    @click.option("--quiet", is_flag=True, help="Print no table and no notes.")
    @functools.wraps(function)
    def command(*args: Any, json_path: str | None, quiet: bool, **options: Any) -> Any:
        return function(*args, output=Output(json_path, quiet), **options)

    return command  # type: ignore[return-value]


def trace_options(function: Command) -> Command:
    """Add TRACE and how to read it, and pass on the instance."""

    @click.argument("trace")
    @click.option("--memory", type=int, metavar="M", help="Tokens that the worker holds.")
    @click.option("--limit", type=int, metavar="N", help="Take only the first N requests.")
    @click.option(
        "--seconds-per-step",
        type=float,
        default=0.05,
        show_default=True,
        help="Length of a step where arrivals are in seconds.",
    )
    @click.option("--skip-invalid", is_flag=True, help="Leave bad rows out, and list them.")
    @functools.wraps(function)
    def command(
        *args: Any,
        output: Output,
        trace: str,
        memory: int | None,
        limit: int | None,
        seconds_per_step: float,
        skip_invalid: bool,
        seed: int,
        **options: Any,
    ) -> Any:
        from optsched.workloads import read_trace, read_trace_skipping

        if trace.startswith("family:") and "seed=" not in trace:
            trace += f",seed={seed}"
        with output.progress(f"reading {trace}"):
            if skip_invalid:
                instance, skipped = read_trace_skipping(
                    trace, memory, limit=limit, seconds_per_step=seconds_per_step
                )
                for row in skipped[:LISTED]:
                    output.note(f"left out {row}")
                output.note(f"left out {len(skipped)} rows, kept {len(instance)}")
            else:
                instance = read_trace(trace, memory, limit=limit, seconds_per_step=seconds_per_step)
        if instance.seconds_per_step is not None:
            output.note(f"arrivals in seconds became steps of {instance.seconds_per_step:g} s")
        return function(*args, instance=instance, output=output, **options)

    return command  # type: ignore[return-value]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(optsched.__version__, prog_name="optsched")
def cli() -> None:
    """Scheduling of LLM inference: policies, bounds and optima.

    TRACE is a CSV with prompt_tokens,output_tokens and optionally arrival (steps) or arrival_s
    (seconds); a public trace (Azure, BurstGPT, Vidur, Mooncake); a JSON instance; or
    family:NAME,n=..,seed=.. for a synthetic workload.

    Exit codes: 0 done, 1 the answer is no, 2 bad input, 130 interrupted.
    """


@cli.command()
@shared_options
@trace_options
@click.option("--policies", metavar="A,B", help="Names of policies (default: all).")
@click.option("--html", type=click.Path(), help="Write a report that needs no network.")
@click.option("--schedules", type=click.Path(), help="Write POLICY.json for each into this folder.")
def compare(
    instance: Instance,
    output: Output,
    policies: str | None,
    html: str | None,
    schedules: str | None,
) -> int:
    """Compare policies with each other and with a proven lower bound."""
    from optsched.comparison import Comparison, load_kernels
    from optsched.policies import get_policies

    chosen = get_policies(None if policies is None else policies.split(","))
    if html is not None:
        check_writable(html)
    if schedules is not None:
        folder = Path(schedules)
        if folder.exists() and not folder.is_dir():
            raise OptschedError(f"cannot write schedules into {folder}: it is no folder")
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder / "schedule.json")
    results: list[PolicyResult] = []
    code = DONE
    with output.progress("loading kernels (compiling them, the first time)") as update:
        load_kernels(chosen)
        update("finding a lower bound")
        proven = optsched.bound(instance)

        def keep(result: PolicyResult) -> None:
            results.append(result)
            update(f"ran {len(results)} of {len(chosen)} policies")

        try:
            optsched.compare(instance, chosen, bound=proven, on_result=keep)
        except KeyboardInterrupt:
            code = INTERRUPTED
            output.note(f"interrupted after {len(results)} of {len(chosen)} policies")
            if not results:
                return code
    comparison = Comparison(instance, proven, tuple(results))
    if schedules is not None:
        for schedule in comparison.schedules:
            schedule.to_json(folder / f"{schedule.policy}.json")
    if html is not None:
        comparison.to_html(html)
    output.say(str(comparison))
    output.result(comparison.to_dict())
    return code


@cli.command()
@shared_options
@trace_options
@click.option(
    "--method",
    type=click.Choice(["auto", "closed-form", "lagrangian"]),
    default="auto",
    show_default=True,
    help="How to find it.",
)
@click.option("--certificate", type=click.Path(), help="Write the proof, in exact integers.")
def bound(instance: Instance, output: Output, method: Any, certificate: str | None) -> int:
    """Prove a lower bound on the total latency of any schedule."""
    if certificate is not None:
        check_writable(certificate)
        if method == "closed-form":
            raise OptschedError("the closed form has no certificate; use --method lagrangian")
        method = "lagrangian"
    with output.progress("finding a lower bound"):
        proven = optsched.bound(instance, method)
    if certificate is not None and proven.certificate is not None:
        proven.certificate.to_json(certificate)
    output.say(
        f"no schedule of {instance.name} has a total latency below {proven.value:,.1f} steps "
        f"({proven.value / len(instance):,.1f} per request; {proven.method}, "
        f"{proven.seconds:.3f} s)"
    )
    content = {"value": proven.value, "method": proven.method, "seconds": proven.seconds}
    output.result(content)
    return DONE


@cli.command()
@shared_options
@trace_options
@click.argument("schedule")
def check(instance: Instance, output: Output, schedule: str) -> int:
    """Check a schedule: a JSON file with the start steps under "starts"."""
    plan = optsched.Schedule.from_json(Path(schedule), instance)
    violations = plan.check()
    output.say(str(plan))
    for violation in violations[:LISTED]:
        output.say(f"  {violation}")
    if len(violations) > LISTED:
        output.say(f"  ... and {len(violations) - LISTED} more (--json lists them all)")
    output.result(
        {
            "feasible": not violations,
            "violations": [
                {
                    "kind": violation.kind,
                    "request": violation.request,
                    "label": violation.label,
                    "step": violation.step,
                    "usage": violation.usage,
                    "limit": violation.limit,
                    "last_step": violation.last_step,
                }
                for violation in violations
            ],
            **plan.metrics(),
        }
    )
    return NO if violations else DONE


@cli.command("check-certificate")
@shared_options
@trace_options
@click.argument("certificate")
def check_certificate(instance: Instance, output: Output, certificate: str) -> int:
    """Check a certificate in exact integers, trusting nothing it claims."""
    claimed = optsched.Certificate.from_json(Path(certificate))
    with output.progress("verifying the certificate"):
        proven = optsched.verify(claimed, instance)
    valid = proven >= claimed.value
    output.say(f"the prices prove that no schedule has a total latency below {float(proven):,.3f}")
    if not valid:
        output.say(f"but the certificate claims {float(claimed.value):,.3f}")
    output.result({"valid": valid, "value": float(proven), "claimed": float(claimed.value)})
    return DONE if valid else NO


@cli.command()
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


@cli.command()
@shared_options
@trace_options
@click.option("--time-limit", type=float, default=60.0, show_default=True, metavar="S")
@click.option("--threads", type=int, default=1, show_default=True, metavar="K")
@click.option("--certificate", type=click.Path(), help="Write the Lagrangian's proof.")
def hindsight(
    instance: Instance, output: Output, time_limit: float, threads: int, certificate: str | None
) -> int:
    """Close in on the least total latency, and explain the gap that is left."""
    if certificate is not None:
        check_writable(certificate)
    seed = click.get_current_context().params["seed"]
    with output.progress("solving") as update:
        result = optsched.solve(
            instance,
            time_limit=time_limit,
            threads=threads,
            seed=seed,
            on_progress=lambda progress: update(str(progress)),
        )
    output.say(str(result))
    content = {**result.to_dict(), "explanation": None}
    try:
        if certificate is not None:
            proof = optsched.bound(instance, "lagrangian").certificate
            assert proof is not None
            proof.to_json(certificate)
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


@cli.command()
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


@cli.command()
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


def main() -> NoReturn:
    """Run the command line and end the process with one of the four exit codes."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("optsched: interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        click.echo(f"optsched: {error.format_message()}", err=True)
        code = BAD_INPUT
    except OptschedError as error:
        click.echo(f"optsched: {error}", err=True)
        code = NO if isinstance(error, InfeasibleError) else BAD_INPUT
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        click.echo(f"optsched: cannot use{where}: {error.strerror or error}", err=True)
        code = BAD_INPUT
    sys.exit(code)
