"""Commands about clocks: what there is, how to make one, and how far it is from a measured run."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

import optsched
from optsched.cli import options as cli
from optsched.cli.options import Options, Output, command, option, take
from optsched.cli.policies import ENGINE, of_engine
from optsched.errors import OptschedError
from optsched_serving.recorded import is_recorded, recorded_batches, recorded_requests

if TYPE_CHECKING:
    import pandas as pd

    from optsched.clock import Clock
    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.workloads.trace import Measured
    from optsched_serving.calibration import ClockCheck

#: A line of vLLM's --enable-logging-iteration-details.
_ITERATION = re.compile(
    r"\d+ context requests, (\d+) context tokens, (\d+) generation requests, \d+ generation "
    r"tokens, iteration elapsed time: ([\d.]+) ms"
)
_LAYERS = "a folder of kernel times"
_KERNELS = (
    option("--layers N", int, f"Transformer layers of the model, of {_LAYERS}."),
    option("--ranks N", 1, f"GPUs that share the model, of {_LAYERS}."),
    option("--expert-ranks N", 1, f"Engines that share the experts, of {_LAYERS}."),
    option("--hidden N", int, "Hidden size of the model, for several of both."),
    option("--link-latency S", 0.0, "Seconds per transfer between GPUs, for several of both."),
    option("--link-bandwidth B", float, "Bytes per second between GPUs, for several of both."),
    option("--overhead S", 0.0, f"Seconds per batch in which no kernel runs, of {_LAYERS}."),
)
_MEASURED = (
    *cli.HARDWARE,
    *cli.COLUMNS,
    cli.SKIP_INVALID,
    option("--concurrency N", int, "Of a log without arrivals: requests its client kept running."),
    cli.WORKERS,
    option("--router R", "vllm-dp", "Router of these workers, as of route.", needs="--workers"),
)
_DOUBLING = tuple(2**power for power in range(1, 12))  # tokens, as more experts are activated
_TOGETHER = {"layers", "expert_ranks", "hidden", "link_latency", "link_bandwidth"}
_BASE = option("--clock C", str, "Clock that a log scales; of a log.")


@command(
    click.Argument(["source"], metavar="FILE_OR_FOLDER"),
    option("--out FILE", cli.FILE, "Write the clock as JSON."),
    *_KERNELS,
    _BASE,
    cli.MEMORY,
    *_MEASURED,
    *ENGINE,
    runs=(
        "clock fit batches.csv --out mine.json",
        "clock fit recorded --out mine.json",
        "clock fit vllm.log --out mine.json",
        "clock fit profile --layers 32 --memory 41408 --out mine.json",
        "clock fit experts --layers 48 --hidden 2048 --expert-ranks 2 --out mine.json",
        "clock fit log.jsonl --clock llama-3.1-8b-rtx4090 --num-gpu-blocks 2588 --out mine.json",
    ),
)
def fit(output: Output, given: Options) -> int:
    """Make a clock of measured batches, kernel times or a log.

    Batches: a folder that the plugin recorded, a CSV of it, or vLLM's log with
    --enable-logging-iteration-details. Kernel times: a folder with dense.csv, per_sequence.csv and
    attention.csv. A log: requests with measured latencies, by which --clock is scaled.
    """
    source, out, clock = take(given, "source out clock").values()
    path, kernels = Path(source), take(given, cli.names_of(_KERNELS))
    has_kernels = path.is_dir() and not is_recorded(path)
    if path.exists():
        cli.only_for(cli.names_of(_KERNELS), has_kernels, f"for {_LAYERS}")
    is_log = clock is not None and not has_kernels
    cli.only_for(f"clock {cli.names_of((*_MEASURED, *ENGINE))}", is_log, "for a log and --clock")
    gone = Counter[str]()
    name = Path(out).stem if out else "fitted"
    with output.progress("fitting"):
        if has_kernels:
            from optsched.clock.hardware import kernel_batches, shared_batches

            if kernels["layers"] is None:
                raise OptschedError(f"{source} has the times of one layer; pass --layers N")
            kernels["memory"] = given["memory"]
            set_ones = {key: value for key, value in kernels.items() if value is not None}
            found = optsched.clock.LinearClock.fit(kernel_batches(path, **set_ones), name)
            if kernels["expert_ranks"] > 1:
                if kernels["hidden"] is None:
                    raise OptschedError("ranks exchange activations; pass --hidden N of the model")
                names = set_ones.keys() & _TOGETHER
                together = shared_batches(path, **{name: set_ones[name] for name in names})
                part = optsched.clock.LinearClock.fit(together, "experts", ramps=_DOUBLING)
                found = found.with_shared(part)
        elif clock is None:
            found = optsched.clock.LinearClock.fit(_batches(path), name)
        else:
            from optsched_serving.calibration import calibrated

            log, how = _log(source, given, gone)
            found = calibrated(clock, *log, **how)
            found = found._replace(clock=dataclasses.replace(found.clock, name=name))
    if out is not None:
        found.clock.to_json(out)
    output.say(str(found))
    content = dataclasses.asdict(found.clock)
    errors = {"bias": found.bias, "mean_error": found.mean_error}
    output.result({"clock": content, **errors, "left_out": dict(gone)})
    return cli.DONE


@command(
    click.Argument(["name"], metavar="[CLOCK]"),
    click.Argument(["source"], metavar="LOG", required=False),
    cli.MEMORY,
    *_MEASURED,
    *ENGINE,
    cli.flag("--expert-parallel", "The workers share experts: CLOCK has to say what they share."),
    runs=(
        "clock check llama-3.1-8b-rtx4090 log.jsonl --num-gpu-blocks 2588",
        "clock check llama-3.1-8b-rtx4090 log.jsonl --llm llama-3.1-8b --gpu rtx4090-24gb "
        "--workers 2",
        "clock check recorded --num-gpu-blocks 2588",
    ),
)
def check(output: Output, given: Options) -> int:
    """Simulate a measured log, set both beside each other, and judge the clock.

    It holds if mean and p99 of all that was measured are within 5 %. If not, the likely cause is
    named: limits that were guessed are suspected first. LOG may be a folder that the plugin
    recorded; without CLOCK one is fitted on its batches.
    """
    from optsched_serving.calibration import check_clock

    name, source, experts = take(given, "name source expert_parallel").values()
    if experts and given["workers"] is None:
        raise OptschedError("engines that share experts are several; pass --workers G as well")
    if experts and getattr(optsched.get_clock(name), "shared", None) is None:
        raise OptschedError(
            f"clock {name} does not say what engines share; make one with optsched clock fit "
            "FOLDER --layers N --hidden N --expert-ranks G --out FILE"
        )
    if source is None:
        if not is_recorded(name):
            raise OptschedError(
                f"{name} is no folder that the plugin recorded; put the name of a clock before "
                "the log (optsched clock lists them)"
            )
        fitted = optsched.clock.LinearClock.fit(_batches(Path(name)), "fitted")
        name, source = fitted.clock, name
    gone = Counter[str]()
    guessed = cli.guessed("max_num_seqs max_num_batched_tokens workers")
    by_gpu = given["memory"] is not None and click.get_current_context().params["memory"] is None
    guessed |= cli.guessed("num_gpu_blocks") if by_gpu else set()
    log, how = _log(source, given, gone)
    with output.progress("simulating the log"):
        found = check_clock(name, *log, **how, guessed=guessed)
    found = dataclasses.replace(found, next=_next(found, name, source))
    if found.guessed:
        which = " and ".join(f"{name} {value:,}" for name, value in found.guessed.items())
        output.note(f"what counts was guessed: {which}; say it, or pass --serve")
    content = {"verdict": found.verdict, "cause": found.cause, "next": found.next}
    output.show(found, found.to_dict() | content | {"left_out": dict(gone)})
    return cli.DONE


def _next(found: ClockCheck, name: str | Clock, source: str) -> str | None:
    """Return the command after a check: with the clock that holds, or what may make it hold."""
    from optsched_serving.capacity.capacity import SHIPPED

    for each, value in found.change.items():
        flag = f"--{each.replace('_', '-')}"
        return shlex.join(["optsched", *cli.words_without({"--json", flag}), flag, str(value)])
    if not isinstance(name, str):  # fitted for this check
        return shlex.join(["optsched", "clock", "fit", source, "--out", "mine.json"])
    words = cli.words_without({"--json"})
    for word in ("clock", "check", name, source):
        words.remove(word)
    if found.factor is not None or ("tpot" in found.off and "ttft" not in found.off):
        return shlex.join(
            ["optsched", "clock", "fit", source, "--clock", name, *words, "--out", "mine.json"]
        )
    if found.verdict == "holds" and not cli.typed("workers concurrency scheduling_policy"):
        return shlex.join(
            ["optsched", "simulate", source, "--policy", SHIPPED, "--clock", name, *words]
        )
    return None


def _log(
    source: str, options: Options, gone: Counter[str]
) -> tuple[tuple[Instance, Measured, Policy], Options]:
    """Read a measured log, count what it leaves out, and return it with its engines."""
    memory = cli.memory_of(options.pop("memory"), options)
    how = take(options, "columns time_unit skip_invalid")
    how |= {"seconds_per_step": cli.TICK, "note": cli.notes().append, "left_out": gone}
    path = recorded_requests(Path(source)) if is_recorded(source) else source
    log = optsched.workloads.read_measured(path, memory, **how)
    engines = take(options, "concurrency workers router")
    return (*log, of_engine(optsched.policies.get_policy("vllm"), options)), engines


def _batches(path: Path) -> Path | pd.DataFrame:
    """Return a file of batches, those of a folder, or what vLLM's log says of them."""
    import pandas as pd

    if is_recorded(path):
        return recorded_batches(path)
    try:
        lines = _ITERATION.findall(path.read_text("utf-8", "replace")) if path.exists() else []
    except OSError as error:
        raise OptschedError(f"cannot read {path}: {error.strerror}") from None
    if not lines:
        return path
    names = "prefill_tokens", "decode_requests", "seconds"
    table = pd.DataFrame(lines, columns=list(names)).astype(float)
    table["seconds"] /= 1000
    table["resident_tokens"] = table["squared_prompts"] = 0
    return table.query("seconds > 0")


def _listed(context: click.Context, json_path: str | None, quiet: bool, overwrite: bool) -> int:
    """List built-in clocks, fit one, or check one on a log.

    `clock fit` makes a clock of measured batches, kernel times or a log; `clock check` sets a
    measured log beside its simulation.
    """
    if context.invoked_subcommand is not None:
        return cli.DONE
    output = Output(json_path, quiet)
    rows = []
    for name, facts in optsched.clock.clock_facts().items():
        output.say(f"{name:27} {facts['title']} ({facts['source']})")
        output.say(f"{'':27} {facts['fit']}; without {facts['left_out']}")
        if "measured" in facts:
            output.say(f"{'':27} held against {facts['measured']}")
        rows.append({"name": name, **facts})
    output.result(rows)
    return cli.DONE


clock = cli.CommandGroup(
    "clock",
    help=_listed.__doc__,
    commands=[fit, check],
    params=[*cli.ALL, cli.OVERWRITE],
    callback=click.pass_context(_listed),
    invoke_without_command=True,
    epilog=cli.examples(("clock", "clock --json -", "clock fit --help", "clock check --help")),
)
