"""How commands are made: their options, TRACE, sections of help, and errors that name options."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import click

from optsched.cli.common import LISTED, Output, take
from optsched.cli.given import note_twice, note_unless, only_for, taken_notes
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.forecasts import Beliefs
    from optsched.instance import Instance

TICK = 1e-6  # seconds of a step where arrivals must stay precise
IDLE = 100_000  # steps before the first arrival that are nothing unusual
DEFAULT_BLOCK = 16  # tokens of a block where vLLM is not told
UNLOADED = 0.01  # load below which the unit of arrivals is doubtful


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number, or several with commas between them, or one of a few words."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float], *words: str) -> None:
        self._kind, self._words = kind, words

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Split and convert."""
        if value in self._words:
            return value
        try:
            numbers = [self._kind(part) for part in str(value).split(",")]
        except ValueError:
            what = "whole number" if self._kind is int else "number"
            where = f"{param.opts[-1]} is {value!r}"
            raise OptschedError(f"{where}, but must be a {what}, or several with commas") from None
        return numbers[0] if len(numbers) == 1 else numbers


def option(usage: str, kind: Any, text: str, **more: Any) -> click.Option:
    """Declare an option by its names and, last, what stands for its value.

    `kind` is its type, its default, or its choices, the default first.
    """
    *names, metavar = usage.split()
    if isinstance(kind, list):
        more["default"], kind = kind[0], click.Choice(kind)
    elif not isinstance(kind, type | click.ParamType):
        more["default"], kind = kind, type(kind)
    shown = "default" in more
    return click.Option(names, type=kind, metavar=metavar, help=text, show_default=shown, **more)


def flag(names: str, text: str, **more: Any) -> click.Option:
    """Declare an option that is there or not."""
    return click.Option(names.split(), is_flag=True, help=text, **more)


def switch(name: str, text: str) -> click.Option:
    """Declare an option that is on, off with --no-..., or not given."""
    return click.Option([f"--{name}/--no-{name}"], default=None, help=text)


def path(name: str, text: str, *, required: bool = False) -> click.Option:
    """Declare an option that names a file or folder."""
    return option(f"{name} PATH", click.Path(), text, required=required)


HTML = path("--html", "Write a report that needs no network.")
LOG = path("--log", "Write all attempts to a .csv, .csv.gz or .parquet.")
JOBS = option("--jobs K", int, "Processes of this machine (default: all cores).")
MEMORY = option("--memory M", int, "Tokens that the KV cache of the worker holds.")
INTERVALS = option(
    "--intervals I",
    str,
    "What policies may know of outputs: exact, common:L,U, classes:W, relative:X or column "
    "(output_lower, output_upper of TRACE). Default: the outputs.",
)
_RULE = option(
    "--rule R",
    ["prefix", "skip", "backfill", "window", "delay"],
    "When a request does not fit: prefix (none passes it), skip, backfill or window; delay: on a "
    "clock, wait rather than hold up those about to finish.",
)
_HISTORY = option(
    "--history TRACE",
    str,
    "Completed requests, from which policies under intervals learn which outputs are likely: "
    "area-chance, work-chance and vllm with an order or a plan.",
)
_LOG_ERROR = option(
    "--log-error E",
    float,
    "Instead of --history: error of the column output_estimate of TRACE, as the standard deviation "
    "of its logarithm.",
)
KNOWLEDGE = (INTERVALS, _HISTORY, _LOG_ERROR, _RULE)
CLOCK = (
    option(
        "--clock C",
        str,
        "How long batches take: unit, affine:D0,D1, a profiled model such as llama-2-70b-2xa100, "
        "or FILE.json. Default: steps.",
    ),
    option("--until T", float, "On a clock: form no batch at or after time T."),
    option("--warm-up T", 0.0, "On a clock: exclude what happens before time T from the metrics."),
)
SKIP_INVALID = flag("--skip-invalid", "Skip bad rows, and list them.")
READING = (
    option("--limit N", int, "Take only the first N requests."),
    option("--seconds-per-step S", 0.05, "In steps: their length, where arrivals are in seconds."),
    SKIP_INVALID,
)
HARDWARE = (
    option("--model M", str, "Instead of --memory: a model, such as llama-2-70b, ..."),
    option(
        "--gpu G", str, "... and the GPU it runs on, such as a100-80gb; sets a known clock too."
    ),
    option("--gpus N", 1, "GPUs that share the model."),
)
TRACE = (click.Argument(["trace"]), MEMORY, *READING)
ALL = (
    option(
        "--json json_path OUT",
        str,
        "Write the result as JSON ('-': to standard output, and nothing else).",
    ),
    option("--seed N", 0, "Seed of all randomness, and of a family without a seed of its own."),
    flag("--quiet", "Print no table and no notes."),
)

