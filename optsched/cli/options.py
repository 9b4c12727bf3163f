"""How commands are made: their options, TRACE, sections of help, and errors that name options."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import optsched
from optsched._internal import rooms
from optsched._internal.aside import COMPILING, shown_by
from optsched._internal.files import is_foreign, is_replaced, write_whole
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from optsched import Beliefs, Instance


Options = dict[str, Any]  # what was typed, or is there by default, by name
DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
LISTED = 10  # rows left out or violations that are printed; JSON has all violations


class Output:
    """Where results go: JSON to a file or to standard output, sentences to the terminal."""

    def __init__(self, json_path: str | None, quiet: bool, html: str | None = None) -> None:
        self._json, self._quiet, self.html = json_path, quiet, html

    def say(self, text: str) -> None:
        """Print for a person, unless standard output belongs to JSON or quiet was asked for."""
        if self._json != "-" and not self._quiet:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print beside the result, on standard error."""
        if not self._quiet:
            click.echo(f"optsched: {text}", err=True)

    def result(self, content: Mapping[str, object] | Sequence[object]) -> None:
        """Write the result as JSON where it was asked for."""
        if self._json == "-":
            click.echo(json.dumps(content))
        elif self._json is not None:
            write_whole(self._json, json.dumps(content) + "\n")

    def show(self, result: Any, content: Mapping[str, object] | None = None) -> None:
        """Write a result in all ways that were asked for."""
        if self.html is not None:
            result.to_html(self.html)
        self.say(str(result))
        self.result(result.to_dict() if content is None else content)

    @contextmanager
    def progress(self, text: str = "loading kernels") -> Iterator[Callable[[object], None]]:
        """Show what is running while it runs, on a terminal only; yields what changes it."""
        if self._quiet:
            with shown_by(lambda: None):
                yield lambda _: None
        elif sys.stderr.isatty():
            from rich.console import Console

            status = Console(stderr=True).status(text)
            with status, shown_by(lambda: status.update(COMPILING)):
                yield lambda news: status.update(str(news))
        else:
            yield lambda _: None


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written before any work is done for it."""
    if (wrong := _why_not(Path(path))) is not None:
        raise OptschedError(f"cannot write {path or repr(path)}: {wrong}")


def _why_not(path: Path) -> str | None:
    if "\0" in str(path):
        return "a name holds no NUL; take it out"
    folder = path.absolute().parent
    if path.is_dir():
        return "it is a folder; name a file in it"
    if not folder.is_dir():
        return f"there is no folder {folder}; create it first"
    if path.exists() and not os.access(path, os.W_OK):
        return "no permission; choose another place"
    if is_replaced(path):
        try:  # what is no permission, such as a file system that is read-only, shows only so
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
        except (OSError, RuntimeError) as error:  # such as links that lead to each other
            return f"{getattr(error, 'strerror', error)}; choose another place"
    return None


def names_of(options: Iterable[click.Parameter]) -> str:
    """Return the names of options, as `take` and `only_for` are told them."""
    return " ".join(str(each.name) for each in options)


def take(options: Options, names: str) -> Options:
    """Take options out of others."""
    return {name: options.pop(name) for name in names.split()}


_NOTES, _LEFT_OUT = "optsched.notes", "optsched.left_out"  # under which a context keeps them


class Option(click.Option):
    """An option that may count only beside another one: "--nested", "--method a b", "no --clock".

    Without what it `needs` it is refused; without what it counts `beside` that is only noted.
    """

    def __init__(
        self, names: Sequence[str], needs: str = "", beside: str = "", **more: Any
    ) -> None:
        super().__init__(names, **more)
        self.needs, self.beside = needs, beside

    def shown(self, value: object = None) -> str:
        """Return the option as it was typed, with its value; without one, its name."""
        name = next(name for name in reversed(self.opts) if name.startswith("--"))
        if value is None:
            return name
        if isinstance(value, bool):
            return self.opts[-1] if value else self.secondary_opts[-1]
        values = value if isinstance(value, list) else [value]
        shown = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
        return f"{name} {','.join(shown)}"


def check_conditions(values: Options) -> None:
    """Refuse or note options whose conditions are not met by what was typed, and what follows."""
    context = click.get_current_context()
    values = context.params | values
    unmet: dict[tuple[str, bool], str] = {}
    for option in context.command.params:
        if isinstance(option, Option):
            for condition in filter(None, f"{option.needs},{option.beside}".split(",")):
                if not _is_met(condition, values):
                    key = condition, condition in option.needs
                    unmet[key] = f"{unmet.get(key, '')} {option.name}"
    for (condition, refused), names in unmet.items():
        without = condition.startswith("no ")
        name, *choices = condition.removeprefix("no ").split()
        purpose = f"with{'out' if without else ''} {name} {' or '.join(choices)}".rstrip()
        if refused:
            only_for(names, False, purpose, "" if without else "pass that")
        else:
            note_unless(False, names, purpose)


def _is_met(condition: str, values: Options) -> bool:
    name, *wanted = condition.removeprefix("no ").split()
    value = values[name.removeprefix("--").replace("-", "_")]
    if wanted:
        return not set(wanted).isdisjoint(str(value).replace(" ", "").split(","))
    return (value not in (None, False)) != condition.startswith("no ")


def _check_files() -> None:
    """Refuse an output that would replace an input, or another output, also through a link."""
    context, known = click.get_current_context(), dict[object, str]()
    for each in sorted(context.command.params, key=lambda each: isinstance(each.type, click.Path)):
        if not isinstance(value := context.params[each.name], str):
            continue
        written = isinstance(each.type, click.Path) and value != "-"
        paths = [Path(value)] if written else _files_in(value)
        if each.name == "schedules":
            names = (*optsched.POLICIES, *str(context.params["policies"]).split(","))
            paths = [Path(value, f"{name}.json") for name in names]
        for path in paths:
            name = f"{each.opts[-1]} {path}" if written else str(path)
            other = known.setdefault(_identity(path), name)
            if written and other != name and is_replaced(path):
                raise OptschedError(f"{name} is the same file as {other}; write to another one")
            if written and not context.params.get("overwrite") and is_foreign(path):
                raise OptschedError(
                    f"{path} is there, and optsched has not written it as it is; name another "
                    "file, or pass --overwrite"
                )


def _files_in(text: str) -> Iterator[Path]:
    """List what may be files in a value that was typed, and in the TOML file that it names."""
    yield from map(Path, {text, *text.split(",")})
    if text.endswith(".toml"):
        with suppress(OSError, ValueError):
            for each in re.findall("""["']([^"'\n]+)""", Path(text).read_text(encoding="utf-8")):
                yield from (Path(each), Path(text).parent / each)


def _identity(path: Path) -> object:
    """Return what is equal for two names of one file, which need not be there."""
    with suppress(OSError, ValueError):
        return path.stat().st_dev, path.stat().st_ino
    with suppress(ValueError):
        return os.path.realpath(path)
    return path


def only_for(names: str, used: bool, purpose: str, remedy: str = "") -> None:
    """Refuse those of some options that were typed, unless they are used.

    `purpose` completes "--name VALUE counts only ..."; `remedy` says how to come to use them.
    """
    if used or not (found := typed(names)):
        return
    flags = " and ".join(each.partition(" ")[0] for each in found)
    remedy = remedy and f"{remedy}, or "
    raise OptschedError(f"{_listed(found)} only {purpose}; {remedy}leave {flags} out")


def note_unless(used: bool, names: str, purpose: str) -> None:
    """Note those of some options that were typed, unless they are used."""
    if not used and (found := typed(names)):
        effect = "has" if len(found) == 1 else "have"
        notes().append(f"{_listed(found)} only {purpose}, and {effect} no effect here")


def note_twice(order: Sequence[click.Parameter]) -> None:
    """Note the options with a value, or with an opposite, that were typed more than once."""
    for each, count in Counter(order).items():
        if count < 2 or not isinstance(each, Option) or each.multiple:
            continue
        if each.secondary_opts or not each.is_flag:
            notes().append(f"{each.shown()} was given twice; the last one counts")


def notes() -> list[str]:
    """Return all notes on this command line."""
    found: list[str] = click.get_current_context().meta.setdefault(_NOTES, [])
    return found


def _listed(found: Sequence[str]) -> str:
    return f"{' and '.join(found)} {'counts' if len(found) == 1 else 'count'}"


def words_without(names: Collection[str]) -> list[str]:
    """Return the words of this command line without some options that have values."""
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word in names:
            next(given, None)
        elif word.partition("=")[0] not in names:
            words.append(word)
    return words


def typed(names: str) -> list[str]:
    """Return those of some options that were typed, each with its value."""
    context, wanted = click.get_current_context(), names.split()
    return [
        each.shown(context.params[each.name])
        for each in context.command.params
        if isinstance(each, Option)
        and each.name in wanted
        and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    ]


TICK = 1e-6  # seconds of a step where arrivals must stay precise
IDLE = 100_000  # steps before the first arrival that are nothing unusual
DEFAULT_BLOCK = 16  # tokens of a block where vLLM is not told
SERVED = "optsched.served"  # under which a context keeps how vLLM serves, as told or on its GPU
LINE = "optsched.line"  # the command by which it was started
_TOLD = "optsched.told"  # and of that what --serve said
_MAX_SEEDS = 10_000
UNLOADED = 0.01  # load below which the unit of arrivals is doubtful
#: Names that options had in version 0.1, and those that they have now.
_RENAMED = {
    "--model": ("--llm", "--planner"),
    "--horizon": ("--last-step",),
    "--out": ("--export", "--keep-instances"),
}


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number, or several with commas between them, or one of a few words."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float], *words: str) -> None:
        self._kind, self._words = kind, words

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Split and convert."""
        if value in self._words:
            return value
        try:
            numbers = [self._kind(part) for part in str(value).split(",")]
        except ValueError:
            what = "whole number" if self._kind is int else "number"
            where = f"{param.opts[-1] if param else self.name} is {value!r}"
            raise OptschedError(f"{where}, but must be a {what}, or several with commas") from None
        return numbers[0] if len(numbers) == 1 else numbers


def option(usage: str, kind: object, text: str, **more: Any) -> Option:
    """Declare an option by its names and metavar, and by its type, its default or its choices."""
    names: list[str]
    metavar: str | None
    *names, metavar = usage.split()
    if isinstance(kind, list):  # help shows all of them
        names, metavar = [usage], None
        more["default"], kind = kind[0], click.Choice(kind)
    elif not isinstance(kind, type | click.ParamType):
        more["default"], kind = kind, type(kind)
    shown = "default" in more
    return Option(names, type=kind, metavar=metavar, help=text, show_default=shown, **more)


def flag(names: str, text: str, **more: Any) -> Option:
    """Declare an option that is there or not, or that has an opposite, as in "--a/--no-a"."""
    return Option(names.split(), is_flag=True, help=text, **more)


class Written(click.Path):
    """A file or folder that is checked before any work is done for it."""

    def __init__(self, check: Callable[[str], object]) -> None:
        super().__init__()
        self._check = check

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | os.PathLike[str]:
        """Refuse what cannot be written."""
        self._check(str(value))
        return value


def check_log(name: str) -> None:
    """Refuse a log that cannot be written."""
    from optsched.problem.execution import check_log_name

    check_log_name(name)
    check_writable(name)


def _check_model(name: str) -> None:
    from optsched.solvers.backends.files import ending_of

    check_writable(name)
    ending_of(name)


FILE = Written(check_writable)
HTML = option("--html FILE", FILE, "Write a report that needs no network.")
LOG = option("--log FILE", Written(check_log), "Write all attempts to a .csv, .csv.gz or .parquet.")
MODEL_FILE = Written(_check_model)
JOBS = option("--jobs K", int, "Processes on this machine (default: one per core).")
MEMORY = option("--memory M", int, "Tokens that the KV cache of a worker holds.")
SERVE = option(
    "--serve LINE",
    str,
    "How a server was started: 'vllm serve MODEL ...', or a FILE with that, its log or meta.json.",
)
INTERVALS = option(
    "--intervals I",
    str,
    "What policies know of outputs: exact, common:L,U, classes:W, relative:X or column.",
)
#: Settings of a run (`RunSettings`), by the names of its fields.
KNOWLEDGE = (
    INTERVALS,
    option(
        "--history TRACE",
        str,
        "Completed requests, from which likely outputs are learned.",
        needs="no --log-error",
    ),
    option(
        "--log-error E",
        float,
        "Or the error of the column output_estimate: standard deviation of its logarithm.",
    ),
    option("--rule R", "prefix", "If a request does not fit: prefix, skip, backfill or window."),
)
CLOCK = (
    option(
        "--clock C",
        str,
        "How long batches take: unit, affine:D0,D1, a model such as llama-2-7b-a100, or FILE.json.",
    ),
    option("--until T", float, "Form no batch at or after time T.", needs="--clock"),
    option(
        "--warm-up T", float, "Leave what happens before T out of the metrics.", needs="--clock"
    ),
)
OBJECTIVE = option(
    "--objective O", "total-latency", "What counts: total-latency, weighted-latency or makespan."
)
SEED = option("--seed N", 0, "Seed of all randomness, and of a family without a seed of its own.")
SKIP_INVALID = flag("--skip-invalid", "Skip bad rows, and list them.")
READING = (option("--limit N", int, "Take only the first N requests."), SKIP_INVALID, SEED)
UNIT = click.Choice(["s", "ms", "us", "ns", "steps"])
COLUMNS = (
    option(
        "--columns ROLES", str, "Your columns, of --history too: prompt=A,output=B,arrival=C, ..."
    ),
    option("--time-unit U", UNIT, "Unit of arrivals, where unknown: s, ms, us, ns or steps."),
)
#: Instead of a memory.
HARDWARE = (
    option(
        "--llm L",
        str,
        "Instead of --memory: an LLM, such as llama-3.1-8b or its config.json, ...",
        needs="--gpu",
    ),
    option(
        "--gpu G",
        str,
        "... and its GPU, such as h100-80gb or 24GiB; also sets --clock.",
        needs="--llm",
    ),
    option("--gpus N", 1, "Number of GPUs that share the LLM.", needs="--llm"),
    option(
        "--gpu-memory-utilization X", 0.9, "Share of their memory that vLLM uses.", needs="--llm"
    ),
)
TRACE = (
    click.Argument(["trace"]),
    MEMORY,
    *HARDWARE,
    option("--seconds-per-step S", 0.05, "Length of a step where arrivals are in seconds."),
    option("--rate R", float, "Poisson arrivals for a TRACE without any: requests per second."),
    *COLUMNS,
    *READING,
)
ALL = (
    option(
        "--json json_path OUT",
        Written(lambda name: None if name == "-" else check_writable(name)),
        "Write the result as JSON ('-': to standard output, and nothing else).",
    ),
    flag("--quiet", "Print no table and no notes."),
)
OVERWRITE = flag(
    "--overwrite", "Let outputs replace files that optsched did not write.", is_eager=True
)
WORKERS = option(
    "--workers G", str, "Independent workers: their number, or memories such as 16492x2,4096x8."
)
_SECTIONS = {
    "Trace (a log of requests, or family:NAME,n=..; see optsched families)": (
        *("memory", "llm", "gpu", "gpus", "gpu_memory_utilization"),
        *("limit", "rate", "seconds_per_step", "columns", "time_unit", "skip_invalid"),
    ),
    "Results": (
        *("html", "csv", "schedule", "schedules", "log", "batches", "certificate", "out", "export"),
        *("keep_instances", "json_path", "overwrite", "quiet"),
    ),
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


_OF_FAMILY = ("n", "rate", "load")


class _Command(Examples):
    """A command whose options stand in sections, its own ones first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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
        """Read the arguments; note which options are typed twice, and say what has a new name."""
        try:
            with ctx:
                note_twice(self.make_parser(ctx).parse_args(list(args))[2])
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = {name for each in self.params for name in each.opts}
            if new := sorted(own.intersection(_RENAMED.get(error.option_name, ()))):
                sentence = f"No such option {error.option_name}; it is now {' or '.join(new)}"
                raise click.UsageError(sentence, ctx) from None
            name = error.option_name.lstrip("-")
            family = next((word for word in args if word.startswith("family:")), None)
            if family is not None and name in _OF_FAMILY:
                sentence = f"No such option --{name}; write it behind the family: {family},{name}=X"
                raise click.UsageError(sentence, ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an error names options, where Python has arguments of these names."""
        try:
            _check_files()
            return super().invoke(ctx)
        except OptschedError as error:
            sentence = str(error)
            for parameter in self.params:
                if isinstance(parameter, click.Option) and parameter.name:
                    argument = rf"(?:^|(?<=\()){re.escape(parameter.name)}(?= is | leaves |\))"
                    sentence = re.sub(argument, parameter.opts[-1], sentence)
            error.args = (sentence, *error.args[1:])
            raise


class CommandGroup(_Command, click.Group):
    """A command with others below it."""


def examples(lines: Sequence[str]) -> str:
    """Write an epilog of command lines, which the tests run."""
    return "\n".join(["\b", "Examples:", *(f"  optsched {line}" for line in lines)])


def command(
    *parameters: click.Parameter | Iterable[click.Parameter], runs: Sequence[str]
) -> Callable[[Callable[[Output, Options], int]], click.Command]:
    """Make a command of a function of an `Output`, the options and, with TRACE, an instance."""
    listed: list[click.Parameter] = [*ALL]
    for each in parameters:
        listed.extend([each] if isinstance(each, click.Parameter) else each)
    own = any(each.name == "overwrite" for each in listed)  # of a folder
    listed += [] if own else [OVERWRITE]

    def decorate(function: Callable[[Output, Options], int]) -> click.Command:
        @functools.wraps(function)
        def call(json_path: str | None, quiet: bool, html: str | None = None, **given: Any) -> int:
            output = Output(json_path, quiet, html)
            if not own:
                given.pop("overwrite")
            skip_invalid = given.get("skip_invalid", False)
            if "serve" in given:
                take_served(given)
            if "llm" in given:
                _take_hardware(given)
            check_conditions(given)
            if TRACE in parameters:
                _read_all(output, given)
            if KNOWLEDGE in parameters:
                given["beliefs"] = _beliefs(output, given, skip_invalid)
            code = function(output, given)
            for note in notes():
                output.note(note)
            return code

        listed.sort(key=_place)
        return click.command(cls=_Command, params=listed, epilog=examples(runs))(call)

    return decorate


def take_served(options: Options) -> None:
    """Put what a server was told in the place of what was not typed."""
    if (text := options.pop("serve")) is None:
        return
    if "read_served" not in rooms.names("served"):
        raise OptschedError(rooms.elsewhere("--serve"))
    served, context = rooms.added("served", "read_served")(text), click.get_current_context()
    if text.split()[:2] == ["vllm", "serve"]:
        context.meta[LINE] = text.strip()
    settings = served.settings
    found = {"llm": served.llm, "gpu": served.gpu, "memory": served.memory}
    if served.llm is not None:
        found |= {"gpus": served.gpus, "gpu_memory_utilization": served.gpu_memory_utilization}
    if typed("memory num_gpu_blocks"):
        settings = {name: each for name, each in settings.items() if name != "num_gpu_blocks"}
        del found["memory"]
    for name, value in found.items():
        if value is not None and name in options and not typed(name):
            options[name] = context.params[name] = value
    unsaid = {"max_num_seqs", "max_num_batched_tokens"} - settings.keys()
    if options.get("gpu") is None and unsaid and not typed(" ".join(unsaid)):
        notes().append(
            "--serve names no limit of requests or tokens in a batch, and no GPU is known: as on "
            "one below 70 GiB they are 256 and 2,048; say them, or pass --gpu"
        )
    context.meta[SERVED] = context.meta[_TOLD] = settings
    notes().extend(served.notes)


def told() -> dict[str, object]:
    """Return what --serve said of the server."""
    return dict(click.get_current_context().meta.get(_TOLD, {}))


def guessed(names: str) -> set[str]:
    """Return those of some limits of an engine that were neither typed nor said by --serve."""
    return {name for name in names.split() if name not in told() and not typed(name)}


def _take_hardware(options: Options) -> None:
    llm, gpu, gpus, share = take(options, "llm gpu gpus gpu_memory_utilization").values()
    if llm is None or gpu is None:
        return
    from optsched.clock.hardware import memory_tokens, vllm_defaults

    unset = [each for each in ("memory", "clock") if options.get(each, "") is None]
    if "memory" in unset:
        options["memory"] = memory_tokens(llm, gpu, gpus, share)
    if "clock" in unset:
        options["clock"] = optsched.clock.clock_of(llm, gpu, gpus)
    meta = click.get_current_context().meta
    used = bool(unset) or SERVED in meta  # of a server the GPU decides limits that it was not told
    only_for("llm gpu gpus", used, "where no memory or no clock is set")
    meta[SERVED] = vllm_defaults(gpu) | meta.get(SERVED, {})


def _read_all(output: Output, options: Options) -> None:
    """Put the instance in the place of TRACE, or several where --seeds asks for them."""
    if (count := options.pop("seeds", None)) is not None:
        seeds = seeds_of(options["trace"], options["seed"], count)
        several = [_instance(output, options | {"seed": each}) for each in seeds]
        options["several"] = several
    options["instance"] = _instance(output, options)
    options.pop("rate")


def seeds_of(trace: str, seed: int, count: int) -> range:
    """Return the seeds of a family of which several instances are drawn."""
    if not trace.startswith("family:") or "seed=" in trace or not 1 <= count <= _MAX_SEEDS:
        raise OptschedError(
            f"--seeds {count} needs a family without a seed of its own, and a number from 1 to "
            f"{_MAX_SEEDS:,}, but TRACE is {trace}; correct that, or leave --seeds out"
        )
    return range(seed, seed + count)


def _instance(output: Output, options: Options) -> Instance:
    trace = options.pop("trace")
    how = take(options, "memory limit seconds_per_step skip_invalid columns time_unit")
    on_clock = options.get("clock") not in (None, "unit")
    how["memory"] = memory_of(how["memory"], options)
    step = how["seconds_per_step"]
    if on_clock:
        how["seconds_per_step"] = TICK
    family = trace.startswith("family:")
    note_unless(not family, "columns time_unit", "for a TRACE in a file")
    if family and on_clock and "seconds_per_step=" not in trace:
        if "load=" in trace:
            output.note(
                f"a load counts steps, which are {TICK:g} s here: give rate=, in requests per "
                "second, or say with seconds_per_step= how long a step is"
            )
        trace += f",seconds_per_step={TICK!r}"  # so that a rate is per second
    instance = read_instance(output, trace, seed=options["seed"], **how)
    if (rate := options.get("rate")) is not None:
        instance = _arriving(instance, rate, how["seconds_per_step"], options["seed"])
    converted = not (family or on_clock) and instance.seconds_per_step == step
    if on_clock and instance.seconds_per_step is None and typed("seconds_per_step"):
        instance, converted = instance.replace(seconds_per_step=step), True
    note_unless(converted, "seconds_per_step", "in steps, for files with arrivals in seconds")
    if not family:
        _note_odd_arrivals(output, instance)
    return instance


def _arriving(instance: Instance, rate: float, step: float, seed: int) -> Instance:
    """Let requests without arrivals come as a Poisson process brings them."""
    import numpy as np

    from optsched.workloads.families import poisson

    if instance.arrivals.any() or instance.follows is not None:
        raise OptschedError(
            f"--rate {rate:g} counts only for a TRACE without arrivals; leave --rate out"
        )
    step = instance.seconds_per_step or step
    arrivals = poisson(len(instance), rate * step, np.random.default_rng(seed))
    return instance.replace(arrivals=arrivals, seconds_per_step=step)


def memory_of(memory: int | None, options: Options) -> int | None:
    """Return the memory that was given, that of blocks but the one not used, or of workers."""
    if memory is None and options.get("num_gpu_blocks") is not None:
        memory = (options["num_gpu_blocks"] - 1) * (options["block_size"] or DEFAULT_BLOCK)
    workers = options.get("workers")
    if isinstance(workers, str) and not workers.isdecimal():  # else they are counted
        from optsched.problem.workers import Workers

        return max(Workers.parse(workers, memory).memories)
    return memory


def _beliefs(output: Output, options: Options, skip_invalid: bool) -> Beliefs | Instance | None:
    """Take out of the options which outputs are likely: by completed requests, or by a column."""
    from optsched._internal.arguments import MAX_TOKENS

    history, log_error = take(options, "history log_error").values()
    if history is not None:
        if history.startswith("family:"):
            return read_instance(output, history, None, skip_invalid=skip_invalid)
        given = click.get_current_context().params
        how = {name: given[name] for name in ("columns", "time_unit")}  # of one engine, mostly
        how["left_out"] = None  # which counts those of TRACE
        return read_instance(output, history, MAX_TOKENS, skip_invalid=skip_invalid, **how)
    if log_error is None:
        return None
    instance: Instance = options["instance"]
    if instance.output_estimates is None:
        raise OptschedError(
            "--log-error is the error of the column output_estimate, which TRACE does not have; "
            "add it, or leave --log-error out"
        )
    longest = int((instance.memory - instance.prompts).max())
    return optsched.Beliefs.around(instance.output_estimates, log_error, longest)


def left_out() -> Counter[str]:
    """Return the counts of requests that are left out on this command line, by why."""
    found: Counter[str] = click.get_current_context().meta.setdefault(_LEFT_OUT, Counter())
    return found


def read_instance(
    output: Output,
    trace: str,
    memory: int | None,
    *,
    skip_invalid: bool,
    seed: int | None = None,
    **how: Any,
) -> Instance:
    """Read a trace, or a family with a seed unless it has its own; note what was changed."""
    if seed is not None and trace.startswith("family:") and "seed=" not in trace:
        trace += f",seed={seed}"
    with output.progress(f"reading {trace}"):
        how = {"left_out": left_out()} | how | {"note": output.note, "strict": not skip_invalid}
        instance, skipped = optsched.workloads.read_trace_skipping(trace, memory, **how)
        for row in skipped[:LISTED]:
            output.note(f"left out {row}")
        if skip_invalid:
            output.note(f"left out {len(skipped)} rows, kept {len(instance)}")
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
            "arrival_s seconds (for others pass --time-unit)"
        )