WORKERS = option(
    "--workers G",
    str,
    "Independent workers: their number, or memories such as 16492x2,4096x8 (without --memory).",
)
_SECTIONS = {
    "Trace (a CSV file, or family:NAME,n=..; see optsched --help)": (
        *("memory", "model", "gpu", "gpus", "limit", "seconds_per_step", "skip_invalid"),
    ),
    "Results": ("html", "schedules", "log", "batches", "certificate", "out", "json_path", "quiet"),
}
_SECTION = {name: section for section, names in _SECTIONS.items() for name in names}


def _place(parameter: click.Parameter) -> tuple[int, int]:
    """Say where a parameter stands: a command's own first, the seed last among them."""
    name = parameter.name or ""
    if (section := _SECTION.get(name)) is not None:
        return 1 + list(_SECTIONS).index(section), _SECTIONS[section].index(name)
    return 0, int(name == "seed")


class Examples(click.Command):
    """A command that ends with its examples, one a line however narrow the terminal."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.epilog:
            formatter.write("\n" + self.epilog.removeprefix("\b\n") + "\n")


class _Command(Examples):
    """A command whose options stand in sections, its own ones first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                section = _SECTION.get(parameter.name or "", "Options")
                sections.setdefault(section, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; note which options are typed twice."""
        with ctx:
            note_twice(self.make_parser(ctx).parse_args(list(args))[2])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error names options, where Python has arguments of these names."""
        try:
            return super().invoke(ctx)
        except OptschedError as error:
            sentence = str(error)
            for parameter in self.params:
                if isinstance(parameter, click.Option) and parameter.name:
                    argument = rf"(?:^|(?<=\()){re.escape(parameter.name)}(?= is | leaves |\))"
                    sentence = re.sub(argument, parameter.opts[-1], sentence)
            error.args = (sentence, *error.args[1:])
            raise


def examples(lines: Sequence[str]) -> str:
    """Write an epilog of command lines, which the tests run."""
    return "\n".join(["\b", "Examples:", *(f"  optsched {line}" for line in lines)])


def command(
    *parameters: click.Parameter | Iterable[click.Parameter], runs: Sequence[str]
) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of a function, with examples that run.

    The function is called with an `Output`, with what the options say, the seed among them, and
    where TRACE is among the parameters with the instance.
    """
    listed: list[click.Parameter] = [*ALL]
    for each in parameters:
        listed.extend([each] if isinstance(each, click.Parameter) else each)
    if TRACE in parameters and all(each.name != "model" for each in listed):
        listed.extend(HARDWARE)

    def decorate(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def call(json_path: str | None, quiet: bool, **options: Any) -> int:
            output = Output(json_path, quiet)
            skip_invalid = options.get("skip_invalid", False)
            if TRACE in parameters:
                options["instance"] = _instance(output, options)
            if _HISTORY in listed:
                options["beliefs"] = _beliefs(output, options, skip_invalid)
            code = function(output=output, **options)
            for note in taken_notes():
                output.note(note)
            return code

        listed.sort(key=_place)
        return click.command(cls=_Command, params=listed, epilog=examples(runs))(call)

    return decorate


def _instance(output: Output, options: dict[str, Any]) -> Instance:
    """Take TRACE and how to read it out of the options, and read it."""
    trace = options.pop("trace")
    how = take(options, "memory", "limit", "seconds_per_step", "skip_invalid")
    if "gpus" in options:
        _take_hardware(options, how)
    on_clock = options.get("clock") not in (None, "unit")
    note_unless(not on_clock, "seconds_per_step", "runs in steps")
    if how["memory"] is None and options.get("num_gpu_blocks") is not None:
        size = options["block_size"] or DEFAULT_BLOCK
        how["memory"] = (options["num_gpu_blocks"] - 1) * size  # one block is not used
    if not str(options.get("workers") or "1").isdecimal():
        from optsched.workers import Workers

        how["memory"] = max(Workers.parse(options["workers"], how["memory"]).memories)
    if on_clock:
        how["seconds_per_step"] = TICK
    if not trace.startswith("family:"):
        instance = read_instance(output, trace, **how)
        converted = on_clock or instance.seconds_per_step == how["seconds_per_step"]
        unless = f"arrivals in seconds, which {trace} has not"
        note_unless(converted, "seconds_per_step", unless)
        _note_odd_arrivals(output, instance)
        return instance
    note_unless(on_clock, "seconds_per_step", "files with arrivals in seconds")
    trace = seeded(trace, options["seed"])
    if on_clock and "seconds_per_step=" not in trace:
        trace += f",seconds_per_step={TICK!r}"  # so that a rate is per second
    return read_instance(output, trace, **how)


def seeded(trace: str, seed: int) -> str:
    """Return a family with the seed of the command, unless it has its own."""
    return trace if "seed=" in trace else f"{trace},seed={seed}"


def _take_hardware(options: dict[str, Any], how: dict[str, Any]) -> None:
    """Take the model and its GPUs out of the options; they say the memory and perhaps the clock."""
    from optsched.clock import clock_of
    from optsched.hardware import memory_tokens

    model, gpu, gpus = take(options, "model", "gpu", "gpus").values()
    if model is None and gpu is None:
        only_for("gpus", False, "a model on GPUs", "add --model and --gpu")
        return
    if model is None or gpu is None:
        raise OptschedError("--model and --gpu belong together; pass both, or --memory")
    before = how["memory"], options.get("clock")
    if how["memory"] is None:
        how["memory"] = memory_tokens(model, gpu, gpus)
    if "clock" in options and options["clock"] is None:
        options["clock"] = clock_of(model, gpu, gpus)
    used = before != (how["memory"], options.get("clock"))
    only_for("model gpu gpus", used, "a memory or a known clock where none is set")


def _beliefs(
    output: Output, options: dict[str, Any], skip_invalid: bool
) -> Beliefs | Instance | None:
    """Take out of the options which outputs are likely: by completed requests, or by a column."""
    history, log_error = take(options, "history", "log_error").values()
    if history is not None and log_error is not None:
        raise OptschedError("--history and --log-error both say what is likely; pass one of them")
    if log_error is not None:
        return _around_estimates(options["instance"], log_error)
    if history is None:
        return None
    from optsched._internal.arrays import MAX_TOKENS

    memory = None if history.startswith("family:") else MAX_TOKENS  # they need not fit
    return read_instance(output, history, memory, skip_invalid=skip_invalid)


def _around_estimates(instance: Instance, log_error: float) -> Beliefs:
    from optsched.forecasts import Beliefs

    if instance.output_estimates is None:
        raise OptschedError(
            "--log-error is the error of the column output_estimate, which TRACE does not have; "
            "add it, or leave --log-error out"
        )
    longest = int((instance.memory - instance.prompts).max())
    return Beliefs.around(instance.output_estimates, log_error, longest)


def read_instance(
    output: Output, trace: str, memory: int | None, *, skip_invalid: bool, **how: Any
) -> Instance:
    """Read a trace, and note what was left out or converted."""
    from optsched.workloads import read_trace, read_trace_skipping

    with output.progress(f"reading {trace}"):
        if skip_invalid:
            instance, skipped = read_trace_skipping(trace, memory, **how)
            for row in skipped[:LISTED]:
                output.note(f"left out {row}")
            output.note(f"left out {len(skipped)} rows, kept {len(instance)}")
        else:
            instance = read_trace(trace, memory, **how)
    if instance.seconds_per_step not in (None, TICK):
        output.note(f"arrivals in seconds became steps of {instance.seconds_per_step:g} s")
    return instance


def _note_odd_arrivals(output: Output, instance: Instance) -> None:
    """Say where arrivals look like times of day or milliseconds: they are taken as they are."""
    first, last = int(instance.arrivals[0]), int(instance.arrivals[-1])
    idle = IDLE if instance.seconds_per_step is None else 3600 / instance.seconds_per_step
    if first > max(last - first, idle):
        output.note(
            f"the first request arrives at step {first:,}; where these are times of day, subtract "
            "the first arrival from all of them"
        )
    elif last > 0 and instance.seconds_per_step != TICK and instance.load < UNLOADED:
        output.note(
            f"the load is {instance.load:.2g}: hardly any requests meet; arrival counts steps, "
            "arrival_s seconds (divide milliseconds by 1,000)"
        )
